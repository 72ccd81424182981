"""Facts from the brokers about a cluster: replicas, start and end of each log, and configuration.

Few requests: one for metadata, and one call each for log start offsets, high watermarks and
configuration.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sidetier.config.model import Config
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import Offset, TopicPartition

Settings = Mapping[str, str | None]
"""Configuration of a broker or topic, by Kafka's names. The value of a sensitive entry is None."""


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """Replicas of a partition, as broker ids; `leader` is None if the partition has no leader."""

    leader: int | None
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """Answer to one Metadata request: live brokers as `host:port` by id, and every partition."""

    cluster_id: str | None = None
    answered_by: int | None = None
    brokers: Mapping[int, str] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, ReplicaSet] = field(default_factory=dict)

    def with_replica_on(self, broker_id: int) -> list[TopicPartition]:
        """Return the partitions with a replica on this broker, sorted."""
        return sorted(
            tp for tp, replica_set in self.partitions.items() if broker_id in replica_set.replicas
        )


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """Log start offset and high watermark of a leader; None if the leader does not answer."""

    start: Offset | None = None
    high_watermark: Offset | None = None
    problem: str | None = None


class Cluster(Protocol):
    """Requests to the brokers. Methods raise LeadershipUnavailableError if no broker answers."""

    def map(self) -> ClusterMap:
        """Return the brokers and partitions."""
        ...

    def bounds(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogOffsets]:
        """Return an entry for each partition; `problem` says why its leader does not answer."""
        ...

    def topic_settings(self, topics: Iterable[str]) -> Mapping[str, Settings]:
        """Return the configuration of each topic that the brokers report."""
        ...

    def broker_settings(self, broker_id: int) -> Settings:
        """Return the configuration of one broker, requested from that broker."""
        ...


def open_cluster(config: Config, bootstrap_servers: str | None = None) -> Cluster | None:
    """Open the cluster at these servers, or else the configured one; None without either.

    Raises:
        ConfigurationError: librdkafka refuses a property, or a secret cannot be read.
    """
    properties = config.broker.client_properties()
    configured = properties.pop("bootstrap.servers", None)
    servers = bootstrap_servers or configured
    if servers is None:
        return None
    from sidetier.cli.inspect.kafka_cluster import KafkaCluster  # noqa: PLC0415 -- load librdkafka only if a cluster is configured
    from sidetier.leadership.cluster import as_texts  # noqa: PLC0415 -- as above

    return KafkaCluster(str(servers), as_texts(properties))


def need_cluster(config: Config, bootstrap_servers: str | None = None) -> Cluster:
    """Open the cluster like `open_cluster`.

    Raises:
        ConfigurationError: No servers are configured or given, or as in `open_cluster`.
    """
    cluster = open_cluster(config, bootstrap_servers)
    if cluster is None:
        raise ConfigurationError(
            "broker.bootstrap_servers is not set: give the cluster's address by --bootstrap-server"
        )
    return cluster


def number(settings: Settings, name: str) -> int | None:
    """Return a configuration entry as an integer; None if it is absent or not an integer."""
    text = settings.get(name)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
