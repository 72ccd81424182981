"""Progress on standard error: a bar on a terminal, else a line every few seconds."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Final, TextIO

from sidetier.archive.progress import Amount, OnProgress, Progress
from sidetier.cli.arguments import age_text, size_text

_LINE_SECONDS: Final = 5.0
_ENOUGH_SECONDS: Final = 1.0
"""Time before which a rate is meaningless."""


@contextmanager
def shown(stream: TextIO | None = None) -> Iterator[OnProgress]:
    """Yield a display of progress that writes to `stream`; None means standard error.

    A bar appears at the first report.
    """
    target = stream if stream is not None else sys.stderr
    if not target.isatty():
        yield Lines(target).update
        return
    with ExitStack() as stack:
        bars: list[OnProgress] = []

        def update(progress: Progress) -> None:
            if not bars:
                bars.append(stack.enter_context(_bar(target)))
            bars[0](progress)

        yield update


@dataclass(slots=True)
class Lines:
    """Writes a line every five seconds, and at once when more partitions fail or all is done."""

    stream: TextIO
    started: float = field(default_factory=monotonic)
    last: float = float("-inf")
    held: int = 0

    def update(self, progress: Progress) -> None:
        """Write a line if it is time for one."""
        now = monotonic()
        is_news = progress.held > self.held or progress.done == progress.total
        if now - self.last < _LINE_SECONDS and not is_news:
            return
        self.last, self.held = now, progress.held
        line = progress_line(progress.done, progress.total, now - self.started)
        self.stream.write(f"{line}{held_text(progress.held)}\n")
        self.stream.flush()


def progress_line(done: Amount, total: Amount, seconds: float) -> str:
    """Return the share that is done, the rate, and the remaining time."""
    share = 100 * done.size // total.size if total.size else 100
    text = f"{share}%: {done.segments} of {total.segments} segments, "
    text += f"{size_text(done.size)} of {size_text(total.size)}"
    if seconds < _ENOUGH_SECONDS or not done.size:
        return text
    rate = done.size / seconds
    return f"{text}, {size_text(int(rate))}/s, {age_text((total.size - done.size) / rate)} left"


def held_text(held: int) -> str:
    """Return a note about partitions that wait after an error; empty if there are none."""
    return f", {held} held by an error, tried again" if held else ""


@contextmanager
def _bar(target: TextIO) -> Iterator[OnProgress]:
    columns = (
        "{task.fields[segments]} of {task.fields[of]} segments{task.fields[held]}",
        "BarColumn",
        "DownloadColumn",
        "TransferSpeedColumn",
        "TimeRemainingColumn",
    )
    with drawn(target, columns, segments=0, of=0, held="") as draw:

        def update(progress: Progress) -> None:
            draw(
                total=progress.total.size,
                completed=progress.done.size,
                segments=progress.done.segments,
                of=progress.total.segments,
                held=f", {progress.held} held" if progress.held else "",
            )

        yield update


@contextmanager
def drawn(
    target: TextIO,
    columns: Sequence[str],
    *,
    transient: bool = False,
    total: float | None = None,
    **fields: Any,  # noqa: ANN401 -- rich's
) -> Iterator[Callable[..., None]]:
    """Draw a bar; yields a function that takes `completed`, `total` and the fields.

    Args:
        target: A terminal.
        columns: Names of rich's columns, and texts with fields of the task.
        transient: Whether the bar disappears at the end.
        total: The value of `completed` at the end.
        fields: First values of the texts' fields.
    """
    from rich import progress  # noqa: PLC0415 -- only needed on a terminal
    from rich.console import Console  # noqa: PLC0415

    made = [
        getattr(progress, name)() if hasattr(progress, name) else progress.TextColumn(name)
        for name in columns
    ]
    with progress.Progress(*made, console=Console(file=target), transient=transient) as shown_bar:
        task = shown_bar.add_task("", total=total, **fields)
        yield partial(shown_bar.update, task)


Update = Callable[[int, int], None]
"""Called with the number of offsets that were passed, and of records that were read."""


@contextmanager
def records_shown(
    total: int | None, *, wanted: bool, stream: TextIO | None = None
) -> Iterator[Update]:
    """Show a bar on standard error, if that is a terminal and the bar is `wanted`.

    `total` is the number of offsets to read; None if the end is open.
    """
    target = stream if stream is not None else sys.stderr
    if not wanted or not target.isatty():
        yield lambda _done, _records: None
        return
    columns = (
        "{task.fields[records]} records",
        "BarColumn",
        "TaskProgressColumn",
        "TimeRemainingColumn",
    )
    with drawn(target, columns, transient=True, total=total, records=0) as draw:
        yield lambda done, records: draw(completed=done, records=records)
