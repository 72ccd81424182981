"""Records of the demo, made from a seed, and a ledger of those that the broker acknowledged."""

import math
import random
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

HOUR: Final = 3_600_000
"""In ms."""
_WAVES: Final = 3
_WAVE: Final = 0.6
_DIGEST_BYTES: Final = 8
_MERCHANTS: Final = ("acme", "bricks", "clover", "dune", "ember", "flint")


@dataclass(frozen=True, slots=True)
class Order:
    """A record to produce; `timestamp` is in ms since 1970."""

    key: bytes
    value: bytes
    partition: int
    timestamp: int


def orders(
    seed: int, count: int, partitions: int, value_bytes: int = 1000, *, end: int = HOUR
) -> Iterator[Order]:
    """Yield `count` orders of invented customers, by rising timestamp.

    The timestamps are in the hour before `end` (ms since 1970). The same arguments give the same
    orders.
    """
    generator = random.Random(seed)  # noqa: S311 -- the same seed must give the same orders
    for number in range(count):
        merchant = generator.choice(_MERCHANTS)
        head = f'{{"order":{number},"merchant":"{merchant}","cents":{generator.randrange(10**6)},'
        filler = generator.randbytes(value_bytes // 2).hex()
        value = f'{head}"note":"{filler}"'[: value_bytes - 2] + '"}'
        moment = end - HOUR + int(HOUR * _moment(number / count))
        yield Order(f"order-{number:09d}".encode(), value.encode(), number % partitions, moment)


def _moment(part: float) -> float:
    """Return the share of the hour at which this share of the orders is reached.

    It rises faster and slower by turns, so that a picture of the hour has something to show.
    """
    return part + _WAVE * math.sin(2 * math.pi * _WAVES * part) / (2 * math.pi * _WAVES)


def digest(offset: int, key: bytes | None, value: bytes | None) -> bytes:
    """Return a checksum of a record's offset, key and value."""
    hasher = blake2b(offset.to_bytes(8), digest_size=_DIGEST_BYTES)
    for part in (key, value):
        hasher.update(b"\xff" * 8 if part is None else len(part).to_bytes(8))
        hasher.update(part or b"")
    return hasher.digest()


def combined(digests: Iterator[bytes]) -> str:
    """Return one checksum over the digests of many records, which come in offset order."""
    hasher = blake2b(digest_size=_DIGEST_BYTES)
    for record_digest in digests:
        hasher.update(record_digest)
    return hasher.hexdigest()


@dataclass(slots=True)
class Ledger:
    """Checksums of the records that the broker has acknowledged, by partition and offset."""

    size: int = 0
    records: dict[int, dict[int, bytes]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def note(self, partition: int, offset: int, key: bytes, value: bytes) -> None:
        """Add an acknowledged record."""
        self.size += len(key) + len(value)
        self.records.setdefault(partition, {})[offset] = digest(offset, key, value)

    def ends(self) -> dict[int, int]:
        """Return the end offset of each partition."""
        return {partition: len(records) for partition, records in self.records.items()}

    @property
    def count(self) -> int:
        """Number of records."""
        return sum(map(len, self.records.values()))


class OnBrokerAlone:
    """How long acknowledged records were on the broker alone, by the clock of the demo.

    Attributes:
        longest: The longest time so far, in seconds: an upper bound, by the time between two looks.
    """

    def __init__(self, began: float) -> None:
        self.longest = 0.0
        self._looked = began
        self._waiting: dict[int, deque[tuple[int, float]]] = {}
        """Ends of acknowledged records, and when they were not acknowledged yet."""

    def look(self, acknowledged: Mapping[int, int], safe: Mapping[int, int], now: float) -> None:
        """Compare the end offsets of acknowledged and of safe records, by partition."""
        for partition, end in acknowledged.items():
            waiting = self._waiting.setdefault(partition, deque([(0, now)]))
            if end > waiting[-1][0]:
                waiting.append((end, self._looked))
            # The last one stays: its end is compared with the next.
            while len(waiting) > 1 and waiting[0][0] <= safe.get(partition, 0):
                waiting.popleft()
            if waiting[0][0] > safe.get(partition, 0):
                self.longest = max(self.longest, now - waiting[0][1])
        self._looked = now
