"""Exit codes of the commands. They are stable, so scripts can rely on them."""

from typing import Final

OK: Final = 0
FAILED: Final = 1
"""An operation failed: the store, the broker, a file."""
MISCONFIGURED: Final = 2
"""A setting or an argument is wrong; the command changed nothing."""
FINDINGS: Final = 3
"""The command finished, and something is missing or damaged."""
GONE: Final = 4
"""`explain`: no source is known to hold the record."""
INTERRUPTED: Final = 130
"""Ctrl-C; the value that a shell reports for SIGINT."""
CLOSED_PIPE: Final = 141
"""The reader of the output closed the pipe (`| head`); a shell's value for SIGPIPE."""
TERMINATED: Final = 143
"""SIGTERM before the work began; the value that a shell reports for SIGTERM."""
