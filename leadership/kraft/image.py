"""The leadership state that the metadata log describes. No I/O."""

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import NamedTuple

from sidetier.leadership.kraft.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from sidetier.segments.offsets import BrokerId, LeaderEpoch, TopicPartition


class _Lead(NamedTuple):
    leader: int
    epoch: int


_UNKNOWN = _Lead(-1, -1)


class MetadataImage:
    """Topics by id, with leader and leader epoch of each partition.

    Records inside a transaction wait until it ends, and are dropped if it is aborted.
    """

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}
        self._partitions: dict[bytes, dict[int, _Lead]] = {}
        self._transaction: list[MetadataRecord] | None = None

    def apply(self, record: MetadataRecord) -> bool:
        """Apply one record; return True if the state may have changed."""
        match record:
            case BeginTransactionRecord():
                self._transaction = []
            case EndTransactionRecord():
                return self._end_transaction()
            case AbortTransactionRecord():
                self._transaction = None
            case _ if self._transaction is not None:
                self._transaction.append(record)
            case _:
                self._apply_now(record)
                return True
        return False

    def _end_transaction(self) -> bool:
        held, self._transaction = self._transaction or [], None
        for record in held:
            self._apply_now(record)
        return bool(held)

    def _apply_now(self, record: MetadataRecord) -> None:
        match record:
            case TopicRecord(name, topic_id):
                self._names[topic_id] = name
                self._partitions.setdefault(topic_id, {})
            case PartitionRecord(topic_id, partition, leader, epoch):
                self._partitions.setdefault(topic_id, {})[partition] = _Lead(leader, epoch)
            case PartitionChangeRecord(topic_id, partition, leader) if leader is not None:
                partitions = self._partitions.setdefault(topic_id, {})
                before = partitions.get(partition, _UNKNOWN)
                partitions[partition] = _Lead(leader, before.epoch + 1)
            case RemoveTopicRecord(topic_id):
                self._names.pop(topic_id, None)
                self._partitions.pop(topic_id, None)
            case _:
                pass

    def leads(self, broker: BrokerId) -> Mapping[TopicPartition, LeaderEpoch]:
        """Return the partitions that the broker leads, with their leader epochs."""
        return {
            TopicPartition(name, partition): LeaderEpoch(lead.epoch)
            for topic_id, name in self._names.items()
            for partition, lead in self._partitions[topic_id].items()
            if lead.leader == broker
        }

    def topic_ids(self) -> Mapping[str, str]:
        """Return each topic's id in Kafka's text form."""
        return {name: print_uuid(topic_id) for topic_id, name in self._names.items()}


def print_uuid(raw: bytes) -> str:
    """Return sixteen bytes in the form of Kafka's `Uuid.toString`: 22 characters of base64url."""
    return urlsafe_b64encode(raw).rstrip(b"=").decode()
