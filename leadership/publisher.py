"""Delivers views to one listener until it is closed."""

from threading import RLock

from sidetier.leadership.port import LeadershipView, ViewListener


class ViewPublisher:
    """Keeps the latest view and calls the listener with each new one.

    After `close` has returned, the listener is not called again. The lock is held during the call,
    so `close` waits for it. The listener itself may call `close` (the lock is reentrant).
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
        """Deliver new views to the listener from now on."""
        with self._lock:
            self._listener = listener

    def publish(self, view: LeadershipView) -> None:
        """Store the latest view; call the listener if it differs from the previous one."""
        with self._lock:
            if self._listener is None or view == self._view:
                return
            self._view = view
            self._listener(view)

    def close(self) -> None:
        """Stop publishing. May be called twice, also before `open`."""
        with self._lock:
            self._listener = None
