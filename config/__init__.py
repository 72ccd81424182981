"""Frozen configuration models, loaded once from YAML, environment, flags and Pinterest-style properties."""
