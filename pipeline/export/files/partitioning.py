"""Partitioners: the directory of each record, from its Kafka partition, its fields or its time."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sidetier.pipeline.export.files.names import NULL_PARTITION, escaped
from sidetier.pipeline.export.files.options import FilesOptions, PartitionerKind
from sidetier.pipeline.export.files.path_format import PathFormat
from sidetier.pipeline.export.files.rotation import Codes
from sidetier.segments.errors import ConfigurationError

Longs = npt.NDArray[np.int64]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST_MS: Final = -62_135_596_800_000 + 2 * 86_400_000
"""With `LATEST_MS`, the range of times that have a date in the years 1 to 9999 in every
time zone.
"""
LATEST_MS: Final = 253_402_300_799_999 - 2 * 86_400_000
_MINUTE_MS: Final = 60_000
_MOST_REMEMBERED: Final = 100_000


def zone_named(name: str) -> ZoneInfo:
    """Return the time zone with this IANA name, such as `Europe/Berlin`.

    Raises:
        ConfigurationError: this host has no such time zone.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            f"timezone {name!r}: no time zone of that name is known here; names are as "
            "Europe/Berlin, UTC; the package tzdata brings them where the system has none"
        ) from None


def moment(milliseconds: int) -> datetime:
    """Return the date and time that is this many ms after the start of 1970.

    The time may be UTC or local time; the result is marked as UTC in both cases.
    """
    return EPOCH + timedelta(milliseconds=milliseconds)


def local_time(timestamps: Longs, zone: ZoneInfo) -> Longs:
    """Return the wall-clock times of a zone, in ms since 1970-01-01T00:00 of that clock.

    Args:
        timestamps: ms since 1970, from `EARLIEST_MS` to `LATEST_MS`.
        zone: the time zone.
    """
    if zone.key == "UTC":
        return timestamps
    minutes, positions = np.unique(timestamps // _MINUTE_MS, return_inverse=True)
    offsets = np.array([_offset(zone, int(minute)) for minute in minutes], dtype=np.int64)
    local: Longs = timestamps + offsets[positions]
    return local


@lru_cache(_MOST_REMEMBERED)
def _offset(zone: ZoneInfo, minute: int) -> int:
    """Return the zone's offset from UTC in this minute, in ms."""
    offset = moment(minute * _MINUTE_MS).astimezone(zone).utcoffset()
    return 0 if offset is None else round(offset.total_seconds() * 1000)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Encoded partitions: `names[codes[i]]` is the directory of record `i`."""

    codes: Codes
    names: tuple[str, ...]


Partition = Callable[[pa.Array, Longs], Encoded]
"""Takes the decoded values and the time of each record in ms; returns their encoded partitions."""


def partitioner_of(options: FilesOptions, partition: int, values: pa.DataType) -> Partition:
    """Return the partitioner that the options select, for records of one Kafka partition.

    Raises:
        ConfigurationError: values do not have a partition field, or it cannot be a directory.
    """
    if options.partitioner is PartitionerKind.DEFAULT:
        name = (default_name(partition),)
        return lambda _values, times: Encoded(np.zeros(len(times), dtype=np.intp), name)
    if options.partitioner is PartitionerKind.FIELD:
        for path in options.partition_fields:
            _check(path, field_type(values, path))
        return _by_field(options.partition_fields)
    return _by_time(options)


def default_name(partition: int) -> str:
    """Return the directory that the default partitioner gives a Kafka partition."""
    return f"partition={partition}"


def field_type(kind: pa.DataType, path: str) -> pa.DataType:
    """Return the type of a field; dots in `path` lead to nested fields.

    Raises:
        ConfigurationError: there is no such field.
    """
    field_kind = kind
    for step in path.split("."):
        index = field_kind.get_field_index(step) if pa.types.is_struct(field_kind) else -1
        if index < 0:
            raise ConfigurationError(f"field {path!r}: values have no such field, but {kind}")
        field_kind = field_kind.field(index).type
    return field_kind


def field_of(values: pa.Array, path: str) -> pa.Array:
    """Return a field of each value; null if the value or a field on the path is null."""
    column = values
    for step in path.split("."):
        index = column.type.get_field_index(step)
        column = pa.compute.struct_field(column, index)
    return column


def _check(path: str, kind: pa.DataType) -> None:
    if pa.types.is_nested(kind):
        raise ConfigurationError(f"field {path!r}: is {kind}, which can be no directory")


def _by_field(paths: tuple[str, ...]) -> Partition:
    def encode(values: pa.Array, times: Longs) -> Encoded:
        codes = np.zeros(len(times), dtype=np.intp)
        names = [""]
        for path in paths:
            column = field_of(values, path).dictionary_encode(null_encoding="encode")
            texts = [f"{path}={_text(value)}" for value in column.dictionary.to_pylist()]
            inner = column.indices.to_numpy(zero_copy_only=False).astype(np.intp)
            codes, names = _combined(codes, names, inner, texts)
        return Encoded(codes, tuple(names))

    return encode


def _combined(
    outer: Codes, outer_names: list[str], inner: Codes, inner_names: list[str]
) -> tuple[Codes, list[str]]:
    """Combine two encodings; return only pairs that occur."""
    width = max(len(inner_names), 1)
    pairs, codes = np.unique(outer * width + inner, return_inverse=True)
    names = [
        "/".join(filter(None, (outer_names[pair // width], inner_names[pair % width])))
        for pair in pairs
    ]
    return codes.astype(np.intp), names


def _text(value: object) -> str:
    """Return a value as a directory name, in the form of Java and Spark."""
    if value is None:
        return NULL_PARTITION
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return escaped(value.hex())
    if isinstance(value, datetime):
        plain = value.astimezone(UTC) if value.tzinfo else value
        return escaped(plain.replace(tzinfo=None).isoformat(sep=" "))
    return escaped(str(value))


def _by_time(options: FilesOptions) -> Partition:
    zone = zone_named(options.timezone)
    pattern = PathFormat.parsed(options.pattern, options.locale)
    duration = options.duration_ms

    def encode(_values: pa.Array, times: Longs) -> Encoded:
        local = local_time(times, zone)
        spans, codes = np.unique(local // duration, return_inverse=True)
        names = tuple(pattern.render(moment(int(span) * duration)) for span in spans)
        return Encoded(codes.astype(np.intp), names)

    return encode
