"""An in-memory store for tests, which can be told to have a bad day.

It keeps every promise of the port, and raises what the real stores raise. Faults are put in by
operation name: `put`, `get`, `stream`, `list`, `head`, `delete`, `copy`.
"""

import io
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO, Final

from sidetier.segments.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    StorageError,
    StoreUnavailableError,
)
from sidetier.storage.async_put import AsyncPuts
from sidetier.storage.attempt import AttemptStream, BodyFailedError
from sidetier.storage.checks import check_key, check_metadata, check_range
from sidetier.storage.checksums import checksum_of_bytes, expect_checksum
from sidetier.storage.conditions import check_condition
from sidetier.storage.port import (
    Body,
    Checksum,
    ChecksumAlgorithm,
    Condition,
    ObjectHead,
    ObjectSummary,
    PutCallback,
    StorageCapabilities,
    StoredObject,
)

_PAGE: Final = 1000
FULL: Final = StorageCapabilities(conditional_writes=True, checksum=ChecksumAlgorithm.CRC64NVME)


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came in."""

    operation: str
    key: str


@dataclass(slots=True)
class _Fault:
    """What happens to the requests that it is about."""

    operation: str | None
    key: str | None
    skip: int
    times: int | None
    error: StorageError | None
    after: bool
    gate: threading.Event | None

    def concerns(self, request: Request) -> bool:
        return self.operation in {None, request.operation} and self.key in {None, request.key}

    def strikes(self) -> bool:
        """Count one request that it concerns; True when it is its turn."""
        if self.skip:
            self.skip -= 1
            return False
        if self.times is None:
            return True
        self.times -= 1
        return self.times >= 0


class FakeStorage:
    """A store in memory; `faults` go in by `fail`, `refuse`, `hold` and `away`."""

    def __init__(
        self,
        *,
        capabilities: StorageCapabilities = FULL,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        async_puts: int = 4,
    ) -> None:
        self._capabilities = capabilities
        self._now_ms = now_ms
        self._guard = threading.Lock()
        self._objects: dict[str, StoredObject] = {}
        self._faults: list[_Fault] = []
        self._writes = 0
        self._async = AsyncPuts(self.put_object, async_puts)
        self.requests: list[Request] = []
        """Every request so far, in the order of arrival, refused ones too."""

    # Faults -----------------------------------------------------------------------------------

    def fail(
        self,
        operation: str | None,
        error: StorageError,
        *,
        key: str | None = None,
        nth: int = 1,
        times: int | None = 1,
        after: bool = False,
    ) -> None:
        """Raise the error at the nth such request from now on, and at `times` in a row (None:
        for good). `after`: once it has taken effect, as when an answer is lost.
        """
        self._add(_Fault(operation, key, nth - 1, times, error, after, None))

    def refuse(self, key: str, error: StorageError | None = None) -> None:
        """Refuse every put of a key."""
        refusal = error or AccessDeniedError(f"put {key}: 403 AccessDenied")
        self._add(_Fault("put", key, 0, None, refusal, after=False, gate=None))

    @contextmanager
    def hold(self, operation: str | None = None, key: str | None = None) -> Iterator[None]:
        """Let such requests wait, before they do anything, until the block is left."""
        gate = threading.Event()
        fault = _Fault(operation, key, 0, None, None, after=False, gate=gate)
        self._add(fault)
        try:
            yield
        finally:
            self._remove(fault)
            gate.set()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Be unreachable until the block is left."""
        error = StoreUnavailableError("connection refused")
        fault = _Fault(None, None, 0, None, error, after=False, gate=None)
        self._add(fault)
        try:
            yield
        finally:
            self._remove(fault)

    def heal(self) -> None:
        """Forget all faults; what is held stays held until its block is left."""
        with self._guard:
            self._faults = [fault for fault in self._faults if fault.gate]

    def count(self, operation: str | None = None, key: str | None = None) -> int:
        """How many requests of the kind came in."""
        with self._guard:
            return sum(
                operation in {None, request.operation} and key in {None, request.key}
                for request in self.requests
            )

    def contents(self) -> dict[str, bytes]:
        """Keys and bytes of all objects, without a request."""
        with self._guard:
            return {key: stored.data for key, stored in sorted(self._objects.items())}

    # The port ---------------------------------------------------------------------------------

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

    def get_object(self, key: str) -> StoredObject:
        """See the port."""
        check_key(key)
        with self._request("get", key):
            return self._find(key)

    def get_object_input_stream(self, key: str, start: int = 0, end: int | None = None) -> BinaryIO:
        """See the port."""
        check_key(key)
        check_range(key, start, end)
        with self._request("stream", key):
            return io.BytesIO(self._find(key).data[start:end])

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        """See the port; a request for each 1,000 rows."""
        while True:
            with self._request("list", prefix):
                page = self._page(prefix, start_after)
            yield from page
            if len(page) < _PAGE:
                return
            start_after = page[-1].key

    def head_object(self, key: str) -> ObjectHead:
        """See the port."""
        check_key(key)
        with self._request("head", key):
            return self._find(key).head

    def delete_object(self, key: str) -> None:
        """See the port."""
        check_key(key)
        with self._request("delete", key), self._guard:
            self._objects.pop(key, None)

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
        self._async.close()

    # ------------------------------------------------------------------------------------------

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
            self._writes += 1
            etag = f"fake-{self._writes}"
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
                for head in islice(matching, _PAGE)
            ]

    def _add(self, fault: _Fault) -> None:
        with self._guard:
            self._faults.append(fault)

    def _remove(self, fault: _Fault) -> None:
        with self._guard:
            self._faults = [other for other in self._faults if other is not fault]

    @contextmanager
    def _request(self, operation: str, key: str) -> Iterator[None]:
        request = Request(operation, key)
        with self._guard:
            self.requests.append(request)
            struck = [f for f in self._faults if f.concerns(request) and f.strikes()]
        for fault in struck:
            if fault.gate:
                fault.gate.wait()
        _raise_first(fault for fault in struck if not fault.after)
        yield
        _raise_first(fault for fault in struck if fault.after)


def _read(body: Body) -> bytes:
    with body.open() as raw:
        stream = AttemptStream(raw, body.size, math.inf)
        try:
            return stream.readall()
        except BodyFailedError as error:
            raise stream.failure or error from None


def _raise_first(faults: Iterator[_Fault]) -> None:
    for fault in faults:
        if fault.error is not None:
            raise copy(fault.error)
