"""A split as the part of an archive that it is, so that a task need not look at the archive."""

from collections.abc import Iterator

from sidetier.archive.extract import Extract
from sidetier.archive.stored_log import StoredLog, Version
from sidetier.pipeline.planning.split import Piece, Split
from sidetier.segments.names import FileKind
from sidetier.storage.port import ObjectSummary

_UNKNOWN_TIME = 0


def extract_of(split: Split) -> Extract:
    """What the planner has seen of the archive."""
    origin = split.origin
    pieces = (*split.pieces, *origin.behind)
    return Extract(
        topic_id=origin.topic_id,
        is_pinterest=origin.is_pinterest,
        logs=tuple(_stored_log(piece) for piece in pieces),
        end=origin.until,
        begins=(split.range.first, split.pieces[0].start),
        ends=dict(_ends(split.pieces)),
    )


def _stored_log(piece: Piece) -> StoredLog:
    index = None
    if piece.index is not None:
        key = piece.key.removesuffix(FileKind.LOG.value) + FileKind.INDEX.value
        index = ObjectSummary(key, piece.index.size, piece.index.etag, _UNKNOWN_TIME)
    row = ObjectSummary(piece.key, piece.size, piece.etag, _UNKNOWN_TIME)
    return StoredLog(piece.base_offset, row, index)


def _ends(pieces: tuple[Piece, ...]) -> Iterator[tuple[Version, int]]:
    for piece in pieces:
        if piece.end < piece.size:
            yield (piece.key, piece.etag, piece.size), piece.end
