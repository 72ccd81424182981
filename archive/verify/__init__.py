"""Check archives against what must hold: all objects are there, and their bytes fit together."""
