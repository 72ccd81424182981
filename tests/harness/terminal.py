"""A terminal that keeps what is written to it."""

import io


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True
