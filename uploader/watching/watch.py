"""Watch the log dirs with inotify. Created, renamed and deleted files become hints.

A hint only makes the daemon list a directory again: the listing is what counts. So a lost event
delays an upload until the next rescan, and has no other effect.
"""

import contextlib
import ctypes
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal, NoReturn, Protocol

import structlog
from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers.api import BaseObserver
from watchdog.observers.inotify import InotifyEmitter
from watchdog.observers.inotify_c import InotifyEvent, InotifyFD

from sidetier.segments.errors import ConfigurationError
from sidetier.segments.names import FileKind, parse_segment_file_name
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.watching.disk import EPOCH_CHECKPOINT_NAME


@dataclass(frozen=True, slots=True)
class Hints:
    """What to list again.

    Attributes:
        directories: Partition directories, each with the time of its first hint, in monotonic
            seconds.
        everything: Whether all directories must be listed.
    """

    directories: dict[str, float]
    everything: bool


class HintBoard:
    """Collects hints from the watcher's threads until the daemon takes them.

    Hints for one directory are merged, so the board never holds more hints than directories exist.
    Beyond `capacity` directories it asks to list everything instead.
    """

    def __init__(self, wake: Callable[[], None], now: Callable[[], float], capacity: int) -> None:
        self._wake = wake
        self._now = now
        self._capacity = capacity
        self._lock = threading.Lock()
        self._directories: dict[str, float] = {}
        self._everything = False

    def touch(self, directory: str) -> None:
        """Note an event in this directory."""
        with self._lock:
            # Only the first hint wakes the daemon: it takes all hints at once.
            first = not self._directories and not self._everything
            if len(self._directories) >= self._capacity:
                self._everything = True
            else:
                self._directories.setdefault(directory, self._now())
        if first:
            self._wake()

    def touch_everything(self) -> None:
        """Note that events were lost, so that everything must be listed."""
        with self._lock:
            first = not self._directories and not self._everything
            self._everything = True
        if first:
            self._wake()

    def take(self) -> Hints:
        """Return all hints since the last call."""
        with self._lock:
            # A new dict, not a cleared one: the caller keeps the old one.
            hints = Hints(self._directories, self._everything)
            self._directories = {}
            self._everything = False
        return hints


class _Reader(InotifyFD):
    """Reads the inotify queue, on a thread of its own.

    The kernel ends a full queue with the event IN_Q_OVERFLOW and drops later events. watchdog then
    sets its watches again, which may lose more events, and does not call a handler. So this class
    calls `overflowed`, after watchdog has set the watches.
    """

    def __init__(self, overflowed: Callable[[], None]) -> None:
        super().__init__()
        self._overflowed = overflowed

    def handle_event(self, event: InotifyEvent) -> None:
        try:
            super().handle_event(event)
        finally:
            if event.is_queue_overflow:
                self._overflowed()


def _is_no_stop(record: logging.LogRecord) -> bool:
    """Leave out watchdog's error about an emitter that is stopped between two of its own steps."""
    return "called when the thread is inactive" not in record.getMessage()


class OverflowObserver(BaseObserver):
    """watchdog's `InotifyObserver` that also reports lost events.

    Args:
        overflowed: Called on the reader's thread when the kernel has dropped events.

    Raises:
        OSError: EMFILE, no further inotify instance is allowed.
    """

    def __init__(self, overflowed: Callable[[], None]) -> None:
        logging.getLogger(InotifyEmitter.__module__).addFilter(_is_no_stop)
        self._reader = _Reader(overflowed)
        super().__init__(InotifyEmitter, inotify_fd=self._reader)
        self._reader.start()

    def reads(self) -> bool:
        """Return whether the reader's thread is alive. Without it no event arrives."""
        return self._reader.is_alive()

    def on_thread_stop(self) -> None:
        """Stop the reader. watchdog calls this when the observer stops."""
        super().on_thread_stop()
        self._reader.stop()
        self._reader.join()


# With this filter watchdog asks inotify for these events only, so the kernel does not queue events
# of the broker's appends (IN_MODIFY).
_EVENTS: Final[list[type[FileSystemEvent]]] = [
    FileCreatedEvent,
    FileMovedEvent,
    FileDeletedEvent,
    DirCreatedEvent,
    DirMovedEvent,
    DirDeletedEvent,
]
_LIMIT_ERRORS: Final = frozenset({errno.ENOSPC, errno.EMFILE})
_STOP_SECONDS: Final = 5.0
_IN_DELETE_SELF: Final = 0x400


class Watch(Protocol):
    """Turns events in the log dirs into hints, until it is stopped or fails."""

    def start(self) -> None:
        """Begin to watch. Raises OSError if inotify's limits do not allow it."""
        ...

    def is_alive(self) -> bool:
        """Return whether hints can still arrive."""
        ...

    def add_unwatched(self) -> bool:
        """Watch log dirs that could not be read before; True where one has been added."""
        ...

    def stop(self) -> None:
        """End the watch. May be called twice, also before `start`."""
        ...


def limit_reached(error: OSError) -> bool:
    """Return whether the error is inotify's limit of watches or instances."""
    return error.errno in _LIMIT_ERRORS


def check_room(directory: str) -> None:
    """Raise OSError (ENOSPC, EMFILE) unless one more directory can be watched.

    watchdog raises if a log dir gets no watch, but silently skips a partition directory that gets
    none. If the limit is reached, it has skipped one, or will skip the next one.
    """
    # A separate inotify instance: the limits are per user,
    # so this one shows whether watchdog's could still grow.
    library = ctypes.CDLL(None, use_errno=True)
    instance = library.inotify_init1(os.O_CLOEXEC)
    if instance < 0:
        _raise_errno(directory)
    try:
        if library.inotify_add_watch(instance, os.fsencode(directory), _IN_DELETE_SELF) < 0:
            _raise_errno(directory)
    finally:
        os.close(instance)


def _raise_errno(directory: str) -> NoReturn:
    number = ctypes.get_errno()
    raise OSError(number, f"inotify: {os.strerror(number)}", directory)


class InotifyWatch:
    """One watchdog observer over all log dirs and the partition directories in them.

    `overflowed` is called, on the reader's thread, when the kernel has dropped events.
    """

    def __init__(
        self, log_dirs: Iterable[str], board: HintBoard, overflowed: Callable[[], None]
    ) -> None:
        self._log_dirs = tuple(log_dirs)
        self._handler = _Handler(board, self._log_dirs)
        self._overflowed = overflowed
        self._observer: OverflowObserver | None = None
        self._unwatched: list[str] = []

    def start(self) -> None:
        """Watch every readable log dir. If it raises OSError, no thread is left running."""
        observer = OverflowObserver(self._overflowed)
        observer.start()
        try:
            self._unwatched = [path for path in self._log_dirs if not self._add(observer, path)]
            # Afterwards: watchdog has used up the watches that it needs by now.
            check_room(next(path for path in self._log_dirs if path not in self._unwatched))
        except StopIteration:
            observer.stop()
            raise FileNotFoundError(errno.ENOENT, "no log dir can be watched") from None
        except BaseException:
            observer.stop()
            raise
        self._observer = observer

    def _add(self, observer: OverflowObserver, log_dir: str) -> bool:
        """Return False if the log dir cannot be read. Raises OSError at inotify's limits."""
        try:
            # Recursive: the files of a segment are in the partition directories.
            observer.schedule(self._handler, log_dir, recursive=True, event_filter=_EVENTS)
        except OSError as error:
            if limit_reached(error):
                raise
            return False
        return True

    def add_unwatched(self) -> bool:
        """Watch log dirs that could not be read before; True where one has been added."""
        observer, before = self._observer, len(self._unwatched)
        if observer is not None and self._unwatched:
            with contextlib.suppress(OSError):  # inotify's limits: the rescans find the events
                self._unwatched = [p for p in self._unwatched if not self._add(observer, p)]
        return len(self._unwatched) < before

    def is_alive(self) -> bool:
        """Return whether the observer, its reader and all its emitters are alive."""
        observer = self._observer
        return (
            observer is not None
            and observer.is_alive()
            and observer.reads()
            and all(emitter.is_alive() for emitter in observer.emitters)
        )

    def stop(self) -> None:
        """End the observer's threads."""
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.stop()
            observer.join(_STOP_SECONDS)


class _Handler(FileSystemEventHandler):
    """Turns events of segments and partitions into hints. Runs on watchdog's thread."""

    def __init__(self, board: HintBoard, log_dirs: tuple[str, ...]) -> None:
        self._board = board
        self._log_dirs = frozenset(log_dirs)

    def on_any_event(self, event: FileSystemEvent) -> None:
        if event.is_directory:
            self._directory(event)
        else:
            self._file(os.fsdecode(event.src_path), os.fsdecode(event.dest_path))

    def _directory(self, event: FileSystemEvent) -> None:
        """Note that a partition directory was created, deleted or renamed."""
        for path in (os.fsdecode(event.src_path), os.fsdecode(event.dest_path)):
            if path and os.path.dirname(path) in self._log_dirs:
                self._board.touch(path)

    def _file(self, source: str, target: str) -> None:
        # watchdog reports a directory's rename as moves of its files into another directory.
        for path in (source, target):
            directory, name = os.path.split(path)
            parsed = parse_segment_file_name(name)
            is_log = parsed is not None and parsed.kind is FileKind.LOG
            # The sidecar must read a leader epoch before the broker drops it from the checkpoint.
            if is_log or name == EPOCH_CHECKPOINT_NAME:
                self._board.touch(directory)


log: Final = structlog.get_logger()
Mode = Literal["auto", "inotify", "polling"]

MakeWatch = Callable[[Iterable[str], HintBoard, Callable[[], None]], Watch]

_MORE_EVENTS: Final = "raise fs.inotify.max_queued_events (sysctl) if this event repeats"
_HOW_TO_RAISE: Final = (
    "raise fs.inotify.max_user_watches and fs.inotify.max_user_instances (sysctl), or set "
    "uploader.watch: polling"
)


class Watcher:
    """A watch that is restarted when it fails. The rescans find events that it misses."""

    def __init__(
        self,
        log_dirs: Iterable[str],
        board: HintBoard,
        mode: Mode,
        metrics: Metrics,
        make: MakeWatch = InotifyWatch,
    ) -> None:
        self._log_dirs = tuple(log_dirs)
        self._board = board
        self._mode = mode
        self._metrics = metrics
        self._make = make
        self._watch: Watch | None = None

    @property
    def polling(self) -> bool:
        """Whether there is no watch, so that the log dirs must be listed often."""
        return self._watch is None

    def start(self) -> None:
        """Begin to watch, before the first listing.

        Raises:
            ConfigurationError: the configuration demands inotify, and its limits do not allow it.
        """
        if self._mode == "polling":
            return
        watch = self._make(self._log_dirs, self._board, self._overflowed)
        try:
            watch.start()
        except OSError as error:
            self._refused(error)
        else:
            self._watch = watch

    def _refused(self, error: OSError) -> None:
        if self._mode == "inotify" and limit_reached(error):
            raise ConfigurationError(
                f"uploader.watch: inotify: this machine allows no further watches ({error}); "
                f"{_HOW_TO_RAISE}"
            ) from error
        log.warning("watch.polling", reason=str(error), hint=_HOW_TO_RAISE)

    def _overflowed(self) -> None:
        """Request a listing of everything after lost events. Called on the watch's thread."""
        self._board.touch_everything()
        self._metrics.watcher_overflowed()
        log.warning("watch.overflowed", hint=_MORE_EVENTS)

    def keep_alive(self) -> bool:
        """Restart a failed watch, and watch log dirs that are readable again.

        Returns:
            Whether everything must be listed.
        """
        if self._watch is None:
            return False
        if self._watch.is_alive():
            return self._watch.add_unwatched()
        # A thread that has ended cannot be started again, so a new watch replaces the failed one.
        log.warning("watch.restarted")
        self._metrics.watcher_restarted()
        self._watch.stop()
        self._watch = None
        self.start()
        return True

    def stop(self) -> None:
        """End the watch. May be called twice."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()
