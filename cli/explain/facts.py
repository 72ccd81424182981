"""What is known of one record, source by source; None where a source was not there to be asked."""

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
    """A sidecar's answer about one partition, as `/api/partitions` has it: `row` is None where it
    neither leads the partition nor fears for its copy.
    """

    broker_id: int | None = None
    row: Fields | None = None
    pins: tuple[Fields, ...] = ()

    @property
    def segments(self) -> tuple[Fields, ...]:
        """The oldest closed segments that are not stored."""
        return () if self.row is None else tuple(self.row.get("segments", ()))

    def segment_of(self, offset: int) -> Fields | None:
        """The unstored segment that holds the offset, if it is among those that are told."""
        return next((one for one in self.segments if _holds(one, "base_offset", offset)), None)

    def pin_of(self, offset: int) -> Fields | None:
        """What holds the offset open."""
        return next((one for one in self.pins if _holds(one, "start_offset", offset)), None)


def _holds(one: Fields, start: str, offset: int) -> bool:
    end = one.get("next_offset" if start == "base_offset" else "end_offset")
    return bool(one[start] <= offset and (end is None or offset < end))


@dataclass(frozen=True, slots=True)
class RollRules:
    """When the broker closes a segment of the topic: at so many bytes, after so many ms."""

    segment_bytes: int | None = None
    segment_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """All that could be learned, now (ms since 1970), of one offset of one partition.

    `broker_id` is this host's broker; `known_to_cluster` is False where the cluster has answered,
    and has no such partition. `excluded` says why the topic is not archived at all.
    `problems` tells, by source, what could not be asked and why.
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
        """This broker leads the partition, as far as is known."""
        if self.replicas is None:
            row = self.sidecar.row if self.sidecar is not None else None
            return row is not None and row.get("role", "leader") == "leader"
        return self.replicas.leader is not None and self.replicas.leader == self.broker_id

    @property
    def archived_to(self) -> Offset | None:
        """The archive's next offset."""
        return None if self.archive is None else self.archive.watermark.next_offset
