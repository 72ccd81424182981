"""Schedule reads of the metadata log, and report when it cannot be read."""

from collections.abc import Callable
from dataclasses import dataclass
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

from sidetier.leadership.kraft.image import MetadataImage
from sidetier.leadership.kraft.metadata_log import METADATA_DIRECTORY, MetadataLog
from sidetier.segments.errors import ConfigurationError, LeadershipError

if TYPE_CHECKING:
    from watchdog.observers.api import BaseObserver


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
        # inotify watches an inode: a directory that was deleted and created again gives no events.
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


_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LogIntervals:
    """Seconds between two reads: after a successful one, and after a failed one."""

    regular: float
    after_failure: float


class LogFollower:
    """Reads the metadata log after each hint, and at intervals without hints."""

    def __init__(
        self, metadata_log_dir: Path, intervals: LogIntervals, on_hint: Callable[[], None]
    ) -> None:
        """Create the follower; no file is read.

        Args:
            metadata_log_dir: Log dir that contains `__cluster_metadata-0`.
            intervals: Seconds between two reads.
            on_hint: Called on another thread when the directory changed.

        Raises:
            ConfigurationError: The directory does not exist.
        """
        if not metadata_log_dir.is_dir():
            raise ConfigurationError(f"the metadata log dir {metadata_log_dir} is not a directory")
        directory = metadata_log_dir / METADATA_DIRECTORY
        self._log_file = MetadataLog(directory)
        self._watch = DirectoryWatch(directory, on_hint)
        self._intervals = intervals
        self._failing = False
        self.due = 0.0
        """Time of the next read without a hint, in seconds of the caller's clock."""

    @property
    def image(self) -> MetadataImage:
        """Image that the log described at the last successful read."""
        return self._log_file.image

    def should_read(self, now: float, *, hinted: bool) -> bool:
        """Return whether to read now. After a failure, hints are ignored until `due`."""
        return now >= self.due or (hinted and not self._failing)

    def read(self, now: float) -> bool:
        """Read new batches; return True if the image may have changed.

        Raises:
            LeadershipError: The log cannot be read; `retry` is True if a later read can succeed.
        """
        self._watch.ensure()  # before the read: later changes then give a hint
        try:
            changed = self._log_file.poll()
        except LeadershipError as error:
            self.due = now + self._intervals.after_failure
            if not self._failing:
                _log.warning("leadership.metadata_log_unreadable", reason=str(error))
            self._failing = True
            raise
        self.due = now + self._intervals.regular
        recovered, self._failing = self._failing, False
        # After a failure, `CombinedView` needs the state again even if nothing has changed.
        return changed or recovered

    def failed(self, now: float) -> None:
        """Record that a read failed unexpectedly; the next one follows after a pause."""
        self.due = now + self._intervals.after_failure
        self._failing = True

    def stop(self) -> None:
        """Stop giving hints."""
        self._watch.stop()
