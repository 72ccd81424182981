"""Restores of archived records into topics: offsets to copy, accepted targets, check of a copy."""
