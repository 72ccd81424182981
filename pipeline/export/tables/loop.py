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
    can_pass: Callable[[SidetierError], bool],
) -> None:
    """Run now, and then every `interval` seconds; a run that takes longer is followed at once.

    A failure that `can_pass` is tried again at the next interval, as Hudi's sink does; the tenth in
    a row is not.

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
            if failures >= MOST_FAILURES or not can_pass(error):
                raise
        stop.wait(max(0.0, began + interval - clock()))
