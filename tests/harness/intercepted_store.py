"""The one store of the tests that intercepts requests: subclasses decide what happens to each.

Plain faults need no interception: `FakeStorage` has `fail`, `race`, `refuse`, `hold` and `away`.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final, cast

from sidetier.segments.names import FileKind
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import (
    NO_OPTIONS,
    Body,
    Condition,
    IfMatch,
    ObjectHead,
    ObjectSummary,
    PutOptions,
    RemoteStorage,
    StorageCapabilities,
    StoredObject,
)

_LONGEST_WAIT: Final = 60.0


@dataclass(frozen=True, slots=True)
class StoreCall:
    """One request to a store.

    Attributes:
        operation: `put`, `get`, `stream`, `list`, `head`, `delete` or `copy`.
        key: The key, the prefix of a listing, or the target of a copy.
        effect: Carries the request out on a store and returns the answer.
        body: The bytes of a put.
        condition: The condition of a put, delete, copy or ranged read.
        start: First byte of a ranged read, or the key after which a listing starts.
        end: End of a ranged read in bytes, exclusive; None for the end of the object.
    """

    operation: str
    key: str
    effect: Callable[[RemoteStorage], object]
    body: bytes | None = None
    condition: Condition | None = None
    start: int | str = 0
    end: int | None = None


class InterceptedStore:
    """Passes each request of its user to `intercept`, which by default carries it out.

    The body of a put is read before: the bytes that are sent no longer change.

    Args:
        store: The store on which the requests take effect.
    """

    def __init__(self, store: FakeStorage) -> None:
        self.store = store

    def intercept(self, call: StoreCall) -> object:
        """Return the answer to a request, or raise an error. Subclasses override this."""
        return call.effect(self.store)

    @property
    def capabilities(self) -> StorageCapabilities:
        """Capabilities of the store."""
        return self.store.capabilities

    def put_object(self, key: str, body: Body, options: PutOptions = NO_OPTIONS) -> str:
        """See `RemoteStorage`."""
        with body.open() as stream:
            sent = stream.read(body.size)

        def put(store: RemoteStorage) -> str:
            return store.put_object(key, BytesBody(sent), options)

        return cast("str", self.intercept(StoreCall("put", key, put, sent, options.condition)))

    def get_object(self, key: str) -> StoredObject:
        """See `RemoteStorage`."""
        call = StoreCall("get", key, lambda store: store.get_object(key))
        return cast("StoredObject", self.intercept(call))

    def get_object_input_stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        *,
        condition: IfMatch | None = None,
    ) -> BinaryIO:
        """See `RemoteStorage`."""

        def stream(store: RemoteStorage) -> BinaryIO:
            return store.get_object_input_stream(key, start, end, condition=condition)

        call = StoreCall("stream", key, stream, condition=condition, start=start, end=end)
        return cast("BinaryIO", self.intercept(call))

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        """See `RemoteStorage`. All pages are one request."""

        def rows(store: RemoteStorage) -> list[ObjectSummary]:
            return list(store.list_objects(prefix, start_after=start_after))

        call = StoreCall("list", prefix, rows, start=start_after)
        return iter(cast("list[ObjectSummary]", self.intercept(call)))

    def list_directories(self, prefix: str) -> list[str]:
        """See `RemoteStorage`."""
        call = StoreCall("list", prefix, lambda store: store.list_directories(prefix))
        return cast("list[str]", self.intercept(call))

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        """See `RemoteStorage`."""
        call = StoreCall(
            "head", key, lambda store: store.head_object(key, with_checksum=with_checksum)
        )
        return cast("ObjectHead", self.intercept(call))

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        """See `RemoteStorage`."""
        self.intercept(
            StoreCall(
                "delete",
                key,
                lambda store: store.delete_object(key, condition=condition),
                condition=condition,
            )
        )

    def delete_objects(self, keys: Sequence[str]) -> None:
        """See `RemoteStorage`. One call for each key: a kill can leave a part of them."""
        for key in keys:
            self.delete_object(key)

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        """See `RemoteStorage`."""
        call = StoreCall(
            "copy",
            target,
            lambda store: store.copy_object(source, target, condition=condition),
            condition=condition,
        )
        return cast("str", self.intercept(call))

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class KilledError(BaseException):
    """The process is dead; a BaseException, so that no error handler catches it."""


class MortalStore(InterceptedStore):
    """Kills its user at a chosen request, like kill -9: no later request takes effect.

    Args:
        store: The store, which survives the kill.
        lives: Number of requests that are answered before the fatal one; None for all of them.
        after: Whether the fatal request takes effect before the kill.
    """

    def __init__(
        self, store: FakeStorage, lives: int | None = None, *, after: bool = False
    ) -> None:
        super().__init__(store)
        self.made = 0
        self._lives = lives
        self._after = after
        # One request at a time, so that "the nth" means the same in every run.
        self._lock = threading.Lock()

    def intercept(self, call: StoreCall) -> object:
        """Carry out a request, or raise KilledError."""
        with self._lock:
            self.made += 1
            if self._lives is None or self.made <= self._lives:
                return super().intercept(call)
            try:
                if self._after and self.made == self._lives + 1:
                    super().intercept(call)
            finally:
                raise KilledError  # in place of the answer, and of the error that it may be


class SlowStore(InterceptedStore):
    """Takes half of each `.log`, and the other half once the test releases `goes_on`."""

    def __init__(self, store: FakeStorage) -> None:
        super().__init__(store)
        self.goes_on = threading.Semaphore(0)

    def put_object(self, key: str, body: Body, options: PutOptions = NO_OPTIONS) -> str:
        """See `RemoteStorage`."""
        if key.endswith(FileKind.LOG.value):
            with body.open() as stream:
                first = stream.read(body.size // 2)
                assert self.goes_on.acquire(timeout=_LONGEST_WAIT), (
                    "the test did not let the upload go on"
                )
                body = BytesBody(first + stream.read(body.size))
        return super().put_object(key, body, options)
