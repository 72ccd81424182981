"""The first record of at least a timestamp, as Kafka's ListOffsets finds it.

Source: `UnifiedLog.fetchOffsetByTimestamp`: the first segment whose largest timestamp is not below,
in it the first such record, markers and aborted ones included. Timestamps need not rise from
segment to segment, so each segment below the answer is asked for its largest: the last entry of its
time index, 12 bytes, read once.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from sidetier.archive.indexes import TIME_ENTRY_BYTES, Entries, last_timestamp, relatives_of
from sidetier.archive.locate import Locator, ReadRange
from sidetier.archive.objects.segment import StoredLog, Version
from sidetier.archive.view import ArchiveView
from sidetier.segments.errors import ObjectNotFoundError, PreconditionFailedError

SMALL_INDEX: Final = 256 * 1024
_WHOLE: Final = 4096
"""Bytes of a time index that is read as a whole: of some stores a part takes longer."""
_AT_ONCE: Final = 8
_UNKNOWN: Final = 2**63 - 1
"""A segment that does not say its largest timestamp is searched."""

Largest = dict[Version, int]
"""The largest timestamp of each version of each segment, in ms."""


@dataclass(frozen=True, slots=True)
class SegmentTimes:
    """Asks segments for their timestamps; `known` keeps what does not change."""

    locator: Locator
    read: ReadRange
    known: Largest

    def not_below(self, view: ArchiveView, timestamp: int) -> Iterator[StoredLog]:
        """The segments that may hold a record of at least this time, by rising base.

        Raises:
            StorageError: as the port says.
        """
        logs = view.logs
        first, count = 0, 1  # what is found in the first few is not asked for behind them
        while first < len(logs):
            some = logs[first : first + count]
            first, count = first + count, min(count * 2, _AT_ONCE)
            for log, largest in zip(some, self._largest(some, len(logs)), strict=True):
                if largest >= timestamp:
                    yield log

    def largest(self, log: StoredLog) -> int:
        """The largest timestamp of a segment, in ms, or more than any where nothing says it: the
        last entry of its time index, in one request. May be called from many threads.

        Raises:
            StorageError: as the port says.
        """
        known = self.known.get(log.version)
        if known is None:
            known = self.known[log.version] = self._ask_last(log)
        return known

    def around(self, log: StoredLog, timestamp: int) -> tuple[int, int | None]:
        """Offsets in the segment that lie at or before the first such record, and at or behind it,
        None where that is not known.
        """
        entries = self.locator.times(self.read, log)
        before, behind = (0, None) if entries is None else relatives_of(entries, timestamp)
        return log.base_offset + before, None if behind is None else log.base_offset + behind

    def _largest(self, logs: tuple[StoredLog, ...], total: int) -> list[int]:
        unknown = [log for log in logs if log.version not in self.known]
        if total == 1 and unknown:
            return [_UNKNOWN]  # it is searched in any case
        if len(unknown) == 1:
            self.known[unknown[0].version] = self._ask(unknown[0])
        elif unknown:
            with ThreadPoolExecutor(len(unknown), "archive-times") as helpers:
                for log, largest in zip(unknown, helpers.map(self._ask, unknown), strict=True):
                    self.known[log.version] = largest
        return [self.known[log.version] for log in logs]

    def _ask(self, log: StoredLog) -> int:
        row = log.timeindex
        if row is None or row.size < TIME_ENTRY_BYTES:
            return _UNKNOWN
        if row.size <= SMALL_INDEX:
            return _last(self.locator.times(self.read, log), row.size)
        return self._ask_last(log)

    def _ask_last(self, log: StoredLog) -> int:
        row = log.timeindex
        if row is None or row.size < TIME_ENTRY_BYTES or row.size % TIME_ENTRY_BYTES:
            return _UNKNOWN
        try:
            first = 0 if row.size <= _WHOLE else row.size - TIME_ENTRY_BYTES
            last = last_timestamp(self.read(row, first, row.size)[-TIME_ENTRY_BYTES:])
        except (ObjectNotFoundError, PreconditionFailedError):
            return _UNKNOWN
        return _UNKNOWN if last is None else last


def _last(entries: Entries | None, size: int) -> int:
    """Zeros behind the last entry: it was sent before the broker had trimmed it, so the entry with
    the largest timestamp, which closing a segment adds right before, need not be there.
    """
    if entries is None or not len(entries) or len(entries) * TIME_ENTRY_BYTES < size:
        return _UNKNOWN
    return int(entries["timestamp"][-1])
