"""What the brokers tell of a cluster: who holds what, where each log begins and ends, settings.

Few requests: one for metadata, and one call each for log starts, high watermarks and settings.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sidetier.config.model import Config
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import Offset, TopicPartition

Settings = Mapping[str, str | None]
"""A broker's or a topic's settings, by their names in Kafka; None where it keeps one to itself."""


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """Who holds a partition; `leader` is None where nobody leads."""

    leader: int | None
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """One answer to a Metadata request: the brokers that are up, by id, and every partition."""

    cluster_id: str | None = None
    answered_by: int | None = None
    brokers: Mapping[int, str] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, ReplicaSet] = field(default_factory=dict)

    def with_replica_on(self, broker_id: int) -> list[TopicPartition]:
        """The partitions that this broker holds, sorted."""
        return sorted(tp for tp, held in self.partitions.items() if broker_id in held.replicas)


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """Where the leader's log begins, and its high watermark; None where nobody has answered."""

    start: Offset | None = None
    high_watermark: Offset | None = None
    problem: str | None = None


class Cluster(Protocol):
    """Asks the brokers; every method raises LeadershipUnavailableError when none answers."""

    def map(self) -> ClusterMap:
        """Brokers and partitions."""
        ...

    def bounds(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogOffsets]:
        """An entry for each partition; `problem` says why its leader has not answered."""
        ...

    def topic_settings(self, topics: Iterable[str]) -> Mapping[str, Settings]:
        """The settings of each topic; those that are not told are left out."""
        ...

    def broker_settings(self, broker_id: int) -> Settings:
        """The settings of one broker, asked of that broker."""
        ...


def open_cluster(config: Config, bootstrap_servers: str | None = None) -> Cluster | None:
    """The configured cluster, or the one at these servers; None where none is configured.

    Raises:
        ConfigurationError: librdkafka refuses a property, or a secret cannot be read.
    """
    properties = config.broker.client_properties()
    configured = properties.pop("bootstrap.servers", None)
    servers = bootstrap_servers or configured
    if servers is None:
        return None
    from sidetier.cli.kafka_cluster import KafkaCluster  # noqa: PLC0415 -- librdkafka, if needed
    from sidetier.leadership.admin import as_texts  # noqa: PLC0415 -- the same

    return KafkaCluster(str(servers), as_texts(properties))


def need_cluster(config: Config, bootstrap_servers: str | None = None) -> Cluster:
    """As `open_cluster`; raises ConfigurationError where there is nobody to ask."""
    cluster = open_cluster(config, bootstrap_servers)
    if cluster is None:
        raise ConfigurationError(
            "broker.bootstrap_servers is not set: give the cluster's address by --bootstrap-server"
        )
    return cluster


def number(settings: Settings, name: str) -> int | None:
    """A setting that is a whole number; None where it is not told."""
    text = settings.get(name)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
