"""Restore drills: a sample of the archive comes back on a throw-away broker, and is compared."""
