"""Output formats of records on standard output."""

import base64
import json
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, Final, Protocol

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


class Writer(Protocol):
    """Writes records, in the order of the calls."""

    def write(self, tp: TopicPartition, records: pa.RecordBatch) -> int:
        """Write the records; return how many there are in what was written.

        Raises:
            BrokenPipeError: The program that reads the output has closed it.
        """
        ...


class JsonLines:
    """Writes each record as one line with a JSON object."""

    def __init__(
        self,
        stream: BinaryIO,
        show: Show,
        decode_key: Decode | None = None,
        decode_value: Decode | None = None,
    ) -> None:
        self._stream = stream
        self._show = show
        self._decode = {"key": decode_key, "value": decode_value}

    def write(self, tp: TopicPartition, records: pa.RecordBatch) -> int:
        """Write one line per record; a value that cannot be decoded is shown as bytes."""
        columns = [self._column(name, records.column(name)) for name in COLUMNS]
        lines = [
            json.dumps(self._row(tp, *row), ensure_ascii=False)
            for row in zip(*columns, strict=True)
        ]
        text = "".join(f"{line}\n" for line in lines)
        # A decoded text may have half of a surrogate pair, which JSON has as an escape only.
        self._stream.write(text.encode(errors="backslashreplace"))
        return text.count("\n")

    def _column(self, name: str, column: pa.Array) -> list[Any]:
        if name not in self._decode:
            return list(column.to_pylist())
        decode = self._decode[name]
        if decode is not None:
            return decode(column, self._show)
        return [self._show(data) for data in column.to_pylist()]

    def _row(  # noqa: PLR0913, PLR0917 -- a record's columns
        self,
        tp: TopicPartition,
        offset: int,
        timestamp: int,
        kind: int,
        key: object,
        value: object,
        headers: Iterable[dict[str, Any]] | None,
    ) -> dict[str, object]:
        return {
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": offset,
            "timestamp": None if timestamp < 0 else timestamp,
            "timestamp_type": None if timestamp < 0 else _KINDS[kind],
            "key": key,
            "value": value,
            "headers": [
                {"key": header["key"], "value": self._show(header["value"])}
                for header in headers or ()
            ],
        }


class RawValues:
    """Writes values as they are, each followed by the delimiter; a null is the delimiter alone."""

    def __init__(self, stream: BinaryIO, delimiter: bytes) -> None:
        self._stream = stream
        self._delimiter = delimiter

    def write(self, tp: TopicPartition, records: pa.RecordBatch) -> int:
        """Write each value and the delimiter; a null value is written as an empty one."""
        del tp
        values = records.column("value").to_pylist()
        self._stream.write(b"".join((value or b"") + self._delimiter for value in values))
        return len(values)


class Nothing:
    """Writes nothing: with `--count` the read loop only counts records."""

    def write(self, tp: TopicPartition, records: pa.RecordBatch) -> int:
        """Count the records without writing them."""
        del tp
        return len(records.column("offset"))


def writer_of(
    output: RecordOutput,
    stream: BinaryIO,
    decode_key: Decode | None = None,
    decode_value: Decode | None = None,
) -> Writer:
    """Return the writer of the requested format."""
    if output.form is RecordFormat.COUNT:
        return Nothing()
    if output.form is RecordFormat.RAW:
        return RawValues(stream, output.delimiter)
    show = as_base64 if output.encoding is TextEncoding.BASE64 else as_text
    return JsonLines(stream, show, decode_key, decode_value)


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
