"""Calls of obstore that a signal can interrupt.

A call of obstore holds back the handlers of signals, which Python runs on the main thread only. So
there a call is made on a loop of its own, and is cancelled when a handler raises: the connection is
closed at once. On other threads the calls are the plain ones, which cost a little less.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, TypeVar

_T = TypeVar("_T")


def call(plain: Callable[[], _T], awaitable: Callable[[], Awaitable[_T]]) -> _T:
    """The result of a request.

    Args:
        plain: Makes the request.
        awaitable: Makes the same request within a running loop.
    """
    if threading.current_thread() is not threading.main_thread():
        return plain()

    async def begin() -> _T:
        return await awaitable()

    future = asyncio.run_coroutine_threadsafe(begin(), _loop())
    try:
        return future.result()
    finally:
        future.cancel()


def next_of(stream: Any) -> Any:  # noqa: ANN401 -- obstore's streams have no common type
    """The next piece of a stream, or page of a listing; None at its end."""
    return call(lambda: next(stream, None), lambda: anext(stream, None))


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="sidetier-store", daemon=True).start()
    return loop
