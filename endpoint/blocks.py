"""The bytes of stored segments on their way to clients.

If the objects are files of this host, a client gets them from the file (`FilePiece`): the kernel
sends them with `sendfile`, and its page cache takes the place of ours. From other stores, blocks
are fetched ahead of the clients and kept within one memory budget, which all clients share.
"""

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from sidetier.archive.access import ArchiveAccess, range_filler
from sidetier.archive.objects.segment import StoredLog, Version
from sidetier.segments.buffers import is_exported
from sidetier.segments.errors import BatchTooLargeError, DamagedSegmentError, StoreTimeoutError
from sidetier.segments.lru import Lru
from sidetier.storage.attempt import Clock, monotonic
from sidetier.storage.port import FileBackedStorage, IfMatch
from sidetier.storage.ranges import FillRange, located
from sidetier.storage.retrying import file_backed

_MAX_BLOCK: Final = 8 << 20
_MIN_BLOCK: Final = 64 << 10
_BLOCKS: Final = 32
"""Number of blocks that fit the budget, unless they would be larger than 8 MiB."""
_AHEAD: Final = 2
_FETCHERS: Final = 8
_PREPARERS: Final = 2
_ERROR_SECONDS: Final = 5.0
"""Time after which a block that could not be fetched is fetched again in any case."""
_ACTIVE_SECONDS: Final = 10.0
_PATIENCE: Final = 10.0
"""Seconds that a reader waits for memory that other clients hold."""
_MAX_OPEN_FILES: Final = 256
_RESERVE: Final = 4
_RESERVE_SHARE: Final = 16
"""The last quarter of the budget is for clients that read while others take their answers slowly. A
response gets one batch of it, or a sixteenth of what is left.
"""


class OpenFile:
    """An open segment. The descriptor is closed when nothing refers to this object any more.

    So a file can leave the cache while another thread sends from it.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)


@dataclass(frozen=True, slots=True)
class FilePiece:
    """`size` bytes of a file from byte `start` on."""

    file: OpenFile
    start: int
    size: int

    def read(self, start: int, size: int) -> bytes:
        """Read `size` bytes from byte `start` of the piece on; fewer if the file ends before."""
        return os.pread(self.file.descriptor, min(size, self.size - start), self.start + start)


Piece = bytes | memoryview | FilePiece


def size_of(piece: Piece) -> int:
    """Return the number of bytes that a piece sends."""
    return piece.size if isinstance(piece, FilePiece) else len(piece)


@dataclass(slots=True, eq=False)
class Lease:
    """Bytes of a segment, in order, and their number. `release` returns their memory to the budget;
    call it once.
    """

    pieces: Sequence[Piece]
    release: Callable[[], None] = lambda: None
    size: int = field(init=False)

    def __post_init__(self) -> None:
        """Count the bytes."""
        self.size = sum(map(size_of, self.pieces))


NO_BYTES: Final = Lease(())
"""What is lent if there is nothing to send."""


class FileCache:
    """The most recently used files of stores that keep objects as files. Thread-safe."""

    def __init__(self) -> None:
        self._files = Lru[Version, OpenFile](_MAX_OPEN_FILES)

    def open(self, store: FileBackedStorage, log: StoredLog) -> OpenFile | None:
        """Return the file of exactly this version; None if the segment is encrypted.

        Raises:
            ObjectNotFoundError, PreconditionFailedError: The store has another version now.
        """
        known = self._files.get(log.version)
        if known is not None:
            return known
        key, _, _ = located(log.row, 0, log.size)
        descriptor = store.open_file(key, condition=IfMatch(log.row.etag))
        if descriptor is None:
            return None
        opened = OpenFile(descriptor)
        self._files.put(log.version, opened)
        return opened


BlockKey = tuple[Version, int, int]
"""A segment's version, and the range of bytes in it."""


@dataclass(slots=True)
class _Block:
    size: int
    """Bytes of its memory; it may hold fewer."""
    pins: int = 0
    is_passed: bool = False
    """Whether a client has read to its end: then it is evicted first."""
    ready: threading.Event = field(default_factory=threading.Event)
    data: memoryview = field(default_factory=lambda: memoryview(b""))
    error: Exception | None = None
    """Why it could not be fetched. Such a block is kept only if a reader has asked for it without
    waiting: the next one that does not wait raises it.
    """
    keeps_error: bool = False
    """Whether a reader has asked for it without waiting."""
    failed_at: float = 0.0
    loading: "Future[None] | None" = None
    """The fetch by another thread; it may be queued."""

    @property
    def is_loaded(self) -> bool:
        """Whether its bytes are there."""
        return self.error is None and self.ready.is_set()


class BlockCache:
    """Blocks of segments within one memory budget. Thread-safe.

    A block is in use ("pinned") until its bytes are sent. Used memory counts blocks that are being
    fetched, too. Blocks that a client has read to the end are evicted first, then those that were
    used longest ago: a client that follows another one closely still gets its blocks.

    The number of blocks ahead depends on the number of segments that are read: a cache that evicts
    blocks before they are used costs many times the requests. Near the end of a segment, the first
    blocks of the next one are fetched ahead. If even one block for each segment
    does not fit, each fetch reads only the bytes that it sends. The same holds while slow clients
    pin three quarters of the budget; each fetch then also gets fewer bytes.

    Args:
        memory: The budget, in bytes.
        block_bytes: Size of a block.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self, memory: int, block_bytes: int | None = None, clock: Clock = monotonic
    ) -> None:
        self.memory = memory
        self._block_bytes = block_bytes or max(_MIN_BLOCK, min(_MAX_BLOCK, memory // _BLOCKS))
        self._clock = clock
        self._changed = threading.Condition()
        self._blocks: OrderedDict[BlockKey, _Block] = OrderedDict()
        self._used = 0
        self._pinned = 0
        self._free: list[bytearray] = []
        """Buffers of dropped blocks; with `_used`, they are at most the budget."""
        self._active: dict[str, float] = {}
        self._fetchers = ThreadPoolExecutor(_FETCHERS, "endpoint-ahead")
        self._preparers = ThreadPoolExecutor(_PREPARERS, "endpoint-prepare")

    @property
    def used(self) -> int:
        """Bytes of memory for the blocks that are held or being fetched."""
        return self._used

    def close(self) -> None:
        """Stop fetching ahead."""
        # Queued fetches are not cancelled: connections may wait for their blocks.
        self._fetchers.shutdown(wait=False)
        self._preparers.shutdown(wait=False, cancel_futures=True)

    def borrow(  # noqa: PLR0913 - the last two are optional
        self,
        fill: FillRange,
        log: StoredLog,
        start: int,
        end: int,
        need: int,
        *,
        following: StoredLog | None = None,
        may_wait: bool = True,
    ) -> Lease:
        """Return the bytes [`start`, `end`) of a segment; fewer if memory is short, or if blocks
        behind the needed ones are not fetched yet.

        Args:
            fill: Reads a range of the object.
            log: The segment.
            start: First byte.
            end: End, exclusive; at most the segment's size.
            need: The number of bytes from `start` on that are needed at least.
            following: The segment that is read next; None if it is not known.
            may_wait: Whether to wait for them, and for memory; if not, nothing is lent before they
                are fetched, and they are fetched meanwhile.

        Raises:
            BatchTooLargeError: `need` is more than half of the budget.
            StoreTimeoutError: Other clients hold the memory for too long.
            DamagedSegmentError: The object is shorter than it was listed.
            StorageError: As `RemoteStorage` says.
        """
        self._check_fits(log, need)
        ahead = self._blocks_ahead(log)
        unpinned = self.memory - self._pinned
        if unpinned < self.memory // _RESERVE:
            if not may_wait:
                return NO_BYTES
            ahead, end = None, min(end, start + max(need, unpinned // _RESERVE_SHARE))
        # An exact range is dropped after the response, so no later one would find it.
        is_exact = ahead is None
        ranges = self._ranges(log, start, end, in_blocks=not is_exact)
        needed = [key for key in ranges if key[1] < start + need]
        pinned: list[tuple[BlockKey, _Block]] = []
        try:
            for key in needed:
                block = self._pin(key, fill, log, may_wait=may_wait, may_load=is_exact)
                if block is not None:
                    pinned.append((key, block))
            if len(pinned) == len(needed):
                self._pin_more(ranges[len(needed) :], fill, log, pinned, may_load=is_exact)
        except BaseException:
            self._release(pinned, start)
            raise
        if len(pinned) < len(needed):
            self._release(pinned, start)
            return NO_BYTES
        pieces = [block.data[max(start - key[1], 0) : end - key[1]] for key, block in pinned]
        reached = min(pinned[-1][0][2], end)
        self._fetch_ahead(fill, log, following, reached, ahead or 0)
        return Lease(pieces, lambda: self._release(pinned, reached))

    def _check_fits(self, log: StoredLog, need: int) -> None:
        if need > self.memory // 2:
            raise BatchTooLargeError(
                f"{log.key}: a batch of {need} bytes does not fit into the memory of "
                f"{self.memory} bytes: increase --memory"
            )

    def _pin_more(
        self,
        ranges: Sequence[BlockKey],
        fill: FillRange,
        log: StoredLog,
        pinned: list[tuple[BlockKey, _Block]],
        *,
        may_load: bool,
    ) -> None:
        """Pin the next blocks up to the first that is not there; it is fetched meanwhile."""
        for key in ranges:
            try:
                block = self._pin(key, fill, log, may_wait=False, may_load=may_load)
            except Exception:  # noqa: BLE001 - raised when the client asks for this block
                return
            if block is None:
                return
            pinned.append((key, block))

    def peek(self, log: StoredLog, start: int, end: int) -> bytes | None:
        """Return the bytes [`start`, `end`) of a segment if one block in memory has them."""
        key = self._key(log, start // self._block_bytes)
        _, begin, stop = key
        with self._changed:
            block = self._blocks.get(key)
            if block is None or not block.is_loaded or end > stop:
                return None
            # Not beyond the lock: once the block is dropped, others write to its memory.
            return bytes(block.data[start - begin : end - begin])

    def _key(self, log: StoredLog, index: int) -> BlockKey:
        """Return the key of a block of a segment."""
        start = index * self._block_bytes
        return log.version, start, min(start + self._block_bytes, log.size)

    def _ranges(self, log: StoredLog, start: int, end: int, *, in_blocks: bool) -> list[BlockKey]:
        size = self._block_bytes
        if not in_blocks:
            return [(log.version, at, min(at + size, end)) for at in range(start, end, size)]
        return [self._key(log, index) for index in range(start // size, -(-end // size))]

    def _blocks_ahead(self, log: StoredLog) -> int | None:
        """Return the number of blocks to fetch ahead; None if not even one block fits."""
        now = self._clock()
        # By partition: a client that moves to the next segment no longer needs the one before.
        directory = log.key.rpartition("/")[0]
        with self._changed:
            self._active[directory] = now
            if len(self._active) > 1:
                self._active = {
                    name: at for name, at in self._active.items() if now - at < _ACTIVE_SECONDS
                }
            fits = self.memory // self._block_bytes // len(self._active)
        # One of the blocks that fit is the one that is being sent.
        return None if fits < 1 else min(_AHEAD, fits - 1)

    def _pin(
        self, key: BlockKey, fill: FillRange, log: StoredLog, *, may_wait: bool, may_load: bool
    ) -> _Block | None:
        """Return a block that is fetched and pinned; None if there is no memory for it now.

        Args:
            key: The block.
            fill: Reads a range of the object.
            log: The segment.
            may_wait: Whether to wait for memory, and for the block.
            may_load: Without `may_wait`: whether to fetch the block here. If not, another thread
                fetches it, and None is returned until it is there.
        """
        block, is_new = self._reserve(key, _PATIENCE if may_wait else 0.0)
        if block is None:
            if may_wait:
                raise StoreTimeoutError(f"{log.key}: other clients hold all memory: try again")
            return None
        if not (may_wait or may_load or block.ready.is_set()):
            if is_new:
                block.keeps_error = True
                self._load_in_background(key, block, fill, log)
            else:
                self._unpin(block)
            return None
        if is_new:
            self._load(key, block, fill, log)
        elif self._is_taken_over(block):
            self._load(key, block, fill, log)
            self._unpin(block)  # in place of the other thread
        block.ready.wait()
        if block.error is not None:
            with self._changed:
                self._drop(key, block)
            self._unpin(block)
            raise block.error
        return block

    def _is_taken_over(self, block: _Block) -> bool:
        """Return whether the fetch of a block was still queued; it is cancelled then.

        It could wait behind blocks of a store that hangs.
        """
        with self._changed:
            if block.loading is None or not block.loading.cancel():
                return False
            block.loading = None  # a cancelled one can be cancelled again
            return True

    def _reserve(self, key: BlockKey, patience: float) -> tuple[_Block | None, bool]:
        deadline = self._clock() + patience
        size = self._memory_of(key)
        with self._changed:
            while True:
                block = self._blocks.get(key)
                if block is not None and block.ready.is_set() and block.error is not None:
                    is_old = self._clock() - block.failed_at > _ERROR_SECONDS
                    if patience or is_old:  # try again
                        self._drop(key, block)
                        block = None
                is_new = block is None
                if block is None and self._make_room(size):
                    block = self._blocks[key] = _Block(size)
                    self._used += size
                if block is not None:
                    self._blocks.move_to_end(key)
                    self._count_pins(block, 1)
                    return block, is_new
                left = deadline - self._clock()
                if left <= 0:
                    return None, False
                self._changed.wait(left)

    def _count_pins(self, block: _Block, change: int) -> None:
        was_pinned = block.pins > 0
        block.pins += change
        self._pinned += block.size * ((block.pins > 0) - was_pinned)

    def _make_room(self, size: int) -> bool:
        for wants_passed in (True, False):
            for key, block in list(self._blocks.items()):
                if self._used + size <= self.memory:
                    return True
                if not block.pins and block.is_passed is wants_passed:
                    self._drop(key, block)
        return self._used + size <= self.memory

    def _drop(self, key: BlockKey, block: _Block) -> None:
        # Another block can have this key by now.
        if self._blocks.get(key) is block:
            del self._blocks[key]
            self._used -= block.size
            if block.size == self._block_bytes and isinstance(block.data.obj, bytearray):
                self._free.append(block.data.obj)
                block.data = memoryview(b"")

    def _memory_of(self, key: BlockKey) -> int:
        """Return the memory for a block, or for a range that is read for one response alone.

        The last block of a segment gets the memory of a full one if it is larger than half of it,
        so that it gets a buffer that was used before.
        """
        size, full = key[2] - key[1], self._block_bytes
        return full if key[1] % full == 0 and size > full // 2 else size

    def _take_buffer(self, size: int) -> bytearray:
        """Return memory for a block that `_used` counts already.

        Buffers of blocks that were dropped are used again, once no client sends from them. The
        allocator would keep many of them, and the kernel would clear each new one.
        """
        if size == self._block_bytes:
            for at, buffer in enumerate(self._free):
                if not is_exported(buffer):
                    return self._free.pop(at)
        spare = max(self.memory - self._used, 0) // self._block_bytes
        del self._free[spare:]
        return bytearray(size)

    def _load(self, key: BlockKey, block: _Block, fill: FillRange, log: StoredLog) -> None:
        _, start, end = key
        try:
            with self._changed:
                buffer = memoryview(self._take_buffer(block.size))[: end - start]
            block.data = buffer[: fill(log.row, start, buffer)]
            # Here, so that the next reader asks again: the answer, not the object, may be short.
            _check_length(block, key)
        except Exception as error:  # noqa: BLE001 - handed to every thread that waits for it
            block.error, block.failed_at = error, self._clock()
            # Dropped before it is ready, so that the next reader tries again. A reader that has
            # asked for it without waiting has left: its client learns of the error the next time.
            with self._changed:
                if not block.keeps_error:
                    self._drop(key, block)
                self._changed.notify_all()
        block.ready.set()

    def _fetch_ahead(
        self, fill: FillRange, log: StoredLog, following: StoredLog | None, end: int, blocks: int
    ) -> None:
        """Fetch this number of blocks behind the one that has the byte before `end`."""
        first = (end - 1) // self._block_bytes + 1
        for index in range(first, first + blocks):
            over = index - -(-log.size // self._block_bytes)
            if over < 0:
                self._fetch_block(fill, log, index)
            elif following is not None:
                self._fetch_block(fill, following, over)

    def _fetch_block(self, fill: FillRange, log: StoredLog, index: int) -> None:
        key = self._key(log, index)
        _, start, end = key
        if start >= end:
            return
        with self._changed:
            if key in self._blocks:
                return
        block, is_new = self._reserve(key, 0.0)
        if block is None:
            return
        if not is_new:
            self._unpin(block)
            return
        self._load_in_background(key, block, fill, log)

    def _load_in_background(
        self, key: BlockKey, block: _Block, fill: FillRange, log: StoredLog
    ) -> None:
        """Fetch a block in another thread, and unpin it then."""

        def load() -> None:
            self._load(key, block, fill, log)
            self._unpin(block)

        try:
            block.loading = self._fetchers.submit(load)
        except RuntimeError:  # the cache was closed meanwhile
            # Another thread may wait for this block already.
            load()

    def run_in_background(self, work: Callable[[], None]) -> None:
        """Run a function in another thread, unless the cache was closed."""
        with suppress(RuntimeError):
            self._preparers.submit(work)

    def _unpin(self, block: _Block) -> None:
        with self._changed:
            self._count_pins(block, -1)
            self._changed.notify_all()

    def _release(self, pinned: list[tuple[BlockKey, _Block]], end: int) -> None:
        with self._changed:
            for key, block in pinned:
                self._count_pins(block, -1)
                block.is_passed |= key[2] <= end
                # A range that does not begin at a block's border was read for one response alone.
                is_exact = key[1] % self._block_bytes != 0
                if is_exact and not block.pins:
                    self._drop(key, block)
            has_passed = any(block.is_passed for _, block in pinned)
            passed = [item for item in self._blocks.items() if has_passed and item[1].is_passed]
            # The blocks that were passed last stay for clients that read close behind.
            kept = sum(block.size for _, block in passed)
            for key, block in passed:
                if kept <= self.memory // 4:
                    break
                if not block.pins:
                    self._drop(key, block)
                    kept -= block.size
            self._changed.notify_all()


def _check_length(block: _Block, key: BlockKey) -> None:
    (name, _, size), start, end = key
    if len(block.data) != end - start:
        raise DamagedSegmentError(
            f"{name}: {size} bytes were listed, but it ends before byte {end}"
        )


class NotFetchedError(Exception):
    """The bytes are not in memory yet; they are being fetched, or there is no memory for them."""


class SegmentBytes:
    """Reads the segments of all partitions, from files or through the cache. Thread-safe.

    Args:
        archive: The cluster's archive.
        blocks: The cache for stores that are not directories of this host.
    """

    def __init__(self, archive: ArchiveAccess, blocks: BlockCache) -> None:
        self._archive = archive
        self._blocks = blocks
        self._files = FileCache()
        # By topic: to find a topic's store takes longer than to lend it a block.
        self._file_stores: dict[str, FileBackedStorage | None] = {}
        self._fills: dict[str, FillRange] = {}

    def lend(  # noqa: PLR0913 - the last three are optional
        self,
        topic: str,
        log: StoredLog,
        start: int,
        end: int,
        need: int = 0,
        *,
        following: StoredLog | None = None,
        may_wait: bool = True,
    ) -> Lease:
        """Return the bytes [`start`, `end`) of a segment for sending; at least `need` bytes.

        The arguments and errors are those of `BlockCache.borrow`.
        """
        file = self._file(topic, log)
        if file is not None:
            _, at, _ = located(log.row, start, end)
            return Lease([FilePiece(file, at, end - start)])
        if topic not in self._fills:
            self._fills[topic] = range_filler(self._archive, topic)
        return self._blocks.borrow(
            self._fills[topic], log, start, end, need, following=following, may_wait=may_wait
        )

    def read(
        self, topic: str, log: StoredLog, start: int, size: int, *, may_wait: bool = True
    ) -> bytes:
        """Return up to `size` bytes from byte `start` on.

        Raises:
            NotFetchedError: Without `may_wait`, they are not there yet. Other errors as `lend`.
        """
        end = min(start + size, log.size)
        if start >= end:
            return b""
        file = self._file(topic, log)
        if file is not None:
            return os.pread(file.descriptor, end - start, located(log.row, start, end)[1])
        known = self._blocks.peek(log, start, end)
        if known is not None:
            return known
        lease = self.lend(topic, log, start, end, end - start, may_wait=may_wait)
        if not lease.size:
            raise NotFetchedError
        try:
            return b"".join(piece for piece in lease.pieces if not isinstance(piece, FilePiece))
        finally:
            lease.release()

    def run_in_background(self, work: Callable[[], None]) -> None:
        """Run a function in another thread, unless the endpoint is closing."""
        self._blocks.run_in_background(work)

    def _file(self, topic: str, log: StoredLog) -> OpenFile | None:
        """Return the segment's file; None if the store has no files of this host, or the segment is
        encrypted.
        """
        if topic not in self._file_stores:
            self._file_stores[topic] = file_backed(self._archive.store(topic))
        store = self._file_stores[topic]
        return None if store is None else self._files.open(store, log)
