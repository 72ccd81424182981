"""Offsets and ids of topics, read from the cluster."""

from typing import Final

from confluent_kafka import KafkaException

from sidetier.config.model import BrokerConfig
from sidetier.leadership.cluster import (
    End,
    admin_client,
    all_offsets,
    as_texts,
    cluster_id_of,
    described,
    topic_id_of,
)
from sidetier.pipeline.export.tail.logs import BrokerLog, BrokerTopic
from sidetier.segments.errors import ConfigurationError, LeadershipUnavailableError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import TopicPartition

_TIMEOUT: Final = 10.0
"""Kafka's zero topic id, which means no id: brokers before 2.8, or ZooKeeper clusters before
an upgrade.
"""


def client_settings(broker: BrokerConfig) -> tuple[str, dict[str, str]]:
    """Return the bootstrap servers, and further librdkafka properties with secrets. Do not log
    them.

    Raises:
        ConfigurationError: no broker address is set, or a secret cannot be read.
    """
    properties = broker.client_properties()
    servers = properties.pop("bootstrap.servers", None)
    if servers is None:
        raise ConfigurationError(
            "--tail asks the cluster how far it goes: give --bootstrap HOST:PORT, or "
            "broker.bootstrap_servers"
        )
    return str(servers), as_texts(properties)


def broker_topic(broker: BrokerConfig, topic: str, isolation: IsolationLevel) -> BrokerTopic | None:
    """Return a topic as the cluster has it now; None if it has no topic of this name.

    Raises:
        ConfigurationError: see `client_settings`; or librdkafka refuses a property.
        LeadershipUnavailableError: the cluster does not answer.
    """
    servers, properties = client_settings(broker)
    client = admin_client(servers, properties)
    try:
        cluster_id = cluster_id_of(client, _TIMEOUT)
        description = described(client, topic, _TIMEOUT)
        if description is None:
            return None
        tps = [TopicPartition(topic, partition.id) for partition in description.partitions]
        # Read the log start last, so that records deleted in between do not count as available.
        ends = all_offsets(client, tps, End.LATEST, _TIMEOUT, isolation)
        committed = ends
        if isolation is IsolationLevel.READ_COMMITTED:
            committed = all_offsets(client, tps, End.LATEST, _TIMEOUT)
        starts = all_offsets(client, tps, End.START, _TIMEOUT)
    except KafkaException as error:
        raise LeadershipUnavailableError(
            f"{servers} returns no offsets of {topic}: {error}"
        ) from None
    logs = {
        tp.partition: BrokerLog(
            starts[tp].offset, ends[tp].offset, committed[tp].offset, committed[tp].epoch
        )
        for tp in tps
    }
    return BrokerTopic(topic_id_of(description.topic_id), logs, cluster_id)
