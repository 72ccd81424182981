"""Fake clusters for the translation of offsets: groups, and partitions to read."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from sidetier.mirror.partition_log import LogOffsets
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.records import Record
from sidetier.wire.requests import CommittedOffset


@dataclass
class FakeGroups:
    """Groups in memory. Groups in `with_members` refuse commits. `fault` may raise."""

    offsets: dict[str, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    with_members: set[str] = field(default_factory=set)
    joins_unseen: set[str] = field(default_factory=set)
    """Groups that get a member after they were listed."""
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    fault: Callable[[str], None] = lambda _step: None

    def set(self, group: str, tp: TopicPartition, offset: int, metadata: str = "") -> None:
        committed = CommittedOffset(Offset(offset), metadata=metadata)
        self.offsets.setdefault(group, {})[tp] = committed

    def at(self, group: str, tp: TopicPartition) -> int | None:
        committed = self.offsets.get(group, {}).get(tp)
        return None if committed is None else committed.offset

    def names(self) -> dict[str, bool]:
        self.fault("names")
        return {name: name in self.with_members for name in self.offsets}

    def committed(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        self.fault("committed")
        return {
            tp: offset
            for tp, offset in self.offsets.get(group, {}).items()
            if partitions is None or tp in partitions
        }

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> bool:
        self.fault("commit")
        if group in self.with_members | self.joins_unseen:
            return False
        self.offsets.setdefault(group, {}).update(offsets)
        return True

    def log_starts(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        return {tp: Offset(self.starts.get(tp, 0)) for tp in partitions}

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        return {topic: self.ids.get(topic, "") for topic in topics}


@dataclass
class FakeLog:
    """Partitions as lists of records. `reads` has the range of each read."""

    records: dict[TopicPartition, list[Record]] = field(default_factory=dict)
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    """Log end offsets of partitions in which markers follow the last record."""
    reads: list[tuple[int, int]] = field(default_factory=list)

    def append(self, tp: TopicPartition, key: bytes | None, value: bytes | None) -> None:
        rows = self.records.setdefault(tp, [])
        rows.append(Record(Offset(self._end(tp)), 1000 + len(rows), key, value))

    def _end(self, tp: TopicPartition) -> int:
        rows = self.records[tp]
        after = rows[-1].offset + 1 if rows else self.starts.get(tp, 0)
        return max(after, self.ends.get(tp, 0))

    def offsets(self, tp: TopicPartition) -> LogOffsets | None:
        if tp not in self.records:
            return None
        end = Offset(self._end(tp))
        return LogOffsets(Offset(self.starts.get(tp, 0)), end, end)

    def read(self, tp: TopicPartition, start: int, end: int) -> Iterator[Record]:
        self.reads.append((start, end))
        return iter([record for record in self.records[tp] if start <= record.offset < end])
