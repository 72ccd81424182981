"""Exit codes that a script can rely on."""

from typing import Final

OK: Final = 0
FAILED: Final = 1
"""Something went wrong on the way: the store, the broker, a file."""
MISCONFIGURED: Final = 2
"""A setting or an argument is wrong; nothing was touched."""
FINDINGS: Final = 3
"""The command did its work, and found something missing or damaged."""
GONE: Final = 4
"""`explain`: nothing is known to hold the record."""
INTERRUPTED: Final = 130
"""Ctrl-C, as a shell reports it."""
CLOSED_PIPE: Final = 141
"""The reader of the output has closed its end (`| head`), as a shell reports SIGPIPE."""
TERMINATED: Final = 143
"""SIGTERM before the work had begun, as a shell reports it."""
