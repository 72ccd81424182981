"""The offsets of a split without its bytes, from what the sidecar has noted with the segments."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from sidetier.pipeline.planning.helpers import Helpers
from sidetier.pipeline.planning.split import OffsetRange, Piece, Split
from sidetier.segments.arrow import schema_of
from sidetier.segments.errors import ObjectNotFoundError
from sidetier.segments.offsets import Offset
from sidetier.storage.port import RemoteStorage
from sidetier.storage.stored_segments import noted_next_offset, noted_records

ONLY_OFFSETS = ("offset",)
_THREADS = 4


def holds_all(store: RemoteStorage, split: Split) -> bool:
    """Whether every offset of the split is a record that all readers are shown: none compacted
    away, none of a transaction. A request for each of its segments, one where nothing is noted.

    False where that is not known, and where a segment is gone or another one than was planned: who
    reads it sees what it is.

    Raises:
        StorageError: as the port says.
    """
    if split.origin.is_pinterest:
        return False
    first, *others = split.pieces
    end = _end_of_full(store, first)
    if end is None or first.base_offset > split.range.first:
        return False
    helpers = Helpers(_THREADS)
    try:
        ends = helpers.each(lambda piece: _end_of_full(store, piece), others)
        for piece, next_end in zip(others, ends, strict=True):
            if next_end is None or end != Offset(piece.base_offset):
                return False
            end = next_end
    finally:
        helpers.shutdown(cancel_futures=True)
    return end >= split.range.until


def offsets_of(span: OffsetRange, most: int) -> Iterator[pa.RecordBatch]:
    """Each offset of the range as a record, at most so many at once."""
    schema = schema_of(ONLY_OFFSETS)
    for first in range(span.first, span.until, most):
        offsets = np.arange(first, min(first + most, span.until), dtype=np.int64)
        yield pa.RecordBatch.from_arrays([pa.array(offsets)], schema=schema)


def _end_of_full(store: RemoteStorage, piece: Piece) -> Offset | None:
    """The next offset of a segment all of whose offsets are records; None of any other."""
    try:
        head = store.head_object(piece.key)
    except ObjectNotFoundError:
        return None
    end, records = noted_next_offset(head), noted_records(head)
    if head.etag != piece.etag or end is None or records != end - piece.base_offset:
        return None
    return end
