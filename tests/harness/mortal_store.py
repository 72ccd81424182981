"""A store whose user is killed at a chosen request, like kill -9: no later request takes effect."""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO, TypeVar

from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import (
    Body,
    Checksum,
    Condition,
    IfMatch,
    ObjectHead,
    ObjectSummary,
    StorageCapabilities,
    StoredObject,
)

T = TypeVar("T")


class KilledError(BaseException):
    """The process is dead; a BaseException, so that no error handler catches it."""


class MortalStore:
    """Passes `lives` requests to a store in memory, and dies at the next one.

    Args:
        store: The store, which survives the kill.
        lives: Number of requests that are answered; None for all of them.
        after: Die once the request has taken effect, before its answer is returned.
    """

    def __init__(
        self, store: FakeStorage, lives: int | None = None, *, after: bool = False
    ) -> None:
        self.store = store
        self.made = 0
        self._lives = lives
        self._after = after
        # reentrant, because a body may be read from the store itself
        self._lock = threading.RLock()

    @property
    def capabilities(self) -> StorageCapabilities:
        return self.store.capabilities

    def put_object(
        self,
        key: str,
        body: Body,
        *,
        metadata: Mapping[str, str] | None = None,
        checksum: Checksum | None = None,
        condition: Condition | None = None,
    ) -> str:
        return self._make(
            lambda: self.store.put_object(
                key, body, metadata=metadata, checksum=checksum, condition=condition
            )
        )

    def get_object(self, key: str) -> StoredObject:
        return self._make(lambda: self.store.get_object(key))

    def get_object_input_stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        *,
        condition: IfMatch | None = None,
    ) -> BinaryIO:
        return self._make(
            lambda: self.store.get_object_input_stream(key, start, end, condition=condition)
        )

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        rows = self._make(lambda: list(self.store.list_objects(prefix, start_after=start_after)))
        return iter(rows)

    def list_directories(self, prefix: str) -> list[str]:
        return self._make(lambda: self.store.list_directories(prefix))

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        return self._make(lambda: self.store.head_object(key, with_checksum=with_checksum))

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        self._make(lambda: self.store.delete_object(key, condition=condition))

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        return self._make(lambda: self.store.copy_object(source, target, condition=condition))

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _make(self, request: Callable[[], T]) -> T:
        with self._lock:  # one at a time, so that "the nth" means the same in every run
            self.made += 1
            doomed = self._lives is not None and self.made > self._lives
            if doomed and (self.made > (self._lives or 0) + 1 or not self._after):
                raise KilledError
            try:
                answer = request()
            finally:
                if doomed:
                    raise KilledError
            return answer
