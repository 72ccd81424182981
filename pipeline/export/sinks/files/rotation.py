"""Assignment of records to files. Pure: the same records give the same files.

A file starts with the first record of its encoded partition for which no file is open. It ends when
it holds `flush_size` records, or before a record whose time is `rotate_interval` or more after that
of its first record. If a record would open one file too many, the open file with the lowest first
offset ends. The result depends neither on the borders of record batches nor on a clock.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from sidetier.segments.offsets import Offset

Longs = npt.NDArray[np.int64]
Codes = npt.NDArray[np.intp]

_WINDOW: Final = 256


@dataclass(frozen=True, slots=True)
class Rules:
    """Limits of files. `rotate_interval` is in ms of the records' times; None for no limit."""

    flush_size: int
    rotate_interval: int | None = None
    max_open: int = 100


@dataclass(frozen=True, slots=True)
class FileId:
    """A file: its encoded partition, and the offset of its first record."""

    encoded: str
    start: Offset


@dataclass(frozen=True, slots=True)
class Append:
    """Append these rows of the batch to a file, which may be new."""

    file: FileId
    rows: Codes


@dataclass(frozen=True, slots=True)
class Close:
    """End a file: it has all its records."""

    file: FileId


Step = Append | Close


@dataclass(slots=True)
class _Open:
    file: FileId
    base_time: int
    count: int = 0


@dataclass(frozen=True, slots=True)
class GroupEnd:
    """The end of all open files of a Kafka partition.

    Attributes:
        before: the first row, of those given, that is not in the files.
        until: end offset of the files, exclusive. All following records are at or above it.
    """

    before: int
    until: Offset


class FileGroups:
    """Finds where all files of one Kafka partition end together, as in Confluent's sink connector.

    A group of files starts right after the group before it. It ends when it holds `flush_size`
    records; before a record whose time is `rotate_interval` or more after the group's first
    record; and before a record that would open one file too many. So the groups depend only on the
    records since the first group, not on the number of runs that write them.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._count = 0
        self._base_time = 0
        self._open: set[str] = set()

    def ends(
        self, offsets: Longs, times: Longs, codes: Codes, names: Sequence[str]
    ) -> Iterator[GroupEnd]:
        """Yield the ends of groups among the next records, which have the columns of
        `Router.route`.
        """
        start = 0
        while start < len(offsets):
            if self._count == 0:
                self._base_time = int(times[start])
            full = start + self._rules.flush_size - self._count
            end = min(len(offsets), full)
            if self._rules.rotate_interval is not None:
                late = self._base_time + self._rules.rotate_interval
                end = _first_from(times, late, start, end)
            end = start + _fitting(codes[start:end], names, self._open, self._rules.max_open)
            self._count += end - start
            self._open |= {names[code] for code in np.unique(codes[start:end])}
            if end == full:
                yield self._end(end, Offset(int(offsets[end - 1]) + 1))
            elif end < len(offsets):
                yield self._end(end, Offset(int(offsets[end])))
            start = end

    def _end(self, before: int, until: Offset) -> GroupEnd:
        self._count = 0
        self._open.clear()
        return GroupEnd(before, until)


class Router:
    """Assigns the records of one Kafka partition to files, in order of offsets."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._open: dict[str, _Open] = {}

    def route(
        self, offsets: Longs, times: Longs, codes: Codes, names: Sequence[str]
    ) -> Iterator[Step]:
        """Yield the steps for some records. `names[codes[i]]` is the encoded partition of record
        `i`.
        """
        start = 0
        while start < len(codes):
            end = start + _fitting(codes[start:], names, self._open, self._rules.max_open)
            yield from self._stretch((offsets, times, codes), names, start, end)
            start = end
            if start < len(codes) and self._is_full(names[codes[start]]):
                # Always the file with the lowest first offset:
                # a repeated task has to close the same one.
                yield self._close(min(self._open.values(), key=lambda state: state.file.start))

    def finish(self) -> Iterator[Step]:
        """Close all open files at the end of the range, in order of their first offsets."""
        for state in sorted(self._open.values(), key=lambda state: state.file.start):
            yield self._close(state)

    def _is_full(self, name: str) -> bool:
        return name not in self._open and len(self._open) >= self._rules.max_open

    def _stretch(
        self, columns: tuple[Longs, Longs, Codes], names: Sequence[str], start: int, end: int
    ) -> Iterator[Step]:
        offsets, times, codes = columns
        for code in _in_order(codes[start:end]):
            rows = np.flatnonzero(codes[start:end] == code) + start
            yield from self._rows(names[code], rows, offsets, times)

    def _rows(self, name: str, rows: Codes, offsets: Longs, times: Longs) -> Iterator[Step]:
        """Yield the steps for the rows of one encoded partition."""
        mine = times[rows]
        at = 0
        while at < len(rows):
            state = self._open.get(name)
            if state is None:
                state = _Open(FileId(name, Offset(int(offsets[rows[at]]))), int(mine[at]))
                self._open[name] = state
            end = self._end(state, mine, at)
            if end > at:
                state.count += end - at
                yield Append(state.file, rows[at:end])
            if end < len(rows) or state.count >= self._rules.flush_size:
                yield self._close(state)
            at = end

    def _end(self, file: _Open, times: Longs, start: int) -> int:
        """Return the first row that does not belong to this file."""
        most = min(len(times), start + self._rules.flush_size - file.count)
        if self._rules.rotate_interval is None:
            return most
        return _first_from(times, file.base_time + self._rules.rotate_interval, start, most)

    def _close(self, file: _Open) -> Close:
        del self._open[file.file.encoded]
        return Close(file.file)


def _fitting(codes: Codes, names: Sequence[str], is_open: Iterable[str], most: int) -> int:
    """Return how many of these rows fit into at most `most` files, those already open included."""
    seen = set(is_open)
    if len(seen | {names[code] for code in np.unique(codes)}) <= most:
        return len(codes)
    for at in range(len(codes)):
        seen.add(names[codes[at]])
        if len(seen) > most:
            return at
    return len(codes)


def _in_order(codes: Codes) -> list[int]:
    """Return the distinct codes in order of their first rows."""
    # The usual case, which needs no sort.
    if len(codes) and codes[0] == codes[-1] and (codes == codes[0]).all():
        return [int(codes[0])]
    distinct, first = np.unique(codes, return_index=True)
    return [int(code) for code in distinct[np.argsort(first)]]


def _first_from(times: Longs, least: int, start: int, end: int) -> int:
    """Return the first row from `start` on with at least this time; `end` if there is none.

    Times need not be sorted. The search window grows, because the match is often near `start`.
    """
    width = _WINDOW
    while start < end:
        late = np.flatnonzero(times[start : min(start + width, end)] >= least)
        if len(late):
            return start + int(late[0])
        start, width = start + width, width * 2
    return end
