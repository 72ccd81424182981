"""The cache of segments keeps to its memory, shares blocks, and refuses what does not fit."""

import threading
from collections.abc import Iterator
from time import monotonic

import pytest

from sidetier.archive.objects.segment import StoredLog
from sidetier.endpoint.blocks import BlockCache, Lease
from sidetier.segments.errors import (
    BatchTooLargeError,
    DamagedSegmentError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.segments.offsets import BaseOffset
from sidetier.storage.port import ObjectSummary
from tests.harness.endpoint import joined
from tests.harness.waiting import wait_until

BLOCK = 1000
DATA = bytes(range(256)) * 64


def stored(topic: str = "orders-0", size: int = len(DATA)) -> StoredLog:
    return StoredLog(BaseOffset(0), ObjectSummary(f"prod-a/{topic}/0.log", size, "etag", 0))


class Store:
    """Counts reads, and can hold them back or fail them."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def read(self, _row: ObjectSummary, start: int, buffer: memoryview) -> int:
        end = start + len(buffer)
        self.reads.append((start, end))
        assert self.gate.wait(10)
        if self.error is not None:
            raise self.error
        data = DATA[start:end]
        buffer[: len(data)] = data
        return len(data)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def cache() -> Iterator[BlockCache]:
    made = BlockCache(8 * BLOCK, BLOCK)
    yield made
    made.close()


def hold_two(cache: BlockCache, store: Store) -> list[Lease]:
    """Borrow the first two blocks of a segment."""
    log = stored("a-0")
    return [cache.borrow(store.read, log, at * BLOCK, (at + 1) * BLOCK, 1) for at in range(2)]


def test_ranges_over_several_blocks(cache: BlockCache, store: Store) -> None:
    for start, end in ((0, 10), (995, 2005), (3000, 4000), (len(DATA) - 5, len(DATA))):
        lease = cache.borrow(store.read, stored(), start, end, end - start)
        assert joined(lease.pieces) == DATA[start:end]
        lease.release()
    assert cache.used <= cache.memory


def test_two_clients_at_the_same_place_share_blocks(cache: BlockCache, store: Store) -> None:
    for _ in range(2):
        cache.borrow(store.read, stored(), 0, 900, 1).release()
    wait_until(lambda: len(store.reads) == 3, 5, "two blocks ahead")
    assert sorted(store.reads) == [(0, 1000), (1000, 2000), (2000, 3000)]


def test_a_sequential_reader_reads_each_block_once(cache: BlockCache, store: Store) -> None:
    for start in range(0, len(DATA), 500):
        end = min(start + 500, len(DATA))
        lease = cache.borrow(store.read, stored(), start, end, 1)
        assert joined(lease.pieces) == DATA[start:end]
        lease.release()
        assert cache.used <= cache.memory
    assert len(store.reads) == len(set(store.reads)) == -(-len(DATA) // BLOCK)


def test_with_too_many_partitions_only_what_is_sent_is_read(store: Store) -> None:
    cache = BlockCache(2 * BLOCK, BLOCK)
    for number in range(3):
        cache.borrow(store.read, stored(f"orders-{number}"), 100, 200, 1).release()
    store.reads.clear()
    cache.borrow(store.read, stored("orders-0"), 150, 200, 1).release()
    assert store.reads == [(150, 200)]
    cache.close()


def test_less_is_lent_while_memory_is_short(store: Store) -> None:
    cache = BlockCache(2 * BLOCK, BLOCK)
    held = cache.borrow(store.read, stored("a-0"), 0, BLOCK, 1)
    lease = cache.borrow(store.read, stored("a-0"), BLOCK, 4 * BLOCK, 1)
    assert lease.size == BLOCK
    assert cache.used == cache.memory
    lease.release()
    held.release()
    cache.close()


def test_a_reader_waits_for_memory_that_another_one_holds(store: Store) -> None:
    cache = BlockCache(2 * BLOCK, BLOCK)
    held = hold_two(cache, store)
    leases: list[bytes] = []

    def read() -> None:
        lease = cache.borrow(store.read, stored("a-0"), 5 * BLOCK, 6 * BLOCK, BLOCK)
        leases.append(joined(lease.pieces))
        lease.release()

    waiting = threading.Thread(target=read, daemon=True)
    waiting.start()
    for each in held:
        each.release()
    waiting.join(10)
    assert leases == [DATA[5 * BLOCK : 6 * BLOCK]]
    cache.close()


def test_waiting_for_memory_ends(store: Store) -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 4.0
        return now[0]

    cache = BlockCache(2 * BLOCK, BLOCK, clock)
    hold_two(cache, store)
    cache._changed.wait = lambda _timeout=None: True  # type: ignore[method-assign, assignment]
    with pytest.raises(StoreTimeoutError, match="try again"):
        cache.borrow(store.read, stored("a-0"), 5 * BLOCK, 6 * BLOCK, 1)
    cache.close()


def test_slow_readers_leave_memory_for_others(store: Store) -> None:
    cache = BlockCache(64 * BLOCK, BLOCK)
    log = stored("a-0", size=100 * BLOCK)

    def read(_row: ObjectSummary, start: int, buffer: memoryview) -> int:
        store.reads.append((start, start + len(buffer)))
        return len(buffer)

    slow = []
    for at in range(49):
        slow.append(cache.borrow(read, log, at * BLOCK, at * BLOCK + 10, 10))
        wait_until(lambda: cache._pinned == len(slow) * BLOCK, 5, "blocks ahead")
    assert cache.used <= cache.memory
    # The last quarter: only the bytes that are sent, and no blocks ahead.
    store.reads.clear()
    lease = cache.borrow(read, log, 70 * BLOCK + 5, 99 * BLOCK, 100)
    assert 100 <= lease.size <= BLOCK
    assert store.reads == [(70 * BLOCK + 5, 70 * BLOCK + 5 + lease.size)]
    # A batch is whole.
    whole = cache.borrow(read, log, 80 * BLOCK, 99 * BLOCK, 3 * BLOCK)
    assert whole.size == 3 * BLOCK
    for each in (*slow, lease, whole):
        each.release()
    wait_until(lambda: cache._pinned == 0, 5, "all memory")
    assert cache.borrow(read, log, 70 * BLOCK, 75 * BLOCK, 5 * BLOCK).size == 5 * BLOCK
    cache.close()


def test_without_a_wait_nothing_is_lent_while_memory_is_short(store: Store) -> None:
    cache = BlockCache(2 * BLOCK, BLOCK)
    held = hold_two(cache, store)
    began = monotonic()
    lease = cache.borrow(store.read, stored("a-0"), 5 * BLOCK, 6 * BLOCK, 1, may_wait=False)
    assert not lease.pieces
    assert monotonic() - began < 5
    assert len(store.reads) == 2
    for each in held:
        each.release()
    cache.borrow(store.read, stored("a-0"), 5 * BLOCK, 5 * BLOCK + 10, 1).release()
    lease = cache.borrow(store.read, stored("a-0"), 5 * BLOCK, 6 * BLOCK, 1, may_wait=False)
    assert lease.size == BLOCK
    lease.release()
    cache.close()


def test_without_a_wait_blocks_are_fetched_meanwhile(cache: BlockCache, store: Store) -> None:
    """So a response that has records of one partition does not wait for those of another."""
    store.gate.clear()

    def borrow(number: int) -> Lease:
        return cache.borrow(store.read, stored(f"a-{number}"), 0, 10, 1, may_wait=False)

    for _ in range(2):
        assert [borrow(number).size for number in range(2)] == [0, 0]
    store.gate.set()
    wait_until(lambda: not cache._pinned, 5, "the blocks")
    assert sorted(store.reads) == [(0, BLOCK)] * 2
    for number in range(2):
        lease = borrow(number)
        assert joined(lease.pieces) == DATA[:10]
        lease.release()


def test_error_of_a_block_that_nobody_waited_for_is_told_once(
    cache: BlockCache, store: Store
) -> None:
    """Else a client that gets records of other partitions would never learn of it."""
    store.error = StoreUnavailableError("no answer")
    assert not cache.borrow(store.read, stored(), 0, 10, 1, may_wait=False).pieces
    wait_until(lambda: not cache._pinned, 5, "the error")
    store.error = None
    with pytest.raises(StoreUnavailableError):
        cache.borrow(store.read, stored(), 0, 10, 1, may_wait=False)
    assert cache.used == 0
    lease = cache.borrow(store.read, stored(), 0, 10, 1)
    assert joined(lease.pieces) == DATA[:10]
    lease.release()


def test_error_is_forgotten_by_a_reader_that_waits_and_after_some_seconds(store: Store) -> None:
    now = [0.0]
    cache = BlockCache(8 * BLOCK, BLOCK, lambda: now[0])
    for way in ("waits", "later", "needs what is before it"):
        log = stored(f"{way}-0")
        store.error = StoreUnavailableError("no answer")
        assert not cache.borrow(store.read, log, BLOCK, BLOCK + 10, 1, may_wait=False).pieces
        wait_until(lambda: not cache._pinned, 5, "the error")
        store.error = None
        if way == "waits":
            cache.borrow(store.read, log, BLOCK, BLOCK + 10, 1).release()
        elif way == "later":
            now[0] += 6.0
            assert not cache.borrow(store.read, log, BLOCK, BLOCK + 10, 1, may_wait=False).pieces
        else:
            lease = cache.borrow(store.read, log, BLOCK - 10, BLOCK + 10, 1)
            assert joined(lease.pieces) == DATA[BLOCK - 10 : BLOCK]
            lease.release()
        wait_until(lambda: not cache._pinned, 5, "the blocks")
    cache.close()


def test_queued_block_is_fetched_by_the_reader_that_waits_for_it(store: Store) -> None:
    """It may be queued behind blocks of a store that hangs."""
    cache = BlockCache(64 * BLOCK, BLOCK)
    hanging = Store()
    hanging.gate.clear()
    for number in range(8):
        log = stored(f"hangs-{number}")
        assert not cache.borrow(hanging.read, log, 0, 10, 1, may_wait=False).pieces
    wait_until(lambda: len(hanging.reads) == 8, 5, "all threads to hang")
    assert not cache.borrow(store.read, stored(), 0, 10, 1, may_wait=False).pieces
    lease = cache.borrow(store.read, stored(), 0, 10, 1)
    assert joined(lease.pieces) == DATA[:10]
    lease.release()
    cache.borrow(store.read, stored(), 0, 10, 1).release()
    assert store.reads.count((0, BLOCK)) == 1
    hanging.gate.set()
    wait_until(lambda: not cache._pinned, 5, "the other blocks")
    cache.close()


def test_the_next_segment_is_fetched_ahead(cache: BlockCache, store: Store) -> None:
    log, following = stored(size=2 * BLOCK + 5), stored("orders-0-next")
    cache.borrow(store.read, log, BLOCK, BLOCK + 10, 1, following=following).release()
    wait_until(lambda: len(store.reads) == 3, 5, "two blocks ahead")
    assert sorted(store.reads) == [(0, BLOCK), (BLOCK, 2 * BLOCK), (2 * BLOCK, 2 * BLOCK + 5)]
    cache.borrow(store.read, log, 0, 10, 1, following=following).release()
    wait_until(lambda: len(store.reads) == 4, 5, "the first block")
    assert cache.peek(following, 3, 9) == DATA[3:9]
    assert cache.peek(following, BLOCK, BLOCK + 1) is None


def test_a_batch_above_half_of_the_memory_is_refused(cache: BlockCache, store: Store) -> None:
    with pytest.raises(BatchTooLargeError, match="increase --memory"):
        cache.borrow(store.read, stored(), 0, 5000, 4001)


def test_a_short_answer_is_not_kept(cache: BlockCache, store: Store) -> None:
    short = lambda _row, _start, _buffer: BLOCK - 1  # noqa: E731
    with pytest.raises(DamagedSegmentError, match="it ends before byte"):
        cache.borrow(short, stored(), 0, 10, 10)
    lease = cache.borrow(store.read, stored(), 0, 10, 10)
    assert joined(lease.pieces) == DATA[:10]
    lease.release()


def test_an_object_that_became_shorter_is_damage(cache: BlockCache, store: Store) -> None:
    longer = stored(size=len(DATA) + 10)
    with pytest.raises(DamagedSegmentError, match="it ends before byte"):
        cache.borrow(store.read, longer, len(DATA) - 10, len(DATA) + 10, 1)


def test_a_failed_read_is_reported_to_all_and_then_tried_again(
    cache: BlockCache, store: Store
) -> None:
    store.error = StoreUnavailableError("away")
    store.gate.clear()
    errors: list[str] = []

    def read() -> None:
        try:
            cache.borrow(store.read, stored(), 0, 10, 1)
        except StoreUnavailableError as error:
            errors.append(str(error))

    readers = [threading.Thread(target=read, daemon=True) for _ in range(3)]
    for reader in readers:
        reader.start()
    store.gate.set()
    for reader in readers:
        reader.join(10)
    assert errors == ["away"] * 3
    store.error = None
    lease = cache.borrow(store.read, stored(), 0, 10, 1)
    assert joined(lease.pieces) == DATA[:10]
    lease.release()


def test_memory_of_dropped_blocks_is_used_again_when_nobody_sends_from_it(store: Store) -> None:
    cache = BlockCache(2 * BLOCK, BLOCK)
    log = stored("a-0")
    first = cache.borrow(store.read, log, 0, 10, 10)
    kept = first.pieces[0]
    first.release()
    for start in range(BLOCK, 12 * BLOCK, BLOCK):
        lease = cache.borrow(store.read, log, start, start + 10, 10)
        assert bytes(lease.pieces[0]) == DATA[start : start + 10]  # type: ignore[arg-type]
        lease.release()
        lease.pieces = ()
        assert cache.used + len(cache._free) * BLOCK <= cache.memory + BLOCK
    assert bytes(kept) == DATA[:10], "a piece that is still referred to does not change"  # type: ignore[arg-type]
    cache.close()


@pytest.mark.parametrize(("rest", "is_reused"), [(BLOCK - 1, True), (BLOCK // 2, False)])
def test_last_block_of_a_segment_gets_used_memory_if_it_is_large(
    store: Store, rest: int, *, is_reused: bool
) -> None:
    cache = BlockCache(2 * BLOCK, BLOCK)
    buffers: list[object] = []
    for number in range(6):
        row = ObjectSummary(f"prod-a/orders-0/{number}.log", BLOCK + rest, "etag", 0)
        log = StoredLog(BaseOffset(number), row)
        for start in (0, BLOCK):
            lease = cache.borrow(store.read, log, start, start + 10, 10)
            [piece] = lease.pieces
            assert isinstance(piece, memoryview)
            assert bytes(piece) == DATA[start : start + 10]
            buffers.append(piece.obj)
            lease.release()
            del piece, lease
            assert cache.used <= cache.memory
    of_last_blocks = {id(buffer) for buffer in buffers[1::2]}
    assert len(of_last_blocks) <= 3 if is_reused else len(of_last_blocks) == 6
    cache.close()
