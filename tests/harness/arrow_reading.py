"""A stored log as a consumer of either isolation level sees it, through the Arrow decoder."""

import base64
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from sidetier.segments.arrow import (
    Fate,
    decode_batches,
    fates_of,
    feed_table,
    read_markers,
    scan_headers,
)
from sidetier.segments.arrow.record_headers import read_record_headers
from sidetier.segments.arrow.starts import record_starts
from sidetier.segments.headers import TimestampType
from sidetier.segments.transactions import TransactionTracker

WAYS = {"lock-step": 0, "mixed": 2, "walk": 1 << 40}
"""Ways to find records: name, and the number of stretches up to which they are walked.

Large batches are cut up only with the latter two.
"""

_TIMESTAMP_TYPES = {
    TimestampType.CREATE_TIME.value: "CreateTime",
    TimestampType.LOG_APPEND_TIME.value: "LogAppendTime",
}


@contextmanager
def only(few: int) -> Iterator[None]:
    """Find records in one of these ways, whatever the shape of the batches."""
    home = "sidetier.segments.arrow.batch_records"
    with (
        patch(f"{home}.record_starts", partial(record_starts, few=few)),
        patch(f"{home}.read_record_headers", partial(read_record_headers, few=few)),
    ):
        yield


def rows(records: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return every record as a dict, after Arrow has validated the columns."""
    records.validate(full=True)
    dicts: list[dict[str, Any]] = records.to_pylist()
    return dicts


def decoded(log: bytes, **options: Any) -> list[dict[str, Any]]:  # noqa: ANN401  options of decode_batches
    """Return the records of a whole log."""
    return rows(decode_batches(log, scan_headers(log), **options))


def uncommitted(logs: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Yield all records except markers, from the fixtures."""
    for path in logs:
        yield from map(as_consumed, decoded(path.read_bytes(), name=path.name))


def committed(logs: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Yield what a read-committed consumer gets, judged by the markers alone."""
    tracker = TransactionTracker()
    scanned = [(path.read_bytes(), path.name) for path in logs]
    tables = [scan_headers(data, name=name) for data, name in scanned]
    for (data, name), headers in zip(scanned, tables, strict=True):
        feed_table(tracker, headers, read_markers(data, headers, name=name))
    for (data, name), headers in zip(scanned, tables, strict=True):
        keep = fates_of(tracker, headers) == Fate.COMMITTED
        end = tracker.last_stable_offset
        records = decode_batches(data, headers, keep=keep, end=end, name=name)
        yield from map(as_consumed, rows(records))


def expected(directory: Path, isolation: str) -> list[dict[str, Any]]:
    """Return what a consumer of a real broker has read."""
    text = (directory / f"expected.{isolation}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def as_consumed(row: dict[str, Any]) -> dict[str, Any]:
    """Return a record in the form of the fixtures."""
    return {
        "offset": row["offset"],
        "timestamp": row["timestamp"],
        "timestamp_type": _TIMESTAMP_TYPES[row["timestamp_type"]],
        "key": _text(row["key"]),
        "value": _text(row["value"]),
        "headers": [[header["key"], _text(header["value"])] for header in row["headers"]],
        "leader_epoch": row["leader_epoch"],
    }


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def longs(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return an array in the decoder's type."""
    return np.array(values, dtype=np.int64)
