"""Watching the disk: file events as hints, the log dirs, and small reads."""
