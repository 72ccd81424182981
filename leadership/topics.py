"""Description of a topic by the brokers."""

from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._topic import TopicDescription

_URL_SAFE: Final = str.maketrans("+/", "-_")


def described(client: AdminClient, topic: str, timeout: float) -> TopicDescription | None:
    """Return the brokers' description of a topic; None if it does not exist.

    Raises:
        KafkaException: No response within `timeout` seconds, or the request is refused.
    """
    futures = client.describe_topics(TopicCollection([topic]), request_timeout=timeout)
    try:
        description: TopicDescription = futures[topic].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise
    return description


def kafka_text(uuid: str) -> str:
    """Convert a topic id to Kafka's form, with `-` and `_` where librdkafka has `+` and `/`."""
    return uuid.rstrip("=").translate(_URL_SAFE)
