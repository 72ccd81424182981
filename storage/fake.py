"""In-memory store for tests and `memory://` URLs, with fault injection.

It keeps all guarantees of the port and raises the errors of the real stores. Faults are injected by
operation name: `put`, `get`, `stream`, `list`, `head`, `delete`, `copy`.
"""

import io
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import BinaryIO, Final

from sidetier.segments.errors import (
    ObjectNotFoundError,
)
from sidetier.storage.attempt import AttemptStream, BodyFailedError
from sidetier.storage.checks import check_key, check_metadata, check_range
from sidetier.storage.checksums import checksum_of_bytes, expect_checksum
from sidetier.storage.conditions import check_condition
from sidetier.storage.fake_faults import Faulty, Request
from sidetier.storage.port import (
    LISTED_AT_ONCE,
    Body,
    Checksum,
    ChecksumAlgorithm,
    Condition,
    IfMatch,
    ObjectHead,
    ObjectSummary,
    StorageCapabilities,
    StoredObject,
)

__all__ = ["FULL", "FakeStorage", "Request", "memory_storage"]

FULL: Final = StorageCapabilities(conditional_writes=True, checksum=ChecksumAlgorithm.CRC64NVME)


class Contents:
    """Objects in memory, which several stores can share."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.objects: dict[str, StoredObject] = {}
        self.writes = 0


class FakeStorage(Faulty):
    """Store in memory. Inject faults with `fail`, `refuse`, `hold` and `away`."""

    def __init__(
        self,
        *,
        capabilities: StorageCapabilities = FULL,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        contents: Contents | None = None,
    ) -> None:
        super().__init__()
        self._capabilities = capabilities
        self._now_ms = now_ms
        self._stored = contents or Contents()
        self._guard = self._stored.guard
        self._objects = self._stored.objects
        self.changes = 0
        """Number of writes and deletes so far."""

    def contents(self) -> dict[str, bytes]:
        """Return keys and bytes of all objects, without recording a request."""
        with self._guard:
            return {key: stored.data for key, stored in sorted(self._objects.items())}

    @property
    def capabilities(self) -> StorageCapabilities:
        """Capabilities that were passed to the constructor."""
        return self._capabilities

    def put_object(
        self,
        key: str,
        body: Body,
        *,
        metadata: Mapping[str, str] | None = None,
        checksum: Checksum | None = None,
        condition: Condition | None = None,
    ) -> str:
        """See `RemoteStorage`."""
        check_key(key)
        checked = check_metadata(key, metadata)
        with self._request("put", key):
            data = _read(body)
            algorithm = checksum.algorithm if checksum else ChecksumAlgorithm.CRC64NVME
            actual = checksum_of_bytes(data, algorithm)
            expect_checksum(key, checksum, actual)
            return self._store(key, data, checked, actual, condition)

    def get_object(self, key: str) -> StoredObject:
        """See `RemoteStorage`."""
        check_key(key)
        with self._request("get", key):
            return self._find(key)

    def get_object_input_stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        *,
        condition: IfMatch | None = None,
    ) -> BinaryIO:
        """See `RemoteStorage`."""
        check_key(key)
        check_range(key, start, end)
        with self._request("stream", key):
            stored = self._find(key)
            check_condition(key, condition, stored.head.etag)
            return io.BytesIO(stored.data[start:end])

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        """See `RemoteStorage`. One request per 1,000 rows."""
        while True:
            with self._request("list", prefix):
                page = self._page(prefix, start_after)
            yield from page
            if len(page) < LISTED_AT_ONCE:
                return
            start_after = page[-1].key

    def list_directories(self, prefix: str) -> list[str]:
        """See `RemoteStorage`. One request."""
        with self._request("list", prefix), self._guard:
            remainders = (
                key.removeprefix(prefix) for key in self._objects if key.startswith(prefix)
            )
            directories = {
                prefix + rest.partition("/")[0] + "/" for rest in remainders if "/" in rest
            }
        return sorted(directories, key=str.encode)

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        """See `RemoteStorage`."""
        del with_checksum  # every object has one
        check_key(key)
        with self._request("head", key):
            return self._find(key).head

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        """See `RemoteStorage`."""
        check_key(key)
        with self._request("delete", key), self._guard:
            present = self._objects.get(key)
            if present is not None:
                check_condition(key, condition, present.head.etag)
            self._objects.pop(key, None)
            self.changes += 1

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        """See `RemoteStorage`. The request is recorded under the target's key."""
        check_key(target)
        with self._request("copy", target):
            original = self._find(source)
            head = original.head
            checksum = head.checksum
            return self._store(target, original.data, head.metadata, checksum, condition)

    def close(self) -> None:
        """See `RemoteStorage`. There is nothing to close."""

    def _store(
        self,
        key: str,
        data: bytes,
        metadata: Mapping[str, str],
        checksum: Checksum | None,
        condition: Condition | None,
    ) -> str:
        with self._guard:
            present = self._objects.get(key)
            check_condition(key, condition, present.head.etag if present else None)
            self._stored.writes += 1
            self.changes += 1
            etag = f"fake-{self._stored.writes}"
            head = ObjectHead(key, len(data), etag, self._now_ms(), dict(metadata), checksum)
            self._objects[key] = StoredObject(head, data)
            return etag

    def _find(self, key: str) -> StoredObject:
        with self._guard:
            if key not in self._objects:
                raise ObjectNotFoundError(f"{key}: no such object")
            return self._objects[key]

    def _page(self, prefix: str, start_after: str) -> list[ObjectSummary]:
        with self._guard:
            matching = (
                stored.head
                for key, stored in sorted(self._objects.items(), key=lambda item: item[0].encode())
                if key.startswith(prefix) and key.encode() > start_after.encode()
            )
            return [
                ObjectSummary(head.key, head.size, head.etag, head.modified_ms)
                for head in islice(matching, LISTED_AT_ONCE)
            ]


_named: Final[dict[str, Contents]] = {}
_naming: Final = threading.Lock()


def memory_storage(url: str) -> FakeStorage:
    """Return a store for a `memory://name` URL, for tests.

    All stores of one URL in this process share their objects, which are lost when it ends.
    """
    with _naming:
        contents = _named.setdefault(url.rstrip("/"), Contents())
    return FakeStorage(contents=contents)


def _read(body: Body) -> bytes:
    with body.open() as raw:
        stream = AttemptStream(raw, body.size, math.inf)
        try:
            return stream.readall()
        except BodyFailedError as error:
            raise stream.failure or error from None
