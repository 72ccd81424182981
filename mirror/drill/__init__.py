"""Restore drills: restore a sample of the archive on a temporary broker, and compare it."""
