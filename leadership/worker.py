"""The thread that a source runs on, and the mailbox through which others reach it."""

from collections.abc import Callable
from threading import Condition, Thread, current_thread
from typing import Generic, TypeVar

import structlog

_log = structlog.get_logger(__name__)
Message = TypeVar("Message")


class Mailbox(Generic[Message]):
    """What other threads tell the source's own thread.

    It is bounded by its senders: each posts one message per watch that fired, answer that came or
    hint that is not yet taken.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._messages: list[Message] = []
        self._closed = False

    def post(self, message: Message) -> None:
        """Add a message; dropped after `close`."""
        with self._changed:
            if not self._closed:
                self._messages.append(message)
                self._changed.notify()

    def post_once(self, message: Message) -> None:
        """Add a message unless an equal one waits already."""
        with self._changed:
            if not self._closed and message not in self._messages:
                self._messages.append(message)
                self._changed.notify()

    def take(self, timeout: float | None) -> list[Message]:
        """All messages, in order; waits up to `timeout` seconds for the first one."""
        with self._changed:
            self._changed.wait_for(lambda: self._messages or self._closed, timeout)
            taken, self._messages = self._messages, []
            return taken

    @property
    def closed(self) -> bool:
        """Whether nothing more will come."""
        return self._closed

    def close(self) -> None:
        """Drop what waits and let the taker go."""
        with self._changed:
            self._closed = True
            self._messages.clear()
            self._changed.notify_all()


class Worker:
    """A named daemon thread whose death is remembered with its reason."""

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        self._run = run
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._guarded, name=name, daemon=True)

    @property
    def failure(self) -> BaseException | None:
        """Why the thread died; None while it lives and after a regular end."""
        return self._failure

    def start(self) -> None:
        """Start the thread, once."""
        self._thread.start()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end; returns at once before the start and on the thread itself."""
        if self._thread.ident is not None and self._thread is not current_thread():
            self._thread.join(timeout)

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - the owner learns of it, whatever it is
            self._failure = error
            _log.error("leadership.thread_died", thread=self._thread.name, reason=str(error))
