"""Records that a seed decides, so that what was produced can be told again without keeping it."""

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SeededRecord:
    """A record to produce; the timestamp is in ms since 1970, None lets the producer choose."""

    key: bytes | None
    value: bytes | None
    timestamp: int | None = None


def seeded_records(seed: int, count: int, value_size: int = 100) -> Iterator[SeededRecord]:
    """`count` records whose keys are numbers in order, and whose values are random bytes.

    The same arguments give the same records. Random bytes hardly compress, so that the size of a
    segment follows from the number of records under every codec.
    """
    generator = random.Random(seed)
    for number in range(count):
        yield SeededRecord(f"{number:010d}".encode(), generator.randbytes(value_size))
