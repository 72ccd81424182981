"""What a backfill has to do with each partition: pure values, before anything is written."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from sidetier.segments.listing import ClosedSegment
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange, TopicPartition
from sidetier.uploader.state.plan import PlannedSegment, plan


@dataclass(frozen=True, slots=True)
class Due:
    """A closed segment that is not stored: its end, its size in bytes, and whether its records are
    known to be committed.
    """

    base_offset: BaseOffset
    next_offset: Offset
    size: int
    committed: bool


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """One partition of the log dirs.

    `log_start` and `closed_end` bound what lies on the disk in closed segments; `next_offset` is
    where the archive goes on, None where there is none yet. `present` counts the due segments whose
    `.log` lies on the store already, above the watermark: they are compared, and not sent again.
    `refused` says why the topic must not be archived, `problem` why its archive cannot be read.
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
        """Bytes of the `.log`s that are due."""
        return sum(due.size for due in self.due)

    @property
    def uncommitted(self) -> int:
        """Due segments that are not known to be committed."""
        return sum(not due.committed for due in self.due)

    @property
    def has_work(self) -> bool:
        """Whether anything is to be stored or recorded, and may be."""
        return bool(self.due or self.gaps) and self.refused is None

    @property
    def target(self) -> Offset:
        """The next offset of the archive when everything is done."""
        ends = [due.next_offset for due in self.due[-1:]] + [gap.end for gap in self.gaps[-1:]]
        return max(ends, default=self.next_offset or Offset(0))

    @property
    def findings(self) -> bool:
        """Whether something that lies on the disk, or did, will not be stored."""
        blocked = self.refused is not None and bool(self.due)
        return blocked or self.problem is not None or bool(self.gaps) or self.uncommitted > 0

    def done(self, next_offset: Offset | None) -> tuple[int, int]:
        """How many of the due segments, and of their bytes, lie below an archive's next offset."""
        ends = [due.next_offset for due in self.due]
        count = 0 if next_offset is None else bisect_right(ends, next_offset)
        return count, sum(due.size for due in self.due[:count])


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """Every partition that was asked for, sorted; and a line for each log dir that cannot be read,
    whose partitions are not known.
    """

    partitions: tuple[PartitionPlan, ...]
    unreadable: tuple[str, ...] = ()

    @property
    def work(self) -> tuple[PartitionPlan, ...]:
        """Those with something to do."""
        return tuple(one for one in self.partitions if one.has_work)

    @property
    def segments(self) -> int:
        """Segments to store."""
        return sum(len(one.due) for one in self.work)

    @property
    def size(self) -> int:
        """Bytes to store, without indexes."""
        return sum(one.size for one in self.work)

    @property
    def findings(self) -> bool:
        """Whether something will not be stored."""
        return bool(self.unreadable) or any(one.findings for one in self.partitions)


def plan_all(
    next_offset: Offset, segments: Sequence[ClosedSegment], active: BaseOffset | None
) -> tuple[list[PlannedSegment], list[OffsetRange]]:
    """What is to be stored after `next_offset`, over every gap, and those gaps."""
    planned: list[PlannedSegment] = []
    gaps: list[OffsetRange] = []
    while True:
        step = plan(next_offset, segments, active)
        planned += step.segments
        if step.gap is None:
            return planned, gaps
        gaps.append(step.gap)
        next_offset = step.gap.end
