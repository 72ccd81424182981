"""Conversion of Arrow records to `confluent_kafka.Message`.

The result is confluent-kafka's own class, so that deserializers and other code that expects it
work.
"""

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, Final

import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from sidetier.segments.offsets import TopicPartition

_NO_LATENCY: Final = -1.0
"""librdkafka's value in consumed messages, for which `Message.latency()` returns None."""
_make: Final[Callable[..., Message]] = Message
_NO_TIMESTAMP: Final = (TIMESTAMP_NOT_AVAILABLE, -1)

Headers = list[tuple[str, bytes | None]]


def messages_of(tp: TopicPartition, records: pa.RecordBatch) -> list[Message]:
    """Return one message for each row of `RECORD_SCHEMA`, in order.

    Columns are converted as a whole in C. The only Python-level cost of a record is one call of the
    `Message` constructor.

    Args:
        tp: partition of the records.
        records: at least one row.
    """
    return list(
        map(
            _make,
            repeat(tp.topic),
            repeat(tp.partition),
            _rising(records, "offset"),
            _values(records, "key"),
            _values(records, "value"),
            headers_of(records),
            repeat(None),
            _timestamps(records),
            repeat(_NO_LATENCY),
            _mostly_one(_numbers(records, "leader_epoch")),
        )
    )


def headers_of(records: pa.RecordBatch) -> Iterable[Headers | None]:
    """Return the headers of each record as (key, value) pairs; None where it has none."""
    column = records.column("headers")
    offsets = memoryview(column.buffers()[1]).cast("b").cast("i")
    # Equal first and last offsets: no record of the batch has headers.
    if offsets[column.offset] == offsets[column.offset + len(column)]:
        return repeat(None, records.num_rows)
    entries = column.flatten()
    keys = entries.field(0).to_pylist()
    values = entries.field(1).to_pylist()
    bounds = column.offsets.to_numpy()
    first = int(bounds[0])
    starts, ends = (bounds[:-1] - first).tolist(), (bounds[1:] - first).tolist()
    return [
        list(zip(keys[start:end], values[start:end], strict=True)) or None
        for start, end in zip(starts, ends, strict=True)
    ]


def _numbers(records: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    numbers: npt.NDArray[Any] = records.column(name).to_numpy()
    return numbers


def _rising(records: pa.RecordBatch, name: str) -> Iterable[int]:
    """Return strictly increasing numbers, as a range in the usual case without gaps."""
    numbers = _numbers(records, name)
    first, last = int(numbers[0]), int(numbers[-1])
    return range(first, last + 1) if last - first == len(numbers) - 1 else numbers.tolist()


def _mostly_one(numbers: npt.NDArray[Any]) -> Iterable[int]:
    """Return numbers that are usually all equal; if so, without a list."""
    first = numbers[0]
    return repeat(int(first), len(numbers)) if (numbers == first).all() else numbers.tolist()


def _values(records: pa.RecordBatch, name: str) -> list[bytes | None]:
    values: list[bytes | None] = records.column(name).to_pylist()
    return values


def _timestamps(records: pa.RecordBatch) -> Iterable[tuple[int, int]]:
    """Return (type, ms) pairs. confluent-kafka's types are Kafka's plus 1; 0 is no timestamp."""
    times = _numbers(records, "timestamp")
    types = _mostly_one(_numbers(records, "timestamp_type") + TIMESTAMP_CREATE_TIME)
    pairs = zip(types, times.tolist(), strict=True)
    if times.min() >= 0:
        return pairs
    return [pair if pair[1] >= 0 else _NO_TIMESTAMP for pair in pairs]
