"""Compare the leader epochs of exported records with the log's, to detect truncation
(KIP-320).

Beside each next offset, an export keeps the leader epochs that wrote the records below it: the
newest rows of the epoch history, as in `leader-epoch-checkpoint`. If the log's present epoch
history contradicts these rows, an unclean election has discarded records that were exported, and
other records have their offsets now. If either side is unknown, nothing is reported. All functions
are pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sidetier.pipeline.planning.split import in_words
from sidetier.segments.epoch_history import NO_EPOCHS, Entry, EpochHistory, behind, contradiction
from sidetier.segments.offsets import (
    UNKNOWN_EPOCH,
    LeaderEpoch,
    Offset,
    OffsetRange,
    TopicPartition,
)

_MOST: Final = 4
"""Rows that are kept for each partition. With more rows, a divergence that is farther back is still
located exactly.
"""

_NOWHERE: Final = TopicPartition("", 0)
_ANY: Final = LeaderEpoch(2**31 - 1)
"""The highest leader epoch that is possible. As a bound, it says nothing about the records below
it.
"""

Rows = tuple[tuple[int, int], ...]
"""Pairs of a leader epoch and its start offset, as an export's state stores them."""


@dataclass(frozen=True, slots=True)
class Position:
    """A next offset, and the known epoch history below it.

    If the last row starts at `offset` itself, all rows are bounds: the records below a row's offset
    are of that row's epoch or of an earlier one. Bounds are used because brokers report only their
    newest epoch. A bound with the highest possible epoch only marks the offset: the epochs of the
    records below it are unknown.
    """

    offset: Offset
    epoch_history: EpochHistory = NO_EPOCHS

    @property
    def bounds(self) -> tuple[Entry, ...]:
        """The epoch history as bounds. Exact rows give one bound: the newest epoch at `offset`."""
        rows = self.epoch_history.entries
        return rows if not rows or self.is_bounded else ((rows[-1][0], self.offset),)

    @property
    def is_bounded(self) -> bool:
        """Whether the rows are bounds, not exact start offsets."""
        rows = self.epoch_history.entries
        return bool(rows) and rows[-1][1] == self.offset


@dataclass(frozen=True, slots=True)
class Truncated:
    """A range of a partition's offsets that was exported and that the brokers have discarded since.

    Attributes:
        range: the discarded offsets.
        before: the leader epoch of the last exported record.
        now: the leader epoch that wrote the records that have these offsets now.
    """

    tp: TopicPartition
    range: OffsetRange
    before: LeaderEpoch
    now: LeaderEpoch

    def __str__(self) -> str:
        """The text for error messages."""
        return (
            f"{in_words(self.tp)}, offsets {self.range} (leader "
            f"epoch {self.before}, now {self.now})"
        )


def position_at(
    offset: Offset,
    stored: EpochHistory,
    newest: LeaderEpoch | None = None,
    *,
    is_stored: bool = True,
    archived: Offset | None = None,
) -> Position:
    """Return the position that an export keeps once it has exported up to `offset`.

    Args:
        offset: the next offset.
        stored: the archive's epoch history.
        newest: the broker's newest leader epoch; used unless `is_stored`.
        is_stored: False if the records just below `offset` are only on the broker.
        archived: the offset, exclusive, up to which the same run has read from the archive.
    """
    rows = stored.up_to(offset).entries
    last = rows[-1][0] if rows else UNKNOWN_EPOCH
    if is_stored or newest == last:
        return Position(offset, EpochHistory(rows[-_MOST:]))
    ahead = newest if newest is not None and newest > last else None
    return Position(offset, _bounded(_read_from(stored, archived), ahead, offset))


def _read_from(stored: EpochHistory, archived: Offset | None) -> tuple[Entry, ...]:
    """Return the bound for records that were read from the archive.

    The archive may hold records that are not quarantined yet, while the broker is already past the
    divergence.
    """
    rows = () if archived is None else stored.up_to(archived).entries
    return ((rows[-1][0], archived),) if rows and archived is not None else ()


def _bounded(bounds: Iterable[Entry], newest: LeaderEpoch | None, offset: Offset) -> EpochHistory:
    """Add a bound at `offset` with the newest epoch, or with the highest possible one if
    unknown.
    """
    known = tuple(bounds)
    if newest is None:
        return _bounds_of((*known, (_ANY, offset))) if known else NO_EPOCHS
    return _bounds_of((*known, (newest, offset)))


def _bounds_of(bounds: Iterable[Entry]) -> EpochHistory:
    """Drop each bound that is implied by a bound of an earlier epoch."""
    kept: dict[LeaderEpoch, Offset] = {}
    highest = -1
    for epoch, bound in sorted(bounds):
        if bound > highest:
            kept[epoch], highest = bound, bound
    return EpochHistory(tuple(kept.items())[-_MOST:])


def followed(before: Position, after: Position) -> EpochHistory:
    """Return the epoch history to keep when `after` follows `before`.

    Exact rows replace the rows of both positions once they show that the earlier rows hold. Until
    then the bounds of both are kept. The bounds of `before` are also kept if nothing is known about
    `after`.
    """
    rows = after.epoch_history.entries
    if not rows:
        known = (bound for bound in before.bounds if bound[0] != _ANY)
        return _bounded(known, None, after.offset)
    if not after.is_bounded and not is_doubtful(before, after):
        return after.epoch_history
    return _bounds_of((*before.bounds, *after.bounds))


def shortened(before: Position, offset: Offset) -> EpochHistory:
    """Return the epoch history to keep for a position of which only the records below `offset`
    remain.
    """
    if not before.is_bounded:
        return before.epoch_history.up_to(offset)
    bounds = [(epoch, min(bound, offset)) for epoch, bound in before.bounds]
    kept = _bounds_of(bounds)
    return kept if any(epoch != _ANY for epoch, _ in kept.entries) else NO_EPOCHS


def is_doubtful(before: Position, after: Position) -> bool:
    """Return whether the exact rows of `after` do not prove that the rows of `before` hold.

    The rows may belong to another history, or may not go back far enough.
    """
    rows = after.epoch_history.entries
    if not rows or not before.epoch_history.entries or after.is_bounded:
        return False
    # The rows were cut off above all epochs of `before`: they cannot be compared.
    if len(rows) == _MOST and before.bounds[-1][0] < rows[0][0]:
        return True
    return truncated(_NOWHERE, before, after.epoch_history) is not None


def truncated(
    tp: TopicPartition, position: Position, present: EpochHistory, gaps: Sequence[OffsetRange] = ()
) -> Truncated | None:
    """Return the exported range below a position that the log's present epoch history shows as
    discarded.

    Args:
        tp: the partition, for the result.
        position: how far the export has come, with its known epochs.
        present: the epoch history that the log has now.
        gaps: recorded gaps. No record in them was exported.

    Returns:
        The discarded range; None if there is none, or if either epoch history is unknown.
    """
    known, until = position.epoch_history, position.offset
    if not known.entries or not present.entries:
        return None
    candidates = [_ended(present, position.bounds, gaps)]
    if not position.is_bounded:
        candidates.append(_contradicted(known, present, until, gaps))
    divergences = [candidate for candidate in candidates if candidate is not None]
    if not divergences:
        return None
    now = present.epoch_at(until - 1)
    now = present.entries[0][0] if now is None else now
    last = max(epoch for epoch, _ in known.entries if epoch != _ANY)
    return Truncated(tp, OffsetRange(min(divergences), until), last, now)


def _ended(
    present: EpochHistory, bounds: Iterable[Entry], gaps: Sequence[OffsetRange]
) -> Offset | None:
    """Return the offset where an epoch ends in `present` below its known bound (KIP-320).

    Bounds are tried in their order, and the first such end is returned.
    """
    for epoch, bound in bounds:
        end = present.end_of(epoch)
        if end is not None and behind(end, gaps) < bound:
            return behind(end, gaps)
    return None


def _contradicted(
    known: EpochHistory, present: EpochHistory, until: Offset, gaps: Sequence[OffsetRange]
) -> Offset | None:
    conflict = contradiction(known, present, until, gaps)
    if conflict is None or _begins_lower(known, present):
        return None
    oldest, start = known.entries[0]
    # All known rows differ, so the divergence is where the oldest known epoch ends.
    end = present.end_of(oldest) if conflict.offset <= start else None
    return conflict.offset if end is None else min(conflict.offset, end)


def _begins_lower(known: EpochHistory, present: EpochHistory) -> bool:
    """Return whether an epoch starts lower in `present` than in `known`.

    A replica of a compacted log can know a start that is too high. The first known row is not
    compared, because retention may have moved its start.
    """
    starts = dict(present.entries)
    return any(starts.get(epoch, start) < start for epoch, start in known.entries[1:])


def rows_of(epoch_history: EpochHistory) -> Rows:
    """Return the epoch history in the form that a state stores."""
    return tuple((int(epoch), int(start)) for epoch, start in epoch_history.entries)


def epoch_history_of(rows: Iterable[tuple[int, int]]) -> EpochHistory:
    """Return the epoch history from the rows that a state stores."""
    return EpochHistory(tuple((LeaderEpoch(epoch), Offset(start)) for epoch, start in rows))


Positions = Mapping[TopicPartition, Position]
