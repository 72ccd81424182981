"""`sidetier restore`: plan, copy, comparison, and the offsets of consumer groups."""
