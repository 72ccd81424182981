"""The state of an export: a manifest, written with a condition."""
