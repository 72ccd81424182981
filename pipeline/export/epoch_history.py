"""Whether what was exported is still what the log holds, as Kafka's consumers tell it (KIP-320).

Beside a next offset an export keeps which leader epochs have written what lies below it: the newest
rows of the epoch history, as `leader-epoch-checkpoint` has them. Where the epoch history that the
log has now says otherwise, an election has thrown records away that were exported, and others stand
there now. Where nothing is known of either, nothing is said. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sidetier.pipeline.planning.names import in_words
from sidetier.segments.epoch_history import NO_EPOCHS, Entry, EpochHistory, behind, contradiction
from sidetier.segments.offsets import (
    UNKNOWN_EPOCH,
    LeaderEpoch,
    Offset,
    OffsetRange,
    TopicPartition,
)

_MOST: Final = 4
"""Rows that are kept of each partition: the more, the farther back a fork is told exactly."""

_NOWHERE: Final = TopicPartition("", 0)
_ANY: Final = LeaderEpoch(2**31 - 1)
"""The highest there is: as a bound it says nothing of what lies below it."""

Rows = tuple[tuple[int, int], ...]
"""Leader epochs and where each begins, as a state keeps them."""


@dataclass(frozen=True, slots=True)
class Position:
    """A next offset, and what is known of the epoch history below it.

    Where the last row names the offset itself, all rows are bounds: what lies below the offset of a
    row is of its epoch or of an earlier one. Brokers tell no more than their newest epoch. A bound
    of the highest epoch there is only marks the offset: of what lies below nobody knows.
    """

    offset: Offset
    epoch_history: EpochHistory = NO_EPOCHS

    @property
    def bounds(self) -> tuple[Entry, ...]:
        """What is known as bounds; of exact rows, that of the newest."""
        rows = self.epoch_history.entries
        return rows if not rows or self.is_bounded else ((rows[-1][0], self.offset),)

    @property
    def is_bounded(self) -> bool:
        """Whether bounds are all that is known."""
        rows = self.epoch_history.entries
        return bool(rows) and rows[-1][1] == self.offset


@dataclass(frozen=True, slots=True)
class Truncated:
    """Offsets of a partition that were exported, and that the brokers have thrown away since; of
    which leader epoch the last of them was, and which one has written what is there now.
    """

    tp: TopicPartition
    range: OffsetRange
    before: LeaderEpoch
    now: LeaderEpoch

    def __str__(self) -> str:
        """As an error says it."""
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
    """What an export keeps that goes up to `offset`, by the archive's epoch history; not
    `is_stored`: the last of it is only on the broker, whose `newest` epoch this is. What lies below
    `archived` the same run has read from the archive.
    """
    rows = stored.up_to(offset).entries
    last = rows[-1][0] if rows else UNKNOWN_EPOCH
    if is_stored or newest == last:
        return Position(offset, EpochHistory(rows[-_MOST:]))
    ahead = newest if newest is not None and newest > last else None
    return Position(offset, _bounded(_read_from(stored, archived), ahead, offset))


def _read_from(stored: EpochHistory, archived: Offset | None) -> tuple[Entry, ...]:
    """The bound of what was read from the archive: it may not be set aside yet, and the broker be
    on the other side of the fork.
    """
    rows = () if archived is None else stored.up_to(archived).entries
    return ((rows[-1][0], archived),) if rows and archived is not None else ()


def _bounded(bounds: Iterable[Entry], newest: LeaderEpoch | None, offset: Offset) -> EpochHistory:
    """Bounds, and behind them the newest epoch below `offset`, or one that nobody knows."""
    known = tuple(bounds)
    if newest is None:
        return _bounds_of((*known, (_ANY, offset))) if known else NO_EPOCHS
    return _bounds_of((*known, (newest, offset)))


def _bounds_of(bounds: Iterable[Entry]) -> EpochHistory:
    """Without those that say no more than one of an earlier epoch does."""
    kept: dict[LeaderEpoch, Offset] = {}
    highest = -1
    for epoch, bound in sorted(bounds):
        if bound > highest:
            kept[epoch], highest = bound, bound
    return EpochHistory(tuple(kept.items())[-_MOST:])


def followed(before: Position, after: Position) -> EpochHistory:
    """What is kept of one position behind another. Exact rows are taken for both once they show
    that the earlier ones hold; until then the bounds of both are kept, and so they are where
    nothing is known of the later one.
    """
    rows = after.epoch_history.entries
    if not rows:
        known = (one for one in before.bounds if one[0] != _ANY)
        return _bounded(known, None, after.offset)
    if not after.is_bounded and not is_doubtful(before, after):
        return after.epoch_history
    return _bounds_of((*before.bounds, *after.bounds))


def shortened(before: Position, offset: Offset) -> EpochHistory:
    """What is kept of a position of which only what lies below `offset` still stands."""
    if not before.is_bounded:
        return before.epoch_history.up_to(offset)
    bounds = [(epoch, min(bound, offset)) for epoch, bound in before.bounds]
    kept = _bounds_of(bounds)
    return kept if any(epoch != _ANY for epoch, _ in kept.entries) else NO_EPOCHS


def is_doubtful(before: Position, after: Position) -> bool:
    """Whether exact rows behind a position do not show that what was known of it holds: they may
    tell of another history, or not go as far back.
    """
    rows = after.epoch_history.entries
    if not rows or not before.epoch_history.entries or after.is_bounded:
        return False
    if len(rows) == _MOST and before.bounds[-1][0] < rows[0][0]:
        return True
    return truncated(_NOWHERE, before, after.epoch_history) is not None


def truncated(
    tp: TopicPartition, position: Position, present: EpochHistory, gaps: Sequence[OffsetRange] = ()
) -> Truncated | None:
    """What the log's present epoch history shows to be thrown away below a position; None: nothing.

    Of recorded `gaps` nothing was exported.
    """
    known, until = position.epoch_history, position.offset
    if not known.entries or not present.entries:
        return None
    forks = [_ended(present, position.bounds, gaps)]
    if not position.is_bounded:
        forks.append(_contradicted(known, present, until, gaps))
    found = [fork for fork in forks if fork is not None]
    if not found:
        return None
    now = present.epoch_at(until - 1)
    now = present.entries[0][0] if now is None else now
    last = max(epoch for epoch, _ in known.entries if epoch != _ANY)
    return Truncated(tp, OffsetRange(min(found), until), last, now)


def _ended(
    present: EpochHistory, bounds: Iterable[Entry], gaps: Sequence[OffsetRange]
) -> Offset | None:
    """Where the first epoch ends, in this history, below a bound of it (KIP-320)."""
    for epoch, bound in bounds:
        end = present.end_of(epoch)
        if end is not None and behind(end, gaps) < bound:
            return behind(end, gaps)
    return None


def _contradicted(
    known: EpochHistory, present: EpochHistory, until: Offset, gaps: Sequence[OffsetRange]
) -> Offset | None:
    found = contradiction(known, present, until, gaps)
    if found is None or _begins_lower(known, present):
        return None
    oldest, start = known.entries[0]
    # Where all that is known differs, it began before.
    end = present.end_of(oldest) if found.offset <= start else None
    return found.offset if end is None else min(found.offset, end)


def _begins_lower(known: EpochHistory, present: EpochHistory) -> bool:
    """Whether an epoch begins lower than it was known to: a replica whose log was compacted knew a
    higher start. Of the first row nothing follows, whose start retention may have moved.
    """
    starts = dict(present.entries)
    return any(starts.get(epoch, start) < start for epoch, start in known.entries[1:])


def rows_of(epoch_history: EpochHistory) -> Rows:
    """As a state keeps it."""
    return tuple((int(epoch), int(start)) for epoch, start in epoch_history.entries)


def epoch_history_of(rows: Iterable[tuple[int, int]]) -> EpochHistory:
    """What a state has kept."""
    return EpochHistory(tuple((LeaderEpoch(epoch), Offset(start)) for epoch, start in rows))
