"""Iceberg tables: the offsets are in the summary of the snapshot."""
