"""How much memory a reader holds, and its process, under a budget; in a process of its own.

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
from sidetier.archive.reading import ArchiveReader, ReaderSettings, Records
from sidetier.config.storage import StorageConfig
from sidetier.segments.offsets import TopicPartition

_WAIT_SECONDS = 60.0
_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes: the budget, the most that the reader held of it, and what the process grew by."""

    budget: int
    held: int
    grown: int


def hold(topic: str, end: int, storage: dict[str, Any], budget: int) -> Held:
    """Read everything, as Arrow, and let it go."""
    tp = TopicPartition(topic, 0)
    with open_archive("bench", StorageConfig.model_validate(storage)) as archive:
        reader = ArchiveReader(archive, ReaderSettings(memory_budget=budget))
        before = resident()
        reader.assign(tp, 0)
        position = 0
        while position < end:
            for taken in reader.take(_ROWS, _WAIT_SECONDS) or [None]:
                if not isinstance(taken, Records):
                    raise TypeError(f"at {position} of {end}: {taken}")
                position = int(taken.next_offset)
        most = peak_resident_bytes(os.getpid())
        held = reader.peak_memory
        reader.close()
    return Held(budget, held, max(most - before, 0))


if __name__ == "__main__":
    print(json.dumps(asdict(hold(**json.loads(sys.argv[1])))))
