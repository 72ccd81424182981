"""A topic as the brokers describe it."""

from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._topic import TopicDescription

_URL_SAFE: Final = str.maketrans("+/", "-_")


def described(client: AdminClient, topic: str, timeout: float) -> TopicDescription | None:
    """What the brokers say of a topic; None where they have none of this name.

    Raises:
        KafkaException: no answer within `timeout` seconds, or it is refused.
    """
    asked = client.describe_topics(TopicCollection([topic]), request_timeout=timeout)
    try:
        found: TopicDescription = asked[topic].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise
    return found


def kafka_text(uuid: str) -> str:
    """Where librdkafka prints an id with `+` and `/`, Kafka has `-` and `_`."""
    return uuid.rstrip("=").translate(_URL_SAFE)
