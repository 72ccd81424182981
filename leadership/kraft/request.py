"""The Metadata request to the sidecar's own broker, through librdkafka."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from confluent_kafka import KafkaException

from sidetier.leadership.admin import admin_client
from sidetier.segments.errors import LeadershipUnavailableError
from sidetier.segments.offsets import BrokerId, TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._metadata import ClusterMetadata

_OURS: Mapping[str, str | int | float | bool] = {
    "client.id": "sidetier-leadership",
    "reconnect.backoff.max.ms": 1000,  # a broker that is back is seen within a second
    "topic.metadata.refresh.interval.ms": -1,  # requests are made here, when they are due
    "socket.keepalive.enable": True,
}


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """What a broker said: the partitions led by one broker, and Kafka's id of the cluster."""

    leads: frozenset[TopicPartition]
    cluster_id: str | None


class MetadataRequest(Protocol):
    """Asks who leads what; one caller at a time."""

    def ask(self) -> MetadataAnswer:
        """Ask, and wait for the answer.

        Raises:
            LeadershipUnavailableError: no answer came in time.
        """
        ...

    def close(self) -> None:
        """Let connections go; may be called twice."""
        ...


class BrokerMetadataRequest:
    """`MetadataRequest` on confluent-kafka.

    The client begins with the configured broker. Should that one be down, librdkafka may ask
    another that it has heard of: committed metadata too, so the answer is as good. Topics that the
    principal may not describe are missing from the answer, and count as not led.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        broker_id: BrokerId,
        timeout: float,
        properties: Mapping[str, str],
    ) -> None:
        """Does not connect yet.

        Raises:
            ConfigurationError: librdkafka refuses a property.
        """
        self._client: AdminClient | None = admin_client(bootstrap_servers, properties, _OURS)
        self._broker_id = broker_id
        self._timeout = timeout

    def ask(self) -> MetadataAnswer:
        """Ask, and wait for the answer."""
        if self._client is None:
            raise LeadershipUnavailableError("the Metadata request was closed")
        try:
            metadata = self._client.list_topics(timeout=self._timeout)
        except KafkaException as error:
            raise LeadershipUnavailableError(f"no answer to a Metadata request: {error}") from error
        finally:
            self._client.poll(0)  # hands librdkafka's log lines to the logger
        return MetadataAnswer(_led_by(self._broker_id, metadata), metadata.cluster_id)

    def close(self) -> None:
        """Let connections go."""
        self._client = None


def _led_by(broker: BrokerId, metadata: "ClusterMetadata") -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(name, number)
        for name, topic in metadata.topics.items()
        for number, partition in topic.partitions.items()
        if partition.leader == broker
    )
