"""Records derived from a seed, so that produced records can be recomputed instead of kept."""

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SeededRecord:
    """A record to produce. The timestamp is in ms since 1970; None lets the producer choose."""

    key: bytes | None
    value: bytes | None
    timestamp: int | None = None


def seeded_records(seed: int, count: int, value_size: int = 100) -> Iterator[SeededRecord]:
    """Yield `count` records with consecutive numbers as keys and random bytes as values.

    The same arguments give the same records. Random bytes hardly compress, so the number of records
    determines the size of a segment with every codec.
    """
    generator = random.Random(seed)
    for number in range(count):
        yield SeededRecord(f"{number:010d}".encode(), generator.randbytes(value_size))
