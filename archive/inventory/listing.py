"""List all objects of one partition, in several parts at the same time if the store is slow."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, takewhile
from time import perf_counter, thread_time
from typing import Final

from sidetier.segments.keys import parse_object_key
from sidetier.segments.offsets import BaseOffset
from sidetier.storage.port import LISTED_AT_ONCE, ObjectSummary, RemoteStorage

_PARTS: Final = 4
_PATIENCE: Final = 0.02
"""Seconds. On a store that answers faster, parallel threads would only wait for Python's GIL."""


def partition_rows(
    store: RemoteStorage,
    prefix: str,
    newest: BaseOffset,
    before_more: Callable[[], object] = lambda: None,
) -> list[ObjectSummary]:
    """List all objects below a partition's prefix, in the order of `RemoteStorage.list_objects`.

    A page of a listing can be requested only after the one before it. So a long listing on a slow
    store is read in several parts at the same time. A part can begin at any base offset, because
    segments are named after their base offset.

    Args:
        store: The partition's store.
        prefix: The partition's key prefix. Ends with a slash.
        newest: A base offset near the end of the partition.
        before_more: Called once, before the second page is requested. It may wait, so that a caller
            can limit how many long listings it holds in memory.
    """
    # A lazy listing: only the first page is requested here. The same iterator is used again below.
    rows = iter(store.list_objects(prefix))
    begin, before = perf_counter(), thread_time()
    first = list(islice(rows, LISTED_AT_ONCE))
    # Time without CPU time: how long the store, and not the parsing of its answer, took.
    waited = perf_counter() - begin - (thread_time() - before)
    if len(first) == LISTED_AT_ONCE:
        before_more()
    bounds = part_bounds(first, prefix, newest) if waited > _PATIENCE else []
    if not bounds:
        return [*first, *rows]
    with ThreadPoolExecutor(len(bounds), "archive-list") as helpers:
        parts = [
            helpers.submit(_until, store.list_objects(prefix, start_after=after), end)
            for after, end in zip(bounds, [*bounds[1:], None], strict=True)
        ]
        # The first part, on this thread, while the helpers read the others.
        listed = [*first, *_until(rows, bounds[0])]
        for part in parts:
            listed += part.result()
    return listed


def part_bounds(first: Sequence[ObjectSummary], prefix: str, newest: BaseOffset) -> list[str]:
    """Return the keys at which to cut the listing behind its first page, in ascending order.

    The number of further pages is estimated from the distance between base offsets on the first
    page.

    Returns:
        No keys if fewer than two further pages are expected, or if the first page is not full or
        has no segments.
    """
    bases = [parsed[0] for row in first if (parsed := parse_object_key(row.key, prefix))]
    if len(first) < LISTED_AT_ONCE or not bases:
        return []
    reached, left = bases[-1], newest - bases[-1]
    parts = min(_PARTS, left // max(1, reached - bases[0]))
    return [f"{prefix}{reached + left * part // parts:020d}" for part in range(1, parts)]


def _until(rows: Iterable[ObjectSummary], end: str | None) -> list[ObjectSummary]:
    return list(takewhile(lambda row: end is None or row.key <= end, rows))
