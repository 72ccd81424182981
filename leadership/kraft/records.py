"""The kinds of metadata record that describe leadership.

Source: Kafka's `common/metadata/*.json` and `MetadataRecordSerde` (frame version 1). Each value
begins with the frame version, the record's api key and its version, each an unsigned varint; the
record follows in the flexible encoding. All versions of Kafka 3.3 to 4.3 are supported.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sidetier.leadership.kraft.wire import WireReader
from sidetier.segments.errors import UnsupportedFormatError

_FRAME_VERSION = 1
_INT32_BYTES = 4
_LEADER_TAG = 1
_LEADER_UNCHANGED = -2


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic was created; `topic_id` has 16 bytes."""

    name: str
    topic_id: bytes


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """Complete state of a partition; `leader` is -1 if there is none."""

    topic_id: bytes
    partition: int
    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class PartitionChangeRecord:
    """Change of a partition; `leader` is None if the record does not set the leader.

    A change that sets the leader, even to the same broker, increases the leader epoch by one.
    """

    topic_id: bytes
    partition: int
    leader: int | None


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord:
    """A topic was deleted with all its partitions."""

    topic_id: bytes


@dataclass(frozen=True, slots=True)
class BeginTransactionRecord:
    """The following records take effect only when the transaction ends (KIP-868)."""


@dataclass(frozen=True, slots=True)
class EndTransactionRecord:
    """The records of the open transaction take effect now."""


@dataclass(frozen=True, slots=True)
class AbortTransactionRecord:
    """The records of the open transaction are dropped."""


MetadataRecord = (
    TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | RemoveTopicRecord
    | BeginTransactionRecord
    | EndTransactionRecord
    | AbortTransactionRecord
)


def decode_record(value: bytes) -> MetadataRecord | None:
    """Decode a value of the metadata log; None for a kind that does not describe leadership.

    Raises:
        UnsupportedFormatError: The frame, or a record of these kinds, has an unknown version.
    """
    reader = WireReader(value)
    frame_version = reader.unsigned_varint()
    if frame_version != _FRAME_VERSION:
        raise UnsupportedFormatError(
            f"frame version {frame_version} of a metadata record is not known"
        )
    kind = _KINDS.get(reader.unsigned_varint())
    if kind is None:
        return None
    version = reader.unsigned_varint()
    if version > kind.max_version:
        raise UnsupportedFormatError(
            f"version {version} of {kind.name} is not known (0 to {kind.max_version} are)"
        )
    return kind.read(reader)


def _topic(reader: WireReader) -> TopicRecord:
    return TopicRecord(name=reader.compact_string(), topic_id=reader.uuid())


def _partition(reader: WireReader) -> PartitionRecord:
    partition, topic_id = reader.int32(), reader.uuid()
    for _ in ("replicas", "isr", "removing", "adding"):
        reader.skip_compact_array(_INT32_BYTES)
    leader, leader_epoch = reader.int32(), reader.int32()
    # The rest (partition epoch, directories, tagged fields) does not describe the leader.
    return PartitionRecord(topic_id, partition, leader, leader_epoch)


def _partition_change(reader: WireReader) -> PartitionChangeRecord:
    partition, topic_id = reader.int32(), reader.uuid()
    encoded = reader.tagged_fields().get(_LEADER_TAG)
    leader = None if encoded is None else WireReader(encoded).int32()
    return PartitionChangeRecord(
        topic_id, partition, None if leader == _LEADER_UNCHANGED else leader
    )


def _remove_topic(reader: WireReader) -> RemoveTopicRecord:
    return RemoveTopicRecord(reader.uuid())


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    max_version: int
    read: Callable[[WireReader], MetadataRecord]


_KINDS = {
    2: _Kind("TopicRecord", 0, _topic),
    3: _Kind("PartitionRecord", 2, _partition),
    5: _Kind("PartitionChangeRecord", 2, _partition_change),
    9: _Kind("RemoveTopicRecord", 0, _remove_topic),
    23: _Kind("BeginTransactionRecord", 0, lambda _: BeginTransactionRecord()),
    24: _Kind("EndTransactionRecord", 0, lambda _: EndTransactionRecord()),
    25: _Kind("AbortTransactionRecord", 0, lambda _: AbortTransactionRecord()),
}
