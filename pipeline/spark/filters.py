"""Conversion of a query's filters, which PySpark 4.1 and later pass to the source, for planning."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from sidetier.pipeline.planning.request import Filters
from sidetier.segments.offsets import Offset

_MICROSECONDS: Final = 1_000_000


def pruning(filters: Iterable[Any]) -> Filters:
    """Return the filters that planning can use.

    Filter classes are recognised by name, because older versions of PySpark do not have them. A
    filter that is not recognised has no effect.
    """
    combined = Filters()
    for query_filter in filters:
        column, value = _plain(query_filter)
        narrow = _NARROWED.get((type(query_filter).__name__, column))
        if narrow is not None and value is not None:
            combined = narrow(combined, value)
    return combined


def _plain(one: Any) -> tuple[str, Any]:  # noqa: ANN401 -- a class of PySpark that may not exist
    attribute = getattr(one, "attribute", ())
    return ".".join(attribute), getattr(one, "value", None)


def _partition_is(found: Filters, value: int) -> Filters:
    return _partition_in(found, (value,))


def _partition_in(found: Filters, values: Iterable[int]) -> Filters:
    wanted = frozenset(values)
    before = found.partitions
    return replace(found, partitions=wanted if before is None else before & wanted)


def _from_offset(found: Filters, value: int) -> Filters:
    return replace(found, first=Offset(max(value, found.first or 0)))


def _until_offset(found: Filters, value: int) -> Filters:
    value = max(value, 0)
    return replace(found, until=Offset(value if found.until is None else min(value, found.until)))


def _offset_is(found: Filters, value: int) -> Filters:
    return _until_offset(_from_offset(found, value), value + 1)


def _since(found: Filters, value: datetime) -> Filters:
    since = _milliseconds(value)
    return replace(found, since_ms=since if found.since_ms is None else max(since, found.since_ms))


def _milliseconds(value: datetime) -> int:
    """Convert to milliseconds, rounded down, so that no wanted record is excluded."""
    return int(value.timestamp() * _MICROSECONDS) // 1000


_NARROWED: Final[Mapping[tuple[str, str], Callable[[Filters, Any], Filters]]] = {
    ("EqualTo", "partition"): _partition_is,
    ("In", "partition"): _partition_in,
    ("EqualTo", "offset"): _offset_is,
    ("GreaterThanOrEqual", "offset"): _from_offset,
    ("GreaterThan", "offset"): lambda found, value: _from_offset(found, value + 1),
    ("LessThan", "offset"): _until_offset,
    ("LessThanOrEqual", "offset"): lambda found, value: _until_offset(found, value + 1),
    ("EqualTo", "timestamp"): _since,
    ("GreaterThanOrEqual", "timestamp"): _since,
    ("GreaterThan", "timestamp"): _since,
}
