"""What brokers say about a cluster: replicas, start and end of each log, and configuration.

Few requests: one for metadata, and one call each for log start offsets, high watermarks and
configuration. librdkafka splits a call by leader.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, ResourceType

from sidetier.config.model import Config
from sidetier.leadership.cluster import End, admin_client, as_texts, ask_offsets, topic_id_of
from sidetier.segments.errors import LeadershipUnavailableError
from sidetier.segments.offsets import Offset, TopicPartition

_TIMEOUT_SECONDS: Final = 10.0
_NO_BROKER: Final = -1

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

    def log_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, LogOffsets]:
        """Return an entry for each partition; `problem` is why its leader does not answer."""
        ...

    def topic_settings(self, topics: Iterable[str]) -> Mapping[str, Settings]:
        """Return the configuration of each topic that the brokers report."""
        ...

    def broker_settings(self, broker_id: int) -> Settings:
        """Return the configuration of one broker, requested from that broker."""
        ...

    def allowed_operations(self, topics: Iterable[str]) -> Mapping[str, frozenset[str]]:
        """Return what the principal may do with each topic, such as `DELETE`.

        Topics for which the brokers do not report it are left out.
        """
        ...

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        """Return the id of each topic, as Kafka prints it. Topics without one are left out."""
        ...


class KafkaCluster:
    """`Cluster` that sends its requests to the brokers at one address."""

    def __init__(
        self, servers: str, properties: Mapping[str, str], timeout: float = _TIMEOUT_SECONDS
    ) -> None:
        """Create a client, which connects in the background.

        Raises:
            ConfigurationError: librdkafka refuses a property.
        """
        self._servers = servers
        self._timeout = timeout
        self._client = admin_client(servers, properties)

    def map(self) -> ClusterMap:
        """Request all topics: a request for one topic could create it."""
        try:
            metadata = self._client.list_topics(timeout=self._timeout)
        except KafkaException as error:
            raise self._unavailable("metadata", error) from error
        return ClusterMap(
            metadata.cluster_id,
            metadata.orig_broker_id if metadata.orig_broker_id >= 0 else None,
            {broker: f"{entry.host}:{entry.port}" for broker, entry in metadata.brokers.items()},
            {
                TopicPartition(topic, number): _replica_set(entry)
                for topic, described in metadata.topics.items()
                for number, entry in described.partitions.items()
            },
        )

    def log_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, LogOffsets]:
        """Send two ListOffsets rounds: the log starts, then the log ends."""
        wanted = list(partitions)
        starts, ends = (self._offsets(wanted, end) for end in (End.START, End.LATEST))
        return {
            tp: LogOffsets(starts[tp][0], ends[tp][0], starts[tp][1] or ends[tp][1])
            for tp in wanted
        }

    def _offsets(
        self, wanted: list[TopicPartition], end: End
    ) -> dict[TopicPartition, tuple[Offset | None, str | None]]:
        if not wanted:
            return {}
        try:
            answers = ask_offsets(self._client, wanted, end, self._timeout)
        except KafkaException as error:
            raise self._unavailable("offsets", error) from error
        return {
            tp: (None, _text_of(answer))
            if isinstance(answer, KafkaException)
            else (answer.offset, None)
            for tp, answer in answers.items()
        }

    def topic_settings(self, topics: Iterable[str]) -> Mapping[str, Settings]:
        """Leave out topics whose settings cannot be read."""
        settings, _ = self._settings(ResourceType.TOPIC, topics)
        return settings

    def broker_settings(self, broker_id: int) -> Settings:
        """Raise LeadershipUnavailableError if that broker does not answer."""
        settings_by_name, problem = self._settings(ResourceType.BROKER, [str(broker_id)])
        if str(broker_id) not in settings_by_name:
            raise self._unavailable(f"settings of broker {broker_id}", problem)
        return settings_by_name[str(broker_id)]

    def allowed_operations(self, topics: Iterable[str]) -> Mapping[str, frozenset[str]]:
        """Describe the topics with their authorized operations, in one call."""
        described = self._described(topics, "permissions", include_authorized_operations=True)
        return {
            topic: frozenset(operation.name for operation in found.authorized_operations)
            for topic, found in described.items()
            if found.authorized_operations is not None
        }

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        """Leave out topics that cannot be described."""
        described = self._described(topics, "topic ids")
        ids = {topic: topic_id_of(found.topic_id) for topic, found in described.items()}
        return {topic: topic_id for topic, topic_id in ids.items() if topic_id is not None}

    def _described(self, topics: Iterable[str], what: str, **options: bool) -> dict[str, Any]:
        """Return librdkafka's descriptions of the topics that exist."""
        names = list(topics)
        if not names:
            return {}
        try:
            futures = self._client.describe_topics(
                TopicCollection(names), request_timeout=self._timeout, **options
            )
        except KafkaException as error:
            raise self._unavailable(what, error) from error
        outcomes = {topic: _outcome(future)[0] for topic, future in futures.items()}
        return {topic: found for topic, found in outcomes.items() if found is not None}

    def _settings(
        self, kind: ResourceType, names: Iterable[str]
    ) -> tuple[dict[str, Settings], str | None]:
        resources = [ConfigResource(kind, name) for name in names]
        if not resources:
            return {}, None
        try:
            futures = self._client.describe_configs(resources, request_timeout=self._timeout)
        except KafkaException as error:
            raise self._unavailable("settings", error) from error
        settings_by_name: dict[str, Settings] = {}
        problem = None
        for resource, future in futures.items():
            entries, failed = _outcome(future)
            problem = problem or failed
            if entries is not None:
                settings_by_name[resource.name] = {
                    name: entry.value for name, entry in entries.items()
                }
        return settings_by_name, problem

    def _unavailable(self, what: str, why: object) -> LeadershipUnavailableError:
        reason = self._client.reason(why) if isinstance(why, KafkaException) else why
        return LeadershipUnavailableError(f"{self._servers} returns no {what}: {reason}")


def _replica_set(partition: Any) -> ReplicaSet:  # noqa: ANN401 -- librdkafka's class has no public name
    leader = None if partition.leader == _NO_BROKER else int(partition.leader)
    return ReplicaSet(leader, tuple(partition.replicas), tuple(partition.isrs))


def _outcome(future: Future[Any]) -> tuple[Any, str | None]:
    """Return the answer, or the reason for none. librdkafka limits the wait."""
    try:
        return future.result(), None
    except KafkaException as error:
        return None, _text_of(error)


def _text_of(error: KafkaException) -> str:
    """Return the error's message, without its code."""
    inner = error.args[0] if error.args else None
    return str(inner.str() if isinstance(inner, KafkaError) else error)


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
    return KafkaCluster(str(servers), as_texts(properties))


def number(settings: Settings, name: str) -> int | None:
    """Return a configuration entry as an integer; None if it is absent or not an integer."""
    text = settings.get(name)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
