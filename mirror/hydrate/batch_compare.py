"""Compare the bytes that brokers hold of a partition with the archived batches; nothing is decoded.

Placing changes the leader epoch of a batch and no other byte (`place`). So the brokers must return
the archived bytes with that epoch, and equal bytes are equal records. What read-committed consumers
see beyond that depends on two answers of the brokers: the last stable offset, below which all
fetched bytes lie, and the aborted transactions, which must be those that the archived markers tell.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from sidetier.mirror.hydrate.batch_scan import BatchScanner, normalise_epoch
from sidetier.mirror.hydrate.plan import PlannedPartition
from sidetier.segments.headers import HEADER_BYTES, LENGTH_PREFIX_BYTES, BatchHeader
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset
from sidetier.wire.cluster import Cluster
from sidetier.wire.record_requests import FetchPosition, receive_fetched_partition, send_fetch

_FETCH_BYTES: Final = 8 << 20
_WAIT_SECONDS: Final = 1.0
_BORDERS: Final = struct.Struct(">qi11xi")
"""Of a batch header: base offset, length after the first 12 bytes, last offset delta."""

Transaction = tuple[int, int]
"""Producer id and first offset."""


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Whole batches as the brokers returned them.

    `start` is the offset that was asked for and `end` the offset after the last batch. `aborted`
    are the aborted transactions that the brokers named.
    """

    start: Offset
    end: Offset
    data: memoryview
    aborted: frozenset[Transaction]


@dataclass(frozen=True, slots=True)
class EqualBatches:
    """Counts of a partition whose batches are equal on both sides.

    `timestamps` are the largest ones of some batches from all over the partition, in ms.
    """

    records: int
    committed_records: int
    timestamps: tuple[int, ...]


@dataclass(slots=True)
class _Transaction:
    """One of the archive. `last` is the offset of its marker; open ones have none."""

    producer_id: int
    first: int
    records: int = 0
    last: float = float("inf")


@dataclass(slots=True)
class PlacedBatches:
    """The bytes that were placed of a partition, and what their headers tell.

    The bytes begin with the batch that holds the plan's start and end at the plan's end.

    Args:
        plan: the partition.
        segments: of each planned segment its key and its bytes in chunks, in order.
    """

    plan: PlannedPartition
    segments: Iterable[tuple[str, Iterable[bytes | bytearray]]]
    records: int = 0
    aborted: list[_Transaction] = field(default_factory=list)
    undecided: dict[int, _Transaction] = field(default_factory=dict)
    timestamps: list[int] = field(default_factory=list)
    has_start_inside_compacted: bool = False
    """The plan starts inside a batch that has fewer records than offsets: `records` is unknown."""
    _batches: int = 0
    _next_sample: int = 1

    def chunks(self) -> Iterator[bytearray]:
        """The placed bytes in order, in pieces that are not empty.

        Raises:
            DamagedSegmentError, UnsupportedFormatError: as `BatchScanner`.
            StorageError: as the port says.
        """
        begin = 0
        """Where in the next buffer the placed bytes begin: batches below the start are left out."""
        for name, chunks in self.segments:
            scanner = BatchScanner(name)
            for chunk in chunks:
                buffer, found = scanner.feed(chunk)
                for at, header, commits in found:
                    if header.base_offset >= self.plan.end:
                        if begin < at:
                            yield buffer[begin:at]
                        return
                    normalise_epoch(buffer, at)
                    self._follow(header, commits)
                    if header.next_offset <= self.plan.start:
                        begin = at + header.length
                if begin < len(buffer):
                    yield buffer[begin:] if begin else buffer
                begin = max(begin - len(buffer), 0)
            scanner.finish()

    def _follow(self, header: BatchHeader, commits: bool | None) -> None:  # noqa: FBT001 -- of a marker
        if commits is not None:
            known = self.undecided.pop(header.producer_id, None)
            if known is not None and not commits:
                known.last = header.base_offset
                self.aborted.append(known)
            return
        count = self._count(header)
        self.records += count
        if header.is_transactional:
            new = _Transaction(header.producer_id, header.base_offset)
            self.undecided.setdefault(header.producer_id, new).records += count
        if count:
            self._batches += 1
            if self._batches == self._next_sample:  # the 1st, 4th, 16th, ... batch
                self._next_sample *= 4
                self.timestamps.append(header.max_timestamp)

    def _count(self, header: BatchHeader) -> int:
        start = self.plan.start
        if header.base_offset >= start:
            return header.record_count
        if header.next_offset <= start:
            return 0
        if header.next_offset - header.base_offset != header.record_count:
            self.has_start_inside_compacted = True
        return header.next_offset - start


def fetch_batches(cluster: Cluster, plan: PlannedPartition) -> Iterator[FetchedBatches]:
    """The batches of a partition from the plan's start up to its end, as far as they are stable.

    One request is on its way while its caller works on the batches of the one before.

    Raises:
        KafkaApiError: a broker refuses.
        BrokerError: what `Connection` raises.
    """
    if plan.start >= plan.end:
        return
    tp, position = plan.topic_partition, Offset(plan.start)
    (broker,) = cluster.leaders([tp])
    with cluster.connect(broker) as connection:

        def ask() -> None:
            send_fetch(
                connection,
                [FetchPosition(tp, position, _FETCH_BYTES)],
                isolation=IsolationLevel.READ_COMMITTED,
                max_wait=_WAIT_SECONDS,
                max_bytes=_FETCH_BYTES,
            )

        ask()
        while True:
            answer = receive_fetched_partition(connection)
            start, (size, position) = position, _whole_batches(answer.records, position, plan.end)
            if position > start and position < plan.end:
                ask()
            aborted = frozenset((one.producer_id, one.first_offset) for one in answer.aborted)
            yield FetchedBatches(start, position, answer.records[:size], aborted)
            if position == start or position >= plan.end:
                return


def _whole_batches(records: memoryview, position: Offset, end: int) -> tuple[int, Offset]:
    """How many bytes the whole batches below `end` have, and the offset after the last of them."""
    at, size = 0, len(records)
    while at + HEADER_BYTES <= size:
        base, length, delta = _BORDERS.unpack_from(records, at)
        behind = at + LENGTH_PREFIX_BYTES + length
        if behind > size or base >= end or length < HEADER_BYTES - LENGTH_PREFIX_BYTES:
            break
        at, position = behind, Offset(base + delta + 1)
    return at, position


@dataclass(slots=True)
class _ExpectedBytes:
    """The placed bytes of a partition, which are compared in order without being copied."""

    chunks: Iterator[bytearray]
    _chunk: bytearray = field(default_factory=bytearray)
    _compared: int = 0
    """Bytes of the chunk that were compared."""

    def continue_with(self, data: memoryview) -> bool:
        """Compare the next bytes; False where they differ or there are too few."""
        at, size = 0, len(data)
        while at < size:
            if self._compared == len(self._chunk):
                self._chunk, self._compared = next(self.chunks, bytearray()), 0
            part = min(len(self._chunk) - self._compared, size - at)
            # A memcmp of the bytearray in place; memoryviews are compared item by item.
            if not part or not self._chunk.startswith(data[at : at + part], self._compared):
                return False
            at += part
            self._compared += part
        return True

    def have_ended(self) -> bool:
        """Whether every byte was compared."""
        return self._compared == len(self._chunk) and not any(self.chunks)


def compare_batches(placed: PlacedBatches, fetched: Iterable[FetchedBatches]) -> EqualBatches | str:
    """Compare a partition of the brokers with its archive.

    Args:
        placed: what was placed.
        fetched: what the brokers have, in order (`fetch_batches`).

    Returns:
        What was compared; the first difference as text where they are not equal.

    Raises:
        SidetierError: a side cannot be read.
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
    hidden = sum(one.records for one in (*placed.aborted, *placed.undecided.values()))
    return EqualBatches(placed.records, placed.records - hidden, tuple(placed.timestamps))


def _difference_of_aborted(
    placed: PlacedBatches, answers: Iterable[tuple[int, int, frozenset[Transaction]]]
) -> str | None:
    """Whether the brokers named other aborted transactions than the archived markers tell.

    What is open at the plan's end has been aborted since (`finish`). A broker names all aborted
    transactions that overlap the offsets it returns. It may name more behind them, since it looks
    up where they end in an index with an entry for some of the offsets.
    """
    coming = sorted(
        (*placed.aborted, *placed.undecided.values()), key=lambda one: one.first, reverse=True
    )
    known = {(one.producer_id, one.first) for one in coming}
    begun: list[_Transaction] = []
    for start, end, named in answers:
        while coming and coming[-1].first < end:
            begun.append(coming.pop())
        begun = [one for one in begun if one.last >= start]
        missing = {(one.producer_id, one.first) for one in begun} - named
        unknown = {one for one in named - known if one[1] < placed.plan.end}
        if missing or unknown:
            producer, first = min(missing or unknown)
            return (
                f"the transaction of producer {producer} from offset {first} on is "
                f"{'not ' if missing else ''}aborted on the brokers"
            )
    return None
