"""In-memory store for tests and `memory://` URLs, with fault injection.

It keeps all guarantees of the port and raises the errors of the real stores. Faults are injected by
operation name: `put`, `get`, `stream`, `list`, `head`, `delete`, `copy`.
"""

import io
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice
from typing import BinaryIO, Final

from sidetier.segments.errors import (
    AccessDeniedError,
    ObjectNotFoundError,
    StorageError,
    StoreUnavailableError,
)
from sidetier.storage.attempt import AttemptStream, BodyFailedError
from sidetier.storage.checks import check_condition, check_key, check_options, check_range
from sidetier.storage.checksums import checksum_of_bytes, expect_checksum
from sidetier.storage.port import (
    LISTED_AT_ONCE,
    NO_OPTIONS,
    Body,
    Checksum,
    ChecksumAlgorithm,
    Condition,
    IfMatch,
    ObjectHead,
    ObjectSummary,
    PutOptions,
    StorageCapabilities,
    StoredObject,
)


@dataclass(frozen=True, slots=True)
class Request:
    """One received request; a `stream` with its range of bytes, `end` exclusive."""

    operation: str
    key: str
    start: int = 0
    end: int | None = None


@dataclass(slots=True)
class _Fault:
    """Effect on the requests of one operation and key."""

    operation: str | None
    key: str | None
    skip: int
    times: int | None
    error: Exception | None = None
    after: bool = False
    gate: threading.Event | None = None
    act: Callable[[], object] | None = None

    def concerns(self, request: Request) -> bool:
        return self.operation in {None, request.operation} and self.key in {None, request.key}

    def strikes(self) -> bool:
        """Count one matching request; return True if the fault applies to it."""
        if self.skip:
            self.skip -= 1
            return False
        if self.times is None:
            return True
        self.times -= 1
        return self.times >= 0


class Faulty:
    """Base class of `FakeStorage` with the methods that inject faults."""

    def __init__(self) -> None:
        self._guard_of_faults = threading.Lock()
        self._faults: list[_Fault] = []
        self.requests: list[Request] = []
        """All requests so far in the order of arrival, including refused ones."""

    def fail(
        self,
        operation: str | None,
        error: Exception,
        *,
        key: str | None = None,
        nth: int = 1,
        times: int | None = 1,
        after: bool = False,
    ) -> None:
        """Raise an error for requests of an operation and key.

        Args:
            operation: Operation to fail; None for all.
            error: Error to raise, of any type.
            key: Key to fail; None for all.
            nth: First matching request from now on that fails, counted from 1.
            times: Number of consecutive requests that fail; None for all later ones.
            after: Raise the error after the request took effect, as if the response were lost.
        """
        self._add(_Fault(operation, key, nth - 1, times, error, after))

    def race(
        self,
        operation: str,
        act: Callable[[], object],
        *,
        key: str | None = None,
        times: int | None = 1,
        after: bool = False,
    ) -> None:
        """Let another process act right before a request takes effect, or right after it.

        The requests of `act` count as well: with `times` None, it must make none that match.
        """
        self._add(_Fault(operation, key, 0, times, after=after, act=act))

    def refuse(self, key: str, error: StorageError | None = None) -> None:
        """Refuse every put of a key."""
        refusal = error or AccessDeniedError(f"put {key}: 403 AccessDenied")
        self._add(_Fault("put", key, 0, None, refusal))

    @contextmanager
    def hold(self, operation: str | None = None, key: str | None = None) -> Iterator[None]:
        """Block matching requests before they take effect, until the block ends."""
        gate = threading.Event()
        fault = _Fault(operation, key, 0, None, gate=gate)
        self._add(fault)
        try:
            yield
        finally:
            self._remove(fault)
            gate.set()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Make the store unreachable until the block ends."""
        fault = _Fault(None, None, 0, None, StoreUnavailableError("connection refused"))
        self._add(fault)
        try:
            yield
        finally:
            self._remove(fault)

    def heal(self) -> None:
        """Remove all faults, except faults of `hold`, which last until their block ends."""
        with self._guard_of_faults:
            self._faults = [fault for fault in self._faults if fault.gate]

    def count(self, operation: str | None = None, key: str | None = None) -> int:
        """Return the number of matching requests so far."""
        with self._guard_of_faults:
            return sum(
                operation in {None, request.operation} and key in {None, request.key}
                for request in self.requests
            )

    def _add(self, fault: _Fault) -> None:
        with self._guard_of_faults:
            self._faults.append(fault)

    def _remove(self, fault: _Fault) -> None:
        with self._guard_of_faults:
            self._faults = [other for other in self._faults if other is not fault]

    @contextmanager
    def _request(
        self, operation: str, key: str, start: int = 0, end: int | None = None
    ) -> Iterator[None]:
        request = Request(operation, key, start, end)
        with self._guard_of_faults:
            self.requests.append(request)
            struck = [
                candidate
                for candidate in self._faults
                # Under the lock, because `strikes` counts.
                if candidate.concerns(request) and candidate.strikes()
            ]
        for fault in struck:
            if fault.gate:
                fault.gate.wait()
        # Before the request takes effect; the others after it, as when an answer is lost.
        _apply(fault for fault in struck if not fault.after)
        yield
        _apply(fault for fault in struck if fault.after)


def _apply(faults: Iterator[_Fault]) -> None:
    for fault in faults:
        if fault.act is not None:
            fault.act()
        if fault.error is not None:
            # A copy: `raise` sets the traceback of the object, and a fault can strike again.
            raise copy(fault.error)


__all__ = ["FULL", "FakeStorage", "Request", "memory_storage"]

FULL: Final = StorageCapabilities(conditional_writes=True, checksum=ChecksumAlgorithm.CRC64NVME)


class Contents:
    """Objects in memory, which several stores can share."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.objects: dict[str, StoredObject] = {}
        self.writes = 0


class FakeStorage(Faulty):
    """Store in memory. Inject faults with `fail`, `race`, `refuse`, `hold` and `away`."""

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

    def put_object(self, key: str, body: Body, options: PutOptions = NO_OPTIONS) -> str:
        """See `RemoteStorage`."""
        check_key(key)
        options = check_options(key, options)
        with self._request("put", key):
            data, checksum = _read(body), options.checksum
            algorithm = checksum.algorithm if checksum else ChecksumAlgorithm.CRC64NVME
            actual = checksum_of_bytes(data, algorithm)
            expect_checksum(key, checksum, actual)
            return self._store(key, data, replace(options, checksum=actual), actual)

    def get_object(self, key: str) -> StoredObject:
        """Return the bytes without the store's own checksum. One request."""
        check_key(key)
        with self._request("get", key):
            stored = self._find(key)
            return replace(stored, head=replace(stored.head, own_checksum=None))

    def get_object_input_stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        *,
        condition: IfMatch | None = None,
    ) -> BinaryIO:
        """The stream keeps the version that was current. One request."""
        check_key(key)
        check_range(key, start, end)
        with self._request("stream", key, start, end):
            stored = self._find(key)
            check_condition(key, condition, stored.head.etag)
            return io.BytesIO(stored.data[start:end])

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        """One request per 1,000 rows."""
        while True:
            with self._request("list", prefix):
                page = self._page(prefix, start_after)
            yield from page
            if len(page) < LISTED_AT_ONCE:
                return
            start_after = page[-1].key

    def list_directories(self, prefix: str) -> list[str]:
        """One request."""
        with self._request("list", prefix), self._guard:
            remainders = (
                key.removeprefix(prefix) for key in self._objects if key.startswith(prefix)
            )
            directories = {
                prefix + rest.partition("/")[0] + "/" for rest in remainders if "/" in rest
            }
        return sorted(directories, key=str.encode)

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        """Without a capability of checksums, an object has none of its own."""
        check_key(key)
        with self._request("head", key):
            head = self._find(key).head
            has_own = with_checksum and self._capabilities.checksum is not None
            return head if has_own else replace(head, own_checksum=None)

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        """Also counts a delete of a missing key in `changes`."""
        check_key(key)
        with self._request("delete", key), self._guard:
            present = self._objects.get(key)
            if present is not None:
                check_condition(key, condition, present.head.etag)
            self._objects.pop(key, None)
            self.changes += 1

    def delete_objects(self, keys: Sequence[str]) -> None:
        """Recorded as one `delete` request for each key."""
        for key in keys:
            self.delete_object(key)

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        """The request is recorded under the target's key."""
        check_key(target)
        with self._request("copy", target):
            original = self._find(source)
            head = original.head
            options = PutOptions(head.metadata, head.checksum, condition)
            return self._store(target, original.data, options, head.own_checksum)

    def overwrite(self, key: str, data: bytes) -> None:
        """Replace the bytes of an object as another program that keeps its metadata."""
        head = self._find(key).head
        own = checksum_of_bytes(data, ChecksumAlgorithm.CRC64NVME)
        self._store(key, data, PutOptions(head.metadata, head.checksum), own)

    def cut(self, key: str, size: int) -> None:
        """Keep the first `size` bytes of an object, as a damaged disk; its head stays the same."""
        stored = self._find(key)
        with self._guard:
            self._objects[key] = replace(stored, data=stored.data[:size])

    def close(self) -> None:
        """Nothing to close."""

    def _store(self, key: str, data: bytes, options: PutOptions, own: Checksum | None) -> str:
        with self._guard:
            present = self._objects.get(key)
            check_condition(key, options.condition, present.head.etag if present else None)
            self._stored.writes += 1
            self.changes += 1
            etag = f"fake-{self._stored.writes}"
            metadata = dict(options.metadata)
            head = ObjectHead(key, len(data), etag, self._now_ms(), metadata, options.checksum, own)
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
