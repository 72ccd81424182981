"""Exports to tables whose format has commits. Each commit contains the offsets.

Only the last visible commit determines up to which offset the table holds the records of each
partition. A run reads these offsets, fixes the offsets at which it ends, writes the records with
the new offsets in one commit, and then checks the offsets in the table.
"""
