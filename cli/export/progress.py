"""How many records were exported, for somebody who looks on: on a terminal only."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO


@dataclass(slots=True)
class Counter:
    """Counts from many threads."""

    update: Callable[[int], None] = field(default=lambda _records: None)
    records: int = 0
    guard: threading.Lock = field(default_factory=threading.Lock)

    def add(self, count: int) -> None:
        """So many more."""
        with self.guard:
            self.records += count
            self.update(self.records)


@contextmanager
def shown(*, wanted: bool, stream: TextIO | None = None) -> Iterator[Counter]:
    """A line on standard error, or nothing where that is no terminal."""
    target = stream if stream is not None else sys.stderr
    if not wanted or not target.isatty():
        yield Counter()
        return
    from rich.console import Console  # noqa: PLC0415 -- only where somebody looks
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (
        SpinnerColumn(),
        TextColumn("{task.completed:,.0f} records read"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(file=target), transient=True) as drawn:
        task = drawn.add_task("", total=None)
        yield Counter(lambda records: drawn.update(task, completed=records))
