"""Start and end offsets of logs: ListOffsets (KIP-396) to the partitions' leaders in one call."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final

from confluent_kafka import IsolationLevel as KafkaIsolation
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import LeaderEpoch, Offset, TopicPartition

_LEVELS: Final = {
    IsolationLevel.READ_COMMITTED: KafkaIsolation.READ_COMMITTED,
    IsolationLevel.READ_UNCOMMITTED: KafkaIsolation.READ_UNCOMMITTED,
}
_OLD_LEADER: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,  # the leader's log dir went offline; another replica leads
    }
)


class End(Enum):
    """Position in a log: its start offset, or the offset after the last readable record."""

    START = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class LogOffset:
    """Offset of a log's start or end.

    Attributes:
        offset: The offset.
        epoch: Leader epoch that the broker returned with it: for the latest offset, the newest
            epoch of the leader's log, whatever the isolation level; None if the broker returned
            none.
    """

    offset: Offset
    epoch: LeaderEpoch | None = None


def ask_offsets(
    client: AdminClient,
    tps: Iterable[TopicPartition],
    end: End,
    timeout: float,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, LogOffset | KafkaException]:
    """Return the offset of each partition, or the error of its leader.

    The latest offset is the last stable offset with read_committed, the high watermark otherwise.

    Raises:
        KafkaException: No request could be sent.
    """
    offsets = _ask(client, tps, end, timeout, isolation)
    stale = [tp for tp, offset in offsets.items() if _knows_an_old_leader(offset)]
    if stale:
        # librdkafka sends the request to the leader and epoch of its cached metadata, and does not
        # refresh the metadata after a refusal: the same error would be returned for minutes.
        with suppress(KafkaException):
            client.list_topics(timeout=timeout)
            offsets |= _ask(client, stale, end, timeout, isolation)
    return offsets


def _knows_an_old_leader(told: LogOffset | KafkaException) -> bool:
    return isinstance(told, KafkaException) and told.args[0].code() in _OLD_LEADER


def _ask(
    client: AdminClient,
    tps: Iterable[TopicPartition],
    end: End,
    timeout: float,
    isolation: IsolationLevel,
) -> dict[TopicPartition, LogOffset | KafkaException]:
    futures = client.list_offsets(
        {KafkaPartition(tp.topic, tp.partition): end.value for tp in tps},
        isolation_level=_LEVELS[isolation],
        request_timeout=timeout,
    )
    offsets: dict[TopicPartition, LogOffset | KafkaException] = {}
    for partition, future in futures.items():
        tp = TopicPartition(partition.topic, partition.partition)
        try:
            result = future.result()
        except KafkaException as error:
            offsets[tp] = error
            continue
        epoch = result.leader_epoch
        offsets[tp] = LogOffset(
            Offset(result.offset), None if epoch is None else LeaderEpoch(epoch)
        )
    return offsets


def all_offsets(
    client: AdminClient,
    tps: Iterable[TopicPartition],
    end: End,
    timeout: float,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, LogOffset]:
    """Return the same as `ask_offsets`; raise the KafkaException of a failed partition."""
    offsets = {}
    for tp, offset in ask_offsets(client, tps, end, timeout, isolation).items():
        if isinstance(offset, KafkaException):
            raise offset
        offsets[tp] = offset
    return offsets
