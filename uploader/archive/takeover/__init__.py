"""Takeover of an archive that Pinterest's uploader has written."""
