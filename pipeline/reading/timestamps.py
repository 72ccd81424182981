"""Kafka's timestamps as a timestamp column.

Kafka stores 64 bits of milliseconds and does not check them. Producers that send microseconds or
nanoseconds are common. A column has 64 bits of microseconds, as in Spark's own Kafka source, whose
job fails with `long overflow` for larger values. Here, too, no value is wrapped or cut off.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

TYPE: Final = pa.timestamp("us", tz="UTC")
EARLIEST_MS: Final = -(2**63 // 1000)
LATEST_MS: Final = (2**63 - 1) // 1000
"""With `EARLIEST_MS`, the range of a column (inclusive): years -290308 to 294247."""
_MICROSECONDS: Final = 1000


def out_of_range(milliseconds: pa.Array) -> npt.NDArray[np.int64]:
    """Return the rows whose timestamps do not fit into a column."""
    ends = pc.min_max(milliseconds).as_py()
    if ends["min"] is None or EARLIEST_MS <= ends["min"] <= ends["max"] <= LATEST_MS:
        return np.empty(0, np.int64)
    values = milliseconds.to_numpy()
    return np.flatnonzero((values < EARLIEST_MS) | (values > LATEST_MS))


def reason(milliseconds: int) -> str:
    """Return the error text for a timestamp that is out of range."""
    return (
        f"timestamp {milliseconds} ms is out of the range of a timestamp column, {EARLIEST_MS} to "
        f"{LATEST_MS} ms"
    )


def as_timestamps(milliseconds: pa.Array) -> pa.Array:
    """Convert milliseconds to a column of `TYPE`.

    Raises:
        pa.ArrowInvalid: a timestamp is out of range.
    """
    return pc.multiply_checked(milliseconds, _MICROSECONDS).view(TYPE)
