"""Messages on standard error while a store does not answer, because silence looks like a hang."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import click

from sidetier.storage.store_calls import StoreCalls

_FIRST_SECONDS: Final = 3.0
"""Duration of a request, in seconds, before the first message."""
_LOOK_SECONDS: Final = 0.25


@contextmanager
def told_waits(first_seconds: float = _FIRST_SECONDS) -> Iterator[StoreCalls]:
    """Report the oldest request after `first_seconds`, and again at each of its attempts.

    Yields:
        The registry to open stores with. Only calls of these stores are reported.
    """
    calls, ended = StoreCalls(), threading.Event()
    teller = threading.Thread(
        target=_tell, args=(calls, ended, first_seconds), name="store-waits", daemon=True
    )
    teller.start()
    try:
        yield calls
    finally:
        ended.set()
        teller.join()


def _tell(calls: StoreCalls, ended: threading.Event, first_seconds: float) -> None:
    reported: tuple[str, int] | None = None
    while not ended.wait(_LOOK_SECONDS):
        oldest = next(iter(calls.under_way()), None)
        if oldest is None or calls.seconds(oldest) < first_seconds:
            continue
        if reported != (oldest.store, oldest.attempt):
            reported = oldest.store, oldest.attempt
            # Standard error may be closed. The command itself ends with the store's answer.
            with suppress(OSError):
                click.echo(
                    f"sidetier: waiting for the store at {oldest.store}, "
                    f"attempt {oldest.attempt} ({oldest.operation} {oldest.key})",
                    file=sys.stderr,
                )
