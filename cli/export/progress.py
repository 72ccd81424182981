"""Progress bar of an export, with rate and remaining time, on a terminal only."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO


@dataclass(slots=True)
class Counter:
    """Adds up the progress of an export's tasks, which call it on their threads.

    Attributes:
        show: Called with the offsets that are done, their total so far, and the records that were
            read. The total grows with each run that begins: with `--chunk`, and for each topic.
    """

    show: Callable[[int, int, int], None] = field(default=lambda _done, _total, _records: None)
    done: int = 0
    total: int = 0
    records: int = 0
    guard: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, offsets: int) -> None:
        """See `Watcher`."""
        with self.guard:
            self.total += offsets
            self.show(self.done, self.total, self.records)

    def advance(self, offsets: int, records: int) -> None:
        """See `Watcher`."""
        with self.guard:
            self.done += offsets
            self.records += records
            self.show(self.done, self.total, self.records)


@contextmanager
def shown(*, wanted: bool, stream: TextIO | None = None) -> Iterator[Counter]:
    """Show a bar on standard error; nothing if it is not a terminal."""
    target = stream if stream is not None else sys.stderr
    if not wanted or not target.isatty():
        yield Counter()
        return
    from rich.console import Console  # noqa: PLC0415 -- only needed on a terminal
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.fields[records]:,} records"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} offsets"),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(file=target), transient=True) as drawn:
        task = drawn.add_task("", total=0, records=0)
        yield Counter(
            lambda done, total, records: drawn.update(
                task, completed=done, total=total, records=records
            )
        )
