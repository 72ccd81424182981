"""No transaction is restored partially, for all interleavings of producers over three
partitions.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import event, given, settings
from hypothesis import strategies as st

from sidetier.mirror.hydrate.consistent_cut import (
    CLOCK_DIFFERENCE_MS,
    PartitionTransactions,
    TransactionalBatch,
    consistent_cut,
)
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.transactions import Marker

PARTITIONS = [TopicPartition("orders", number) for number in range(3)]
PRODUCERS = range(4)
VERSION_1 = 3
"""The producer that does not change its epoch."""
STEP_MS = 25_000

Ends = Mapping[TopicPartition, Offset]


@dataclass(slots=True)
class Transaction:
    """The marker's offset in each partition of a transaction; None before it is written."""

    producer: int
    epoch: int
    markers: dict[TopicPartition, int | None] = field(default_factory=dict)
    commits: bool | None = None

    def is_half_restored(self, ends: Ends) -> bool:
        """Return whether it is committed below one end and not below another."""
        below = [marker is not None and marker < ends[tp] for tp, marker in self.markers.items()]
        return self.commits is True and any(below) and not all(below)


@dataclass(slots=True)
class Brokers:
    """Logs of three partitions whose leaders have separate clocks."""

    skews: Sequence[int]
    logs: dict[TopicPartition, list[TransactionalBatch]] = field(
        default_factory=lambda: {tp: [] for tp in PARTITIONS}
    )
    every: list[Transaction] = field(default_factory=list)
    current: dict[int, Transaction] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    now: int = 0

    def write(self, producer: int, tp: TopicPartition) -> None:
        """Write a record, after the remaining markers of the producer's previous transaction."""
        while self.write_marker(producer):
            pass
        if producer not in self.current:
            self.current[producer] = Transaction(producer, self.epochs.get(producer, 0))
            self.every.append(self.current[producer])
        transaction = self.current[producer]
        if transaction.commits is None:
            transaction.markers.setdefault(tp, None)
            self._append(tp, producer, transaction.epoch, Marker.NONE)

    def end(self, producer: int, *, commit: bool) -> None:
        """Decide the producer's transaction."""
        transaction = self.current.get(producer)
        if transaction is not None and transaction.commits is None:
            transaction.commits = commit
            if producer != VERSION_1:
                self.epochs[producer] = transaction.epoch + 1

    def write_marker(self, producer: int) -> bool:
        """Write the next marker of a decided transaction; return whether one was left."""
        transaction = self.current.get(producer)
        if transaction is None or transaction.commits is None:
            return False
        for tp, marker in transaction.markers.items():
            if marker is None:
                transaction.markers[tp] = len(self.logs[tp])
                kind = Marker.COMMIT if transaction.commits else Marker.ABORT
                self._append(tp, producer, self.epochs.get(producer, 0), kind)
                return True
        del self.current[producer]
        return False

    def _append(self, tp: TopicPartition, producer: int, epoch: int, marker: Marker) -> None:
        self.now += STEP_MS
        time = self.now + self.skews[tp.partition]
        log = self.logs[tp]
        log.append(TransactionalBatch(Offset(len(log)), producer, epoch, marker, time))


@st.composite
def histories(draw: st.DrawFn) -> Brokers:
    """Histories of up to 80 steps from a seed; most have committed transactions."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    brokers = Brokers([chance.randrange(CLOCK_DIFFERENCE_MS) for _ in PARTITIONS])
    for _ in range(draw(st.integers(5, 80))):
        producer = chance.choice(PRODUCERS)
        match chance.choice(("write", "write", "end", "marker")):
            case "write":
                brokers.write(producer, chance.choice(PARTITIONS))
            case "end":
                brokers.end(producer, commit=chance.random() < 0.8)
            case _:
                brokers.write_marker(producer)
    return brokers


def is_later(
    brokers: Brokers, archived: Ends, tp: TopicPartition, transaction: Transaction
) -> bool:
    """Return whether the partition's archive extends beyond the time of the commit."""
    committed = [
        brokers.logs[other][marker].timestamp_ms
        for other, marker in transaction.markers.items()
        if marker is not None and marker < archived[other]
    ]
    markers = [log for log in brokers.logs[tp][: archived[tp]] if log.is_marker]
    return bool(markers) and markers[-1].timestamp_ms >= min(committed) + CLOCK_DIFFERENCE_MS


def is_split(brokers: Brokers, archived: Ends, ends: Ends) -> bool:
    """Return whether the archive shows, or cannot exclude, that a v2 transaction is restored
    partially.
    """
    for item in brokers.every:
        if item.producer == VERSION_1 or not item.commits:
            continue
        restored = any(
            marker is not None and marker < ends[tp] for tp, marker in item.markers.items()
        )
        if not restored:
            continue
        for tp in PARTITIONS:
            ours = [
                batch
                for batch in brokers.logs[tp][: archived[tp]]
                if batch.producer_id == item.producer
            ]
            if any(batch.epoch == item.epoch and not batch.is_marker for batch in ours):
                marker = item.markers[tp]
                is_whole = marker is not None and marker < ends[tp]
            else:
                is_whole = (
                    not ours
                    or max(batch.epoch for batch in ours) > item.epoch
                    or is_later(brokers, archived, tp, item)
                )
            if not is_whole:
                return True
    return False


@settings(max_examples=300, deadline=None)
@given(histories(), st.data())
def test_no_transaction_is_restored_partially_and_no_end_can_be_higher(
    brokers: Brokers, data: st.DataObject
) -> None:
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    archived = {
        tp: Offset(chance.randint(len(log) // 2, len(log))) for tp, log in brokers.logs.items()
    }
    requested = {
        tp: chance.choice([end, Offset(chance.randint(end // 2, end))])
        for tp, end in archived.items()
    }
    known = {tp: PartitionTransactions(log[: archived[tp]]) for tp, log in brokers.logs.items()}
    cut = consistent_cut(known, requested)
    assert all(0 <= cut.ends[tp] <= requested[tp] for tp in PARTITIONS)
    assert not is_split(brokers, archived, cut.ends)
    for tp in PARTITIONS:
        if cut.ends[tp] < requested[tp]:
            assert is_split(brokers, archived, {**cut.ends, tp: Offset(cut.ends[tp] + 1)})
    lowered = {item.partition: item.end for item in cut.report.lowered}
    assert lowered == {str(tp): end for tp, end in cut.ends.items() if end < requested[tp]}
    # The guarantee also covers records that were never archived, except in partitions without any
    # archived transaction.
    shown = {tp: cut.ends[tp] if known[tp].batches else Offset(1 << 40) for tp in PARTITIONS}
    event(f"proven: {cut.report.is_proven}, lowered: {len(lowered)}")
    if cut.report.is_proven:
        for entry in brokers.every:
            entry.markers = {
                tp: marker for tp, marker in entry.markers.items() if known[tp].batches
            }
            assert not entry.is_half_restored(shown), entry
