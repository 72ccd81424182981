"""`_metadata`: the segments that Pinterest's consumer may read, each with a timestamp.

That consumer skips every stored segment that has no entry here, and finds the first one to read by
timestamp. So the timestamps must not decrease as base offsets ascend. The format is the JSON that
Pinterest's uploader writes; its other fields (`hash`, `loadHash`, `size`) are ignored.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from sidetier.segments.errors import MalformedObjectError, ObjectNotFoundError
from sidetier.segments.json_text import parse_json
from sidetier.segments.offsets import BaseOffset, TopicPartition
from sidetier.storage.port import RemoteStorage


@dataclass(frozen=True, slots=True)
class TimeIndexEntry:
    """A stored segment.

    Attributes:
        timestamp: When its log was last written to, in ms since 1970.
        base_offset: Its base offset.
        relative_offset: Always 0 in entries of Sidetier.
    """

    timestamp: int
    base_offset: BaseOffset
    relative_offset: int = 0


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """The entries of one partition: one for each base offset, in ascending order."""

    topic_partition: TopicPartition
    entries: tuple[TimeIndexEntry, ...] = ()

    @property
    def named(self) -> frozenset[BaseOffset]:
        """The base offsets of the entries."""
        return frozenset(entry.base_offset for entry in self.entries)

    def with_segment(self, base: BaseOffset, timestamp_ms: int) -> "PartitionMetadata":
        """Return these entries and one for a segment. A segment that has an entry keeps it.

        A timestamp below the previous entry's is raised to that one. A reader that seeks by
        time then begins too early at worst, and misses nothing.
        """
        return self.with_segments([(base, timestamp_ms)])

    def with_segments(self, segments: Iterable[tuple[BaseOffset, int]]) -> "PartitionMetadata":
        """As `with_segment`, for many segments: base offset and timestamp in ms of each."""
        known = {entry.base_offset: entry for entry in self.entries}
        for base, timestamp in segments:
            known.setdefault(base, TimeIndexEntry(timestamp, base))
        return self.with_entries(known.values())

    def with_entries(self, entries: Iterable[TimeIndexEntry]) -> "PartitionMetadata":
        """Return the metadata with these entries instead, in order."""
        return PartitionMetadata(self.topic_partition, _in_order(entries))


@dataclass(frozen=True, slots=True)
class StoredMetadata:
    """A `_metadata` object as it was read, with its etag."""

    metadata: PartitionMetadata
    etag: str


def read_metadata(store: RemoteStorage, key: str) -> StoredMetadata | None:
    """Read the `_metadata` with this key; None if there is none. One request.

    Raises:
        MalformedObjectError: It does not parse.
    """
    try:
        stored = store.get_object(key)
    except ObjectNotFoundError:
        return None
    return StoredMetadata(decode_metadata(stored.data, key), stored.head.etag)


def named_segments(store: RemoteStorage, key: str) -> frozenset[BaseOffset]:
    """Return the base offsets in the `_metadata` with this key; empty if there is none. One
    request.

    Raises:
        MalformedObjectError: It does not parse.
    """
    stored = read_metadata(store, key)
    return frozenset() if stored is None else stored.metadata.named


def _in_order(entries: Iterable[TimeIndexEntry]) -> tuple[TimeIndexEntry, ...]:
    """Sort by base, keep the latest of several entries of one base, and raise falling
    timestamps.
    """
    ordered: list[TimeIndexEntry] = []
    for entry in sorted(entries, key=lambda e: (e.base_offset, e.timestamp)):
        while ordered and ordered[-1].base_offset == entry.base_offset:
            ordered.pop()
        floor = ordered[-1].timestamp if ordered else entry.timestamp
        ordered.append(replace(entry, timestamp=floor) if entry.timestamp < floor else entry)
    return tuple(ordered)


def encode_metadata(metadata: PartitionMetadata) -> bytes:
    """Encode the object."""
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


_FORM: Final = re.compile(rb'\{"topicPartition":\{"hash":0,"partition":[0-9]+,"topic":"')
_END: Final = re.compile(
    rb'\{"timestamp":(-?[0-9]+),"relativeOffset":[0-9]+,"baseOffset":([0-9]+)\}'
    rb'(\],"timeIndexType":"TOPIC_PARTITION","size":)([0-9]+)(\}\}\})'
)
_LONGEST_END: Final = 256


def append_segments(data: bytes, segments: Iterable[tuple[BaseOffset, int]]) -> bytes | None:
    """Append entries to an encoded document without parsing all of its entries.

    The result equals `with_segments` followed by `encode_metadata`.

    Args:
        data: A document that `encode_metadata` has made.
        segments: Base offset, and timestamp in ms, of each segment.

    Returns:
        None if the document has another form or no entry yet, or if a segment does not come after
        its last entry. Then all entries must be parsed.
    """
    end = _END.fullmatch(data, max(0, data.rfind(b'{"timestamp":', -_LONGEST_END)))
    # The beginning is checked, too: a document of Pinterest's
    # uploader can end in the same way, and must be parsed as a whole.
    if end is None or not _FORM.match(data):
        return None
    timestamp, last, size = int(end[1]), int(end[2]), int(end[4])
    added = []
    for base, modified in sorted(segments):
        # A late segment belongs between the entries.
        if base <= last:
            return None
        last, timestamp = base, max(modified, timestamp)
        entry = {"timestamp": timestamp, "relativeOffset": 0, "baseOffset": base}
        added.append("," + json.dumps(entry, separators=(",", ":")))
    if not added:
        return None
    tail = b"%b%d%b" % (end[3], size + len(added), end[5])
    return b"".join((data[: end.start(3)], "".join(added).encode(), tail))


def count_entries(data: bytes) -> int | None:
    """Return the number of entries that an encoded document states, without parsing its entries.

    Returns:
        None if the document has another form than `encode_metadata` writes, or no entry.
    """
    end = _END.fullmatch(data, max(0, data.rfind(b'{"timestamp":', -_LONGEST_END)))
    return None if end is None else int(end[4])


def decode_metadata(data: bytes, key: str) -> PartitionMetadata:
    """Decode an object of Sidetier or of Pinterest's uploader. Entries are put in order; `key` is
    for errors.

    Raises:
        MalformedObjectError: The bytes are not such a document.
    """
    try:
        document = parse_json(data)
        identity = document["topicPartition"]
        timeindex = document["metadata"].get("timeindex") or {"entries": []}
        entries = _in_order([_entry(row) for row in timeindex["entries"]])
        partition = _number(identity, "partition", least=0)
        return PartitionMetadata(TopicPartition(_text(identity, "topic"), partition), entries)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
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
