"""Decode the records of one piece of batches to Arrow columns."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sidetier.segments.arrow.arrays import Flags, Longs, Place
from sidetier.segments.arrow.columns import (
    binary_column,
    fixed_column,
    headers_column,
    no_headers,
)
from sidetier.segments.arrow.fields import Contents, Fields, read_fields
from sidetier.segments.arrow.header_table import HeaderTable
from sidetier.segments.arrow.payloads import Payload, counts_of
from sidetier.segments.arrow.record_headers import read_record_headers
from sidetier.segments.arrow.starts import NoRecordsError, record_starts
from sidetier.segments.headers import TimestampType

_CONTENTS: Final = frozenset({"key", "value", "headers"})


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wanted columns, and the wanted offsets from `first` up to `end`, exclusive."""

    schema: pa.Schema
    first: int = 0
    end: int | None = None

    @property
    def nothing(self) -> pa.RecordBatch:
        """A batch without records."""
        return pa.RecordBatch.from_pylist([], schema=self.schema)

    def rows(self, offsets: Longs) -> slice:
        """Return the slice of the wanted offsets. `offsets` must ascend."""
        start = int(np.searchsorted(offsets, self.first)) if self.first else 0
        stop = len(offsets) if self.end is None else int(np.searchsorted(offsets, self.end))
        return slice(start, max(start, stop))


def records_of(payload: Payload, wanted: Wanted, place: Place) -> pa.RecordBatch:
    """Decode the wanted records of a piece.

    Raises:
        DamagedSegmentError: The bytes of a batch are not the records that its header states.
        ValueError: There are two GiB or more of keys or of values.
    """
    if not len(payload.batches):
        return wanted.nothing
    records = _read(payload, place, contents=not _CONTENTS.isdisjoint(wanted.schema.names))
    rows = wanted.rows(records.offsets)
    arrays = [_COLUMNS[name](records, rows) for name in wanted.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted.schema)


def from_headers(batches: HeaderTable, wanted: Wanted) -> pa.RecordBatch:
    """Return the wanted records of batches whose `headers_suffice`, without reading their bytes."""
    counts = counts_of(batches)
    # The row of each batch's first record. Offsets are
    # dense here: `headers_suffice` was checked first.
    firsts = np.cumsum(counts) - counts
    offsets = np.arange(counts.sum()) + np.repeat(batches.column("base_offset") - firsts, counts)
    records = _Known(batches, counts, offsets)
    rows = wanted.rows(offsets)
    arrays = [_KNOWN[name](records, rows) for name in wanted.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted.schema)


def headers_suffice(batches: HeaderTable, columns: Iterable[str]) -> bool:
    """Return whether the batch headers determine all of these columns.

    They do if compaction has removed no record: then each batch has as many records as offsets.
    """
    if not _KNOWN.keys() >= set(columns):
        return False
    span = batches.column("last_offset") - batches.column("base_offset") + 1
    return bool((batches.column("record_count") == span).all())


@dataclass(frozen=True, slots=True)
class _Known:
    """The fields of records that are known from the batch headers."""

    batches: HeaderTable
    counts: Longs
    offsets: Longs

    def each(self, values: npt.NDArray[Any], rows: slice) -> npt.NDArray[Any]:
        """Repeat a value per batch for each of its records."""
        # The common case: one producer, one leader epoch.
        # A fill is cheaper than a repeat and a slice.
        if (values == values[0]).all():
            return np.full(rows.stop - rows.start, values[0])
        return np.repeat(values, self.counts)[rows]

    def each_of(self, field: str, rows: slice) -> npt.NDArray[Any]:
        """Repeat a field of the batch headers for each record."""
        return self.each(self.batches.column(field), rows)


@dataclass(frozen=True, slots=True)
class _Records(_Known):
    """Positions of the records of a piece and of their fields. `firsts` is each batch's first
    row.
    """

    payload: Payload
    place: Place
    firsts: Longs
    starts: Longs
    ends: Longs
    fields: Fields

    @property
    def contents(self) -> Contents:
        """The positions of the contents, which have been read."""
        assert self.fields.contents is not None  # noqa: S101 - `records_of` has read the contents
        return self.fields.contents

    def refuse_unless(self, sound: Flags, reason: str, first_row: int = 0) -> None:
        """Raise for the first record that is not sound. `first_row` is the row of the first
        flag.
        """
        if sound.all():
            return
        # `argmin` of flags is the position of the first False.
        row = first_row + int(np.argmin(sound))
        batch = int(np.searchsorted(self.firsts, row, side="right")) - 1
        number = row - int(self.firsts[batch])
        at = int(self.starts[row] - self.payload.begins[batch])
        raise self.payload.batches.damaged(
            self.place, batch, f"record {number}, at byte {at} of its records, {reason}"
        )


def _read(payload: Payload, place: Place, *, contents: bool) -> _Records:
    """Find the records, read their fields, and check them."""
    counts, batches = payload.counts, payload.batches
    firsts = np.cumsum(counts) - counts
    try:
        starts = record_starts(payload.data, payload.begins, payload.ends, counts)
    except NoRecordsError as error:
        raise batches.damaged(place, error.row, str(error)) from None
    # A batch without records (compaction keeps the headers of some) has no first or last row.
    # Its row in `firsts` is the next batch's, so all indexing by `firsts` needs this mask.
    filled = counts > 0
    lasts = (firsts + counts - 1)[filled]
    ends = np.empty_like(starts)
    # A record ends where the next one begins, except for the last one of each batch.
    ends[:-1] = starts[1:]
    ends[lasts] = payload.ends[filled]
    fields = read_fields(payload.data, starts, ends, contents=contents)
    offsets = np.repeat(batches.column("base_offset"), counts) + fields.offset_deltas
    records = _Records(batches, counts, offsets, payload, place, firsts, starts, ends, fields)
    # First the form of the records, then their offsets: an offset
    # delta that was read from bytes that are not a record means nothing.
    records.refuse_unless(fields.sound, "is none")
    rising = np.ones(len(offsets), dtype=np.bool_)
    np.greater(offsets[1:], offsets[:-1], out=rising[1:])
    # The first record is also compared with the last record of the batch before it, by
    # the line above: batches do not overlap, so a correct record passes both comparisons.
    rising[firsts[filled]] &= offsets[firsts[filled]] >= batches.column("base_offset")[filled]
    rising[lasts] &= offsets[lasts] <= batches.column("last_offset")[filled]
    records.refuse_unless(
        rising, "has an offset that does not rise, or is not in the batch's range"
    )
    return records


def _offset(records: _Known, rows: slice) -> pa.Array:
    return fixed_column(records.offsets[rows], pa.int64())


def _timestamp(records: _Records, rows: slice) -> pa.Array:
    """Return the producer's timestamps, or the batch's max timestamp for all if the broker
    set it.
    """
    by_broker = records.payload.batches.timestamp_types == TimestampType.LOG_APPEND_TIME.value
    if by_broker.all():
        return fixed_column(records.each_of("max_timestamp", rows), pa.int64())
    timestamps = records.each_of("base_timestamp", rows) + records.fields.timestamp_deltas[rows]
    if by_broker.any():
        appended = records.each(by_broker, rows)
        timestamps = np.where(appended, records.each_of("max_timestamp", rows), timestamps)
    return fixed_column(timestamps, pa.int64())


def _timestamp_type(records: _Known, rows: slice) -> pa.Array:
    types = records.batches.timestamp_types.astype(np.int8)
    return fixed_column(records.each(types, rows), pa.int8())


def _key(records: _Records, rows: slice) -> pa.Array:
    return binary_column(records.payload.data, records.contents.keys.where(rows))


def _value(records: _Records, rows: slice) -> pa.Array:
    return binary_column(records.payload.data, records.contents.values.where(rows))


def _headers(records: _Records, rows: slice) -> pa.Array:
    counts = records.contents.header_counts[rows]
    if not counts.any():
        return no_headers(len(counts))
    data = records.payload.data
    header_spans = read_record_headers(
        data, counts, records.contents.headers_at[rows], records.ends[rows]
    )
    records.refuse_unless(header_spans.sound, "has headers that do not parse", rows.start)
    return headers_column(data, counts, header_spans.keys, header_spans.values)


def _is_control(records: _Known, rows: slice) -> pa.Array:
    return pa.array(records.each(records.batches.is_control, rows))


def _from_batch(field: str, kind: pa.DataType) -> Callable[[_Known, slice], pa.Array]:
    return lambda records, rows: fixed_column(records.each_of(field, rows), kind)


_KNOWN: Final[dict[str, Callable[[_Known, slice], pa.Array]]] = {
    "offset": _offset,
    "timestamp_type": _timestamp_type,
    "leader_epoch": _from_batch("leader_epoch", pa.int32()),
    "producer_id": _from_batch("producer_id", pa.int64()),
    "producer_epoch": _from_batch("producer_epoch", pa.int16()),
    "is_control": _is_control,
}
_COLUMNS: Final[dict[str, Callable[[_Records, slice], pa.Array]]] = {
    **_KNOWN,
    "timestamp": _timestamp,
    "key": _key,
    "value": _value,
    "headers": _headers,
}
