"""Stored segments that are no part of an archive of ours.

A request of a former leader may arrive, or be found, after others have stored and committed the
same offsets in segments with other bases. Nothing on a store prevents that, and what it brings may
have been thrown away by an unclean election since. `_metadata` tells: every segment is named there
before the watermark moves over it.
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
    """The segments, by rising base, but those unnamed ones that begin within a named one before
    them. What covers nothing that is named stays: it may be all that there is.

    `end_of` tells a segment's next offset, or None; it is asked only where one is not named.
    """
    kept: list[StoredLog] = []
    before: StoredLog | None = None
    for log in logs:
        if log.base_offset in named:
            before = log
        elif before is not None and _reaches(end_of(before), log.base_offset):
            continue
        kept.append(log)
    return tuple(kept)


def readable_names(store: RemoteStorage, key: str) -> AbstractSet[BaseOffset]:
    """As `named_segments`, and empty where `_metadata` does not parse."""
    try:
        return named_segments(store, key)
    except MalformedObjectError:
        return frozenset()


def _reaches(end: Offset | None, base: int) -> bool:
    return end is not None and end > base
