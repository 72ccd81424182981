"""Record batches, format v2: one import for their headers and the walk over a whole segment."""

from sidetier.segments.headers import (
    HEADER_BYTES,
    BatchHeader,
    Compression,
    TimestampType,
    parse_batch_header,
    walk_headers,
)
from sidetier.segments.index_builder import RebuiltIndexes
from sidetier.segments.walker import BatchWalker, SegmentFacts

__all__ = [
    "HEADER_BYTES",
    "BatchHeader",
    "BatchWalker",
    "Compression",
    "RebuiltIndexes",
    "SegmentFacts",
    "TimestampType",
    "parse_batch_header",
    "walk_headers",
]
