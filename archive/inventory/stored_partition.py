"""Read what is stored of one partition.

Sidecars, `sidetier gc`, quarantines and retirements may write meanwhile. A commit writes
`_metadata` before `offset.wm`; every other change of an archive begins with a write of `offset.wm`
and ends with another one. So the order of the requests decides what a reading proves:

- `committed`: `offset.wm`, listing, `_metadata`. The listing shows, and `_metadata` names, every
  segment that was committed when `offset.wm` was read, unless the archive was cut or moved
  meanwhile. Readers notice that when an object is not as it was listed. `sidetier gc` makes each
  write and delete depend on what was read.
- `consistent`: as `committed`, then the other small objects, and `offset.wm` again. Everything is
  of one state of the archive. For verify and repair.
- `segments_then_etag`: `offset.wm`, `_metadata` and the heads of segments before it. If
  `offset.wm` still has the etag that it had before them, they are still the archive's. For the
  check before a trim.
- `segments`, `logs`, `rows`: a listing alone. A sidecar that adopts segments holds the etag of
  `offset.wm`, on which its next write depends. A quarantine reads `offset.wm` once more after the
  listing and before the first write of its plan. Inspection reads `offset.wm` before the listing:
  a sidecar may move it meanwhile, and `ls`, which lists many partitions first, lists a partition
  again whose `offset.wm` names a segment that it has not seen.
- `watermark`: right before a delete, or between the read and the write of `_metadata`, so that the
  condition of that request covers the time since.

Each method documents its requests.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, TypeVar

from sidetier.archive.inventory.contents import ArchiveEnd, Inventory, NotedSegment
from sidetier.archive.inventory.listing import partition_rows
from sidetier.archive.objects.acknowledgements import (
    acknowledged_gaps,
    covering,
    read_acknowledgement,
)
from sidetier.archive.objects.chapters import read_chapter, stored_chapters
from sidetier.archive.objects.gaps import Gaps, recorded_gaps
from sidetier.archive.objects.leader_epochs import StoredEpochHistory, read_epoch_history
from sidetier.archive.objects.log_check import mismatches
from sidetier.archive.objects.notes import noted_next_offset, noted_number
from sidetier.archive.objects.pinterest_metadata import named_segments, read_metadata
from sidetier.archive.objects.segment import SegmentFiles, derive_next_offset, segment_files
from sidetier.archive.objects.watermark import StoredWatermark, Watermark, read_watermark
from sidetier.archive.view import continues
from sidetier.segments.errors import (
    ArchiveConflictError,
    ArchiveError,
    ChecksumMismatchError,
    MalformedObjectError,
    ObjectNotFoundError,
    SegmentError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.notes import MAX_TIMESTAMP_KEY
from sidetier.segments.offsets import MAX_OFFSET, BaseOffset, Offset, OffsetRange, TopicPartition
from sidetier.storage.encrypted_format import missing_marker
from sidetier.storage.port import LISTED_AT_ONCE, ObjectSummary, RemoteStorage

T = TypeVar("T")

NO_WATERMARK: Final = "no offset.wm"
"""`ArchiveEnd.problem` of a partition without `offset.wm`: no segment of it is committed."""
DAMAGED_OBJECT: Final = (MalformedObjectError, ChecksumMismatchError)
"""It does not parse, or its adapter has compared it with the checksum of the upload."""

_READINGS: Final = 3
_MAX_HEADS: Final = 1000
"""Requests for the metadata of segments beside a gap, per partition."""
_HEADS_AT_ONCE: Final = 8
"""Requests for metadata at the same time, per partition."""
_SEARCH_WIDTHS: Final = tuple(1 << bits for bits in range(10, 63, 4))
"""Widths, in offsets, of the successive searches below an offset for its segment."""


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """The place of one partition's archive. Every method makes requests.

    All raise StorageError as `RemoteStorage`.
    """

    store: RemoteStorage
    layout: ArchiveLayout
    tp: TopicPartition

    @property
    def prefix(self) -> str:
        """Key prefix of the partition's objects. Ends with a slash."""
        return self.layout.partition_prefix(self.tp)

    # -- small objects, one request each -----------------------------------------------------------

    def watermark(self) -> StoredWatermark | None:
        """Read `offset.wm`; None if there is none.

        Raises:
            MalformedObjectError: It does not parse.
        """
        return read_watermark(self.store, self.layout.watermark_key(self.tp))

    def watermark_etag(self) -> str | None:
        """Return the etag of `offset.wm`; None if there is none. Does not read its contents."""
        try:
            return self.store.head_object(self.layout.watermark_key(self.tp)).etag
        except ObjectNotFoundError:
            return None

    def end(self) -> ArchiveEnd:
        """Read the archive end offset from `offset.wm`.

        A few more requests if it is of Pinterest's uploader and has no next offset. `problem`
        describes an object that is absent or does not parse.
        """
        try:
            stored = self.watermark()
        except ArchiveError as error:
            return ArchiveEnd(problem=str(error))
        if stored is None:
            return ArchiveEnd(problem=NO_WATERMARK)
        mark = stored.watermark
        try:
            following = mark.next_offset
            if following is None:
                following = self.next_offset_of(mark.base_offset)
        except (ArchiveError, SegmentError) as error:
            return ArchiveEnd(mark, problem=str(error))
        return ArchiveEnd(mark, following)

    def names(self) -> frozenset[BaseOffset]:
        """Read the base offsets in `_metadata`; none if there is none.

        Raises:
            MalformedObjectError: It does not parse.
        """
        return named_segments(self.store, self.layout.metadata_key(self.tp))

    def readable_names(self) -> frozenset[BaseOffset]:
        """As `names`, but none if `_metadata` does not parse."""
        try:
            return self.names()
        except MalformedObjectError:
            return frozenset()

    def epochs(self) -> StoredEpochHistory:
        """Read the stored leader epochs.

        Raises:
            MalformedObjectError: They do not parse.
        """
        return read_epoch_history(self.store, self.layout, self.tp)

    def gaps(self) -> Gaps:
        """List the recorded gaps."""
        return recorded_gaps(self.store, self.layout, [self.tp])[self.tp]

    def gaps_from(self, start: Offset) -> Gaps:
        """List the recorded gaps at or above an offset. A gap around it begins there."""
        gaps = self.gaps()
        return [OffsetRange(max(gap.start, start), gap.end) for gap in gaps if gap.end > start]

    # -- segments ----------------------------------------------------------------------------------

    def is_empty(self) -> bool:
        """Return whether no object of the partition is stored."""
        return next(iter(self.store.list_objects(self.prefix)), None) is None

    def rows(self, first: int = 0) -> Iterator[ObjectSummary]:
        """List the objects from the segment with this base offset on, page by page.

        Objects that are not a segment's follow behind all segments.
        """
        # Sorts before every file of that segment.
        after = f"{self.prefix}{first:020d}" if first else ""
        return self.store.list_objects(self.prefix, start_after=after)

    def segments(self, first: int = 0, end: int | None = None) -> Iterator[SegmentFiles]:
        """List the segments with base offsets from `first` to `end`, exclusive, page by page."""
        rows = self.rows(first)
        if end is not None:
            rows = takewhile(lambda row: row.key < f"{self.prefix}{end:020d}", rows)
        return segment_files(rows, self.prefix)

    def logs(self, first: int = 0, end: int | None = None) -> Iterator[SegmentFiles]:
        """As `segments`, but only those whose `.log` is stored."""
        return (files for files in self.segments(first, end) if FileKind.LOG in files.files)

    def holder(self, offset: int) -> tuple[SegmentFiles, Offset] | None:
        """Return the stored segment that holds an offset, with its next offset; None if none does.

        A few listings, and the requests of `next_offset_of`.
        """
        nearest = self._nearest_log(offset)
        if nearest is None:
            return None
        try:
            end = self.next_offset_of(nearest.base_offset)
        except (ArchiveError, SegmentError):
            return None  # deleted meanwhile, or damaged: no reader could read the offset from it
        return (nearest, end) if offset < end else None

    def next_offset_of(self, base: BaseOffset) -> Offset:
        """Return the next offset of a segment, from its metadata, or else its index and tail.

        One request, and a few more for a segment of Pinterest's uploader.

        Raises:
            MalformedObjectError: The segment, which `offset.wm` names, is not stored.
            DamagedSegmentError: Its tail does not consist of whole record batches.
        """
        return derive_next_offset(self.store, self.layout, self.tp, base)

    def noted(self, segment: SegmentFiles, topic_id: str | None = None) -> NotedSegment:
        """Read the metadata of a `.log`. One request.

        Nothing is known of a segment of Pinterest's uploader, and of one that is no longer stored.

        Args:
            segment: The segment, as it was listed.
            topic_id: Kafka's id of the archive's topic; None to not compare it.
        """
        log, base = segment.log, segment.base_offset
        try:
            head = self.store.head_object(log.key)
        except ObjectNotFoundError:
            return NotedSegment(base)
        end, largest = noted_next_offset(head), noted_number(head, MAX_TIMESTAMP_KEY)
        # The listed size of another version proves nothing.
        if head.etag != log.etag:
            return NotedSegment(base, end, largest)
        marker = missing_marker(log.key, log.size, head.size)
        return NotedSegment(base, end, largest, marker, tuple(mismatches(head, topic_id)))

    def heads(
        self, segments: Sequence[SegmentFiles], topic_id: str | None = None
    ) -> list[NotedSegment]:
        """As `noted`, for many segments, several at once."""
        if len(segments) < _HEADS_AT_ONCE:
            return [self.noted(segment, topic_id) for segment in segments]
        with ThreadPoolExecutor(_HEADS_AT_ONCE, "archive-heads") as helpers:
            return list(helpers.map(lambda segment: self.noted(segment, topic_id), segments))

    def segments_then_etag(
        self, first: BaseOffset, last: BaseOffset
    ) -> tuple[Mapping[BaseOffset, SegmentFiles], str | None]:
        """List the segments from `first` to `last`, and the etag of `offset.wm` after them.

        Returns:
            The segments, and the etag; None if `offset.wm` is missing.
        """
        mark = self.layout.watermark_key(self.tp)
        behind = f"{self.prefix}{last + 1:020d}"
        listed: list[ObjectSummary] = []
        etag: str | None = None
        for number, row in enumerate(self.rows(first), 1):
            if row.key < behind:
                listed.append(row)
            elif row.key == mark:  # it sorts behind the segments
                etag = row.etag
                break
            elif number % LISTED_AT_ONCE == 0:
                etag = self.watermark_etag()  # cheaper than the next page
                break
        return {files.base_offset: files for files in segment_files(listed, self.prefix)}, etag

    # -- inventories -------------------------------------------------------------------------------

    def committed(self, mark: StoredWatermark) -> Inventory:
        """List all objects and read `_metadata`, after the caller has read `offset.wm`.

        Requests: one for every 1,000 objects, one for `_metadata`, and one for each segment whose
        end decides about an orphan (usually none).

        Args:
            mark: `offset.wm`, as it was read before.

        Raises:
            MalformedObjectError: `_metadata` does not parse.
        """
        rows = partition_rows(self.store, self.prefix, mark.watermark.base_offset)
        segments = tuple(segment_files(rows, self.prefix))
        metadata = read_metadata(self.store, self.layout.metadata_key(self.tp))
        inventory = Inventory(self.tp, mark, segments, metadata)
        return inventory.with_noted(self.heads(inventory.undecided()))

    def consistent(self, before_more: Callable[[], object] = lambda: None) -> Inventory:
        """List all objects and read the small ones, in one state of the archive.

        Requests: one listing (a request for every 1,000 objects), one for each of `offset.wm`
        (twice), `_metadata`, `leader-epoch-checkpoint`, the gap records and the chapters (and one
        for every 1,000 segments), with gaps one for each acknowledgement and their listing, and one
        for each segment whose end decides about an orphan or about missing offsets.

        Uploads may run meanwhile: segments above the archive end offset may be incomplete. If the
        archive has changed otherwise than by commits (a quarantine, a retirement, a deletion at the
        start), the listing may mix two states, and everything is read again.

        Args:
            before_more: Called in each reading, before more than the first page is listed. It may
                wait.

        Raises:
            ArchiveConflictError: Segments were moved or deleted during each listing.
            MalformedObjectError, ChecksumMismatchError: `offset.wm` is damaged.
        """
        for _ in range(_READINGS):
            before = self.watermark()
            inventory = self._read_all(before, before_more)
            if _is_one_state(before, self.watermark()):
                return inventory
        raise ArchiveConflictError(
            f"{self.layout.watermark_key(self.tp)} was changed otherwise than by commits during "
            f"each of {_READINGS} listings; repeat the command"
        )

    def _read_all(
        self, before: StoredWatermark | None, before_more: Callable[[], object]
    ) -> Inventory:
        store, layout, tp = self.store, self.layout, self.tp
        newest = BaseOffset(MAX_OFFSET) if before is None else before.watermark.base_offset
        rows = partition_rows(store, self.prefix, newest, before_more)
        segments = tuple(segment_files(rows, self.prefix))
        # After the listing: entries are added before `offset.wm`, so all committed ones are there.
        damaged: dict[str, str] = {}
        key = layout.metadata_key(tp)
        metadata = _unless_damaged(damaged, key, lambda: read_metadata(store, key))
        epochs = _unless_damaged(damaged, layout.epoch_checkpoint_key(tp), self.epochs)
        gaps = tuple(sorted(self.gaps()))
        keys = acknowledged_gaps(store, layout, tp) if gaps else {}
        acknowledged = {
            gap: read_acknowledgement(store, keys[around])
            for gap in gaps
            if (around := covering(gap, keys)) is not None
        }
        inventory = Inventory(
            tp, before, segments, metadata, epochs, gaps, acknowledged, damaged=damaged
        )
        if before is None:
            return inventory
        topic_id = inventory.topic_id
        inventory = inventory.with_noted(self._noted_in_chapters(inventory))
        inventory = inventory.with_noted(self.heads(inventory.undecided()[:_MAX_HEADS], topic_id))
        return inventory.with_noted(self.heads(inventory.unproven()[:_MAX_HEADS], topic_id))

    def _noted_in_chapters(self, inventory: Inventory) -> Iterator[NotedSegment]:
        """Yield what chapters repeat about segments, if they name the listed versions.

        Of segments that were replaced since their chapter was written, the metadata is read.
        """
        replaced = []
        logs = {s.base_offset: s for s in inventory.segments if FileKind.LOG in s.files}
        topic_id = inventory.topic_id
        for chapter in stored_chapters(self.store, self.layout, self.tp, topic_id):
            try:
                entries = read_chapter(self.store, chapter)
            except DAMAGED_OBJECT:
                continue  # readers work without chapters, too
            for entry in entries:
                segment = logs.get(entry.base_offset)
                if segment is None:
                    continue
                if segment.log.etag != entry.etag:
                    replaced.append(segment)
                    continue
                marker = missing_marker(segment.log.key, segment.log.size, entry.size)
                largest = entry.largest_timestamp
                yield NotedSegment(entry.base_offset, entry.next_offset, largest, marker)
        yield from self.heads(replaced[:_MAX_HEADS], topic_id)

    def _nearest_log(self, offset: int) -> SegmentFiles | None:
        """Return the `.log` with the highest base offset at or below the offset.

        Stores list keys only in ascending order. The search therefore starts a short distance below
        the offset, and increases the distance while it finds no `.log`.
        """
        for width in _SEARCH_WIDTHS:
            below = max(0, offset - width)
            nearest = _last(self.logs(below, offset + 1))
            if nearest is not None or below == 0:
                return nearest
        return None


def is_same_archive(old: Watermark, new: Watermark) -> bool:
    """Return whether the archive has changed by commits alone between two versions of `offset.wm`.

    A deletion at the start (retention on the store) also shows as segments that are gone.
    """
    return continues(old, new) and old.start_offset == new.start_offset


def _is_one_state(before: StoredWatermark | None, after: StoredWatermark | None) -> bool:
    if before is None or after is None:
        return before is after
    return before.etag == after.etag or is_same_archive(before.watermark, after.watermark)


def _unless_damaged(damaged: dict[str, str], key: str, read: Callable[[], T]) -> T | None:
    try:
        return read()
    except DAMAGED_OBJECT as error:
        damaged[key] = str(error)
        return None


def _last(segments: Iterable[SegmentFiles]) -> SegmentFiles | None:
    last = None
    for segment in segments:
        last = segment
    return last
