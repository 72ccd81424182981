"""Record batches into Arrow columns: the decoder of the consumer and of the pipeline.

The one place in this room that needs numpy, pyarrow and cramjam (the extra `consumer`); nothing
else in it may import this. `sidetier run` never does.
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
    Marker,
    Markers,
    TransactionFilter,
    read_markers,
)
from sidetier.segments.arrow.schema import COLUMNS, HEADERS_TYPE, RECORD_SCHEMA, schema_of
from sidetier.segments.records import MOST_BATCH_BYTES

__all__ = [
    "COLUMNS",
    "HEADERS_TYPE",
    "HEADER_DTYPE",
    "MOST_BATCH_BYTES",
    "PIECE_BYTES",
    "RECORD_SCHEMA",
    "Buffer",
    "Decoded",
    "Fate",
    "Fates",
    "Flags",
    "HeaderTable",
    "Marker",
    "Markers",
    "TransactionFilter",
    "decode",
    "decode_batches",
    "decode_in_pieces",
    "read_markers",
    "scan_headers",
    "schema_of",
]
