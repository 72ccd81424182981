"""`put_object_async` for every store: a bounded number under way, each callback called once."""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

from sidetier.segments.errors import InvalidRequestError
from sidetier.storage.port import Body, Checksum, Condition, PutCallback

_LOG: Final = logging.getLogger(__name__)


class _PutObject(Protocol):
    def __call__(
        self,
        key: str,
        body: Body,
        *,
        metadata: Mapping[str, str] | None = None,
        checksum: Checksum | None = None,
        condition: Condition | None = None,
    ) -> str: ...


class AsyncPuts:
    """Runs puts on threads of its own, which come with the first put and go with `close`.

    `submit` blocks while `limit` puts are under way: that is the backpressure. A put whose future
    is cancelled before it begins reports an InvalidRequestError to its callback.
    """

    def __init__(self, put: _PutObject, limit: int) -> None:
        self._put = put
        self._limit = limit
        self._slots = threading.BoundedSemaphore(limit)
        self._guard = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    def submit(
        self,
        key: str,
        body: Body,
        callback: PutCallback | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        checksum: Checksum | None = None,
        condition: Condition | None = None,
    ) -> Future[str]:
        """Begin a put on another thread.

        Raises:
            InvalidRequestError: the store has been closed.
        """

        def work() -> str:
            try:
                etag = self._put(
                    key, body, metadata=metadata, checksum=checksum, condition=condition
                )
            except BaseException as error:
                _report(callback, key, None, error)
                raise
            _report(callback, key, etag, None)
            return etag

        self._slots.acquire()
        try:
            future = self._begin(key, work)
        except BaseException:
            self._slots.release()
            raise
        future.add_done_callback(lambda done: self._finish(key, done, callback))
        return future

    def close(self) -> None:
        """Refuse further puts, and wait for those under way; may be called twice."""
        with self._guard:
            self._closed = True
            pool = self._pool
        if pool is not None:
            pool.shutdown(wait=True)

    def _begin(self, key: str, work: Callable[[], str]) -> Future[str]:
        with self._guard:
            if self._closed:
                raise InvalidRequestError(f"put of {key}: the store has been closed")
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._limit, thread_name_prefix="sidetier-put")
            return self._pool.submit(work)

    def _finish(self, key: str, done: Future[str], callback: PutCallback | None) -> None:
        self._slots.release()
        if done.cancelled():
            _report(callback, key, None, InvalidRequestError(f"put of {key} was cancelled"))


class PutsAsync(ABC):
    """The asynchronous half of a store, over its own `put_object`."""

    def __init__(self, async_puts: int) -> None:
        self._async = AsyncPuts(self.put_object, async_puts)

    @abstractmethod
    def put_object(
        self,
        key: str,
        body: Body,
        *,
        metadata: Mapping[str, str] | None = None,
        checksum: Checksum | None = None,
        condition: Condition | None = None,
    ) -> str:
        """See the port."""

    def put_object_async(
        self,
        key: str,
        body: Body,
        callback: PutCallback | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        checksum: Checksum | None = None,
        condition: Condition | None = None,
    ) -> Future[str]:
        """See the port."""
        return self._async.submit(
            key, body, callback, metadata=metadata, checksum=checksum, condition=condition
        )


def _report(
    callback: PutCallback | None, key: str, etag: str | None, error: BaseException | None
) -> None:
    if callback is None:
        return
    try:
        callback(key, etag, error)
    except Exception:  # noqa: BLE001 - nobody else would hear of it
        _LOG.exception("put_callback_failed", extra={"key": key})
