"""A cut through all partitions with no transaction half in: pure.

A transaction writes a commit marker into each of its partitions. It is half in where one partition
is cut after its marker, and another one before. Records show a producer, not a transaction, so that
markers are matched: two markers of one producer id and epoch in two partitions can belong to the
same transaction only if

- they were written within `MARKER_SPREAD_MS` of each other, and
- the times in which their transactions can have been decided overlap: each after the producer's
  marker before it in its partition, and not after its own. Clocks of brokers may differ by
  `CLOCK_SKEW_MS`.

Where it is not certain, markers are taken for those of one transaction: then a transaction more is
left out, never half of one kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sidetier.mirror.hydrate.transactions import Transaction
from sidetier.segments.offsets import Offset, TopicPartition

MARKER_SPREAD_MS: Final = 60_000
"""Longest time between the first and the last commit marker of one transaction."""
CLOCK_SKEW_MS: Final = 1_000
"""How much the clocks of two brokers may differ."""

_NEVER: Final = -(1 << 62)
_Producer = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A transaction in one partition; `after_ms` is when its producer's one before was decided."""

    transaction: Transaction
    after_ms: int


def consistent_cut(
    transactions: Mapping[TopicPartition, Sequence[Transaction]],
    ends: Mapping[TopicPartition, Offset],
) -> dict[TopicPartition, Offset]:
    """Lower the ends of partitions until no transaction is half in.

    Args:
        transactions: of each partition with transactions, in order of offsets; also some beyond the
            end, at least those whose markers were written within `MARKER_SPREAD_MS` after it.
        ends: where each partition is to be cut.

    Returns:
        An end for each partition of `ends`, never above the given one. Transactions that are open
        there can be aborted: none of them is committed below any end.
    """
    cut = dict(ends)
    by_producer = _by_producer(transactions)
    changed = True
    while changed:
        changed = False
        for partitions in by_producer.values():
            for lowered, end in _lowered(partitions, cut):
                if end < cut[lowered]:
                    cut[lowered] = end
                    changed = True
    return cut


def _by_producer(
    transactions: Mapping[TopicPartition, Sequence[Transaction]],
) -> dict[_Producer, dict[TopicPartition, list[_Seen]]]:
    found: dict[_Producer, dict[TopicPartition, list[_Seen]]] = {}
    for tp, every in transactions.items():
        last: dict[_Producer, int] = {}
        for one in sorted(every, key=lambda each: each.first_offset):
            producer = (one.producer_id, one.producer_epoch)
            seen = _Seen(one, last.get(producer, _NEVER))
            found.setdefault(producer, {}).setdefault(tp, []).append(seen)
            if one.marker_ms is not None:
                last[producer] = one.marker_ms
    return found


def _lowered(
    partitions: Mapping[TopicPartition, Sequence[_Seen]], cut: Mapping[TopicPartition, Offset]
) -> list[tuple[TopicPartition, Offset]]:
    """Where partitions must end at most, because of transactions of one producer that are out."""
    out = [
        (tp, seen)
        for tp, every in partitions.items()
        for seen in every
        if _is_out(seen.transaction, cut[tp])
    ]
    return [
        (tp, seen.transaction.marker_offset)
        for tp, every in partitions.items()
        for seen in every
        if seen.transaction.marker_offset is not None
        and seen.transaction.committed
        and seen.transaction.marker_offset < cut[tp]
        and any(other != tp and _may_be_one(seen, theirs) for other, theirs in out)
    ]


def _is_out(transaction: Transaction, end: Offset) -> bool:
    """It would be committed, but is not: its marker is cut off, or was never archived."""
    if transaction.marker_offset is None:
        return True
    return transaction.committed and transaction.marker_offset >= end


def _may_be_one(included: _Seen, out: _Seen) -> bool:
    """Whether a committed transaction and one that is out can be the same one."""
    decided, never = included.transaction.marker_ms, out.transaction.marker_ms
    if decided is None:
        return False
    if never is None:  # it began at some time before that, and was decided at any time after
        begun = max(out.after_ms, out.transaction.begin_ms)
        return decided + CLOCK_SKEW_MS >= begun
    if abs(decided - never) > MARKER_SPREAD_MS:
        return False
    return decided + CLOCK_SKEW_MS >= out.after_ms and never + CLOCK_SKEW_MS >= included.after_ms
