"""The store as a simulated sidecar sees it: each request waits until it may arrive."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import BinaryIO, TypeVar, cast

from sidetier.segments.names import parse_segment_file_name
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import (
    Body,
    Checksum,
    Condition,
    IfAbsent,
    IfMatch,
    ObjectHead,
    ObjectSummary,
    StorageCapabilities,
    StoredObject,
)
from sidetier.uploader.pinning.pins import PINNED_KINDS
from tests.harness.simulation.network import Request, ask

T = TypeVar("T")


class SteppedStore:
    """Passes requests to a store in memory, one at a time.

    `sent_again` has the keys of segment files that were sent with the same bytes, although they had
    been stored before this life of the sidecar began and had not changed since.

    Args:
        store: The store.
        starts: Key of the record of the archive's start, by the key of its `offset.wm`.
        outran: Called with the key of a first `offset.wm` that was written although the record of
            the start has changed since this sidecar last read it.
    """

    def __init__(
        self,
        store: FakeStorage,
        starts: Mapping[str, str] = MappingProxyType({}),
        outran: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.store = store
        self.sent_again: list[str] = []
        self._at_first = store.contents()
        self._starts = starts
        self._outran = outran
        self._seen: dict[str, bytes | None] = {}

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
        with body.open() as stream:
            sent = BytesBody(stream.read(body.size))
        self._note(key, sent)

        def effect() -> str:
            etag = self.store.put_object(
                key, sent, metadata=metadata, checksum=checksum, condition=condition
            )
            start = self._starts.get(key)
            if start is not None and isinstance(condition, IfAbsent):
                start_record = self.store.contents().get(start)
                if start_record is not None and start_record is not self._seen.get(start):
                    self._outran(key)
            return etag

        return _ask("put", key, effect)

    def _note(self, key: str, sent: BytesBody) -> None:
        """Note a repeated upload of an unchanged object.

        Objects are compared by identity: a rewritten object is another object, even with equal
        bytes. Empty objects are left out, because Python has only one empty bytes object.
        """
        before = self._at_first.get(key)
        parsed = parse_segment_file_name(key.rpartition("/")[2])
        if not before or parsed is None or parsed.kind not in PINNED_KINDS:
            return
        if self.store.contents().get(key) is before and sent.open().read() == before:
            self.sent_again.append(key)

    def get_object(self, key: str) -> StoredObject:
        def effect() -> StoredObject:
            self._seen[key] = self.store.contents().get(key)
            return self.store.get_object(key)

        return _ask("get", key, effect)

    def get_object_input_stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        *,
        condition: IfMatch | None = None,
    ) -> BinaryIO:
        return _ask(
            "stream",
            key,
            lambda: self.store.get_object_input_stream(key, start, end, condition=condition),
        )

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        def effect() -> list[ObjectSummary]:
            return list(self.store.list_objects(prefix, start_after=start_after))

        return iter(_ask("list", prefix, effect))

    def list_directories(self, prefix: str) -> list[str]:
        return _ask("list", prefix, lambda: self.store.list_directories(prefix))

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        return _ask("head", key, lambda: self.store.head_object(key, with_checksum=with_checksum))

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        _ask("delete", key, lambda: self.store.delete_object(key, condition=condition))

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        return _ask(
            "copy", target, lambda: self.store.copy_object(source, target, condition=condition)
        )

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _ask(operation: str, key: str, effect: Callable[[], T]) -> T:
    return cast("T", ask(Request(operation, key, effect)))
