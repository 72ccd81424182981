"""Retention on the store: which objects are past it, and their deletion."""
