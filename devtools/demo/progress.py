"""Output while the demo runs: a line for each step, and the progress of the current one."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final, Protocol, TextIO

_LINE_SECONDS: Final = 5.0
_TIME_WIDTH: Final = 9
_TITLE_WIDTH: Final = 10


class Step(Protocol):
    """One step while it runs."""

    def now(self, text: str) -> None:
        """Show the progress."""
        ...


class Progress:
    """Prints steps one after the other. On a terminal the line of the current step is updated in
    place; otherwise a new line is printed every five seconds.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        from rich.console import Console  # noqa: PLC0415 -- `--help` needs no rich

        target = stream if stream is not None else sys.stdout
        self._moves = target.isatty()
        self._console = Console(file=target, highlight=False, soft_wrap=True)
        self._started = monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the progress began."""
        return monotonic() - self._started

    def tell(self, title: str, text: str) -> None:
        """Print a line with time and title."""
        from rich.text import Text  # noqa: PLC0415

        line = Text(f"{self.seconds:5.1f} s  ", style="dim")
        line.append(f"{title:<{_TITLE_WIDTH}} ", style="bold")
        line.append(text)
        self._console.print(line)

    def more(self, text: str) -> None:
        """Print a second line of the last text."""
        self._console.print(" " * (_TIME_WIDTH + _TITLE_WIDTH + 1) + "  " + text)

    def say(self, text: str = "") -> None:
        """Print a line without time and title."""
        self._console.print(text)

    @contextmanager
    def step(self, title: str, text: str) -> Iterator[Step]:
        """Show the progress of an step that takes a while; the caller prints its result."""
        if not self._moves:
            yield _Lines(self, title, text)
            return
        with self._console.status(f"{title}: {text}") as status:

            class _Moving:
                def now(self, text: str) -> None:
                    status.update(f"{title}: {text}")

            yield _Moving()


class _Lines:
    """Progress for logs: a line at the beginning, then at most one every five seconds."""

    def __init__(self, progress: Progress, title: str, text: str) -> None:
        self._progress = progress
        self._title = title
        self._last = progress.seconds
        progress.tell(title, f"{text} ...")

    def now(self, text: str) -> None:
        if self._progress.seconds - self._last >= _LINE_SECONDS:
            self._last = self._progress.seconds
            self._progress.tell(self._title, text)
