"""Delete the oldest segments of a partition's archive. A running sidecar may write meanwhile.

Order of the durable steps, and what a kill right after each leaves:

1. `offset.wm` gets the new start offset, with a conditional put over the version that was read. It
   is the commit: from now on, readers of Sidetier take offsets below it as out of range. A kill
   leaves segments below the start, which no reader of Sidetier reads, and which Pinterest's
   consumer still reads, because `_metadata` names them and all are stored.
2. `_metadata` loses the entries below the start, with a conditional put. Pinterest's consumer
   skips segments without an entry, so it does not miss the objects that are deleted next. A kill
   leaves segments that no reader reads. A sidecar that is late with the commit of such a segment
   may add its entry again, and the next collection removes it.
3. The `.log` objects below the start are deleted, oldest first, each only in the version that was
   listed. A kill leaves some of them, each with its indexes, so no listing shows a `.log` without
   them.
4. The `.txnindex` and `.snapshot` objects of these segments are deleted in the same way.
5. Their `.index` and `.timeindex` objects are deleted, many with one request. A kill at 4 or 5
   leaves files without a `.log`, which no reader regards as a segment.
6. Chapters that end at or below the start are deleted. A kill leaves chapters of deleted segments;
   readers look up segments in chapters, not the reverse.

The next collection finishes: it deletes all that is below the start, whether it has moved the start
itself or not. `offset.wm`, `leader-epoch-checkpoint` and gap records are never deleted, nor is the
segment that `offset.wm` names, nor one of a late sidecar with offsets of a recorded gap at or above
the start, which may be their only copy.

A sidecar whose conditional put is refused because of step 1 repeats it with the new start. If a
sidecar writes first, the collection reads the archive again and decides anew.

A delete may take effect late, after a quarantine from below the new start, or a retirement, and
after a sidecar has stored a new segment at the same base offset. Just before each batch of deletes,
`offset.wm` still begins at or above the deleted segments, in the same topic id. For deletes that
are under way at that time, this remains:

- `.log`, `.txnindex`, `.snapshot`: a store that evaluates the condition together with the delete
  (S3, HDFS, the file system) deletes no other version. On S3, equal bytes are the same version. A
  `.log` of other records never has equal bytes; one with the same records has them only if a second
  unclean election brings these records back. `.snapshot`s without producers can be equal; only
  restores read them. Google Cloud Storage, Azure, and S3-compatible stores that ignore If-Match on
  a delete, compare the version with a request just before: the time between the two requests
  remains.
- `.index`, `.timeindex`: the delete has no condition, so that a thousand of them cost one request.
  An index of the new segment can be deleted. Its records stay. Readers of Sidetier scan the
  segment then, and Pinterest's consumer cannot read it without its `.index` until
  `sidetier repair` builds the index again from the `.log`. If the sidecar that stored the `.log`
  dies before its commit, the next leader's sidecar stores an empty index and commits the segment.
- If the divergence is exactly at the end of a deleted segment, `offset.wm` names this segment after
  the quarantine, and the segment may be missing. No record is: the archive begins and ends at the
  divergence until the next commit.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, TypeVar

from sidetier.archive.gc.listing import (
    NotCollectableError,
    has_offsets_of,
    list_archive,
)
from sidetier.archive.gc.retention import (
    Expired,
    Need,
    Retention,
    SegmentFacts,
    expired_segments,
    other_topic,
)
from sidetier.archive.inventory.contents import Inventory
from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.chapters import (
    SEGMENTS,
    ChapterEntry,
    read_chapter,
    stored_chapters,
)
from sidetier.archive.objects.gaps import write_gap
from sidetier.archive.objects.notes import noted_next_offset, noted_number
from sidetier.archive.objects.pinterest_metadata import (
    PartitionMetadata,
    encode_metadata,
    read_metadata,
)
from sidetier.archive.objects.segment import SegmentFiles, StoredLog
from sidetier.archive.objects.starts import compare_start
from sidetier.archive.objects.watermark import (
    StoredWatermark,
    Watermark,
    WatermarkConflictError,
    write_watermark,
)
from sidetier.archive.pinterest import Ends
from sidetier.archive.view import ArchiveView
from sidetier.segments.errors import (
    ArchiveConflictError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.notes import MAX_TIMESTAMP_KEY
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import LISTED_AT_ONCE, IfMatch, ObjectSummary, PutOptions, RemoteStorage

_TRIES: Final = 10
_T = TypeVar("_T")
_INDEXES: Final = (FileKind.INDEX.value, FileKind.TIMEINDEX.value)
"""Files that `sidetier repair` builds again from the `.log`."""

ForEach = Callable[[Callable[[ObjectSummary], None], Iterable[ObjectSummary]], Iterable[None]]
"""`map`, or the `map` of an executor."""

Wait = Callable[[int], None]
"""Waits before a number of objects is deleted, to keep to a rate."""


@dataclass(frozen=True, slots=True)
class Collectable:
    """What a collection deletes, or has deleted, of one partition.

    Attributes:
        start: The start of the archive before; None if nothing is archived.
        new_start: The start of the archive afterwards.
        segments: Number of `.log` objects that are deleted.
        size_bytes: Size of all objects that are deleted.
        reason: Why not more is deleted.
    """

    start: Offset | None
    new_start: Offset | None
    segments: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Survey:
    """An archive as it was read, and what is past its retention.

    Attributes:
        mark: `offset.wm`.
        view: The archive.
        expired: The segments past their retention.
        lowest: Base offset of the first segment that is kept. It can be below the start of the
            archive, which may begin within its first segment.
        below: All files of segments with lower base offsets, by key.
        has_old_entries: Whether `_metadata` names segments with lower base offsets.
    """

    mark: StoredWatermark
    view: ArchiveView
    expired: Expired
    lowest: BaseOffset
    below: tuple[ObjectSummary, ...] = ()
    has_old_entries: bool = False

    @property
    def result(self) -> Collectable:
        logs = sum(row.key.endswith(FileKind.LOG.value) for row in self.below)
        size = sum(row.size for row in self.below)
        return Collectable(self.view.start, self.expired.start, logs, size, self.expired.reason)


class PartitionCollector:
    """Deletes segments of one partition that are past their retention.

    Args:
        store: The partition's store.
        layout: How keys are made.
        tp: The partition.
        retention: The limits.
        needs: What the consumers still need.
        wait: Called before each batch of deletes.
        for_each: `map`, or the `map` of an executor, but not of the one on which `collect` runs:
            sets how many conditional deletes are made at once.
        now_ms: Returns the present time in ms since 1970.
    """

    def __init__(  # noqa: PLR0913 - only the first four are required
        self,
        store: RemoteStorage,
        layout: ArchiveLayout,
        tp: TopicPartition,
        retention: Retention,
        *,
        needs: Iterable[Need] = (),
        wait: Wait = lambda _: None,
        for_each: ForEach = map,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._store = store
        self._layout = layout
        self._tp = tp
        self._stored = StoredPartition(store, layout, tp)
        self._retention = retention
        self._needs = tuple(needs)
        self._wait = wait
        self._for_each = for_each
        self._now_ms = now_ms

    def survey(self) -> Collectable:
        """Return what `collect` would delete. Writes nothing.

        Raises:
            NotCollectableError: The archive is in a state in which nothing may be deleted.
            MalformedObjectError: `offset.wm` or `_metadata` does not parse.
        """
        return self._survey().result

    def collect(self) -> Collectable:
        """Delete what is past its retention, and what an earlier collection has left.

        Raises:
            ArchiveConflictError: Other processes changed the archive each time. The same call can
                succeed later, as after every other error.
            NotCollectableError, MalformedObjectError, StorageError: As `survey`.
        """
        survey = self._move_start()
        # Also where the survey has shown no old entry: `sidetier repair`, or a sidecar that writes
        # a missing `_metadata`, may have added entries of these segments since.
        if survey.has_old_entries or survey.below:
            self._forget_entries(survey)
        rows = survey.below
        logs = [row for row in rows if row.key.endswith(FileKind.LOG.value)]
        indexes = [row for row in rows if row.key.endswith(_INDEXES)]
        others = [row for row in rows if not row.key.endswith((FileKind.LOG.value, *_INDEXES))]
        self._delete_versions(logs, survey)
        self._delete_versions(others, survey)
        self._delete_indexes(indexes, survey)
        self._delete_chapters(survey)
        return survey.result

    def _move_start(self) -> _Survey:
        """Write the new start offset into `offset.wm`, if it moves."""
        key = self._layout.watermark_key(self._tp)
        for _ in range(_TRIES):
            try:
                survey = self._survey()
                if survey.expired.segments:
                    self._settle_start(survey.mark.watermark)
                    moved = replace(survey.mark.watermark, start_offset=survey.expired.start)
                    write_watermark(self._store, key, moved, survey.mark.etag)
            except (WatermarkConflictError, ObjectNotFoundError, ArchiveConflictError):
                # A sidecar has committed or recorded a start, or another collection has deleted a
                # listed segment.
                continue
            return survey
        raise ArchiveConflictError(f"{key} was changed by others {_TRIES} times in a row")

    def _settle_start(self, watermark: Watermark) -> None:
        """Compare the recorded start with the one that the archive began with.

        If a sidecar compared it later, it would take what is collected now for a gap.
        """

        def missed(gap: OffsetRange) -> None:
            writer = watermark.broker_id, watermark.leader_epoch
            write_gap(self._store, self._layout, self._tp, gap, *writer)

        start = watermark.start_offset or Offset(0)
        compare_start(self._store, self._layout, self._tp, start, watermark.topic_id, missed)

    def _survey(self) -> _Survey:
        mark, inventory = list_archive(self._stored)
        view = inventory.view(self._stored.prefix)
        # In the version of `offset.wm` over which the new start is written: the archive may have
        # been retired, and begun anew, since the progress of the consumers was read.
        for need in self._needs:
            reason = other_topic(need, mark.watermark.topic_id)
            if reason is not None:
                raise NotCollectableError(reason)
        # Without a committed segment there is nothing that can be kept behind a new start.
        if not view.logs:
            nothing = Expired(0, view.start, "nothing is archived")
            return _Survey(mark, view, nothing, BaseOffset(0))
        expired = expired_segments(
            view.logs, view.start, self._retention, self._facts(view), self._needs, self._now_ms()
        )
        lowest = view.logs[expired.segments].base_offset
        below = tuple(
            row
            for segment in self._deleted(inventory, lowest, expired.start)
            for row in segment.files.values()
        )
        has_old_entries = any(base < lowest for base in inventory.names)
        return _Survey(mark, view, expired, lowest, below, has_old_entries)

    def _deleted(
        self, inventory: Inventory, lowest: BaseOffset, start: Offset
    ) -> list[SegmentFiles]:
        """Return the segments below the first that is kept, except those with offsets of a gap."""
        segments = inventory.segments
        below = list(takewhile(lambda segment: segment.base_offset < lowest, segments))
        members = {segment.base_offset for segment in inventory.logs}
        # Of a killed collection, or of a late sidecar. Usually there is none.
        left = [
            segment
            for segment in below
            if segment.base_offset not in members and FileKind.LOG in segment.files
        ]
        gaps = self._stored.gaps_from(start) if left else []
        kept = {
            segment.base_offset
            for segment in left
            if gaps and has_offsets_of(self._store, segment.stored_log, gaps)
        }
        return [segment for segment in below if segment.base_offset not in kept]

    def _facts(self, view: ArchiveView) -> Callable[[StoredLog], SegmentFacts]:
        """Return a function that reads the metadata of a segment, many from chapters at once."""
        ends = Ends(self._store)
        noted = self._chapter_entries(view) if len(view.logs) >= SEGMENTS else {}

        def facts(log: StoredLog) -> SegmentFacts:
            entry = noted.get(log.base_offset)
            if entry is not None and (entry.etag, entry.size) == (log.row.etag, log.row.size):
                end, largest = entry.next_offset, entry.largest_timestamp
            else:
                head = self._store.head_object(log.key)
                noted_end = noted_next_offset(head)
                end = ends(log) if noted_end is None else noted_end
                largest = noted_number(head, MAX_TIMESTAMP_KEY)
            return SegmentFacts(end, log.row.modified_ms if largest is None else largest)

        return facts

    def _chapter_entries(self, view: ArchiveView) -> dict[BaseOffset, ChapterEntry]:
        # Read lazily, only as far as the retention is likely to go: the oldest chapters.
        entries: dict[BaseOffset, ChapterEntry] = {}
        topic_id = view.watermark.topic_id
        for chapter in stored_chapters(self._store, self._layout, self._tp, topic_id):
            if chapter.end <= view.start:
                continue
            added = read_chapter(self._store, chapter)
            entries.update((entry.base_offset, entry) for entry in added)
            if self._retention.size is None and added and self._is_young(added[-1]):
                break
        return entries

    def _is_young(self, entry: ChapterEntry) -> bool:
        age = self._retention.age or 0.0
        return (
            entry.largest_timestamp is not None
            and self._now_ms() - entry.largest_timestamp <= age * 1000
        )

    def _forget_entries(self, survey: _Survey) -> None:
        """Remove the entries of segments below the first that is kept from `_metadata`."""
        key = self._layout.metadata_key(self._tp)
        for _ in range(_TRIES):
            stored = read_metadata(self._store, key)
            if stored is None:
                return
            entries = stored.metadata.entries
            kept = [entry for entry in entries if entry.base_offset >= survey.lowest]
            if len(kept) == len(entries):
                return
            # After `_metadata` was read: a retirement or a quarantine writes `offset.wm` before it
            # changes `_metadata`, so the condition of the put covers the time from here on. The
            # entries of an archive that has begun since are not removed.
            self._expect_unchanged(survey)
            data = encode_metadata(PartitionMetadata(self._tp, tuple(kept)))
            try:
                self._store.put_object(
                    key, BytesBody(data), PutOptions(condition=IfMatch(stored.etag))
                )
            except PreconditionFailedError:
                continue  # a sidecar has added an entry, or our own attempt has succeeded
            return
        raise ArchiveConflictError(f"{key} was changed by others {_TRIES} times in a row")

    def _delete_versions(self, rows: Sequence[ObjectSummary], survey: _Survey) -> None:
        """Delete objects in the versions that were listed."""
        for batch in _batches(rows):
            self._begin_batch(len(batch), survey)
            try:
                for _ in self._for_each(self._delete_version, batch):
                    pass
            except PreconditionFailedError as error:
                raise self._replaced(survey) from error

    def _delete_version(self, row: ObjectSummary) -> None:
        self._store.delete_object(row.key, condition=IfMatch(row.etag))

    def _delete_indexes(self, rows: Sequence[ObjectSummary], survey: _Survey) -> None:
        for batch in _batches(rows):
            self._begin_batch(len(batch), survey)
            self._store.delete_objects([row.key for row in batch])

    def _begin_batch(self, objects: int, survey: _Survey) -> None:
        self._wait(objects)
        # No sidecar replaces a `.log`: another object comes to such a key only after a retirement,
        # or a quarantine from below the new start. Both write `offset.wm` first, and end with a
        # lower start or another topic id. See the module for deletes that are under way meanwhile.
        self._expect_unchanged(survey)

    def _expect_unchanged(self, survey: _Survey) -> None:
        now = self._stored.watermark()
        if now is None or not _still_begins_at(now.watermark, survey):
            raise self._replaced(survey)

    def _replaced(self, survey: _Survey) -> ArchiveConflictError:
        return ArchiveConflictError(
            f"{self._stored.prefix}: the archive was replaced while segments "
            f"below offset {survey.expired.start} were being deleted (a quarantine, or a "
            "retirement); no further object is deleted"
        )

    def _delete_chapters(self, survey: _Survey) -> None:
        topic_id = survey.mark.watermark.topic_id
        chapters = stored_chapters(self._store, self._layout, self._tp, topic_id)
        old = [chapter.key for chapter in chapters if chapter.end <= survey.expired.start]
        for batch in _batches(old):
            self._store.delete_objects(batch)


def _batches(objects: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (objects[at : at + LISTED_AT_ONCE] for at in range(0, len(objects), LISTED_AT_ONCE))


def _still_begins_at(now: Watermark, survey: _Survey) -> bool:
    old = survey.mark.watermark
    start = survey.expired.start if survey.expired.segments else old.start_offset
    return (
        now.pending is None
        and now.topic_id == old.topic_id
        and now.next_offset is not None
        and now.next_offset >= (old.next_offset or 0)
        and (now.start_offset or 0) >= (start or 0)
    )
