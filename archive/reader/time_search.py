"""Find the first record with at least a given timestamp, as Kafka's ListOffsets does.

Source: `UnifiedLog.fetchOffsetByTimestamp` takes the first segment whose largest timestamp is not
below the given one, and in it the first such record, control records and aborted ones included.
Timestamps need not ascend from segment to segment, so the largest timestamp of each segment below
the answer is read, once: from the metadata of its `.log`, or else from the last entry of its time
index. A time index that has lost its last entries would hide records.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np

from sidetier.archive.locate import (
    Entries,
    Locator,
    relatives_of,
)
from sidetier.archive.objects.log_check import cut_at
from sidetier.archive.objects.segment import PackedLog, StoredLog, Version
from sidetier.archive.reader.assembly import Assembler, ScannedBatches
from sidetier.archive.reader.source import ArchiveSource
from sidetier.archive.segment_bytes import ReadBytes
from sidetier.archive.view import ArchiveView
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.segments.arrow import decode_batches
from sidetier.segments.errors import ObjectNotFoundError, PreconditionFailedError
from sidetier.segments.indexes import TIMEINDEX_ENTRY_BYTES, last_timestamp
from sidetier.segments.offsets import Offset, OffsetRange
from sidetier.storage.ranges import ReadRange

SMALL_INDEX: Final = 256 * 1024
_WHOLE: Final = 4096
"""Bytes. A time index up to this size is read whole: on some stores a ranged read takes longer."""
_AT_ONCE: Final = 8
_UNKNOWN: Final = 2**63 - 1
"""Stands for the largest timestamp of a segment that has none stored, so that it is searched."""
_FIRST_RANGE: Final = 256 * 1024
_LARGEST_RANGE: Final = 4 << 20

Largest = dict[Version, int]
"""The largest timestamp of each version of each segment, in ms."""


@dataclass(frozen=True, slots=True)
class SegmentTimes:
    """Reads timestamps of segments.

    Attributes:
        locator: Reads and caches time indexes.
        read: Reads a range of an object.
        noted: Returns the largest timestamp in the metadata of a segment; None if it has none.
        known: Largest timestamps that were read. A version of a segment never changes.
    """

    locator: Locator
    read: ReadRange
    noted: Callable[[StoredLog], int | None]
    known: Largest

    def not_below(self, view: ArchiveView, timestamp: int) -> Iterator[StoredLog]:
        """Yield the segments that may hold a record with at least this timestamp, by ascending base
        offset.

        Raises:
            StorageError: As `RemoteStorage` says.
        """
        logs = view.logs
        first, count = 0, 1  # small batches first: an early match saves the requests
        while first < len(logs):
            batch = logs[first : first + count]
            first, count = first + count, min(count * 2, _AT_ONCE)
            for log, largest in zip(batch, self._largest(batch, len(logs)), strict=True):
                if largest >= timestamp:
                    yield log

    def largest(self, log: StoredLog) -> int:
        """Return the largest timestamp of a segment, in ms.

        Needs one request, or two for a segment without metadata. Thread-safe.

        Returns:
            A value above every timestamp if the segment has no metadata and no usable time index.

        Raises:
            StorageError: As `RemoteStorage` says.
        """
        known = self._known(log)
        if known is None:
            noted = self.noted(log)
            known = self.known[log.version] = self._ask_last(log) if noted is None else noted
        return known

    def around(self, log: StoredLog, timestamp: int) -> tuple[int, int | None]:
        """Bound the first record of a segment with at least this timestamp.

        Returns:
            An offset at or before that record, and an offset at or after it; the second is None if
            it is not known.
        """
        entries = self.locator.times(self.read, log)
        before, behind = (0, None) if entries is None else relatives_of(entries, timestamp)
        return log.base_offset + before, None if behind is None else log.base_offset + behind

    def _known(self, log: StoredLog) -> int | None:
        return log.max_timestamp if isinstance(log, PackedLog) else self.known.get(log.version)

    def _largest(self, logs: tuple[StoredLog, ...], total: int) -> list[int]:
        unknown = [log for log in logs if self._known(log) is None]
        if total == 1 and unknown:
            return [_UNKNOWN]  # it is searched in any case
        if len(unknown) == 1:
            self.known[unknown[0].version] = self._ask(unknown[0])
        elif unknown:
            with ThreadPoolExecutor(len(unknown), "archive-times") as helpers:
                for log, largest in zip(unknown, helpers.map(self._ask, unknown), strict=True):
                    self.known[log.version] = largest
        return [largest for largest in map(self._known, logs) if largest is not None]

    def _ask(self, log: StoredLog) -> int:
        noted = self.noted(log)
        if noted is not None:
            return noted
        row = log.timeindex
        if row is None or row.size < TIMEINDEX_ENTRY_BYTES:
            return _UNKNOWN
        if row.size <= SMALL_INDEX:
            return _last(self.locator.times(self.read, log), row.size)
        return self._ask_last(log)

    def _ask_last(self, log: StoredLog) -> int:
        row = log.timeindex
        if row is None or row.size < TIMEINDEX_ENTRY_BYTES or row.size % TIMEINDEX_ENTRY_BYTES:
            return _UNKNOWN
        try:
            first = 0 if row.size <= _WHOLE else row.size - TIMEINDEX_ENTRY_BYTES
            entry = self.read(row, first, row.size)[-TIMEINDEX_ENTRY_BYTES:]
            # Zeros do not prove a record of 1970: the index may be uploaded before the broker
            # writes its last entry.
            last = last_timestamp(entry, row.size) if any(entry) else None
        # The index was emptied or replaced since the listing: the segment is searched.
        except (ObjectNotFoundError, PreconditionFailedError):
            return _UNKNOWN
        return _UNKNOWN if last is None else last


def _last(entries: Entries | None, size: int) -> int:
    """Return the largest timestamp of a time index.

    Zeros after the last entry mean that the index was uploaded before the broker trimmed it. The
    broker adds the entry with the largest timestamp right before that, so it may be missing.
    """
    if entries is None or not len(entries) or len(entries) * TIMEINDEX_ENTRY_BYTES < size:
        return _UNKNOWN
    return int(entries["timestamp"][-1])


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """The record's offset and timestamp, and the bytes that were read from its batch on."""

    offset: Offset
    timestamp: int
    read: ReadBytes


@dataclass(frozen=True, slots=True)
class TimeSearch:
    """Searches one partition's archive."""

    source: ArchiveSource
    times: SegmentTimes
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES

    def first_at(self, timestamp: int, max_age: float) -> FoundRecord | None:
        """Find the first record with at least this timestamp, in ms; None if there is none.

        Raises:
            WrongPlaceError, ArchiveError, StorageError: As `PartitionArchive.snapshot`.
            DamagedSegmentError: A batch that must be searched cannot be read, or is lost.
            BatchTooLargeError: It is larger, decompressed, than `max_batch_bytes`.
        """
        view = self.source.archive.snapshot(max_age).view
        if view is None:
            return None
        for log in self.times.not_below(view, timestamp):
            record = self._in(view, log, timestamp)
            if record is not None:
                return record
        return None

    def _in(self, view: ArchiveView, log: StoredLog, timestamp: int) -> FoundRecord | None:
        first = max(view.start, Offset(log.base_offset))
        until = view.until(log.base_offset)
        start, size = self._extent(log, timestamp)
        reached = Offset(log.base_offset)
        assembler = Assembler(log.key, log.size, start)
        while start < log.size:
            end = min(start + size, log.size)
            data = self.source.read(log.row, start, end)
            for scanned in assembler.feed(data):
                record_position = self._first_in(
                    scanned, log.key, timestamp, OffsetRange(first, until)
                )
                if record_position is not None:
                    offset, found_timestamp, position = record_position
                    rest = _from(scanned, position, data, start)
                    self.source.locator.found(log, offset, position)
                    return FoundRecord(offset, found_timestamp, ReadBytes(log, position, rest))
                reached = Offset(int(scanned.headers.rows["last_offset"][-1]) + 1)
                if reached >= until:
                    return None
            if len(data) < end - start:
                raise cut_at(log.key, start + len(data), log.size)
            start, size = end, min(size * 2, _LARGEST_RANGE)
        # The record may have been in the segment's last batches, if they were lost.
        self.source.archive.proven_end(log, reached)
        return None

    def _extent(self, log: StoredLog, timestamp: int) -> tuple[int, int]:
        """Return the first byte to search, and the size of the first range, by the indexes if
        possible.
        """
        before, behind = self.times.around(log, timestamp)
        locator, read = self.source.locator, self.source.read
        extent = None if behind is None else locator.extent(read, log, before, behind)
        if extent is None:
            return locator.segment_position(read, log, before).position, _FIRST_RANGE
        start, end = extent
        return start, min(max(end - start, _FIRST_RANGE), _LARGEST_RANGE)

    def _first_in(
        self, scanned: ScannedBatches, name: str, timestamp: int, span: OffsetRange
    ) -> tuple[Offset, int, int] | None:
        """Return the record's offset and timestamp, and the byte position of its batch; None if no
        record matches.
        """
        rows = scanned.headers.rows
        first, until = span
        fits = (
            (rows["max_timestamp"] >= timestamp)
            & (rows["last_offset"] >= first)
            & (rows["base_offset"] < until)
        )
        for row in np.flatnonzero(fits).tolist():
            records = decode_batches(
                scanned.data,
                scanned.headers.where(slice(row, row + 1)),
                columns=["offset", "timestamp"],
                # Control and aborted records count, as in ListOffsets.
                # The default would leave out control batches.
                keep=np.ones(1, dtype=np.bool_),
                first=first,
                end=until,
                name=name,
                position=scanned.position,
                most_batch_bytes=self.max_batch_bytes,
            )
            timestamps = records.column("timestamp").to_numpy()
            late = np.flatnonzero(timestamps >= timestamp)
            if len(late):
                match = int(late[0])
                offset = Offset(int(records.column("offset")[match].as_py()))
                position = scanned.position + int(rows["position"][row])
                return offset, int(timestamps[match]), position
        return None


def _from(scanned: ScannedBatches, position: int, data: bytes, start: int) -> bytes:
    """Return the bytes that were read from byte `position` on, up to the end of the last range.

    `position` is the first byte of a batch of `scanned`. The last range, `data`, began at byte
    `start`.
    """
    known = memoryview(scanned.data)
    end = scanned.position + len(known)
    # A cut batch is in `scanned.data`, joined from two
    # ranges. What follows it is in the last range only.
    return bytes(known[position - scanned.position :]) + data[max(end - start, 0) :]
