"""`sidetier backfill`: plan, run and result."""
