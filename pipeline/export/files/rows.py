"""Records into the rows of files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sidetier.pipeline.export.files.names import why_no_directory
from sidetier.pipeline.export.files.options import FileFormat, FilesOptions, Layout
from sidetier.pipeline.export.files.partitioning import Encoded, partitioner_of
from sidetier.pipeline.export.files.times import check_time_field, times_of
from sidetier.pipeline.export.files.values.decoder import (
    DecodedValues,
    Misfit,
    ValueDecoder,
    lacking,
)
from sidetier.pipeline.export.files.zones import EARLIEST_MS, LATEST_MS, Longs
from sidetier.pipeline.reading import timestamps
from sidetier.segments.arrow import HEADERS_TYPE
from sidetier.segments.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class Rows:
    """Some records that belong in files, in order of offsets."""

    offsets: Longs
    times: Longs
    encoded: Encoded
    table: pa.RecordBatch

    def part(self, first: int, end: int) -> "Rows":
        """The rows from `first` up to, not including, `end`."""
        return Rows(
            self.offsets[first:end],
            self.times[first:end],
            Encoded(self.encoded.codes[first:end], self.encoded.names),
            self.table.slice(first, end - first),
        )


@dataclass(frozen=True, slots=True)
class Prepared:
    """What became of the records of one batch.

    `misfits` are in order of offsets; their rows are those of the batch as it was read.
    """

    rows: Rows
    misfits: tuple[Misfit, ...]
    skipped: int
    """Records without a value that are not wanted."""


class RowMaker:
    """Makes rows of records of one Kafka partition that have one schema; the same records give the
    same rows.
    """

    def __init__(
        self,
        options: FilesOptions,
        tp: TopicPartition,
        value: ValueDecoder,
        key: ValueDecoder,
    ) -> None:
        """`value` and `key` are the decoders whose values `prepare` is given.

        Raises:
            ConfigurationError: a field cannot be used with these values.
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
        """Whether a record without a time cannot be placed."""
        options = self._options
        return options.is_by_time or options.timestamp_field is not None

    @property
    def _has_fields_as_columns(self) -> bool:
        return self._options.layout is Layout.VALUE and pa.types.is_struct(self._decoder.type)

    def prepare(
        self, batch: pa.RecordBatch, decoded: DecodedValues, keys: DecodedValues | None
    ) -> Prepared:
        """The rows of some records, their values and, where they are columns, their keys."""
        times, timeless = times_of(
            batch.column("timestamp"), decoded.values, self._options.timestamp_field
        )
        misfits = {one.row: one for one in self._undated(batch)}
        misfits |= {one.row: one for one in timeless if self.needs_time}
        if self._has_fields_as_columns and self._options.null_values == "keep":
            misfits |= {one.row: one for one in lacking(self._decoder, batch.column("value"))}
        if keys is not None:
            misfits |= {one.row: Misfit(one.row, f"key: {one.reason}") for one in keys.misfits}
        misfits |= {one.row: one for one in decoded.misfits}
        keep = np.ones(batch.num_rows, dtype=np.bool_)
        keep[list(misfits)] = False
        if self._options.null_values == "skip":
            keep &= batch.column("value").is_valid().to_numpy(zero_copy_only=False)
        kept = np.flatnonzero(keep)
        if keys is not None:
            at = batch.schema.get_field_index("key")
            batch = batch.set_column(at, pa.field("key", keys.values.type), keys.values)
        rows, homeless = self._rows(batch, decoded.values, times, kept)
        misfits |= {one.row: one for one in homeless}
        ordered = tuple(misfits[row] for row in sorted(misfits))
        return Prepared(rows, ordered, batch.num_rows - len(rows.offsets) - len(misfits))

    def _rows(
        self, batch: pa.RecordBatch, values: pa.Array, times: Longs, kept: Longs
    ) -> tuple[Rows, Sequence[Misfit]]:
        """The rows of those that are kept, and those of them that no directory can hold."""
        taken, values, times = _taken(batch, values, times, kept)
        encoded = self._partition(values, times)
        reasons = {code: why for code, why in enumerate(self._refused(encoded)) if why is not None}
        misfits = []
        if reasons:
            fits = ~np.isin(encoded.codes, list(reasons))
            misfits = [
                Misfit(int(kept[at]), reasons[int(encoded.codes[at])])
                for at in np.flatnonzero(~fits)
            ]
            encoded = Encoded(encoded.codes[fits], encoded.names)
            taken, values, times = _taken(taken, values, times, np.flatnonzero(fits))
        offsets = taken.column("offset").to_numpy()
        return Rows(offsets, times, encoded, self._table(taken, values)), misfits

    def _refused(self, encoded: Encoded) -> Iterator[str | None]:
        directory, topic = self._options.topics_dir, self._tp.topic
        return (why_no_directory(directory, topic, name) for name in encoded.names)

    def _undated(self, batch: pa.RecordBatch) -> Sequence[Misfit]:
        """Records whose timestamps have no date: readers in Python fail on a whole file of them."""
        if self._options.layout is Layout.VALUE or self._options.format is FileFormat.RAW:
            return ()
        found = batch.column("timestamp").to_numpy()
        bad = np.flatnonzero((found < EARLIEST_MS) | (found > LATEST_MS))
        return [Misfit(int(row), f"timestamp {found[row]} ms has no date") for row in bad]

    def _schema(self) -> pa.Schema:
        kind = self._decoder.type
        if self._options.format is FileFormat.RAW:
            keys = [] if self._options.key_delimiter is None else [pa.field("key", pa.binary())]
            return pa.schema([*keys, pa.field("value", kind)])
        if self._options.layout is Layout.VALUE:
            if pa.types.is_struct(kind):
                return pa.schema([kind.field(at) for at in range(kind.num_fields)])
            return pa.schema([pa.field("value", kind)])
        return pa.schema(
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
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _taken(
    batch: pa.RecordBatch, values: pa.Array, times: Longs, rows: Longs
) -> tuple[pa.RecordBatch, pa.Array, Longs]:
    """Only these rows."""
    if len(rows) == batch.num_rows:
        return batch, values, times
    chosen = pa.array(rows)
    return batch.take(chosen), values.take(chosen), times[rows]
