"""Restore drills: restore a sample of the archive on a throw-away broker, and compare it."""
