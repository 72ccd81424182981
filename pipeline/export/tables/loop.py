"""Repeat runs at an interval until stopped."""

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
    """Run now, and then every `interval` seconds. A longer run is followed by the next one at once.

    A failed run that `can_pass` accepts is repeated at the next interval, as in Hudi's sink
    connector.

    Raises:
        SidetierError: an error that `can_pass` does not accept, or the tenth failure in a row.
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
