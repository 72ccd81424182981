"""Seeks into the middle of a large segment: the time to the first record, and the requests.

    python seeking.py '{"topic": "t", "end": 1000000, "storage": {...}, "seeks": 20}'

prints a list of JSON objects, in a process of its own.
"""

import json
import random
import sys
import threading
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

from sidetier.config.storage import StorageConfig
from sidetier.consumer.reading import ArchiveReader, ReaderSettings, Records
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.endpoints import ArchiveAccess, open_archive

_WAIT_SECONDS = 60.0
_KINDS = ("offset", "timestamp")


@dataclass(frozen=True, slots=True)
class Seek:
    """One seek: what it went by, seconds to the first record, ranged requests that were answered
    until then, and the bytes fetched ahead at the most.
    """

    kind: str
    seconds: float
    requests: int


class Requests:
    """Counts what is answered; a `RequestObserver`."""

    def __init__(self) -> None:
        self.answered = 0
        self._lock = threading.Lock()

    def request(self, operation: str, seconds: float, outcome: str) -> None:
        """See `RequestObserver`."""
        del operation, seconds, outcome
        with self._lock:
            self.answered += 1

    def retry(self, operation: str, kind: str) -> None:
        """See `RequestObserver`."""


def seeks(topic: str, end: int, storage: dict[str, Any], count: int) -> list[Seek]:
    """So many of each kind, each by a reader that has looked at the archive and at nothing else."""
    requests, dice, found = Requests(), random.Random(count), []
    tp = TopicPartition(topic, 0)
    config = StorageConfig.model_validate(storage)
    with open_archive("bench", config, observer=requests) as archive:
        stamps = {at: _timestamp(archive, tp, at) for at in _places(dice, end, count)}
        for at, stamp in stamps.items():
            for kind in _KINDS:
                reader = ArchiveReader(archive, ReaderSettings())
                try:
                    reader.bounds(tp)
                    before, began = requests.answered, monotonic()
                    wanted = at if kind == "offset" else reader.offset_for_time(tp, stamp)
                    first, _ = _first(reader, tp, wanted)
                    seconds = monotonic() - began
                    found.append(Seek(kind, seconds, requests.answered - before))
                finally:
                    reader.close()
                if first > at:
                    raise RuntimeError(f"sought {kind} of {at}, and found {first}")
    return found


def _places(dice: random.Random, end: int, count: int) -> list[int]:
    """Offsets in the middle half."""
    return [dice.randrange(end // 4, end * 3 // 4) for _ in range(count)]


def _timestamp(archive: ArchiveAccess, tp: TopicPartition, offset: int) -> int:
    reader = ArchiveReader(archive, ReaderSettings())
    try:
        return _first(reader, tp, offset)[1]
    finally:
        reader.close()


def _first(reader: ArchiveReader, tp: TopicPartition, offset: int | None) -> tuple[int, int]:
    """Offset and timestamp of the first record from an offset on."""
    if offset is None:
        raise RuntimeError("no record has that timestamp")
    reader.assign(tp, offset)
    for taken in reader.take(1, _WAIT_SECONDS):
        if isinstance(taken, Records):
            row = taken.records.slice(0, 1).to_pylist()[0]
            return row["offset"], row["timestamp"]
        raise RuntimeError(f"{taken}")
    raise TimeoutError(f"nothing came in {_WAIT_SECONDS:g} s")


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    told = seeks(asked["topic"], asked["end"], asked["storage"], asked["seeks"])
    print(json.dumps([asdict(seek) for seek in told]))
