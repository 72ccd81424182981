"""The listing of one partition: of a long one on a store that lets wait, several parts at once.

An object store hands out 1,000 objects at a time, and the next ones when these have come. The names
of segments are their base offsets, so that a part can begin anywhere among them.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, takewhile
from time import perf_counter, thread_time
from typing import Final

from sidetier.segments.keys import parse_object_key
from sidetier.segments.offsets import BaseOffset
from sidetier.storage.port import LISTED_AT_ONCE, ObjectSummary, RemoteStorage

_PARTS: Final = 4
_PATIENCE: Final = 0.02
"""Seconds; of a store that is nearer, threads would take turns at Python's lock."""


def partition_rows(store: RemoteStorage, prefix: str, newest: BaseOffset) -> list[ObjectSummary]:
    """All objects below a partition's prefix, as `RemoteStorage.list_objects` has them; `newest` is
    a base offset near the end of the partition.

    Raises:
        StorageError: as the port says.
    """
    rows = iter(store.list_objects(prefix))
    begin, before = perf_counter(), thread_time()
    first = list(islice(rows, LISTED_AT_ONCE))
    waited = perf_counter() - begin - (thread_time() - before)
    bounds = part_bounds(first, prefix, newest) if waited > _PATIENCE else []
    if not bounds:
        return [*first, *rows]
    with ThreadPoolExecutor(len(bounds), "archive-list") as helpers:
        others = [
            helpers.submit(_until, store.list_objects(prefix, start_after=after), end)
            for after, end in zip(bounds, [*bounds[1:], None], strict=True)
        ]
        found = [*first, *_until(rows, bounds[0])]
        for other in others:
            found += other.result()
    return found


def part_bounds(first: Sequence[ObjectSummary], prefix: str, newest: BaseOffset) -> list[str]:
    """Where to cut what comes behind the first page, in the order of keys. Nowhere where it is not
    worth it: no page for each of two parts is left, as far as segments are alike; or where the page
    does not tell.
    """
    bases = [parsed[0] for row in first if (parsed := parse_object_key(row.key, prefix))]
    if len(first) < LISTED_AT_ONCE or not bases:
        return []
    reached, left = bases[-1], newest - bases[-1]
    parts = min(_PARTS, left // max(1, reached - bases[0]))
    return [f"{prefix}{reached + left * part // parts:020d}" for part in range(1, parts)]


def _until(rows: Iterable[ObjectSummary], end: str | None) -> list[ObjectSummary]:
    return list(takewhile(lambda row: end is None or row.key <= end, rows))
