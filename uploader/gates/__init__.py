"""Conditions for archiving: committed records, an allowed topic, the archive's history."""
