"""Exports into tables whose format has commits of its own: the offsets are in the commit.

A commit that readers see says up to where the table holds the records of each partition, and
nothing else does. A run reads that, fixes the offsets up to which it goes on, writes their records
with the new offsets in one commit, and looks whether the table says so.
"""
