"""Find the record batches of a segment that arrives in chunks of any size, and its markers."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Final

from sidetier.archive.objects.log_check import proven_end
from sidetier.mirror.hydrate.plan import PlannedSegment
from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.headers import HEADER_BYTES, BatchHeader, parse_batch_header
from sidetier.segments.offsets import Offset
from sidetier.segments.transactions import Marker, read_marker
from sidetier.storage.port import IfMatch, RemoteStorage
from sidetier.storage.ranges import read_into
from sidetier.storage.settings import AttemptDeadline

RANGE_BYTES: Final = 8 << 20
RANGES_AHEAD: Final = 3

NORMALISED_EPOCH = 0
"""The leader epoch of a new partition, and of all placed batches.

With a higher epoch in a batch, followers never catch up and Java consumers wait forever.
"""

FoundBatch = tuple[int, BatchHeader, Marker]
"""Position of the batch in the buffer, its header, and its transaction marker."""


class BatchScanner:
    """Splits a segment into batches. A damaged header is an error; CRCs are not checked.

    Args:
        name: The segment's name, for error messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._carry = b""
        self._skip = 0
        self._position = 0

    def feed(self, chunk: bytes | bytearray) -> tuple[bytearray, list[FoundBatch]]:
        """Take the next bytes; return the complete ones, and the batches that begin there.

        Up to one header, or one transaction marker, is held back until the next call. A bytearray
        is not copied if nothing was held back: it is changed and returned.

        Raises:
            DamagedSegmentError: A batch header is not valid, or a marker does not parse.
            UnsupportedFormatError: The message format is v0 or v1.
        """
        buffer = chunk
        if self._carry or not isinstance(buffer, bytearray):
            buffer = bytearray(self._carry)
            buffer += chunk
        batches: list[FoundBatch] = []
        at, size = self._skip, len(buffer)
        while at + HEADER_BYTES <= size:
            header = self._header(buffer, at)
            marker = Marker.NONE
            if header.is_control:
                if at + header.length > size:
                    break  # the marker's record is needed too: wait for the rest of it
                payload = bytes(buffer[at + HEADER_BYTES : at + header.length])
                marker = read_marker(header, payload)
            batches.append((at, header, marker))
            at += header.length
        if at < size:
            self._carry = bytes(buffer[at:])
            del buffer[at:]
            self._skip = 0
        else:
            # The last batch can continue in the next chunk, where its rest is skipped.
            self._carry = b""
            self._skip = at - size
        self._position += len(buffer)
        return buffer, batches

    def finish(self) -> None:
        """Check that the segment ended at the end of a batch.

        Raises:
            DamagedSegmentError: The segment ended inside a batch.
        """
        if self._carry or self._skip:
            raise DamagedSegmentError(
                f"{self._name}: byte {self._position + len(self._carry)}: the segment ends inside "
                "a record batch"
            )

    def _header(self, buffer: bytearray, at: int) -> BatchHeader:
        try:
            return parse_batch_header(buffer, at)
        except (DamagedSegmentError, UnsupportedFormatError) as error:
            raise type(error)(f"{self._name}: byte {self._position + at}: {error}") from None


def read_chunk(
    store: RemoteStorage,
    segment: PlannedSegment,
    start: int,
    room: bytearray,
    deadline: AttemptDeadline,
) -> None:
    """Fill `room` with the bytes of an archived `.log` from `start` on, in the planned version.

    Raises:
        DamagedSegmentError: The object is shorter than planned.
        StorageError: As `RemoteStorage` documents.
    """
    condition = IfMatch(segment.etag)
    with memoryview(room) as view:
        count = read_into(store, segment.key, start, view, condition=condition, deadline=deadline)
    if count != len(room):
        raise DamagedSegmentError(
            f"{segment.key}: {count} bytes from byte {start} on, {len(room)} expected"
        )


def check_end(store: RemoteStorage, segment: PlannedSegment, reached: Offset, until: int) -> None:
    """Check that a `.log` whose last batch ends at `reached` has lost no batch below `until`.

    No request if the batches reach `until`, where the next segment begins.

    Raises:
        DamagedArchiveError: It has lost its last batches.
        StorageError: As `RemoteStorage` documents.
    """
    if reached < until:
        proven_end(store, segment.key, segment.etag, reached)


class RangeReader:
    """Reads objects range by range into few buffers, `RANGES_AHEAD` ranges ahead.

    Args:
        pool: Runs the reads; it needs a thread for each range that is read at the same time.
    """

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._free: list[bytearray] = []

    def read_ahead(self, fill: Callable[[int, bytearray], None], size: int) -> Iterator[bytearray]:
        """Yield the ranges of an object in order. A range is valid until the next is requested.

        Args:
            fill: Fills a buffer with the object's bytes from the given position on.
            size: The object's size in bytes.
        """
        starts = iter(range(0, size, RANGE_BYTES))
        ahead: list[Future[bytearray]] = []

        def read(start: int, room: bytearray) -> bytearray:
            fill(start, room)
            return room

        def read_next() -> None:
            start = next(starts, None)
            if start is not None:
                room = self._room(min(RANGE_BYTES, size - start))
                ahead.append(self._pool.submit(read, start, room))

        try:
            for _ in range(RANGES_AHEAD):
                read_next()
            while ahead:
                data = ahead.pop(0).result()
                # Before the yield, so that the next range arrives while the caller uses this one.
                read_next()
                yield data
                if len(data) == RANGE_BYTES:
                    self._free.append(data)
        finally:
            # Reads that have begun continue. Their buffers are not used again.
            for future in ahead:
                future.cancel()

    def _room(self, size: int) -> bytearray:
        """Return a buffer, a used one if possible: new memory costs a page fault for each 4 KiB."""
        return self._free.pop() if self._free and size == RANGE_BYTES else bytearray(size)


def scan_batches(chunks: Iterable[bytes | bytearray], name: str) -> Iterator[FoundBatch]:
    """Yield each batch, with its position in the segment.

    Raises:
        DamagedSegmentError, UnsupportedFormatError: As `BatchScanner`.
    """
    scanner = BatchScanner(name)
    position = 0
    for chunk in chunks:
        buffer, batches = scanner.feed(chunk)
        for at, header, marker in batches:
            yield position + at, header, marker
        position += len(buffer)
    scanner.finish()
