"""Which target offset each source offset has: exact, in runs.

Inside a run the target offset rises with the source offset. A run ends where records were dropped
or compacted away on the source, and where a transaction marker takes an offset on the target.

The map is kept on the target, in a compacted topic, and is written in the same transaction as the
records. A record of that topic has a chunk of the map: its key names topic, partition and the
chunk's first source offset, so that compaction keeps one record for each chunk.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from typing import Final, NamedTuple

from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.offsets import Offset, TopicPartition

_TARGET: Final = attrgetter("target")
CHUNK_RUNS: Final = 128
"""A chunk with so many runs is not written again: the next one begins."""
_VERSION: Final = 1


class Run(NamedTuple):
    """`length` neighbouring source offsets from `source` on, copied to as many from `target` on."""

    source: int
    target: int
    length: int


class Translation(NamedTuple):
    """The target offset that stands for a source offset.

    Attributes:
        offset: Target offset of the first copied record at or above the source offset.
        is_exact: Whether nothing is read twice from there. False where the source offset lies
            beyond what was mirrored: the target offset is then the end of what was mirrored.
    """

    offset: int
    is_exact: bool


def runs_of(offsets: Iterable[int], target: int) -> Iterator[Run]:
    """The runs of records that were written with dense target offsets from `target` on."""
    if isinstance(offsets, range):  # a batch that was copied whole
        if offsets:
            yield Run(offsets.start, target, len(offsets))
        return
    start = length = 0
    for position, offset in zip(count(), offsets):
        if length and offset == start + length:
            length += 1
            continue
        if length:
            yield Run(start, target + position - length, length)
        start, length = offset, 1
        end = position + 1
    if length:
        end = position + 1
        yield Run(start, target + end - length, length)


def joined(runs: Iterable[Run]) -> tuple[Run, ...]:
    """The runs, by rising source offset, with those joined that continue one another."""
    found: list[Run] = []
    for run in runs:
        last = found[-1] if found else None
        if (
            last is not None
            and run.source == last.source + last.length
            and run.target == last.target + last.length
        ):
            found[-1] = Run(last.source, last.target, last.length + run.length)
        else:
            found.append(run)
    return tuple(found)


class OffsetMap:
    """The map of one partition, from all of its chunks; ranges that were copied twice count once.

    A chunk that was written later holds where two overlap: a copy that began again from lower
    source offsets has written them anew.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = joined(sorted(runs))
        self._starts = [run.source for run in self._runs]
        self._by_target = sorted(self._runs, key=_TARGET)
        self._targets = [run.target for run in self._by_target]

    @property
    def runs(self) -> tuple[Run, ...]:
        """By rising source offset."""
        return self._runs

    def target_of(self, source: int) -> Offset | None:
        """The exact target offset of a source record; None where it was not copied."""
        at = bisect_right(self._starts, source) - 1
        if at < 0:
            return None
        run = self._runs[at]
        into = source - run.source
        return Offset(run.target + into) if into < run.length else None

    def source_of(self, target: int) -> Offset | None:
        """The source offset of a record on the target; None where the copy has not written it."""
        at = bisect_right(self._targets, target) - 1
        if at < 0:
            return None
        run = self._by_target[at]
        into = target - run.target
        return Offset(run.source + into) if into < run.length else None

    def target_range(self, start: int, end: int) -> tuple[Offset, Offset] | None:
        """From where to where (exclusive) the target has the source offsets `start` to `end`.

        None where none of them was copied.
        """
        runs = [run for run in self._runs if run.source < end and run.source + run.length > start]
        if not runs:
            return None
        first = min(run.target + max(start - run.source, 0) for run in runs)
        last = max(run.target + min(end - run.source, run.length) for run in runs)
        return Offset(first), Offset(last)

    def translate(self, source: int, mirrored_to: int) -> Translation | None:
        """Where a consumer that stood at a source offset goes on; None where nothing was copied.

        Args:
            source: The committed source offset: the next record that the consumer reads.
            mirrored_to: The mirror's progress: the offset of the next source record to copy.
        """
        if not self._runs:
            return None
        at = bisect_right(self._starts, source) - 1
        last = self._runs[-1]
        if at >= 0 and source - self._runs[at].source < self._runs[at].length:
            run = self._runs[at]
            return Translation(run.target + source - run.source, is_exact=True)
        if at + 1 < len(self._runs):
            return Translation(self._runs[at + 1].target, is_exact=True)
        end = last.target + last.length
        return Translation(end, is_exact=source <= mirrored_to)


@dataclass(frozen=True, slots=True)
class MapRecord:
    """A record of the topic that keeps the map."""

    key: bytes
    value: bytes


class OffsetMapWriter:
    """Collects the runs of each partition into chunks; one writer per worker.

    A writer that starts, or whose transaction was aborted, begins new chunks.
    """

    def __init__(self) -> None:
        self._chunks: dict[TopicPartition, tuple[Run, ...]] = {}

    def add(self, tp: TopicPartition, runs: Iterable[Run]) -> MapRecord:
        """The record to write for a transaction that has copied these runs, at least one."""
        chunk = joined([*self._chunks.get(tp, ()), *runs])
        self._chunks[tp] = chunk
        if len(chunk) >= CHUNK_RUNS:
            del self._chunks[tp]
        return encode_map_record(tp, chunk)

    def restart(self) -> None:
        """Forget the chunks: what was collected last was not committed."""
        self._chunks.clear()


def encode_map_record(tp: TopicPartition, runs: Sequence[Run]) -> MapRecord:
    """A chunk as the target's topic keeps it; `tp` is the target's partition."""
    key = {"topic": tp.topic, "partition": tp.partition, "source_offset": runs[0].source}
    value = {"version": _VERSION, "runs": [list(run) for run in runs]}
    return MapRecord(_json(key), _json(value))


def decode_map_record(key: bytes, value: bytes) -> tuple[TopicPartition, tuple[Run, ...]]:
    """What `encode_map_record` has made.

    Raises:
        MalformedObjectError: the record is not one, or has a version that is not known.
    """
    try:
        names, chunk = json.loads(key), json.loads(value)
        if chunk["version"] != _VERSION:
            raise MalformedObjectError(
                f"offset map: version {chunk['version']}, this release knows version {_VERSION}"
            )
        runs = tuple(Run(*map(int, run)) for run in chunk["runs"])
        return TopicPartition(str(names["topic"]), int(names["partition"])), runs
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedObjectError(
            f"offset map: {key[:200]!r} is no record of it: {error}"
        ) from None


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
