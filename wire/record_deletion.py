"""Delete records at the start of logs (KIP-107), on one broker, in one leader epoch.

DeleteRecords has no leader epoch. So ListOffsets, which has, goes to the same broker right before:
the broker refuses it unless it leads the partition in that epoch (KIP-320).
"""

from collections.abc import Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sidetier.segments.errors import KafkaApiError, UnsupportedVersionError
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.wire.cluster import Broker, Cluster
from sidetier.wire.log_offsets import AnsweredOffset
from sidetier.wire.protocol import ApiKey, api_error, missing_permission
from sidetier.wire.requests import LATEST

_CLIENT: Final = -1
_ANY_ERROR: Final = frozenset(ErrorCode)


def led_log_ends(
    cluster: Cluster,
    broker: BrokerId,
    epochs: Mapping[TopicPartition, LeaderEpoch],
) -> dict[TopicPartition, AnsweredOffset | KafkaApiError]:
    """Return the high watermark of each partition, or why the broker does not lead it in its epoch.

    One request, and one attempt.

    Raises:
        UnsupportedVersionError: The broker is older than Kafka 2.1.
        BrokerError: The broker does not respond.
    """
    topics = [
        {
            "name": topic,
            "partitions": [
                {"partition_index": number, "current_leader_epoch": epoch, "timestamp": LATEST}
                for number, epoch in numbers.items()
            ],
        }
        for topic, numbers in _by_topic(epochs).items()
    ]
    try:
        response = cluster.request_once(
            Broker(broker),
            ApiKey.LIST_OFFSETS,
            tolerate=_ANY_ERROR,
            replica_id=_CLIENT,
            isolation_level=0,
            topics=topics,
        )
    except ValueError as error:  # the broker's version of the request has no leader epoch
        raise UnsupportedVersionError(
            f"broker {broker} does not check leader epochs in ListOffsets: it is older than Kafka "
            f"2.1 ({error})"
        ) from error
    return {
        tp: AnsweredOffset(Offset(answer.offset), LeaderEpoch(getattr(answer, "leader_epoch", -1)))
        if answer.error_code is ErrorCode.none
        else _refusal(ApiKey.LIST_OFFSETS, broker, tp, answer.error_code)
        for tp, answer in _answers(response)
    }


def delete_records(
    cluster: Cluster, broker: BrokerId, ends: Mapping[TopicPartition, Offset], timeout: float
) -> dict[TopicPartition, Offset | KafkaApiError]:
    """Delete the records below each offset on the broker that leads the partitions.

    One request, and one attempt: between two attempts another broker could begin to lead.

    Args:
        cluster: The cluster.
        broker: The leader of all partitions.
        ends: The new log start offset of each partition.
        timeout: How long the broker waits for the followers, in seconds.

    Returns:
        The lowest log start offset of all replicas for each partition, or its error. After
        REQUEST_TIMED_OUT the leader has deleted the records, and a follower has not yet.

    Raises:
        BrokerError: The broker does not respond.
    """
    response = cluster.request_once(
        Broker(broker),
        ApiKey.DELETE_RECORDS,
        tolerate=_ANY_ERROR,
        timeout=round(timeout * 1000),
        topics=[
            {
                "name": topic,
                "partitions": [
                    {"partition_index": number, "offset": end} for number, end in numbers.items()
                ],
            }
            for topic, numbers in _by_topic(ends).items()
        ],
    )
    return {
        tp: Offset(answer.low_watermark)
        if answer.error_code is ErrorCode.none
        else _refusal(ApiKey.DELETE_RECORDS, broker, tp, answer.error_code)
        for tp, answer in _answers(response)
    }


def _by_topic(values: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    topics: dict[str, dict[int, int]] = {}
    for (topic, number), value in values.items():
        topics.setdefault(topic, {})[number] = value
    return topics


def _answers(response: Any) -> list[tuple[TopicPartition, Any]]:  # noqa: ANN401 - kio's
    return [
        (TopicPartition(topic.name, answer.partition_index), answer)
        for topic in response.topics
        for answer in topic.partitions
    ]


def _refusal(api: ApiKey, broker: BrokerId, tp: TopicPartition, code: ErrorCode) -> KafkaApiError:
    return api_error(
        f"broker {broker} refuses {api.title} for {tp}", code, missing_permission(api, code)
    )
