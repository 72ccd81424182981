"""Acknowledgements of producers: a checksum of each acknowledged record by offset, and the records
that the cluster was made to lose.
"""

import hashlib
import threading
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from time import monotonic

Partition = tuple[str, int]

_NONE = 0


def checksum(key: bytes | None, value: bytes | None) -> int:
    """64-bit checksum of a record, never 0. A null differs from an empty string."""
    digest = hashlib.blake2b(digest_size=8)
    for part in (key, value):
        digest.update(b"-" if part is None else b"%d:" % len(part) + part)
    return int.from_bytes(digest.digest()) or 1


class Sums:
    """Checksums by offset, eight bytes each, so that an hour of records fits into memory."""

    def __init__(self, *pairs: tuple[int, int]) -> None:
        self._sums = array("Q")
        for offset, number in pairs:
            self.put(offset, number)

    def put(self, offset: int, number: int) -> bool:
        """Store a checksum; return False, without replacing it, if the offset has another one."""
        if offset >= len(self._sums):
            self._sums.extend([_NONE] * (offset + 1 - len(self._sums)))
        before = self._sums[offset]
        if before == _NONE:
            self._sums[offset] = number
        return before in {_NONE, number}

    def get(self, offset: int) -> int | None:
        """The checksum at an offset."""
        found = self._sums[offset] if offset < len(self._sums) else _NONE
        return None if found == _NONE else found

    def cut(self, offset: int) -> "Sums":
        """Remove and return the checksums at this offset and above."""
        removed = Sums(*((at, number) for at, number in self.items() if at >= offset))
        del self._sums[offset:]
        return removed

    def items(self) -> Iterator[tuple[int, int]]:
        """Offsets with their checksums, ascending."""
        return ((offset, number) for offset, number in enumerate(self._sums) if number != _NONE)

    def __len__(self) -> int:
        return len(self._sums) - self._sums.count(_NONE)


class Fate(IntEnum):
    """Outcome of a record's transaction; an unknown outcome is not recorded."""

    COMMITTED = 1
    ABORTED = 2


@dataclass(frozen=True, slots=True)
class ThrownAway:
    """Acknowledged records of a partition that were lost, at `start` and above. Those below
    `archived_to` were archived before, under this topic ID if the topic was deleted. `at` is the
    time at which they are known to be lost, in monotonic seconds.
    """

    tp: Partition
    start: int
    archived_to: int
    records: Sums
    topic_id: str | None = None
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction of a partition, as its producer knows it: the offset of its first record, and
    the time up to which it was surely open, in monotonic seconds.
    """

    tp: Partition
    first: int
    open_until: float


@dataclass(frozen=True, slots=True)
class LogStart:
    """The log start offset that a broker has answered by this time, in monotonic seconds."""

    tp: Partition
    offset: int
    at: float


class Ledger:
    """Written by producer threads, read by the nemesis and by the verdict at the end."""

    def __init__(self) -> None:
        self.acknowledged: dict[Partition, Sums] = {}
        self.fates: dict[Partition, Sums] = {}
        self.problems: list[str] = []
        self.undelivered = 0
        self.unplaced: dict[Partition, set[int]] = {}
        """Checksums of acknowledged records whose offsets are unknown."""
        self.by_elections: list[ThrownAway] = []
        self.by_deletions: list[ThrownAway] = []
        self.log_starts: dict[Partition, int] = {}
        """The log start offset to which deletions of records have raised it."""
        self._times: dict[Partition, deque[tuple[int, float]]] = {}
        self._lock = threading.Lock()

    def acknowledge(self, tp: Partition, offset: int, number: int, now: float) -> None:
        """Record that the cluster has acknowledged this record at this offset."""
        with self._lock:
            if not self.acknowledged.setdefault(tp, Sums()).put(offset, number):
                self.problems.append(f"{tp[0]}-{tp[1]}: offset {offset} was acknowledged twice")
            self._times.setdefault(tp, deque()).append((offset, now))

    def acknowledge_unplaced(self, tp: Partition, number: int) -> None:
        """Record that the cluster has acknowledged this record without its offset."""
        with self._lock:
            self.unplaced.setdefault(tp, set()).add(number)

    def lose_to_election(self, tp: Partition, start: int, archived_to: int) -> ThrownAway:
        """Move the records acknowledged from `start` on to those lost in an unclean election."""
        lost = self._throw_away(tp, start, archived_to, None)
        self.by_elections.append(lost)
        return lost

    def lose_to_deletion(self, tp: Partition, archived_to: int, topic_id: str) -> ThrownAway:
        """Move the records of a deleted topic to the lost ones."""
        lost = self._throw_away(tp, 0, archived_to, topic_id)
        self.by_deletions.append(lost)
        return lost

    def raise_log_start(self, tp: Partition, start: int) -> None:
        """Record that earlier records were deleted: they need not be stored if a gap is
        recorded.
        """
        with self._lock:
            self.log_starts[tp] = max(start, self.log_starts.get(tp, 0))

    def _throw_away(
        self, tp: Partition, start: int, archived_to: int, topic_id: str | None
    ) -> ThrownAway:
        with self._lock:
            records = self.acknowledged.setdefault(tp, Sums()).cut(start)
            times = self._times.get(tp, deque())
            self._times[tp] = deque(row for row in times if row[0] < start)
            return ThrownAway(tp, start, archived_to, records, topic_id, monotonic())

    def decide(self, tp: Partition, offset: int, fate: Fate) -> None:
        """Record the outcome of this record's transaction."""
        with self._lock:
            self.fates.setdefault(tp, Sums()).put(offset, fate)

    def lag(self, tp: Partition, next_offset: int, now: float) -> float:
        """Seconds since the oldest record at or above an offset was acknowledged.

        Successive calls must not lower the offset.
        """
        with self._lock:
            times, following = self._times.get(tp), max(next_offset, self.log_starts.get(tp, 0))
            while times and times[0][0] < following:
                times.popleft()
            return now - times[0][1] if times else 0.0

    def total(self) -> int:
        """Number of acknowledged records, including lost ones."""
        lost = sum(len(row.records) for row in (*self.by_elections, *self.by_deletions))
        with self._lock:
            return lost + sum(map(len, self.acknowledged.values()))
