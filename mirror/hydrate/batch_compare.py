"""Compare the bytes of a partition on the brokers with the archived batches, without decoding.

Placing changes the leader epoch of a batch and no other byte (`place`). So the brokers must return
the archived bytes with that epoch, and equal bytes are equal records. Beyond that, two values of
the brokers decide what read-committed consumers see: the last stable offset, below which all
fetched bytes are, and the aborted transactions, which must be those that the archived markers show.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from sidetier.mirror.hydrate.batch_scan import NORMALISED_EPOCH, BatchScanner
from sidetier.mirror.hydrate.plan import PlannedPartition
from sidetier.segments.batches import set_leader_epoch, split_batches
from sidetier.segments.headers import BatchHeader
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import MAX_OFFSET, Offset
from sidetier.segments.transactions import Marker, TransactionTracker
from sidetier.wire.cluster import Cluster
from sidetier.wire.fetch_session import FetchPosition
from sidetier.wire.record_requests import receive_fetched_partition, send_fetch

_FETCH_BYTES: Final = 8 << 20
_WAIT_SECONDS: Final = 1.0

Transaction = tuple[int, int]
"""Producer id and first offset."""


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Whole batches as the brokers returned them.

    Attributes:
        start: The requested offset.
        end: The offset after the last batch.
        data: The bytes of the batches.
        aborted: The aborted transactions that the brokers returned.
    """

    start: Offset
    end: Offset
    data: memoryview
    aborted: frozenset[Transaction]


@dataclass(frozen=True, slots=True)
class EqualBatches:
    """Counts of a partition whose batches are equal on both sides.

    `timestamps` are the largest timestamps, in ms, of a sample of batches across the partition.
    """

    records: int
    committed_records: int
    timestamps: tuple[int, ...]


@dataclass(slots=True)
class PlacedBatches:
    """The placed bytes of a partition, and counts from their batch headers.

    The bytes begin with the batch that holds the plan's start and end at the plan's end.

    Args:
        plan: The partition.
        segments: For each planned segment in order, its key and its bytes in chunks.
        check_end: Called with the key of each segment that was read whole, and the offset after its
            last batch; raises if the segment has lost batches.
    """

    plan: PlannedPartition
    segments: Iterable[tuple[str, Iterable[bytes | bytearray]]]
    check_end: Callable[[str, Offset], object]
    records: int = 0
    aborted_records: int = 0
    undecided_records: dict[int, int] = field(default_factory=dict)
    """Number of records in the open transaction of each producer id."""
    transactions: TransactionTracker = field(default_factory=TransactionTracker)
    timestamps: list[int] = field(default_factory=list)
    has_start_inside_compacted: bool = False
    """The plan starts inside a batch with fewer records than offsets, so `records` is unknown."""
    _batches: int = 0
    _next_sample: int = 1

    def chunks(self) -> Iterator[bytearray]:
        """Yield the placed bytes in order, in chunks that are not empty.

        Raises:
            DamagedSegmentError, UnsupportedFormatError: As `BatchScanner` and `check_end`.
            StorageError: As `RemoteStorage` documents.
        """
        begin = 0
        """Where the placed bytes begin in the next buffer; batches below the start are left out."""
        reached = Offset(0)
        for name, chunks in self.segments:
            scanner = BatchScanner(name)
            for chunk in chunks:
                buffer, batches = scanner.feed(chunk)
                for at, header, marker in batches:
                    if header.base_offset >= self.plan.end:
                        if begin < at:
                            yield buffer[begin:at]
                        return
                    set_leader_epoch(buffer, NORMALISED_EPOCH, at)
                    self._count_batch(header, marker)
                    reached = header.next_offset
                    # Below the start: the brokers do not return this batch.
                    if header.next_offset <= self.plan.start:
                        begin = at + header.length
                if begin < len(buffer):
                    yield buffer[begin:] if begin else buffer
                # A batch below the start can reach into the next chunk.
                begin = max(begin - len(buffer), 0)
            scanner.finish()
            self.check_end(name, reached)

    def _count_batch(self, header: BatchHeader, marker: Marker) -> None:
        ended = self.transactions.feed(header, marker)
        if ended is not None:
            records = self.undecided_records.pop(ended.producer_id)
            self.aborted_records += records if marker is Marker.ABORT else 0
        if header.is_control:
            return
        count = self._records_of(header)
        self.records += count
        if header.is_transactional:
            producer = header.producer_id
            self.undecided_records[producer] = self.undecided_records.get(producer, 0) + count
        if count:
            self._batches += 1
            if self._batches == self._next_sample:  # the 1st, 4th, 16th, ... batch
                self._next_sample *= 4
                self.timestamps.append(header.max_timestamp)

    def _records_of(self, header: BatchHeader) -> int:
        start = self.plan.start
        if header.base_offset >= start:
            return header.record_count
        if header.next_offset <= start:
            return 0
        if header.next_offset - header.base_offset != header.record_count:
            self.has_start_inside_compacted = True
        return header.next_offset - start


def fetch_batches(cluster: Cluster, plan: PlannedPartition) -> Iterator[FetchedBatches]:
    """Yield the batches from the plan's start up to its end, as far as they are stable.

    One request is in flight while the caller works on the batches of the previous one.

    Raises:
        KafkaApiError: A broker refuses.
        BrokerError: An error of `Connection`.
        DamagedSegmentError: The broker returns bytes that are not batches.
    """
    if plan.start >= plan.end:
        return
    tp, position = plan.topic_partition, Offset(plan.start)
    (broker,) = cluster.leaders([tp])
    with cluster.connect(broker) as connection:

        def request_next() -> None:
            send_fetch(
                connection,
                [FetchPosition(tp, position, _FETCH_BYTES)],
                isolation=IsolationLevel.READ_COMMITTED,
                max_wait=_WAIT_SECONDS,
                max_bytes=_FETCH_BYTES,
            )

        request_next()
        while True:
            answer = receive_fetched_partition(connection)
            start, (size, position) = position, _whole_batches(answer.records, position, plan.end)
            # Before the yield: the broker reads the next batches while the caller compares these.
            if position > start and position < plan.end:
                request_next()
            aborted = frozenset(
                (transaction.producer_id, transaction.first_offset)
                for transaction in answer.aborted
            )
            yield FetchedBatches(start, position, answer.records[:size], aborted)
            if position == start or position >= plan.end:
                return


def _whole_batches(records: memoryview, position: Offset, end: int) -> tuple[int, Offset]:
    """Return the bytes of the whole batches below `end`, and the offset after the last of them."""
    size = 0
    for batch, header in split_batches(records):
        if header.base_offset >= end:
            break
        size, position = size + len(batch), header.next_offset
    return size, position


@dataclass(slots=True)
class _ExpectedBytes:
    """The placed bytes of a partition. They are compared in order without being copied."""

    chunks: Iterator[bytearray]
    _chunk: bytearray = field(default_factory=bytearray)
    _compared: int = 0
    """Number of bytes of the chunk that were compared."""

    def continue_with(self, data: memoryview) -> bool:
        """Compare the next bytes; return False if they differ or there are too few."""
        at, size = 0, len(data)
        while at < size:
            if self._compared == len(self._chunk):
                self._chunk, self._compared = next(self.chunks, bytearray()), 0
            part = min(len(self._chunk) - self._compared, size - at)
            # Compares the bytearray in place with one memcmp; memoryviews are compared item by
            # item.
            if not part or not self._chunk.startswith(data[at : at + part], self._compared):
                return False
            at += part
            self._compared += part
        return True

    def have_ended(self) -> bool:
        """Whether every byte was compared."""
        return self._compared == len(self._chunk) and not any(self.chunks)


def compare_batches(placed: PlacedBatches, fetched: Iterable[FetchedBatches]) -> EqualBatches | str:
    """Compare a partition on the brokers with its archive.

    Args:
        placed: The placed bytes.
        fetched: The batches on the brokers, in order (`fetch_batches`).

    Returns:
        The counts if both sides are equal, otherwise the first difference as text.

    Raises:
        SidetierError: One of the sides cannot be read.
    """
    expected = _ExpectedBytes(placed.chunks())
    answers = []
    position = placed.plan.start
    for answer in fetched:
        if not expected.continue_with(answer.data):
            return f"a batch between offsets {answer.start} and {answer.end} differs"
        position = answer.end
        answers.append((answer.start, answer.end, answer.aborted))
    difference: str | None
    if position < placed.plan.end:
        difference = f"read-committed consumers are shown nothing from offset {position} on"
    elif not expected.have_ended():
        difference = f"the brokers have no batches after offset {position}, the archive has"
    elif placed.has_start_inside_compacted:
        difference = "it starts inside a compacted batch, whose records have to be counted"
    else:
        difference = _difference_of_aborted(placed, answers)
    if difference is not None:
        return difference
    hidden = placed.aborted_records + sum(placed.undecided_records.values())
    return EqualBatches(placed.records, placed.records - hidden, tuple(placed.timestamps))


def _difference_of_aborted(
    placed: PlacedBatches, answers: Iterable[tuple[int, int, frozenset[Transaction]]]
) -> str | None:
    """Return a difference between the brokers' aborted transactions and the archived markers.

    Transactions that are open at the plan's end have been aborted since (`finish`). A broker
    returns all aborted transactions that overlap the offsets it returns. It may also return later
    ones, because it finds the end of these offsets in a sparse index.
    """
    transactions = placed.transactions
    # First offset, producer id, and the offset of the marker.
    coming = [
        *((txn.first_offset, txn.producer_id, txn.last_offset) for txn in transactions.aborted),
        *((txn.first_offset, txn.producer_id, MAX_OFFSET) for txn in transactions.open.values()),
    ]
    coming.sort(reverse=True)
    known = {(producer, first) for first, producer, _ in coming}
    begun: list[tuple[int, int, int]] = []
    for start, end, named in answers:
        while coming and coming[-1][0] < end:
            begun.append(coming.pop())
        begun = [transaction for transaction in begun if transaction[2] >= start]
        missing = {(producer, first) for first, producer, _ in begun} - named
        # From the plan's end on, the transactions belong to producers that have written since.
        unknown = {transaction for transaction in named - known if transaction[1] < placed.plan.end}
        if missing or unknown:
            producer, first = min(missing or unknown)
            return (
                f"the transaction of producer {producer} from offset {first} on is "
                f"{'not ' if missing else ''}aborted on the brokers"
            )
    return None
