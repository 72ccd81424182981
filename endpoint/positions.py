"""Byte positions of batches in stored segments, from the index and the headers behind its entries.

A broker does the same (`OffsetIndex.lookup`, then `FileRecords.searchForOffsetWithSize`). The
positions that were found last are remembered, so that segments without a usable index are not
walked from their first byte by each fetch.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from sidetier.archive.access import ArchiveAccess, range_reader
from sidetier.archive.locate import Locator
from sidetier.archive.objects.segment import StoredLog, Version
from sidetier.endpoint.blocks import SegmentBytes
from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.headers import (
    HEADER_BYTES,
    BatchHeader,
    parse_batch_header,
    walk_headers,
)
from sidetier.segments.lru import Lru
from sidetier.segments.offsets import Offset

INDEX_BYTES: Final = 32 << 20
_MAX_REMEMBERED: Final = 64
_MAX_SEGMENTS: Final = 1024
_LARGE_BATCH: Final = 8 << 10
"""Twice the default of `log.index.interval.bytes`."""


@dataclass(frozen=True, slots=True)
class _Index:
    """The entries of an index. `bisect` in an `array` takes a tenth of `numpy.searchsorted`."""

    relatives: "array[int]"
    positions: "array[int]"

    @property
    def size(self) -> int:
        return 2 * len(self.positions) * self.positions.itemsize


class Positions:
    """Finds batches in the segments of all partitions. Thread-safe.

    Args:
        archive: The cluster's archive.
        segment_bytes: Reads segments.
        index_bytes: Most bytes of indexes in memory.
    """

    def __init__(
        self,
        archive: ArchiveAccess,
        segment_bytes: SegmentBytes,
        index_bytes: int = INDEX_BYTES,
    ) -> None:
        self._archive = archive
        self._bytes = segment_bytes
        # The locator parses and checks indexes; they are kept here, in another form.
        self._locator = Locator(0, lambda _key, _reason: None)
        capacity = min(index_bytes, INDEX_BYTES)
        least = capacity // _MAX_SEGMENTS + 1
        self._indexes = Lru[Version, _Index | None](
            capacity, lambda index: max(least, 0 if index is None else index.size)
        )
        self._seen = Lru[Version, Lru[int, int]](_MAX_SEGMENTS)
        """Byte positions of batches, by base offset, in segments without a usable index."""

    def first_batch(
        self, topic: str, log: StoredLog, offset: int, *, may_wait: bool = True
    ) -> tuple[int, BatchHeader] | None:
        """Return the first batch that ends above `offset`, and its byte position.

        Compaction may have removed `offset`: then the batch begins above it.

        Args:
            topic: The topic.
            log: The segment.
            offset: The offset.
            may_wait: Whether to wait for bytes of the segment.

        Returns:
            None if the segment has no such batch.

        Raises:
            NotFetchedError: Without `may_wait`, bytes on the way are not there yet.
            DamagedSegmentError, UnsupportedFormatError: Bytes on the way are not a batch.
            StorageError: As `RemoteStorage` says.
        """
        indexed = self._indexed_batch(topic, log, offset, may_wait=may_wait)
        if indexed is not None:
            return indexed
        for position, header in self._walk(topic, log, offset, may_wait=may_wait):
            if header.next_offset > offset:
                self._remember(log, int(header.base_offset), position)
                return position, header
        return None

    def end_below(self, topic: str, log: StoredLog, offset: int) -> int:
        """Return the byte position of the first batch that begins at or above `offset`.

        Returns:
            The segment's size if there is no such batch. Raises as `first_batch`.
        """
        for position, header in self._walk(topic, log, offset):
            if header.base_offset >= offset:
                self._remember(log, int(header.base_offset), position)
                return position
        return log.size

    def has_transactions(self, topic: str, log: StoredLog, start: int, end: int) -> bool:
        """Return whether a batch that begins in this range of bytes is part of a transaction.

        Args:
            topic: The topic.
            log: The segment.
            start: Byte position of a batch.
            end: End of the range, exclusive. The last batch may reach beyond it.

        Raises as `first_batch`.
        """
        for position, header in walk_headers(
            lambda at, size: self._bytes.read(topic, log, at, size), log.size, start=start
        ):
            if position >= end:
                break
            if header.is_transactional:
                return True
        return False

    def bound(self, topic: str, log: StoredLog, position: int) -> Offset | None:
        """Return an offset above all batches that begin below this byte position, from the index.

        Returns:
            None if the index has no entry there.
        """
        index = self._index(topic, log)
        if index is None:
            return None
        # An entry has the last offset of the batches that were appended at its position.
        at = bisect_left(index.positions, position)
        if at >= len(index.relatives):
            return None
        return Offset(log.base_offset + index.relatives[at] + 1)

    def read_index(self, topic: str, log: StoredLog) -> None:
        """Read the index of a segment into memory, before it is needed. Raises as `first_batch`."""
        self._index(topic, log)

    def _indexed_batch(
        self, topic: str, log: StoredLog, offset: int, *, may_wait: bool
    ) -> tuple[int, BatchHeader] | None:
        """Return the batch that has the offset if it is large and has an index entry; else None.

        Entries have last offsets, so the last entry below an offset belongs to the batch before
        it. If batches are larger than the interval of entries, the next entry belongs to the
        wanted batch itself: one header is read, and not two.
        """
        index = self._index(topic, log)
        if index is None:
            return None
        at = bisect_left(index.relatives, offset - log.base_offset)
        if at >= len(index.positions):
            return None
        position = index.positions[at]
        if position - (index.positions[at - 1] if at else 0) < _LARGE_BATCH:
            return None  # several batches are between two entries
        try:
            data = self._bytes.read(topic, log, position, HEADER_BYTES, may_wait=may_wait)
            header = parse_batch_header(data)
        except (DamagedSegmentError, UnsupportedFormatError):
            return None  # the walk reports it
        has_offset = header.base_offset <= offset < header.next_offset
        return (position, header) if has_offset and position + header.length <= log.size else None

    def _walk(
        self, topic: str, log: StoredLog, offset: int, *, may_wait: bool = True
    ) -> Iterator[tuple[int, BatchHeader]]:
        start = self._start(topic, log, offset)
        try:
            yield from walk_headers(
                lambda at, size: self._bytes.read(topic, log, at, size, may_wait=may_wait),
                log.size,
                start=start,
            )
        except (DamagedSegmentError, UnsupportedFormatError) as error:
            raise type(error)(f"{log.key}: {error}") from error

    def _start(self, topic: str, log: StoredLog, offset: int) -> int:
        """Return a position at or before the batch that has the offset."""
        if offset <= log.base_offset:
            return 0
        index = self._index(topic, log)
        if index is None:
            seen = self._seen.get(log.version)
            known = () if seen is None else seen.items()
            return max((at for base, at in known if base <= offset), default=0)
        at = bisect_right(index.relatives, offset - log.base_offset) - 1
        return index.positions[at] if at >= 0 else 0

    def _index(self, topic: str, log: StoredLog) -> _Index | None:
        return self._indexes.get_or(log.version, lambda: self._read_index(topic, log))

    def _read_index(self, topic: str, log: StoredLog) -> _Index | None:
        entries = self._locator.offsets(range_reader(self._archive, topic), log)
        if entries is None:
            return None
        relatives, positions = (
            array("q", entries[name].astype(np.int64).tobytes())
            for name in ("relative", "position")
        )
        return _Index(relatives, positions)

    def _remember(self, log: StoredLog, base: int, position: int) -> None:
        if self._indexes.get(log.version) is None:
            seen = self._seen.get_or(log.version, lambda: Lru(_MAX_REMEMBERED))
            seen.put(base, position)
