"""Check a partition's archive by one listing and its small objects.

Only segments below the archive end offset are judged: they were committed, so the listing must show
them.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sidetier.archive.inventory.contents import Inventory
from sidetier.archive.inventory.stored_partition import DAMAGED_OBJECT, StoredPartition
from sidetier.archive.objects.log_check import Mismatch
from sidetier.archive.objects.segment import SegmentFiles
from sidetier.archive.objects.watermark import Watermark, is_noted
from sidetier.archive.verify.findings import Finding, FindingKind
from sidetier.segments.indexes import INDEX_ENTRY, TIMEINDEX_ENTRY
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange

_NEW_MS: Final = 3_600_000
"""Age in ms up to which segments without `offset.wm` are the first ones of a new archive, and those
above it are being uploaded.
"""
_COMMIT_MS: Final = 600_000
"""The same for segments with an entry in `_metadata`, which is written right before `offset.wm`."""
_ENTRY_BYTES: Final = {
    FileKind.INDEX: INDEX_ENTRY.size,
    FileKind.TIMEINDEX: TIMEINDEX_ENTRY.size,
}
_MISSING: Final = {
    FileKind.INDEX: FindingKind.MISSING_INDEX,
    FileKind.TIMEINDEX: FindingKind.MISSING_TIMEINDEX,
}
_DAMAGED: Final = {
    FileKind.INDEX: FindingKind.DAMAGED_INDEX,
    FileKind.TIMEINDEX: FindingKind.DAMAGED_TIMEINDEX,
}


def read_partition(
    stored: StoredPartition, before_more: Callable[[], object] = lambda: None
) -> tuple[Inventory, Sequence[Finding]]:
    """Read a partition in one consistent state. Requests and `before_more`: as `consistent`.

    Returns:
        The inventory; and the finding about an `offset.wm` that does not parse, after which nothing
        else is judged.

    Raises:
        ArchiveConflictError: Segments were moved or deleted during each listing.
    """
    try:
        return stored.consistent(before_more), ()
    except DAMAGED_OBJECT as error:
        tp, key = stored.tp, stored.layout.watermark_key(stored.tp)
        return Inventory(tp), (Finding(FindingKind.DAMAGED_WATERMARK, tp, key, None, str(error)),)


def kind_of(found: Mismatch) -> FindingKind:
    """Return the kind of the finding about a `.log` that contradicts its metadata."""
    return FindingKind.WRONG_SIZE if found.kind == "size" else FindingKind.WRONG_PLACE


def check_partition(inventory: Inventory, layout: ArchiveLayout, now_ms: int) -> list[Finding]:
    """Judge what a reading has returned. Pure.

    Args:
        inventory: The result of `read_partition`, perhaps with more known ends.
        layout: How keys are made.
        now_ms: The store's or this host's clock, in ms since 1970.
    """
    checks = _Checks(inventory, layout)
    if inventory.watermark is None:
        return checks.without_watermark(now_ms)
    return checks.all(inventory.watermark.watermark, now_ms)


@dataclass(frozen=True, slots=True)
class _Checks:
    inventory: Inventory
    layout: ArchiveLayout

    def all(self, mark: Watermark, now_ms: int) -> list[Finding]:
        """Judge a partition with `offset.wm`."""
        findings = [*self._damaged(), *self._gaps(mark)]
        if mark.pending is not None:
            key = self._watermark_key
            return [*findings, self._of(FindingKind.UNFINISHED_MOVE, key, detail=mark.pending)]
        if mark.next_offset is None:
            findings.append(self._of(FindingKind.NOT_TAKEN_OVER, self._watermark_key))
        findings += self._files()
        findings += self._names(mark)
        findings += self._watermark(mark)
        findings += self._contiguity(mark)
        findings += self._epochs(mark)
        findings += self._orphans()
        findings += self._above(mark, now_ms)
        return findings

    def without_watermark(self, now_ms: int) -> list[Finding]:
        """Judge a partition without `offset.wm`."""
        logs = [s for s in self.inventory.segments if FileKind.LOG in s.files]
        if not logs:
            return self._damaged()
        offsets = OffsetRange(Offset(logs[0].base_offset), Offset(logs[-1].base_offset + 1))
        oldest = min(segment.log.modified_ms for segment in logs)
        kind = FindingKind.NOT_COMMITTED
        if now_ms - oldest > _NEW_MS:
            kind = FindingKind.MISSING_WATERMARK
        detail = f"{len(logs)} segments are stored, from base offset {offsets.start} on"
        return [*self._damaged(), self._of(kind, self._watermark_key, offsets, detail)]

    @property
    def _watermark_key(self) -> str:
        return self.layout.watermark_key(self.inventory.topic_partition)

    def _of(
        self,
        kind: FindingKind,
        key: str,
        offsets: OffsetRange | None = None,
        detail: str = "",
    ) -> Finding:
        return Finding(kind, self.inventory.topic_partition, key, offsets, detail)

    def _key(self, base: int, kind: FileKind = FileKind.LOG) -> str:
        return self.layout.object_key(self.inventory.topic_partition, BaseOffset(base), kind)

    def _damaged(self) -> list[Finding]:
        metadata = self.layout.metadata_key(self.inventory.topic_partition)
        return [
            self._of(
                FindingKind.DAMAGED_METADATA if key == metadata else FindingKind.DAMAGED_EPOCHS,
                key,
                detail=reason,
            )
            for key, reason in self.inventory.damaged.items()
        ]

    def _gaps(self, mark: Watermark) -> Iterator[Finding]:
        for gap in self.inventory.gaps:
            # A record above the archive end offset is written before `offset.wm`.
            if mark.next_offset is not None and gap.start >= mark.next_offset:
                continue
            # `sidetier gc` has moved the start: the records would be deleted by now.
            if mark.start_offset is not None and gap.end <= mark.start_offset:
                continue
            key = self.layout.gap_key(self.inventory.topic_partition, gap.start, gap.end)
            accepted = self.inventory.acknowledged.get(gap)
            kind, detail = FindingKind.RECORDED_GAP, f"{gap.size} offsets"
            if accepted is not None:
                kind = FindingKind.ACKNOWLEDGED_GAP
                by = "" if accepted.user is None else f" by {accepted.user}"
                why = "" if accepted.reason is None else f": {accepted.reason}"
                detail += f", acknowledged{by}{why}"
            yield self._of(kind, key, gap, detail)

    def _files(self) -> Iterator[Finding]:
        for segment, end in self.inventory.with_ends():
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
        noted = self.inventory.noted.get(segment.base_offset)
        if noted is None:
            return
        if noted.missing_marker is not None:
            detail = f"{segment.log.key} is listed with {segment.log.size} bytes"
            yield self._of(FindingKind.MISSING_MARKER, noted.missing_marker, offsets, detail)
        for found in noted.mismatches:
            yield self._of(kind_of(found), segment.log.key, offsets, found.text)

    def _names(self, mark: Watermark) -> Iterator[Finding]:
        """Compare the segments with the entries of `_metadata`."""
        key = self.layout.metadata_key(self.inventory.topic_partition)
        logs = [segment.base_offset for segment in self.inventory.logs]
        if self.inventory.metadata is None:
            if logs and key not in self.inventory.damaged:
                yield self._of(FindingKind.MISSING_METADATA, key)
            return
        names = self.inventory.names
        for base in logs:
            if base not in names:
                offsets = OffsetRange(Offset(base), self.inventory.end_of(base) or Offset(base + 1))
                yield self._of(FindingKind.UNLISTED_SEGMENT, key, offsets, f"base offset {base}")
        # A segment of which other files are stored has its own finding.
        for base in sorted(names - {segment.base_offset for segment in self.inventory.members}):
            # Entries of segments that were deleted at the start stay until the sidecar checks them.
            # The segment that offset.wm names has its own finding.
            if logs and logs[0] < base < mark.base_offset:
                at = bisect_right(logs, base)
                end = logs[at] if at < len(logs) else mark.base_offset
                offsets = OffsetRange(Offset(base), Offset(end))
                detail = "_metadata has an entry for it"
                yield self._of(FindingKind.MISSING_LOG, self._key(base), offsets, detail)

    def _watermark(self, mark: Watermark) -> Iterator[Finding]:
        key, base, logs = self._watermark_key, mark.base_offset, self.inventory.logs
        if not logs or logs[-1].base_offset != base:
            offsets = OffsetRange(Offset(base), mark.next_offset or Offset(base + 1))
            detail = f"it names base offset {base}, but {self._key(base)} is not stored"
            yield self._of(FindingKind.WRONG_WATERMARK, key, offsets, detail)
            return
        end = self.inventory.end_of(base)
        if mark.next_offset is None or end is None:
            return
        if end > mark.next_offset:
            detail = f"next_offset is {mark.next_offset}, but the last segment ends at {end}"
            offsets = OffsetRange(mark.next_offset, end)
            yield self._of(FindingKind.WRONG_WATERMARK, key, offsets, detail)

    def _contiguity(self, mark: Watermark) -> Iterator[Finding]:
        for missing in self.inventory.deleted_start():
            detail = f"start_offset in offset.wm is {mark.start_offset}"
            yield self._of(FindingKind.DELETED_START, self._watermark_key, missing, detail)
        prefix = self.layout.partition_prefix(self.inventory.topic_partition)
        for missing in self.inventory.missing_offsets():
            yield self._of(FindingKind.MISSING_OFFSETS, prefix, missing, f"{missing.size} offsets")

    def _epochs(self, mark: Watermark) -> Iterator[Finding]:
        stored = self.inventory.epochs
        if stored is None or mark.epoch_history is None:
            return
        key = self.layout.epoch_checkpoint_key(self.inventory.topic_partition)
        if stored.etag is None:
            yield self._of(FindingKind.MISSING_EPOCHS, key)
        elif not is_noted(mark, stored.epoch_history):
            detail = "it does not have the checksum in offset.wm"
            yield self._of(FindingKind.WRONG_EPOCHS, key, None, detail)

    def _orphans(self) -> Iterator[Finding]:
        for segment in self.inventory.orphans:
            offsets = OffsetRange(Offset(segment.base_offset), Offset(segment.base_offset + 1))
            yield self._of(FindingKind.ORPHAN_SEGMENT, segment.log.key, offsets)

    def _above(self, mark: Watermark, now_ms: int) -> Iterator[Finding]:
        old: list[SegmentFiles] = []
        new: list[SegmentFiles] = []
        for segment in self.inventory.above_end:
            is_old = mark.next_offset is not None and self._is_old(segment, now_ms)
            (old if is_old else new).append(segment)
        if old:
            named = sum(segment.base_offset in self.inventory.names for segment in old)
            detail = (
                f"it ends at {mark.next_offset}; {len(old)} older segments are above it, "
                f"{named} of them with an entry in _metadata"
            )
            kind = FindingKind.STALE_WATERMARK
            yield self._of(kind, self._watermark_key, _bases_of(old), detail)
        if new:
            prefix = self.layout.partition_prefix(self.inventory.topic_partition)
            detail = f"{len(new)} segments"
            yield self._of(FindingKind.NOT_COMMITTED, prefix, _bases_of(new), detail)

    def _is_old(self, segment: SegmentFiles, now_ms: int) -> bool:
        """Whether a sidecar that runs would have committed the segment by now."""
        if FileKind.LOG not in segment.files:
            return False  # an upload that was not finished
        limit = _COMMIT_MS if segment.base_offset in self.inventory.names else _NEW_MS
        return now_ms - segment.log.modified_ms > limit


def _bases_of(segments: Sequence[SegmentFiles]) -> OffsetRange:
    first, last = segments[0].base_offset, segments[-1].base_offset
    return OffsetRange(Offset(first), Offset(last + 1))
