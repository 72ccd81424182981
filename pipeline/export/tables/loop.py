"""Runs one after the other, at an interval, until told to stop."""

import threading
from collections.abc import Callable
from typing import Final

from sidetier.pipeline.export.tables.run import Committed
from sidetier.segments.errors import SidetierError

MOST_FAILURES: Final = 10


def run_at_interval(
    run: Callable[[], Committed],
    interval: float,
    stop: threading.Event,
    clock: Callable[[], float],
    failed: Callable[[SidetierError], None],
) -> None:
    """Run now, and then every `interval` seconds; a run that takes longer is followed at once.

    A failure that can pass is reported, and tried again at the next interval, as Hudi's sink does;
    the tenth in a row is not.

    Raises:
        SidetierError: one that trying again does not help, or the tenth in a row.
    """
    failures = 0
    while not stop.is_set():
        began = clock()
        try:
            run()
            failures = 0
        except SidetierError as error:
            failures += 1
            if not error.retry or failures >= MOST_FAILURES:
                raise
            failed(error)
        stop.wait(max(0.0, began + interval - clock()))
