"""Gives up what Spark does for this thread, after a time or when there is a reason to."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from pyspark import SparkContext

_LOOK: Final = 0.5


@dataclass(slots=True)
class Watch:
    """Whether, and why, it was given up: "" where it was not."""

    reason: str = ""
    ended: threading.Event = field(default_factory=threading.Event)


@contextmanager
def given_up_after(
    context: SparkContext, seconds: float, reason: Callable[[], str] = str
) -> Iterator[Watch]:
    """Cancel the jobs that this thread begins once so many seconds have passed, or `reason` gives
    one. What runs between two jobs ends by itself: the next job is cancelled.

    By tag, not by group: the formats name groups of their own.
    """
    tag = f"sidetier-{uuid4().hex}"
    watch = Watch()

    def look() -> None:
        waited = 0.0
        while not watch.ended.wait(min(_LOOK, max(seconds - waited, 0.01))):
            waited += _LOOK
            why = reason() or (f"it took more than {seconds:g} s" if waited >= seconds else "")
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
