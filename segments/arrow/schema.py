"""The columns of decoded record batches."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

HEADERS_TYPE: Final = pa.list_(
    pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
)
"""Kafka's record headers, in order. A key may occur more than once."""

RECORD_SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("timestamp_type", pa.int8(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE, nullable=False),
        pa.field("leader_epoch", pa.int32(), nullable=False),
        pa.field("producer_id", pa.int64(), nullable=False),
        pa.field("producer_epoch", pa.int16(), nullable=False),
        pa.field("is_control", pa.bool_(), nullable=False),
    ]
)
"""One row per record.

`timestamp` is in ms since 1970 (-1: none). `timestamp_type` is a value of `TimestampType`; with
LOG_APPEND_TIME the broker set the timestamp. A null key or value is null, not empty. Records
without headers have an empty list. `leader_epoch` is the partition leader epoch. `producer_id` and
`producer_epoch` are -1 without idempotence. `is_control` marks transaction markers, which are
decoded only on request.
"""

COLUMNS: Final = tuple(RECORD_SCHEMA.names)


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """Return the schema of some columns in the given order; of all columns for None.

    Raises:
        ValueError: A column is unknown, or occurs twice.
    """
    if columns is None:
        return RECORD_SCHEMA
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or len(set(columns)) != len(columns):
        problem = f"no column {unknown[0]!r}" if unknown else "a column occurs twice"
        raise ValueError(f"{problem} in {', '.join(columns)}: there are {', '.join(COLUMNS)}")
    return pa.schema([RECORD_SCHEMA.field(name) for name in columns])
