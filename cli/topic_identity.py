"""Which topic a name stands for now, as the brokers tell."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sidetier.segments.errors import LeadershipUnavailableError

if TYPE_CHECKING:
    from sidetier.config.model import Config

_TIMEOUT_SECONDS: Final = 15.0
_URL_SAFE: Final = str.maketrans("+/", "-_")


@dataclass(frozen=True, slots=True)
class TopicIdentity:
    """A topic's id as Kafka prints it, and its number of partitions; 0 where there is no such
    topic.
    """

    topic_id: str | None = None
    partitions: int = 0

    def has(self, partition: int) -> bool:
        """Whether the topic has this partition."""
        return partition < self.partitions


def ask_identity(config: "Config", topic: str) -> TopicIdentity:
    """Ask the configured brokers; an unknown topic is an answer.

    Raises:
        LeadershipUnavailableError: none answers, or it refuses.
    """
    from confluent_kafka import KafkaError, KafkaException, TopicCollection  # noqa: PLC0415

    from sidetier.leadership.admin import admin_client  # noqa: PLC0415

    servers = config.broker.bootstrap_servers or ""
    properties = {k: str(v) for k, v in config.broker.client_properties().items()}
    client = admin_client(servers, properties, {"log_level": 0})
    asked = client.describe_topics(TopicCollection([topic]), request_timeout=_TIMEOUT_SECONDS)
    try:
        described = asked[topic].result(_TIMEOUT_SECONDS)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return TopicIdentity()
        raise LeadershipUnavailableError(
            f"{servers}: topic {topic} cannot be described: {error.args[0].str()}"
        ) from error
    return TopicIdentity(kafka_text(str(described.topic_id)), len(described.partitions))


def kafka_text(uuid: str) -> str:
    """Where librdkafka prints an id with `+` and `/`, Kafka has `-` and `_`."""
    return uuid.rstrip("=").translate(_URL_SAFE)
