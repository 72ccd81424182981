"""How far reading is, for somebody who looks on: on a terminal only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

Update = Callable[[int, int], None]
"""Is told how many offsets are behind us, and how many records that were."""


@contextmanager
def shown(total: int | None, *, wanted: bool, stream: TextIO | None = None) -> Iterator[Update]:
    """A bar on standard error, or nothing: where that is no terminal, or it is not `wanted`.

    `total` is how many offsets there are; None where there is no end.
    """
    target = stream if stream is not None else sys.stderr
    if not wanted or not target.isatty():
        yield lambda _done, _records: None
        return
    from rich.console import Console  # noqa: PLC0415 -- only where somebody looks
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
