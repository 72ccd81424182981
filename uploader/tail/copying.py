"""Copy rows of packs into one new pack, which may be larger than memory: the other packs are read
while the copy is sent.

Rows are read in chunks, pack after pack. The copy has the rows of a chunk by partition; those that
follow each other in one leader epoch are one row. Sizes and checksums of all rows are known, so the
index and the checksum of the copy are computed before a byte is read. A source that has changed
since then fails the copy.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import BinaryIO, Final

from sidetier.archive.tail.inventory import UNREADABLE
from sidetier.archive.tail.merge import PackedRow, PackRef
from sidetier.archive.tail.needed_rows import joined
from sidetier.archive.tail.pack import PackBuilder, TailRow, open_pieces
from sidetier.archive.tail.read import read_rows
from sidetier.segments.crc import combine_crc64nvme, crc64nvme
from sidetier.segments.errors import SegmentError, SidetierError
from sidetier.storage.port import Checksum, ChecksumAlgorithm, RemoteStorage

CHUNK_BYTES: Final = 32 << 20
"""Bytes of one chunk, which are in memory; more if one row has more."""
MAX_ROW_BYTES: Final = 4 << 20
"""Rows are joined up to this size: readers read a row as a whole."""


class UnreadablePackError(SegmentError):
    """A pack cannot be copied. The reason is one of `UNREADABLE`.

    It is a `SegmentError` because a store passes those of a body on unchanged: a missing source is
    no answer about the copy.
    """

    def __init__(self, pack: PackRef, reason: SidetierError) -> None:
        super().__init__(str(reason))
        self.pack = pack
        self.reason = reason


class PackCopy:
    """The body of a pack with rows of other packs, for `RemoteStorage.put_object`.

    Args:
        store: The store of the packs.
        sources: The rows, pack after pack, and in each in order of positions.
        before_read: Called with the size of each row before its bytes are handed out. It may wait:
            not for a whole chunk, because a store ends a request that is silent for 20 s.

    Raises:
        ValueError: There are no rows, or more than a pack can have.
    """

    def __init__(
        self,
        store: RemoteStorage,
        sources: Iterable[PackedRow],
        before_read: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._before_read = before_read
        self._pieces: list[PackedRow] = []
        """The rows with bytes, in the order of the copy."""
        self._chunk_starts: list[int] = []
        """Number of the first piece of each chunk."""
        builder = PackBuilder()
        for chunk in _chunks(sources):
            self._chunk_starts.append(len(self._pieces))
            chunk.sort(key=_log_order)
            self._pieces += (source for source in chunk if source.row.size)
            for row in _joined(map(_copied_row, chunk)):
                builder.place(row)
        self.topics = builder.topics
        """The topics of the rows. They decide whether the pack is encrypted."""
        self.end = builder.end()
        """Index and footer."""
        self.size = builder.size + len(self.end)
        """Length in bytes."""
        crc = 0
        for row in builder.rows:
            crc = combine_crc64nvme(crc, row.crc64nvme, row.size)
        crc = crc64nvme(self.end, crc)
        self.checksum = Checksum(ChecksumAlgorithm.CRC64NVME, crc.to_bytes(8, "big"))
        """Checksum of the pack."""

    def open(self) -> BinaryIO:
        """Return a new stream, which reads the sources.

        Its `read` raises UnreadablePackError, and any other StorageError.
        """
        sizes = [*(source.row.size for source in self._pieces), len(self.end)]
        chunk = paid = -1
        data: Sequence[bytes] = ()

        def piece(number: int) -> bytes:
            nonlocal chunk, data, paid
            if number == len(self._pieces):
                return self.end
            if number != paid:
                self._before_read(sizes[number])
                paid = number
            wanted = bisect_right(self._chunk_starts, number) - 1
            if wanted != chunk:
                data = ()  # before the next chunk is in memory
                data, chunk = self._read(wanted), wanted
            return data[number - self._chunk_starts[chunk]]

        return open_pieces(sizes, piece)

    def _read(self, chunk: int) -> Sequence[bytes]:
        """Return the pieces of a chunk, in the order of the copy."""
        start, *after = self._chunk_starts[chunk : chunk + 2]
        pieces = self._pieces[start : after[0] if after else len(self._pieces)]
        order = sorted(range(len(pieces)), key=lambda number: _place(pieces[number]))
        data = [b""] * len(pieces)
        for pack, numbers in groupby(order, lambda number: pieces[number].stored_in):
            places = list(numbers)
            try:
                found = read_rows(self._store, [pieces[number] for number in places])
                for number, (_, each) in zip(places, found, strict=True):
                    data[number] = each
            except UNREADABLE as error:
                raise UnreadablePackError(pack, error) from error
        return data


def _chunks(sources: Iterable[PackedRow]) -> Iterator[list[PackedRow]]:
    chunk: list[PackedRow] = []
    size = 0
    for source in sources:
        if chunk and size + source.row.size > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(source)
        size += source.row.size
    if chunk:
        yield chunk


def _joined(rows: Iterable[TailRow]) -> Iterator[TailRow]:
    """Yield rows; those that follow each other in one leader epoch as one."""
    last: TailRow | None = None
    for row in rows:
        both = None if last is None else joined(last, row, MAX_ROW_BYTES)
        if both is None and last is not None:
            yield last
        last = row if both is None else both
    if last is not None:
        yield last


def _copied_row(source: PackedRow) -> TailRow:
    return source.row._replace(first_stored_ms=source.first_stored_ms)


def _log_order(source: PackedRow) -> tuple[object, int, int]:
    return source.row.log_order


def _place(source: PackedRow) -> tuple[int, int]:
    return source.stored_in.number, source.row.position
