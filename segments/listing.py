"""Find the closed segments of a partition from the file names in its directory.

To roll, a broker trims the indexes of the active segment, and then creates the next `.log`. So a
segment is closed once a `.log` with a higher base offset exists beside it. Retention and truncation
rename files to `.deleted` before they unlink them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from sidetier.segments.names import FileKind, parse_segment_file_name
from sidetier.segments.offsets import BaseOffset


@dataclass(frozen=True, slots=True)
class ClosedSegment:
    """A segment to which the broker will not append. Sorts by base offset.

    Attributes:
        base_offset: Its base offset.
        next_base: Base offset of the segment that follows, and so this one's next offset. None if
            unknown without reading the segment.
        marked_for_deletion: Whether its files have the `.deleted` suffix.
    """

    base_offset: BaseOffset
    next_base: BaseOffset | None
    marked_for_deletion: bool

    def __lt__(self, other: "ClosedSegment") -> bool:
        """Return whether this segment comes first in the log."""
        return self.base_offset < other.base_offset


@dataclass(frozen=True, slots=True)
class PartitionListing:
    """The segments of one partition: the closed ones in ascending order, and the active one."""

    closed: tuple[ClosedSegment, ...]
    active: BaseOffset | None


def read_listing(names: Iterable[str]) -> PartitionListing:
    """Find the closed segments from all file names of one partition directory, in any order.

    The next base of a live segment is the next live one's: compaction has merged, or
    truncation has cut off, any segment between them that is marked for deletion. A segment marked
    for deletion counts only if no live one has its base offset. Its next base is the next of any
    kind; None for the highest segment.
    """
    live, marked_for_deletion = _log_bases(names)
    order = sorted(live)
    closed = [
        ClosedSegment(base, following, marked_for_deletion=False)
        for base, following in pairwise(order)
    ]
    # A live file with the same base offset is the newer one: compaction has replaced the other.
    closed += _segments_marked_for_deletion(live, marked_for_deletion - live)
    return PartitionListing(tuple(sorted(closed)), order[-1] if order else None)


def _log_bases(names: Iterable[str]) -> tuple[set[BaseOffset], set[BaseOffset]]:
    live: set[BaseOffset] = set()
    marked_for_deletion: set[BaseOffset] = set()
    for name in names:
        if FileKind.LOG.value not in name:
            continue  # one file per segment is enough: parsing all names costs time
        parsed = parse_segment_file_name(name)
        if parsed is not None and parsed.kind is FileKind.LOG:
            (marked_for_deletion if parsed.deleted else live).add(parsed.base_offset)
    return live, marked_for_deletion


def _segments_marked_for_deletion(
    live: set[BaseOffset], marked_for_deletion: set[BaseOffset]
) -> list[ClosedSegment]:
    # The None gives the highest segment no successor: only its bytes show where it ends.
    order: list[BaseOffset | None] = [*sorted(live | marked_for_deletion), None]
    return [
        ClosedSegment(base, following, marked_for_deletion=True)
        for base, following in pairwise(order)
        if base in marked_for_deletion and base is not None
    ]
