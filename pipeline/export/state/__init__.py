"""The state of an export: a manifest that is replaced with conditional puts."""
