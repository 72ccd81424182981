"""Filters over keys, headers and values, as bytes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sidetier.consumer.topic_reading.request import ANY, Filters, HeaderFilter


def filtered(records: pa.RecordBatch, filters: Filters) -> pa.RecordBatch:
    """Return the records that meet every condition."""
    keep = np.ones(records.num_rows, dtype=bool)
    if filters.keys:
        keys = pa.array(filters.keys, pa.binary())
        keep &= pc.is_in(records.column("key"), keys).to_numpy(zero_copy_only=False)
    if filters.contains:
        values = records.column("value").to_pylist()
        keep &= np.array([_contains(value, filters.contains) for value in values], dtype=bool)
    if filters.headers:
        rows = records.column("headers").to_pylist()
        keep &= np.array([_has_all(row or (), filters.headers) for row in rows], dtype=bool)
    return records if keep.all() else records.filter(pa.array(keep))


def _contains(value: bytes | None, parts: Sequence[bytes]) -> bool:
    return value is not None and all(part in value for part in parts)


def _has_all(headers: Iterable[Mapping[str, Any]], wanted: Sequence[HeaderFilter]) -> bool:
    pairs = [(header["key"], header["value"]) for header in headers]
    return all(
        any(key == name and value in {ANY, found} for key, found in pairs) for name, value in wanted
    )
