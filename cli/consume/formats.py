"""What is written of records to standard output."""

import base64
import json
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, Final, Protocol

import pyarrow as pa

from sidetier.cli.consume.request import RecordFormat, Request, TextEncoding
from sidetier.segments.offsets import TopicPartition

_KINDS: Final = ("create", "log_append")
"""By the value of `TimestampType`."""

Shown = str | dict[str, str] | None
Show = Callable[[bytes | None], Shown]


class Writer(Protocol):
    """Takes records in order."""

    def write(self, tp: TopicPartition, records: pa.RecordBatch) -> None:
        """Write these; raises BrokenPipeError when nobody reads any more."""
        ...


class JsonLines:
    """A JSON object per record and line."""

    def __init__(self, stream: BinaryIO, show: Show) -> None:
        self._stream = stream
        self._show = show

    def write(self, tp: TopicPartition, records: pa.RecordBatch) -> None:
        """See `Writer`."""
        columns = [records.column(name).to_pylist() for name in _JSON_COLUMNS]
        lines = [
            json.dumps(self._row(tp, *row), ensure_ascii=False)
            for row in zip(*columns, strict=True)
        ]
        self._stream.write("".join(f"{line}\n" for line in lines).encode())

    def _row(  # noqa: PLR0913, PLR0917 -- a record's columns
        self,
        tp: TopicPartition,
        offset: int,
        timestamp: int,
        kind: int,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[dict[str, Any]] | None,
    ) -> dict[str, object]:
        return {
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": offset,
            "timestamp": None if timestamp < 0 else timestamp,
            "timestamp_type": None if timestamp < 0 else _KINDS[kind],
            "key": self._show(key),
            "value": self._show(value),
            "headers": [
                {"key": one["key"], "value": self._show(one["value"])} for one in headers or ()
            ],
        }


_JSON_COLUMNS: Final = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")


class RawValues:
    """Values as they are, each with the delimiter behind it; of a null only the delimiter."""

    def __init__(self, stream: BinaryIO, delimiter: bytes) -> None:
        self._stream = stream
        self._delimiter = delimiter

    def write(self, tp: TopicPartition, records: pa.RecordBatch) -> None:
        """See `Writer`."""
        del tp
        values = records.column("value").to_pylist()
        self._stream.write(b"".join((value or b"") + self._delimiter for value in values))


class Nothing:
    """Nothing of the records themselves: they are counted elsewhere."""

    def write(self, tp: TopicPartition, records: pa.RecordBatch) -> None:
        """See `Writer`."""


def writer_of(request: Request, stream: BinaryIO) -> Writer:
    """The form that was asked for."""
    if request.form is RecordFormat.COUNT:
        return Nothing()
    if request.form is RecordFormat.RAW:
        return RawValues(stream, request.delimiter)
    show = as_base64 if request.encoding is TextEncoding.BASE64 else as_text
    return JsonLines(stream, show)


def as_text(data: bytes | None) -> Shown:
    """Text where it is some; bytes that are no UTF-8 as `{"base64": "..."}`, so nothing is lost."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def as_base64(data: bytes | None) -> Shown:
    """Base64, whatever it is."""
    return None if data is None else base64.b64encode(data).decode()
