"""A cluster for the CLI commands that returns what a test sets."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sidetier.leadership.cluster_map import ClusterMap, LogOffsets, ReplicaSet, Settings
from sidetier.segments.errors import LeadershipUnavailableError
from sidetier.segments.offsets import Offset, TopicPartition
from tests.harness.log_dir import CLUSTER_ID


@dataclass
class FakeCluster:
    """A Cluster. `asked` counts the calls; `away` makes every call fail."""

    brokers: Mapping[int, str] = field(default_factory=lambda: {1: "one:9092", 2: "two:9092"})
    partitions: dict[TopicPartition, ReplicaSet] = field(default_factory=dict)
    known_offsets: dict[TopicPartition, LogOffsets] = field(default_factory=dict)
    settings: dict[str, Settings] = field(default_factory=dict)
    allowed: dict[str, frozenset[str]] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    away: bool = False
    cluster_id: str = CLUSTER_ID
    asked: list[str] = field(default_factory=list)

    def add(
        self, tp: TopicPartition, *replicas: int, start: int = 0, high_watermark: int = 0
    ) -> None:
        """Add a partition with these replicas, all in sync; the first one leads."""
        self.partitions[tp] = ReplicaSet(replicas[0], replicas, replicas)
        self.known_offsets[tp] = LogOffsets(Offset(start), Offset(high_watermark))

    def map(self) -> ClusterMap:
        self._ask("map")
        return ClusterMap(self.cluster_id, 1, self.brokers, dict(self.partitions))

    def log_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, LogOffsets]:
        self._ask("log_offsets")
        return {tp: self.known_offsets[tp] for tp in partitions}

    def topic_settings(self, topics: Iterable[str]) -> Mapping[str, Settings]:
        self._ask("topic_settings")
        return {topic: self.settings[topic] for topic in topics if topic in self.settings}

    def broker_settings(self, broker_id: int) -> Settings:
        self._ask("broker_settings")
        return {"log.dirs": "", "broker.id": str(broker_id)}

    def allowed_operations(self, topics: Iterable[str]) -> Mapping[str, frozenset[str]]:
        self._ask("allowed_operations")
        return {topic: self.allowed[topic] for topic in topics if topic in self.allowed}

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        self._ask("topic_ids")
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.away:
            raise LeadershipUnavailableError("one:9092 returns no metadata: no answer")
