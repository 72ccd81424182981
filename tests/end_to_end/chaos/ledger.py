"""What producers were told: each acknowledged record by a checksum, at its offset; and which of the
records the cluster was made to throw away since.
"""

import hashlib
import threading
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

Partition = tuple[str, int]

_NONE = 0


def checksum(key: bytes | None, value: bytes | None) -> int:
    """64 bits that tell one record from another; never 0. A null is no empty string."""
    digest = hashlib.blake2b(digest_size=8)
    for part in (key, value):
        digest.update(b"-" if part is None else b"%d:" % len(part) + part)
    return int.from_bytes(digest.digest()) or 1


class Sums:
    """Checksums by offset: eight bytes each, so that an hour of records fits."""

    def __init__(self, *pairs: tuple[int, int]) -> None:
        self._sums = array("Q")
        for offset, number in pairs:
            self.put(offset, number)

    def put(self, offset: int, number: int) -> bool:
        """Enter it; False where another one stands already, which stays."""
        if offset >= len(self._sums):
            self._sums.extend([_NONE] * (offset + 1 - len(self._sums)))
        before = self._sums[offset]
        if before == _NONE:
            self._sums[offset] = number
        return before in {_NONE, number}

    def get(self, offset: int) -> int | None:
        """What stands at an offset."""
        found = self._sums[offset] if offset < len(self._sums) else _NONE
        return None if found == _NONE else found

    def cut(self, offset: int) -> "Sums":
        """Remove and return what stands at this offset and above."""
        removed = Sums(*((at, number) for at, number in self.items() if at >= offset))
        del self._sums[offset:]
        return removed

    def items(self) -> Iterator[tuple[int, int]]:
        """Offsets with their checksums, rising."""
        return ((offset, number) for offset, number in enumerate(self._sums) if number != _NONE)

    def __len__(self) -> int:
        return len(self._sums) - self._sums.count(_NONE)


class Fate(IntEnum):
    """How the transaction of a record ended; what nobody knows is not entered."""

    COMMITTED = 1
    ABORTED = 2


@dataclass(frozen=True, slots=True)
class ThrownAway:
    """Acknowledged records of a partition that were thrown away, at `start` and above. Those below
    `archived_to` were archived before, under this topic id where the topic was deleted.
    """

    tp: Partition
    start: int
    archived_to: int
    records: Sums
    topic_id: str | None = None


class Ledger:
    """Filled by producers' threads, read by the nemesis, and by the verdict at the end."""

    def __init__(self) -> None:
        self.acknowledged: dict[Partition, Sums] = {}
        self.fates: dict[Partition, Sums] = {}
        self.problems: list[str] = []
        self.undelivered = 0
        self.unplaced: dict[Partition, set[int]] = {}
        """Checksums of records that are acknowledged at an offset that nobody told."""
        self.by_elections: list[ThrownAway] = []
        self.by_deletions: list[ThrownAway] = []
        self.log_starts: dict[Partition, int] = {}
        """How far the log start was raised by deleting records."""
        self._times: dict[Partition, deque[tuple[int, float]]] = {}
        self._lock = threading.Lock()

    def acknowledge(self, tp: Partition, offset: int, number: int, now: float) -> None:
        """The cluster has promised to keep this record there."""
        with self._lock:
            if not self.acknowledged.setdefault(tp, Sums()).put(offset, number):
                self.problems.append(f"{tp[0]}-{tp[1]}: offset {offset} was acknowledged twice")
            self._times.setdefault(tp, deque()).append((offset, now))

    def acknowledge_unplaced(self, tp: Partition, number: int) -> None:
        """The cluster has this record, and has not told where."""
        with self._lock:
            self.unplaced.setdefault(tp, set()).add(number)

    def lose_to_election(self, tp: Partition, start: int, archived_to: int) -> ThrownAway:
        """An unclean election has thrown away what was acknowledged from `start` on."""
        lost = self._throw_away(tp, start, archived_to, None)
        self.by_elections.append(lost)
        return lost

    def lose_to_deletion(self, tp: Partition, archived_to: int, topic_id: str) -> ThrownAway:
        """The topic was deleted."""
        lost = self._throw_away(tp, 0, archived_to, topic_id)
        self.by_deletions.append(lost)
        return lost

    def raise_log_start(self, tp: Partition, start: int) -> None:
        """Records below were deleted: they need not be stored, if a gap says so."""
        with self._lock:
            self.log_starts[tp] = max(start, self.log_starts.get(tp, 0))

    def _throw_away(
        self, tp: Partition, start: int, archived_to: int, topic_id: str | None
    ) -> ThrownAway:
        with self._lock:
            records = self.acknowledged.setdefault(tp, Sums()).cut(start)
            times = self._times.get(tp, deque())
            self._times[tp] = deque(row for row in times if row[0] < start)
            return ThrownAway(tp, start, archived_to, records, topic_id)

    def decide(self, tp: Partition, offset: int, fate: Fate) -> None:
        """The transaction of this record has ended so."""
        with self._lock:
            self.fates.setdefault(tp, Sums()).put(offset, fate)

    def lag(self, tp: Partition, next_offset: int, now: float) -> float:
        """For how many seconds the oldest record at or above an offset has been acknowledged.

        To be asked with offsets that do not fall.
        """
        with self._lock:
            times, following = self._times.get(tp), max(next_offset, self.log_starts.get(tp, 0))
            while times and times[0][0] < following:
                times.popleft()
            return now - times[0][1] if times else 0.0

    def total(self) -> int:
        """How many records were acknowledged, also of those that were thrown away."""
        lost = sum(len(row.records) for row in (*self.by_elections, *self.by_deletions))
        with self._lock:
            return lost + sum(map(len, self.acknowledged.values()))
