"""Hands views to one listener, and ends for good when told to."""

from threading import RLock

from sidetier.leadership.port import LeadershipView, ViewListener


class ViewPublisher:
    """Keeps the latest view and tells the listener of each new one.

    After `close` has returned the listener is not called again. The lock is held during the call,
    so that `close` waits for it; a listener may itself close (the lock is reentrant).
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._view = LeadershipView()
        self._listener: ViewListener | None = None

    @property
    def view(self) -> LeadershipView:
        """The latest view."""
        return self._view

    def open(self, listener: ViewListener) -> None:
        """From now on the listener hears of new views."""
        with self._lock:
            self._listener = listener

    def publish(self, view: LeadershipView) -> None:
        """Make this the latest view; the listener is called if it differs from the one before."""
        with self._lock:
            if self._listener is None or view == self._view:
                return
            self._view = view
            self._listener(view)

    def close(self) -> None:
        """Publish nothing more; may be called twice, also before `open`."""
        with self._lock:
            self._listener = None
