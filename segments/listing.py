"""Which segments of a partition are closed, told from the names in its directory alone.

A broker rolls by trimming the indexes of the active segment and then creating the next `.log`: a
segment is closed once a `.log` with a higher base offset exists beside it. Retention and truncation
rename its files to `.deleted` before they unlink them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from sidetier.segments.names import FileKind, parse_segment_file_name
from sidetier.segments.offsets import BaseOffset


@dataclass(frozen=True, slots=True)
class ClosedSegment:
    """A segment that the broker will not append to any more; sorts by base offset.

    `next_base` is the base offset of the segment that follows, and so this one's next offset; None
    when only reading it can tell. `marked_for_deletion` when its files are called `.deleted`.
    """

    base_offset: BaseOffset
    next_base: BaseOffset | None
    marked_for_deletion: bool

    def __lt__(self, other: "ClosedSegment") -> bool:
        """Whether this segment comes first in the log."""
        return self.base_offset < other.base_offset


@dataclass(frozen=True, slots=True)
class PartitionListing:
    """The segments of one partition: the closed ones in ascending order, and the active one."""

    closed: tuple[ClosedSegment, ...]
    active: BaseOffset | None


def read_listing(names: Iterable[str]) -> PartitionListing:
    """Apply the closed-segment rule to all names of one partition directory, in any order.

    A live segment's next base is that of the next live one: a staged one between them was merged
    away by compaction or cut off by truncation. A staged segment counts only when no live one has
    its base offset; its next base is the next of any kind, None above all others.
    """
    live, marked_for_deletion = _log_bases(names)
    order = sorted(live)
    closed = [
        ClosedSegment(base, following, marked_for_deletion=False)
        for base, following in pairwise(order)
    ]
    closed += _segments_marked_for_deletion(live, marked_for_deletion - live)
    return PartitionListing(tuple(sorted(closed)), order[-1] if order else None)


def _log_bases(names: Iterable[str]) -> tuple[set[BaseOffset], set[BaseOffset]]:
    live: set[BaseOffset] = set()
    marked_for_deletion: set[BaseOffset] = set()
    for name in names:
        if FileKind.LOG.value not in name:
            continue  # of each segment's files only one tells something: do not parse the others
        parsed = parse_segment_file_name(name)
        if parsed is not None and parsed.kind is FileKind.LOG:
            (marked_for_deletion if parsed.deleted else live).add(parsed.base_offset)
    return live, marked_for_deletion


def _segments_marked_for_deletion(
    live: set[BaseOffset], marked_for_deletion: set[BaseOffset]
) -> list[ClosedSegment]:
    order: list[BaseOffset | None] = [*sorted(live | marked_for_deletion), None]
    return [
        ClosedSegment(base, following, marked_for_deletion=True)
        for base, following in pairwise(order)
        if base in marked_for_deletion and base is not None
    ]
