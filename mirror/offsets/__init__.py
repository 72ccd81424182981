"""Translation of committed offsets of consumer groups by a mirror's offset map."""
