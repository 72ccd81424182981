"""An archive as Pinterest's uploader leaves it, faults included, and Pinterest's consumer.

The format, byte for byte: objects without metadata, `offset.wm` of 20 digits, `_metadata` with
`hash` and `loadHash`, one entry per segment with the `.log`'s modification time.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, TopicPartition
from sidetier.storage.bodies import BytesBody
from tests.harness.log_dir import START_MS, PartitionLog
from tests.harness.s3 import S3Bucket
from tests.harness.stored_log import Record, read_batches, read_records

THREE = (FileKind.INDEX, FileKind.TIMEINDEX, FileKind.LOG)


class Puts(Protocol):
    """The store operations that Pinterest's uploader needs."""

    def put_object(self, key: str, body: BytesBody) -> object:
        """Write an object unconditionally."""
        ...

    def delete_object(self, key: str) -> None:
        """Delete an object."""
        ...


@dataclass(frozen=True, slots=True)
class BucketPuts:
    """A bucket, written with the S3 API."""

    bucket: S3Bucket

    def put_object(self, key: str, body: BytesBody) -> object:
        return self.bucket.client.put_object(Bucket=self.bucket.name, Key=key, Body=body.data)

    def delete_object(self, key: str) -> None:
        self.bucket.client.delete_object(Bucket=self.bucket.name, Key=key)


class PinterestArchive:
    """An archive that Pinterest's uploader writes.

    Store segments first, and then call `mark`, which writes `offset.wm` and `_metadata`.
    """

    def __init__(self, store: Puts, layout: ArchiveLayout, tp: TopicPartition) -> None:
        self.store = store
        self.layout = layout
        self.tp = tp
        self.entries: dict[int, int] = {}

    def key(self, base: int, kind: FileKind = FileKind.LOG) -> str:
        return self.layout.object_key(self.tp, BaseOffset(base), kind)

    def put(self, base: int, kind: FileKind, data: bytes) -> None:
        """Store a file unconditionally and without metadata, as Pinterest's uploader does."""
        self.store.put_object(self.key(base, kind), BytesBody(data))

    def upload(self, log: PartitionLog, *bases: int) -> None:
        """Store whole segments of a synthetic broker, each with an entry."""
        for base in bases:
            indexes = log.indexes_of(base)
            self.segment(base, log.written[base], indexes.index, indexes.timeindex)

    def segment(self, base: int, log: bytes, index: bytes, timeindex: bytes) -> None:
        """Store a segment and its entry. The `.log`'s modification time rises with its base."""
        for kind, data in zip(THREE, (index, timeindex, log), strict=True):
            self.put(base, kind, data)
        self.entries[base] = START_MS + base

    def lose(self, base: int, *kinds: FileKind) -> None:
        """Remove files, as if their upload had failed three times and was never repeated."""
        for kind in kinds or THREE:
            self.store.delete_object(self.key(base, kind))

    def forget(self, *bases: int) -> None:
        """Remove entries from `_metadata`, as if a concurrent write had lost them."""
        for base in bases:
            self.entries.pop(base, None)

    def mark(self, base: int, order: Sequence[int] | None = None) -> None:
        """Write `offset.wm` and `_metadata`, with the entries in this order."""
        entries = [
            {"timestamp": self.entries[base_offset], "relativeOffset": 0, "baseOffset": base_offset}
            for base_offset in (sorted(self.entries) if order is None else order)
        ]
        timeindex = {
            "entries": entries,
            "timeIndexType": "TOPIC_PARTITION",
            "size": len(entries),
        }
        document = {
            "topicPartition": {
                "hash": 1376485967,
                "partition": self.tp.partition,
                "topic": self.tp.topic,
            },
            "metadata": {"timeindex": timeindex},
            "loadHash": '"5d41402abc4b2a76b9719d911017c592"',
        }
        self.store.put_object(
            self.layout.metadata_key(self.tp), BytesBody(json.dumps(document).encode())
        )
        self.move_watermark(base)

    def move_watermark(self, base: int) -> None:
        """Overwrite `offset.wm` without reading it, as Pinterest's uploader does."""
        self.store.put_object(
            self.layout.watermark_key(self.tp), BytesBody(f"{base:020d}".encode())
        )


def read_as_pinterest(
    read: Callable[[str], bytes | None], prefix: str, start: int | None = None
) -> Iterator[tuple[int, Record]]:
    """Yield what Pinterest's consumer returns.

    It reads only segments with an entry in `_metadata`, finds them by timestamp, needs the three
    files of each, and returns every offset once.

    Raises:
        AssertionError: The consumer could not continue: an entry without its files, entries out of
            order, falling timestamps, a wrong index, or only records below the position.
    """
    entries = [
        (row["baseOffset"], row["timestamp"])
        for row in json.loads(read(f"{prefix}_metadata") or b"{}")["metadata"]["timeindex"][
            "entries"
        ]
    ]
    for (base, time), (later, later_time) in pairwise(entries):
        assert base < later, f"the entries do not rise: {base}, {later}"
        assert time <= later_time, f"the timestamps fall from {base} to {later}"
    position = start
    for base, _ in entries:
        files = {kind: read(f"{prefix}{base:020d}{kind.value}") for kind in THREE}
        missing = [kind.value for kind, data in files.items() if data is None]
        assert not missing, f"_metadata names {base}, but {missing} are not stored"
        name, data = f"{prefix}{base:020d}.log", files[FileKind.LOG] or b""
        _check_index(files[FileKind.INDEX] or b"", data, name)
        for offset, record in read_records(data, name):
            if position is None or offset >= position:
                yield offset, record
                position = offset + 1


def _check_index(index: bytes, log: bytes, name: str) -> None:
    """Check that each index position is the start of a batch that reaches the entry's offset."""
    base = int(name[-24:-4])
    starts, at = {}, 0
    for batch in read_batches(log, name):
        starts[at] = batch.next_offset
        at += 61 + len(batch.payload)
    for entry in range(0, len(index), 8):
        relative, position = (
            int.from_bytes(index[entry : entry + 4]),
            int.from_bytes(index[entry + 4 : entry + 8]),
        )
        if (relative, position) == (0, 0):
            return  # the rest of an index that was not trimmed
        assert position in starts, f"{name}: the index leads to byte {position}, inside a batch"
        assert starts[position] > base + relative, f"{name}: {base + relative} is not there"
