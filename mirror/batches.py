"""Which source batches a mirror copies, which it re-encodes and which it drops: pure.

A batch is copied as it is, but for its header, where the target's broker accepts its records. The
broker requires dense offsets inside a batch (`LogValidator`, KIP-98), so a compacted batch is
re-encoded. A batch whose timestamps the source's broker has set (LogAppendTime) is re-encoded too:
no producer may send that attribute, and without it the target would show the producer's timestamps.

Control batches, batches of aborted transactions and batches without records are dropped. The
position moves over them.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from sidetier.segments.headers import BatchHeader
from sidetier.segments.offsets import Offset
from sidetier.wire.batches import split_batches
from sidetier.wire.record_requests import AbortedTransaction

_LOG_APPEND_TIME: Final = 0x08
_DELETE_HORIZON: Final = 0x40  # of a compacted batch (KIP-534)
_NOT_OF_PRODUCERS: Final = _LOG_APPEND_TIME | _DELETE_HORIZON
"""Attributes that no producer may send."""
MAX_OFFSET: Final = Offset(2**63 - 1)


class SourceBatch(NamedTuple):
    """A batch whose records, or some of them, go to the target.

    `data` has the whole batch with its header. `start` (inclusive) and `end` (exclusive) are the
    offsets that are wanted of it: the batch's own, or fewer where the copy begins or ends inside.
    """

    header: BatchHeader
    data: memoryview
    start: Offset
    end: Offset

    @property
    def must_be_reencoded(self) -> bool:
        """Whether the target's broker, or the wanted range, needs other record bytes."""
        header, start, end = self.header, self.start, self.end
        return (
            start > header.base_offset
            or end < header.next_offset
            or end - start != header.record_count  # brokers take dense offsets of producers only
            or header.attributes & _NOT_OF_PRODUCERS != 0
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """What is taken of some source bytes.

    `next_offset` is the position after them: the offset of the next source record that has not been
    handled. `dropped_records` counts the records of aborted transactions.
    """

    batches: tuple[SourceBatch, ...]
    next_offset: Offset
    dropped_records: int


def select_batches(
    data: memoryview,
    position: Offset,
    aborted: Iterable[AbortedTransaction],
    *,
    until: Offset = MAX_OFFSET,
) -> Selection:
    """What of these batches goes to the target.

    Args:
        data: Consecutive batches; the last one may be cut, and is left for the next read.
        position: The first offset that is wanted. Batches below it are passed over.
        aborted: Every aborted transaction with a record or its marker at `position` or above in
            these bytes, as a Fetch answer lists them. Those that have ended below must be left out:
            records that the same producer committed since would be dropped.
        until: The end of what is wanted, exclusive.

    Raises:
        DamagedSegmentError: a header that cannot be one. CRCs are checked where a batch is sent.
        UnsupportedFormatError: message format v0 or v1.
    """
    coming = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
    aborting: set[int] = set()
    taken: list[SourceBatch] = []
    dropped = 0
    for batch, header in split_batches(data):
        start, end = header.base_offset, header.next_offset
        if start >= until:
            position = max(position, until)
            break
        while coming and coming[0].first_offset < end:
            aborting.add(coming.popleft().producer_id)
        is_control = header.is_control
        if is_control:
            # A commit marker of this producer cannot come before the marker that ends its aborted
            # transaction, so either marker ends it.
            aborting.discard(header.producer_id)
        if end > position and not is_control:
            if aborting and header.is_transactional and header.producer_id in aborting:
                dropped += header.record_count
            elif header.record_count > 0:
                taken.append(SourceBatch(header, batch, max(start, position), min(end, until)))
        position = max(position, min(end, until))
    return Selection(tuple(taken), position, dropped)
