"""A stored log as a consumer of either isolation level sees it, by the Arrow decoder."""

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
    TransactionFilter,
    decode_batches,
    read_markers,
    scan_headers,
)
from sidetier.segments.arrow.record_headers import read_record_headers
from sidetier.segments.arrow.starts import record_starts
from sidetier.segments.headers import TimestampType

WAYS = {"lock-step": 0, "mixed": 2, "walk": 1 << 40}
"""The ways to find records, each by the number of stretches up to which they are walked.

Only with the latter two are large batches cut up."""

_TIMESTAMP_TYPES = {
    TimestampType.CREATE_TIME.value: "CreateTime",
    TimestampType.LOG_APPEND_TIME.value: "LogAppendTime",
}


@contextmanager
def only(few: int) -> Iterator[None]:
    """Find records in one of these ways, whatever the batches' shape."""
    home = "sidetier.segments.arrow.batch_records"
    with (
        patch(f"{home}.record_starts", partial(record_starts, few=few)),
        patch(f"{home}.read_record_headers", partial(read_record_headers, few=few)),
    ):
        yield


def rows(records: pa.RecordBatch) -> list[dict[str, Any]]:
    """Every record as a dict, once Arrow has found the columns to be sound."""
    records.validate(full=True)
    found: list[dict[str, Any]] = records.to_pylist()
    return found


def decoded(log: bytes, **options: Any) -> list[dict[str, Any]]:  # noqa: ANN401  decode_batches'
    """The records of a whole log."""
    return rows(decode_batches(log, scan_headers(log), **options))


def uncommitted(logs: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """All records but markers, as the fixtures tell them."""
    for path in logs:
        yield from map(as_consumed, decoded(path.read_bytes(), name=path.name))


def committed(logs: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """What a read-committed consumer is given, from the markers alone."""
    transactions = TransactionFilter()
    scanned = [(path.read_bytes(), path.name) for path in logs]
    tables = [scan_headers(data, name=name) for data, name in scanned]
    for (data, name), headers in zip(scanned, tables, strict=True):
        transactions.feed(headers, read_markers(data, headers, name=name))
    for (data, name), headers in zip(scanned, tables, strict=True):
        keep = transactions.fates(headers) == Fate.COMMITTED
        end = transactions.last_stable_offset
        found = decode_batches(data, headers, keep=keep, end=end, name=name)
        yield from map(as_consumed, rows(found))


def expected(directory: Path, isolation: str) -> list[dict[str, Any]]:
    """What a consumer of a real broker has read."""
    text = (directory / f"expected.{isolation}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def as_consumed(row: dict[str, Any]) -> dict[str, Any]:
    """A record as the fixtures tell it."""
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
    """An array as the decoder works on it."""
    return np.array(values, dtype=np.int64)
