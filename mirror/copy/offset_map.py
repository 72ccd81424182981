"""Map each source offset to its target offset, exactly, in runs.

Inside a run the target offset rises with the source offset. A run ends where records were dropped
or compacted away on the source, and where a transaction marker takes an offset on the target.

The map is kept on the target, in a compacted topic, and is written in the same transaction as the
records. A record of that topic holds a chunk of the map: its key has the target topic's name and
id, the partition, and the first source offset of the chunk, so that compaction keeps one record for
each chunk. A target topic that was deleted and created again has another id, and therefore another
map.

A mirror that runs for years would fill that topic. Once a partition has too many chunks, older
chunks are replaced by fewer chunks with fewer runs (`shorter_map`).
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from typing import Final, NamedTuple

from sidetier.archive.objects.codec import JsonCodec
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.json_text import parse_json
from sidetier.segments.offsets import Offset, TopicPartition

_SOURCE: Final = attrgetter("source")
_TARGET: Final = attrgetter("target")
CHUNK_RUNS: Final = 128
"""A chunk with this number of runs is not written again: the next run begins a new chunk."""
_KEPT_CHUNKS: Final = 2


class Run(NamedTuple):
    """`length` consecutive source offsets from `source` on, copied to as many from `target` on."""

    source: int
    target: int
    length: int


class Translation(NamedTuple):
    """The target offset that replaces a committed source offset.

    Attributes:
        offset: The target offset at which the consumer continues without missing a record.
        repeated: Number of source offsets right below the source offset that the consumer may read
            again. 0 if the target offset is exact: the offset of the first copied record at or
            above the source offset.
    """

    offset: int
    repeated: int = 0


def runs_of(offsets: Iterable[int], target: int) -> Iterator[Run]:
    """Yield the runs of records that were written at dense target offsets from `target` on."""
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
    """Merge runs that continue one another; `runs` are sorted by source offset."""
    merged: list[Run] = []
    for run in runs:
        last = merged[-1] if merged else None
        if (
            last is not None
            and run.source == last.source + last.length
            and run.target == last.target + last.length
        ):
            merged[-1] = Run(last.source, last.target, last.length + run.length)
        else:
            merged.append(run)
    return tuple(merged)


class OffsetMap:
    """The offset map of one partition. If a source offset was copied twice, the later copy counts.

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
        """The runs by ascending source offset, without overlaps."""
        return self._runs

    @property
    def exact_from(self) -> int:
        """Runs below this source offset may be missing; 0 if none is missing."""
        return self._exact_from

    def target_of(self, source: int) -> Offset | None:
        """Return the exact target offset of a source record; None if it was not copied."""
        at = bisect_right(self._starts, source) - 1
        if at < 0:
            return None
        run = self._runs[at]
        into = source - run.source
        return Offset(run.target + into) if into < run.length else None

    def source_of(self, target: int) -> Offset | None:
        """Return the source offset of a target record; None if the copy did not write it."""
        at = bisect_right(self._targets, target) - 1
        if at < 0:
            return None
        run = self._by_target[at]
        into = target - run.target
        return Offset(run.source + into) if into < run.length else None

    def target_range(self, start: int, end: int) -> tuple[Offset, Offset] | None:
        """Return the target offsets, [first, end), of the source offsets [`start`, `end`).

        Returns None if none of the source offsets was copied.
        """
        runs = [run for run in self._runs if run.source < end and run.source + run.length > start]
        if not runs:
            return None
        first = min(run.target + max(start - run.source, 0) for run in runs)
        last = max(run.target + min(end - run.source, run.length) for run in runs)
        return Offset(first), Offset(last)

    def translate(self, source: int, mirrored_to: int, log_start: int = 0) -> Translation | None:
        """Return where a consumer continues on the target; None if the map has no runs.

        Args:
            source: The committed source offset: the next record that the consumer reads.
            mirrored_to: The mirror's progress: the offset of the next source record to copy.
            log_start: Log start offset of the target partition. The result is never below it.
        """
        if not self._runs:
            return None
        at = bisect_right(self._starts, source) - 1
        if at < 0:
            first = self._runs[0].target
            # Records below the first run were not copied by this mirror, or their part of the map
            # is lost.
            return Translation(log_start, max(first - log_start, 0))
        run = self._runs[at]
        into = source - run.source
        if into < run.length:
            return Translation(max(run.target + into, log_start))
        if at + 1 == len(self._runs):
            # Behind the last run: the consumer waits at the end of the copy. Offsets from the
            # mirror's progress on are not copied yet, so it will read them.
            end = max(run.target + run.length, log_start)
            return Translation(end, max(source - mirrored_to, 0))
        if source >= self._exact_from:
            # Nothing between the two runs was copied: the next copied record begins the next run.
            return Translation(max(self._runs[at + 1].target, log_start))
        # Runs between the two may be missing: only the end of the lower run is surely not too far.
        return Translation(max(run.target + run.length, log_start), into - run.length)

    def thinned(self, max_runs: int) -> "OffsetMap":
        """Return a map of at most `max_runs` runs: all of the newest, fewer of the older ones.

        Below `exact_from`, the map then moves a consumer back to the end of the previous run, and
        the consumer reads some records again. The first run is always kept, because it marks where
        the copy begins.

        Args:
            max_runs: At least 4.
        """
        runs, exact_from = self._runs, self._exact_from
        while len(runs) > max_runs:
            half = len(runs) // 2
            exact_from = max(exact_from, runs[half].source)
            # Every second run of the older half: recent offsets, which most consumers have, stay
            # exact.
            runs = (*runs[:half:2], *runs[half:])
        return OffsetMap(runs, exact_from)


def _without_overlaps(runs: Iterable[Run]) -> list[Run]:
    """Sort runs by source offset; a later copy replaces an earlier one."""
    kept: list[Run] = []
    # Later copies have higher target offsets: runs are added
    # in this order, and each cuts out what it replaces.
    for run in sorted(runs, key=_TARGET):
        end = run.source + run.length
        # The usual case: nothing was copied twice.
        if not kept or run.source >= _end(kept[-1]):
            kept.append(run)
            continue
        first = bisect_right(kept, run.source, key=_end)
        last = bisect_left(kept, end, key=_SOURCE)
        replaced = kept[first:last]
        kept[first:last] = [
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
    return kept


def _end(run: Run) -> int:
    return run.source + run.length


@dataclass(frozen=True, slots=True)
class MapRecord:
    """A record of the topic that keeps the map; a record without a value deletes the chunk."""

    key: bytes
    value: bytes | None


class OffsetMapWriter:
    """Collects the runs of each partition into chunks; one writer per worker.

    A writer begins new chunks after it starts and after its transaction was aborted.
    """

    def __init__(self) -> None:
        self._chunks: dict[TopicPartition, tuple[Run, ...]] = {}

    def add(self, tp: TopicPartition, runs: Iterable[Run], topic_id: str = "") -> MapRecord:
        """Return the record to write for a transaction that has copied these runs.

        Args:
            tp: The target partition.
            runs: The runs that were copied, at least one.
            topic_id: Kafka's id of the target topic; "" if the brokers have none.
        """
        chunk = joined([*self._chunks.get(tp, ()), *runs])
        self._chunks[tp] = chunk
        # The chunk is full: it is written once more, and the next run begins a new one.
        if len(chunk) >= CHUNK_RUNS:
            del self._chunks[tp]
        return encode_map_record(MapChunk(tp, chunk, topic_id))

    def restart(self) -> None:
        """Forget the chunks, because the runs that were collected last were not committed."""
        self._chunks.clear()


class MapChunk(NamedTuple):
    """Some runs of a target partition.

    Attributes:
        partition: The target partition.
        runs: At least one, by ascending source offset.
        topic_id: Kafka's id of the target topic; "" if the brokers have none.
        exact_from: Runs below this source offset may be missing, see `OffsetMap.thinned`.
    """

    partition: TopicPartition
    runs: tuple[Run, ...]
    topic_id: str = ""
    exact_from: int = 0

    def is_of(self, topic_id: str) -> bool:
        """Whether the chunk can belong to this target topic: an unknown id ("") matches any id."""
        return not topic_id or not self.topic_id or self.topic_id == topic_id


def encode_map_record(chunk: MapChunk) -> MapRecord:
    """Encode a chunk as a record of the target's offset map topic."""
    key = {"topic": chunk.partition.topic, "partition": chunk.partition.partition}
    if chunk.topic_id:
        key["topic_id"] = chunk.topic_id
    key["source_offset"] = chunk.runs[0].source
    value: dict[str, object] = {"runs": chunk.runs}
    if chunk.exact_from:
        value["exact_from"] = chunk.exact_from
    form = {"separators": (",", ":"), "sort_keys": False}
    return MapRecord(_json(key), _CODEC.encode(value, **form))


def most_chunks(max_runs: int) -> int:
    """Number of a partition's chunks above which its map is shortened to `max_runs` runs."""
    return 2 * (max_runs // CHUNK_RUNS) + _KEPT_CHUNKS


def shorter_map(
    chunks: Mapping[bytes, MapChunk], offsets: OffsetMap, topic_id: str
) -> list[MapRecord]:
    """Return records that replace a partition's chunks by a shorter map's.

    The newest chunks stay, because the mirror may be writing one of them. If the process is killed
    after any of the records, the map has more runs than it needs, and each of them is correct.

    Args:
        chunks: All chunks of the partition by key, including those of a former target topic.
        offsets: The shorter map.
        topic_id: Id of the target topic that exists now.

    Returns:
        First the new chunks, then the records that delete chunks.
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
    # Chunks of a former target topic are in neither list, so they are deleted, too.
    kept = {key for key, _ in newest} | {record.key for record in shortened}
    return shortened + [MapRecord(key, None) for key in chunks if key not in kept]


def decode_map_record(key: bytes, value: bytes) -> MapChunk:
    """Decode a record that `encode_map_record` has made.

    Raises:
        MalformedObjectError: The record is not a chunk of the map, or has an unknown version.
    """
    try:
        names = parse_json(key)
        tp = TopicPartition(str(names["topic"]), int(names["partition"]))
        topic_id = str(names.get("topic_id", ""))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MalformedObjectError(
            f"offset map: {key[:200]!r} is not a record of it: {error}"
        ) from None
    chunk = _CODEC.decode(value, f"offset map: the record {key[:200]!r}")
    return MapChunk(tp, chunk.runs, topic_id, chunk.exact_from)


@dataclass(frozen=True, slots=True)
class _StoredChunk:
    runs: tuple[Run, ...]
    exact_from: int = 0


_CODEC: Final = JsonCodec(_StoredChunk, "a record of the offset map")


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
