"""Cancel this thread's Spark jobs after a time limit, or for another reason."""

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
    """Why the jobs were cancelled; `reason` is empty if they were not."""

    reason: str = ""
    ended: threading.Event = field(default_factory=threading.Event)


@contextmanager
def cancel_jobs_after(
    context: SparkContext,
    seconds: float,
    reason: Callable[[], str] = str,
    clock: Callable[[], float] = monotonic,
) -> Iterator[Watch]:
    """Cancel the Spark jobs that this thread starts, after `seconds` or once `reason` returns a
    text.

    Work between two jobs is not interrupted; the next job is cancelled. Jobs are cancelled by tag,
    not by group, because the table formats set groups of their own.

    Args:
        context: the Spark context.
        seconds: the time limit.
        reason: returns why to cancel; an empty text to go on. Called on another thread.
        clock: a monotonic clock, in seconds.
    """
    tag = f"sidetier-{uuid4().hex}"
    watch = Watch()

    until = clock() + seconds

    def look() -> None:
        while not watch.ended.wait(max(min(_LOOK, until - clock()), _BRIEFLY)):
            late = f"it took more than {seconds:g} s" if clock() >= until else ""
            cause = reason() or late
            if cause:
                watch.reason = cause
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
