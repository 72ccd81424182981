"""Kafka's timestamps as a column of timestamps.

Kafka keeps 64 bits of milliseconds, and never checks them: producers that send microseconds or
nanoseconds are common. A column has 64 bits of microseconds, as that of Spark's own Kafka source,
whose job fails with `long overflow` beyond them. Here, too, nothing is wrapped or cut.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

TYPE: Final = pa.timestamp("us", tz="UTC")
EARLIEST_MS: Final = -(2**63 // 1000)
LATEST_MS: Final = (2**63 - 1) // 1000
"""The first and the last that a column holds: in the years -290308 and 294247."""
_MICROSECONDS: Final = 1000


def out_of_range(milliseconds: pa.Array) -> npt.NDArray[np.int64]:
    """The rows whose timestamps no column holds."""
    ends = pc.min_max(milliseconds).as_py()
    if ends["min"] is None or EARLIEST_MS <= ends["min"] <= ends["max"] <= LATEST_MS:
        return np.empty(0, np.int64)
    found = milliseconds.to_numpy()
    return np.flatnonzero((found < EARLIEST_MS) | (found > LATEST_MS))


def reason(milliseconds: int) -> str:
    """What is wrong with a timestamp that is out of range."""
    return (
        f"timestamp {milliseconds} ms is out of the range of a timestamp column, {EARLIEST_MS} to "
        f"{LATEST_MS} ms"
    )


def as_timestamps(milliseconds: pa.Array) -> pa.Array:
    """A column of `TYPE`; raises pa.ArrowInvalid where one is out of range."""
    return pc.multiply_checked(milliseconds, _MICROSECONDS).view(TYPE)
