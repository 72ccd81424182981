"""Sinks of an export: the outputs that it can write to."""
