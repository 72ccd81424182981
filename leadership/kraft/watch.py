"""Hints from inotify that the metadata log's directory changed."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from watchdog.events import (
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer

if TYPE_CHECKING:
    from watchdog.observers.api import BaseObserver

_log = structlog.get_logger(__name__)
# Appends count as changes here: an idle cluster appends twice a second to this one directory.
_EVENTS: list[type[FileSystemEvent]] = [
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
]


class DirectoryWatch:
    """Calls `on_hint` on its own thread after each change in one directory.

    Hints can be missing: while the directory does not exist, when the system allows no further
    watches (logged once), or when events overflow. A caller that must not miss changes also reads
    the directory at intervals, and calls `ensure` then.
    """

    def __init__(self, directory: Path, on_hint: Callable[[], None]) -> None:
        self._directory = directory
        self._handler = _Handler(on_hint)
        self._observer: BaseObserver | None = None
        self._watched: tuple[int, int] | None = None
        self._gave_up = False

    def ensure(self) -> None:
        """Watch the directory if it is not watched yet or was replaced."""
        identity = self._identity()
        if self._gave_up or identity == self._watched:
            return
        self.stop()
        if identity is not None:
            self._start(identity)

    def stop(self) -> None:
        """Stop giving hints. May be called twice."""
        if self._observer is not None:
            self._observer.stop()
            self._observer.join()
        self._observer = self._watched = None

    def _start(self, identity: tuple[int, int]) -> None:
        observer = Observer()
        try:
            observer.schedule(self._handler, str(self._directory), event_filter=_EVENTS)
            observer.start()
        except FileNotFoundError:
            return
        except OSError as error:  # inotify's limits: ENOSPC for watches, EMFILE for instances
            self._gave_up = True
            _log.warning(
                "leadership.watch_unavailable", directory=str(self._directory), reason=str(error)
            )
            return
        self._observer, self._watched = observer, identity

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = self._directory.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino


class _Handler(FileSystemEventHandler):
    def __init__(self, on_hint: Callable[[], None]) -> None:
        self._on_hint = on_hint

    def on_any_event(self, event: FileSystemEvent) -> None:  # noqa: ARG002 - any will do
        self._on_hint()
