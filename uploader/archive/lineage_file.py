"""The stored `leader-epoch-checkpoint`: which leader epoch wrote which of the stored offsets.

Kafka's own text. It is written before the watermark moves over records of an epoch that it does not
name yet, and otherwise not at all: for a new partition once, with If-None-Match, and for an archive
that exists it is read when it is first needed. It is merged, and never shortened at its front:
retention drops rows from the broker's own file, the archive still holds the records. An epoch that
begins at or above the archive's next offset is left for the commit that stores a record of it: its
start may not be committed yet.

A kill between this write and the watermark leaves epochs above the watermark; the next commit does
not believe them, and writes what it knows itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sidetier.segments.errors import (
    ArchiveConflictError,
    MalformedObjectError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SegmentError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.lineage import (
    NO_LINEAGE,
    Lineage,
    encode_leader_epoch_checkpoint,
    extend,
    parse_leader_epoch_checkpoint,
)
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfAbsent, IfMatch, RemoteStorage
from sidetier.uploader.sending.upload import StoredSegment

_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class StoredLineage:
    """What is stored, and as which version; no etag where there is none yet."""

    lineage: Lineage = NO_LINEAGE
    etag: str | None = None


NOT_STORED: Final = StoredLineage()


class LineageFile:
    """The stored lineages of one store."""

    def __init__(self, store: RemoteStorage, layout: ArchiveLayout) -> None:
        self._store = store
        self._layout = layout

    def read(self, tp: TopicPartition) -> StoredLineage:
        """What is stored, in one request.

        Raises:
            MalformedObjectError: it does not parse.
        """
        key = self._layout.epoch_checkpoint_key(tp)
        try:
            found = self._store.get_object(key)
        except ObjectNotFoundError:
            return NOT_STORED
        try:
            lineage = parse_leader_epoch_checkpoint(found.data.decode(), key)
        except (SegmentError, UnicodeDecodeError) as error:
            raise MalformedObjectError(
                f"{key}: not a leader epoch checkpoint: {error}; move it away, and it is written "
                "anew from what the broker knows"
            ) from None
        return StoredLineage(lineage, found.head.etag)

    def cover(
        self,
        tp: TopicPartition,
        known: StoredLineage | None,
        committed: Offset,
        segments: Sequence[StoredSegment],
    ) -> StoredLineage:
        """Have it name the epochs of these segments, which follow on the next offset `committed`;
        `known` is what was stored when it was last looked at, None to read it first.

        Raises:
            ArchiveConflictError: the archive and the segments tell different histories, or others
                kept changing it.
            MalformedObjectError: what is stored does not parse.
        """
        key = self._layout.epoch_checkpoint_key(tp)
        for _ in range(_TRIES):
            was_known, known = known, known or self.read(tp)
            try:
                wanted = _extended(key, known.lineage, committed, segments)
            except ArchiveConflictError:
                if was_known is None:
                    raise
                known = None  # it may be the knowledge that is old
                continue
            if wanted == known.lineage:
                return known
            body = BytesBody(encode_leader_epoch_checkpoint(wanted).encode())
            condition = IfAbsent() if known.etag is None else IfMatch(known.etag)
            try:
                etag = self._store.put_object(key, body, condition=condition)
            except PreconditionFailedError:
                known = None  # another writer, or an earlier try of ours whose answer was lost
            else:
                return StoredLineage(wanted, etag)
        raise ArchiveConflictError(f"{key} was changed by others {_TRIES} times in a row")


def _extended(
    key: str, lineage: Lineage, committed: Offset, segments: Sequence[StoredSegment]
) -> Lineage:
    try:
        for segment in segments:
            end = segment.next_offset
            lineage = extend(lineage, segment.lineage, committed, end, sparse=segment.sparse)
            committed = end
    except ArchiveConflictError as error:
        raise ArchiveConflictError(f"{key}: {error}") from None
    return lineage
