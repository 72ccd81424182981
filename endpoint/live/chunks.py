"""Record batches that leaders have returned, kept for the other clients that read the same.

Fifty clients at the end of a partition cost its leader one reader: each chunk is fetched once, and
every client that asks for an offset within it gets it from here. A client that begins within a
chunk continues with the chunk after it, like all others.
"""

import threading
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sidetier.segments.headers import (
    HEADER_BYTES,
    BatchHeader,
    batch_bytes,
    end_of_old_message,
    parse_batch_header,
)
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.transactions import Marker, read_marker
from sidetier.wire.record_requests import AbortedTransaction, FetchedPartition

_CHUNK_BYTES: Final = 1 << 10
"""Memory of a chunk beside its batches."""


class Reader(NamedTuple):
    """What a leader is asked for: a partition, up to its last stable offset or high watermark."""

    tp: TopicPartition
    is_isolated: bool
    """Whether `read_committed` applies."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive whole batches of one answer.

    Attributes:
        start: The offset that was asked for; the first batch may begin below it.
        end: The offset after the last batch.
        data: The batches.
        aborted: The aborted transactions among them; empty with read_uncommitted.
    """

    start: Offset
    end: Offset
    data: memoryview
    aborted: Sequence[AbortedTransaction]

    def part(self, offset: Offset) -> "Chunk":
        """Return the batches from that with `offset` on, and the transactions aborted after it.

        A transaction whose abort marker lies before the part is left out: Java would drop the
        committed records of its producer until the next marker.
        """
        if offset <= self.start:
            return self
        aborted = list(self.aborted)
        position = 0
        while position < len(self.data) and _end_of_batch(self.data, position) <= offset:
            batch = self.data[position:]
            marker = _abort_marker(batch) if aborted else None
            if marker is not None:
                ended = (
                    transaction
                    for transaction in aborted
                    if transaction.producer_id == marker.producer_id
                    and transaction.first_offset < marker.base_offset
                )
                first = min(ended, key=lambda each: each.first_offset, default=None)
                if first is not None:
                    aborted.remove(first)
            position += batch_bytes(batch)
        return Chunk(offset, self.end, self.data[position:], aborted)


def chunk_of(offset: Offset, fetched: FetchedPartition) -> Chunk | None:
    """Return the whole batches of an answer; None if there are none.

    Args:
        offset: The offset that was asked for.
        fetched: The answer.

    Raises:
        DamagedSegmentError, UnsupportedFormatError: The leader's answer has no valid batches.
    """
    records, size, last = fetched.records, 0, 0
    # The length of a batch is behind its base offset; the last one may be cut off.
    while length := batch_bytes(records[size:]):
        if size + length > len(records):
            break
        last, size = size, size + length
    if not size:
        return None
    end = _end_of_batch(records, last)
    if end <= offset:
        return None
    data = records[:size]
    if size < memoryview(data.obj).nbytes // 2:
        # A view would keep the whole answer in memory, with the records of all other partitions.
        data = memoryview(bytes(data))
    return Chunk(offset, end, data, fetched.aborted)


def _end_of_batch(records: memoryview, at: int) -> Offset:
    """Return the offset after the batch at byte `at`. Batches of old topics are messages of format
    v0 or v1, which the brokers store and send as they are, up to Kafka 4.

    Raises:
        DamagedSegmentError, UnsupportedFormatError: It is neither.
    """
    end = end_of_old_message(records, at)
    return parse_batch_header(records, at).next_offset if end is None else end


def _abort_marker(batch: memoryview) -> BatchHeader | None:
    """Return the header of a batch that is an abort marker; None for all others."""
    if end_of_old_message(batch) is not None:
        return None
    header = parse_batch_header(batch)
    if not header.is_control:
        return None
    marker = read_marker(header, bytes(batch[HEADER_BYTES : header.length]))
    return header if marker is Marker.ABORT else None


class ChunkCache:
    """The newest chunks within a number of bytes. Thread-safe.

    Args:
        capacity: Bytes. One chunk is kept even if it is larger.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._guard = threading.Lock()
        self._chunks: OrderedDict[tuple[Reader, Offset], Chunk] = OrderedDict()
        self._starts: dict[Reader, list[Offset]] = {}
        self.used = 0
        """Bytes of all chunks."""

    def add(self, reader: Reader, chunk: Chunk) -> None:
        """Keep a chunk. One that begins at the same offset is replaced if it ends earlier."""
        with self._guard:
            known = self._chunks.get((reader, chunk.start))
            if known is not None:
                if known.end >= chunk.end:
                    return
                self._remove(reader, chunk.start)
            self._chunks[reader, chunk.start] = chunk
            insort(self._starts.setdefault(reader, []), chunk.start)
            self.used += _memory_of(chunk)
            while self.used > self._capacity and len(self._chunks) > 1:
                self._remove(*next(iter(self._chunks)))

    def read(self, reader: Reader, offset: Offset, most_bytes: int) -> list[Chunk]:
        """Return consecutive chunks from an offset on; empty if the first one is not kept.

        Only the first one may have more than `most_bytes` bytes.
        """
        chunks: list[Chunk] = []
        size = 0
        while (chunk := self._holder(reader, offset)) is not None:
            part = chunk.part(offset)
            size += len(part.data)
            if chunks and size > most_bytes:
                break
            chunks.append(part)
            offset = part.end
        return chunks

    def drop(self, tp: TopicPartition) -> None:
        """Forget a partition: its leader has changed, and may have other records."""
        with self._guard:
            for reader in (Reader(tp, isolated) for isolated in (False, True)):
                for start in tuple(self._starts.get(reader, ())):
                    self._remove(reader, start)

    def _holder(self, reader: Reader, offset: Offset) -> Chunk | None:
        with self._guard:
            starts = self._starts.get(reader, [])
            at = bisect_right(starts, offset)
            # Chunks overlap where a client began within another one: a lower one may reach further.
            for start in reversed(starts[max(at - 2, 0) : at]):
                chunk = self._chunks[reader, start]
                if offset < chunk.end:
                    return chunk
        return None

    def _remove(self, reader: Reader, start: Offset) -> None:
        self.used -= _memory_of(self._chunks.pop((reader, start)))
        starts = self._starts[reader]
        starts.remove(start)
        if not starts:
            del self._starts[reader]


def _memory_of(chunk: Chunk) -> int:
    return memoryview(chunk.data.obj).nbytes + _CHUNK_BYTES


def aborted_in(chunks: Sequence[Chunk]) -> Iterator[AbortedTransaction]:
    """Yield the aborted transactions of consecutive chunks, each once, by their first offset."""
    found = {transaction for chunk in chunks for transaction in chunk.aborted}
    yield from sorted(found, key=lambda each: (each.first_offset, each.producer_id))
