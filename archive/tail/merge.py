"""The merge rule: which ranges of which packs are the tail of a partition. Pure.

Each row carries the epoch history of the leader that answered for it. A leader epoch has one
leader, which appends in order, so two logs that have the same epoch at an offset have the same
records up to there (KIP-101). So one history decides about all rows:

1. Only rows of the archive's topic id count.
   Without an archive, those of the topic id that was stored last.
2. The history of the newest leader epoch wins, also over every lower epoch that reaches further: a
   later leader never had what it does not show. A claim, which has no bytes, counts for it.
   Below the first epoch that this history knows, a history that also has this epoch continues it;
   without one, that of the next lower leader epoch, unless retention may have cut the first one or
   a pack cannot be read.
3. A batch of epoch e at offset x is true if that history has e at x. Otherwise it is stale.
4. The archive wins below its end offset. From there on, true ranges are joined without a gap; the
   tail ends at the first one.

Equal offsets of one epoch must have equal bytes. Rows of the same offsets are compared here by size
and checksum; parts of rows that overlap are compared by `read` when it has their bytes.

As long as the claim of a new leader is not in the packs, nothing shows that records of the one
before it are stale after an unclean election. A pack that cannot be read may have such a claim:
then a partition has no tail, unless its newest leader has stored rows since (`unread_reason`).
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from operator import itemgetter
from typing import Final, NamedTuple

from sidetier.archive.tail.pack import TailRow
from sidetier.segments.epoch_history import NO_EPOCHS, Entry, EpochHistory, behind
from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.offsets import (
    BrokerId,
    LeaderEpoch,
    Offset,
    OffsetRange,
)

ZOMBIE_MS: Final = 10 * 60 * 1000
"""A broker that was replaced as the leader does not answer as a leader for longer than this."""

_Starts = dict[LeaderEpoch, Offset]
"""An epoch history that grows: the start offset of each leader epoch."""


@dataclass(frozen=True, slots=True)
class PackRef:
    """A tail pack as it was listed.

    Attributes:
        broker: The broker whose sidecar has written it.
        number: Its number.
        key: Its key.
        etag: Its etag.
        size: Its size in bytes.
        modified_ms: When it was stored, by the store's clock, in ms since 1970.
    """

    broker: BrokerId
    number: int
    key: str
    etag: str
    size: int
    modified_ms: int


class PackedRow(NamedTuple):
    """A row, and the pack that it is in. A writer's own row that is not stored yet has no pack."""

    pack: PackRef | None
    row: TailRow

    @property
    def stored_in(self) -> PackRef:
        """The pack.

        Raises:
            ValueError: The row is not stored yet.
        """
        if self.pack is None:
            raise ValueError(f"{self.row.tp}: a row that is not stored yet")
        return self.pack

    @property
    def place(self) -> tuple[str, int, int, int]:
        """What identifies the row among those of its partition."""
        key = "" if self.pack is None else self.pack.key
        return key, self.row.position, self.row.start, self.row.end

    @property
    def first_stored_ms(self) -> int:
        """When its records were stored first, in ms since 1970. Cleaning may have copied them."""
        if self.pack is None:
            return NEVER_MS
        return self.row.first_stored_ms or self.pack.modified_ms


NEVER_MS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class ArchivedPart:
    """What the archive has of a partition.

    Attributes:
        end: The archive end offset; None if nothing is archived. The tail then begins at the
            lowest offset of a row.
        epochs: The stored epoch history. Epochs that begin at `end` or above are ignored.
        topic_id: The archive's topic id; None if it has none. The rows must then agree.
        gaps: The recorded gaps. No record of them is archived.
    """

    end: Offset | None = None
    epochs: EpochHistory = NO_EPOCHS
    topic_id: str | None = None
    gaps: Sequence[OffsetRange] = ()


def below_start(start: Offset | None) -> tuple[OffsetRange, ...]:
    """Return the offsets below the start of an archive, as gaps: no record of them is archived."""
    return (OffsetRange(Offset(0), start),) if start else ()


class Reason(StrEnum):
    """Why a range is not part of the tail."""

    TOPIC_ID = "topic_id"
    """It belongs to another topic of this name."""
    ARCHIVED = "archived"
    """It is below the archive end offset."""
    STALE = "stale"
    """A later leader does not have it. No other object has these records, which were committed."""
    UNPROVEN = "unproven"
    """No history shows whether the newest leader has it: retention has cut that leader's history
    before its claim was stored."""
    DUPLICATE = "duplicate"
    """Another pack has it, too."""
    GAP = "gap"
    """It is behind the first gap."""
    DIVERGED = "diverged"
    """The archive itself has records that a later leader does not have."""
    UNREAD = "unread"
    """A pack that cannot be read may show that a later leader does not have it."""


class LeftOut(NamedTuple):
    """A range of a row that is not part of the tail.

    Attributes:
        source: The row.
        offsets: The range.
        reason: Why.
        text: The reason in words, with the numbers.
    """

    source: PackedRow
    offsets: OffsetRange
    reason: Reason
    text: str


class TailSlice(NamedTuple):
    """The part of a row to read.

    Attributes:
        source: The row, whose bytes are read as a whole.
        start: First offset to take. A batch can begin below it, if the archive has a gap there.
        end: End, exclusive. No batch reaches beyond it.
    """

    source: PackedRow
    start: Offset
    end: Offset


@dataclass(frozen=True, slots=True)
class MergedTail:
    """The tail of a partition.

    Attributes:
        start: Where it begins: the archive end offset.
        end: End, exclusive: up to here the records are safe. Equal to `start` if it is empty.
        topic_id: The topic id of its rows; None without rows.
        slices: What to read, in order of offsets, without a gap and without an overlap.
        left_out: The other ranges, with the reason.
        epochs: The epoch history of archive and tail, cut at `end`.
        log_start: Highest log start offset of the rows of the newest leader epoch; None without
            rows. Records below it were deleted from the log by DeleteRecords or local retention.
        leader_epoch: The newest leader epoch of all rows and of the archive; None without any.
        gap: The first gap, if a true range follows behind it.
        unread: Why packs that cannot be read leave the tail empty; None if they do not.
        newest_epochs: The epoch history of archive and newest leader, not cut at `end`: a claim
            shows where the leader has discarded records of the one before it.
        diverged: How the archive itself contradicts the newest leader; None if it does not.
    """

    start: Offset
    end: Offset
    topic_id: str | None
    slices: tuple[TailSlice, ...]
    left_out: tuple[LeftOut, ...]
    epochs: EpochHistory
    log_start: Offset | None
    leader_epoch: int | None
    gap: OffsetRange | None
    unread: str | None = None
    newest_epochs: EpochHistory = NO_EPOCHS
    diverged: str | None = None

    @property
    def newest_ms(self) -> int | None:
        """Largest timestamp of the rows that are read; None without one."""
        newest = max((part.source.row.max_timestamp for part in self.slices), default=-1)
        return None if newest < 0 else newest


def merge(
    archived: ArchivedPart, rows: Iterable[PackedRow], unread: Iterable[PackRef] = ()
) -> MergedTail:
    """Merge all live rows of all brokers of one partition. `unread` are the live packs that cannot
    be read.

    A sidecar that begins to lead adds its own claim (without a pack): `end` is then the offset from
    which it stores, because its own log agrees up to there.

    Raises:
        ArchiveConflictError: Two rows of one leader epoch contradict each other: in their epoch
            histories, or in the bytes of the same offsets. The message names both packs.
    """
    rows = list(rows)
    topic_id = archived.topic_id or newest_topic_id(rows)
    unread = list(unread)
    ours = [source for source in rows if source.row.topic_id == topic_id]
    left_out = [
        LeftOut(
            source,
            OffsetRange(source.row.start, source.row.end),
            Reason.TOPIC_ID,
            f"topic id {source.row.topic_id}, and the topic is {topic_id}",
        )
        for source in rows
        if source.row.topic_id != topic_id
    ]
    epochs = _Histories(archived, ours, may_guess=not unread).newest()
    divergence = _divergence(archived, epochs)
    archive_end = Offset(0) if archived.end is None else archived.end
    pieces: list[TailSlice] = []
    for source in ours:
        true, stale = _split(source, epochs)
        left_out += _below_end(source, archived, divergence)
        left_out += (
            LeftOut(source, OffsetRange(max(offsets.start, archive_end), offsets.end), reason, text)
            for offsets, reason, text in stale
            if offsets.end > archive_end
        )
        pieces += (
            TailSlice(source, max(start, archive_end), end)
            for start, end in true
            if end > archive_end
        )
    pieces.sort(key=_by_start)
    _check_equal(pieces)
    begin = archived.end
    if begin is None:
        begin = pieces[0].start if pieces else Offset(0)
    doubt = unread_reason(ours, epochs, unread) if pieces else None
    is_unproven = any(out.reason is Reason.UNPROVEN for out in left_out)
    if doubt is None and unread and (is_unproven or (pieces and _may_diverge(archived, epochs))):
        doubt = f"{unread[0].key} cannot be read, and may show what the newest leader has"
    for text, reason in ((divergence, Reason.DIVERGED), (doubt, Reason.UNREAD)):
        if text is not None and pieces:
            left_out += (
                LeftOut(source, OffsetRange(start, end), reason, text)
                for source, start, end in pieces
            )
            pieces = []
    slices = tuple(_joined(pieces, begin))
    end = slices[-1].end if slices else begin
    left_out += _not_taken(pieces, slices, end)
    behind = min((piece.start for piece in pieces if piece.start > end), default=None)
    leading = max((source.row.leader_epoch for source in ours), default=None)
    log_starts = [source.row.log_start for source in ours if source.row.leader_epoch == leading]
    return MergedTail(
        start=begin,
        end=end,
        topic_id=topic_id,
        slices=slices,
        left_out=tuple(left_out),
        epochs=epochs.up_to(end),
        log_start=max(log_starts, default=None),
        leader_epoch=epochs.entries[-1][0] if epochs.entries else None,
        gap=None if behind is None else OffsetRange(end, behind),
        unread=doubt,
        newest_epochs=epochs,
        diverged=divergence,
    )


def _by_start(piece: TailSlice) -> tuple[int, int]:
    return piece.start, -piece.end


def newest_topic_id(rows: Iterable[PackedRow]) -> str | None:
    """Return the topic id of the records that were stored last; None without rows."""
    newest = max(rows, key=_age_of, default=None)
    return None if newest is None else newest.row.topic_id


def _age_of(source: PackedRow) -> tuple[int, int, str]:
    number = -1 if source.pack is None else source.pack.number
    return source.first_stored_ms, number, source.row.topic_id


def _place(source: PackedRow) -> str:
    return "a row that is not stored yet" if source.pack is None else source.pack.key


class _Histories:
    """What is known of the epoch history of the leader of each epoch."""

    def __init__(
        self, archived: ArchivedPart, rows: Sequence[PackedRow], *, may_guess: bool
    ) -> None:
        self._may_guess = may_guess
        self._known: dict[LeaderEpoch, _Starts] = {}
        """By leader epoch: the histories of all rows of that epoch, which one leader has given."""
        self._widest: dict[LeaderEpoch, PackedRow | None] = {}
        """The row whose history reaches furthest down; None for the archive."""
        self._may_be_raised: set[LeaderEpoch] = set()
        """Leaders whose history begins at their log start: an earlier part may be missing."""
        self._lowest: _Starts = {}
        """The lowest known start of each epoch. Retention raises the first start of a log, and
        compaction that of a copy."""
        stored = NO_EPOCHS if archived.end is None else _with_records(archived, archived.end)
        self._seen: set[tuple[Entry, ...]] = set()
        self._archive_end = -1 if archived.end is None else int(archived.end)
        if stored.entries:
            # The archive speaks for the leader of its last epoch.
            self._add(stored.entries, None)
        for source in rows:
            self._add(source.row.epochs.entries, source)

    def _add(self, entries: tuple[Entry, ...], source: PackedRow | None) -> None:
        if entries in self._seen:  # as almost all rows of a partition
            return
        self._seen.add(entries)
        epoch = entries[-1][0]
        known, widest = self._known.get(epoch), self._widest.get(epoch)
        if known is not None and source is not None and widest is not None:
            _check_one_leader(known, dict(entries), widest, source)
        if known is None or entries[0][0] < min(known):
            self._widest[epoch] = source
            self._may_be_raised.discard(epoch)
            if source is not None and is_cut(source.row.epochs, source.row.log_start):
                self._may_be_raised.add(epoch)
        mine = self._known.setdefault(epoch, {})
        for entry_epoch, start in entries:
            mine[entry_epoch] = min(mine.get(entry_epoch, start), start)
            self._lowest[entry_epoch] = min(self._lowest.get(entry_epoch, start), start)

    def newest(self) -> EpochHistory:
        """Return the history that decides about all rows.

        Raises:
            ArchiveConflictError: Starts do not ascend.
        """
        order = sorted(self._known, reverse=True)
        if not order:
            return NO_EPOCHS
        last, epochs = order[0], dict(self._known[order[0]])
        while (below := self._below(epochs, order, last)) is not None:
            last, earlier = below
            epochs |= earlier
        entries = [(epoch, self._lowest[epoch]) for epoch in sorted(epochs)]
        for (epoch, start), (later, later_start) in pairwise(entries):
            if start > later_start:
                raise ArchiveConflictError(
                    f"leader epoch {epoch} starts at {start}, and the later one {later} at "
                    f"{later_start}"
                )
        return EpochHistory(tuple(entries))

    def _below(
        self, epochs: _Starts, order: Sequence[LeaderEpoch], last: LeaderEpoch
    ) -> tuple[LeaderEpoch, _Starts] | None:
        """Return the epochs below the first one of a history, and the leader that knew them."""
        first = min(epochs)
        for leader in order:
            known = self._known[leader]
            earlier = {epoch: start for epoch, start in known.items() if epoch < first}
            if first in known and earlier:
                return leader, earlier
        # No history reaches from this epoch to an earlier one. A claim is missing, or retention has
        # cut the history of the leader. What lies below the archive end offset is not asked for.
        start = self._lowest[first]
        if last in self._may_be_raised or start <= self._archive_end or not self._may_guess:
            return None
        for leader in order:
            known = self._known[leader]
            earlier = {epoch: known[epoch] for epoch in known if known[epoch] < start}
            if leader < first and earlier:
                return leader, earlier
        return None


def _with_records(archived: ArchivedPart, end: Offset) -> EpochHistory:
    """Return the archived epochs without those in gaps. No record of them is archived, so nothing
    would have shown that a later leader has discarded them.
    """
    entries = archived.epochs.up_to(end).entries
    kept = (
        entry
        for entry, (_, stop) in pairwise([*entries, (LeaderEpoch(0), end)])
        if behind(entry[1], archived.gaps) < stop
    )
    return EpochHistory(tuple(kept))


def is_cut(epochs: EpochHistory, log_start: int) -> bool:
    """Whether the beginning of an epoch history may be missing, with the records below a log start
    offset.
    """
    return 0 < epochs.entries[0][1] <= log_start


def _check_one_leader(known: _Starts, given: _Starts, widest: PackedRow, source: PackedRow) -> None:
    """Compare two histories of one leader, above the first epoch that both know."""
    first = max(min(known), min(given))
    if {e: s for e, s in known.items() if e > first} != {
        e: s for e, s in given.items() if e > first
    }:
        raise ArchiveConflictError(
            f"{source.row.tp}: leader epoch {source.row.leader_epoch} has the epochs "
            f"{sorted(known.items())} in {_place(widest)}, and {sorted(given.items())} in "
            f"{_place(source)}"
        )


def _divergence(archived: ArchivedPart, epochs: EpochHistory) -> str | None:
    """Return how the end of the archive contradicts the newest leader; None if it does not.

    One offset decides: logs that have the same epoch there are equal below.
    """
    if archived.end is None:
        return None
    last, stored = _last_archived(archived, archived.end)
    epoch = epochs.epoch_at(last)
    if stored is None or epoch is None or stored == epoch:
        return None
    return (
        f"the archive has offset {last} of leader epoch {stored}, and the leader of epoch "
        f"{epochs.entries[-1][0]} has it of {epoch}"
    )


def _last_archived(archived: ArchivedPart, end: Offset) -> tuple[int, LeaderEpoch | None]:
    """Return the offset of the last archived record, and its leader epoch."""
    last = end - 1
    for gap in sorted(archived.gaps, reverse=True):
        if last in gap:
            last = gap.start - 1
    return last, archived.epochs.up_to(end).epoch_at(last)


def _may_diverge(archived: ArchivedPart, epochs: EpochHistory) -> bool:
    """Whether the newest leader's history is not known at the end of the archive."""
    if archived.end is None:
        return False
    last, stored = _last_archived(archived, archived.end)
    return stored is not None and epochs.epoch_at(last) is None


def unread_reason(
    ours: Sequence[PackedRow], epochs: EpochHistory, unread: Iterable[PackRef]
) -> str | None:
    """Return why a pack that cannot be read leaves the tail empty; None if none does.

    It may have the claim of a later leader, which has discarded records. It has not if the newest
    leader that is known has stored a row after it: in a later pack of the same broker, or so much
    later that a leader that was replaced would know.
    """
    newest = epochs.entries[-1][0] if epochs.entries else None
    witnesses = [
        source for source in ours if source.pack is not None and source.row.leader_epoch == newest
    ]
    for pack in unread:
        is_older = any(
            pack.modified_ms + ZOMBIE_MS < source.first_stored_ms or _is_behind(source, pack)
            for source in witnesses
        )
        if not is_older:
            return (
                f"{pack.key} cannot be read, and may show that the leader of a later epoch than "
                f"{newest} has discarded these records"
            )
    return None


def _is_behind(source: PackedRow, pack: PackRef) -> bool:
    """Whether a row is in a later pack of the same broker, and not as a copy. Two sidecars of one
    broker do not number their packs together, so the time must not be earlier either.
    """
    return (
        source.pack is not None
        and source.pack.broker == pack.broker
        and source.pack.number > pack.number
        and source.pack.modified_ms >= pack.modified_ms
        and not source.row.first_stored_ms
    )


def runs_of(row: TailRow) -> Iterator[tuple[LeaderEpoch, Offset, Offset]]:
    """Yield the leader epochs of a row's records, with the offsets of each."""
    ends = [start for _, start in row.epochs.entries[1:]] + [row.end]
    for (epoch, start), end in zip(row.epochs.entries, ends, strict=True):
        low, high = max(start, row.start), min(end, row.end)
        if low < high:
            yield epoch, low, high


def replaced(
    row: TailRow, epochs: EpochHistory, end: int, gaps: Iterable[OffsetRange] = ()
) -> Iterator[tuple[OffsetRange, LeaderEpoch, LeaderEpoch]]:
    """Yield the offsets of a row below `end` that are of another leader epoch in a history, with
    both epochs: the records there are others. Offsets that the history does not know, and those in
    `gaps`, are left out.
    """
    entries = epochs.entries
    for epoch, low, high in runs_of(row):
        at = max(bisect_right(entries, low, key=itemgetter(1)) - 1, 0)
        for number in range(at, len(entries)):
            other, start = entries[number]
            stop = entries[number + 1][1] if number + 1 < len(entries) else Offset(end)
            first, last = max(low, start), min(high, stop, Offset(end))
            if start >= high:
                break
            if other == epoch or first >= last:
                continue
            for gap in sorted(gaps):
                if first < last and gap.start <= first < gap.end:
                    first = gap.end
            if first < last:
                yield OffsetRange(first, last), epoch, other


def _below_end(
    source: PackedRow, archived: ArchivedPart, divergence: str | None
) -> Iterator[LeftOut]:
    """Yield the parts of a row below the archive end offset."""
    row, end = source.row, archived.end
    if end is None or row.start >= min(end, row.end):
        return
    at, stop = row.start, min(end, row.end)
    for (start, upto), epoch, other in replaced(
        row, archived.epochs.up_to(end), end, archived.gaps
    ):
        if start > at:
            yield LeftOut(source, OffsetRange(at, start), Reason.ARCHIVED, _archived_text(end))
        at = upto
        text = f"of leader epoch {epoch}, and the archive has epoch {other} there"
        reason = Reason.STALE if divergence is None else Reason.DIVERGED
        yield LeftOut(source, OffsetRange(start, upto), reason, divergence or text)
    if at < stop:
        yield LeftOut(source, OffsetRange(at, stop), Reason.ARCHIVED, _archived_text(end))


def _archived_text(end: Offset) -> str:
    return f"archived up to {end}"


_Stale = tuple[OffsetRange, Reason, str]


def _split(source: PackedRow, epochs: EpochHistory) -> tuple[list[OffsetRange], list[_Stale]]:
    """Return the parts of a range that the deciding history has, and those that it does not."""
    true, stale = list[OffsetRange](), list[_Stale]()
    starts = dict(epochs.entries)
    for epoch, low, high in runs_of(source.row):
        true_end = low
        if epoch in starts:
            epoch_end = epochs.end_of(epoch)
            true_end = high if epoch_end is None else min(max(epoch_end, low), high)
        if true_end > low:
            before = true.pop().start if true and true[-1].end == low else low
            true.append(OffsetRange(before, true_end))
        if true_end < high:
            stale += _stale(epoch, OffsetRange(true_end, high), epochs)
    return true, stale


def _stale(epoch: int, offsets: OffsetRange, epochs: EpochHistory) -> Iterator[_Stale]:
    """Yield the parts of batches of one epoch that the deciding history does not have."""
    newest, first = epochs.entries[-1][0], epochs.entries[0][1]
    start, end = offsets
    if start < first:
        text = f"of leader epoch {epoch}; what is known of epoch {newest}'s log begins at {first}"
        yield OffsetRange(start, min(end, first)), Reason.UNPROVEN, text
    if end > first:
        start = max(start, first)
        text = (
            f"of leader epoch {epoch}, and the log of the leader of epoch {newest} has epoch "
            f"{epochs.epoch_at(start)} there"
        )
        yield OffsetRange(start, end), Reason.STALE, text


def _check_equal(pieces: Iterable[TailSlice]) -> None:
    """Compare rows of the same offsets and epochs. With another number of batches, compaction has
    removed some.
    """
    seen: dict[tuple[object, ...], PackedRow] = {}
    for piece in pieces:
        row = piece.source.row
        runs = [
            (epoch, max(start, row.start)) for epoch, start in row.epochs.up_to(row.end).entries
        ]
        other = seen.setdefault((row.start, row.end, row.batches, *runs), piece.source)
        if (row.size, row.crc64nvme) != (other.row.size, other.row.crc64nvme):
            raise ArchiveConflictError(
                f"{row.tp}: the offsets [{row.start}, {row.end}) have other bytes in "
                f"{_place(piece.source)} than in {_place(other)}"
            )


def _joined(pieces: Sequence[TailSlice], begin: Offset) -> Iterator[TailSlice]:
    """Yield the fewest pieces that join without a gap from `begin` on."""
    reached, number = begin, 0
    best: TailSlice | None = None
    while True:
        while number < len(pieces) and pieces[number].start <= reached:
            if best is None or pieces[number].end > best.end:
                best = pieces[number]
            number += 1
        if best is None or best.end <= reached:
            return
        yield best._replace(start=reached)
        reached = best.end


def _not_taken(
    pieces: Iterable[TailSlice], slices: Iterable[TailSlice], end: Offset
) -> Iterator[LeftOut]:
    taken: dict[tuple[str, int, int, int], list[TailSlice]] = {}
    for part in slices:
        taken.setdefault(part.source.place, []).append(part)
    for source, start, piece_end in pieces:
        if start > end:
            yield LeftOut(
                source, OffsetRange(start, piece_end), Reason.GAP, f"nothing is stored from {end}"
            )
            continue
        at = start
        for part in taken.get(source.place, ()):
            if at < part.start < piece_end:
                yield _duplicate(source, at, part.start)
            if part.start < piece_end:
                at = max(at, part.end)
        if at < piece_end:
            yield _duplicate(source, at, piece_end)


def _duplicate(source: PackedRow, start: Offset, end: Offset) -> LeftOut:
    return LeftOut(source, OffsetRange(start, end), Reason.DUPLICATE, "in another pack, too")
