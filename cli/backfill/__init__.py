"""`sidetier backfill`: what is to be done, doing it, and what came of it."""
