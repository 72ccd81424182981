"""Restores of archived records into topics: what is copied where, and the check of the copy."""
