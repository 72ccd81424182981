"""watchdog's observer over inotify, which also tells when the kernel has dropped events."""

from collections.abc import Callable

from watchdog.observers.api import BaseObserver
from watchdog.observers.inotify import InotifyEmitter
from watchdog.observers.inotify_c import InotifyEvent, InotifyFD


class _Reader(InotifyFD):
    """Reads the inotify queue, on a thread of its own.

    The kernel ends a full queue with one event (IN_Q_OVERFLOW) and drops what comes then. watchdog
    sets its watches anew, where more may be lost, and tells no handler: that is done here, then.
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


class OverflowObserver(BaseObserver):
    """As watchdog's `InotifyObserver`; `overflowed` is called on the reader's thread.

    Raises:
        OSError: EMFILE, no further inotify instance is allowed.
    """

    def __init__(self, overflowed: Callable[[], None]) -> None:
        self._reader = _Reader(overflowed)
        super().__init__(InotifyEmitter, inotify_fd=self._reader)
        self._reader.start()

    def reads(self) -> bool:
        """Whether the reader lives: without it no event comes, whatever else is alive."""
        return self._reader.is_alive()

    def on_thread_stop(self) -> None:
        """What watchdog calls to end the threads beside the observer's own."""
        super().on_thread_stop()
        self._reader.stop()
        self._reader.join()
