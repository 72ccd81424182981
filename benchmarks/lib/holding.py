"""Memory of a reader, and growth of its process, under a budget; in a separate process.

python holding.py '{"topic": "t", "end": 1000000, "storage": {...}, "budget": 67108864}'
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import Any

from lib.processes import peak_resident_bytes
from lib.reading import resident
from sidetier.archive.access import open_archive
from sidetier.archive.reader import ArchiveReader, ReaderSettings, Records
from sidetier.config.storage import StorageConfig
from sidetier.segments.offsets import TopicPartition

_WAIT_SECONDS = 60.0
_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Held:
    """In bytes: the budget, the reader's peak memory within it, and the growth of the process."""

    budget: int
    held: int
    grown: int


def hold(topic: str, end: int, storage: dict[str, Any], budget: int) -> Held:
    """Read everything as Arrow, and discard it."""
    tp = TopicPartition(topic, 0)
    with open_archive("bench", StorageConfig.model_validate(storage)) as archive:
        reader = ArchiveReader(archive, ReaderSettings(memory_budget=budget))
        before = resident()
        reader.assign(tp, 0)
        position = 0
        while position < end:
            for item in reader.take(_ROWS, _WAIT_SECONDS) or [None]:
                if not isinstance(item, Records):
                    raise TypeError(f"at {position} of {end}: {item}")
                position = int(item.next_offset)
        most = peak_resident_bytes(os.getpid())
        peak_bytes = reader.peak_memory
        reader.close()
    return Held(budget, peak_bytes, max(most - before, 0))


if __name__ == "__main__":
    print(json.dumps(asdict(hold(**json.loads(sys.argv[1])))))
