"""Progress bar of `sidetier consume`, on a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

Update = Callable[[int, int], None]
"""Called with the number of offsets that were passed, and of records that were read."""


@contextmanager
def shown(total: int | None, *, wanted: bool, stream: TextIO | None = None) -> Iterator[Update]:
    """Show a bar on standard error; nothing if it is not a terminal, or the bar is not `wanted`.

    `total` is the number of offsets to read; None if there is no end.
    """
    target = stream if stream is not None else sys.stderr
    if not wanted or not target.isatty():
        yield lambda _done, _records: None
        return
    from rich.console import Console  # noqa: PLC0415 -- only needed on a terminal
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.fields[records]} records"),
        BarColumn(),
        TaskProgressColumn(show_speed=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=target), transient=True) as drawn:
        task = drawn.add_task("", total=total, records=0)
        yield lambda done, records: drawn.update(task, completed=done, records=records)
