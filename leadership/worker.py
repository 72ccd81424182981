"""The thread of a leadership source, and the mailbox for messages from other threads."""

from collections.abc import Callable
from threading import Condition, RLock, Thread, current_thread
from typing import Generic, TypeVar

import structlog

from sidetier.leadership.port import LeadershipView, ViewListener

_log = structlog.get_logger(__name__)
Message = TypeVar("Message")


class Mailbox(Generic[Message]):
    """Messages of other threads for the source's own thread.

    The senders bound its size: each posts one message per fired watch, per response, or per hint
    that was not taken yet.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._messages: list[Message] = []
        self._closed = False

    def post(self, message: Message) -> None:
        """Add a message. Dropped after `close`."""
        with self._changed:
            if not self._closed:
                self._messages.append(message)
                self._changed.notify()

    def post_once(self, message: Message) -> None:
        """Add a message unless an equal one is waiting."""
        with self._changed:
            if not self._closed and message not in self._messages:
                self._messages.append(message)
                self._changed.notify()

    def take(self, timeout: float | None) -> list[Message]:
        """Return all messages in order; wait up to `timeout` seconds for the first one."""
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self._closed, timeout)
            messages, self._messages = self._messages, []
            return messages

    @property
    def closed(self) -> bool:
        """Whether the mailbox is closed and accepts no more messages."""
        return self._closed

    def close(self) -> None:
        """Drop the waiting messages and wake the reader."""
        with self._changed:
            self._closed = True
            self._messages.clear()
            self._changed.notify_all()


class Worker:
    """Named daemon thread that records why it died."""

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        self._run = run
        self._failure: BaseException | None = None
        # A daemon thread: one that hangs in a client library must not keep the process alive.
        self._thread = Thread(target=self._guarded, name=name, daemon=True)

    @property
    def failure(self) -> BaseException | None:
        """Error that ended the thread; None while it runs and after a regular end."""
        return self._failure

    def start(self) -> None:
        """Start the thread. May be called once."""
        self._thread.start()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread's end; return at once before the start or on the thread itself."""
        # Before `start` a thread has no ident, and cannot be joined.
        if self._thread.ident is not None and self._thread is not current_thread():
            self._thread.join(timeout)

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - reported to the owner through `failure`
            self._failure = error
            _log.error("leadership.thread_died", thread=self._thread.name, reason=str(error))


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
