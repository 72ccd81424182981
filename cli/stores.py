"""Open the configured stores: shared by every command that uses the archive."""

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final

import click

from sidetier.archive import access
from sidetier.archive.access import ArchiveAccess
from sidetier.config.model import Config
from sidetier.storage.store_calls import RequestObserver, StoreCalls

_FIRST_SECONDS: Final = 3.0
"""Duration of a request, in seconds, before the first message."""
_LOOK_SECONDS: Final = 0.25


@contextmanager
def reporting_waits(first_seconds: float = _FIRST_SECONDS) -> Iterator[StoreCalls]:
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


def open_archive(
    config: Config,
    *,
    connections: int = 16,
    observer: RequestObserver | None = None,
    stop: threading.Event | None = None,
    calls: StoreCalls | None = None,
) -> AbstractContextManager[ArchiveAccess]:
    """Open the archive of the configured cluster; closed on exit. Raises as in `archive.access`."""
    return access.open_archive(
        config.cluster.name,
        config.storage,
        connections=connections,
        observer=observer,
        stop=stop,
        calls=calls,
    )


@contextmanager
def open_every_store(config: Config, *, connections: int = 16) -> Iterator[ArchiveAccess]:
    """Open all stores of the archive for a command at a terminal; closed on exit.

    Prints a message on standard error if a store does not answer within seconds.

    Raises:
        ConfigurationError: The directory of a `file://` store does not exist.
    """
    with (
        reporting_waits() as calls,
        open_archive(config, connections=connections, calls=calls) as archive,
    ):
        archive.require_directories()
        _ = archive.by_endpoint  # an error of opening one is raised here
        yield archive
