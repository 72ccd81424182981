"""Gives up what Spark does for this thread, after a time or when there is a reason to."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from pyspark import SparkContext

from sidetier.storage.attempt import monotonic

_LOOK: Final = 0.5
_BRIEFLY: Final = 0.01


@dataclass(slots=True)
class Watch:
    """Whether, and why, it was given up: "" where it was not."""

    reason: str = ""
    ended: threading.Event = field(default_factory=threading.Event)


@contextmanager
def given_up_after(
    context: SparkContext,
    seconds: float,
    reason: Callable[[], str] = str,
    clock: Callable[[], float] = monotonic,
) -> Iterator[Watch]:
    """Cancel the jobs that this thread begins once so many seconds have passed, or `reason` gives
    one. What runs between two jobs ends by itself: the next job is cancelled.

    By tag, not by group: the formats name groups of their own.
    """
    tag = f"sidetier-{uuid4().hex}"
    watch = Watch()

    until = clock() + seconds

    def look() -> None:
        while not watch.ended.wait(max(min(_LOOK, until - clock()), _BRIEFLY)):
            late = f"it took more than {seconds:g} s" if clock() >= until else ""
            why = reason() or late
            if why:
                watch.reason = why
                context.cancelJobsWithTag(tag)

    thread = threading.Thread(target=look, name="given-up-after", daemon=True)
    context.addJobTag(tag)
    thread.start()
    try:
        yield watch
    finally:
        watch.ended.set()
        thread.join()
        context.removeJobTag(tag)
