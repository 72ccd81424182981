"""Metadata request to the sidecar's own broker, through librdkafka."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from confluent_kafka import KafkaException

from sidetier.leadership.cluster import admin_client
from sidetier.segments.errors import LeadershipUnavailableError
from sidetier.segments.offsets import BrokerId, TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata

_OURS: Mapping[str, str | int | float | bool] = {
    "client.id": "sidetier-leadership",
    "reconnect.backoff.max.ms": 1000,  # notice a restarted broker within a second
    "topic.metadata.refresh.interval.ms": -1,  # the schedule here decides when to request
    "socket.keepalive.enable": True,
}


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """Content of a response: the partitions that our broker leads, and Kafka's cluster id."""

    leads: frozenset[TopicPartition]
    cluster_id: str | None


class MetadataRequest(Protocol):
    """Requests the leaders of all partitions. For one caller at a time."""

    def ask(self) -> MetadataAnswer:
        """Send the request and wait for the response.

        Raises:
            LeadershipUnavailableError: No response arrived in time.
        """
        ...

    def close(self) -> None:
        """Close the connections. May be called twice."""
        ...


class BrokerMetadataRequest:
    """`MetadataRequest` on confluent-kafka.

    The client begins with the configured broker. If that broker is down, librdkafka may send the
    request to another broker that it knows: its response also contains committed metadata, so it
    is equally valid. Topics without DESCRIBE permission for the principal are missing from the
    response and count as not led.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        broker_id: BrokerId,
        timeout: float,
        properties: Mapping[str, str],
    ) -> None:
        """Create the client; it does not connect yet.

        Raises:
            ConfigurationError: librdkafka rejects a property.
        """
        self._client: AdminClient | None = admin_client(bootstrap_servers, properties, _OURS)
        self._broker_id = broker_id
        self._timeout = timeout

    def ask(self) -> MetadataAnswer:
        """Send the request and wait for the response."""
        if self._client is None:
            raise LeadershipUnavailableError("the Metadata request was closed")
        try:
            metadata = self._client.list_topics(timeout=self._timeout)
        except KafkaException as error:
            raise LeadershipUnavailableError(f"no answer to a Metadata request: {error}") from error
        finally:
            self._client.poll(0)  # passes librdkafka's log lines to the logger
        return MetadataAnswer(_led_by(self._broker_id, metadata), metadata.cluster_id)

    def close(self) -> None:
        """Close the connections."""
        self._client = None


def _led_by(broker: BrokerId, metadata: "ClusterMetadata") -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(name, number)
        for name, topic in metadata.topics.items()
        for number, partition in topic.partitions.items()
        if partition.leader == broker
    )
