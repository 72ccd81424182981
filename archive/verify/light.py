"""Check a partition's archive by one listing and its small objects.

Uploads may run meanwhile. `offset.wm` is read before the listing, and only segments below that
archive end offset are judged: they were committed, so the listing must show them. It is read again
after the listing: if the archive has changed otherwise than by commits (a quarantine, a
retirement), the listing may mix two states, and everything is read again.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

from sidetier.archive.objects.acknowledgements import (
    Acknowledgement,
    acknowledged_gaps,
    covering,
    read_acknowledgement,
)
from sidetier.archive.objects.chapters import read_chapter, stored_chapters
from sidetier.archive.objects.gaps import recorded_gaps
from sidetier.archive.objects.leader_epochs import StoredEpochHistory, read_epoch_history
from sidetier.archive.objects.log_check import wrong_place, wrong_size
from sidetier.archive.objects.notes import noted_next_offset
from sidetier.archive.objects.pinterest_metadata import StoredMetadata, read_metadata
from sidetier.archive.objects.segment import SegmentFiles, segment_files
from sidetier.archive.objects.watermark import (
    StoredWatermark,
    Watermark,
    is_noted,
    read_watermark,
)
from sidetier.archive.partition_listing import partition_rows
from sidetier.archive.verify.findings import Finding, FindingKind
from sidetier.archive.view import continues
from sidetier.segments.errors import (
    ArchiveConflictError,
    ChecksumMismatchError,
    MalformedObjectError,
    ObjectNotFoundError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.notes import TOPIC_ID_KEY
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange, TopicPartition
from sidetier.storage.encrypted_format import missing_marker
from sidetier.storage.port import ObjectHead, RemoteStorage

_READINGS: Final = 3
_MOST_HEADS: Final = 1000
"""Requests for the metadata of segments beside a gap, per partition."""
_HEADS_AT_ONCE: Final = 8
"""Requests for metadata at the same time, per partition."""
_NEW_MS: Final = 3_600_000
"""Age in ms up to which segments without `offset.wm` are the first ones of a new archive, and those
above it are being uploaded.
"""
_COMMIT_MS: Final = 600_000
"""The same for segments with an entry in `_metadata`, which is written right before `offset.wm`."""
_HIGHEST: Final = BaseOffset(2**63 - 1)

_DAMAGED_OBJECT: Final = (MalformedObjectError, ChecksumMismatchError)
"""It does not parse, or its adapter has compared it with the checksum of the upload."""
_ENTRY_BYTES: Final = {FileKind.INDEX: 8, FileKind.TIMEINDEX: 12}
_MISSING: Final = {
    FileKind.INDEX: FindingKind.MISSING_INDEX,
    FileKind.TIMEINDEX: FindingKind.MISSING_TIMEINDEX,
}
_DAMAGED: Final = {
    FileKind.INDEX: FindingKind.DAMAGED_INDEX,
    FileKind.TIMEINDEX: FindingKind.DAMAGED_TIMEINDEX,
}


@dataclass(frozen=True)
class PartitionObjects:
    """What one reading of a partition has returned.

    Attributes:
        topic_partition: The partition.
        watermark: `offset.wm` before the listing; None if there is none.
        segments: The segments of the listing, by ascending base offset.
        metadata: `_metadata`; None if it is absent or damaged.
        epochs: `leader-epoch-checkpoint`; None if it is damaged.
        gaps: Recorded gaps.
        acknowledged: The acknowledgements of these gaps.
        ends: Next offset of each segment, as far as it is known.
        missing_markers: Keys of the lost markers of encrypted segments, as far as they are known.
        wrong: How segments differ from their metadata, as far as it is known.
        damaged: Small objects that do not parse.
    """

    topic_partition: TopicPartition
    watermark: StoredWatermark | None
    segments: tuple[SegmentFiles, ...]
    metadata: StoredMetadata | None
    epochs: StoredEpochHistory | None
    gaps: tuple[OffsetRange, ...]
    acknowledged: Mapping[OffsetRange, Acknowledgement]
    ends: Mapping[BaseOffset, Offset] = field(default_factory=dict)
    missing_markers: Mapping[BaseOffset, str] = field(default_factory=dict)
    wrong: Mapping[BaseOffset, "WrongObject"] = field(default_factory=dict)
    damaged: tuple[Finding, ...] = ()

    def with_noted(self, noted: Iterable["NotedSegment"]) -> "PartitionObjects":
        """Return the objects with what is known from the metadata of these segments."""
        ends, markers, wrong = dict(self.ends), dict(self.missing_markers), dict(self.wrong)
        for segment in noted:
            if segment.next_offset is not None:
                ends[segment.base_offset] = segment.next_offset
            if segment.missing_marker is not None:
                markers[segment.base_offset] = segment.missing_marker
            wrong[segment.base_offset] = segment.wrong
        return replace(self, ends=ends, missing_markers=markers, wrong=wrong)

    @cached_property
    def names(self) -> frozenset[BaseOffset]:
        """Base offsets in `_metadata`."""
        entries = () if self.metadata is None else self.metadata.metadata.entries
        return frozenset(entry.base_offset for entry in entries)

    @property
    def topic_id(self) -> str | None:
        """Kafka's id of the archive's topic; None if `offset.wm` has none."""
        return None if self.watermark is None else self.watermark.watermark.topic_id

    @cached_property
    def judged(self) -> tuple[SegmentFiles, ...]:
        """The segments of the archive: from its start to the last committed one.

        Segments that readers ignore are left out: those below the start offset, and unnamed ones
        that begin within the segment before them.
        """
        if self.watermark is None:
            return ()
        mark = self.watermark.watermark
        if mark.pending is not None:
            return ()  # segments may be moving
        committed = [s for s in self.segments if s.base_offset <= mark.base_offset]
        first = _index_of_start(committed, mark.start_offset or Offset(0))
        return tuple(self._without_orphans(committed[first:]))

    def orphans(self) -> tuple[SegmentFiles, ...]:
        """Return the committed part's segments that are not part of the archive."""
        if self.watermark is None or self.watermark.watermark.pending is not None:
            return ()
        last = self.watermark.watermark.base_offset
        judged = {segment.base_offset for segment in self.judged}
        return tuple(
            segment
            for segment in self.segments
            if segment.base_offset <= last
            and segment.base_offset not in judged
            and FileKind.LOG in segment.files
        )

    def _without_orphans(self, segments: Iterable[SegmentFiles]) -> Iterator[SegmentFiles]:
        names, reached = self.names, Offset(0)
        for segment in segments:
            if segment.base_offset in names or not names:
                reached = self.ends.get(segment.base_offset, reached)
            elif segment.base_offset < reached:
                continue
            yield segment


WrongObject = tuple[tuple[FindingKind, str], ...]
"""How a `.log` differs from its metadata: kinds of findings, with their details."""


def wrong_object(head: ObjectHead, topic_id: str | None) -> WrongObject:
    """Compare the head of a `.log` with its metadata.

    Args:
        head: The head.
        topic_id: Kafka's id of the archive's topic; None if it is not known.
    """
    found = []
    size, place = wrong_size(head), wrong_place(head)
    if size is not None:
        found.append((FindingKind.WRONG_SIZE, size))
    if place is not None:
        found.append((FindingKind.WRONG_PLACE, place))
    stored = head.metadata.get(TOPIC_ID_KEY)
    if None not in (stored, topic_id) and stored != topic_id:
        detail = f"{head.key} has topic id {stored}, and the archive has {topic_id}"
        found.append((FindingKind.WRONG_PLACE, detail))
    return tuple(found)


class NotedSegment(NamedTuple):
    """What the metadata of a `.log`, or a chapter, tells about a segment.

    Attributes:
        base_offset: Its base offset.
        next_offset: The offset after its last; None if it is not noted.
        missing_marker: Key of the marker that it has lost; None if it has lost none.
        wrong: How it differs from its metadata.
    """

    base_offset: BaseOffset
    next_offset: Offset | None
    missing_marker: str | None = None
    wrong: WrongObject = ()


def _index_of_start(segments: Sequence[SegmentFiles], start: Offset) -> int:
    """Return the index of the segment that has the start offset; it may begin below it."""
    first = 0
    for index, segment in enumerate(segments):
        if segment.base_offset > start:
            break
        first = index
    return first


def read_partition(
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    before_more: Callable[[], object] = lambda: None,
) -> tuple[PartitionObjects, Sequence[Finding]]:
    """List a partition and read its small objects, in one consistent state.

    Requests: one listing (a request for every 1,000 objects), one for each of `offset.wm` (twice),
    `_metadata`, `leader-epoch-checkpoint`, the gap records and the chapters (and one for every
    1,000 segments), with gaps one for each acknowledgement and their listing, and one for each
    segment whose end decides about a finding.

    Args:
        store: The partition's store.
        layout: How keys are made.
        tp: The partition.
        before_more: Called in each reading, before more than the first page is listed. It may wait.

    Returns:
        The objects; and the finding about an `offset.wm` that does not parse, after which nothing
        else is judged.

    Raises:
        ArchiveConflictError: Segments were moved or deleted during each listing.
        StorageError: As `RemoteStorage` says.
    """
    key = layout.watermark_key(tp)
    for _ in range(_READINGS):
        try:
            before = read_watermark(store, key)
            objects = _read_once(store, layout, tp, before, before_more)
            after = read_watermark(store, key)
        except _DAMAGED_OBJECT as error:
            finding = Finding(FindingKind.DAMAGED_WATERMARK, tp, key, None, str(error))
            nothing = PartitionObjects(tp, None, (), None, None, (), {})
            return nothing, (finding,)
        if _is_one_state(before, after):
            return objects, ()
    raise ArchiveConflictError(
        f"{key} was changed otherwise than by commits during each of {_READINGS} listings; repeat "
        "the command"
    )


def _is_one_state(before: StoredWatermark | None, after: StoredWatermark | None) -> bool:
    if before is None or after is None:
        return before is after
    return before.etag == after.etag or is_same_archive(before.watermark, after.watermark)


def is_same_archive(old: Watermark, new: Watermark) -> bool:
    """Return whether the archive has changed by commits alone between two versions of `offset.wm`.

    A deletion at the start (retention on the store) also shows as segments that are gone.
    """
    return continues(old, new) and old.start_offset == new.start_offset


def _read_once(
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    before: StoredWatermark | None,
    before_more: Callable[[], object],
) -> PartitionObjects:
    prefix = layout.partition_prefix(tp)
    newest = _HIGHEST if before is None else before.watermark.base_offset
    segments = tuple(segment_files(partition_rows(store, prefix, newest, before_more), prefix))
    # After the listing: entries are added before `offset.wm`, so all committed ones are there.
    damaged = []
    metadata, epochs = None, None
    try:
        metadata = read_metadata(store, layout.metadata_key(tp))
    except _DAMAGED_OBJECT as error:
        where = layout.metadata_key(tp)
        damaged.append(Finding(FindingKind.DAMAGED_METADATA, tp, where, None, str(error)))
    try:
        epochs = read_epoch_history(store, layout, tp)
    except _DAMAGED_OBJECT as error:
        where = layout.epoch_checkpoint_key(tp)
        damaged.append(Finding(FindingKind.DAMAGED_EPOCHS, tp, where, None, str(error)))
    gaps = tuple(sorted(recorded_gaps(store, layout, [tp])[tp]))
    keys = acknowledged_gaps(store, layout, tp) if gaps else {}
    accepted = {gap: covering(gap, keys) for gap in gaps}
    acknowledged = {
        gap: read_acknowledgement(store, keys[around])
        for gap, around in accepted.items()
        if around is not None
    }
    objects = PartitionObjects(
        tp, before, segments, metadata, epochs, gaps, acknowledged, damaged=tuple(damaged)
    )
    objects = objects.with_noted(_chapter_entries(store, layout, tp, before, segments))
    return objects.with_noted(_deciding_heads(store, objects))


def _chapter_entries(
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    before: StoredWatermark | None,
    segments: Sequence[SegmentFiles],
) -> Iterator[NotedSegment]:
    """Yield what chapters repeat about segments, if they name the listed versions.

    Segments that were replaced since their chapter was written are looked at themselves.
    """
    if before is None:
        return
    replaced = []
    logs = {segment.base_offset: segment for segment in segments if FileKind.LOG in segment.files}
    topic_id = before.watermark.topic_id
    for chapter in stored_chapters(store, layout, tp, topic_id):
        try:
            entries = read_chapter(store, chapter)
        except _DAMAGED_OBJECT:
            continue  # readers work without chapters, too
        for entry in entries:
            segment = logs.get(entry.base_offset)
            if segment is None:
                continue
            if segment.log.etag != entry.etag:
                replaced.append(segment)
                continue
            marker = missing_marker(segment.log.key, segment.log.size, entry.size)
            yield NotedSegment(entry.base_offset, entry.next_offset, marker)
    yield from read_heads(store, replaced[:_MOST_HEADS], topic_id)


def _deciding_heads(store: RemoteStorage, objects: PartitionObjects) -> list[NotedSegment]:
    """Read the ends of the last segment, and of segments before a gap or a missing segment."""
    logs = [segment for segment in objects.judged if FileKind.LOG in segment.files]
    wanted = [logs[-1]] if logs else []
    stored, gap_ends = {log.base_offset for log in logs}, {int(gap.end) for gap in objects.gaps}
    missing = sorted(objects.names - stored)
    at = 0
    for log, following in pairwise(logs):
        while at < len(missing) and missing[at] <= log.base_offset:
            at += 1
        lost = at < len(missing) and missing[at] < following.base_offset
        unnamed = bool(objects.names) and following.base_offset not in objects.names
        if lost or unnamed or following.base_offset in gap_ends:
            wanted.append(log)
    unknown = [segment for segment in wanted if segment.base_offset not in objects.ends]
    return read_heads(store, unknown[:_MOST_HEADS], objects.topic_id)


def read_heads(
    store: RemoteStorage, segments: Sequence[SegmentFiles], topic_id: str | None
) -> list[NotedSegment]:
    """Return what the metadata of segments tells, one request each, several at once.

    Segments of Pinterest's uploader, which have none, and segments that are no longer stored have
    no next offset.

    Args:
        store: The partition's store.
        segments: The segments, as they were listed.
        topic_id: Kafka's id of the archive's topic; None if it is not known.
    """

    def noted(segment: SegmentFiles) -> NotedSegment:
        log = segment.log
        try:
            head = store.head_object(log.key)
        except ObjectNotFoundError:
            return NotedSegment(segment.base_offset, None)
        end = noted_next_offset(head)
        # The listed size of another version proves nothing.
        if head.etag != log.etag:
            return NotedSegment(segment.base_offset, end)
        marker = missing_marker(log.key, log.size, head.size)
        return NotedSegment(segment.base_offset, end, marker, wrong_object(head, topic_id))

    if len(segments) < _HEADS_AT_ONCE:
        return [noted(segment) for segment in segments]
    with ThreadPoolExecutor(_HEADS_AT_ONCE, "verify-heads") as helpers:
        return list(helpers.map(noted, segments))


def check_partition(objects: PartitionObjects, layout: ArchiveLayout, now_ms: int) -> list[Finding]:
    """Judge what a reading has returned. Pure.

    Args:
        objects: The result of `read_partition`, perhaps with more known ends.
        layout: How keys are made.
        now_ms: The store's or this host's clock, in ms since 1970.
    """
    checks = _Checks(objects, layout)
    if objects.watermark is None:
        return checks.without_watermark(now_ms)
    return checks.all(objects.watermark.watermark, now_ms)


@dataclass(frozen=True, slots=True)
class _Checks:
    objects: PartitionObjects
    layout: ArchiveLayout

    def all(self, mark: Watermark, now_ms: int) -> list[Finding]:
        """Judge a partition with `offset.wm`."""
        judged = self.objects.judged
        findings = [*self.objects.damaged, *self._gaps(mark)]
        if mark.pending is not None:
            key = self._watermark_key
            return [*findings, self._of(FindingKind.UNFINISHED_MOVE, key, detail=mark.pending)]
        if mark.next_offset is None:
            findings.append(self._of(FindingKind.NOT_TAKEN_OVER, self._watermark_key))
        findings += self._files(judged)
        findings += self._names(mark, judged)
        findings += self._watermark(mark, judged)
        findings += self._contiguity(mark, judged)
        findings += self._epochs(mark)
        findings += self._orphans()
        findings += self._above(mark, now_ms)
        return findings

    def without_watermark(self, now_ms: int) -> list[Finding]:
        """Judge a partition without `offset.wm`."""
        logs = [s for s in self.objects.segments if FileKind.LOG in s.files]
        if not logs:
            return list(self.objects.damaged)
        offsets = OffsetRange(Offset(logs[0].base_offset), Offset(logs[-1].base_offset + 1))
        oldest = min(segment.log.modified_ms for segment in logs)
        kind = FindingKind.NOT_COMMITTED
        if now_ms - oldest > _NEW_MS:
            kind = FindingKind.MISSING_WATERMARK
        detail = f"{len(logs)} segments are stored, from base offset {offsets.start} on"
        return [*self.objects.damaged, self._of(kind, self._watermark_key, offsets, detail)]

    @property
    def _watermark_key(self) -> str:
        return self.layout.watermark_key(self.objects.topic_partition)

    def _of(
        self,
        kind: FindingKind,
        key: str,
        offsets: OffsetRange | None = None,
        detail: str = "",
    ) -> Finding:
        return Finding(kind, self.objects.topic_partition, key, offsets, detail)

    def _key(self, base: int, kind: FileKind = FileKind.LOG) -> str:
        return self.layout.object_key(self.objects.topic_partition, BaseOffset(base), kind)

    def _gaps(self, mark: Watermark) -> Iterator[Finding]:
        for gap in self.objects.gaps:
            # A record above the archive end offset is written before `offset.wm`.
            if mark.next_offset is not None and gap.start >= mark.next_offset:
                continue
            # `sidetier gc` has moved the start: the records would be deleted by now.
            if mark.start_offset is not None and gap.end <= mark.start_offset:
                continue
            key = self.layout.gap_key(self.objects.topic_partition, gap.start, gap.end)
            accepted = self.objects.acknowledged.get(gap)
            kind, detail = FindingKind.RECORDED_GAP, f"{gap.size} offsets"
            if accepted is not None:
                kind = FindingKind.ACKNOWLEDGED_GAP
                by = "" if accepted.user is None else f" by {accepted.user}"
                why = "" if accepted.reason is None else f": {accepted.reason}"
                detail += f", acknowledged{by}{why}"
            yield self._of(kind, key, gap, detail)

    def _files(self, judged: Sequence[SegmentFiles]) -> Iterator[Finding]:
        for segment, end in _with_ends(judged, self.objects):
            offsets = OffsetRange(Offset(segment.base_offset), end)
            if FileKind.LOG not in segment.files:
                key = self._key(segment.base_offset)
                detail = "other files of this segment are stored"
                yield self._of(FindingKind.MISSING_LOG, key, offsets, detail)
                continue
            yield from self._log(segment, offsets)
            for kind, entry in _ENTRY_BYTES.items():
                row = segment.files.get(kind)
                if row is None:
                    key = self._key(segment.base_offset, kind)
                    yield self._of(_MISSING[kind], key, offsets)
                elif row.size % entry:
                    detail = f"{row.size} bytes are not a multiple of {entry}"
                    yield self._of(_DAMAGED[kind], row.key, offsets, detail)

    def _log(self, segment: SegmentFiles, offsets: OffsetRange) -> Iterator[Finding]:
        if segment.log.size == 0:
            yield self._of(FindingKind.EMPTY_LOG, segment.log.key, offsets)
        marker = self.objects.missing_markers.get(segment.base_offset)
        if marker is not None:
            detail = f"{segment.log.key} is listed with {segment.log.size} bytes"
            yield self._of(FindingKind.MISSING_MARKER, marker, offsets, detail)
        for kind, detail in self.objects.wrong.get(segment.base_offset, ()):
            yield self._of(kind, segment.log.key, offsets, detail)

    def _names(self, mark: Watermark, judged: Sequence[SegmentFiles]) -> Iterator[Finding]:
        """Compare the segments with the entries of `_metadata`."""
        key = self.layout.metadata_key(self.objects.topic_partition)
        logs = [segment.base_offset for segment in judged if FileKind.LOG in segment.files]
        if self.objects.metadata is None:
            if logs and not any(
                f.kind is FindingKind.DAMAGED_METADATA for f in self.objects.damaged
            ):
                yield self._of(FindingKind.MISSING_METADATA, key)
            return
        names, stored = self.objects.names, {segment.base_offset for segment in judged}
        for base in logs:
            if base not in names:
                offsets = OffsetRange(Offset(base), self.objects.ends.get(base, Offset(base + 1)))
                yield self._of(FindingKind.UNLISTED_SEGMENT, key, offsets, f"base offset {base}")
        for base in sorted(names - stored):
            # Entries of segments that were deleted at the start stay until the sidecar checks them.
            # The segment that offset.wm names has its own finding.
            if logs and logs[0] < base < mark.base_offset:
                at = bisect_right(logs, base)
                end = logs[at] if at < len(logs) else mark.base_offset
                offsets = OffsetRange(Offset(base), Offset(end))
                detail = "_metadata has an entry for it"
                yield self._of(FindingKind.MISSING_LOG, self._key(base), offsets, detail)

    def _watermark(self, mark: Watermark, judged: Sequence[SegmentFiles]) -> Iterator[Finding]:
        key, base = self._watermark_key, mark.base_offset
        stored = {s.base_offset for s in judged if FileKind.LOG in s.files}
        if base not in stored:
            offsets = OffsetRange(Offset(base), mark.next_offset or Offset(base + 1))
            detail = f"it names base offset {base}, but {self._key(base)} is not stored"
            yield self._of(FindingKind.WRONG_WATERMARK, key, offsets, detail)
            return
        end = self.objects.ends.get(base)
        if mark.next_offset is None or end is None:
            return
        if end > mark.next_offset:
            detail = f"next_offset is {mark.next_offset}, but the last segment ends at {end}"
            offsets = OffsetRange(mark.next_offset, end)
            yield self._of(FindingKind.WRONG_WATERMARK, key, offsets, detail)

    def _contiguity(self, mark: Watermark, judged: Sequence[SegmentFiles]) -> Iterator[Finding]:
        logs = [segment for segment in judged if FileKind.LOG in segment.files]
        if not logs:
            return
        first = Offset(logs[0].base_offset)
        if mark.start_offset is not None and mark.start_offset < first:
            for missing in _without_gaps(OffsetRange(mark.start_offset, first), self.objects.gaps):
                detail = f"start_offset in offset.wm is {mark.start_offset}"
                yield self._of(FindingKind.DELETED_START, self._watermark_key, missing, detail)
        reached: Offset | None = first
        for segment in logs:
            base = Offset(segment.base_offset)
            if reached is not None and base > reached:
                yield from self._missing(OffsetRange(reached, base))
            end = self.objects.ends.get(segment.base_offset)
            # An unknown end proves nothing, unless the segments before it reach further.
            reached = None if end is None else max(reached or end, end)
        if mark.next_offset is not None and reached is not None and reached < mark.next_offset:
            yield from self._missing(OffsetRange(reached, mark.next_offset))

    def _missing(self, offsets: OffsetRange) -> Iterator[Finding]:
        prefix = self.layout.partition_prefix(self.objects.topic_partition)
        for missing in _without_gaps(offsets, self.objects.gaps):
            yield self._of(FindingKind.MISSING_OFFSETS, prefix, missing, f"{missing.size} offsets")

    def _epochs(self, mark: Watermark) -> Iterator[Finding]:
        stored = self.objects.epochs
        if stored is None or mark.epoch_history is None:
            return
        key = self.layout.epoch_checkpoint_key(self.objects.topic_partition)
        if stored.etag is None:
            yield self._of(FindingKind.MISSING_EPOCHS, key)
        elif not is_noted(mark, stored.epoch_history):
            detail = "it does not have the checksum in offset.wm"
            yield self._of(FindingKind.WRONG_EPOCHS, key, None, detail)

    def _orphans(self) -> Iterator[Finding]:
        for segment in self.objects.orphans():
            offsets = OffsetRange(Offset(segment.base_offset), Offset(segment.base_offset + 1))
            yield self._of(FindingKind.ORPHAN_SEGMENT, segment.log.key, offsets)

    def _above(self, mark: Watermark, now_ms: int) -> Iterator[Finding]:
        above = [s for s in self.objects.segments if s.base_offset > mark.base_offset]
        old: list[SegmentFiles] = []
        new: list[SegmentFiles] = []
        for segment in above:
            is_old = mark.next_offset is not None and self._is_old(segment, now_ms)
            (old if is_old else new).append(segment)
        if old:
            named = sum(segment.base_offset in self.objects.names for segment in old)
            detail = (
                f"it ends at {mark.next_offset}; {len(old)} older segments are above it, "
                f"{named} of them with an entry in _metadata"
            )
            kind = FindingKind.STALE_WATERMARK
            yield self._of(kind, self._watermark_key, _bases_of(old), detail)
        if new:
            prefix = self.layout.partition_prefix(self.objects.topic_partition)
            detail = f"{len(new)} segments"
            yield self._of(FindingKind.NOT_COMMITTED, prefix, _bases_of(new), detail)

    def _is_old(self, segment: SegmentFiles, now_ms: int) -> bool:
        """Whether a sidecar that runs would have committed the segment by now."""
        if FileKind.LOG not in segment.files:
            return False  # an upload that was not finished
        limit = _COMMIT_MS if segment.base_offset in self.objects.names else _NEW_MS
        return now_ms - segment.log.modified_ms > limit


def _bases_of(segments: Sequence[SegmentFiles]) -> OffsetRange:
    first, last = segments[0].base_offset, segments[-1].base_offset
    return OffsetRange(Offset(first), Offset(last + 1))


def _with_ends(
    judged: Sequence[SegmentFiles], objects: PartitionObjects
) -> Iterator[tuple[SegmentFiles, Offset]]:
    """Yield each segment with its end, as far as it is known: else the base of the next one."""
    for index, segment in enumerate(judged):
        end = objects.ends.get(segment.base_offset)
        if end is None and index + 1 < len(judged):
            end = Offset(judged[index + 1].base_offset)
        yield segment, end or Offset(segment.base_offset + 1)


def _without_gaps(offsets: OffsetRange, gaps: Iterable[OffsetRange]) -> Iterator[OffsetRange]:
    """Yield the parts of a range that are in no gap. `gaps` ascend by start and may overlap."""
    start = offsets.start
    for gap in gaps:
        if gap.end <= start:
            continue
        if gap.start >= offsets.end:
            break
        if gap.start > start:
            yield OffsetRange(start, gap.start)
        start = gap.end
    if start < offsets.end:
        yield OffsetRange(start, offsets.end)
