"""Facts about one record, by source; None if a source was not available."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sidetier.cli.archive_facts import ArchivedOffset
from sidetier.cli.cluster_facts import LogOffsets, ReplicaSet
from sidetier.cli.local_facts import LocalLog
from sidetier.segments.offsets import Offset, TopicPartition

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SidecarView:
    """A sidecar's answer about one partition, from `/api/partitions`.

    Attributes:
        row: None if the broker does not lead the partition, and none of its segments is at risk.
        pins: Open files of the partition.
    """

    broker_id: int | None = None
    row: Fields | None = None
    pins: tuple[Fields, ...] = ()

    @property
    def segments(self) -> tuple[Fields, ...]:
        """Oldest closed segments that are not stored."""
        return () if self.row is None else tuple(self.row.get("segments", ()))

    def segment_of(self, offset: int) -> Fields | None:
        """Return the unstored segment that holds the offset; None if the answer does not
        list it.
        """
        return next(
            (segment for segment in self.segments if _holds(segment, "base_offset", offset)), None
        )

    def pin_of(self, offset: int) -> Fields | None:
        """Return the pin that holds the offset; None without one."""
        return next((pin for pin in self.pins if _holds(pin, "start_offset", offset)), None)


def _holds(one: Fields, start: str, offset: int) -> bool:
    end = one.get("next_offset" if start == "base_offset" else "end_offset")
    return bool(one[start] <= offset and (end is None or offset < end))


@dataclass(frozen=True, slots=True)
class RollRules:
    """Limits at which the broker closes a segment of the topic, in bytes and in ms."""

    segment_bytes: int | None = None
    segment_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything known about one offset of one partition at `now_ms` (ms since 1970).

    Attributes:
        broker_id: This host's broker.
        excluded: Why the topic is not archived at all.
        known_to_cluster: False if the cluster has answered and has no such partition.
        problems: By source, why it could not be asked.
    """

    topic_partition: TopicPartition
    offset: Offset
    now_ms: int
    broker_id: int | None = None
    excluded: str | None = None
    local: LocalLog | None = None
    sidecar: SidecarView | None = None
    archive: ArchivedOffset | None = None
    replicas: ReplicaSet | None = None
    known_to_cluster: bool | None = None
    bounds: LogOffsets = field(default_factory=LogOffsets)
    roll: RollRules = field(default_factory=RollRules)
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def leads_here(self) -> bool:
        """Whether this host's broker leads the partition, as far as is known."""
        if self.replicas is None:
            row = self.sidecar.row if self.sidecar is not None else None
            return row is not None and row.get("role", "leader") == "leader"
        return self.replicas.leader is not None and self.replicas.leader == self.broker_id

    @property
    def archived_to(self) -> Offset | None:
        """Archive end offset."""
        return None if self.archive is None else self.archive.watermark.next_offset
