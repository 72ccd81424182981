"""Plan of a backfill: pure values, made before anything is written."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from sidetier.segments.listing import ClosedSegment
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange, TopicPartition
from sidetier.uploader.state.plan import PlannedSegment, plan


@dataclass(frozen=True, slots=True)
class Due:
    """A closed segment that is not archived.

    Attributes:
        next_offset: End offset, exclusive.
        size: Bytes of its `.log`.
        committed: Whether its records are known to be committed.
    """

    base_offset: BaseOffset
    next_offset: Offset
    size: int
    committed: bool


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """Plan of one partition of the log dirs.

    Attributes:
        log_start: Base offset of the first closed segment on disk; None without one.
        closed_end: End of the closed segments on disk, exclusive.
        next_offset: Archive end offset; None if there is no archive yet.
        due: Segments to store, in rising order.
        gaps: Offsets whose records were deleted before they were archived.
        stored_segments: Closed segments on disk that this plan does not store.
        present: Due segments whose `.log` is on the store already, above the archive end. The
            upload compares them and does not send them again.
        refused: Why the topic must not be archived.
        problem: Why the partition's directory or archive cannot be read.
    """

    topic_partition: TopicPartition
    log_start: Offset | None = None
    closed_end: Offset | None = None
    next_offset: Offset | None = None
    due: tuple[Due, ...] = ()
    gaps: tuple[OffsetRange, ...] = ()
    stored_segments: int = 0
    present: int = 0
    refused: str | None = None
    problem: str | None = None

    @property
    def size(self) -> int:
        """Size of the due `.log` files, in bytes."""
        return sum(due.size for due in self.due)

    @property
    def uncommitted(self) -> int:
        """Number of due segments that are not known to be committed."""
        return sum(not due.committed for due in self.due)

    @property
    def has_work(self) -> bool:
        """Whether there are segments to store or gaps to record, and the topic allows it."""
        return bool(self.due or self.gaps) and self.refused is None

    @property
    def target(self) -> Offset:
        """Archive end offset once everything is done."""
        ends = [due.next_offset for due in self.due[-1:]] + [gap.end for gap in self.gaps[-1:]]
        return max(ends, default=self.next_offset or Offset(0))

    @property
    def findings(self) -> bool:
        """Whether records that are or were on the disk will not be stored."""
        blocked = self.refused is not None and bool(self.due)
        return blocked or self.problem is not None or bool(self.gaps) or self.uncommitted > 0

    def done(self, next_offset: Offset | None) -> tuple[int, int]:
        """Return the number of due segments, and of their bytes, below an archive end offset."""
        ends = [due.next_offset for due in self.due]
        count = 0 if next_offset is None else bisect_right(ends, next_offset)
        return count, sum(due.size for due in self.due[:count])


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """Plan of all selected partitions.

    Attributes:
        partitions: Sorted by topic and partition.
        unreadable: One line for each log dir that cannot be read; its partitions are not known.
    """

    partitions: tuple[PartitionPlan, ...]
    unreadable: tuple[str, ...] = ()

    @property
    def work(self) -> tuple[PartitionPlan, ...]:
        """Partitions with something to do."""
        return tuple(partition for partition in self.partitions if partition.has_work)

    @property
    def segments(self) -> int:
        """Number of segments to store."""
        return sum(len(partition.due) for partition in self.work)

    @property
    def size(self) -> int:
        """Bytes to store, without indexes."""
        return sum(partition.size for partition in self.work)

    @property
    def findings(self) -> bool:
        """Whether something will not be stored."""
        return bool(self.unreadable) or any(partition.findings for partition in self.partitions)


def plan_all(
    next_offset: Offset, segments: Sequence[ClosedSegment], active: BaseOffset | None
) -> tuple[list[PlannedSegment], list[OffsetRange]]:
    """Return the segments to store from `next_offset` on, across all gaps, and these gaps."""
    planned: list[PlannedSegment] = []
    gaps: list[OffsetRange] = []
    while True:
        step = plan(next_offset, segments, active)
        planned += step.segments
        if step.gap is None:
            return planned, gaps
        gaps.append(step.gap)
        next_offset = step.gap.end
