"""Find the offset of the first record at a timestamp, in the batches that the time index
points to.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from sidetier.archive.objects.segment import StoredLog
from sidetier.archive.reader.assembly import Assembler, Scanned
from sidetier.archive.reader.opening import Opener
from sidetier.archive.times import SegmentTimes
from sidetier.archive.view import ArchiveView
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.segments.arrow import decode_batches
from sidetier.segments.offsets import Offset

_FIRST_RANGE: Final = 256 * 1024
_LARGEST_RANGE: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """The record's offset, and the bytes read of the `.log` from its batch on, at byte `start`."""

    offset: Offset
    log: StoredLog
    start: int
    data: bytes


@dataclass(frozen=True, slots=True)
class TimeSearch:
    """Searches one partition's archive."""

    opener: Opener
    times: SegmentTimes
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES

    def first_at(self, timestamp: int, max_age: float) -> Found | None:
        """Find the first record with at least this timestamp, in ms; None if there is none.

        Raises:
            WrongPlaceError, ArchiveError, StorageError: As `PartitionArchive.look`.
            DamagedSegmentError: A batch that must be searched cannot be read.
            BatchTooLargeError: It is larger, decompressed, than `max_batch_bytes`.
        """
        view = self.opener.archive.look(max_age).view
        if view is None:
            return None
        for log in self.times.not_below(view, timestamp):
            record = self._in(view, log, timestamp)
            if record is not None:
                return record
        return None

    def _in(self, view: ArchiveView, log: StoredLog, timestamp: int) -> Found | None:
        first = max(view.start, Offset(log.base_offset))
        until = view.until(log.base_offset)
        start, size = self._extent(log, timestamp)
        assembler = Assembler(log.key, log.size, start)
        while start < log.size:
            end = min(start + size, log.size)
            data = self.opener.read(log.row, start, end)
            for scanned in assembler.feed(data):
                record_position = self._first_in(scanned, log.key, timestamp, (first, until))
                if record_position is not None:
                    offset, position = record_position
                    rest = _from(scanned, position, data, start)
                    self.opener.locator.found(log, offset, position)
                    return Found(offset, log, position, rest)
                if scanned.headers.rows["last_offset"][-1] + 1 >= until:
                    return None
            if len(data) < end - start:
                return None
            start, size = end, min(size * 2, _LARGEST_RANGE)
        return None

    def _extent(self, log: StoredLog, timestamp: int) -> tuple[int, int]:
        """Return the first byte to search, and the size of the first range, by the indexes if
        possible.
        """
        before, behind = self.times.around(log, timestamp)
        locator, read = self.opener.locator, self.opener.read
        extent = None if behind is None else locator.extent(read, log, before, behind)
        if extent is None:
            return locator.segment_position(read, log, before).position, _FIRST_RANGE
        start, end = extent
        return start, min(max(end - start, _FIRST_RANGE), _LARGEST_RANGE)

    def _first_in(
        self, scanned: Scanned, name: str, timestamp: int, span: tuple[Offset, Offset]
    ) -> tuple[Offset, int] | None:
        """Return the record's offset, and the byte position of its batch; None if no record
        matches.
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
                keep=np.ones(1, dtype=np.bool_),
                first=first,
                end=until,
                name=name,
                position=scanned.position,
                most_batch_bytes=self.max_batch_bytes,
            )
            late = np.flatnonzero(records.column("timestamp").to_numpy() >= timestamp)
            if len(late):
                offset = Offset(int(records.column("offset")[int(late[0])].as_py()))
                return offset, scanned.position + int(rows["position"][row])
        return None


def _from(scanned: Scanned, position: int, data: bytes, start: int) -> bytes:
    """Return the bytes that were read from byte `position` on, up to the end of the last range.

    `position` is the first byte of a batch of `scanned`. The last range, `data`, began at byte
    `start`.
    """
    known = memoryview(scanned.data)
    end = scanned.position + len(known)
    return bytes(known[position - scanned.position :]) + data[max(end - start, 0) :]
