"""Open the configured stores: shared by every command that uses the archive."""

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final

import click

from sidetier.archive import access
from sidetier.archive.access import ArchiveAccess
from sidetier.config.model import Config
from sidetier.segments.keys import ArchiveLayout
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


_HASTY_ATTEMPTS: Final = 3
_HASTY_SECONDS: Final = 10.0


def layout_of(config: Config) -> ArchiveLayout:
    """Return the key layout of the configured cluster."""
    return ArchiveLayout(config.cluster.name, config.storage.prefix_entropy_bits)


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


def with_few_retries(config: Config) -> Config:
    """Return the configuration with few retries, so that reads of records fail soon.

    Each attempt keeps the configured deadline: a slow store answers within it.
    """
    retry = config.storage.retry
    changes = {
        "attempts": min(retry.attempts, _HASTY_ATTEMPTS),
        "max_elapsed": min(retry.max_elapsed, _HASTY_SECONDS),
    }
    return _with_storage(config, {"retry": retry.model_copy(update=changes)})


def with_short_timeouts(config: Config) -> Config:
    """Return the configuration with few retries and short deadlines, so that commands fail soon.

    A silent store uses up the time in one attempt. It is not divided among the attempts: a store
    that needs longer than a share of it would never be read.
    """
    deadline = config.storage.deadline
    changes = {
        name: min(getattr(deadline, name), _HASTY_SECONDS)
        for name in ("base", "connect", "silence")
    }
    return with_few_retries(
        _with_storage(config, {"deadline": deadline.model_copy(update=changes)})
    )


def _with_storage(config: Config, changes: Mapping[str, object]) -> Config:
    return config.model_copy(update={"storage": config.storage.model_copy(update=changes)})
