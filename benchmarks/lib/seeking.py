"""Seeks into the middle of a large segment: the time to the first record, and the requests.

    python seeking.py '{"topic": "t", "end": 1000000, "storage": {...}, "seeks": 20}'

runs in a separate process, and prints a list of JSON objects.
"""

import json
import random
import sys
import threading
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

from sidetier.archive.access import ArchiveAccess, open_archive
from sidetier.archive.reader import (
    ArchiveReader,
    NullReadingObserver,
    ReaderSettings,
    Records,
)
from sidetier.config.storage import StorageConfig
from sidetier.segments.offsets import TopicPartition

_WAIT_SECONDS = 20.0
_KINDS = ("offset", "timestamp")
_ONE_AT_A_TIME = ReaderSettings(fetch_threads=1)


@dataclass(frozen=True, slots=True)
class Seek:
    """One seek: its kind, seconds to the first record, and requests.

    `requests` are operations in order, up to the range that holds the record, without read-ahead.
    """

    kind: str
    seconds: float
    requests: list[str]


class Requests(NullReadingObserver):
    """Records answered requests; a `RequestObserver` of the store, and one of the reader.

    `needed` are the requests that were answered when a range was last taken.
    """

    def __init__(self) -> None:
        self.answered: list[str] = []
        self.needed: list[str] = []
        self._lock = threading.Lock()

    def request(self, operation: str, seconds: float, outcome: str) -> None:
        """Record the operation; duration and outcome do not matter."""
        del seconds, outcome
        with self._lock:
            self.answered.append(operation)

    def prefetch(self, tp: TopicPartition, *, hit: bool) -> None:
        """Record a prefetch: with one thread, at most the next range has been requested."""
        del tp, hit
        with self._lock:
            self.needed = list(self.answered)

    def retry(self, operation: str, kind: str) -> None:
        """Ignored."""


def seeks(topic: str, end: int, storage: dict[str, Any], count: int) -> list[Seek]:
    """Run `count` seeks of each kind, each with a new reader that has only listed the archive."""
    requests, dice, results = Requests(), random.Random(count), []
    tp = TopicPartition(topic, 0)
    config = StorageConfig.model_validate(storage)
    with open_archive("bench", config, observer=requests) as archive:
        for at in _places(dice, end, count):
            stamp = _timestamp(archive, tp, at)
            for kind in _KINDS:
                wanted = at if kind == "offset" else stamp
                seconds = _seek(archive, tp, kind, wanted, ReaderSettings())
                _seek(archive, tp, kind, wanted, _ONE_AT_A_TIME, requests)
                results.append(Seek(kind, seconds, requests.needed))
    return results


def _seek(
    archive: ArchiveAccess,
    tp: TopicPartition,
    kind: str,
    wanted: int,
    settings: ReaderSettings,
    requests: Requests | None = None,
) -> float:
    """Return the seconds from the seek to the first record, and record its requests."""
    reader = ArchiveReader(archive, settings, requests)
    try:
        reader.bounds(tp)
        if requests is not None:
            requests.answered.clear()
        began = monotonic()
        offset = wanted if kind == "offset" else reader.offset_for_time(tp, wanted)
        first, stamp = _first(reader, tp, offset)
        seconds = monotonic() - began
    finally:
        reader.close()
    if (first != wanted) if kind == "offset" else (stamp < wanted):
        raise RuntimeError(f"sought {kind} {wanted}, and found {first} with timestamp {stamp}")
    return seconds


def _places(dice: random.Random, end: int, count: int) -> list[int]:
    """Return offsets in the middle half."""
    return [dice.randrange(end // 4, end * 3 // 4) for _ in range(count)]


def _timestamp(archive: ArchiveAccess, tp: TopicPartition, offset: int) -> int:
    reader = ArchiveReader(archive, ReaderSettings())
    try:
        return _first(reader, tp, offset)[1]
    finally:
        reader.close()


def _first(reader: ArchiveReader, tp: TopicPartition, offset: int | None) -> tuple[int, int]:
    """Return offset and timestamp of the first record from an offset on."""
    if offset is None:
        raise RuntimeError("no record has that timestamp")
    reader.assign(tp, offset)
    for item in reader.take(1, _WAIT_SECONDS):
        if isinstance(item, Records):
            row = item.records.slice(0, 1).to_pylist()[0]
            return row["offset"], row["timestamp"]
        raise RuntimeError(f"{item}")
    raise TimeoutError(f"nothing came in {_WAIT_SECONDS:g} s")


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    told = seeks(asked["topic"], asked["end"], asked["storage"], asked["seeks"])
    print(json.dumps([asdict(seek) for seek in told]))
