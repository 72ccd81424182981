"""The stored `leader-epoch-checkpoint`: which leader epoch wrote which archived offsets.

The object has Kafka's own text format. It is written only before `offset.wm` advances over records
of an epoch that it does not have yet: for a new partition once, with If-None-Match. For an existing
archive it is read when it is first needed. New epochs are merged into it, and its first rows are
never dropped: retention drops rows from the broker's own file, but the archive still holds the
records. An epoch that begins at or above the archive end offset is left for the commit that stores
a record of it, because its start may not be committed yet.

A kill between this write and `offset.wm` leaves epochs above the archive end offset. The next
commit ignores them, and writes the epochs that it knows itself.

If two sidecars commit at once, one of them writes `offset.wm`, but the other may have written this
object last. So `offset.wm` has the checksum of the epoch history that it was written with. If the
stored epoch history differs, it is rebuilt from the metadata of the stored segments.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Final

import structlog

from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.leader_epochs import (
    StoredEpochHistory,
    read_epoch_history,
    write_epoch_history,
)
from sidetier.archive.objects.notes import noted_epoch, noted_next_offset
from sidetier.archive.objects.watermark import Watermark, is_noted
from sidetier.segments.epoch_history import (
    ContradictionError,
    Entry,
    EpochHistory,
    checksum_below,
    contradiction,
    extend,
    parse_runs,
)
from sidetier.segments.errors import ArchiveConflictError, PreconditionFailedError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.notes import EPOCHS_KEY, LEADER_EPOCH_KEY
from sidetier.segments.offsets import (
    UNKNOWN_EPOCH,
    LeaderEpoch,
    Offset,
    OffsetRange,
    TopicPartition,
)
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.archive.takeover import at_once
from sidetier.uploader.errors import DivergenceBelowError
from sidetier.uploader.state.segment import StoredSegment

# -- the epoch history of the stored segments, from the metadata of their `.log` objects ----------


@dataclass(frozen=True, slots=True)
class _Noted:
    """The metadata of a stored `.log`.

    Attributes:
        runs: Its leader epochs, each with the first offset.
        last: Leader epoch of its last batch.
        end: Its end offset, exclusive.
    """

    runs: tuple[Entry, ...]
    last: LeaderEpoch
    end: Offset


def noted_epoch_history(
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    watermark: Watermark,
    beside: EpochHistory,
) -> EpochHistory:
    """Rebuild the epoch history below the archive end offset from the metadata of the segments.

    Makes one listing, and one request for each segment. Segments without an entry in `_metadata`
    are ignored. Offsets that an earlier segment has are ignored in later ones. The stored epoch
    history (`beside`) is used in these cases:

    - below the first segment whose metadata has leader epochs: segments of Pinterest's uploader
      have none;
    - for a segment whose metadata has only its last leader epoch, if `beside` ends with that epoch
      there;
    - as a whole, if a later segment has no leader epochs at all;
    - as a whole, if the rebuilt one does not match the checksum in `offset.wm` either, and no
      segment contradicts `beside`: a later leader may have stored a better start of the first
      epoch.

    Args:
        store: The store.
        layout: The keys on it.
        tp: The partition.
        watermark: The content of `offset.wm`.
        beside: The stored epoch history.
    """
    segments = list(_noted(store, layout, tp, watermark))
    rebuilt = _rebuilt(segments, beside)
    if checksum_below(rebuilt, watermark.next_offset or 0) == watermark.epoch_history:
        return rebuilt
    agree = all(beside.violation(segment.runs, segment.end) is None for segment in segments)
    return beside if agree else rebuilt


def _rebuilt(segments: Iterable[_Noted], beside: EpochHistory) -> EpochHistory:
    entries: list[Entry] = []
    expected: Offset | None = None
    for segment in segments:
        runs = segment.runs
        if expected is None:
            if not runs:
                continue
            # Below the first segment with recorded epochs, only the stored history knows them.
            entries.extend(beside.up_to(runs[0][1]).entries)
            expected = runs[0][1]
        elif not runs and segment.last == UNKNOWN_EPOCH:
            return beside
        runs = runs or _guessed(segment, expected, beside)
        for (epoch, start), (_, stop) in pairwise((*runs, (UNKNOWN_EPOCH, segment.end))):
            # Segments can overlap. The earlier one keeps its offsets, so a run that ends
            # within it is passed, and one that reaches beyond it counts from there.
            if stop > expected and (not entries or epoch > entries[-1][0]):
                entries.append((epoch, max(start, expected)))
        expected = max(expected, segment.end)
    return beside if expected is None else EpochHistory(tuple(entries))


def _guessed(segment: _Noted, start: Offset, beside: EpochHistory) -> tuple[Entry, ...]:
    """Return the runs of a segment whose metadata has only its last leader epoch, from `start` on.

    Such a segment has too many runs for the metadata, or an earlier version cut it in a quarantine.
    """
    entries = beside.up_to(segment.end).entries
    if not entries or entries[-1][0] != segment.last:
        return ((segment.last, start),)
    return tuple((epoch, max(first, start)) for epoch, first in entries[_at(entries, start) :])


def _at(entries: Sequence[Entry], start: Offset) -> int:
    """Return the index of the entry that covers `start`; 0 if none does."""
    return max(bisect_right(entries, start, key=itemgetter(1)) - 1, 0)


def _noted(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, watermark: Watermark
) -> Iterator[_Noted]:
    """Yield the metadata of the segments by rising base offset, read in parallel if many."""
    stored = StoredPartition(store, layout, tp)
    named = stored.readable_names()
    logs = [
        (segment.base_offset, segment.log.key)
        for segment in stored.logs(watermark.start_offset or 0, watermark.base_offset + 1)
        if not named or segment.base_offset in named
    ]
    heads = at_once(lambda log: store.head_object(log[1]), logs)
    for (base, _), head in zip(logs, heads, strict=True):
        runs = parse_runs(head.metadata.get(EPOCHS_KEY, "")).entries
        end = noted_next_offset(head)
        last = noted_epoch(head, LEADER_EPOCH_KEY)
        yield _Noted(runs, last, Offset(base) if end is None else end)


log: Final = structlog.get_logger()
_TRIES: Final = 5

NOT_STORED: Final = StoredEpochHistory()


class EpochHistoryFile:
    """Reads and writes the stored epoch histories of one store.

    With a `watermark`, it reads the epoch history that this `offset.wm` was written with.
    """

    def __init__(
        self, store: RemoteStorage, layout: ArchiveLayout, watermark: Watermark | None = None
    ) -> None:
        self._store = store
        self._layout = layout
        self._watermark = watermark
        self._asked: dict[TopicPartition, tuple[str | None, Watermark]] = {}
        """Versions of the stored epoch history and `offset.wm` for which the segments' metadata was
        read. It is not read a second time for the same versions: that costs a request per segment.
        """

    def below(self, watermark: Watermark | None) -> "EpochHistoryFile":
        """Return a reader for an archive with this `offset.wm`, whose checksum must match."""
        same = EpochHistoryFile(self._store, self._layout, watermark)
        # Shared: it remembers per partition, not per `offset.wm`.
        same._asked = self._asked
        return same

    def read(self, tp: TopicPartition) -> StoredEpochHistory:
        """Read the stored epoch history in one request.

        If it does not match the checksum in `offset.wm`, it is rebuilt and stored first.

        Raises:
            ArchiveConflictError: another sidecar has written it meanwhile.
            MalformedObjectError: it does not parse.
        """
        stored, watermark = read_epoch_history(self._store, self._layout, tp), self._watermark
        if watermark is None or stored.etag is None or is_noted(watermark, stored.epoch_history):
            return stored
        # These two versions were compared with the segments
        # before: asking again would give the same answer.
        if self._asked.get(tp) == (stored.etag, watermark):
            return stored
        noted = noted_epoch_history(self._store, self._layout, tp, watermark, stored.epoch_history)
        written = self._rewrite(tp, stored, noted, watermark.next_offset or Offset(0))
        self._asked[tp] = (written.etag, watermark)
        return written

    def _rewrite(
        self, tp: TopicPartition, known: StoredEpochHistory, rebuilt: EpochHistory, end: Offset
    ) -> StoredEpochHistory:
        """Store the rebuilt epochs below `end`, and keep later epochs at or above `end`.

        Another sidecar may have written these before its commit.
        """
        wanted = _with_later(rebuilt.up_to(end), known.epoch_history, end)
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
        """Read the stored epoch history in one request, and compare it with a leader's log.

        Args:
            tp: The partition.
            committed: Archive end offset; epochs at or above it are not compared.
            local: The leader epochs of the log.

        Raises:
            DivergenceBelowError: archive and log have different histories.
            MalformedObjectError: the stored epoch history does not parse.
        """
        stored = self.read(tp)
        mismatch = contradiction(stored.epoch_history, local, committed)
        if mismatch is not None:
            # Gaps excuse a mismatch. They cost a listing, so they are read only if there is one.
            mismatch = contradiction(stored.epoch_history, local, committed, self._gaps(tp))
        if mismatch is not None:
            raise _divergence_below(
                self._layout.epoch_checkpoint_key(tp), ContradictionError(mismatch)
            )
        return stored

    def cover(
        self,
        tp: TopicPartition,
        known: StoredEpochHistory | None,
        committed: Offset,
        segments: Sequence[StoredSegment],
        leader_epoch: LeaderEpoch | None = None,
    ) -> StoredEpochHistory:
        """Store the leader epochs of segments, before they are committed.

        Args:
            tp: The partition.
            known: The stored epoch history when it was last read or written; None reads it first.
            committed: Archive end offset, which the segments follow.
            segments: The segments, by rising base offset.
            leader_epoch: Leader epoch of this broker. Epochs of a later leader are never replaced.
                None skips that check.

        Returns:
            The stored epoch history, with the epochs of the segments.

        Raises:
            DivergenceBelowError: archived records are of other leader epochs than in the log.
            ArchiveConflictError: a later leader continues from `committed`, too; or archive and
                segments have different histories otherwise; or other sidecars kept changing the
                object.
            MalformedObjectError: the stored epoch history does not parse.
        """
        key = self._layout.epoch_checkpoint_key(tp)
        gaps: Sequence[OffsetRange] | None = None
        for _ in range(_TRIES):
            # None after a refusal, so that the next round starts from the stored version.
            known = known or self.read(tp)
            try:
                _require_latest(key, known.epoch_history, committed, segments, leader_epoch)
                wanted = _extended(key, known.epoch_history, committed, segments, gaps or ())
            except ArchiveConflictError:
                if gaps is not None:
                    raise
                # `known` may be outdated, or the contradicting records may be in a recorded gap.
                known, gaps = None, self._gaps(tp)
                continue
            if wanted == known.epoch_history:
                return known
            try:
                return write_epoch_history(self._store, key, wanted, known.etag)
            except PreconditionFailedError:
                known = None  # another writer, or our own attempt whose answer was lost
        raise ArchiveConflictError(f"{key} was changed by others {_TRIES} times in a row")

    def _gaps(self, tp: TopicPartition) -> list[OffsetRange]:
        """List the recorded gaps, in which leader epochs may be missing. One request."""
        return StoredPartition(self._store, self._layout, tp).gaps()


def _with_later(rebuilt: EpochHistory, known: EpochHistory, end: Offset) -> EpochHistory:
    last = rebuilt.entries[-1][0] if rebuilt.entries else -1
    later = tuple(entry for entry in known.entries if entry[1] >= end and entry[0] > last)
    return EpochHistory(rebuilt.entries + later)


def _require_latest(
    key: str,
    stored: EpochHistory,
    committed: Offset,
    segments: Sequence[StoredSegment],
    leader_epoch: LeaderEpoch | None,
) -> None:
    """Raise ArchiveConflictError if a later leader has stored epochs where our segments go.

    An epoch there is usually left by a commit that never completed, and may be replaced. But a
    later leader remembers that its epochs are stored, and would not write them again.
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
