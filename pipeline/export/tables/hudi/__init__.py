"""Hudi tables: the offsets are in the extra metadata of the commit."""
