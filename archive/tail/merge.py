"""The merge rule: which ranges of which packs are the tail of a partition. Pure.

Each row carries the epoch history of the leader that answered for it. A leader epoch has one
leader, which appends in order, so two logs that have the same epoch at an offset have the same
records up to there (KIP-101). So one history decides about all rows:

1. Only rows of the archive's topic id count.
2. The history of the newest leader epoch wins, also over every lower epoch that reaches further: a
   later leader never had what it does not show. A claim, which has no bytes, counts for it.
   Below the first epoch that this history knows, a history that also has this epoch continues it;
   without one, that of the next lower leader epoch, unless retention may have cut the first one.
3. A batch of epoch e at offset x is true if that history has e at x. Otherwise it is stale.
4. The archive wins below its end offset. From there on, true ranges are joined without a gap; the
   tail ends at the first one.

Equal offsets of one epoch must have equal bytes. Rows of the same offsets are compared here by size
and checksum; parts of rows that overlap are compared by `read` when it has their bytes.

As long as the claim of a new leader is not in the packs, nothing shows that records of the one
before it are stale after an unclean election.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

from sidetier.archive.tail.pack import TailRow
from sidetier.segments.epoch_history import NO_EPOCHS, Entry, EpochHistory
from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.offsets import (
    BrokerId,
    LeaderEpoch,
    Offset,
    OffsetRange,
)

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


class Reason(StrEnum):
    """Why a range is not part of the tail."""

    TOPIC_ID = "topic_id"
    """It belongs to another topic of this name."""
    ARCHIVED = "archived"
    """It is below the archive end offset."""
    STALE = "stale"
    """A later leader does not have it."""
    UNPROVEN = "unproven"
    """No history shows whether the newest leader has it: retention has cut that leader's history
    before its claim was stored."""
    DUPLICATE = "duplicate"
    """Another pack has it, too."""
    GAP = "gap"
    """It is behind the first gap."""
    DIVERGED = "diverged"
    """The archive itself has records that a later leader does not have."""


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
        basis: The rows that prove that others are stale: a pack with one of them is needed.
        gap: The first gap, if a true range follows behind it.
    """

    start: Offset
    end: Offset
    topic_id: str | None
    slices: tuple[TailSlice, ...]
    left_out: tuple[LeftOut, ...]
    epochs: EpochHistory
    log_start: Offset | None
    leader_epoch: int | None
    basis: tuple[PackedRow, ...]
    gap: OffsetRange | None

    @property
    def last_stable(self) -> Offset | None:
        """Last stable offset of the tail: at most `end`. None for an empty tail, and if only a part
        of the last row is in the tail: readers then find it in the markers.
        """
        if not self.slices or self.slices[-1].end != self.slices[-1].source.row.end:
            return None
        row = self.slices[-1].source.row
        # The broker's answer, too: it also knows transactions that began below what was stored.
        return min(self.end, row.last_stable, *(each.first_offset for each in row.open))

    @property
    def newest_ms(self) -> int | None:
        """Largest timestamp of the rows that are read; None without one."""
        newest = max((part.source.row.max_timestamp for part in self.slices), default=-1)
        return None if newest < 0 else newest

    def needed(self) -> Sequence[PackedRow]:
        """Return the rows that cleaning keeps: those of the slices, the basis, and all of which a
        part was left out for another reason than `ARCHIVED` and `STALE`. A sidecar that knows the
        topic id from its broker drops those of other topic ids itself.
        """
        wanted = [part.source for part in self.slices] + list(self.basis)
        wanted += [out.source for out in self.left_out if out.reason not in _DEAD]
        return list({id(source.row): source for source in wanted}.values())


_DEAD: Final = frozenset({Reason.ARCHIVED, Reason.STALE})


def merge(archived: ArchivedPart, rows: Iterable[PackedRow]) -> MergedTail:
    """Merge all live rows of all brokers of one partition.

    A sidecar that begins to lead adds its own claim (without a pack): `end` is then the offset from
    which it stores, because its own log agrees up to there.

    Raises:
        ArchiveConflictError: Two rows of one leader epoch contradict each other: in their epoch
            histories, or in the bytes of the same offsets. The message names both packs. Or the
            archive has no topic id, and the rows have several.
    """
    rows = list(rows)
    topic_id = archived.topic_id or _only_topic_id(rows)
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
    epochs, basis = _Histories(archived, ours).newest()
    divergence = _divergence(archived, epochs)
    archive_end = Offset(0) if archived.end is None else archived.end
    pieces: list[TailSlice] = []
    for source in ours:
        true, stale = _split(source, epochs)
        left_out += _not_read(source, archive_end, stale)
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
    if divergence is not None:
        left_out += (
            LeftOut(source, OffsetRange(start, end), Reason.DIVERGED, divergence)
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
        basis=tuple(basis),
        gap=None if behind is None else OffsetRange(end, behind),
    )


def _by_start(piece: TailSlice) -> tuple[int, int]:
    return piece.start, -piece.end


def _only_topic_id(rows: Iterable[PackedRow]) -> str | None:
    ids = {source.row.topic_id: source for source in rows}
    if len(ids) > 1:
        known = ", ".join(f"{topic_id} ({_place(ids[topic_id])})" for topic_id in sorted(ids))
        raise ArchiveConflictError(
            f"the archive has no topic id, and the tail packs have several: {known}"
        )
    return next(iter(ids), None)


def _place(source: PackedRow) -> str:
    return "a row that is not stored yet" if source.pack is None else source.pack.key


class _Histories:
    """What is known of the epoch history of the leader of each epoch."""

    def __init__(self, archived: ArchivedPart, rows: Sequence[PackedRow]) -> None:
        self._known: dict[LeaderEpoch, _Starts] = {}
        """By leader epoch: the histories of all rows of that epoch, which one leader has given."""
        self._widest: dict[LeaderEpoch, PackedRow | None] = {}
        """The row whose history reaches furthest down; None for the archive."""
        self._may_be_raised: set[LeaderEpoch] = set()
        """Leaders whose history begins at their log start: an earlier part may be missing."""
        self._lowest: _Starts = {}
        """The lowest known start of each epoch. Retention raises the first start of a log, and
        compaction that of a copy."""
        stored = NO_EPOCHS if archived.end is None else archived.epochs.up_to(archived.end)
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
            if source is not None and 0 < entries[0][1] <= source.row.log_start:
                self._may_be_raised.add(epoch)
        mine = self._known.setdefault(epoch, {})
        for entry_epoch, start in entries:
            mine[entry_epoch] = min(mine.get(entry_epoch, start), start)
            self._lowest[entry_epoch] = min(self._lowest.get(entry_epoch, start), start)

    def newest(self) -> tuple[EpochHistory, list[PackedRow]]:
        """Return the history that decides about all rows, and the rows that it is taken from.

        Raises:
            ArchiveConflictError: Starts do not ascend.
        """
        order = sorted(self._known, reverse=True)
        if not order:
            return NO_EPOCHS, []
        used, epochs = [order[0]], dict(self._known[order[0]])
        while (below := self._below(epochs, order, used[-1])) is not None:
            leader, earlier = below
            used.append(leader)
            epochs |= earlier
        entries = [(epoch, self._lowest[epoch]) for epoch in sorted(epochs)]
        for (epoch, start), (later, later_start) in pairwise(entries):
            if start > later_start:
                raise ArchiveConflictError(
                    f"leader epoch {epoch} starts at {start}, and the later one {later} at "
                    f"{later_start}"
                )
        basis = [self._widest[leader] for leader in used]
        return EpochHistory(tuple(entries)), [source for source in basis if source is not None]

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
        if last in self._may_be_raised or start <= self._archive_end:
            return None
        for leader in order:
            known = self._known[leader]
            earlier = {epoch: known[epoch] for epoch in known if known[epoch] < start}
            if leader < first and earlier:
                return leader, earlier
        return None


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
    last = archived.end - 1
    for gap in sorted(archived.gaps, reverse=True):
        if last in gap:
            last = gap.start - 1
    stored = archived.epochs.up_to(archived.end).epoch_at(last)
    epoch = epochs.epoch_at(last)
    if stored is None or epoch is None or stored == epoch:
        return None
    return (
        f"the archive has offset {last} of leader epoch {stored}, and the leader of epoch "
        f"{epochs.entries[-1][0]} has it of {epoch}"
    )


_Stale = tuple[OffsetRange, Reason, str]


def _split(source: PackedRow, epochs: EpochHistory) -> tuple[list[OffsetRange], list[_Stale]]:
    """Return the parts of a range that the deciding history has, and those that it does not."""
    row, true, stale = source.row, list[OffsetRange](), list[_Stale]()
    starts = dict(epochs.entries)
    ends = [start for _, start in row.epochs.entries[1:]] + [row.end]
    for (epoch, start), end in zip(row.epochs.entries, ends, strict=True):
        low, high = max(start, row.start), min(end, row.end)
        if low >= high:
            continue
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


def _not_read(source: PackedRow, archive_end: Offset, stale: Iterable[_Stale]) -> Iterator[LeftOut]:
    row = source.row
    if row.start < min(archive_end, row.end):
        below = OffsetRange(row.start, min(archive_end, row.end))
        text = f"archived up to {archive_end}"
        yield LeftOut(source, below, Reason.ARCHIVED, text)
    for (start, end), reason, text in stale:
        if end > archive_end:
            yield LeftOut(source, OffsetRange(max(start, archive_end), end), reason, text)


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
    taken: dict[int, list[TailSlice]] = {}
    for part in slices:
        taken.setdefault(id(part.source.row), []).append(part)
    for source, start, piece_end in pieces:
        if start > end:
            yield LeftOut(
                source, OffsetRange(start, piece_end), Reason.GAP, f"nothing is stored from {end}"
            )
            continue
        at = start
        for part in taken.get(id(source.row), ()):
            if at < part.start < piece_end:
                yield _duplicate(source, at, part.start)
            if part.start < piece_end:
                at = max(at, part.end)
        if at < piece_end:
            yield _duplicate(source, at, piece_end)


def _duplicate(source: PackedRow, start: Offset, end: Offset) -> LeftOut:
    return LeftOut(source, OffsetRange(start, end), Reason.DUPLICATE, "in another pack, too")
