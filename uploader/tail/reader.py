"""Read ranges that may be stored in the tail: ask, read, and `committed_range.confirm`."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sidetier.archive.tail.pack import TailRow, claim, epochs_from, index_bytes
from sidetier.leadership.port import LogOffsetSource
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import Offset
from sidetier.segments.producer_snapshot import OpenTransaction
from sidetier.uploader.gates.committed_range import LedLog, ReadLog, confirm
from sidetier.uploader.tail.board import TailPartition
from sidetier.uploader.tail.ranges import TailRange, find_range, read_range
from sidetier.uploader.watching.disk import BatchPosition
from sidetier.wire.log_offsets import AnsweredOffset, OffsetKind


class Candidate(NamedTuple):
    """A range that was read, or a claim, before the second questions.

    Attributes:
        led: The partition.
        history: The epoch history of its log, from the range on.
        read: The range; None for a claim.
        last_stable: The last stable offset of a log that ends with the range.
    """

    led: TailPartition
    history: EpochHistory
    read: TailRange | None = None
    last_stable: Offset = Offset(0)

    @property
    def index_bytes(self) -> int:
        """Bytes of its row in the index of a pack."""
        if self.read is None:
            return index_bytes(self.history)
        epochs = epochs_from(self.history, self.read.wanted.start)
        return index_bytes(epochs, self.read.open, self.read.aborted)

    @property
    def log(self) -> ReadLog:
        """What is to be confirmed."""
        led, read = self.led, self.read
        log = ReadLog(led.tp, led.directory, led.topic_id, led.leader_epoch)
        if read is None:
            return log
        return log._replace(wanted=read.wanted, epochs=read.runs, end=read.end)


class CommittedReader:
    """Reads committed ranges of led partitions.

    Args:
        source: Asks the own broker.
        throttle: Called with the number of bytes before each reading.
    """

    def __init__(
        self, source: LogOffsetSource, throttle: Callable[[int], None] = lambda _: None
    ) -> None:
        self._source = source
        self._throttle = throttle

    def ask(
        self, kind: OffsetKind, parts: Sequence[TailPartition]
    ) -> Sequence[AnsweredOffset | SidetierError]:
        """Ask for one offset of each partition, in the leader epoch in which this broker leads.

        Raises:
            BrokerError, LeadershipError: The broker does not answer.
        """
        return self._source.offsets(kind, [(part.tp, part.leader_epoch) for part in parts])

    def read(  # noqa: PLR0913, PLR0917 - where to read, and what is known of it
        self,
        led: TailPartition,
        history: EpochHistory,
        answer: AnsweredOffset,
        start: Offset,
        max_bytes: int,
        open_at: Callable[[Offset], tuple[OpenTransaction, ...] | None],
        position: BatchPosition | None = None,
    ) -> TailRange | None:
        """Read the next range, of one segment; None if there is none now.

        Args:
            led: The partition.
            history: The epoch history of its log.
            answer: The answer for the high watermark.
            start: First offset. The range begins above it if the log does.
            max_bytes: Size at which the range ends, plus at most one batch.
            open_at: Returns the transactions that are open where the range begins; None to not read
                it now.
            position: Where the range before has ended.

        Raises:
            SegmentError: As `find_range` and `read_range`.
            OSError: A file cannot be read.
        """
        # Any control batch counts: the aborted transactions of a tail do not come from `.txnindex`.
        led_log = LedLog(answer.offset, answer.offset, answer.leader_epoch)
        wanted = find_range(led.directory, led.topic_id, start, led_log, max_bytes, position)
        if wanted is None:
            return None
        known = open_at(wanted.start)
        if known is None:
            return None
        self._throttle(wanted.size)
        return read_range(led.directory, wanted, history, known)

    def confirm(self, candidates: Sequence[Candidate]) -> Sequence[TailRow | str]:
        """Ask again and look again. Return the row of each candidate that is committed; otherwise
        the reason why it is not.

        Raises:
            BrokerError, LeadershipError: The broker does not answer.
        """
        parts = list({candidate.led.tp: candidate.led for candidate in candidates}.values())
        starts = self.ask(OffsetKind.LOG_START, parts)
        log_starts = {part.tp: start for part, start in zip(parts, starts, strict=True)}
        # Last: it proves that what was answered and read before belongs to the epoch.
        reasons = confirm(self._source, [candidate.log for candidate in candidates])
        return [
            _row(candidate, log_starts[candidate.led.tp], reason)
            for candidate, reason in zip(candidates, reasons, strict=True)
        ]


def _row(
    candidate: Candidate, log_start: AnsweredOffset | SidetierError, reason: str | None
) -> TailRow | str:
    led, history, read, last_stable = candidate
    if not isinstance(log_start, AnsweredOffset):
        return f"the broker does not answer for the log start: {log_start}"
    if reason is not None:
        return reason
    if read is None:
        return claim(led.tp, led.topic_id, history, log_start.offset, last_stable)
    return TailRow(
        led.tp,
        led.topic_id,
        epochs_from(history, read.wanted.start),
        read.wanted.start,
        read.end,
        log_start.offset,
        last_stable,
        read.batches,
        read.max_timestamp,
        read.open,
        read.aborted,
    )
