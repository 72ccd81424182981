"""Read the batches of merged tails from their packs.

Ranges are read whole, and checked by their checksum and their batches. Ranges of one pack that
follow each other closely are read with one request. Where two rows that are read have the same
offsets and epoch, their batches must be equal.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from sidetier.archive.read_in_order import in_order
from sidetier.archive.tail.merge import MergedTail, PackedRow, PackRef, TailSlice
from sidetier.archive.tail.pack import TailBatch, TailRow, check_range, split_range
from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.storage.port import IfMatch, RemoteStorage
from sidetier.storage.ranges import read_range

REQUEST_BYTES: Final = 8 << 20
_MAX_UNUSED: Final = 1 << 20
"""Bytes between two ranges that are read in vain rather than with another request."""


@dataclass(frozen=True, slots=True)
class SliceBatches:
    """The batches of one slice.

    Attributes:
        tp: The partition.
        number: Number of the slice in `MergedTail.slices`.
        slice: The slice.
        batches: Its batches, in order of offsets. The first one can begin below the slice, if the
            archive has a gap there.
    """

    tp: TopicPartition
    number: int
    slice: TailSlice
    batches: tuple[TailBatch, ...]


def read_tails(
    store: RemoteStorage,
    tails: Mapping[TopicPartition, MergedTail],
    *,
    concurrency: int = 8,
    request_bytes: int = REQUEST_BYTES,
) -> Iterator[SliceBatches]:
    """Yield the batches of many partitions, pack by pack: the bytes of each pack are requested
    once, in ranges of up to `request_bytes`, or one row.

    Slices of one partition can come in another order than their offsets. At most `concurrency`
    ranges are in memory.

    Raises:
        ObjectNotFoundError, PreconditionFailedError: A pack was deleted.
        ChecksumMismatchError, MalformedObjectError: A pack is damaged.
        ArchiveConflictError: Two packs have different bytes for the same offset and epoch.
    """
    wanted = [
        _Wanted(tp, number, part)
        for tp, tail in tails.items()
        for number, part in enumerate(tail.slices)
    ]
    wanted.sort(key=_place_of)
    overlaps = {tp: _Overlaps(tail) for tp, tail in tails.items()}

    def read(request: _Request) -> tuple[_Request, bytes]:
        pack, start, end, _ = request
        return request, read_range(store, pack.key, start, end, condition=IfMatch(pack.etag))

    for request, data in in_order(read, _requests(wanted, request_bytes), concurrency):
        view = memoryview(data)
        for tp, number, part in request.wanted:
            row = part.source.row
            at = row.position - request.start
            batches = list(split_range(row, view[at : at + row.size], request.pack.key))
            overlaps[tp].compare(batches, request.pack.key)
            taken = tuple(
                batch
                for batch in batches
                if batch.header.next_offset > part.start and batch.header.base_offset < part.end
            )
            yield SliceBatches(tp, number, part, taken)


def read_rows(store: RemoteStorage, rows: Iterable[PackedRow]) -> Iterator[tuple[PackedRow, bytes]]:
    """Yield the bytes of rows, whose checksums are compared. Rows of one pack, in order of their
    positions, need the fewest requests.

    Raises:
        ObjectNotFoundError, PreconditionFailedError: A pack was deleted.
        ChecksumMismatchError: A pack is damaged.
    """
    wanted = (
        _Wanted(source.row.tp, 0, TailSlice(source, source.row.start, source.row.end))
        for source in rows
    )
    for pack, start, end, parts in _requests(wanted, REQUEST_BYTES):
        data = read_range(store, pack.key, start, end, condition=IfMatch(pack.etag))
        for _, _, part in parts:
            row = part.source.row
            at = row.position - start
            piece = data[at : at + row.size]
            check_range(row, piece, pack.key)
            yield part.source, piece


class _Wanted(NamedTuple):
    tp: TopicPartition
    number: int
    slice: TailSlice

    @property
    def pack(self) -> PackRef:
        """The pack."""
        return self.slice.source.stored_in


def _place_of(wanted: _Wanted) -> tuple[str, int]:
    return wanted.pack.key, wanted.slice.source.row.position


class _Request(NamedTuple):
    """A range of a pack that holds the rows of some slices."""

    pack: PackRef
    start: int
    end: int
    wanted: list[_Wanted]


def _requests(wanted: Iterable[_Wanted], max_bytes: int) -> Iterator[_Request]:
    """Join the ranges of consecutive slices that are close together in one pack."""
    request: _Request | None = None
    for each in wanted:
        row = each.slice.source.row
        end = row.position + row.size
        if (
            request is not None
            and request.pack.key == each.pack.key
            and request.start <= row.position <= request.end + _MAX_UNUSED
            and end - request.start <= max_bytes
        ):
            request.wanted.append(each)
            request = request._replace(end=max(request.end, end))
            continue
        if request is not None:
            yield request
        request = _Request(each.pack, row.position, end, [each])
    if request is not None:
        yield request


class _Overlaps:
    """Compares the batches that several of the rows to read have. Usually there are none."""

    def __init__(self, tail: MergedTail) -> None:
        self._ranges: list[OffsetRange] = []
        self._seen: dict[tuple[int, int], tuple[int, int, str]] = {}
        rows: list[TailRow] = [part.source.row for part in tail.slices]
        reached = Offset(0)
        for row in sorted(rows, key=lambda row: row.start):
            if row.start < reached:
                start, end = row.start, min(row.end, reached)
                if self._ranges and start <= self._ranges[-1].end:
                    last = self._ranges.pop()
                    start, end = last.start, max(last.end, end)
                self._ranges.append(OffsetRange(start, end))
            reached = max(reached, row.end)
        self._starts = [each.start for each in self._ranges]

    def compare(self, batches: Iterable[TailBatch], key: str) -> None:
        """Compare the batches of one row with those of the rows before.

        Raises:
            ArchiveConflictError: A batch of the same offset and epoch has other bytes.
        """
        if not self._ranges:
            return
        for header, _ in batches:
            at = bisect_right(self._starts, header.base_offset) - 1
            if at < 0 or header.base_offset >= self._ranges[at].end:
                continue
            # The CRC covers everything from the attributes on.
            mine = header.length, header.crc, key
            place = header.base_offset, header.leader_epoch
            other = self._seen.setdefault(place, mine)
            if other[:2] != mine[:2]:
                raise ArchiveConflictError(
                    f"the batch at offset {place[0]} of leader epoch {place[1]} has other bytes in "
                    f"{key} than in {other[2]}"
                )
