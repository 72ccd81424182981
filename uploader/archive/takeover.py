"""Take over an archive: scan it once, then write what must be in place before our `offset.wm`.

The order of the writes: missing indexes, the move of foreign segments, gap records, `_metadata`.
The caller writes `offset.wm` with Sidetier's second line last, which marks the takeover as
complete. After a kill before that, the next takeover scans again and finds the finished writes in
place.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.gaps import write_gap
from sidetier.archive.objects.pinterest_metadata import PartitionMetadata, TimeIndexEntry
from sidetier.archive.objects.segment import (
    SegmentFiles,
    Tail,
    read_tail,
    rebuilt_indexes,
)
from sidetier.segments.crc import crc64nvme
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import (
    DamagedSegmentError,
    ObjectNotFoundError,
    PreconditionFailedError,
    UnsupportedFormatError,
)
from sidetier.segments.headers import HEADER_BYTES, BatchHeader, parse_batch_header
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import (
    BaseOffset,
    BrokerId,
    LeaderEpoch,
    Offset,
    OffsetRange,
    TopicPartition,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import (
    Checksum,
    ChecksumAlgorithm,
    IfAbsent,
    IfMatch,
    PutOptions,
    RemoteStorage,
)
from sidetier.uploader.archive.metadata_cache import MetadataEditor
from sidetier.uploader.errors import DivergedError, OperatorNeededError
from sidetier.uploader.gates.divergence import log_end_offset


@dataclass(frozen=True, slots=True)
class LocalLog:
    """This broker's log of a partition.

    Attributes:
        directory: The partition's directory.
        start: First offset of the log; None where there is none.
        active: Base offset of the active segment; None where it is not known.
        epoch_history: Leader epochs of the log.
        compacted: Whether the bytes of a segment may change under the same name.
        doubt: Why stored segments that contradict the log must not be quarantined: the log need
            not be the leader's, or the configuration forbids it. None where they may be.
    """

    directory: str
    start: Offset | None
    active: BaseOffset | None
    epoch_history: EpochHistory
    compacted: bool = False
    doubt: str | None = None

    def holds(self, base: BaseOffset, tail: Tail) -> bool | None:
        """Return whether the last batch of a stored segment is in this log; None where this log
        cannot prove it, such as where that part of the log was deleted.

        Compares the batch's header, whose checksum covers the records, and the batch's position in
        the file, which depends on every batch before it. If both are equal, so is the segment. In a
        compacted log, or where the segment's file is gone, compares the leader epoch instead, which
        can only prove that the log does not hold the batch.
        """
        if self.start is None or tail.batch.next_offset <= self.start:
            return None
        if not self.compacted:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                return self._header_at(base, tail.position) == tail.batch
        run = (tail.batch.leader_epoch, tail.batch.base_offset)
        problem = self.epoch_history.violation([run], tail.batch.next_offset)
        return None if problem is None else False

    def end(self) -> Offset | None:
        """Return the log end offset, exclusive; None without an active segment.

        Reads the batch headers of the active segment. Raises OSError if its file is gone.
        """
        return None if self.active is None else log_end_offset(self.directory, self.active)

    def _header_at(self, base: BaseOffset, position: int) -> BatchHeader | None:
        try:
            return parse_batch_header(self._read(base, position))
        except (DamagedSegmentError, UnsupportedFormatError):
            return None

    def _read(self, base: BaseOffset, position: int) -> bytes:
        """Read a header from the live `.log`.

        A `.deleted` file proves nothing: truncation may have removed its records from the log.
        """
        path = os.path.join(self.directory, segment_file_name(base, FileKind.LOG))
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, HEADER_BYTES, position)
        finally:
            os.close(descriptor)


T = TypeVar("T")
R = TypeVar("R")

HELPERS: Final = 8
_FEW: Final = 16
_helping: Final = threading.Lock()
"""Held by the scan that has helper threads. Other scans read their segments without: the number of
threads, and of connections to the store, stays bounded.
"""


@dataclass(frozen=True, slots=True)
class PinterestSegment(SegmentFiles):
    """A stored `.log` that ends with a whole record batch, and the files beside it."""

    tail: Tail

    @property
    def next_offset(self) -> Offset:
        """Offset after the last record."""
        return self.tail.batch.next_offset


def scan(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition
) -> tuple[list[PinterestSegment], list[str]]:
    """List the segments of a partition, and read the end of each.

    Makes one listing, and usually two requests for each segment. Writes nothing.

    Returns:
        The whole segments, by rising base offset, and the keys of damaged `.log` objects.
    """
    stored = list(StoredPartition(store, layout, tp).logs())
    segments = at_once(lambda segment: _read_segment(store, segment), stored)
    whole = [segment for segment in segments if segment is not None]
    damaged = [
        files.log.key for files, segment in zip(stored, segments, strict=True) if segment is None
    ]
    return whole, damaged


def _read_segment(store: RemoteStorage, segment: SegmentFiles) -> PinterestSegment | None:
    base, files = segment.base_offset, segment.files
    try:
        tail = read_tail(store, base, segment.log, files.get(FileKind.INDEX))
    except (DamagedSegmentError, UnsupportedFormatError):
        return None
    return PinterestSegment(base, files, tail)


def at_once(work: Callable[[T], R], items: Sequence[T]) -> Iterable[R]:
    """Call `work` on every item, and return the results in order.

    With 16 items or more, and while no other call does so, it uses `HELPERS` threads.
    """
    # Not waiting: a scan without helpers is slower, but a scan that waits
    # would hold its request thread for as long as another archive is long.
    if len(items) < _FEW or not _helping.acquire(blocking=False):
        return [work(item) for item in items]
    try:
        with ThreadPoolExecutor(HELPERS, "archive-scan") as helpers:
            return list(helpers.map(work, items))
    finally:
        _helping.release()


# Decide which segments of Pinterest's archive are taken over, and where the archive then ends.
#
# The `offset.wm` of Pinterest's uploader proves little: it may name a segment that is not stored,
# have a gap below it, or be far behind the stored segments. The decision depends on which segments
# are whole, where each of them ends, and whether this broker's log can still fill the gaps between
# them. The functions are pure.


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A whole segment of Pinterest's, from its base offset (inclusive) to `end` (exclusive).

    `same`: whether this broker's log holds its last batch. None where that part of the
    log was deleted.
    """

    base: BaseOffset
    end: Offset
    same: bool | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of `decide`.

    Attributes:
        taken: The segments that are taken over, by rising base offset.
        gaps: The gaps between them, to be recorded.
        next_offset: The archive end offset after the takeover; None where no segment is taken.
        foreign: The segments that are not of this broker's log.
    """

    taken: tuple[Span, ...]
    gaps: tuple[OffsetRange, ...]
    next_offset: Offset | None
    foreign: tuple[Span, ...]


def decide(spans: Iterable[Span], named: BaseOffset | None, log_start: Offset | None) -> Decision:
    """Take segments up to the first gap that this broker's log can fill.

    Gaps below the log start are recorded and passed, because no broker can fill them. Segments
    above the one that `offset.wm` names are taken only if the log no longer holds their base
    offset. The others are uploaded again, because Pinterest's uploader does not check the high
    watermark. Overlapping segments are taken.

    Args:
        spans: The whole segments that are stored.
        named: Base offset of the segment that `offset.wm` names; None where there is no
            `offset.wm`, and then every segment counts as above it.
        log_start: First offset of this broker's log; None where it has none.
    """
    ordered = sorted(spans)
    taken: list[Span] = []
    gaps: list[OffsetRange] = []
    position: Offset | None = None
    for span in ordered:
        if span.same is False:
            continue
        above = named is None or span.base > named
        # The log still has these records, so they are uploaded from it, after the usual checks.
        if above and not _is_gone(span.base, log_start):
            break
        if position is not None and span.base > position:
            # The log can fill this gap, or a part of it: the archive continues here by uploads.
            if log_start is None or span.base > log_start:
                break
            gaps.append(OffsetRange(position, Offset(span.base)))
        taken.append(span)
        position = span.end if position is None else max(position, span.end)
    foreign = tuple(span for span in ordered if span.same is False)
    return Decision(tuple(taken), tuple(gaps), position, foreign)


def _is_gone(offset: int, log_start: Offset | None) -> bool:
    """Return whether the broker has deleted the record at the offset from this log."""
    return log_start is not None and offset < log_start


def is_of_another_log(spans: Iterable[Span]) -> bool:
    """Return whether segments could be compared with this broker's log, and it holds none."""
    verdicts = {span.same for span in spans}
    return False in verdicts and True not in verdicts


_REMEDY: Final = "`sidetier retire` moves Pinterest's archive away"


@dataclass(frozen=True, slots=True)
class TakeoverReport:
    """The result of a takeover: for the log, the metrics, and `offset.wm`.

    Attributes:
        named: Base offset of the segment that Pinterest's `offset.wm` names; None where there was
            no `offset.wm`.
        segments: Number of segments that were taken over.
        start: First archived offset; None where no segment was taken over.
        last: Base offset of the last segment, for our `offset.wm`; None where no segment was taken
            over.
        next_offset: The archive end offset; None where no segment was taken over.
        gaps: The gaps that were recorded.
        rebuilt: Keys of the indexes that were rebuilt.
        quarantined: New keys of the objects that were moved.
        damaged: Keys of damaged `.log` objects, which stay where they are.
    """

    named: BaseOffset | None
    segments: int
    start: Offset | None = None
    last: BaseOffset | None = None
    next_offset: Offset | None = None
    gaps: tuple[OffsetRange, ...] = ()
    rebuilt: tuple[str, ...] = ()
    quarantined: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Takeover:
    """The takeover of one partition's archive by this broker as the leader."""

    store: RemoteStorage
    layout: ArchiveLayout
    metadata: MetadataEditor
    topic_partition: TopicPartition
    broker_id: BrokerId
    leader_epoch: LeaderEpoch
    local: LocalLog

    def run(self, named: BaseOffset | None) -> TakeoverReport:
        """Do everything but write `offset.wm`.

        Args:
            named: Base offset of the segment that Pinterest's `offset.wm` names; None where there
                is no `offset.wm`.

        Raises:
            OperatorNeededError: the stored segments are of another log.
            DivergedError: the stored segments reach beyond this broker's log, or some contradict it
                and must not be moved.
        """
        whole, damaged = scan(self.store, self.layout, self.topic_partition)
        # Every decision is made before the first write, because a foreign segment or a damaged one
        # changes what is done with the others.
        spans = {
            s.base_offset: Span(
                s.base_offset, s.next_offset, self.local.holds(s.base_offset, s.tail)
            )
            for s in whole
        }
        decision = decide(spans.values(), named, self.local.start)
        self._check(spans.values(), decision)
        taken = {span.base for span in decision.taken}
        foreign = {span.base for span in decision.foreign}
        rebuilt = [key for s in whole if s.base_offset in taken for key in self._complete(s)]
        quarantined = [
            key for s in whole if s.base_offset in foreign for key in self._quarantine(s)
        ]
        for gap in decision.gaps:
            write_gap(
                self.store,
                self.layout,
                self.topic_partition,
                gap,
                self.broker_id,
                self.leader_epoch,
            )
        good = [s for s in whole if s.base_offset not in foreign]
        self.metadata.rewrite(self.topic_partition, lambda known: repaired(known, good, taken))
        return TakeoverReport(
            named=named,
            segments=len(decision.taken),
            start=Offset(decision.taken[0].base) if decision.taken else None,
            last=decision.taken[-1].base if decision.taken else None,
            next_offset=decision.next_offset,
            gaps=decision.gaps,
            rebuilt=tuple(rebuilt),
            quarantined=tuple(quarantined),
            damaged=tuple(damaged),
        )

    def _check(self, spans: Iterable[Span], decision: Decision) -> None:
        prefix = self.layout.partition_prefix(self.topic_partition)
        if is_of_another_log(spans):
            raise OperatorNeededError(
                f"{prefix}: Pinterest's uploader stored the records of another log under this "
                f"name: no stored segment equals the one of these offsets in "
                f"{self.local.directory} (the topic was deleted and created again?); {_REMEDY}"
            )
        end, reached = self.local.end(), max((span.end for span in spans), default=0)
        if end is not None and end < reached:
            raise DivergedError(
                f"{prefix}: Pinterest's archive reaches {reached}, but the log in "
                f"{self.local.directory} ends at {end}: the uploader stored uncommitted "
                "records, or an unclean election has lost them; nothing is written before the "
                f"log has reached that offset; {_REMEDY}"
            )
        if decision.foreign and self.local.doubt is not None:
            raise DivergedError(
                f"{prefix}: Pinterest's segment {decision.foreign[0].base} is not the one in "
                f"{self.local.directory}; nothing is moved: {self.local.doubt}"
            )

    def _complete(self, segment: PinterestSegment) -> list[str]:
        """Store the missing indexes, and return their keys."""
        if not segment.missing:
            return []
        indexes = rebuilt_indexes(self.store, segment.log)
        data = {FileKind.INDEX: indexes.index, FileKind.TIMEINDEX: indexes.timeindex}
        return [self._put(segment.base_offset, kind, data[kind]) for kind in segment.missing]

    def _put(self, base: BaseOffset, kind: FileKind, data: bytes) -> str:
        key = self.layout.object_key(self.topic_partition, base, kind)
        checksum = Checksum(ChecksumAlgorithm.CRC64NVME, crc64nvme(data).to_bytes(8))
        is_supported = self.store.capabilities.checksum in {None, ChecksumAlgorithm.CRC64NVME}
        with contextlib.suppress(PreconditionFailedError):  # another writer has stored it
            self.store.put_object(
                key,
                BytesBody(data),
                PutOptions(checksum=checksum if is_supported else None, condition=IfAbsent()),
            )
        return key

    def _quarantine(self, segment: PinterestSegment) -> list[str]:
        """Move a segment that is not of this log to the quarantine, and return the new keys.

        The `.log` goes first: without it, readers ignore the other files. The folder's name comes
        from the versions of the files. So another attempt finds its own copies there, and a later
        takeover does not overwrite files that were moved before.
        """
        versions = " ".join(segment.files[kind].etag for kind in sorted(segment.files))
        folder = f"peer/{crc64nvme(versions.encode()):016x}/"
        target = self.layout.quarantine_prefix(self.topic_partition) + folder
        copies = []
        for kind, row in sorted(segment.files.items(), key=lambda item: item[0] != FileKind.LOG):
            copy = target + segment_file_name(segment.base_offset, kind)
            # Gone or changed since the scan: the object
            # that is there now was not compared, and stays.
            with contextlib.suppress(ObjectNotFoundError, PreconditionFailedError):
                with contextlib.suppress(
                    PreconditionFailedError
                ):  # an earlier attempt has copied it
                    self.store.copy_object(row.key, copy, condition=IfAbsent())
                self.store.delete_object(row.key, condition=IfMatch(row.etag))
                copies.append(copy)
        return copies


def repaired(
    known: PartitionMetadata, whole: Sequence[PinterestSegment], taken: Iterable[int]
) -> PartitionMetadata:
    """Return `_metadata` with an entry for each segment that is taken over, and without entries of
    segments that are not stored.

    Readable segments keep their entries, also above our `offset.wm`. A missing entry gets the
    smallest time among the later entries and the segment's upload, which is not before the
    segment's own: a reader that seeks by time begins too early at worst.

    Args:
        known: The stored `_metadata`.
        whole: The whole segments that are stored.
        taken: Base offsets of the segments that are taken over.
    """
    taken = set(taken)
    readable = {s.base_offset for s in whole if not s.missing or s.base_offset in taken}
    entries = [entry for entry in known.entries if entry.base_offset in readable]
    listed = {entry.base_offset for entry in entries}
    for segment in sorted(whole, key=lambda s: s.base_offset, reverse=True):
        base = segment.base_offset
        if base in taken and base not in listed:
            later = [entry.timestamp for entry in entries if entry.base_offset > base]
            time = min([segment.log.modified_ms, *later])
            entries.append(TimeIndexEntry(time, base))
    return known.with_entries(entries)
