"""Find and read ranges of a log that may be stored in the tail. Nothing here decides that bytes are
committed: `gates.committed_range` does.

A position in a file is used again only for the same file in the same leader epoch, in which the
broker does not truncate. Otherwise the place is found by its offset.
"""

import os
from contextlib import suppress
from typing import Final, NamedTuple

from sidetier.segments.batches import check_crc, split_batches
from sidetier.segments.epoch_history import Entry, EpochHistory
from sidetier.segments.errors import DamagedSegmentError, SegmentError, UnsupportedFormatError
from sidetier.segments.headers import HEADER_BYTES, BatchHeader, parse_batch_header
from sidetier.segments.indexes import position_at_or_below
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.segments.producer_snapshot import OpenTransaction, open_transactions
from sidetier.segments.transactions import Marker, TransactionTracker, read_marker
from sidetier.segments.txn_index import AbortedTxn
from sidetier.uploader.gates.committed_range import (
    CommittedRange,
    LedLog,
    NotCommittedError,
    choose,
)
from sidetier.uploader.watching.disk import BatchPosition, OpenLog, open_log, segment_bases

_MAX_SNAPSHOT_BYTES: Final = 64 << 20


class TailRange(NamedTuple):
    """Batches that were read, and are committed if `refusal` agrees.

    Attributes:
        wanted: What was to be read.
        runs: Each run of batches of one leader epoch, with its first offset.
        end: End of the last batch, exclusive.
        data: The bytes.
        batches: Number of batches.
        max_timestamp: Largest timestamp, in ms since 1970; -1 if there is none.
        open: The transactions that are open at `end`.
        aborted: The transactions whose abort markers are in the range.
    """

    wanted: CommittedRange
    runs: tuple[Entry, ...]
    end: Offset
    data: bytes
    batches: int
    max_timestamp: int
    open: tuple[OpenTransaction, ...]
    aborted: tuple[AbortedTxn, ...]


def find_range(
    directory: str,
    topic_id: str,
    start: Offset,
    led: LedLog,
    max_bytes: int,
    position: BatchPosition | None = None,
) -> CommittedRange | None:
    """Find the batches from `start` on that may be stored, in one segment; None if there are none.

    Args:
        directory: The partition's directory.
        topic_id: The topic that it belongs to. Whether it does is checked after the reading.
        start: First offset.
        led: The broker's answer.
        max_bytes: Size at which the range ends, plus at most one batch.
        position: Where the range before has ended.

    Raises:
        NotCommittedError: The log contradicts the broker's answer.
        UnsupportedFormatError: Message format v0 or v1.
        OSError: A file cannot be read.
    """
    if start >= led.high_watermark:
        return None
    if position is not None and (position.offset, position.leader_epoch) == (
        start,
        led.leader_epoch,
    ):
        with suppress(FileNotFoundError, NotCommittedError):
            found = _find_in(
                directory, topic_id, position.segment, start, led, max_bytes, position
            ).found
            if found is not None:
                return found
    # The segment was closed, or something has changed.
    return _find_by_offset(directory, topic_id, start, led, max_bytes)


def _find_by_offset(
    directory: str, topic_id: str, start: Offset, led: LedLog, max_bytes: int
) -> CommittedRange | None:
    bases = segment_bases(directory)
    if not bases:
        return None
    first = max((number for number, base in enumerate(bases) if base <= start), default=0)
    begin = max(start, Offset(bases[first]))  # the records below were deleted
    end: Offset | None = None
    for base in bases[first:]:
        if base >= led.high_watermark:
            break
        # A listing while the broker rolls can lack a segment between two others.
        if end is not None and base > end and segment_bases(directory) != bases:
            return None
        searched = _find_in(directory, topic_id, base, begin, led, max_bytes, None)
        # Records behind bytes that are not whole batches would hide those that are not read yet.
        if searched.found is not None or not searched.whole:
            return searched.found
        end = max(Offset(base), searched.end)
    return None


class _Searched(NamedTuple):
    """The range of a segment; otherwise whether it has whole batches up to its end, and where the
    last one ends.
    """

    found: CommittedRange | None
    whole: bool
    end: Offset


def _find_in(  # noqa: PLR0913, PLR0917 - the arguments of `find_range`, and the segment
    directory: str,
    topic_id: str,
    base: BaseOffset,
    start: Offset,
    led: LedLog,
    max_bytes: int,
    known: BatchPosition | None,
) -> _Searched:
    with open_log(directory, base, topic_id) as log:
        if known is None:
            position = _hinted_position(directory, log, start)
        elif known.file == log.file:
            position = known.position
        else:
            return _Searched(None, whole=False, end=start)
        batches = log.batches(position)
        found = choose(batches, base, start, led, log.file, max_bytes)
        return _Searched(found, batches.whole, batches.end)


def _hinted_position(directory: str, log: OpenLog, offset: Offset) -> int:
    """Return where a batch at or below `offset` begins, found through the offset index, or 0.

    Kafka truncates an index without writing over its last entries, so an entry may lead into a
    batch. So the batches from the entry before it must lead to it.
    """
    base = log.segment
    if offset <= base:
        return 0
    path = os.path.join(directory, segment_file_name(base, FileKind.INDEX))
    with suppress(OSError), open(path, "rb", buffering=0) as file:
        index = file.fileno()
        size = os.fstat(index).st_size

        def at_or_below(wanted: int) -> int:
            return position_at_or_below(
                lambda position, length: os.pread(index, length, position), size, base, wanted
            )

        position = at_or_below(offset)
        header = _header_at(log.descriptor, position)
        if not position or header is None or not base <= header.base_offset <= offset:
            return 0
        for at, _ in log.batches(at_or_below(header.base_offset - 1)):
            if at >= position:
                return position if at == position else 0
    return 0


def _header_at(descriptor: int, position: int) -> BatchHeader | None:
    try:
        return parse_batch_header(os.pread(descriptor, HEADER_BYTES, position))
    except (DamagedSegmentError, UnsupportedFormatError):
        return None


def read_range(
    directory: str,
    wanted: CommittedRange,
    history: EpochHistory,
    open_before: tuple[OpenTransaction, ...],
) -> TailRange:
    """Read a range, and check every batch of it.

    Args:
        directory: The partition's directory.
        wanted: The range.
        history: The epoch history of the leader.
        open_before: The transactions that are open where the range begins.

    Raises:
        NotCommittedError: The file is another one by now, or a batch is not as the header or the
            history said: the bytes were torn, or the log was truncated.
        OSError: The segment cannot be read.
    """
    with open_log(directory, wanted.segment, wanted.file.topic_id) as log:
        if log.file != wanted.file:
            raise NotCommittedError(f"{directory}: segment {wanted.segment} is another file now")
        data = _read_all(log.descriptor, wanted.position, wanted.size)
    try:
        return _checked(wanted, data, history, open_before)
    except NotCommittedError:
        raise
    except SegmentError as error:
        raise NotCommittedError(
            f"{directory}: offsets [{wanted.start}, {wanted.end}): {error}"
        ) from error


def _read_all(descriptor: int, position: int, size: int) -> bytes:
    pieces = []
    while size and (piece := os.pread(descriptor, size, position)):
        pieces.append(piece)
        position, size = position + len(piece), size - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _checked(
    wanted: CommittedRange,
    data: bytes,
    history: EpochHistory,
    open_before: tuple[OpenTransaction, ...],
) -> TailRange:
    tracker = TransactionTracker(wanted.start, open_before)
    runs: list[Entry] = []
    expected, newest, count, size = wanted.start, -1, 0, 0
    for batch, header in split_batches(memoryview(data)):
        check_crc(batch)
        epoch = history.epoch_at(header.base_offset)
        if header.base_offset < expected or header.leader_epoch != epoch:
            raise NotCommittedError(
                f"the batch at offset {header.base_offset} is of leader epoch "
                f"{header.leader_epoch}, and offset {expected} of epoch {epoch} was expected"
            )
        if not runs or runs[-1][0] != header.leader_epoch:
            runs.append((header.leader_epoch, header.base_offset))
        marker = Marker.NONE
        if header.is_control and header.is_transactional:
            marker = read_marker(header, bytes(batch[HEADER_BYTES:]))
        tracker.feed(header, marker)
        newest = max(newest, header.max_timestamp)
        expected, count, size = header.next_offset, count + 1, size + header.length
    if size != wanted.size:
        raise NotCommittedError(f"{size} bytes are whole batches, and {wanted.size} were chosen")
    return TailRange(
        wanted,
        tuple(runs),
        expected,
        data,
        count,
        newest,
        tuple(tracker.open.values()),
        tuple(tracker.aborted),
    )


def open_at(directory: str, offset: Offset) -> tuple[OpenTransaction, ...] | None:
    """Return the transactions that are open at an offset, from the producer snapshot of its segment
    and the batches behind it; None if no snapshot is there.

    Raises:
        SegmentError: The snapshot or a batch is damaged.
        OSError: A file cannot be read.
    """
    below = [base for base in segment_bases(directory) if base <= offset]
    if not below:
        return None
    base = below[-1]
    known = _snapshot(directory, base)
    if known is None or int(base) == offset:
        return known
    tracker = TransactionTracker(base, known)
    with open_log(directory, base) as log:
        for at, header in log.batches():
            if header.base_offset >= offset:
                break
            marker = Marker.NONE
            if header.is_control and header.is_transactional:
                batch = os.pread(log.descriptor, header.length, at)
                marker = read_marker(header, batch[HEADER_BYTES:])
            tracker.feed(header, marker)
    return tuple(tracker.open.values())


def _snapshot(directory: str, base: BaseOffset) -> tuple[OpenTransaction, ...] | None:
    path = os.path.join(directory, segment_file_name(base, FileKind.SNAPSHOT))
    try:
        with open(path, "rb") as file:
            return open_transactions(file.read(_MAX_SNAPSHOT_BYTES), path)
    except FileNotFoundError:
        return () if base == 0 else None
