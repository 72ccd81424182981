"""Requests to stores that are still in progress, and their duration."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from sidetier.segments import errors
from sidetier.storage.attempt import Clock, monotonic
from sidetier.storage.settings import MIB

OK: Final = "ok"
BODY: Final = "body"
"""Outcome of a put whose body failed, as opposed to the store."""

_KINDS: Final[dict[type[errors.StorageError], str]] = {
    errors.StoreUnavailableError: "unavailable",
    errors.StoreThrottledError: "throttled",
    errors.StoreTimeoutError: "timeout",
    errors.ObjectNotFoundError: "not_found",
    errors.PreconditionFailedError: "precondition_failed",
    errors.RefusedConditionError: "condition_refused",
    errors.AccessDeniedError: "access_denied",
    errors.ChecksumMismatchError: "checksum_mismatch",
    errors.StoreFullError: "store_full",
    errors.InvalidRequestError: "invalid_request",
    errors.EncryptionError: "encryption",
}
OUTCOMES: Final = (OK, *_KINDS.values(), BODY)
"""All outcomes: a closed set, suitable for a metric label."""


class RequestObserver(Protocol):
    """Receives every attempt, on the thread that made it. Must not raise."""

    def request(self, operation: str, seconds: float, outcome: str) -> None:
        """Record the end of an attempt.

        Args:
            operation: `put`, `get`, `stream` (until the first byte), `list` (one page), `head`,
                `delete` or `copy`.
            seconds: Duration of the attempt.
            outcome: One of OUTCOMES.
        """
        ...

    def retry(self, operation: str, kind: str) -> None:
        """Record that an attempt failed with this kind of error and another one will follow."""
        ...


class NullObserver:
    """Observer that ignores everything."""

    def request(self, operation: str, seconds: float, outcome: str) -> None:
        """Ignore the attempt."""

    def retry(self, operation: str, kind: str) -> None:
        """Ignore the retry."""


def error_kind(error: BaseException) -> str:
    """Return the outcome under which an error is counted."""
    for kind, name in _KINDS.items():
        if isinstance(error, kind):
            return name
    return BODY


@dataclass(slots=True, eq=False)
class StoreCall:
    """One request with all of its attempts. Only its own thread writes; any thread may read.

    Attributes:
        operation: `put`, `get`, `stream` (until it is open), `list` (one page), `head`, `delete` or
            `copy`.
        key: Key of the object, or the prefix of a listing.
        store: URL of the store.
        size: Bytes of the body.
        thread: Identifier of the thread that makes the request.
        began: Start of the first attempt, in monotonic seconds.
        attempt: Number of the current attempt, from 1.
        attempt_began: Start of the current attempt including the pause before it, in monotonic
            seconds.
    """

    operation: str
    key: str
    store: str
    size: int
    thread: int
    began: float
    attempt: int
    attempt_began: float


class StoreCalls:
    """Requests in progress at the stores that share this object. Thread-safe.

    A thread that hangs in the kernel (a `file://` store on NFS) cannot be ended. So an attempt that
    takes longer than any deadline is reported as hung, and its owner makes no further request.

    Args:
        hung_after: Seconds after which an attempt counts as hung.
        min_bytes_per_second: A body adds its size divided by this value to `hung_after`.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        hung_after: float = 120.0,
        min_bytes_per_second: float = MIB,
        clock: Clock = monotonic,
    ) -> None:
        self.hung_after = hung_after
        self._min_bytes_per_second = min_bytes_per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._under_way: dict[int, StoreCall] = {}

    @contextmanager
    def begun(self, operation: str, key: str, store: str, size: int = 0) -> Iterator[StoreCall]:
        """Register a request of this thread until the block ends."""
        now = self._clock()
        call = StoreCall(operation, key, store, size, threading.get_ident(), now, 1, now)
        with self._lock:
            self._under_way[id(call)] = call
        try:
            yield call
        finally:
            with self._lock:
                del self._under_way[id(call)]

    def try_again(self, call: StoreCall) -> None:
        """Record that an attempt failed and another one follows after a pause."""
        # Before the number: a reader in between must not
        # take the old start for the new attempt's.
        call.attempt_began = self._clock()
        call.attempt += 1

    def under_way(self) -> list[StoreCall]:
        """Return all requests in progress, oldest first."""
        with self._lock:
            return sorted(self._under_way.values(), key=lambda call: call.began)

    def hung(self) -> list[StoreCall]:
        """Return the requests whose current attempt exceeds its limit, oldest first."""
        now = self._clock()
        return [call for call in self.under_way() if now - call.attempt_began > self._limit(call)]

    def seconds(self, call: StoreCall) -> float:
        """Return the seconds since the request began."""
        return self._clock() - call.began

    def _limit(self, call: StoreCall) -> float:
        return self.hung_after + call.size / self._min_bytes_per_second
