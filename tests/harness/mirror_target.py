"""A mirror's target in memory: a log with markers, as a broker has it, and faults."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from sidetier.mirror.copy.offset_map import OffsetMap, Run, decode_map_record
from sidetier.mirror.copy.target import OutgoingBatch, Written
from sidetier.segments.headers import HEADER_BYTES, parse_batch_header
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.records import decode_records
from sidetier.wire.requests import CommittedOffset

TARGET = TopicPartition("copy.orders", 0)
MAP = TopicPartition("map", 0)


@dataclass
class FakeTarget:
    """Keeps a log with markers, as a broker does: uncommitted records are never visible.

    `fault` is called before each step with the step's name, and may raise.
    """

    fault: Callable[[str], None] = lambda _step: None
    is_transactional: bool = True
    log: list[tuple[TopicPartition, int, bytes]] = field(default_factory=list)
    committed: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    pending: list[Written] = field(default_factory=list)
    waiting: list[tuple[TopicPartition, int, bytes]] = field(default_factory=list)
    starts: int = 0

    def start(self) -> None:
        self.fault("start")
        self.starts += 1
        self._mark()
        self.waiting.clear()
        self.pending.clear()

    def progress(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        self.fault("progress")
        return {tp: self.committed[tp] for tp in partitions if tp in self.committed}

    def send(self, batches: Iterable[OutgoingBatch]) -> None:
        for batch in batches:
            self.fault("send")
            at = self.ends.setdefault(batch.tp, 0)
            self.waiting.append((batch.tp, at, bytes(batch.data)))
            self.pending.append(Written(batch.tp, batch.source_offsets, Offset(at)))
            self.ends[batch.tp] += len(batch.source_offsets)

    def flush(self) -> list[Written]:
        self.fault("flush")
        written, self.pending = self.pending, []
        return written

    def commit(self, progress: Mapping[TopicPartition, CommittedOffset]) -> None:
        self.fault("commit")
        self.log += self.waiting
        self.committed.update(progress)
        self._mark()
        self.waiting.clear()
        self.fault("committed")

    def close(self) -> None: ...

    def _mark(self) -> None:
        for tp in {tp for tp, _, _ in self.waiting}:
            self.ends[tp] += 1

    def values(self) -> list[bytes | None]:
        return list(self.placed().values())

    def placed(self) -> dict[int, bytes | None]:
        """Return each committed record by its target offset."""
        return {
            at + row: record.value
            for tp, at, data in self.log
            if tp == TARGET
            for row, record in enumerate(
                decode_records(parse_batch_header(data), data[HEADER_BYTES:])
            )
        }

    def offset_map(self) -> OffsetMap:
        runs: dict[bytes, tuple[Run, ...]] = {}
        for tp, _, data in self.log:
            if tp == MAP:
                for record in decode_records(parse_batch_header(data), data[HEADER_BYTES:]):
                    assert record.key is not None
                    assert record.value is not None
                    runs[record.key] = decode_map_record(record.key, record.value)[1]
        return OffsetMap([run for chunk in runs.values() for run in chunk])
