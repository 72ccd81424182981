"""Ask the own broker for offsets of a few logs, from many threads."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from sidetier.leadership.port import LogOffsetSource
from sidetier.segments.errors import BrokerUnavailableError, SidetierError
from sidetier.segments.offsets import LeaderEpoch, TopicPartition
from sidetier.wire.log_offsets import AnsweredOffset, OffsetKind

_PAUSE_AFTER_FAILURE: Final = 5.0
_LONGEST_WAIT: Final = 1.0
"""How long a caller waits for the request of another one."""


class SharedLogOffsets:
    """A `LogOffsetSource` for many threads. A broker that hangs, or does not answer, does not hold
    every thread that asks.

    Args:
        source: Asks the own broker.
        clock: Monotonic seconds.
    """

    def __init__(
        self, source: LogOffsetSource, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source = source
        self._now = clock
        self._lock = threading.Lock()
        self._began = 0.0
        self._failed: SidetierError | None = None
        self._again_at = 0.0

    def offsets(
        self, kind: OffsetKind, partitions: Sequence[tuple[TopicPartition, LeaderEpoch]]
    ) -> Sequence[AnsweredOffset | SidetierError]:
        """See `LogOffsetSource`.

        A broker that hangs holds one caller: the others give up after a second. For some seconds
        after a failure, the same error is raised without a request.
        """
        if not partitions:
            return []
        self._take_turn()
        try:
            if self._failed is not None and self._now() < self._again_at:
                raise self._failed
            self._failed = None
            try:
                return self._source.offsets(kind, partitions)
            except SidetierError as error:
                self._failed, self._again_at = error, self._now() + _PAUSE_AFTER_FAILURE
                raise
        finally:
            self._lock.release()

    def _take_turn(self) -> None:
        """Take the lock, or raise BrokerUnavailableError while one request takes long."""
        while not self._lock.acquire(timeout=_LONGEST_WAIT):
            if self._now() - self._began >= _LONGEST_WAIT:
                raise BrokerUnavailableError("the broker has not answered an earlier request yet")
        self._began = self._now()

    def close(self) -> None:
        """Close the connection, and make a request in flight fail. May be called twice."""
        self._source.close()
        with self._lock:
            self._failed = None
