"""Requests that create, change and describe topics.

A broker answers CreateTopics and CreatePartitions before the other brokers know the new partitions.
So the functions here return only after each partition has a leader.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final
from uuid import uuid4

from kio.schema.errors import ErrorCode

from sidetier.segments.errors import KafkaApiError
from sidetier.segments.offsets import TopicPartition
from sidetier.wire.cluster import AnyBroker, Cluster, Controller
from sidetier.wire.protocol import ApiKey

_TOPIC: Final = 2
"""Resource type of DescribeConfigs and IncrementalAlterConfigs."""
_SET_ON_TOPIC: Final = 1
"""Configuration source of DescribeConfigs (KIP-226): the setting is set on the topic itself."""
_SET: Final = 0
"""Operation of IncrementalAlterConfigs (KIP-339)."""
_CREATE_TIMEOUT_MS: Final = 30_000
_LONGEST_NAME: Final = 249


def create_topic(
    cluster: Cluster, topic: str, partitions: int, replication: int, settings: Mapping[str, str]
) -> None:
    """Create a topic. It is not an error if another worker has just created it.

    Raises:
        BrokerError: The cluster refuses it.
    """
    _send_create_topics(cluster, [topic], partitions, replication, settings, validate_only=False)
    _wait_for_leaders(cluster, topic, partitions)


def check_new_topic(
    cluster: Cluster,
    topic: str,
    partitions: int,
    replication: int,
    settings: Mapping[str, str],
    *,
    is_replaced: bool,
) -> dict[str, str]:
    """Let the cluster check a topic without creating it. It is not an error if the topic exists.

    Args:
        cluster: The cluster to ask.
        topic: The topic.
        partitions: The number of partitions.
        replication: The replication factor; -1 for the cluster's default.
        settings: The settings of the topic.
        is_replaced: Whether an existing topic of this name will be deleted first. Brokers do not
            check settings for a name that exists. So they check them under another name, which
            begins with this one and a hyphen: a prefixed ACL may have to allow it.

    Returns:
        The effective settings that the topic would have. Empty if the topic exists, if the brokers
        are older than 2.4, or if they do not allow this client to describe its settings.

    Raises:
        BrokerError: The cluster would refuse to create the topic.
    """
    names = [topic]
    if is_replaced:
        suffix = f"-{uuid4().hex}"
        names.append(topic[: _LONGEST_NAME - len(suffix)] + suffix)
    response = _send_create_topics(
        cluster, names, partitions, replication, settings, validate_only=True
    )
    return {
        entry.name: entry.value
        for result in response.topics
        if result.name == names[-1]
        for entry in getattr(result, "configs", None) or ()
        if entry.value is not None
    }


def _send_create_topics(
    cluster: Cluster,
    topics: Collection[str],
    partitions: int,
    replication: int,
    settings: Mapping[str, str],
    *,
    validate_only: bool,
) -> Any:  # noqa: ANN401 - as in `Cluster.request`
    configs = [{"name": name, "value": value} for name, value in settings.items()]
    return cluster.retrying(
        lambda: cluster.request_once(
            Controller(),
            ApiKey.CREATE_TOPICS,
            # Also after a retry, if the answer to the first attempt was lost.
            tolerate=(ErrorCode.topic_already_exists,),
            topics=[
                {
                    "name": topic,
                    "num_partitions": partitions,
                    "replication_factor": replication,
                    "assignments": (),
                    "configs": configs,
                }
                for topic in topics
            ],
            timeout=_CREATE_TIMEOUT_MS,
            validate_only=validate_only,
        )
    )


def create_partitions(cluster: Cluster, topic: str, partitions: int) -> None:
    """Add partitions to a topic. It is not an error if another worker has just done so.

    Args:
        cluster: The cluster of the topic.
        topic: The topic.
        partitions: The new total number of partitions.

    Raises:
        BrokerError: The cluster refuses it.
    """
    try:
        cluster.retrying(
            lambda: cluster.request_once(
                Controller(),
                ApiKey.CREATE_PARTITIONS,
                topics=[{"name": topic, "count": partitions, "assignments": None}],
                timeout=_CREATE_TIMEOUT_MS,
                validate_only=False,
            )
        )
    except KafkaApiError as error:
        # Brokers also return this error if the topic already has that many partitions.
        if error.name != "INVALID_PARTITIONS":
            raise
        known = cluster.metadata([topic]).topics.get(topic)
        if known is None or len(known.partitions) < partitions:
            raise
    _wait_for_leaders(cluster, topic, partitions)


def _wait_for_leaders(cluster: Cluster, topic: str, partitions: int) -> None:
    created = [TopicPartition(topic, number) for number in range(partitions)]
    cluster.retrying(lambda: cluster.leaders(created))


def set_topic_settings(cluster: Cluster, topic: str, settings: Mapping[str, str]) -> None:
    """Set these settings on a topic; its other settings stay unchanged.

    Raises:
        BrokerError: The cluster refuses it.
    """
    cluster.request(
        Controller(),
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        resources=[
            {
                "resource_type": _TOPIC,
                "resource_name": topic,
                "configs": [
                    {"name": name, "config_operation": _SET, "value": value}
                    for name, value in settings.items()
                ],
            }
        ],
        validate_only=False,
    )


def topic_settings(
    cluster: Cluster, topics: Collection[str], *, only_set: bool
) -> dict[str, dict[str, str]]:
    """Return the settings of topics.

    Args:
        cluster: The cluster to ask.
        topics: The topic names.
        only_set: Return only settings that are set on the topic itself, not all effective ones.

    Raises:
        BrokerError: A broker refuses, or none answers.
    """
    if not topics:
        return {}
    response: Any = cluster.request(
        AnyBroker(),
        ApiKey.DESCRIBE_CONFIGS,
        resources=[
            {"resource_type": _TOPIC, "resource_name": name, "configuration_keys": None}
            for name in topics
        ],
    )
    return {
        result.resource_name: {
            entry.name: entry.value
            for entry in result.configs
            # Brokers send sensitive settings without a value.
            if entry.value is not None and (not only_set or entry.config_source == _SET_ON_TOPIC)
        }
        for result in response.results
    }
