"""`_metadata`: the segments that the peer's consumer may read, with a timestamp each.

That consumer skips every stored segment that has no entry here, and finds the first one to read by
timestamp, so the timestamps may not fall as base offsets rise. JSON as the peer's uploader writes
it; what else it puts there (`hash`, `loadHash`, `size`) is read over.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.offsets import BaseOffset, TopicPartition


@dataclass(frozen=True, slots=True)
class TimeIndexEntry:
    """A stored segment: the time its log was last written to, in ms since 1970, and its base."""

    timestamp: int
    base_offset: BaseOffset
    relative_offset: int = 0


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """The entries of one partition, one per base offset, in ascending order of it."""

    topic_partition: TopicPartition
    entries: tuple[TimeIndexEntry, ...] = ()

    def with_segment(self, base: BaseOffset, timestamp_ms: int) -> "PartitionMetadata":
        """These entries and one for a segment; a segment that has one already keeps it.

        A timestamp is raised to that of the entry before it where it is lower: a reader that seeks
        by time then begins too early at worst, and misses nothing.
        """
        return self.with_segments([(base, timestamp_ms)])

    def with_segments(self, segments: Iterable[tuple[BaseOffset, int]]) -> "PartitionMetadata":
        """`with_segment` for many segments at once: base offset and timestamp in ms of each."""
        known = {entry.base_offset: entry for entry in self.entries}
        for base, timestamp in segments:
            known.setdefault(base, TimeIndexEntry(timestamp, base))
        return self.with_entries(known.values())

    def with_entries(self, entries: Iterable[TimeIndexEntry]) -> "PartitionMetadata":
        """These entries instead, brought in order."""
        return PartitionMetadata(self.topic_partition, _in_order(entries))


def _in_order(entries: Iterable[TimeIndexEntry]) -> tuple[TimeIndexEntry, ...]:
    """One entry per base, the latest of several, sorted, with timestamps that do not fall."""
    ordered: list[TimeIndexEntry] = []
    for entry in sorted(entries, key=lambda e: (e.base_offset, e.timestamp)):
        while ordered and ordered[-1].base_offset == entry.base_offset:
            ordered.pop()
        floor = ordered[-1].timestamp if ordered else entry.timestamp
        ordered.append(replace(entry, timestamp=floor) if entry.timestamp < floor else entry)
    return tuple(ordered)


def encode_metadata(metadata: PartitionMetadata) -> bytes:
    """The object's bytes."""
    topic, partition = metadata.topic_partition
    entries = [
        {
            "timestamp": entry.timestamp,
            "relativeOffset": entry.relative_offset,
            "baseOffset": entry.base_offset,
        }
        for entry in metadata.entries
    ]
    timeindex = {"entries": entries, "timeIndexType": "TOPIC_PARTITION", "size": len(entries)}
    document = {
        "topicPartition": {"hash": 0, "partition": partition, "topic": topic},
        "metadata": {"timeindex": timeindex},
    }
    return json.dumps(document, separators=(",", ":")).encode()


def decode_metadata(data: bytes, key: str) -> PartitionMetadata:
    """The entries in an object of ours or the peer's, brought in order; `key` is for errors.

    Raises:
        MalformedObjectError: the bytes are not such a document.
    """
    try:
        document = json.loads(data)
        identity = document["topicPartition"]
        timeindex = document["metadata"].get("timeindex") or {"entries": []}
        entries = _in_order([_entry(row) for row in timeindex["entries"]])
        partition = _number(identity, "partition", least=0)
        return PartitionMetadata(TopicPartition(_text(identity, "topic"), partition), entries)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise MalformedObjectError(
            f"{key}: not a partition's metadata ({type(error).__name__}: {error}); "
            f"it begins {data[:60]!r}"
        ) from None


def _entry(row: dict[str, Any]) -> TimeIndexEntry:
    return TimeIndexEntry(
        _number(row, "timestamp", least=-1),
        BaseOffset(_number(row, "baseOffset", least=0)),
        _number(row, "relativeOffset", least=0),
    )


def _number(row: dict[str, Any], name: str, *, least: int) -> int:
    value = row[name]
    if type(value) is not int or value < least:
        raise ValueError(f"{name} is {value!r}")
    return value


def _text(row: dict[str, Any], name: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}")
    return value
