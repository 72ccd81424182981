"""State of an export: what it has reached, and the two places that store it."""
