"""Frozen configuration models, loaded once from YAML, environment, flags and `.properties`."""
