"""Calls of obstore that a signal can interrupt.

Python runs signal handlers on the main thread only, and a call of obstore blocks that thread. So
the main thread hands its calls to a helper thread and waits. If a signal handler raises, the main
thread abandons the helper: its call ends with the response or with the client's timeout. Other
threads call obstore directly, which is slightly cheaper.

obstore's own solution, an asyncio loop in a thread, is not used: of 950 processes that ended right
after their last request, 4 died of SIGABRT, because obstore's threads were still handing results
to Python.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Helper:
    """Thread that makes the main thread's calls, one after the other."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="sidetier-store", daemon=True).start()

    def begin(self, work: Callable[[], _T]) -> Future[_T]:
        """Hand work to the thread; return its future."""
        future: Future[_T] = Future()
        self._tasks.put((work, future))
        return future

    def _run(self) -> None:
        while True:
            work, future = self._tasks.get()
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 -- raised by the thread that waits
                future.set_exception(error)
            else:
                future.set_result(result)
            del work, future


_helpers: list[_Helper] = []
"""Free helpers of the main thread: one or none."""


def call(work: Callable[[], _T]) -> _T:
    """Return the result of a request.

    Raises:
        BaseException: The request's error, or the error that a signal handler raised meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    helper = _helpers.pop() if _helpers else _Helper()
    # If a signal handler raises here, the busy helper does not go back into the list.
    result = _outcome(helper.begin(work))
    _helpers.append(helper)
    if isinstance(result, BaseException):
        raise result
    return result


def _outcome(future: Future[_T]) -> _T | BaseException:
    """Return the result or the error. Only a signal handler's error is raised."""
    error = future.exception()
    return future.result() if error is None else error


def next_of(stream: Any) -> Any:  # noqa: ANN401 -- obstore's streams have no common type
    """Return the next piece of a stream or page of a listing; None at its end."""
    return call(lambda: next(stream, None))
