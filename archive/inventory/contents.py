"""What one reading of a partition's archive has returned, and what follows from it. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from sidetier.archive.inventory.members import committed, deciding, from_start, without_orphans
from sidetier.archive.missing_offsets import without_gaps
from sidetier.archive.objects.acknowledgements import Acknowledgement
from sidetier.archive.objects.leader_epochs import StoredEpochHistory
from sidetier.archive.objects.log_check import Mismatch
from sidetier.archive.objects.pinterest_metadata import StoredMetadata
from sidetier.archive.objects.segment import SegmentFiles
from sidetier.archive.objects.watermark import StoredWatermark, Watermark
from sidetier.archive.view import ArchiveView, view_of_ours
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class ArchiveEnd:
    """A partition's `offset.wm` and archive end offset, or the problem with them."""

    watermark: Watermark | None = None
    next_offset: Offset | None = None
    problem: str | None = None


class NotedSegment(NamedTuple):
    """What the metadata of a `.log`, or a chapter, shows of a segment.

    Attributes:
        base_offset: Its base offset.
        next_offset: The offset after its last; None if it is not recorded.
        largest_timestamp: In ms since 1970; None if it is not recorded.
        missing_marker: Key of the marker that it has lost; None if it has lost none.
        mismatches: How it differs from its metadata.
    """

    base_offset: BaseOffset
    next_offset: Offset | None = None
    largest_timestamp: int | None = None
    missing_marker: str | None = None
    mismatches: tuple[Mismatch, ...] = ()


@dataclass(frozen=True)
class Inventory:
    """What one reading of a partition has returned.

    Attributes:
        topic_partition: The partition.
        watermark: `offset.wm` before the listing; None if there is none.
        segments: The segments of the listing, by ascending base offset.
        metadata: `_metadata`; None if it is absent or damaged.
        epochs: `leader-epoch-checkpoint`; None if it is damaged, or was not read.
        gaps: Recorded gaps, by ascending start. They may overlap.
        acknowledged: The acknowledgements of these gaps.
        noted: What is known from metadata, by base offset.
        damaged: Small objects that do not parse: the reason, by key.
    """

    topic_partition: TopicPartition
    watermark: StoredWatermark | None = None
    segments: tuple[SegmentFiles, ...] = ()
    metadata: StoredMetadata | None = None
    epochs: StoredEpochHistory | None = None
    gaps: tuple[OffsetRange, ...] = ()
    acknowledged: Mapping[OffsetRange, Acknowledgement] = field(default_factory=dict)
    noted: Mapping[BaseOffset, NotedSegment] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)

    def with_noted(self, noted: Iterable[NotedSegment]) -> "Inventory":
        """Return the inventory with what is known from the metadata of these segments."""
        known = dict(self.noted)
        for new in noted:
            old = known.get(new.base_offset, new)
            known[new.base_offset] = new._replace(
                next_offset=old.next_offset if new.next_offset is None else new.next_offset,
                missing_marker=new.missing_marker or old.missing_marker,
            )
        return replace(self, noted=known)

    def end_of(self, base: BaseOffset) -> Offset | None:
        """Return the next offset of a segment; None if it is not known."""
        noted = self.noted.get(base)
        return None if noted is None else noted.next_offset

    @cached_property
    def names(self) -> frozenset[BaseOffset]:
        """Base offsets in `_metadata`."""
        return frozenset() if self.metadata is None else self.metadata.metadata.named

    @property
    def topic_id(self) -> str | None:
        """Kafka's id of the archive's topic; None if `offset.wm` has none."""
        return None if self.watermark is None else self.watermark.watermark.topic_id

    @cached_property
    def committed(self) -> Sequence[SegmentFiles]:
        """The segments up to the one that `offset.wm` names; none while segments are moving."""
        if self.watermark is None or self.watermark.watermark.pending is not None:
            return ()
        return committed(self.segments, self.watermark.watermark)

    @cached_property
    def members(self) -> Sequence[SegmentFiles]:
        """The segments of the archive: from its start to the last committed one, without orphans.

        A member may lack files, also its `.log`.
        """
        wanted = (segment.base_offset for segment in deciding(self.committed, self.names))
        ends = {base: end for base in wanted if (end := self.end_of(base)) is not None}
        return from_start(without_orphans(self.committed, self.names, ends), self._start)

    @cached_property
    def logs(self) -> Sequence[SegmentFiles]:
        """The members whose `.log` is stored."""
        return [segment for segment in self.members if FileKind.LOG in segment.files]

    @property
    def orphans(self) -> Iterator[SegmentFiles]:
        """The committed segments with a `.log` that are not part of the archive."""
        members = {segment.base_offset for segment in self.members}
        for segment in self.committed:
            if segment.base_offset not in members and FileKind.LOG in segment.files:
                yield segment

    @property
    def above_end(self) -> Sequence[SegmentFiles]:
        """The segments above the one that `offset.wm` names."""
        if self.watermark is None:
            return self.segments
        return self.segments[len(committed(self.segments, self.watermark.watermark)) :]

    @property
    def lost_logs(self) -> Sequence[BaseOffset]:
        """Base offsets that `_metadata` names, but whose `.log` is not among the members."""
        return sorted(self.names - {segment.base_offset for segment in self.logs})

    def undecided(self) -> Sequence[SegmentFiles]:
        """Return the segments whose ends decide about orphans, and have not been read."""
        logs = [segment for segment in self.committed if FileKind.LOG in segment.files]
        wanted = deciding(logs, self.names)
        return [segment for segment in wanted if segment.base_offset not in self.noted]

    def unproven(self) -> Sequence[SegmentFiles]:
        """Return the segments whose ends decide about missing offsets, and have not been read.

        These are the last one, and those before a recorded gap, or before a segment that is lost.
        """
        logs, lost, at = self.logs, self.lost_logs, 0
        wanted = [*logs[-1:]]
        gap_ends = {int(gap.end) for gap in self.gaps}
        for log, following in pairwise(logs):
            at = bisect_right(lost, log.base_offset, lo=at)
            is_lost = at < len(lost) and lost[at] < following.base_offset
            if is_lost or following.base_offset in gap_ends:
                wanted.append(log)
        return [segment for segment in wanted if segment.base_offset not in self.noted]

    def with_ends(self) -> Iterator[tuple[SegmentFiles, Offset]]:
        """Yield each member with its end, as far as it is known: else the base of the next one."""
        for segment, following in zip(
            self.members, [*(s.base_offset for s in self.members[1:]), None], strict=True
        ):
            end = self.end_of(segment.base_offset)
            if end is None and following is not None:
                end = Offset(following)
            yield segment, end or Offset(segment.base_offset + 1)

    def deleted_start(self) -> Iterator[OffsetRange]:
        """Yield the offsets from the archive's start to its first segment that are in no gap."""
        if self.logs and self._start is not None and self._start < self.logs[0].base_offset:
            first = Offset(self.logs[0].base_offset)
            yield from without_gaps(OffsetRange(self._start, first), self.gaps)

    def missing_offsets(self) -> Iterator[OffsetRange]:
        """Yield the offsets that no member and no gap has, from the first segment to the end.

        An unknown end proves nothing, unless the segments before it reach further.
        """
        reached: Offset | None = None
        for segment in self.logs:
            base = Offset(segment.base_offset)
            if reached is not None and base > reached:
                yield from without_gaps(OffsetRange(reached, base), self.gaps)
            end = self.end_of(segment.base_offset)
            reached = None if end is None else max(reached or end, end)
        end = None if self.watermark is None else self.watermark.watermark.next_offset
        if end is not None and reached is not None and reached < end:
            yield from without_gaps(OffsetRange(reached, end), self.gaps)

    def view(self, where: str) -> ArchiveView:
        """Return the readable part of the archive. `where` is its place in words.

        Raises:
            ValueError: There is no `offset.wm`, or it is of Pinterest's uploader.
        """
        if self.watermark is None:
            raise ValueError(f"{where}: no offset.wm")
        logs = [segment.stored_log for segment in self.logs]
        return view_of_ours(where, self.watermark.watermark, self.watermark.etag, logs)

    @property
    def _start(self) -> Offset | None:
        return None if self.watermark is None else self.watermark.watermark.start_offset
