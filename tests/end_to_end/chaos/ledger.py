"""What producers were told: each acknowledged record by a checksum, at its offset."""

import hashlib
import threading
from array import array
from collections import deque
from collections.abc import Iterator
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

    def items(self) -> Iterator[tuple[int, int]]:
        """Offsets with their checksums, rising."""
        return ((offset, number) for offset, number in enumerate(self._sums) if number != _NONE)

    def __len__(self) -> int:
        return len(self._sums) - self._sums.count(_NONE)


class Fate(IntEnum):
    """How the transaction of a record ended; what nobody knows is not entered."""

    COMMITTED = 1
    ABORTED = 2


class Ledger:
    """Filled by producers' threads, read by the nemesis, and by the verdict at the end."""

    def __init__(self) -> None:
        self.acknowledged: dict[Partition, Sums] = {}
        self.fates: dict[Partition, Sums] = {}
        self.problems: list[str] = []
        self.undelivered = 0
        self._times: dict[Partition, deque[tuple[int, float]]] = {}
        self._lock = threading.Lock()

    def acknowledge(self, tp: Partition, offset: int, number: int, now: float) -> None:
        """The cluster has promised to keep this record there."""
        with self._lock:
            if not self.acknowledged.setdefault(tp, Sums()).put(offset, number):
                self.problems.append(f"{tp[0]}-{tp[1]}: offset {offset} was acknowledged twice")
            self._times.setdefault(tp, deque()).append((offset, now))

    def decide(self, tp: Partition, offset: int, fate: Fate) -> None:
        """The transaction of this record has ended so."""
        with self._lock:
            self.fates.setdefault(tp, Sums()).put(offset, fate)

    def lag(self, tp: Partition, next_offset: int, now: float) -> float:
        """For how many seconds the oldest record at or above an offset has been acknowledged.

        To be asked with offsets that do not fall.
        """
        with self._lock:
            times = self._times.get(tp)
            while times and times[0][0] < next_offset:
                times.popleft()
            return now - times[0][1] if times else 0.0

    def total(self) -> int:
        """How many records were acknowledged."""
        with self._lock:
            return sum(map(len, self.acknowledged.values()))
