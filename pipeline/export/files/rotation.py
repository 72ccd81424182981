"""Which file a record goes to. Pure: the same records give the same files, however they come.

A file begins with the first record of its encoded partition that no open file takes. It ends when
it holds `flush_size` records; before a record whose time lies `rotate_interval` or more after the
first one's; and, where a record would open one file too many, the file that begins at the lowest
offset ends first. Nothing depends on where one batch of records ends and the next begins, nor on a
clock.
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
    """When files end; the interval is in ms of the records' time, None for none."""

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
    """These rows of the batch are the next of a file, which may be new."""

    file: FileId
    rows: Codes


@dataclass(frozen=True, slots=True)
class Close:
    """A file has all of its records."""

    file: FileId


Step = Append | Close


@dataclass(slots=True)
class _Open:
    file: FileId
    base_time: int
    count: int = 0


@dataclass(frozen=True, slots=True)
class GroupEnd:
    """All open files of a Kafka partition end before the row `before` of some records; what follows
    has offsets from `until` on.
    """

    before: int
    until: Offset


class FileGroups:
    """Where the files of one Kafka partition end together, as Confluent's sink has it: a group of
    files begins behind the one before it, and ends when it holds `flush_size` records; before a
    record whose time lies `rotate_interval` or more after the group's first one's; and before a
    record that would open one file too many.

    So the cuts follow from the records since the first group alone, however many runs write them.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._count = 0
        self._base_time = 0
        self._open: set[str] = set()

    def ends(
        self, offsets: Longs, times: Longs, codes: Codes, names: Sequence[str]
    ) -> Iterator[GroupEnd]:
        """The ends of groups among the next records; the columns are those of `Router.route`."""
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
    """Sends the records of one Kafka partition to files, in order of offsets."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._open: dict[str, _Open] = {}

    def route(
        self, offsets: Longs, times: Longs, codes: Codes, names: Sequence[str]
    ) -> Iterator[Step]:
        """The steps for some records; `names[codes[i]]` is the encoded partition of the i-th."""
        start = 0
        while start < len(codes):
            end = start + _fitting(codes[start:], names, self._open, self._rules.max_open)
            yield from self._stretch((offsets, times, codes), names, start, end)
            start = end
            if start < len(codes) and self._is_full(names[codes[start]]):
                yield self._close(min(self._open.values(), key=lambda one: one.file.start))

    def finish(self) -> Iterator[Step]:
        """The range is at its end: all open files are, too, by their first offsets."""
        for one in sorted(self._open.values(), key=lambda one: one.file.start):
            yield self._close(one)

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
        """The steps for the rows of one encoded partition."""
        mine = times[rows]
        at = 0
        while at < len(rows):
            one = self._open.get(name)
            if one is None:
                one = _Open(FileId(name, Offset(int(offsets[rows[at]]))), int(mine[at]))
                self._open[name] = one
            end = self._end(one, mine, at)
            if end > at:
                one.count += end - at
                yield Append(one.file, rows[at:end])
            if end < len(rows) or one.count >= self._rules.flush_size:
                yield self._close(one)
            at = end

    def _end(self, one: _Open, times: Longs, start: int) -> int:
        """The first row that does not belong to this file any more."""
        most = min(len(times), start + self._rules.flush_size - one.count)
        if self._rules.rotate_interval is None:
            return most
        return _first_from(times, one.base_time + self._rules.rotate_interval, start, most)

    def _close(self, one: _Open) -> Close:
        del self._open[one.file.encoded]
        return Close(one.file)


def _fitting(codes: Codes, names: Sequence[str], is_open: Iterable[str], most: int) -> int:
    """How many of these rows fit into at most so many files, with those that are open."""
    seen = set(is_open)
    if len(seen | {names[code] for code in np.unique(codes)}) <= most:
        return len(codes)
    for at in range(len(codes)):
        seen.add(names[codes[at]])
        if len(seen) > most:
            return at
    return len(codes)


def _in_order(codes: Codes) -> list[int]:
    """The codes by where they come first."""
    if len(codes) and codes[0] == codes[-1] and (codes == codes[0]).all():
        return [int(codes[0])]
    found, first = np.unique(codes, return_index=True)
    return [int(code) for code in found[np.argsort(first)]]


def _first_from(times: Longs, least: int, start: int, end: int) -> int:
    """The first place from `start` on with at least this time; `end` where there is none."""
    width = _WINDOW
    while start < end:
        late = np.flatnonzero(times[start : min(start + width, end)] >= least)
        if len(late):
            return start + int(late[0])
        start, width = start + width, width * 2
    return end
