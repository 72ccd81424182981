"""Which target offset each source offset has: exact, in runs.

Inside a run the target offset rises with the source offset. A run ends where records were dropped
or compacted away on the source, and where a transaction marker takes an offset on the target.

The map is kept on the target, in a compacted topic, and is written in the same transaction as the
records. A record of that topic has a chunk of the map: its key names the target's topic, its id and
partition, and the chunk's first source offset, so that compaction keeps one record for each chunk.
A target topic that was deleted and created again has another id, and so another map.

A mirror that runs for years would fill that topic. Therefore older chunks are replaced by fewer
ones with fewer runs (`shorter_map`), once there are too many.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from typing import Final, NamedTuple

from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.offsets import Offset, TopicPartition

_SOURCE: Final = attrgetter("source")
_TARGET: Final = attrgetter("target")
CHUNK_RUNS: Final = 128
"""A chunk with so many runs is not written again: the next one begins."""
_KEPT_CHUNKS: Final = 2
_VERSION: Final = 1


class Run(NamedTuple):
    """`length` neighbouring source offsets from `source` on, copied to as many from `target` on."""

    source: int
    target: int
    length: int


class Translation(NamedTuple):
    """The target offset that stands for a source offset.

    Attributes:
        offset: The consumer goes on at this target offset, and misses no record.
        repeated: Number of source offsets right below the source offset that the consumer may read
            again. 0 where the target offset is exact: it is that of the first copied record at or
            above the source offset.
    """

    offset: int
    repeated: int = 0


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
    """The map of one partition; where a source offset was copied twice, the later copy counts.

    Args:
        runs: In any order. The later of two copies is the one with the higher target offset.
        exact_from: Runs below this source offset may be missing, see `thinned`.
    """

    def __init__(self, runs: Sequence[Run], exact_from: int = 0) -> None:
        self._runs = joined(_without_overlaps(runs))
        self._starts = [run.source for run in self._runs]
        self._by_target = sorted(self._runs, key=_TARGET)
        self._targets = [run.target for run in self._by_target]
        self._exact_from = exact_from

    @property
    def runs(self) -> tuple[Run, ...]:
        """By rising source offset, without overlaps."""
        return self._runs

    @property
    def exact_from(self) -> int:
        """Runs below this source offset may be missing; 0 where none is."""
        return self._exact_from

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

    def translate(self, source: int, mirrored_to: int, log_start: int = 0) -> Translation | None:
        """Where a consumer that stood at a source offset goes on; None where nothing was copied.

        Args:
            source: The committed source offset: the next record that the consumer reads.
            mirrored_to: The mirror's progress: the offset of the next source record to copy.
            log_start: Log start offset of the target partition. The answer is never below it.
        """
        if not self._runs:
            return None
        at = bisect_right(self._starts, source) - 1
        if at < 0:
            first = self._runs[0].target
            # Records below the first run are not this mirror's, or are those of a lost map.
            return Translation(log_start, max(first - log_start, 0))
        run = self._runs[at]
        into = source - run.source
        if into < run.length:
            return Translation(max(run.target + into, log_start))
        if at + 1 == len(self._runs):
            end = max(run.target + run.length, log_start)
            return Translation(end, max(source - mirrored_to, 0))
        if source >= self._exact_from:
            return Translation(max(self._runs[at + 1].target, log_start))
        return Translation(max(run.target + run.length, log_start), into - run.length)

    def thinned(self, max_runs: int) -> "OffsetMap":
        """A map of at most so many runs: the newest ones all, fewer the older they are.

        Below `exact_from` a consumer is then set back to the end of the run before, and reads some
        records again. The first run is always kept: it says where the copy begins.

        Args:
            max_runs: At least 4.
        """
        runs, exact_from = self._runs, self._exact_from
        while len(runs) > max_runs:
            half = len(runs) // 2
            exact_from = max(exact_from, runs[half].source)
            runs = (*runs[:half:2], *runs[half:])
        return OffsetMap(runs, exact_from)


def _without_overlaps(runs: Iterable[Run]) -> list[Run]:
    """By rising source offset; a later copy takes the place of an earlier one."""
    found: list[Run] = []
    for run in sorted(runs, key=_TARGET):
        end = run.source + run.length
        if not found or run.source >= _end(found[-1]):
            found.append(run)
            continue
        first = bisect_right(found, run.source, key=_end)
        last = bisect_left(found, end, key=_SOURCE)
        replaced = found[first:last]
        found[first:last] = [
            *(
                Run(old.source, old.target, run.source - old.source)
                for old in replaced
                if old.source < run.source
            ),
            run,
            *(
                Run(end, old.target + end - old.source, _end(old) - end)
                for old in replaced
                if _end(old) > end
            ),
        ]
    return found


def _end(run: Run) -> int:
    return run.source + run.length


@dataclass(frozen=True, slots=True)
class MapRecord:
    """A record of the topic that keeps the map; without a value it deletes the chunk."""

    key: bytes
    value: bytes | None


class OffsetMapWriter:
    """Collects the runs of each partition into chunks; one writer per worker.

    A writer that starts, or whose transaction was aborted, begins new chunks.
    """

    def __init__(self) -> None:
        self._chunks: dict[TopicPartition, tuple[Run, ...]] = {}

    def add(self, tp: TopicPartition, runs: Iterable[Run], topic_id: str = "") -> MapRecord:
        """The record to write for a transaction that has copied these runs, at least one.

        Args:
            tp: The target partition.
            runs: What was copied.
            topic_id: Kafka's id of the target topic; "" where brokers have none.
        """
        chunk = joined([*self._chunks.get(tp, ()), *runs])
        self._chunks[tp] = chunk
        if len(chunk) >= CHUNK_RUNS:
            del self._chunks[tp]
        return encode_map_record(MapChunk(tp, chunk, topic_id))

    def restart(self) -> None:
        """Forget the chunks: what was collected last was not committed."""
        self._chunks.clear()


class MapChunk(NamedTuple):
    """Some runs of a target partition, by rising source offset.

    Attributes:
        partition: The target partition.
        runs: At least one.
        topic_id: Kafka's id of the target topic; "" where brokers have none.
        exact_from: Runs below this source offset may be missing, see `OffsetMap.thinned`.
    """

    partition: TopicPartition
    runs: tuple[Run, ...]
    topic_id: str = ""
    exact_from: int = 0

    def is_of(self, topic_id: str) -> bool:
        """Whether it is of the target topic with this id, as far as both ids are known."""
        return not topic_id or not self.topic_id or self.topic_id == topic_id


def encode_map_record(chunk: MapChunk) -> MapRecord:
    """A chunk as the target's topic keeps it."""
    key = {"topic": chunk.partition.topic, "partition": chunk.partition.partition}
    if chunk.topic_id:
        key["topic_id"] = chunk.topic_id
    key["source_offset"] = chunk.runs[0].source
    value: dict[str, object] = {"version": _VERSION, "runs": [list(run) for run in chunk.runs]}
    if chunk.exact_from:
        value["exact_from"] = chunk.exact_from
    return MapRecord(_json(key), _json(value))


def most_chunks(max_runs: int) -> int:
    """So many chunks of a partition are kept before its map is shortened to `max_runs` runs."""
    return 2 * (max_runs // CHUNK_RUNS) + _KEPT_CHUNKS


def shorter_map(
    chunks: Mapping[bytes, MapChunk], offsets: OffsetMap, topic_id: str
) -> list[MapRecord]:
    """Records that replace the chunks of a partition by those of a shorter map.

    The newest chunks stay: the mirror may be writing one of them. What a kill leaves after any of
    the records: more runs than are needed, and each of them is true.

    Args:
        chunks: All of the partition by their keys, those of a former target topic, too.
        offsets: The shorter map.
        topic_id: Of the target topic that exists now.

    Returns:
        First the new chunks, then those that delete chunks.
    """
    current = [item for item in chunks.items() if item[1].is_of(topic_id)]
    newest = sorted(current, key=lambda item: item[1].runs[0].source)[-_KEPT_CHUNKS:]
    behind = newest[0][1].runs[0].source if newest else 0
    runs = [run for run in offsets.runs if run.source < behind]
    shortened = [
        encode_map_record(
            MapChunk(
                newest[0][1].partition,
                tuple(runs[at : at + CHUNK_RUNS]),
                topic_id,
                offsets.exact_from if runs[at].source < offsets.exact_from else 0,
            )
        )
        for at in range(0, len(runs), CHUNK_RUNS)
    ]
    kept = {key for key, _ in newest} | {record.key for record in shortened}
    return shortened + [MapRecord(key, None) for key in chunks if key not in kept]


def decode_map_record(key: bytes, value: bytes) -> MapChunk:
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
        return MapChunk(
            TopicPartition(str(names["topic"]), int(names["partition"])),
            tuple(Run(*map(int, run)) for run in chunk["runs"]),
            str(names.get("topic_id", "")),
            int(chunk.get("exact_from", 0)),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MalformedObjectError(
            f"offset map: {key[:200]!r} is no record of it: {error}"
        ) from None


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
