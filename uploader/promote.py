"""Promotion: store the tails of partitions as ordinary segments of their archives.

The ranges are read pack by pack into files of a temporary directory, which looks like the log dir
of the leader that answered for them. Then each partition is stored as a sidecar stores a closed
segment (`Uploader`, `ArchiveWriter`): every batch is checked, the indexes are rebuilt, and
`offset.wm` moves by a conditional put. So it is safe beside a living sidecar, which continues
behind the promoted records, and it may be repeated.

Killed before the `.log`: indexes above `offset.wm`, which the next promotion or the sidecar
replaces. Killed after the `.log`: a whole segment of committed records, which the next one commits.

A promoted segment has no producer snapshot, as a part of a segment: the tail does not show the
producers below it. For the same reason, it has a transaction index only if the tail begins with the
log, or if no transaction was aborted in it: an entry needs the transaction's first offset. Readers
then decide by the markers, and `hydrate place` rebuilds both files.
"""

import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from operator import attrgetter
from pathlib import Path
from typing import Final

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.notes import noted_epoch
from sidetier.archive.objects.watermark import Watermark
from sidetier.archive.tail.inventory import PACK_GONE
from sidetier.archive.tail.merge import MergedTail, TailSlice
from sidetier.archive.tail.read import SliceBatches, read_tails
from sidetier.archive.tail.survey import PartitionTail, survey
from sidetier.segments.epoch_history import encode_leader_epoch_checkpoint
from sidetier.segments.errors import ArchiveConflictError, MalformedObjectError, SidetierError
from sidetier.segments.headers import HEADER_BYTES
from sidetier.segments.keys import parse_object_key
from sidetier.segments.listing import ClosedSegment
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.notes import TOPIC_ID_KEY
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset, OffsetRange, TopicPartition
from sidetier.segments.transactions import Marker, read_marker
from sidetier.segments.txn_index import encode_txn_index
from sidetier.uploader.archive.archive_state import ArchiveState, Leader
from sidetier.uploader.errors import DivergedError, OperatorNeededError, RecreatedError
from sidetier.uploader.pinning.pins import pin
from sidetier.uploader.sending.conditional_put import WRITER_EPOCH_KEY
from sidetier.uploader.sending.upload import Destination, ReadingRules, Uploader
from sidetier.uploader.state.plan import PlannedSegment
from sidetier.uploader.state.segment import StoredSegment
from sidetier.uploader.stores import PlaceOf
from sidetier.uploader.watching.disk import EPOCH_CHECKPOINT_NAME

SEGMENT_BYTES: Final = 1 << 30
"""A promoted segment ends with the range that reaches this size."""
GROUP_BYTES: Final = 4 << 30
"""Bytes of the tails that are on the local disk at the same time; twice, while one is joined."""
_ROUNDS: Final = 5
"""How often a partition is merged anew because its archive or its packs have changed."""
_COPY_BYTES: Final = 1 << 20
_FINAL: Final = (OperatorNeededError, RecreatedError, DivergedError)
"""Conflicts that reading the archive and the packs again does not solve."""


@dataclass(frozen=True, slots=True)
class Promoted:
    """The result for one partition.

    Attributes:
        tail: Its archive and tail at the last attempt.
        segments: Number of segments that were stored.
        archived_up_to: The archive end offset afterwards; None if there is no archive.
        problem: Why its tail is not, or not completely, archived now.
    """

    tail: PartitionTail
    segments: int
    archived_up_to: Offset | None
    problem: str | None = None


def promote(  # noqa: PLR0913 - one argument for each limit
    access: ArchiveAccess,
    place_of: PlaceOf,
    tails: Iterable[PartitionTail],
    directory: Path,
    *,
    parallel: int,
    segment_bytes: int = SEGMENT_BYTES,
    group_bytes: int = GROUP_BYTES,
    accept_unread: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> list[Promoted]:
    """Store tails as segments of their archives. One partition does not hold up the others.

    Args:
        access: The archive of the cluster.
        place_of: Where topics are archived, and the writers of their archives.
        tails: The tails, as `survey` has found them.
        directory: Where the segments are made; a directory in it is created and removed.
        parallel: Partitions that are stored at the same time.
        segment_bytes: Size of a segment.
        group_bytes: Bytes of tails that are on the disk at the same time.
        accept_unread: As in `survey`, for partitions whose packs are read again.
        on_progress: Called with the number of partitions of each group that is done.

    Raises:
        StorageError: The packs or the archive cannot be read.
        OSError: The directory cannot be written.
    """
    waiting = list(tails)
    results: dict[TopicPartition, Promoted] = {}
    for _ in range(_ROUNDS):
        moved: set[TopicPartition] = set()
        for group in _groups(waiting, group_bytes):
            with tempfile.TemporaryDirectory(prefix="promote-", dir=directory) as root:
                run = _Run(access, place_of, Path(root), segment_bytes)
                for done in run.promote(group, parallel):
                    earlier = results.get(done.tail.tp)
                    stored = done.segments + (0 if earlier is None else earlier.segments)
                    results[done.tail.tp] = replace(done, segments=stored)
            moved |= run.moved
            on_progress(len(group))
        if not moved:
            break
        waiting = list(survey(access, partitions=moved, accept_unread=accept_unread).partitions)
        # The others have no packs any more: a sidecar has archived the records, and cleaned.
        for tp in moved - {tail.tp for tail in waiting}:
            results[tp] = replace(results[tp], problem=_problem_without_packs(access, results[tp]))
    return [results[tp] for tp in sorted(results)]


def _problem_without_packs(access: ArchiveAccess, promoted: Promoted) -> str | None:
    """Return what is wrong if no pack has the partition any more; None if its tail is archived."""
    end = access.partition(promoted.tail.tp).end().next_offset or Offset(0)
    safe = promoted.tail.safe_up_to or Offset(0)
    if end >= safe:
        return None
    return f"no pack has the records of offsets [{end}, {safe}) any more, and they are not archived"


def _groups(tails: Iterable[PartitionTail], max_bytes: int) -> Iterator[list[PartitionTail]]:
    group: list[PartitionTail] = []
    size = 0
    for tail in tails:
        if group and size + tail.size > max_bytes:
            yield group
            group, size = [], 0
        group.append(tail)
        size += tail.size
    if group:
        yield group


@dataclass(frozen=True, slots=True)
class _Piece:
    """The batches of one slice, in the partition's spool file.

    Attributes:
        first: Base offset of the first batch.
        position: Where they are in the file.
        size: Their bytes.
        is_sparse: Whether compaction has removed records of the slice.
        aborts: Number of abort markers.
    """

    part: TailSlice
    first: Offset
    position: int
    size: int
    is_sparse: bool
    aborts: int


@dataclass(slots=True)
class _Run:
    """The promotion of one group of partitions. Their segments are made in `root`.

    Attributes:
        moved: Partitions whose archive or packs have changed meanwhile.
    """

    access: ArchiveAccess
    place_of: PlaceOf
    root: Path
    segment_bytes: int
    moved: set[TopicPartition] = field(default_factory=set)
    _pieces: dict[TopicPartition, dict[int, _Piece]] = field(default_factory=dict)
    _uploader: Uploader = field(
        default_factory=lambda: Uploader(ReadingRules(lambda _: None, give_back_cold=False))
    )

    def promote(self, group: Sequence[PartitionTail], parallel: int) -> Iterator[Promoted]:
        """Store the tails of the group, and yield the result of each partition."""
        by_store: dict[int, dict[TopicPartition, MergedTail]] = defaultdict(dict)
        for tail in group:
            if tail.merged is not None and tail.has_records:
                by_store[id(self.access.store(tail.tp.topic))][tail.tp] = tail.merged
        errors: dict[TopicPartition, SidetierError | OSError] = {}
        for tails in by_store.values():
            errors |= self._read(tails)
        with ThreadPoolExecutor(parallel, "promote") as helpers:
            yield from helpers.map(lambda tail: self._promote(tail, errors.get(tail.tp)), group)

    def _read(
        self, tails: Mapping[TopicPartition, MergedTail]
    ) -> dict[TopicPartition, SidetierError | OSError]:
        """Read the slices of partitions of one store; return the partitions that have failed."""
        try:
            for found in read_tails(self.access.store(next(iter(tails)).topic), tails):
                self._spool(found)
        except (SidetierError, OSError) as error:
            if len(tails) == 1:
                return dict.fromkeys(tails, error)
            # One damaged pack must not hold up the other partitions: each is read by itself now.
            errors: dict[TopicPartition, SidetierError | OSError] = {}
            for tp, tail in tails.items():
                if len(self._pieces.get(tp, ())) < len(tail.slices):
                    errors |= self._read({tp: tail})
            return errors
        return {}

    def _spool_file(self, tp: TopicPartition) -> Path:
        return self.root / f"{tp}.spool"

    def _spool(self, found: SliceBatches) -> None:
        expected, size, aborts, is_sparse = found.slice.start, 0, 0, False
        with self._spool_file(found.tp).open("ab") as file:
            position = file.tell()
            for header, data in found.batches:
                if header.base_offset < expected and size:
                    raise MalformedObjectError(
                        f"{found.tp}: the batch at offset {header.base_offset} begins below "
                        f"{expected}, the end of the one before it"
                    )
                if header.is_control and header.is_transactional:
                    aborts += read_marker(header, bytes(data[HEADER_BYTES:])) is Marker.ABORT
                is_sparse |= header.base_offset > expected
                expected = header.next_offset
                file.write(data)
                size += header.length
        is_sparse |= expected < found.slice.end
        first = found.batches[0].header.base_offset if found.batches else found.slice.start
        piece = _Piece(found.slice, first, position, size, is_sparse, aborts)
        self._pieces.setdefault(found.tp, {})[found.number] = piece

    def _promote(self, tail: PartitionTail, error: SidetierError | OSError | None) -> Promoted:
        tp, merged = tail.tp, tail.merged
        if merged is None or not tail.has_records:
            return Promoted(tail, 0, tail.archived_up_to, tail.problem)
        pieces = self._pieces.get(tp, {})
        # Where a pack is damaged, what comes before it is stored.
        usable = [pieces[number] for number in takewhile(pieces.__contains__, count())]
        stored, end = 0, tail.archived_up_to
        try:
            for end in self._store(tail, merged, usable):  # noqa: B007 - used afterwards
                stored += 1
        except (SidetierError, OSError) as failure:
            if isinstance(failure, ArchiveConflictError) and not isinstance(failure, _FINAL):
                self.moved.add(tp)
            return Promoted(tail, stored, end, str(failure))
        finally:
            self._spool_file(tp).unlink(missing_ok=True)
        if isinstance(error, PACK_GONE):
            self.moved.add(tp)
        return Promoted(tail, stored, end, None if error is None else str(error))

    def _store(
        self, tail: PartitionTail, merged: MergedTail, pieces: Sequence[_Piece]
    ) -> Iterator[Offset]:
        """Store and commit segment after segment, and yield the archive end offset after each."""
        tp, place = tail.tp, self.place_of(tail.tp.topic)
        last = pieces[-1].part if pieces else merged.slices[0]
        leader = _leader(tail, merged, last, self.access.partition(tp))
        archive = self._load(tail, merged, leader)
        directory = self.root / str(tp)
        directory.mkdir()
        checkpoint = encode_leader_epoch_checkpoint(merged.epochs)
        (directory / EPOCH_CHECKPOINT_NAME).write_text(checkpoint, encoding="ascii")
        start = merged.start
        for part in self._segments(pieces):
            stored = self._upload(
                tp, part, start, archive, leader, directory, from_log_start=merged.start == 0
            )
            archive = place.archive_writer.commit(tp, archive, [stored], leader)
            start = stored.next_offset
            yield start
        shutil.rmtree(directory)

    def _load(self, tail: PartitionTail, merged: MergedTail, leader: Leader) -> ArchiveState:
        """Read the archive as a sidecar does before its first upload.

        Raises:
            ArchiveConflictError: It does not end where the tail begins.
        """
        tp, writer = tail.tp, self.place_of(tail.tp.topic).archive_writer
        archive = writer.load(tp, leader)
        if archive.is_pinterest:
            raise OperatorNeededError(
                "the archive was written by Pinterest's uploader, and a sidecar has not taken it "
                "over yet"
            )
        if archive.watermark is None:
            archive = archive.beginning_at(merged.start)
            if merged.log_start is not None and merged.log_start < merged.start:
                missing = OffsetRange(merged.log_start, merged.start)
                raise OperatorNeededError(
                    f"there is no archive yet, and no pack has the offsets {missing} of the log: "
                    "the archive would begin without them"
                )
        archive = writer.prepare(tp, archive, leader, lambda: merged.epochs)
        archive = writer.compare(tp, archive, merged.epochs)
        if archive.next_offset != merged.start:
            raise ArchiveConflictError(
                f"the archive ended at {merged.start} when the packs were read, and ends at "
                f"{archive.next_offset} now"
            )
        return archive

    def _segments(self, pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
        part: list[_Piece] = []
        for piece in pieces:
            part.append(piece)
            # A slice without a batch has no segment of its own.
            if sum(each.size for each in part) >= self.segment_bytes:
                yield part
                part = []
        if any(each.size for each in part):
            yield part

    def _upload(  # noqa: PLR0913 - what differs between two segments
        self,
        tp: TopicPartition,
        part: Sequence[_Piece],
        start: Offset,
        archive: ArchiveState,
        leader: Leader,
        directory: Path,
        *,
        from_log_start: bool,
    ) -> StoredSegment:
        first = next(piece for piece in part if piece.size)
        base = BaseOffset(min(start, first.first))
        segment = ClosedSegment(base, BaseOffset(part[-1].part.end), marked_for_deletion=False)
        self._make(tp, segment, part, directory)
        if from_log_start:
            _write_txn_index(segment, part, directory)
        place = self.place_of(tp.topic)
        destination = Destination(
            place.store,
            place.layout,
            tp,
            leader.leader_epoch,
            leader.broker_id,
            compacted=any(piece.is_sparse for piece in part),
            directory=str(directory),
            topic_id=leader.topic_id,
            begins=archive.watermark is None,
        )
        pinned = pin(str(directory), segment)
        if base > 0:
            pinned.lacking[FileKind.SNAPSHOT] = "the tail does not show the producers below it"
        if any(piece.aborts for piece in part) and not from_log_start:
            pinned.lacking[FileKind.TXNINDEX] = "a transaction may have begun below the tail"
        try:
            return self._uploader.upload(
                destination,
                pinned,
                PlannedSegment(segment, start),
                archive.present or frozenset(),
                committed=True,
            )
        finally:
            pinned.close()
            for kind in (FileKind.LOG, FileKind.TXNINDEX):
                (directory / segment_file_name(base, kind)).unlink(missing_ok=True)

    def _make(
        self, tp: TopicPartition, segment: ClosedSegment, part: Sequence[_Piece], directory: Path
    ) -> None:
        """Write the `.log` of a segment."""
        log = directory / segment_file_name(segment.base_offset, FileKind.LOG)
        with self._spool_file(tp).open("rb") as spool, log.open("wb") as file:
            for piece in part:
                spool.seek(piece.position)
                left = piece.size
                while left:
                    data = spool.read(min(left, _COPY_BYTES))
                    file.write(data)
                    left -= len(data)
        newest_ms = max(piece.part.source.stored_in.modified_ms for piece in part)
        os.utime(log, ns=(newest_ms * 1_000_000, newest_ms * 1_000_000))


def _write_txn_index(segment: ClosedSegment, part: Iterable[_Piece], directory: Path) -> None:
    aborted = {
        entry
        for piece in part
        for entry in piece.part.source.row.aborted
        if piece.part.start <= entry.last_offset < piece.part.end
    }
    if aborted:
        index = directory / segment_file_name(segment.base_offset, FileKind.TXNINDEX)
        index.write_bytes(encode_txn_index(sorted(aborted, key=attrgetter("last_offset"))))


def _leader(
    tail: PartitionTail, merged: MergedTail, last: TailSlice, archive: StoredPartition
) -> Leader:
    """Return for which leader a tail is stored up to the end of its slice `last`: the newest epoch
    that has records there, that `offset.wm` has, or that has stored files above it.

    A claim does not count: a wrong one would make the sidecars of all later leaders stand down for
    ever. A sidecar of a later leader is not overwritten: `ArchiveWriter` refuses.
    """
    known = [epoch for epoch, _ in merged.epochs.up_to(last.end).entries[-1:]]
    if tail.watermark is not None:
        known.append(tail.watermark.leader_epoch)
    known += _unfinished(archive, tail.watermark, merged.topic_id)
    return Leader(last.source.stored_in.broker, LeaderEpoch(max(known)), merged.topic_id)


def _unfinished(
    archive: StoredPartition, watermark: Watermark | None, topic_id: str | None
) -> Iterator[LeaderEpoch]:
    """Yield the leader epochs of sidecars that were killed before a commit: without one of them,
    their files could not be adopted or replaced. One listing, and one request for each file.
    """
    for row in archive.rows(0 if watermark is None else watermark.base_offset + 1):
        if parse_object_key(row.key, archive.prefix) is None:
            continue
        head = archive.store.head_object(row.key)
        if WRITER_EPOCH_KEY in head.metadata and head.metadata.get(TOPIC_ID_KEY) == topic_id:
            yield noted_epoch(head, WRITER_EPOCH_KEY)
