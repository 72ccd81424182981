"""Output formats of records on standard output."""

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, BinaryIO, Final

import pyarrow as pa

from sidetier.cli.consume.request import RecordFormat, RecordOutput, TextEncoding
from sidetier.consumer.topic_reading.request import COLUMNS
from sidetier.segments.offsets import TopicPartition

_KINDS: Final = ("create", "log_append")
"""Indexed by the value of `TimestampType`."""

Shown = str | dict[str, str] | None
Show = Callable[[bytes | None], Shown]
Decode = Callable[[pa.Array, Show], list[object]]
"""Decodes a column for JSON; shows a value that cannot be decoded as bytes."""


Writer = Callable[[TopicPartition, pa.RecordBatch], int]
"""Writes records, in the order of the calls; returns how many there are in what was written. Raises
BrokenPipeError if the program that reads the output has closed it.
"""


def writer_of(
    output: RecordOutput,
    stream: BinaryIO,
    decode_key: Decode | None = None,
    decode_value: Decode | None = None,
) -> Writer:
    """Return the writer of the requested format."""
    if output.form is RecordFormat.COUNT:
        return lambda _, records: len(records.column("offset"))
    if output.form is RecordFormat.RAW:
        return partial(_write_values, stream, output.delimiter)
    show = as_base64 if output.encoding is TextEncoding.BASE64 else as_text
    return partial(_write_lines, stream, show, {"key": decode_key, "value": decode_value})


def _write_values(
    stream: BinaryIO, delimiter: bytes, _: TopicPartition, records: pa.RecordBatch
) -> int:
    """Write each value and the delimiter; a null value is written as an empty one."""
    values = records.column("value").to_pylist()
    stream.write(b"".join((value or b"") + delimiter for value in values))
    return len(values)


def _write_lines(
    stream: BinaryIO,
    show: Show,
    decoders: Mapping[str, Decode | None],
    tp: TopicPartition,
    records: pa.RecordBatch,
) -> int:
    """Write one JSON object per line; a value that cannot be decoded is shown as bytes."""

    def column(name: str) -> list[Any]:
        values = records.column(name)
        decode = decoders.get(name)
        if decode is not None:
            return decode(values, show)
        shown = values.to_pylist()
        return [show(data) for data in shown] if name in decoders else shown

    rows = zip(*map(column, COLUMNS), strict=True)
    lines = [json.dumps(_fields(show, tp, *row), ensure_ascii=False) for row in rows]
    text = "".join(f"{line}\n" for line in lines)
    # A decoded text may have half of a surrogate pair, which JSON has as an escape only.
    stream.write(text.encode(errors="backslashreplace"))
    return text.count("\n")


def _fields(  # noqa: PLR0913, PLR0917 -- a record's columns
    show: Show,
    tp: TopicPartition,
    offset: int,
    timestamp: int,
    kind: int,
    key: object,
    value: object,
    headers: Iterable[dict[str, Any]] | None,
) -> dict[str, object]:
    return {
        **tp._asdict(),
        "offset": offset,
        "timestamp": None if timestamp < 0 else timestamp,
        "timestamp_type": None if timestamp < 0 else _KINDS[kind],
        "key": key,
        "value": value,
        "headers": [
            {"key": header["key"], "value": show(header["value"])} for header in headers or ()
        ],
    }


def as_text(data: bytes | None) -> Shown:
    """Return UTF-8 text; other bytes as `{"base64": "..."}`, so that nothing is lost."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def as_base64(data: bytes | None) -> Shown:
    """Return the bytes as base64; None for a null."""
    return None if data is None else base64.b64encode(data).decode()
