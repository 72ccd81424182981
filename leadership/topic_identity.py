"""Which topic and which cluster brokers answer about.

A name identifies nothing: another cluster may have a topic of the same name, and a topic may be
deleted and created again. So the brokers whose answer counts are asked for the ids, too.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sidetier.leadership.kraft.image import print_uuid
from sidetier.segments.errors import LeadershipError

if TYPE_CHECKING:
    from sidetier.wire.cluster import Cluster, ClusterMetadata

_TIMEOUT_SECONDS: Final = 15.0
_UNKNOWN_TOPIC: Final = 3


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """What brokers report about a topic and their cluster, in one answer.

    Attributes:
        cluster_id: Kafka's id of the cluster; None if the brokers have none.
        topic_id: Id of the topic, as Kafka prints it; None if the topic is absent, or if the
            brokers give no topic ids (before Kafka 2.8).
        partitions: Number of its partitions; 0 if the topic is absent.
    """

    cluster_id: str | None = None
    topic_id: str | None = None
    partitions: int = 0

    def has(self, partition: int) -> bool:
        """Return whether the topic has this partition."""
        return partition < self.partitions


def ask_identity(
    cluster: "Cluster", topic: str, *, timeout: float = _TIMEOUT_SECONDS
) -> TopicIdentity:
    """Ask the brokers about a topic.

    Raises:
        BrokerError: No broker answers, or it refuses. A missing topic is not an error.
    """
    metadata = cluster.metadata((topic,), timeout=timeout)
    refusal = metadata.refused.get(topic)
    if refusal is not None and refusal.code != _UNKNOWN_TOPIC:
        raise refusal
    return identity_in(metadata, topic)


def other_cluster(found: str | None, expected: str | None) -> LeadershipError | None:
    """Return the error if brokers do not belong to the cluster that the log dirs belong to; None if
    they do. Another cluster may have a broker of the same id that leads a topic of the same name.
    """
    if found is not None and found == expected:
        return None
    return LeadershipError(
        f"broker.bootstrap_servers belong to Kafka cluster {found}, and the log dirs to {expected}"
    )


def identity_in(metadata: "ClusterMetadata", topic: str) -> TopicIdentity:
    """Return what brokers have reported about a topic."""
    described = metadata.topics.get(topic)
    if described is None:
        return TopicIdentity(metadata.cluster_id)
    topic_id = described.topic_id
    # Zeros are Kafka's value for "none".
    text = None if topic_id is None or not topic_id.int else print_uuid(topic_id.bytes)
    return TopicIdentity(metadata.cluster_id, text, len(described.partitions))
