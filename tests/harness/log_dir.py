"""A broker's log dir without a broker: its files, changed in the order in which a broker does it.

Record batches are real (format v2, decodable), and indexes are the same as a broker's. After every
step the disk is in the state that Kafka's `UnifiedLog` leaves: the active segment's indexes are
preallocated and sparse, they are trimmed before the next `.log` is created, and a file gets
`.deleted` before its unlink.
"""

import os
import random
import struct
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from sidetier.segments.index_builder import RebuiltIndexes
from sidetier.segments.indexes import PREALLOCATED_INDEX_BYTES, PREALLOCATED_TIMEINDEX_BYTES
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, BrokerId, Offset, TopicPartition
from sidetier.segments.producer_snapshot import encode_snapshot
from sidetier.segments.walker import BatchWalker
from tests.harness.batches import make_batch, with_crc
from tests.harness.metadata_log import zigzag

CLUSTER_ID = "kafka-cluster-of-tests"
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
INDEX_INTERVAL_BYTES = 512
START_MS = 1_700_000_000_000
_KINDS = tuple(FileKind)


def encode_record(delta: int, value: bytes, key: bytes | None = None) -> bytes:
    """Encode one record of format v2 with timestamp delta `delta` and no headers."""
    body = b"\0" + zigzag(delta) + zigzag(delta)
    body += zigzag(-1) if key is None else zigzag(len(key)) + key
    body += zigzag(len(value)) + value + zigzag(0)
    return zigzag(len(body)) + body


def record_batch(base: int, values: list[bytes], *, epoch: int = 0) -> bytes:
    """Return a batch of these values; the timestamp of each record is START_MS + its offset."""
    payload = b"".join(encode_record(delta, value) for delta, value in enumerate(values))
    batch = bytearray(
        make_batch(base, len(values), epoch=epoch, timestamp=START_MS + base, payload=payload)
    )
    return with_max_timestamp(batch, START_MS + base + len(values) - 1)


def with_max_timestamp(batch: bytearray, timestamp: int) -> bytes:
    """Return the batch with another max timestamp and a matching CRC."""
    batch[35:43] = struct.pack(">q", timestamp)
    return with_crc(batch)


class LogDir:
    """One of a broker's log dirs, with `meta.properties` and its checkpoint."""

    def __init__(
        self, path: Path, *, broker_id: int = 1, cluster_id: str = CLUSTER_ID, kraft: bool = True
    ) -> None:
        self.path = path
        self.broker_id = BrokerId(broker_id)
        self.partitions: dict[TopicPartition, PartitionLog] = {}
        path.mkdir(parents=True, exist_ok=True)
        id_key, version = ("node.id", 1) if kraft else ("broker.id", 0)
        text = f"version={version}\n{id_key}={broker_id}\ncluster.id={cluster_id}\n"
        (path / "meta.properties").write_text(text)

    def __str__(self) -> str:
        return str(self.path)

    def create(
        self,
        topic: str = "t",
        number: int = 0,
        *,
        base: int = 0,
        epoch: int = 0,
        topic_id: str = TOPIC_ID,
    ) -> "PartitionLog":
        """Create a partition, led in this epoch, whose log begins at `base`."""
        tp = TopicPartition(topic, number)
        created = PartitionLog(self.path / str(tp), tp, base, epoch, topic_id)
        self.partitions[tp] = created
        return created

    def checkpoint_high_watermarks(
        self, offsets: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Write `replication-offset-checkpoint`, newer than every segment.

        Without `offsets`, it has each partition's log end offset.
        """
        if offsets is None:
            offsets = {tp: log.log_end for tp, log in self.partitions.items()}
        rows = "".join(f"{tp.topic} {tp.partition} {offset}\n" for tp, offset in offsets.items())
        path = self.path / "replication-offset-checkpoint"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(f"0\n{len(offsets)}\n{rows}")
        time_ns = max([time.time_ns(), *(log.newest_ns() + 1 for log in self.partitions.values())])
        if path.exists():
            time_ns = max(time_ns, path.stat().st_mtime_ns + 1)
        os.utime(temporary, ns=(time_ns, time_ns))
        temporary.replace(path)


class PartitionLog:
    """One partition, with the steps of a broker: append, roll, retention, truncation.

    `written` has the last bytes of every segment's `.log` by base offset, also after its deletion.
    `values` has the value at every offset.
    """

    def __init__(
        self, path: Path, tp: TopicPartition, base: int, epoch: int, topic_id: str = TOPIC_ID
    ) -> None:
        self.path = path
        self.tp = tp
        self.epoch = epoch
        self.topic_id = topic_id
        self.log_end = base
        self.written: dict[int, bytes] = {}
        self.values: dict[int, bytes] = {}
        self._epochs = [(epoch, base)]
        self._random = random.Random(f"{tp}")
        self.open_at: Callable[[int], Iterable[int]] = lambda _: ()
        """Returns the first offsets of the transactions that are open at a base offset."""
        path.mkdir(parents=True)
        self._write_epochs()
        (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")
        self._begin(base)

    # Steps of a broker -------------------------------------------------------------------------

    def append(self, records: int = 10, *, batch: int = 5, size: int = 40) -> None:
        """Append records with random values of `size` bytes, `batch` of them at a time."""
        while records > 0:
            count = min(batch, records)
            values = [self._random.randbytes(size) for _ in range(count)]
            self.append_bytes(record_batch(self.log_end, values, epoch=self.epoch), count)
            first = self.log_end - count
            self.values.update(zip(range(first, self.log_end), values, strict=True))
            records -= count

    def append_bytes(self, data: bytes, offsets: int) -> None:
        """Append an encoded batch that covers this number of offsets."""
        active = self.active
        with self.file(active).open("ab") as log:
            log.write(data)
        self.written[active] += data
        self.log_end += offsets

    def roll(self) -> BaseOffset:
        """Close the active segment and begin the next; return the base of the closed one."""
        closed = self.active
        indexes = self.indexes_of(closed)
        self.file(closed, FileKind.INDEX).write_bytes(indexes.index)
        self.file(closed, FileKind.TIMEINDEX).write_bytes(indexes.timeindex)
        self._begin(self.log_end)
        return closed

    def closed_segment(self, records: int = 10, *, batch: int = 5, size: int = 40) -> BaseOffset:
        """Append and roll; return the base offset of the segment that this closes."""
        self.append(records, batch=batch, size=size)
        return self.roll()

    def closed_segments(self, count: int, records: int = 10) -> list[BaseOffset]:
        """Create `count` closed segments, oldest first."""
        return [self.closed_segment(records) for _ in range(count)]

    def stage(self, base: int) -> None:
        """Rename the segment's files to `.deleted`, as retention does."""
        for kind in _KINDS:
            path = self.file(base, kind)
            if path.exists():
                path.rename(f"{path}.deleted")

    def unlink(self, base: int) -> None:
        """Unlink the segment's files, marked for deletion or not."""
        for kind in _KINDS:
            for deleted in (False, True):
                self.file(base, kind, deleted=deleted).unlink(missing_ok=True)

    def expire_active(self) -> BaseOffset:
        """Expire the active segment, as retention does: roll, and mark it for deletion."""
        base = self.roll()
        self.stage(base)
        return base

    def truncate(self, end: int) -> None:
        """Truncate the log to `end`, as a returning follower does.

        Segments above `end` are marked for deletion. The segment that holds `end` is cut and
        becomes active again; `end` must be a batch boundary in it.
        """
        for base in [base for base in self.bases() if base > end]:
            self.stage(base)
        self.log_end = end
        last_base = max(base for base in self.bases() if base <= end)
        data = self.written[last_base][: self._position_of(last_base, end)]
        os.truncate(self.file(last_base), len(data))
        self.written[last_base] = data
        self._epochs = [row for row in self._epochs if row[1] < end]
        self._write_epochs()

    def begin_at(self, base: int) -> None:
        """Truncate below the log start: mark every segment for deletion, and begin an empty log."""
        for old in self.bases():
            self.stage(old)
        self.log_end = base
        self._epochs = []
        self._write_epochs()
        self._begin(base)

    def lead(self, epoch: int) -> None:
        """Become the leader in a later epoch, from the log end offset.

        As in Kafka's epoch cache, an epoch in which nothing was appended leaves no entry.
        """
        self.epoch = epoch
        self._epochs = [row for row in self._epochs if row[1] < self.log_end]
        self._epochs.append((epoch, self.log_end))
        self._write_epochs()

    def start_at(self, offset: int) -> None:
        """Move the log start offset, as retention or delete-records does.

        The checkpoint drops the leader epochs that end below it, and the first remaining one begins
        there.
        """
        later = [row for row in self._epochs if row[1] > offset]
        covering = [epoch for epoch, start in self._epochs if start <= offset]
        self._epochs = [*((epoch, offset) for epoch in covering[-1:]), *later]
        self._write_epochs()

    def copy_to(self, log_dir: LogDir, rolls: Collection[int]) -> "PartitionLog":
        """Write a copy under the name of a future replica, as a move between log dirs does.

        The copy begins at the log start, and rolls at those bases of this log that are in `rolls`.
        """
        start = self.bases()[0]
        path = log_dir.path / f"{self.tp}.{uuid.uuid4().hex}-future"
        copy = PartitionLog(path, self.tp, start, self.epoch, self.topic_id)
        copy.open_at = self.open_at
        copy._write_snapshot(start)
        for base in self.bases():
            if base in rolls and copy.log_end > start:
                copy.roll()
            with copy.file(copy.active).open("ab") as log:
                log.write(self.written[base])
            copy.written[copy.active] += self.written[base]
            copy.log_end = self._end_of(base)
        copy._epochs = list(self._epochs)
        copy._write_epochs()
        return copy

    def _end_of(self, base: int) -> int:
        return min(
            (other_base for other_base in self.bases() if other_base > base), default=self.log_end
        )

    def rename_to(self, name: str) -> None:
        """Rename the directory in one step, within its log dir."""
        self.path = self.path.rename(self.path.with_name(name))

    def delete_topic(self) -> Path:
        """Rename the directory to `-delete` in one step, and return the new path."""
        target = self.path.with_name(f"{self.path.name}.{uuid.uuid4().hex}-delete")
        self.path.rename(target)
        return target

    # Views for tests ---------------------------------------------------------------------------

    @property
    def active(self) -> BaseOffset:
        """Base offset of the active segment."""
        return self.bases()[-1]

    def epochs(self) -> list[tuple[int, int]]:
        """Rows of the leader epoch checkpoint."""
        return list(self._epochs)

    def known_from(self) -> int:
        """Return the first start offset in the epoch checkpoint; the log end if it is empty."""
        return self._epochs[0][1] if self._epochs else self.log_end

    def bases(self) -> list[BaseOffset]:
        """Return the live segments' base offsets, the active one's last."""
        suffix = FileKind.LOG.value
        return sorted(
            BaseOffset(int(name.removesuffix(suffix)))
            for name in self.names()
            if name.endswith(suffix)
        )

    def names(self) -> list[str]:
        """Return the names in the directory."""
        return os.listdir(self.path)  # noqa: PTH208 - faster; a simulation calls it 200 times per second

    def file(self, base: int, kind: FileKind = FileKind.LOG, *, deleted: bool = False) -> Path:
        """Return the path of one file of a segment, whether it exists or not."""
        return self.path / segment_file_name(BaseOffset(base), kind, deleted=deleted)

    def indexes_of(self, base: int) -> RebuiltIndexes:
        """Return the indexes that a broker would write for a closed segment."""
        walker = BatchWalker(
            str(self.file(base)), index_interval_bytes=INDEX_INTERVAL_BYTES, rebuild_indexes=True
        )
        walker.feed(memoryview(self.written[base]))
        indexes = walker.finish().indexes
        assert indexes is not None
        return indexes

    def set_age(self, base: int, seconds: float) -> None:
        """Set the age of a closed segment's last append, newest record and roll, in seconds."""
        then = time.time_ns() - int(seconds * 1e9)
        self.set_record_age(base, seconds)
        for deleted in (False, True):
            for kind in (FileKind.LOG, FileKind.INDEX, FileKind.TIMEINDEX):
                path = self.file(base, kind, deleted=deleted)
                if path.exists():
                    os.utime(path, ns=(then, then))

    def set_record_age(self, base: int, seconds: float) -> None:
        """Set the age of the largest timestamp in a closed segment's time index, in seconds."""
        timestamp_ms = time.time_ns() // 10**6 - int(seconds * 1000)
        for deleted in (False, True):
            path = self.file(base, FileKind.TIMEINDEX, deleted=deleted)
            if path.exists():
                status, entries = path.stat(), path.read_bytes()
                path.write_bytes(struct.pack(">q", timestamp_ms) + entries[-4:])
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def newest_ns(self) -> int:
        """Return the time of the last append to any segment, in ns since 1970."""
        return max((path.stat().st_mtime_ns for path in self._logs()), default=0)

    def _logs(self) -> Iterator[Path]:
        if self.path.is_dir():
            yield from (self.path / name for name in self.names() if FileKind.LOG.value in name)

    def _begin(self, base: int) -> None:
        self.file(base).touch(exist_ok=False)
        self._write_snapshot(base)
        for kind, size in (
            (FileKind.INDEX, PREALLOCATED_INDEX_BYTES),
            (FileKind.TIMEINDEX, PREALLOCATED_TIMEINDEX_BYTES),
        ):
            path = self.file(base, kind)
            path.touch()
            os.truncate(path, size)
        self.written[base] = b""

    def _write_snapshot(self, base: int) -> None:
        producers = (
            struct.pack(">qhiqiqiq", 7, 0, 0, 0, 0, 0, 0, first) for first in self.open_at(base)
        )
        self.file(base, FileKind.SNAPSHOT).write_bytes(encode_snapshot(producers))

    def _position_of(self, base: int, offset: Offset | int) -> int:
        data, position, following = self.written[base], 0, base
        while position < len(data) and following < offset:
            first, length, delta = struct.unpack_from(">qi11xi", data, position)
            position, following = position + 12 + length, first + delta + 1
        assert following == offset, f"{offset} is no batch border"
        return position

    def _write_epochs(self) -> None:
        rows = "".join(f"{epoch} {start}\n" for epoch, start in self._epochs)
        temporary = self.path / "leader-epoch-checkpoint.tmp"
        temporary.write_text(f"0\n{len(self._epochs)}\n{rows}")
        temporary.replace(self.path / "leader-epoch-checkpoint")
