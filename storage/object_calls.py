"""Calls of obstore that a signal can interrupt.

A call of obstore holds back the handlers of signals, which Python runs on the main thread only. So
the main thread lets another thread make the call, and waits for it. When a handler raises, that
thread is left to itself: its call ends with the answer, or with the client's time-out. Other
threads make their calls themselves, which costs a little less.

obstore's own way, an asyncio loop in a thread, is not used: of 950 processes that ended right after
their last request, 4 died of SIGABRT, since threads of obstore were still handing results to
Python.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Helper:
    """A thread that makes the main thread's calls, one after the other."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="sidetier-store", daemon=True).start()

    def begin(self, work: Callable[[], _T]) -> Future[_T]:
        """Let the thread do the work."""
        future: Future[_T] = Future()
        self._tasks.put((work, future))
        return future

    def _run(self) -> None:
        while True:
            work, future = self._tasks.get()
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 -- raised where it is waited for
                future.set_exception(error)
            else:
                future.set_result(result)
            del work, future


_helpers: list[_Helper] = []
"""Of the main thread: one that is free, or none."""


def call(work: Callable[[], _T]) -> _T:
    """What a request returns; raises what it raises, or what a handler of a signal has raised."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    helper = _helpers.pop() if _helpers else _Helper()
    result = _outcome(helper.begin(work))
    _helpers.append(helper)
    if isinstance(result, BaseException):
        raise result
    return result


def _outcome(future: Future[_T]) -> _T | BaseException:
    """The result or the error; raises only what a handler has raised."""
    error = future.exception()
    return future.result() if error is None else error


def next_of(stream: Any) -> Any:  # noqa: ANN401 -- obstore's streams have no common type
    """The next piece of a stream, or page of a listing; None at its end."""
    return call(lambda: next(stream, None))
