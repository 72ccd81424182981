"""Partitioners: the directory of each record, from its Kafka partition, its fields or its time."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from sidetier.pipeline.export.sinks.files.names import NULL_PARTITION, escaped
from sidetier.pipeline.export.sinks.files.options import FilesOptions, PartitionerKind
from sidetier.pipeline.export.sinks.files.path_format import PathFormat
from sidetier.pipeline.export.sinks.files.rotation import Codes
from sidetier.pipeline.export.sinks.files.zones import Longs, local_time, moment, zone_named
from sidetier.segments.errors import ConfigurationError


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
        ConfigurationError: the field does not exist.
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
