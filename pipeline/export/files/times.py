"""The time of each record: Kafka's timestamp, or a field of the value."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sidetier.pipeline.export.files.partitioning import field_of, field_type
from sidetier.pipeline.export.files.values.decoder import Misfit
from sidetier.pipeline.export.files.zones import EARLIEST_MS, EPOCH, LATEST_MS, Longs
from sidetier.segments.errors import ConfigurationError


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
    times = pc.fill_null(column, EARLIEST_MS - 1).to_numpy(zero_copy_only=False).astype(np.int64)
    source = "timestamp" if path is None else f"field {path}"
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


def _reason(what: str, found: int) -> str:
    if found < EARLIEST_MS or (what == "timestamp" and found == -1):
        return f"{what} is missing or no time, and the partitioner or rotation needs one"
    return f"{what} {found} ms is no time that has a date"
