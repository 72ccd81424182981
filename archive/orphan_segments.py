"""Orphan segments: stored segments that are not part of an archive that Sidetier writes.

A request of a former leader's sidecar may reach the store after other sidecars have stored and
committed the same offsets in segments with other base offsets. A store cannot prevent that, and the
cluster may have discarded the records of that request in an unclean election. `_metadata` tells
them apart: the sidecar adds every segment to it before it moves `offset.wm` over the segment.
"""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

from sidetier.archive.objects.pinterest_metadata import named_segments
from sidetier.archive.objects.segment import StoredLog
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.storage.port import RemoteStorage


def without_orphans(
    logs: Iterable[StoredLog],
    named: AbstractSet[BaseOffset],
    end_of: Callable[[StoredLog], Offset | None],
) -> tuple[StoredLog, ...]:
    """Drop segments that `_metadata` does not name and that begin within a named segment before
    them.

    An unnamed segment that overlaps no named one stays: it may be the only copy of its records.

    Args:
        logs: The segments, by ascending base offset.
        named: Base offsets in `_metadata`.
        end_of: Returns a segment's next offset, or None. Called only when an unnamed segment
            follows a named one.
    """
    kept: list[StoredLog] = []
    before: StoredLog | None = None
    for log in logs:
        if log.base_offset in named:
            before = log
        # Whether the unnamed segment begins within the named
        # one before it. Only this comparison costs a request.
        elif before is not None and _reaches(end_of(before), log.base_offset):
            continue
        kept.append(log)
    return tuple(kept)


def readable_names(store: RemoteStorage, key: str) -> AbstractSet[BaseOffset]:
    """Return the base offsets in `_metadata`; none if it does not parse."""
    try:
        return named_segments(store, key)
    except MalformedObjectError:
        return frozenset()


def _reaches(end: Offset | None, base: int) -> bool:
    return end is not None and end > base
