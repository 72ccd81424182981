"""Where logs begin and end: ListOffsets (KIP-396), asked of the partitions' leaders in one call."""

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
        KafkaError.KAFKA_STORAGE_ERROR,  # its log dir is offline, and another replica leads
    }
)


class End(Enum):
    """Of a log: its start offset, or one past the last offset that may be read."""

    START = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class LogOffset:
    """An end of a log, and the leader epoch that goes with it: with the latest offset the newest of
    the leader's log, whatever the isolation level; None where the broker tells none.
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
    """Of each partition its offset, or why its leader gives none.

    The latest offset is the last stable offset with read committed, the high watermark otherwise.

    Raises:
        KafkaException: nothing can be asked.
    """
    found = _ask(client, tps, end, timeout, isolation)
    stale = [tp for tp, told in found.items() if _knows_an_old_leader(told)]
    if stale:
        # librdkafka asks the leader that its metadata names, in that leader's epoch, and does not
        # fetch metadata anew when a broker refuses: for minutes each answer would be the same.
        with suppress(KafkaException):
            client.list_topics(timeout=timeout)
            found |= _ask(client, stale, end, timeout, isolation)
    return found


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
    found: dict[TopicPartition, LogOffset | KafkaException] = {}
    for asked, future in futures.items():
        tp = TopicPartition(asked.topic, asked.partition)
        try:
            told = future.result()
        except KafkaException as error:
            found[tp] = error
            continue
        epoch = told.leader_epoch
        found[tp] = LogOffset(Offset(told.offset), None if epoch is None else LeaderEpoch(epoch))
    return found


def all_offsets(
    client: AdminClient,
    tps: Iterable[TopicPartition],
    end: End,
    timeout: float,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[TopicPartition, LogOffset]:
    """The same; raises KafkaException where one of them is not given."""
    found = {}
    for tp, told in ask_offsets(client, tps, end, timeout, isolation).items():
        if isinstance(told, KafkaException):
            raise told
        found[tp] = told
    return found
