"""Tells what happens while the demo plays: a line for each act, and how far the present one is."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final, Protocol, TextIO

_LINE_SECONDS: Final = 5.0
_TITLE_WIDTH: Final = 10


class Act(Protocol):
    """One act, while it plays."""

    def now(self, text: str) -> None:
        """How far it is."""
        ...


class Story:
    """Acts one after the other. On a terminal the present one moves; else a line now and then."""

    def __init__(self, stream: TextIO | None = None) -> None:
        from rich.console import Console  # noqa: PLC0415 -- `--help` needs no rich

        target = stream if stream is not None else sys.stdout
        self._moves = target.isatty()
        self._console = Console(file=target, highlight=False, soft_wrap=True)
        self._started = monotonic()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return monotonic() - self._started

    def tell(self, title: str, text: str) -> None:
        """A line that stays."""
        from rich.text import Text  # noqa: PLC0415

        shown = Text(f"{self.seconds:5.1f} s  ", style="dim")
        shown.append(f"{title:<{_TITLE_WIDTH}} ", style="bold")
        shown.append(text)
        self._console.print(shown)

    def say(self, text: str = "") -> None:
        """A line of its own."""
        self._console.print(text)

    @contextmanager
    def act(self, title: str, text: str) -> Iterator[Act]:
        """Something that takes a while; whoever plays it tells its end."""
        if not self._moves:
            yield _Lines(self, title, text)
            return
        with self._console.status(f"{title}: {text}") as status:

            class _Moving:
                def now(self, text: str) -> None:
                    status.update(f"{title}: {text}")

            yield _Moving()


class _Lines:
    """For logs: the beginning, and a line every five seconds."""

    def __init__(self, story: Story, title: str, text: str) -> None:
        self._story = story
        self._title = title
        self._last = story.seconds
        story.tell(title, f"{text} ...")

    def now(self, text: str) -> None:
        """See `Act`."""
        if self._story.seconds - self._last >= _LINE_SECONDS:
            self._last = self._story.seconds
            self._story.tell(self._title, text)
