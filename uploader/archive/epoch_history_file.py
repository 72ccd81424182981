"""The stored `leader-epoch-checkpoint`: which leader epoch wrote which of the stored offsets.

Kafka's own text. It is written before the watermark moves over records of an epoch that it does not
name yet, and otherwise not at all: for a new partition once, with If-None-Match, and for an archive
that exists it is read when it is first needed. It is merged, and never shortened at its front:
retention drops rows from the broker's own file, the archive still holds the records. An epoch that
begins at or above the archive's next offset is left for the commit that stores a record of it: its
start may not be committed yet.

A kill between this write and the watermark leaves epochs above the watermark; the next commit does
not believe them, and writes what it knows itself. Of two who commit at once one moves the
watermark, and the other may have written last here: the watermark notes the checksum of what it was
moved with, and where that is another, it is written anew from what the stored segments note.
"""

from collections.abc import Sequence
from typing import Final

import structlog

from sidetier.archive.objects.gaps import recorded_gaps
from sidetier.archive.objects.leader_epochs import (
    StoredEpochHistory,
    read_epoch_history,
    write_epoch_history,
)
from sidetier.archive.objects.watermark import Watermark, is_noted
from sidetier.segments.epoch_history import ContradictionError, EpochHistory, contradiction, extend
from sidetier.segments.errors import ArchiveConflictError, PreconditionFailedError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import LeaderEpoch, Offset, OffsetRange, TopicPartition
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.archive.noted_epochs import noted_epoch_history
from sidetier.uploader.errors import DivergenceBelowError
from sidetier.uploader.state.segment import StoredSegment

log: Final = structlog.get_logger()
_TRIES: Final = 5

NOT_STORED: Final = StoredEpochHistory()


class EpochHistoryFile:
    """The stored epoch histories of one store; of an archive with this `watermark`, where one is
    given.
    """

    def __init__(
        self, store: RemoteStorage, layout: ArchiveLayout, watermark: Watermark | None = None
    ) -> None:
        self._store = store
        self._layout = layout
        self._watermark = watermark
        self._asked: dict[TopicPartition, tuple[str | None, Watermark]] = {}
        """What is stored beside a watermark that notes another one, by its etag, since the segments
        were asked: they are asked once, not at each look until the next commit.
        """

    def below(self, watermark: Watermark | None) -> "EpochHistoryFile":
        """The same for whoever has read this watermark: what is stored must be what it notes."""
        same = EpochHistoryFile(self._store, self._layout, watermark)
        same._asked = self._asked
        return same

    def read(self, tp: TopicPartition) -> StoredEpochHistory:
        """What is stored, in one request; written anew where it is not the watermark's.

        Raises:
            ArchiveConflictError: it was not, and another has written it meanwhile.
            MalformedObjectError: it does not parse.
        """
        known, watermark = read_epoch_history(self._store, self._layout, tp), self._watermark
        if watermark is None or known.etag is None or is_noted(watermark, known.epoch_history):
            return known
        if self._asked.get(tp) == (known.etag, watermark):
            return known
        told = noted_epoch_history(self._store, self._layout, tp, watermark, known.epoch_history)
        written = self._write_anew(tp, known, told, watermark.next_offset or Offset(0))
        self._asked[tp] = (written.etag, watermark)
        return written

    def _write_anew(
        self, tp: TopicPartition, known: StoredEpochHistory, told: EpochHistory, end: Offset
    ) -> StoredEpochHistory:
        """What segments have told of the offsets below `end`; whoever goes on there keeps what he
        has written.
        """
        wanted = _with_later(told.up_to(end), known.epoch_history, end)
        if wanted == known.epoch_history or known.etag is None:
            return known
        key = self._layout.epoch_checkpoint_key(tp)
        log.warning("epoch_history.rewritten", topic=tp.topic, partition=tp.partition)
        try:
            return write_epoch_history(self._store, key, wanted, known.etag)
        except PreconditionFailedError:
            raise ArchiveConflictError(f"{key} was written while it was read") from None

    def compare(
        self, tp: TopicPartition, committed: Offset, local: EpochHistory
    ) -> StoredEpochHistory:
        """What is stored, in one request, once it is known to be of one history with a leader's log
        below the next offset `committed`.

        Raises:
            DivergenceBelowError: it is not.
            MalformedObjectError: it does not parse.
        """
        known = self.read(tp)
        found = contradiction(known.epoch_history, local, committed)
        if found is not None:
            found = contradiction(known.epoch_history, local, committed, self._gaps(tp))
        if found is not None:
            raise _divergence_below(
                self._layout.epoch_checkpoint_key(tp), ContradictionError(found)
            )
        return known

    def cover(
        self,
        tp: TopicPartition,
        known: StoredEpochHistory | None,
        committed: Offset,
        segments: Sequence[StoredSegment],
        leader_epoch: LeaderEpoch | None = None,
    ) -> StoredEpochHistory:
        """Have it name the epochs of these segments, which follow on the next offset `committed`;
        `known` is what was stored when it was last looked at, None to read it first. What a later
        leader than that of `leader_epoch` has written is left as it is.

        Raises:
            DivergenceBelowError: another leader wrote in the log what is stored.
            ArchiveConflictError: a later leader goes on from `committed`, too; or archive and
                segments tell different histories otherwise, or others kept changing it.
            MalformedObjectError: what is stored does not parse.
        """
        key = self._layout.epoch_checkpoint_key(tp)
        gaps: Sequence[OffsetRange] | None = None
        for _ in range(_TRIES):
            known = known or self.read(tp)
            try:
                _require_latest(key, known.epoch_history, committed, segments, leader_epoch)
                wanted = _extended(key, known.epoch_history, committed, segments, gaps or ())
            except ArchiveConflictError:
                if gaps is not None:
                    raise
                # It may be the knowledge that is old; or it speaks of records that are in a gap.
                known, gaps = None, self._gaps(tp)
                continue
            if wanted == known.epoch_history:
                return known
            try:
                return write_epoch_history(self._store, key, wanted, known.etag)
            except PreconditionFailedError:
                known = None  # another writer, or an earlier attempt of ours whose answer was lost
        raise ArchiveConflictError(f"{key} was changed by others {_TRIES} times in a row")

    def _gaps(self, tp: TopicPartition) -> list[OffsetRange]:
        """In one request. What is in a gap leaves no trace in the stored epoch history."""
        return recorded_gaps(self._store, self._layout, [tp])[tp]


def _with_later(told: EpochHistory, known: EpochHistory, end: Offset) -> EpochHistory:
    last = told.entries[-1][0] if told.entries else -1
    later = tuple(entry for entry in known.entries if entry[1] >= end and entry[0] > last)
    return EpochHistory(told.entries + later)


def _require_latest(
    key: str,
    stored: EpochHistory,
    committed: Offset,
    segments: Sequence[StoredSegment],
    leader_epoch: LeaderEpoch | None,
) -> None:
    """What begins where our segments go is of a commit that never came through, unless one is ahead
    of us: its entries would be missing for good, for it knows them to be written.
    """
    if leader_epoch is None:
        return
    end = segments[-1].next_offset
    for epoch, start in stored.entries:
        if committed <= start < end and epoch > leader_epoch:
            raise ArchiveConflictError(
                f"{key}: the leader of epoch {epoch} has gone on at offset {start}, and this "
                f"broker leads in {leader_epoch}"
            )


def _extended(
    key: str,
    epoch_history: EpochHistory,
    committed: Offset,
    segments: Sequence[StoredSegment],
    gaps: Sequence[OffsetRange],
) -> EpochHistory:
    try:
        for segment in segments:
            end = segment.next_offset
            local, sparse = segment.epoch_history, segment.sparse
            epoch_history = extend(epoch_history, local, committed, end, gaps=gaps, sparse=sparse)
            committed = end
    except ContradictionError as error:
        raise _divergence_below(key, error) from None
    except ArchiveConflictError as error:
        raise ArchiveConflictError(f"{key}: {error}") from None
    return epoch_history


def _divergence_below(key: str, error: ContradictionError) -> DivergenceBelowError:
    return DivergenceBelowError(f"{key}: {error}", error.found)
