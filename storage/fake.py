"""An in-memory store for tests, `memory://` too, which can be told to have a bad day.

It keeps every promise of the port, and raises what the real stores raise. Faults are put in by
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
    """The objects of a store in memory, which several stores can share."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.objects: dict[str, StoredObject] = {}
        self.writes = 0


class FakeStorage(Faulty):
    """A store in memory; `faults` go in by `fail`, `refuse`, `hold` and `away`."""

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
        """How often an object was written or deleted so far."""

    def contents(self) -> dict[str, bytes]:
        """Keys and bytes of all objects, without a request."""
        with self._guard:
            return {key: stored.data for key, stored in sorted(self._objects.items())}

    @property
    def capabilities(self) -> StorageCapabilities:
        """As given."""
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
        """See the port."""
        check_key(key)
        checked = check_metadata(key, metadata)
        with self._request("put", key):
            data = _read(body)
            algorithm = checksum.algorithm if checksum else ChecksumAlgorithm.CRC64NVME
            actual = checksum_of_bytes(data, algorithm)
            expect_checksum(key, checksum, actual)
            return self._store(key, data, checked, actual, condition)

    def get_object(self, key: str) -> StoredObject:
        """See the port."""
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
        """See the port."""
        check_key(key)
        check_range(key, start, end)
        with self._request("stream", key):
            found = self._find(key)
            check_condition(key, condition, found.head.etag)
            return io.BytesIO(found.data[start:end])

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        """See the port; a request for each 1,000 rows."""
        while True:
            with self._request("list", prefix):
                page = self._page(prefix, start_after)
            yield from page
            if len(page) < LISTED_AT_ONCE:
                return
            start_after = page[-1].key

    def list_directories(self, prefix: str) -> list[str]:
        """See the port; one request."""
        with self._request("list", prefix), self._guard:
            behind = (key.removeprefix(prefix) for key in self._objects if key.startswith(prefix))
            found = {prefix + rest.partition("/")[0] + "/" for rest in behind if "/" in rest}
        return sorted(found, key=str.encode)

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        """See the port."""
        del with_checksum  # is always there
        check_key(key)
        with self._request("head", key):
            return self._find(key).head

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        """See the port."""
        check_key(key)
        with self._request("delete", key), self._guard:
            present = self._objects.get(key)
            if present is not None:
                check_condition(key, condition, present.head.etag)
            self._objects.pop(key, None)
            self.changes += 1

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        """See the port; recorded under the target."""
        check_key(target)
        with self._request("copy", target):
            found = self._find(source)
            head = found.head
            checksum = head.checksum
            return self._store(target, found.data, head.metadata, checksum, condition)

    def close(self) -> None:
        """See the port."""

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
    """A store of `memory://name`, for tests: all of one url in this process have the same objects,
    which are lost when the process ends.
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
