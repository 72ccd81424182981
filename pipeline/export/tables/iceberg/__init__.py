"""Iceberg tables. The snapshot's summary contains the offsets."""
