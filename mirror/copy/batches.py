"""Decide which source batches a mirror copies, re-encodes or drops. Pure, no I/O.

A batch is copied as it is, except for its header, if the target's broker accepts its records. The
broker requires dense offsets inside a batch (`LogValidator`, KIP-98), so a compacted batch is
re-encoded. A batch whose timestamps the source's broker has set (LogAppendTime) is re-encoded too:
no producer may send that attribute, and without it the target would show the producer's timestamps.

Control batches, batches of aborted transactions and batches without records are dropped. The
position moves past them.
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
_DELETE_HORIZON: Final = 0x40  # set by the log cleaner on compacted batches (KIP-534)
_NOT_OF_PRODUCERS: Final = _LOG_APPEND_TIME | _DELETE_HORIZON
"""Batch attributes that the broker does not accept from a producer."""
MAX_OFFSET: Final = Offset(2**63 - 1)


class SourceBatch(NamedTuple):
    """A batch of which all or some records are sent to the target.

    Attributes:
        header: The parsed header of the batch.
        data: The whole batch, header included.
        start: The first offset to copy, inclusive. Above the batch's base offset if the copy begins
            inside the batch.
        end: The end of the offsets to copy, exclusive. Below the batch's next offset if the copy
            ends inside the batch.
    """

    header: BatchHeader
    data: memoryview
    start: Offset
    end: Offset

    @property
    def must_be_reencoded(self) -> bool:
        """Whether the record bytes must change for the broker or for the range to copy."""
        header, start, end = self.header, self.start, self.end
        return (
            start > header.base_offset
            or end < header.next_offset
            or end - start != header.record_count  # brokers accept only dense offsets
            or header.attributes & _NOT_OF_PRODUCERS != 0
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """The batches to copy out of some bytes that were read from the source.

    Attributes:
        batches: The batches to copy, by ascending offset.
        next_offset: The offset of the next source record to handle, after these bytes.
        dropped_records: Number of records of aborted transactions that were left out.
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
    """Select the batches to copy to the target.

    Args:
        data: Consecutive batches. The last one may be incomplete; it is left for the next read.
        position: The first offset to copy, inclusive. Batches that end at or below it are skipped.
        aborted: Every aborted transaction with a record or its marker at `position` or above in
            these bytes, as a Fetch response lists them. Leave out transactions that ended below
            `position`: otherwise records that the same producer committed since then would be
            dropped.
        until: The end of the offsets to copy, exclusive.

    Raises:
        DamagedSegmentError: A batch header is not valid. CRCs are checked when a batch is sent.
        UnsupportedFormatError: The message format is v0 or v1.
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
            # Either kind of marker ends the producer's aborted transaction: a commit marker of this
            # producer can only come after the abort marker.
            aborting.discard(header.producer_id)
        if end > position and not is_control:
            if aborting and header.is_transactional and header.producer_id in aborting:
                dropped += header.record_count
            elif header.record_count > 0:
                taken.append(SourceBatch(header, batch, max(start, position), min(end, until)))
        position = max(position, min(end, until))
    return Selection(tuple(taken), position, dropped)
