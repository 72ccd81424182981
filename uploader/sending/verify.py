"""Verify a segment before its upload: complete, undamaged, of this log's epoch history, and with
indexes that match it.

A verified segment has been read once, byte by byte. Its checksum is sent with the upload, so the
store refuses any other bytes.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sidetier.segments.crc import crc64nvme
from sidetier.segments.epoch_history import Entry, EpochHistory, encode_runs, parse_runs
from sidetier.segments.errors import (
    DamagedSegmentError,
    SegmentChangedError,
    SegmentEndsElsewhereError,
    SegmentError,
    UnprovenSegmentError,
    UnsupportedFormatError,
)
from sidetier.segments.headers import walk_headers
from sidetier.segments.indexes import WHOLE_ENTRIES_BYTES
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import UNKNOWN_EPOCH, BaseOffset, LeaderEpoch, Offset
from sidetier.segments.walker import BatchWalker, SegmentFacts
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import Body
from sidetier.uploader.gates.committed_range import CommittedRange
from sidetier.uploader.gates.remembered_epochs import read_local_epochs
from sidetier.uploader.pinning.pins import PinnedSegment, has_successor, is_live, still_the_same
from sidetier.uploader.sending.reading import ColdPages, FileBody, SendProgress, chunks
from sidetier.uploader.state.plan import PlannedSegment


@dataclass(frozen=True, slots=True)
class VerifiedFile:
    """A body and the CRC64NVME of all its bytes."""

    body: Body
    crc64nvme: int


class SummedPieces:
    """Iterates over a file's bytes from `start` to `end`, and sums up their size and CRC64NVME.

    All pieces have `piece_bytes` bytes, except the last one. After the iteration, `file` returns
    exactly the bytes that were read: if the broker rewrites the file meanwhile, the store refuses
    bytes that do not match the checksum.
    """

    def __init__(
        self, descriptor: int, piece_bytes: int, start: int = 0, end: int | None = None
    ) -> None:
        self._descriptor = descriptor
        self._piece_bytes = piece_bytes
        self._start = start
        self._end = end
        self._size = self._checksum = 0

    def _read_next(self) -> bytes:
        position, length = self._start + self._size, self._piece_bytes
        if self._end is not None:
            length = min(length, max(0, self._end - position))
        return os.pread(self._descriptor, length, position)

    def __iter__(self) -> Iterator[bytes]:
        while piece := self._read_next():
            self._size += len(piece)
            self._checksum = crc64nvme(piece, self._checksum)
            yield piece

    def file(self, before_read: Callable[[int], None]) -> VerifiedFile:
        """Return the bytes that were read so far, for the upload."""
        body = FileBody(self._descriptor, self._size, before_read, self._start)
        return VerifiedFile(body, self._checksum)


def in_memory(data: bytes) -> VerifiedFile:
    """Return bytes in memory with their checksum, such as a rebuilt index."""
    return VerifiedFile(BytesBody(data), crc64nvme(data))


@dataclass(frozen=True, slots=True)
class VerifiedSegment:
    """A verified segment, or a slice of one, to be stored under `base_offset`.

    Attributes:
        base_offset: Base offset of its keys.
        next_offset: Its end, exclusive.
        max_timestamp: Largest timestamp of its batches, in ms since 1970.
        leader_epoch: Leader epoch of its last batch.
        modified_ms: Last write to the local `.log`, in ms since 1970.
        log: The `.log`.
        index: The offset index.
        timeindex: The time index.
        epochs: Its runs of batches of one leader epoch, each with the first offset.
        epoch_history: The leader epochs of the log, if they reach back to this segment; else
            `epochs`.
        plain_records: Number of its records; None where some belong to a transaction.
        read_to: End of the last batch that was read, exclusive.
    """

    base_offset: BaseOffset
    next_offset: Offset
    max_timestamp: int
    leader_epoch: LeaderEpoch
    modified_ms: int
    log: VerifiedFile
    index: VerifiedFile
    timeindex: VerifiedFile
    epochs: tuple[Entry, ...]
    epoch_history: EpochHistory
    plain_records: int | None
    read_to: Offset | None

    @property
    def size(self) -> int:
        """Length of the `.log` in bytes."""
        return self.log.body.size


@dataclass(frozen=True, slots=True)
class _Window:
    """The bytes of the pinned `.log` to store: `start` up to `end`, exclusive."""

    base_offset: BaseOffset
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Reading:
    """How a segment is read.

    Attributes:
        pages: Reads the `.log`.
        buffer: Memory for one chunk.
        before_read: Called with the number of bytes before each read for the upload.
        compacted: Whether records may be missing anywhere in the log.
        directory: The partition's directory now, which may be in another log dir than when the
            segment was pinned; None takes the directory at that time.
        before_walk: Called with the number of bytes before each chunk is read to verify it.
        read_epochs: Returns the leader epochs of the log in a directory.
        committed: Whether the segment is known to be committed (`TrackedSegment.committed`).
        progress: Counts the bytes of the `.log` while it is sent.
        early: The part of an active segment that is read; None for a closed segment.
    """

    pages: ColdPages
    buffer: memoryview
    before_read: Callable[[int], None]
    compacted: bool = False
    directory: str | None = None
    before_walk: Callable[[int], None] = lambda _: None
    read_epochs: Callable[[str], EpochHistory] = read_local_epochs
    committed: bool = False
    progress: SendProgress | None = None
    early: CommittedRange | None = None


def verify(pinned: PinnedSegment, planned: PlannedSegment, reading: Reading) -> VerifiedSegment:
    """Read the pinned segment once and prove that it may be stored.

    Of a part of an active segment, only the bytes and their history are checked here: the caller
    applies `committed_range.refusal`.

    Raises:
        SegmentChangedError: the file was rewritten, or replaced under its name, or merged.
        SegmentEndsElsewhereError: it ends before the next one begins, and has left the log.
        DamagedSegmentError: not whole record batches, records missing at its end, or batches of a
            leader epoch that does not fit `leader-epoch-checkpoint`.
        UnprovenSegmentError: it has left the log, and nothing proves that its records are
            committed.
        SegmentGoneError: the partition's directory is gone.
        UnsupportedFormatError: message format v0 or v1.
        SegmentError: `leader-epoch-checkpoint` does not parse.
    """
    # Before and after the reading: a pin keeps the bytes of a deleted file,
    # but not of a file that truncation or recovery rewrites in place.
    _check_identity(pinned, reading)
    if reading.compacted:
        _check_not_merged(pinned, planned, reading.directory or pinned.directory)
    # In a compacted topic the pinned indexes may belong to an earlier `.log` of the same name.
    rebuild = planned.is_slice or reading.compacted or reading.early is not None
    window = _window(pinned, planned, reading.early)
    facts, indexes = _walk_with_indexes(pinned, window, reading, rebuild=rebuild)
    # Once more after the reading: the file may have been rewritten or renamed meanwhile.
    _check_identity(pinned, reading)
    expected = planned.segment.next_base
    _check_not_empty(pinned.name, facts)
    epoch_history = _check_epoch_history(pinned, reading, facts)
    if not reading.compacted:
        _check_end(pinned.name, planned, facts)
    if indexes is None and facts.indexes is None:
        # The broker's indexes turned out to be unusable. Indexes are not built in the first walk,
        # because that costs CPU time and is rarely needed.
        facts = _walk(pinned, window, reading, rebuild=True)
        _check_identity(pinned, reading)
    index, timeindex = indexes or _rebuilt_indexes(facts)
    size = window.end - window.start
    body = FileBody(pinned.log, size, reading.before_read, window.start, reading.progress)
    end = Offset(expected if expected is not None else facts.next_offset or 0)
    return VerifiedSegment(
        base_offset=window.base_offset,
        next_offset=end,
        max_timestamp=facts.max_timestamp,
        leader_epoch=facts.last_leader_epoch
        if facts.last_leader_epoch is not None
        else UNKNOWN_EPOCH,
        modified_ms=pinned.identity.modified_ns // 1_000_000,
        log=VerifiedFile(body, facts.crc64nvme),
        index=index,
        timeindex=timeindex,
        epochs=facts.epochs,
        epoch_history=_epoch_history_from(window.base_offset, epoch_history, facts),
        plain_records=facts.plain_records if facts.next_offset == end else None,
        read_to=facts.next_offset,
    )


def _epoch_history_from(
    base: BaseOffset, epoch_history: EpochHistory, facts: SegmentFacts
) -> EpochHistory:
    """Return the log's epoch history if it reaches back to `base`, else the batches' epochs.

    It may not reach back, because retention moves the start of its first epoch.
    """
    if epoch_history.epoch_at(base) is not None:
        return epoch_history
    # A round trip through the text form gives an empty history if the runs do not ascend.
    return parse_runs(encode_runs(facts.epochs))


def _check_identity(pinned: PinnedSegment, reading: Reading) -> None:
    if reading.early is not None:
        # The broker appends to the file, but not to the bytes that are read.
        file = reading.early.file
        if (pinned.identity.device, pinned.identity.inode) != (file.device, file.inode):
            raise SegmentChangedError(f"{pinned.name} is another file now than {file}")
        return
    pinned.check_unchanged()
    if not reading.compacted and not still_the_same(pinned.directory, pinned):
        raise SegmentChangedError(f"{pinned.name} is another file now than the one that was pinned")


def _window(
    pinned: PinnedSegment, planned: PlannedSegment, early: CommittedRange | None
) -> _Window:
    if early is not None:
        if planned.start != early.start:
            raise SegmentChangedError(f"{pinned.name}: the archive does not end at {early.start}")
        return _Window(BaseOffset(early.start), early.position, early.position + early.size)
    size = pinned.identity.size
    if not planned.is_slice:
        # `start` is below the base offset where compaction has emptied the segments before it.
        return _Window(BaseOffset(planned.start), 0, size)
    end: int = planned.segment.base_offset
    for position, header in walk_headers(_pread(pinned.log), size):
        end = header.next_offset
        if end > planned.start:
            # If compaction has removed the records at `start`, the slice still begins there.
            base = BaseOffset(min(header.base_offset, planned.start))
            return _Window(base, position, size)
    message = (
        f"{pinned.name}: no record batch reaches offset {planned.start}, although the next segment "
        f"begins at {planned.segment.next_base}"
    )
    if planned.segment.marked_for_deletion:
        raise SegmentEndsElsewhereError(message, end)
    raise DamagedSegmentError(message)


def end_of_batch(pinned: PinnedSegment, base: BaseOffset) -> Offset:
    """Return the end, exclusive, of the first batch at or above `base` in a verified segment."""
    headers = (header for _, header in walk_headers(_pread(pinned.log), pinned.identity.size))
    return Offset(next(h.next_offset for h in headers if h.base_offset >= base))


def _pread(descriptor: int) -> Callable[[int, int], bytes]:
    return lambda position, length: os.pread(descriptor, length, position)


def _walk_with_indexes(
    pinned: PinnedSegment, window: _Window, reading: Reading, *, rebuild: bool
) -> tuple[SegmentFacts, tuple[VerifiedFile, VerifiedFile] | None]:
    """Walk the segment, and compare the broker's own indexes with its batches on the way.

    Returns:
        The facts of the walk, and the indexes. The indexes are None where the caller rebuilds them,
        or one is missing, damaged, not trimmed yet, or of other batches. An empty index is valid:
        small segments have no entry. Each index is checked and summed in one pass: if the broker's
        recovery rewrites it meanwhile, the store refuses bytes that do not match the checksum.
    """
    index = pinned.descriptors.get(FileKind.INDEX)
    timeindex = pinned.descriptors.get(FileKind.TIMEINDEX)
    if rebuild or index is None or timeindex is None:
        return _walk(pinned, window, reading, rebuild=rebuild), None
    first, second = (SummedPieces(file, WHOLE_ENTRIES_BYTES) for file in (index, timeindex))
    facts = _walk(pinned, window, reading, rebuild=False, indexes=(first, second))
    if not (facts.index_fits and facts.time_index_fits):
        return facts, None
    return facts, (first.file(reading.before_read), second.file(reading.before_read))


def _walk(
    pinned: PinnedSegment,
    window: _Window,
    reading: Reading,
    *,
    rebuild: bool,
    indexes: tuple[Iterable[bytes] | None, Iterable[bytes] | None] = (None, None),
) -> SegmentFacts:
    name = segment_file_name(window.base_offset, FileKind.LOG)
    path = os.path.join(pinned.directory, name)
    index, time_index = indexes
    # The path has the base offset of the stored keys, to which entries of rebuilt
    # indexes are relative: for a slice, it is not the name of the broker's file.
    walker = BatchWalker(path, rebuild_indexes=rebuild, index=index, time_index=time_index)
    start, end, pages = window.start, window.end, reading.pages
    for chunk in chunks(pages, start, end, reading.buffer, reading.before_walk):
        walker.feed(chunk)
    return walker.finish()


def _check_not_empty(name: str, facts: SegmentFacts) -> None:
    if facts.next_offset is None:
        raise DamagedSegmentError(f"{name}: holds no record batch, but a later segment exists")


def _check_end(name: str, planned: PlannedSegment, facts: SegmentFacts) -> None:
    """Check that the segment ends where the next one begins.

    Between live segments no records are missing. The names of segments that are marked for deletion
    do not prove where one ends, so that is another error.
    """
    expected, end = planned.segment.next_base, facts.next_offset
    if expected is None or end is None or end == Offset(expected):
        return
    message = (
        f"{name}: its last record batch ends before offset {end}, but the next segment begins at "
        f"{expected}: the records between are missing here"
    )
    if planned.segment.marked_for_deletion:
        raise SegmentEndsElsewhereError(message, end)
    raise DamagedSegmentError(message)


def _check_not_merged(pinned: PinnedSegment, planned: PlannedSegment, directory: str) -> None:
    """Check that Kafka's cleaner has not merged the segment since it was pinned.

    The cleaner merges segments under the name of the first. Then the listing gives an end that the
    pinned file does not reach: the other segments' records are in the file that has the name now.
    If that file is gone, too, the pinned one is stored up to its own end.
    """
    end, expected = pinned.segment.next_base, planned.segment.next_base
    if end is None or expected is None or expected <= end:
        return
    message = (
        f"{pinned.name} ended at {end} when it was pinned, and was merged with what followed it: "
        f"the records from there to {expected} are in another file"
    )
    if has_successor(directory, pinned):
        raise SegmentChangedError(message)
    raise SegmentEndsElsewhereError(message, Offset(end))


def _check_epoch_history(
    pinned: PinnedSegment, reading: Reading, facts: SegmentFacts
) -> EpochHistory:
    """Compare the batches with the leader epochs of the log.

    The checkpoint may have dropped the segment's epoch, and then does not show where that epoch
    ended. Truncation leaves the same `.deleted` names as retention. In this case the segment must
    still be in the log, or be known as committed from the time when the checkpoint had the epoch.
    """
    directory = reading.directory or pinned.directory
    try:
        epoch_history = reading.read_epochs(directory)
    except UnsupportedFormatError as error:
        # The checkpoint does not determine the format of the segment, which waits for it.
        raise SegmentError(str(error)) from error
    violation = epoch_history.violation(facts.epochs, facts.next_offset or Offset(0))
    if violation is not None:
        raise DamagedSegmentError(
            f"{pinned.name}: not of this partition's epoch history: {violation}"
        )
    # `violation` has refused an empty history.
    first_epoch, first_start = epoch_history.entries[0]
    dropped = facts.epochs[0][0] < first_epoch
    if dropped and not (reading.committed or is_live(directory, pinned)):
        raise UnprovenSegmentError(
            f"{pinned.name} was deleted by the broker, and holds records of leader epoch "
            f"{facts.epochs[0][0]}: the log begins with epoch {first_epoch} at offset "
            f"{first_start}, and it is not known whether retention or truncation deleted the "
            "segment. Records that may be uncommitted are not stored"
        )
    return epoch_history


def _rebuilt_indexes(facts: SegmentFacts) -> tuple[VerifiedFile, VerifiedFile]:
    if facts.indexes is None:
        raise RuntimeError("the walk was to rebuild the indexes")
    return in_memory(facts.indexes.index), in_memory(facts.indexes.timeindex)
