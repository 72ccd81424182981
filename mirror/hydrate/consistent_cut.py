"""Lower the ends of partitions until no committed transaction is half restored. Pure, no I/O.

A transaction writes a commit marker to each of its partitions. It is half restored if one partition
ends after its marker and another one ends before it: the marker was cut off, or its segment was
never archived. Such a transaction is left out: each of its partitions ends before its marker.
Lowering an end can split another transaction, so this is repeated until none is split. The result
is unique: no end can be higher.

Transactions v2 (KIP-890): the coordinator raises the producer epoch with each transaction, and its
markers have the raised epoch. So (producer id, epoch of the records) identifies one transaction in
all partitions. A commit marker with a higher epoch than the records before it proves version 2.

A segment that was never archived can have records of a transaction that the archive does not show
in that partition. Three facts decide:

- The producer id wrote to the partition before, and nothing in its archive has a later epoch: the
  transaction can have records there, and is left out.
- The archive of the partition has a later epoch of the producer id, or a marker that was written
  `CLOCK_DIFFERENCE_MS` after the transaction was committed: the transaction has no records there.
- Otherwise nothing is proven. The report counts such transactions.

With transactions v1 a producer keeps its epoch, so the batches of one transaction cannot be matched
across partitions. These transactions lower no end; the report names the producers.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sidetier.segments.headers import BatchHeader
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.transactions import Marker, TransactionTracker

CLOCK_DIFFERENCE_MS: Final = 60_000
"""Maximum difference between the clocks of two brokers. Brokers set the timestamps of markers."""
LONGEST_TRANSACTION_MS: Final = 900_000
"""`transaction.max.timeout.ms` of the brokers (default 15 min)."""

_Key = tuple[int, int]
"""Producer id, and epoch of the records."""


class TransactionalBatch(NamedTuple):
    """The first record batch of a transaction in a segment, or a marker.

    Attributes:
        offset: The base offset of the batch.
        producer_id: The producer id of the batch.
        epoch: The producer epoch of the batch.
        marker: Its marker; `Marker.NONE` for records.
        timestamp_ms: The largest timestamp. The broker sets it only in markers.
    """

    offset: Offset
    producer_id: int
    epoch: int
    marker: Marker
    timestamp_ms: int

    @property
    def is_marker(self) -> bool:
        """Whether it ends a transaction."""
        return self.marker is not Marker.NONE


@dataclass(frozen=True, slots=True)
class PartitionTransactions:
    """The transactional batches that were read from one partition's archive.

    Attributes:
        batches: By ascending offset.
        is_from_start: Whether the archive has no transactional batch below them.
    """

    batches: Sequence[TransactionalBatch]
    is_from_start: bool = True

    @property
    def last_marker_ms(self) -> int:
        """Time of the last marker that was read, in ms since 1970; 0 without any."""
        markers = (batch.timestamp_ms for batch in reversed(self.batches) if batch.is_marker)
        return next(markers, 0)


@dataclass(frozen=True, slots=True)
class LoweredEnd:
    """The lowered end of a partition, and the transaction for which it was lowered.

    `not_committed_in` is the partition in which that transaction is not committed below the end.
    """

    partition: str
    requested: int
    end: int
    producer_id: int
    producer_epoch: int
    not_committed_in: str


@dataclass(frozen=True, slots=True)
class TransactionReport:
    """The parts that a transaction-consistent plan leaves out, and its missing guarantees.

    Attributes:
        lowered: The lowered ends, by partition.
        version_1_producers: Producer ids with transactions of version 1 in several partitions that
            may be half restored.
        unproven_producers: Producer ids with restored transactions that may have records in a
            partition where the archive shows none of the producer id.
        unproven_transactions: Number of these transactions.
        proven_until_ms: No transaction that was committed before this time, in ms since 1970, is
            among them. None if there are none.
    """

    lowered: tuple[LoweredEnd, ...] = ()
    version_1_producers: tuple[int, ...] = ()
    unproven_producers: tuple[int, ...] = ()
    unproven_transactions: int = 0
    proven_until_ms: int | None = None

    @property
    def is_proven(self) -> bool:
        """Whether every restored transaction is known to be whole."""
        return not self.version_1_producers and not self.unproven_producers


@dataclass(frozen=True, slots=True)
class ConsistentCut:
    """The end of each partition, and the report on the lowered ends."""

    ends: Mapping[TopicPartition, Offset]
    report: TransactionReport


@dataclass(frozen=True, slots=True)
class _Part:
    """A transaction in one partition. Without a marker, the archive does not decide it."""

    partition: TopicPartition
    key: _Key
    first_offset: Offset
    marker: TransactionalBatch | None

    @property
    def is_version_1(self) -> bool:
        """Whether the marker has the same epoch as the records."""
        return self.marker is not None and self.marker.epoch == self.key[1]

    def is_decided_below(self, end: Offset) -> bool:
        """Whether the marker is restored."""
        return self.marker is not None and self.marker.offset < end


def transactional_batches(
    batches: Iterable[tuple[BatchHeader, Marker]],
) -> Iterator[TransactionalBatch]:
    """Yield the batches of a segment that begin or decide a transaction.

    Args:
        batches: Headers and markers by ascending offset.
    """
    tracker = TransactionTracker()
    for header, marker in batches:
        producer, epoch = header.producer_id, header.producer_epoch
        before = tracker.open.get(producer)
        tracker.feed(header, marker)
        if marker is not Marker.NONE or tracker.open.get(producer) != before:
            yield TransactionalBatch(
                header.base_offset, producer, epoch, marker, header.max_timestamp
            )


def consistent_cut(
    partitions: Mapping[TopicPartition, PartitionTransactions],
    ends: Mapping[TopicPartition, Offset],
) -> ConsistentCut:
    """Return the highest ends at which the archive shows no half restored transaction.

    Args:
        partitions: The batches of the partitions with transactions. `latest_marker_ms` and
            `time_needed` return how much must be read.
        ends: The requested end of each partition, exclusive.
    """
    return _Cut.of(partitions, ends).lowered()


def latest_marker_ms(
    partitions: Mapping[TopicPartition, PartitionTransactions],
    ends: Mapping[TopicPartition, Offset],
) -> int | None:
    """Return the time of the last marker below the ends; None without any.

    Records of a transaction are written before its markers. So no batch that was written
    `CLOCK_DIFFERENCE_MS` later belongs to a transaction that is committed below the ends.
    """
    times = (
        batch.timestamp_ms
        for tp, known in partitions.items()
        for batch in known.batches
        if batch.is_marker and batch.offset < ends[tp]
    )
    return max(times, default=None)


def time_needed(known: PartitionTransactions, tp: TopicPartition, end: Offset) -> int | None:
    """Return the time of the last marker before the first record that is undecided below the end.

    A transaction that is not committed below the end of this partition has records after that
    marker here, so it was committed after the marker everywhere. Partitions need not be read back
    further than this time, less `CLOCK_DIFFERENCE_MS` and `LONGEST_TRANSACTION_MS`.

    Returns:
        The time in ms since 1970; None if no such marker was read.
    """
    undecided = (
        entry.first_offset
        for entry in _parts(tp, known)
        if entry.first_offset < end and not entry.is_decided_below(end)
    )
    first = min(undecided, default=end)
    before = (
        entry.timestamp_ms
        for entry in reversed(known.batches)
        if entry.is_marker and entry.offset < min(first, end)
    )
    return next(before, None)


def _parts(tp: TopicPartition, known: PartitionTransactions) -> Iterator[_Part]:
    """Yield the transactions of a partition, by marker offset; those without a marker last."""
    tracker = TransactionTracker()
    for batch in known.batches:
        if not batch.is_marker:
            # If the epoch changes without a marker, the marker of the former transaction is in a
            # gap: the next one decides the transaction of the last epoch.
            tracker.add_batch(batch.producer_id, batch.epoch, batch.offset)
            continue
        ended = tracker.end_transaction(batch.producer_id, batch.offset, batch.marker)
        if ended is not None:
            key = ended.producer_id, ended.producer_epoch
            yield _Part(tp, key, ended.first_offset, batch)
        elif not known.is_from_start:  # its records are further back, where nothing was read
            # As in transactions v2: the marker's epoch is one above the records' epoch.
            yield _Part(tp, (batch.producer_id, batch.epoch - 1), batch.offset, batch)
    for still_open in tracker.open.values():
        key = still_open.producer_id, still_open.producer_epoch
        yield _Part(tp, key, still_open.first_offset, None)


@dataclass(slots=True)
class _Cut:
    """The ends while they are lowered.

    Attributes:
        parts: For each transaction v2, the parts that are committed or not decided.
        version_1: For each producer id and epoch, the parts that are committed by version 1.
        committed: For each partition, the transactions v2 that it commits, by ascending marker
            offset.
        latest_epochs: For each producer id, the highest epoch that each partition shows.
        last_marker_ms: Time of the last marker of each partition.
    """

    partitions: Mapping[TopicPartition, PartitionTransactions]
    requested: Mapping[TopicPartition, Offset]
    ends: dict[TopicPartition, Offset]
    parts: dict[_Key, list[_Part]] = field(default_factory=dict)
    version_1: dict[_Key, list[_Part]] = field(default_factory=dict)
    committed: dict[TopicPartition, list[tuple[Offset, _Key]]] = field(default_factory=dict)
    latest_epochs: dict[int, dict[TopicPartition, int]] = field(default_factory=dict)
    last_marker_ms: dict[TopicPartition, int] = field(default_factory=dict)
    reasons: dict[TopicPartition, LoweredEnd] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        partitions: Mapping[TopicPartition, PartitionTransactions],
        ends: Mapping[TopicPartition, Offset],
    ) -> "_Cut":
        """Return the requested ends, with all parts sorted by kind."""
        cut = cls(partitions, ends, dict(ends))
        for tp, known in partitions.items():
            cut.last_marker_ms[tp] = known.last_marker_ms
            for batch in known.batches:
                latest = cut.latest_epochs.setdefault(batch.producer_id, {})
                latest[tp] = max(latest.get(tp, -1), batch.epoch)
            for part in _parts(tp, known):
                if part.marker is None:
                    cut.parts.setdefault(part.key, []).append(part)
                # Aborted transactions are aborted everywhere, so none can be half restored.
                elif part.marker.marker is Marker.COMMIT:
                    kind = cut.version_1 if part.is_version_1 else cut.parts
                    kind.setdefault(part.key, []).append(part)
                    if not part.is_version_1:
                        cut.committed.setdefault(tp, []).append((part.marker.offset, part.key))
        return cut

    def lowered(self) -> ConsistentCut:
        """Lower the ends until no transaction v2 is half restored."""
        todo: deque[tuple[_Key, TopicPartition]] = deque()
        for key, parts in self.parts.items():
            partition = self._not_committed_in(key, parts)
            if partition is not None:
                todo.append((key, partition))
        left_out: set[_Key] = set()
        while todo:
            key, partition = todo.popleft()
            if key in left_out:
                continue
            left_out.add(key)
            for part in self.parts[key]:
                if part.marker is not None:
                    todo += self._end_before(part.partition, part.marker.offset, key, partition)
        return ConsistentCut(self.ends, self._report())

    def _not_committed_in(self, key: _Key, parts: Sequence[_Part]) -> TopicPartition | None:
        """Return a partition in which the transaction may not be committed below the end."""
        for part in parts:
            if not part.is_decided_below(self.ends[part.partition]):
                return part.partition
        producer, epoch = key
        shown = {part.partition for part in parts}
        for tp, latest in self.latest_epochs[producer].items():
            if tp not in shown and latest <= epoch and not self._is_later(tp, parts):
                return tp
        return None

    def _is_later(self, tp: TopicPartition, parts: Iterable[_Part]) -> bool:
        """Whether the partition's archive continues past the commit of the transaction."""
        return self.last_marker_ms[tp] >= _committed_ms(parts) + CLOCK_DIFFERENCE_MS

    def _end_before(
        self, tp: TopicPartition, marker: Offset, key: _Key, where: TopicPartition
    ) -> Iterator[tuple[_Key, TopicPartition]]:
        """End a partition before a marker; return the transactions that this cuts off."""
        before = self.ends[tp]
        if marker >= before:
            return
        self.ends[tp] = marker
        self.reasons[tp] = LoweredEnd(str(tp), self.requested[tp], marker, *key, str(where))
        committed = self.committed[tp]
        for offset, other in committed[bisect_left(committed, (marker, key)) :]:
            # These were cut off already, when the end was lowered before.
            if offset >= before:
                return
            yield other, tp

    def _report(self) -> TransactionReport:
        version_1 = {
            key[0]
            for key, parts in self.version_1.items()
            if self._restored(parts) and self._may_be_split(key, parts)
        }
        last_markers = sorted(
            (self.last_marker_ms[tp], tp) for tp, known in self.partitions.items() if known.batches
        )
        unproven: set[_Key] = set()
        for kind in (self.parts, self.version_1):
            for key, parts in kind.items():
                wrote_to = self.latest_epochs[key[0]]
                # Sorted by time, so `next` takes the earliest of these last markers.
                others = (time for time, tp in last_markers if tp not in wrote_to)
                shown_until = next(others, None)
                if shown_until is not None and any(
                    part.marker is not None
                    and part.marker.timestamp_ms > shown_until - CLOCK_DIFFERENCE_MS
                    for part in self._restored(parts)
                ):
                    unproven.add(key)
        return TransactionReport(
            tuple(self.reasons[tp] for tp in sorted(self.reasons)),
            tuple(sorted(version_1)),
            tuple(sorted({producer for producer, _ in unproven})),
            len(unproven),
            max(last_markers[0][0] - CLOCK_DIFFERENCE_MS, 0) if unproven else None,
        )

    def _restored(self, parts: Iterable[_Part]) -> list[_Part]:
        """Return the parts whose markers are restored."""
        return [part for part in parts if part.is_decided_below(self.ends[part.partition])]

    def _may_be_split(self, key: _Key, parts: Sequence[_Part]) -> bool:
        """Whether a transaction v1 of this epoch may be committed in only some partitions."""
        producer, epoch = key
        latest = self.latest_epochs[producer]
        every = [*parts, *self.parts.get(key, ())]
        return len(latest) > 1 and (
            len(self._restored(every)) < len(every)
            or any(
                latest[tp] <= epoch and not all(self._is_later(tp, [part]) for part in parts)
                for tp in latest
            )
        )


def _committed_ms(parts: Iterable[_Part]) -> int:
    """Return the time of a transaction's first marker; it was committed before that time."""
    times = (part.marker.timestamp_ms for part in parts if part.marker is not None)
    return min(times, default=0)
