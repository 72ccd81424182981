"""Records of the metadata log, and the leadership state that they describe. No I/O.

Source: Kafka's `common/metadata/*.json` and `MetadataRecordSerde` (frame version 1). Each value
begins with the frame version, the record's api key and its version, each an unsigned varint; the
record follows in the flexible encoding. All versions of Kafka 3.3 to 4.3 are supported.

The decoder is our own, because kio generates only the messages of Kafka's network protocol.
"""

import struct
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sidetier.segments.errors import UnsupportedFormatError
from sidetier.segments.offsets import BrokerId, LeaderEpoch, TopicPartition
from sidetier.segments.varints import read_unsigned

_INT32 = struct.Struct(">i")
_UUID_BYTES = 16


class WireReader:
    """Sequential reader of a buffer; each method decodes one value and advances.

    Raises:
        UnsupportedFormatError: The bytes end early, or contain an impossible length.
    """

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self._position = position

    @property
    def position(self) -> int:
        """Number of bytes read so far, from the beginning of the buffer."""
        return self._position

    def take(self, length: int) -> bytes:
        """Return the next `length` bytes."""
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise UnsupportedFormatError(
                f"{length} bytes are needed at byte {self._position}, of {len(self._data)}"
            )
        piece = self._data[self._position : end]
        self._position = end
        return piece

    def int8(self) -> int:
        """Decode a signed byte."""
        return int.from_bytes(self.take(1), "big", signed=True)

    def int32(self) -> int:
        """Decode four bytes, signed, big-endian."""
        value: int = _INT32.unpack(self.take(4))[0]
        return value

    def uuid(self) -> bytes:
        """Return sixteen bytes."""
        return self.take(_UUID_BYTES)

    def unsigned_varint(self) -> int:
        """Decode an unsigned varint."""
        try:
            value, self._position = read_unsigned(self._data, self._position)
        except ValueError as error:
            raise UnsupportedFormatError(str(error)) from None
        return value

    def compact_string(self) -> str:
        """Decode a string: length plus one as unsigned varint, then UTF-8; null is an error."""
        raw = self.take(self.unsigned_varint() - 1)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise UnsupportedFormatError(f"{raw[:40]!r} is not UTF-8") from error

    def skip_compact_array(self, item_bytes: int) -> None:
        """Skip an array of items of fixed size: length plus one as varint, 0 for null."""
        count = self.unsigned_varint() - 1
        # `take` checks the bounds, so an absurd count is an error and allocates nothing.
        self.take(max(count, 0) * item_bytes)

    def tagged_fields(self) -> dict[int, bytes]:
        """Return the tagged fields at the end of a structure: tag to undecoded bytes."""
        fields = {}
        for _ in range(self.unsigned_varint()):
            tag = self.unsigned_varint()
            fields[tag] = self.take(self.unsigned_varint())
        return fields


_FRAME_VERSION = 1
_INT32_BYTES = 4
# The tag of `leader` in `PartitionChangeRecord.json`, and Kafka's `NO_LEADER_CHANGE`.
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
    # Only the records that describe leadership. New kinds
    # appear with each Kafka release, and are skipped.
    kind = _KINDS.get(reader.unsigned_varint())
    if kind is None:
        return None
    version = reader.unsigned_varint()
    # A later version may have moved the fields. A guess would produce wrong leaders.
    if version > kind.max_version:
        raise UnsupportedFormatError(
            f"version {version} of {kind.name} is not known (0 to {kind.max_version} are)"
        )
    return kind.read(reader)


def _topic(reader: WireReader) -> TopicRecord:
    return TopicRecord(name=reader.compact_string(), topic_id=reader.uuid())


def _partition(reader: WireReader) -> PartitionRecord:
    # In the order of `PartitionRecord.json`.
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
                # By id: a deleted and a recreated topic have the same name.
                self._names[topic_id] = name
                self._partitions.setdefault(topic_id, {})
            case PartitionRecord(topic_id, partition, leader, epoch):
                self._partitions.setdefault(topic_id, {})[partition] = _Lead(leader, epoch)
            case PartitionChangeRecord(topic_id, partition, leader) if leader is not None:
                partitions = self._partitions.setdefault(topic_id, {})
                before = partitions.get(partition, _UNKNOWN)
                # The record has no epoch; brokers derive it in the same way.
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
