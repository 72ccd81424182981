"""The columns of Spark's own Kafka source, made of a split's records. No Spark.

Source: Spark's "Structured Streaming + Kafka Integration Guide", and what `format("kafka")` shows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sidetier.config.problems import suggestion
from sidetier.pipeline.errors import TimestampRangeError
from sidetier.pipeline.reading import timestamps
from sidetier.segments.arrow import HEADERS_TYPE
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import Offset, TopicPartition

TYPES: Final[Mapping[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": timestamps.TYPE,
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}
"""Every column, in Kafka's order; `headers` are there where they are asked for."""

_SOURCES: Final[Mapping[str, str]] = {
    "key": "key",
    "value": "value",
    "offset": "offset",
    "timestamp": "timestamp",
    "timestampType": "timestamp_type",
    "headers": "headers",
}
"""Which column of a record each is made of; the others are alike throughout a split."""


def all_columns(*, headers: bool) -> tuple[str, ...]:
    """What is handed out unless columns are named."""
    return tuple(name for name in TYPES if headers or name != "headers")


def chosen_columns(names: str | Iterable[str], *, headers: bool) -> tuple[str, ...]:
    """Columns that are named, in that order: a list, or text with commas.

    Raises:
        ConfigurationError: none is named, one twice, or one that is not there.
    """
    listed = names.split(",") if isinstance(names, str) else names
    found = tuple(name.strip() for name in listed)
    known = all_columns(headers=headers)
    unknown = [name for name in found if name not in known]
    if unknown == ["headers"]:
        raise ConfigurationError("columns: headers are there with includeHeaders=true only")
    if unknown or not found:
        what = f"there is no {unknown[0]!r}{suggestion(unknown[0], known)}" if unknown else "none"
        raise ConfigurationError(f"columns: {what}; give some of {', '.join(known)}")
    if len(set(found)) != len(found):
        raise ConfigurationError(f"columns: one comes twice in {', '.join(found)}")
    return found


def decoded_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns of records that these are made of: nothing else is decoded. Offsets name a
    record whose timestamp cannot be handed out.
    """
    sources = [_SOURCES[name] for name in columns if name in _SOURCES] or ["offset"]
    if "timestamp" in sources and "offset" not in sources:
        sources.append("offset")
    return tuple(sources)


@dataclass(frozen=True, slots=True)
class Shape:
    """Makes these columns of the records of one partition; with `raw_timestamps`, timestamps stay
    numbers of milliseconds.
    """

    tp: TopicPartition
    columns: tuple[str, ...]
    raw_timestamps: bool = False

    def of(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of `records`, which have those of `decoded_columns`; no value is copied.

        Raises:
            TimestampRangeError: a timestamp does not fit into its column.
        """
        arrays = [self._column(name, records) for name in self.columns]
        return pa.RecordBatch.from_arrays(arrays, names=list(self.columns))

    def _column(self, name: str, records: pa.RecordBatch) -> pa.Array:
        if name == "topic":
            return pa.repeat(pa.scalar(self.tp.topic, TYPES[name]), records.num_rows)
        if name == "partition":
            return pa.repeat(pa.scalar(self.tp.partition, TYPES[name]), records.num_rows)
        if name == "timestamp":
            return self._timestamps(records)
        made = _MADE.get(name)
        column = records.column(_SOURCES[name])
        return column if made is None else made(column)

    def _timestamps(self, records: pa.RecordBatch) -> pa.Array:
        column = records.column("timestamp")
        if self.raw_timestamps:
            return column
        wrong = timestamps.out_of_range(column)
        if len(wrong):
            offset, timestamp = (
                records.column(name)[int(wrong[0])].as_py() for name in ("offset", "timestamp")
            )
            raise TimestampRangeError(self.tp, Offset(offset), timestamp)
        return timestamps.as_timestamps(column)


def _timestamp_type(values: pa.Array) -> pa.Array:
    return values.cast(TYPES["timestampType"])


def _headers(lists: pa.Array) -> pa.Array:
    """Spark's source shows null where a record has none."""
    empty = pc.equal(pc.list_value_length(lists), 0)
    if not pc.any(empty).as_py():
        return lists
    return pa.ListArray.from_arrays(_offsets(lists), lists.values, type=HEADERS_TYPE, mask=empty)


def _offsets(lists: pa.Array) -> pa.Array:
    """Those of a slice too, which begins in the middle of what it was cut from."""
    offsets = lists.offsets
    return pa.array(offsets.to_numpy()) if offsets.offset else offsets


_MADE: Final[Mapping[str, Callable[[pa.Array], pa.Array]]] = {
    "timestampType": _timestamp_type,
    "headers": _headers,
}
