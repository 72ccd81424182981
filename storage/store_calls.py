"""Requests to stores that have not ended yet: what is waited for, and for how long."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sidetier.storage.attempt import Clock, monotonic
from sidetier.storage.settings import MIB


@dataclass(slots=True, eq=False)
class StoreCall:
    """One request with all of its attempts. The thread that makes it writes, any thread reads.

    Attributes:
        operation: `put`, `get`, `stream` (until it is open), `list` (one page), `head`, `delete` or
            `copy`.
        key: The key, or the prefix that is listed.
        store: The url of the store.
        size: Bytes of the body.
        thread: The identifier of the thread that waits.
        began: When the first attempt began, in monotonic seconds.
        attempt: The number of the present attempt, from 1.
        attempt_began: When the present attempt began, the pause before it included.
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
    """The requests under way at the stores that share this object; safe among threads.

    A thread that hangs in the kernel (a `file://` store on NFS) cannot be ended. So an attempt that
    takes longer than any deadline is reported as hung, and its owner makes no further request.

    Args:
        hung_after: Seconds after which an attempt is hung.
        min_bytes_per_second: What a body adds to that time: its size divided by this.
        clock: Monotonic seconds.
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
        """A request of this thread, under way until the block is left."""
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
        """An attempt has failed; another one follows after a pause."""
        call.attempt_began = self._clock()
        call.attempt += 1

    def under_way(self) -> list[StoreCall]:
        """All of them, the oldest first."""
        with self._lock:
            return sorted(self._under_way.values(), key=lambda call: call.began)

    def hung(self) -> list[StoreCall]:
        """Those whose present attempt takes longer than it may, the oldest first."""
        now = self._clock()
        return [call for call in self.under_way() if now - call.attempt_began > self._limit(call)]

    def seconds(self, call: StoreCall) -> float:
        """Since the request began."""
        return self._clock() - call.began

    def _limit(self, call: StoreCall) -> float:
        return self.hung_after + call.size / self._min_bytes_per_second
