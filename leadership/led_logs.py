"""Ask the own broker for high watermarks and last stable offsets of a few logs, from many threads.

`LogOffsetSource` asks the broker. This keeps a broker that hangs, or does not answer, from holding
every thread that asks.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from sidetier.leadership.port import LedLog, LogOffsetSource
from sidetier.segments.errors import BrokerUnavailableError, SidetierError
from sidetier.segments.offsets import LeaderEpoch, TopicPartition
from sidetier.wire.log_offsets import AnsweredOffset, OffsetKind

_PAUSE_AFTER_FAILURE: Final = 5.0
_LONGEST_WAIT: Final = 1.0
"""How long a caller waits for the request of another one."""


class SharedLedLogs:
    """`LedLogSource` over a `LogOffsetSource`.

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

    def led_logs(
        self, epochs: Mapping[TopicPartition, LeaderEpoch], *, stable: bool = True
    ) -> Mapping[TopicPartition, LedLog | SidetierError]:
        """Send a ListOffsets request for high watermarks, and one for last stable offsets.

        A broker that hangs holds one caller: the others give up after a second. For some seconds
        after a failure, the same error is raised without a request.
        """
        if not epochs:
            return {}
        self._take_turn()
        try:
            if self._failed is not None and self._now() < self._again_at:
                raise self._failed
            self._failed = None
            try:
                return self._asked(epochs, stable=stable)
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

    def _asked(
        self, epochs: Mapping[TopicPartition, LeaderEpoch], *, stable: bool
    ) -> dict[TopicPartition, LedLog | SidetierError]:
        asked = list(epochs.items())
        ends = self._source.offsets(OffsetKind.HIGH_WATERMARK, asked)
        decided = self._source.offsets(OffsetKind.LAST_STABLE, asked) if stable else ends
        return {
            tp: _led_log(end, last_stable if stable else None)
            for tp, end, last_stable in zip(epochs, ends, decided, strict=True)
        }

    def close(self) -> None:
        """Close the connection, and make a request in flight fail. May be called twice."""
        self._source.close()
        with self._lock:
            self._failed = None


def _led_log(
    end: AnsweredOffset | SidetierError, last_stable: AnsweredOffset | SidetierError | None
) -> LedLog | SidetierError:
    """Return both answers about one partition, or the first error."""
    if isinstance(end, SidetierError):
        return end
    if isinstance(last_stable, SidetierError):
        return last_stable
    stable = None if last_stable is None else last_stable.offset
    return LedLog(end.offset, stable, end.leader_epoch)
