"""Synthetic log dirs with the files that a broker would write, generated fast.

The batches are real (format v2, uncompressed, records of 1 KiB with random values). The indexes are
real too: an entry for each batch that begins more than 4 KiB after the last entry's, as Kafka's
`LogSegment.append` writes them. The records of a batch contain only differences to its header, so a
few sets of records under new headers make a log of any size.
"""

import os
import random
import struct
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path

from sidetier.brokers.cache import fetch_once
from sidetier.segments.crc import crc32c
from sidetier.segments.offsets import TopicPartition

BROKER_ID = 1
KINDS = ("log", "index", "timeindex")
_META = f"version=1\nnode.id={BROKER_ID}\ncluster.id=BenchmarkBenchmarkBench\n"
_TOPIC_ID = "version: 0\ntopic_id: BenchmarkBenchmarkBenc\n"
_LINEAGE = "0\n1\n0 0\n"
_RECORD_BYTES = 1024
_KINDS_OF_BATCHES = 64
FIRST_TIMESTAMP = 1_700_000_000_000
"""Timestamp of offset 0, in ms; each record is one millisecond later than the previous one."""
_INDEX_INTERVAL = 4096
_INDEX_BYTES = 10 << 20
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a log dir. Every partition has an active segment besides the closed ones.

    With `shared`, the closed segments of all partitions are the same files, through hard links.
    """

    partitions: int
    segments: int
    segment_bytes: int
    batch_bytes: int = 16 << 10
    topics: int = 1
    shared: bool = False

    @property
    def closed_segments(self) -> int:
        """Number of closed segments of all partitions together."""
        return self.partitions * self.segments

    @property
    def next_offset(self) -> int:
        """Base offset of the active segment of each partition."""
        return self.segments * self.offsets

    @property
    def offsets(self) -> int:
        """Offsets per segment: whole batches, at least one."""
        maker = _maker(self.batch_bytes)
        return max(1, self.segment_bytes // maker.size) * maker.records

    @property
    def bases(self) -> range:
        """Base offsets of the closed segments of each partition."""
        return range(0, self.next_offset, self.offsets)

    def topic_partitions(self) -> Iterator[TopicPartition]:
        """Yield all partitions."""
        for number in range(self.partitions):
            yield TopicPartition(f"bench{number % self.topics}", number // self.topics)


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log dir and its shape."""

    path: Path
    shape: Shape

    def closed_files(self) -> list[Path]:
        """Return the files of all closed segments, segment by segment."""
        return [
            self.path / str(tp) / f"{base:020d}.{kind}"
            for tp in self.shape.topic_partitions()
            for base in self.shape.bases
            for kind in KINDS
        ]

    def closed_bytes(self) -> int:
        """Return the size of all closed files, in bytes."""
        return sum(path.stat().st_size for path in self.closed_files())


def cached_log_dir(shape: Shape) -> LogDir:
    """Return a log dir in the cache, created if missing. It must not be changed."""
    parts = (_VERSION, *astuple(shape))
    name = "bench-log-dir-" + "-".join(str(int(part)) for part in parts)
    return LogDir(fetch_once(name, lambda folder: _fill(folder, shape)), shape)


def make_log_dir(folder: Path, shape: Shape) -> LogDir:
    """Fill a folder that is missing or empty."""
    folder.mkdir(parents=True, exist_ok=True)
    _fill(folder, shape)
    return LogDir(folder, shape)


def _fill(folder: Path, shape: Shape) -> None:
    (folder / "meta.properties").write_text(_META)
    template: Path | None = None
    for tp in shape.topic_partitions():
        directory = folder / str(tp)
        directory.mkdir()
        (directory / "leader-epoch-checkpoint").write_text(_LINEAGE)
        (directory / "partition.metadata").write_text(_TOPIC_ID)
        for base in shape.bases:
            if template is not None and shape.shared:
                _link_segment(template, directory, base)
            else:
                _write_segment(directory / f"{base:020d}.log", base, shape)
        _write_active(directory, shape.next_offset)
        template = template or directory
    _write_checkpoint(folder / "replication-offset-checkpoint", shape)


def _write_checkpoint(path: Path, shape: Shape) -> None:
    """Write a checkpoint with everything committed. It only counts if newer than the segments."""
    rows = [f"{tp.topic} {tp.partition} {shape.next_offset}" for tp in shape.topic_partitions()]
    path.write_text("\n".join(["0", str(len(rows)), *rows, ""]))
    later = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(later, later))


def _link_segment(source: Path, target: Path, base: int) -> None:
    for kind in KINDS:
        name = f"{base:020d}.{kind}"
        (target / name).hardlink_to(source / name)


def _write_active(directory: Path, base: int) -> None:
    """Write an empty active segment, with preallocated indexes as the broker's."""
    for kind, size in (("log", 0), ("index", _INDEX_BYTES), ("timeindex", _INDEX_BYTES - 4)):
        path = directory / f"{base:020d}.{kind}"
        path.touch()
        os.truncate(path, size)


def _write_segment(path: Path, base: int, shape: Shape) -> None:
    maker = _maker(shape.batch_bytes)
    index, timeindex = bytearray(), bytearray()
    position = behind = 0
    with path.open("wb", buffering=1 << 20) as log:
        for offset in range(base, base + shape.offsets, maker.records):
            batch = maker.make(offset)
            last = offset + maker.records - 1
            if behind > _INDEX_INTERVAL:
                index += struct.pack(">II", last - base, position)
                timeindex += struct.pack(">qI", FIRST_TIMESTAMP + last, last - base)
                behind = 0
            log.write(batch)
            position += len(batch)
            behind += len(batch)
    path.with_suffix(".index").write_bytes(index)
    path.with_suffix(".timeindex").write_bytes(timeindex)


@cache
def _maker(batch_bytes: int) -> "_BatchMaker":
    return _BatchMaker(batch_bytes)


class _BatchMaker:
    """Creates batches of one size, with one record per millisecond."""

    def __init__(self, batch_bytes: int) -> None:
        value = min(_RECORD_BYTES, batch_bytes - 80)
        self.records = max(1, batch_bytes // (value + 12))
        random_source = random.Random(batch_bytes)
        self._bodies = [
            _records(self.records, value, random_source) for _ in range(_KINDS_OF_BATCHES)
        ]
        self.size = 61 + len(self._bodies[0])

    def make(self, offset: int) -> bytes:
        """Return the batch that begins at an offset."""
        timestamp, delta = FIRST_TIMESTAMP + offset, self.records - 1
        covered = struct.pack(
            ">hiqqqhii", 0, delta, timestamp, timestamp + delta, -1, -1, -1, self.records
        )
        covered += self._bodies[offset // self.records % _KINDS_OF_BATCHES]
        return struct.pack(">qiibI", offset, len(covered) + 9, 0, 2, crc32c(covered)) + covered


def _records(count: int, value_bytes: int, random_source: random.Random) -> bytes:
    records = bytearray()
    for number in range(count):
        body = bytearray(b"\0")  # attributes
        body += _varint(number) + _varint(number)  # deltas of timestamp and offset
        body += _varint(-1)  # null key
        body += _varint(value_bytes) + random_source.randbytes(value_bytes)
        body += _varint(0)  # no headers
        records += _varint(len(body)) + body
    return bytes(records)


def _varint(number: int) -> bytes:
    """Encode a zigzag varint: seven bits per byte."""
    remaining = (number << 1) ^ (number >> 63)
    out = bytearray()
    while remaining > 0x7F:
        out.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    out.append(remaining)
    return bytes(out)
