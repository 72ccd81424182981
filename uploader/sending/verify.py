"""The last look before an upload: whole, sound, of this epoch history, with indexes that belong to
it.

What passes here has been read once, byte by byte; its checksum travels with the upload, so that the
store refuses anything else.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sidetier.segments.epoch_history import (
    Entry,
    EpochHistory,
    encode_runs,
    parse_runs,
)
from sidetier.segments.errors import (
    DamagedSegmentError,
    SegmentChangedError,
    SegmentEndsElsewhereError,
    UnprovenSegmentError,
)
from sidetier.segments.headers import walk_headers
from sidetier.segments.indexes import WHOLE_ENTRIES_BYTES
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import UNKNOWN_EPOCH, BaseOffset, LeaderEpoch, Offset
from sidetier.segments.walker import BatchWalker, SegmentFacts
from sidetier.uploader.gates.remembered_epochs import read_local_epochs
from sidetier.uploader.pinning.pins import (
    PinnedSegment,
    has_successor,
    is_live,
    still_the_same,
)
from sidetier.uploader.sending.reading import ColdPages, FileBody, chunks
from sidetier.uploader.sending.verified import SummedPieces, VerifiedFile, in_memory
from sidetier.uploader.state.plan import PlannedSegment


@dataclass(frozen=True, slots=True)
class VerifiedSegment:
    """A segment, or the slice of one, that may be stored under `base_offset`.

    `epochs` are its runs of batches of one leader epoch. `epoch_history` has at least these: it is
    what the replica knew, where it knew so much. `plain_records` is the number of its records, None
    where some belong to a transaction.
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

    @property
    def size(self) -> int:
        """Length of the `.log` in bytes."""
        return self.log.body.size


@dataclass(frozen=True, slots=True)
class _Window:
    """The part of the pinned `.log` that is wanted."""

    base_offset: BaseOffset
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Reading:
    """How a segment is read: `pages` reads the `.log`, `buffer` is scratch memory for one chunk,
    `before_read` is what the bodies call before they read, `before_walk` what is called before a
    chunk is read here; `directory` is where the partition lies now (perhaps in another log dir than
    when the segment was pinned). `read_epochs` returns the leader epochs of the log in a directory.
    `committed` when the segment is known to be (`Tracked.committed`).
    """

    pages: ColdPages
    buffer: memoryview
    before_read: Callable[[int], None]
    compacted: bool = False
    directory: str | None = None
    before_walk: Callable[[int], None] = lambda _: None
    read_epochs: Callable[[str], EpochHistory] = read_local_epochs
    committed: bool = False


def verify(pinned: PinnedSegment, planned: PlannedSegment, reading: Reading) -> VerifiedSegment:
    """Read the pinned segment once and prove that it may be stored.

    Raises:
        SegmentChangedError: the file was rewritten, or replaced under its name, or merged.
        SegmentEndsElsewhereError: it ends before the next one begins, and has no name any more.
        DamagedSegmentError: not whole record batches, records missing at its end, or batches of a
            leader epoch that does not fit `leader-epoch-checkpoint`.
        UnprovenSegmentError: it has left the log, and nothing proves that its records are
            committed.
        SegmentGoneError: the partition's directory is gone.
        UnsupportedFormatError: message format v0 or v1.
    """
    _check_identity(pinned, reading)
    if reading.compacted:
        _check_not_merged(pinned, planned, reading.directory or pinned.directory)
    # Of a compacted topic the indexes that are found may be those of the file before this one.
    rebuild = planned.is_slice or reading.compacted
    window = _window(pinned, planned)
    facts, indexes = _walk_with_indexes(pinned, window, reading, rebuild=rebuild)
    _check_identity(pinned, reading)
    expected = planned.segment.next_base
    _check_not_empty(pinned.name, facts)
    epoch_history = _check_epoch_history(pinned, reading, facts)
    if not reading.compacted:
        _check_end(pinned.name, planned, facts)
    if indexes is None and facts.indexes is None:
        facts = _walk(pinned, window, reading, rebuild=True)
        _check_identity(pinned, reading)
    index, timeindex = indexes or _rebuilt_indexes(facts)
    body = FileBody(pinned.log, window.end - window.start, reading.before_read, window.start)
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
    )


def _epoch_history_from(
    base: BaseOffset, epoch_history: EpochHistory, facts: SegmentFacts
) -> EpochHistory:
    """What the replica knows, where it reaches so far back; else what the batches tell: retention
    has moved the start of an epoch that began here.
    """
    if epoch_history.epoch_at(base) is not None:
        return epoch_history
    return parse_runs(encode_runs(facts.epochs))


def _check_identity(pinned: PinnedSegment, reading: Reading) -> None:
    pinned.check_unchanged()
    if not reading.compacted and not still_the_same(pinned.directory, pinned):
        raise SegmentChangedError(f"{pinned.name} is another file now than the one that was pinned")


def _window(pinned: PinnedSegment, planned: PlannedSegment) -> _Window:
    size = pinned.identity.size
    if not planned.is_slice:
        # Below its own base where compaction has left nothing in the segments before it.
        return _Window(BaseOffset(planned.start), 0, size)
    end: int = planned.segment.base_offset
    for position, header in walk_headers(_pread(pinned.log), size):
        end = header.next_offset
        if end > planned.start:
            # Where compaction has taken the first ones, the archive goes on at `start` still.
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
    """The next offset of the batch that begins at `base`, in a segment that has been verified."""
    headers = (header for _, header in walk_headers(_pread(pinned.log), pinned.identity.size))
    return Offset(next(h.next_offset for h in headers if h.base_offset >= base))


def _pread(descriptor: int) -> Callable[[int, int], bytes]:
    return lambda position, length: os.pread(descriptor, length, position)


def _walk_with_indexes(
    pinned: PinnedSegment, window: _Window, reading: Reading, *, rebuild: bool
) -> tuple[SegmentFacts, tuple[VerifiedFile, VerifiedFile] | None]:
    """Walk the segment, and compare the broker's own indexes with its batches on the way.

    Returns:
        The indexes are None where they are to be rebuilt, or one is missing, damaged, not trimmed
        yet, or of other batches. Zero bytes are sound: small segments have no entry. Each is judged
        and summed in one pass: should the broker's recovery rewrite it meanwhile, the store refuses
        what does not fit the sum.
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
    walker = BatchWalker(path, rebuild_indexes=rebuild, index=index, time_index=time_index)
    start, end, pages = window.start, window.end, reading.pages
    for chunk in chunks(pages, start, end, reading.buffer, reading.before_walk):
        walker.feed(chunk)
    return walker.finish()


def _check_not_empty(name: str, facts: SegmentFacts) -> None:
    if facts.next_offset is None:
        raise DamagedSegmentError(f"{name}: holds no record batch, but a later segment exists")


def _check_end(name: str, planned: PlannedSegment, facts: SegmentFacts) -> None:
    """Between live segments nothing is missing; names say less of staged ones."""
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
    """Kafka's cleaner merges segments under the name of the first. Of one that was pinned before,
    the listing then tells an end that it does not reach: what is left of the others lies in the
    file that has its name now. Where that has gone, too, ours is stored as far as it reaches.
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

    Where an epoch ended that the checkpoint has dropped, nothing tells, and truncation leaves the
    same `.deleted` names as retention. Then the segment must still be in the log, or known to be
    committed from when the epoch was there.
    """
    directory = reading.directory or pinned.directory
    epoch_history = reading.read_epochs(directory)
    violation = epoch_history.violation(facts.epochs, facts.next_offset or Offset(0))
    if violation is not None:
        raise DamagedSegmentError(
            f"{pinned.name}: not of this partition's epoch history: {violation}"
        )
    first_epoch, first_start = epoch_history.entries[0]
    dropped = facts.epochs[0][0] < first_epoch
    if dropped and not (reading.committed or is_live(directory, pinned)):
        raise UnprovenSegmentError(
            f"{pinned.name} was deleted by the broker, and holds records of leader epoch "
            f"{facts.epochs[0][0]}: the log begins with epoch {first_epoch} at offset "
            f"{first_start}, and nothing tells whether retention or truncation deleted the "
            "segment. Records that may be uncommitted are not stored"
        )
    return epoch_history


def _rebuilt_indexes(facts: SegmentFacts) -> tuple[VerifiedFile, VerifiedFile]:
    if facts.indexes is None:
        raise RuntimeError("the walk was to rebuild the indexes")
    return in_memory(facts.indexes.index), in_memory(facts.indexes.timeindex)
