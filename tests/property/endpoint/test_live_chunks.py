"""Clients that share chunks get what a broker would have given each of them."""

import random
import struct
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.endpoint.live.chunks import Chunk, ChunkCache, Reader, aborted_in, chunk_of
from sidetier.segments.batches import split_batches
from sidetier.segments.headers import HEADER_BYTES
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.transactions import Marker, read_marker
from sidetier.wire.record_requests import AbortedTransaction, FetchedPartition
from tests.harness.record_batches import MadeBatch, MadeRecord, TransactionalLog

TP = TopicPartition("t", 0)
ISOLATED = Reader(TP, is_isolated=True)


class Leader:
    """A leader with a log whose transactions have all ended."""

    def __init__(self, events: random.Random, writes: int) -> None:
        self.log = TransactionalLog()
        self.aborted: list[tuple[AbortedTransaction, int]] = []
        """Each aborted transaction, and the offset of its marker."""
        self.committed: list[int] = []
        begun: dict[int, list[int]] = {}
        for _ in range(writes):
            producer = events.randrange(1, 4)
            if producer in begun and events.randrange(3) == 0:
                self._end(producer, begun.pop(producer), commit=events.randrange(2) == 0)
            elif events.randrange(5) == 0:
                batch = self.log.write(9, events.randrange(1, 4), transactional=False)
                self.committed += range(batch.first, batch.last + 1)
            else:
                batch = self.log.write(producer, events.randrange(1, 4))
                begun.setdefault(producer, []).extend(range(batch.first, batch.last + 1))
        for producer, offsets in begun.items():
            self._end(producer, offsets, commit=producer == 1)
        self.committed.sort()

    def _end(self, producer: int, offsets: list[int], *, commit: bool) -> None:
        marker = self.log.mark(producer, commit=commit)
        if commit:
            self.committed += offsets
        else:
            self.aborted.append((AbortedTransaction(producer, Offset(offsets[0])), marker.first))

    @property
    def end(self) -> int:
        return self.log.next_offset

    def fetch(self, offset: int, batches: int) -> FetchedPartition:
        """Return this number of batches from that with `offset` on, as a broker does."""
        sent = [batch for batch in self.log.batches if batch.last >= offset][:batches]
        upper = sent[-1].last + 1 if sent else offset
        data = bytearray(b"".join(batch.encoded() for batch in sent))
        aborted = tuple(
            transaction
            for transaction, marker in self.aborted
            if marker >= offset and transaction.first_offset < upper
        )
        end, start = Offset(self.end), Offset(0)
        return FetchedPartition(TP, 0, end, end, start, aborted, -1, memoryview(data))


def received(data: bytes, offset: int, aborted: Sequence[AbortedTransaction]) -> list[int]:
    """Return the offsets that Java's consumer hands out (`CompletedFetch`)."""
    waiting = sorted(aborted, key=lambda each: each.first_offset)
    dropped: set[int] = set()
    offsets: list[int] = []
    for batch, header in split_batches(memoryview(bytearray(data))):
        while waiting and waiting[0].first_offset <= header.last_offset:
            dropped.add(waiting.pop(0).producer_id)
        if header.is_control:
            if read_marker(header, bytes(batch[HEADER_BYTES:])) is Marker.ABORT:
                dropped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropped):
            offsets += range(max(header.base_offset, offset), header.next_offset)
    return offsets


def ask(cache: ChunkCache, leader: Leader, offset: int, events: random.Random) -> Sequence[Chunk]:
    """Read as `LiveReads.fetch` does."""
    chunks = cache.read(ISOLATED, Offset(offset), events.randrange(1, 4000))
    if chunks:
        return chunks
    chunk = chunk_of(Offset(offset), leader.fetch(offset, events.randrange(1, 8)))
    if chunk is None:
        return ()
    cache.add(ISOLATED, chunk)
    return [chunk]


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), capacity=st.sampled_from([1, 2000, 1 << 20]))
def test_committed_records_from_any_offset(seed: int, capacity: int) -> None:
    events = random.Random(seed)
    leader, cache = Leader(events, 60), ChunkCache(capacity)
    positions = [events.randrange(leader.end) for _ in range(5)]
    starts, offsets = list(positions), [[] for _ in positions]  # type: list[int], list[list[int]]
    while any(position < leader.end for position in positions):
        client = events.randrange(len(positions))
        position = positions[client]
        chunks = ask(cache, leader, position, events)
        data = b"".join(bytes(chunk.data) for chunk in chunks)
        offsets[client] += received(data, position, list(aborted_in(chunks)))
        positions[client] = chunks[-1].end if chunks else leader.end
    for start, found in zip(starts, offsets, strict=True):
        assert found == [offset for offset in leader.committed if offset >= start]


def test_a_chunk_is_fetched_once_for_all_clients() -> None:
    leader, cache = Leader(random.Random(1), 60), ChunkCache(1 << 20)
    chunk = chunk_of(Offset(0), leader.fetch(0, 1000))
    assert chunk is not None
    cache.add(ISOLATED, chunk)
    for offset in range(leader.end):
        (part,) = cache.read(ISOLATED, Offset(offset), 1)
        assert part.end == leader.end
        _, first = next(split_batches(part.data))
        assert first.base_offset <= offset <= first.last_offset


def test_the_capacity_holds_and_a_partition_is_dropped() -> None:
    leader, cache = Leader(random.Random(2), 200), ChunkCache(3000)
    offset = 0
    while offset < leader.end:
        chunk = chunk_of(Offset(offset), leader.fetch(offset, 2))
        assert chunk is not None
        cache.add(ISOLATED, chunk)
        offset = chunk.end
        assert cache.used <= 3000
    assert cache.read(ISOLATED, Offset(leader.end - 1), 1)
    assert not cache.read(Reader(TP, is_isolated=False), Offset(leader.end - 1), 1)
    cache.drop(TP)
    assert cache.used == 0
    assert not cache.read(ISOLATED, Offset(leader.end - 1), 1)


def old_message(offset: int, magic: int, size: int) -> bytes:
    """A message of format v0 or v1 without its contents; `size` is that of its fields."""
    return struct.pack(">qiib", offset, size, 0, magic) + bytes(size - 5)


def test_messages_of_old_formats_are_passed_on() -> None:
    """The smallest one has 26 bytes. The one at 4 holds compressed ones from 1 to 4."""
    small, holder = old_message(0, 0, 14), old_message(4, 1, 90)
    batch = MadeBatch(tuple(MadeRecord(offset) for offset in (5, 6))).encoded()
    log = small + holder + batch

    def fetched(offset: int, data: bytes) -> Chunk | None:
        aborted = (AbortedTransaction(9, Offset(5)),)
        records = memoryview(bytearray(data))
        end, start = Offset(7), Offset(0)
        answer = FetchedPartition(TP, 0, end, end, start, aborted, -1, records)
        return chunk_of(Offset(offset), answer)

    for size, end in ((len(small), 1), (len(small + holder), 5), (len(log) - 1, 5), (len(log), 7)):
        chunk = fetched(0, log[:size])
        assert chunk is not None
        assert chunk.end == end
    whole = fetched(0, log)
    assert whole is not None
    for offset, rest in ((0, log), (1, holder + batch), (4, holder + batch), (5, batch)):
        assert whole.part(Offset(offset)).data == rest
    assert fetched(0, log[: len(small) - 1]) is None, "cut off"
