"""Current topic id of a topic name, from the brokers."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sidetier.segments.errors import LeadershipUnavailableError

if TYPE_CHECKING:
    from sidetier.config.model import Config

_TIMEOUT_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """A topic's id as Kafka prints it, and its number of partitions; 0 if the topic is absent."""

    topic_id: str | None = None
    partitions: int = 0

    def has(self, partition: int) -> bool:
        """Return whether the topic has this partition."""
        return partition < self.partitions


def ask_identity(config: "Config", topic: str) -> TopicIdentity:
    """Ask the configured brokers. For an unknown topic, return an identity without an id.

    Raises:
        LeadershipUnavailableError: No broker answers, or it refuses.
    """
    from confluent_kafka import KafkaException  # noqa: PLC0415

    from sidetier.leadership.admin import admin_client, as_texts  # noqa: PLC0415
    from sidetier.leadership.topics import described, kafka_text  # noqa: PLC0415

    servers = config.broker.bootstrap_servers or ""
    properties = as_texts(config.broker.client_properties())
    client = admin_client(servers, properties, {"log_level": 0})
    try:
        description = described(client, topic, _TIMEOUT_SECONDS)
    except KafkaException as error:
        raise LeadershipUnavailableError(
            f"{servers}: topic {topic} cannot be described: {error.args[0].str()}"
        ) from error
    if description is None:
        return TopicIdentity()
    return TopicIdentity(kafka_text(str(description.topic_id)), len(description.partitions))
