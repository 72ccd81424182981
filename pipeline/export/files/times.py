"""The time of each record: that of Kafka, or a field of its value."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sidetier.pipeline.export.files.partitioning import field_of, field_type
from sidetier.pipeline.export.files.values.decoder import Misfit
from sidetier.pipeline.export.files.zones import EARLIEST_MS, EPOCH, LATEST_MS, Longs
from sidetier.segments.errors import ConfigurationError


def check_time_field(values: pa.DataType, path: str | None) -> None:
    """Raises ConfigurationError where a field is named that values do not have, or is no time."""
    if path is None:
        return
    kind = field_type(values, path)
    known = (pa.types.is_integer, pa.types.is_string, pa.types.is_timestamp, pa.types.is_date)
    if not any(is_one(kind) for is_one in known):
        raise ConfigurationError(
            f"timestamp field {path!r}: is {kind}; a time is a number of milliseconds since 1970, "
            "text as 2026-11-21T08:00:00Z, a timestamp or a date"
        )


def times_of(
    timestamps: pa.Array, values: pa.Array, path: str | None
) -> tuple[Longs, tuple[Misfit, ...]]:
    """The time of each record in ms since 1970, and the records that have none that is usable.

    What cannot be used is -1 in the array.
    """
    column = timestamps if path is None else _as_milliseconds(field_of(values, path))
    found = pc.fill_null(column, EARLIEST_MS - 1).to_numpy(zero_copy_only=False).astype(np.int64)
    what = "timestamp" if path is None else f"field {path}"
    least = 0 if path is None else EARLIEST_MS
    bad = np.flatnonzero((found < least) | (found > LATEST_MS))
    misfits = tuple(Misfit(int(row), _reason(what, int(found[row]))) for row in bad)
    if len(bad):
        found = found.copy()
        found[bad] = -1
    return found, misfits


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
    """ISO 8601; without a zone it is UTC."""
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
