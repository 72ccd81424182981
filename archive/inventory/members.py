"""Which of the stored segments belong to the archive. Pure functions.

An archive that Sidetier writes consists of the segments from the one that has the start offset of
`offset.wm` up to the one that `offset.wm` names, except orphans.

Orphan segments: a request of a former leader's sidecar may reach the store after other sidecars
have stored and committed the same offsets in segments with other base offsets. A store cannot
prevent that, and the cluster may have discarded the records of that request in an unclean election.
`_metadata` distinguishes them: the sidecar adds every segment to it before it moves `offset.wm`
over the segment.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import attrgetter
from typing import Final, Protocol, TypeVar

from sidetier.archive.objects.watermark import Watermark
from sidetier.segments.offsets import BaseOffset, Offset

_BASE: Final = attrgetter("base_offset")


class Segment(Protocol):
    """A stored segment: `StoredLog`, `SegmentFiles`."""

    @property
    def base_offset(self) -> BaseOffset:
        """Base offset of the segment, from its keys."""
        ...


S = TypeVar("S", bound=Segment)


def committed(segments: Sequence[S], watermark: Watermark) -> Sequence[S]:
    """Return the segments up to the one that `offset.wm` names.

    A segment above it is stored, but not committed: another leader may replace it. Nothing is
    committed while a move is under way and base offset and archive end offset are equal.

    Args:
        segments: The stored segments, by ascending base offset, as in all functions here.
        watermark: The contents of `offset.wm`.
    """
    if watermark.next_offset is not None and watermark.next_offset <= watermark.base_offset:
        return ()
    return segments[: bisect_right(segments, watermark.base_offset, key=_BASE)]


def from_start(segments: Sequence[S], start: Offset | None) -> Sequence[S]:
    """Return the segments from the one that has the start offset on; it may begin below it.

    Segments below it, which a killed `sidetier gc` or a late sidecar has left, are not part of the
    archive. All segments if the start is None.
    """
    if start is None:
        return segments
    return segments[max(bisect_right(segments, start, key=_BASE) - 1, 0) :]


def deciding(segments: Sequence[S], named: AbstractSet[BaseOffset]) -> list[S]:
    """Return the named segments whose ends decide whether an unnamed one is an orphan.

    Usually there is none, so that no request is needed.
    """
    wanted: list[S] = []
    before: S | None = None
    for segment in segments:
        if segment.base_offset in named:
            before = segment
        elif before is not None and (not wanted or wanted[-1] is not before):
            wanted.append(before)
    return wanted


def without_orphans(
    segments: Sequence[S],
    named: AbstractSet[BaseOffset],
    ends: Mapping[BaseOffset, Offset],
) -> Sequence[S]:
    """Drop segments that `_metadata` does not name and that begin within the named segment before
    them.

    An unnamed segment that overlaps no named one stays: it may be the only copy of its records.

    Args:
        segments: The segments.
        named: Base offsets in `_metadata`.
        ends: Next offsets of the `deciding` segments, as far as they are known.
    """
    kept: list[S] = []
    reached = Offset(0)
    for segment in segments:
        base = segment.base_offset
        if base in named:
            reached = ends.get(base, Offset(0))
        elif base < reached:
            continue
        kept.append(segment)
    return kept
