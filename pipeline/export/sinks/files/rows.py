"""Conversion of records to the rows of files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sidetier.pipeline.export.sinks.files.names import why_no_directory
from sidetier.pipeline.export.sinks.files.options import FileFormat, FilesOptions, Layout
from sidetier.pipeline.export.sinks.files.partitioners import (
    Encoded,
    field_of,
    field_type,
    partitioner_of,
)
from sidetier.pipeline.export.sinks.files.zones import EARLIEST_MS, EPOCH, LATEST_MS, Longs
from sidetier.pipeline.export.values.decoder import (
    DecodedValues,
    Misfit,
    ValueDecoder,
    lacking,
    with_fields,
)
from sidetier.pipeline.reading import timestamps
from sidetier.segments.arrow import HEADERS_TYPE
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import TopicPartition


def check_time_field(values: pa.DataType, path: str | None) -> None:
    """Raise ConfigurationError if `path` names a field that is absent or that cannot be a time."""
    if path is None:
        return
    kind = field_type(values, path)
    known = (pa.types.is_integer, pa.types.is_string, pa.types.is_timestamp, pa.types.is_date)
    if not any(matches(kind) for matches in known):
        raise ConfigurationError(
            f"timestamp field {path!r}: is {kind}; a time is a number of milliseconds since 1970, "
            "text as 2026-11-21T08:00:00Z, a timestamp or a date"
        )


def times_of(
    timestamps: pa.Array, values: pa.Array, path: str | None
) -> tuple[Longs, tuple[Misfit, ...]]:
    """Return the time of each record in ms since 1970, and misfits for records without a usable
    time.

    The time of a misfit is -1.
    """
    column = timestamps if path is None else _as_milliseconds(field_of(values, path))
    # A null becomes a time that is never valid.
    times = pc.fill_null(column, EARLIEST_MS - 1).to_numpy(zero_copy_only=False).astype(np.int64)
    source = "timestamp" if path is None else f"field {path}"
    # A record's timestamp of -1 means that it has none. A field can be a time before 1970.
    least = 0 if path is None else EARLIEST_MS
    bad = np.flatnonzero((times < least) | (times > LATEST_MS))
    misfits = tuple(Misfit(int(row), _reason(source, int(times[row]))) for row in bad)
    if len(bad):
        times = times.copy()
        times[bad] = -1
    return times, misfits


def _as_milliseconds(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_timestamp(kind):
        # A safe cast refuses to cut off microseconds.
        milliseconds = column.cast(pa.timestamp("ms", tz=kind.tz), safe=False)
        return milliseconds.view(pa.int64())
    if pa.types.is_date(kind):
        return column.cast(pa.timestamp("ms")).view(pa.int64())
    if pa.types.is_string(kind):
        return pa.array([_parsed(text) for text in column.to_pylist()], type=pa.int64())
    return column.cast(pa.int64())


def _parsed(text: str | None) -> int | None:
    """Parse an ISO 8601 time; without a zone it is UTC."""
    try:
        at = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    since = (at.replace(tzinfo=UTC) if at.tzinfo is None else at) - EPOCH
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000


def _reason(source: str, milliseconds: int) -> str:
    if milliseconds < EARLIEST_MS or (source == "timestamp" and milliseconds == -1):
        return f"{source} is missing or not a time, which the partitioner or rotation needs"
    return f"{source} {milliseconds} ms is not a time that has a date"


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows for files, in order of offsets."""

    offsets: Longs
    times: Longs
    encoded: Encoded
    table: pa.RecordBatch

    def part(self, first: int, end: int) -> "Rows":
        """Return the rows from `first` (inclusive) to `end` (exclusive)."""
        return Rows(
            self.offsets[first:end],
            self.times[first:end],
            Encoded(self.encoded.codes[first:end], self.encoded.names),
            self.table.slice(first, end - first),
        )


@dataclass(frozen=True, slots=True)
class Prepared:
    """Result of converting one batch.

    Attributes:
        misfits: records that do not fit, in order of offsets, with row numbers of the batch.
        skipped: offsets of the records without a value that the options leave out.
    """

    rows: Rows
    misfits: tuple[Misfit, ...]
    skipped: Longs


class RowMaker:
    """Converts records of one Kafka partition and one schema to rows. The same records give the
    same rows.
    """

    def __init__(
        self,
        options: FilesOptions,
        tp: TopicPartition,
        value: ValueDecoder,
        key: ValueDecoder,
    ) -> None:
        """Create a row maker for values and keys of these decoders.

        Raises:
            ConfigurationError: a field of the options cannot be used with these values.
        """
        self._options = options
        self._tp = tp
        self._decoder = value
        self._key = key
        self._partition = partitioner_of(options, tp.partition, self._decoder.type)
        check_time_field(self._decoder.type, options.timestamp_field)
        self.schema = self._schema()

    @property
    def needs_time(self) -> bool:
        """Whether a record without a usable time does not fit."""
        options = self._options
        return options.is_by_time or options.timestamp_field is not None

    @property
    def _has_fields_as_columns(self) -> bool:
        is_struct = pa.types.is_struct(self._decoder.type)
        return self._options.layout is not Layout.RECORD and is_struct

    def prepare(
        self, batch: pa.RecordBatch, decoded: DecodedValues, keys: DecodedValues | None
    ) -> Prepared:
        """Return the rows of a batch, made from its decoded values and keys.

        `keys` is None if keys stay bytes.
        """
        times, timeless = times_of(
            batch.column("timestamp"), decoded.values, self._options.timestamp_field
        )
        misfits = {misfit.row: misfit for misfit in self._undated(batch)}
        misfits |= {misfit.row: misfit for misfit in timeless if self.needs_time}
        if self._has_fields_as_columns and self._options.null_values == "keep":
            misfits |= {
                misfit.row: misfit for misfit in lacking(self._decoder, batch.column("value"))
            }
        if keys is not None:
            misfits |= {
                misfit.row: Misfit(misfit.row, f"key: {misfit.reason}") for misfit in keys.misfits
            }
        # Last, because the last reason of a record wins: its value's.
        misfits |= {misfit.row: misfit for misfit in decoded.misfits}
        keep = np.ones(batch.num_rows, dtype=np.bool_)
        keep[list(misfits)] = False
        skip = np.zeros(batch.num_rows, dtype=np.bool_)
        if self._options.null_values == "skip":
            skip = keep & batch.column("value").is_null().to_numpy(zero_copy_only=False)
        skipped = batch.column("offset").to_numpy()[skip]
        kept = np.flatnonzero(keep & ~skip)
        if keys is not None:
            column_index = batch.schema.get_field_index("key")
            batch = batch.set_column(column_index, pa.field("key", keys.values.type), keys.values)
        rows, without_directory = self._rows(batch, decoded.values, times, kept)
        misfits |= {misfit.row: misfit for misfit in without_directory}
        ordered = tuple(misfits[row] for row in sorted(misfits))
        return Prepared(rows, ordered, skipped)

    def _rows(
        self, batch: pa.RecordBatch, values: pa.Array, times: Longs, kept: Longs
    ) -> tuple[Rows, Sequence[Misfit]]:
        """Return the rows of the kept records, and misfits for those without a possible
        directory.
        """
        taken, values, times = _taken(batch, values, times, kept)
        encoded = self._partition(values, times)
        reasons = {
            code: reason for code, reason in enumerate(self._refused(encoded)) if reason is not None
        }
        misfits = []
        if reasons:
            fits = ~np.isin(encoded.codes, list(reasons))
            misfits = [
                Misfit(int(kept[row]), reasons[int(encoded.codes[row])])
                for row in np.flatnonzero(~fits)
            ]
            encoded = Encoded(encoded.codes[fits], encoded.names)
            taken, values, times = _taken(taken, values, times, np.flatnonzero(fits))
        offsets = taken.column("offset").to_numpy()
        return Rows(offsets, times, encoded, self._table(taken, values)), misfits

    def _refused(self, encoded: Encoded) -> Iterator[str | None]:
        directory, topic = self._options.topics_dir, self._tp.topic
        return (why_no_directory(directory, topic, name) for name in encoded.names)

    def _undated(self, batch: pa.RecordBatch) -> Sequence[Misfit]:
        """Return misfits for records whose timestamps are outside the years of Python's dates.

        Python readers cannot read any row of a file with such a timestamp.
        """
        if self._options.layout is Layout.VALUE or self._options.format is FileFormat.RAW:
            return ()
        timestamps_ms = batch.column("timestamp").to_numpy()
        bad = np.flatnonzero((timestamps_ms < EARLIEST_MS) | (timestamps_ms > LATEST_MS))
        return [Misfit(int(row), f"timestamp {timestamps_ms[row]} ms has no date") for row in bad]

    def _schema(self) -> pa.Schema:
        kind = self._decoder.type
        if self._options.format is FileFormat.RAW:
            keys = [] if self._options.key_delimiter is None else [pa.field("key", pa.binary())]
            return pa.schema([*keys, pa.field("value", kind)])
        if self._options.layout is Layout.VALUE:
            if pa.types.is_struct(kind):
                return pa.schema([kind.field(at) for at in range(kind.num_fields)])
            return pa.schema([pa.field("value", kind)])
        record = pa.schema(
            [
                pa.field("key", self._key.type),
                pa.field("value", kind),
                pa.field("topic", pa.string()),
                pa.field("partition", pa.int32()),
                pa.field("offset", pa.int64()),
                pa.field("timestamp", timestamps.TYPE),
                pa.field("timestampType", pa.int32()),
                pa.field("headers", HEADERS_TYPE),
            ]
        )
        # A value without fields stays one column: among records with fields there may be others.
        return with_fields(record, kind) if self._has_fields_as_columns else record

    def _table(self, batch: pa.RecordBatch, values: pa.Array) -> pa.RecordBatch:
        count = batch.num_rows
        if self._options.format is FileFormat.RAW:
            with_keys = self._options.key_delimiter is not None
            columns = [batch.column("key"), values] if with_keys else [values]
        elif self._options.layout is Layout.VALUE:
            columns = values.flatten() if pa.types.is_struct(values.type) else [values]
        else:
            columns = [
                batch.column("key"),
                values,
                pa.repeat(pa.scalar(self._tp.topic), count),
                pa.repeat(pa.scalar(self._tp.partition, pa.int32()), count),
                batch.column("offset"),
                timestamps.as_timestamps(batch.column("timestamp")),
                batch.column("timestamp_type").cast(pa.int32()),
                batch.column("headers"),
            ]
            if self._has_fields_as_columns:
                columns = [columns[0], *columns[2:], *values.flatten()]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _taken(
    batch: pa.RecordBatch, values: pa.Array, times: Longs, rows: Longs
) -> tuple[pa.RecordBatch, pa.Array, Longs]:
    """Return only these rows of all three."""
    if len(rows) == batch.num_rows:
        return batch, values, times
    chosen = pa.array(rows)
    return batch.take(chosen), values.take(chosen), times[rows]
