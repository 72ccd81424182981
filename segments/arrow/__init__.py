"""Decode record batches to Arrow columns, for the consumer and the pipeline.

This is the only package in `segments` that needs numpy, pyarrow and cramjam (the extra `consumer`).
No other module of `segments` may import it. `sidetier run` never does.
"""

from sidetier.segments.arrow.arrays import Buffer, Flags
from sidetier.segments.arrow.decode import (
    PIECE_BYTES,
    Decoded,
    decode,
    decode_batches,
    decode_in_pieces,
)
from sidetier.segments.arrow.header_table import HEADER_DTYPE, HeaderTable, scan_headers
from sidetier.segments.arrow.isolation import (
    Fate,
    Fates,
    Markers,
    fates_of,
    feed_table,
    read_markers,
)
from sidetier.segments.arrow.schema import COLUMNS, HEADERS_TYPE, RECORD_SCHEMA, schema_of
from sidetier.segments.records import MAX_BATCH_BYTES

__all__ = [
    "COLUMNS",
    "HEADERS_TYPE",
    "HEADER_DTYPE",
    "MAX_BATCH_BYTES",
    "PIECE_BYTES",
    "RECORD_SCHEMA",
    "Buffer",
    "Decoded",
    "Fate",
    "Fates",
    "Flags",
    "HeaderTable",
    "Markers",
    "decode",
    "decode_batches",
    "decode_in_pieces",
    "fates_of",
    "feed_table",
    "read_markers",
    "scan_headers",
    "schema_of",
]
