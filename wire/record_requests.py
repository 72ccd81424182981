"""Produce and Fetch of raw record batches, without copies of the batches.

kio copies the records of a Produce request twice and those of a Fetch response once. Here the
Produce request is a list of buffers with the caller's batches among them, and the records of a
Fetch response are views of the received frame. The small halves, Produce responses and Fetch
requests, are kio's.

Source: `ProduceRequest.json` (versions 3 to 11) and `FetchResponse.json` (versions 4 to 17) of
Kafka.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, NamedTuple
from uuid import UUID

from sidetier.segments.errors import MalformedResponseError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch, Offset, TopicPartition
from sidetier.wire.connection import Buffer, Connection
from sidetier.wire.protocol import (
    ApiKey,
    api_error,
    build_request,
    read_varint,
    skip_tagged_fields,
)

_ACKS_ALL: Final = -1
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_FIRST_FLEXIBLE_PRODUCE: Final = 9
_FIRST_FLEXIBLE_FETCH: Final = 12
_FIRST_FETCH_BY_ID: Final = 13
_FIRST_FETCH_WITH_SESSION: Final = 7
_FIRST_FETCH_WITH_LOG_START: Final = 5
_FIRST_FETCH_WITH_REPLICA: Final = 11
_PARTITION = struct.Struct(">ihqq")  # index, error code, high watermark, last stable offset
_ABORTED = struct.Struct(">qq")  # producer id, first offset
_SESSION = struct.Struct(">hi")  # error code, session id
_LOG_START = struct.Struct(">q")
_THROTTLE_BYTES: Final = 4
_MANY: Final = 1024
"""Names and sizes of batches come again with each request."""
_UUID_BYTES: Final = 16


class ProducedPartition(NamedTuple):
    """The answer to one batch: where it is, or why it was refused (see `protocol.api_error`)."""

    partition: TopicPartition
    error_code: int
    base_offset: Offset
    message: str | None


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """Where to read a partition from.

    `leader_epoch` is the one that the leader is known by; with -1 the broker does not check it.
    """

    partition: TopicPartition
    offset: Offset
    max_bytes: int
    leader_epoch: LeaderEpoch = UNKNOWN_EPOCH


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """A transaction whose batches a read-committed reader drops up to its abort marker."""

    producer_id: int
    first_offset: Offset


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """What a broker has of one partition. Offsets are -1 where it does not say.

    `records` begins at a batch that can start below the offset that was asked for, and its last
    batch can be cut off (`batches.split_batches`). It is writable and belongs to the caller.
    `aborted` is filled for read-committed fetches only.
    """

    partition: TopicPartition
    error_code: int
    high_watermark: Offset
    last_stable_offset: Offset
    log_start_offset: Offset
    aborted: tuple[AbortedTransaction, ...]
    preferred_read_replica: int
    records: memoryview


def send_produce(
    connection: Connection,
    batches: Iterable[tuple[TopicPartition, Buffer]],
    *,
    transactional_id: str | None = None,
    timeout: float = 30.0,
) -> None:
    """Send batches to the leader of their partitions; all in-sync replicas acknowledge them.

    Args:
        connection: To the leader of all these partitions.
        batches: One whole batch per partition at most (brokers refuse two with error 87).
        transactional_id: Of the producer whose open transaction has these partitions.
        timeout: Seconds that the broker waits for its replicas.
    """
    version = connection.version(ApiKey.PRODUCE)
    body = encode_produce(version, batches, transactional_id=transactional_id, timeout=timeout)
    connection.send_buffers(ApiKey.PRODUCE, version, body)


def receive_produced(connection: Connection) -> list[ProducedPartition]:
    """The answer to the oldest request in flight, which must be one of `send_produce`."""
    response: Any = connection.receive()
    return [
        ProducedPartition(
            partition=TopicPartition(topic.name, answer.index),
            error_code=int(answer.error_code),
            base_offset=Offset(answer.base_offset),
            message=getattr(answer, "error_message", None),
        )
        for topic in response.responses
        for answer in topic.partition_responses
    ]


def encode_produce(
    version: int,
    batches: Iterable[tuple[TopicPartition, Buffer]],
    *,
    transactional_id: str | None,
    timeout: float,
) -> list[Buffer]:
    """The body of a Produce request; the batches are among its buffers.

    Raises:
        ValueError: two batches of one partition.
    """
    topics = _by_topic(batches)
    flexible = version >= _FIRST_FLEXIBLE_PRODUCE
    string, count = (_compact_string, _compact_count) if flexible else (_string, _INT32.pack)
    end = b"\0" if flexible else b""
    head = bytearray(string(transactional_id))
    head += _ACKS_AND_TIMEOUT.pack(_ACKS_ALL, round(timeout * 1000))
    head += count(len(topics))
    body: list[Buffer] = []
    for topic, partitions in topics.items():
        head += string(topic) + count(len(partitions))
        for partition, batch in partitions.items():
            head += _INT32.pack(partition) + count(len(batch))
            body += [bytes(head), batch]
            head = bytearray(end)
        head += end
    body.append(bytes(head + end))
    return body


def _by_topic(
    batches: Iterable[tuple[TopicPartition, Buffer]],
) -> dict[str, dict[int, Buffer]]:
    """The broker keeps one of several entries of the same topic."""
    topics: dict[str, dict[int, Buffer]] = {}
    for (topic, partition), batch in batches:
        partitions = topics.setdefault(topic, {})
        if partition in partitions:
            raise ValueError(f"two batches of {topic}-{partition} in one Produce request")
        partitions[partition] = batch
    return topics


def send_fetch(  # noqa: PLR0913 - the fields of Kafka's request
    connection: Connection,
    positions: Sequence[FetchPosition],
    *,
    topic_ids: Mapping[str, UUID] | None = None,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    max_wait: float = 0.5,
    min_bytes: int = 1,
    max_bytes: int = 64 * 1024 * 1024,
    rack: str = "",
) -> None:
    """Ask the leader of partitions for their records.

    Args:
        connection: To the leader of all these partitions, or the preferred replica.
        positions: Where to read.
        topic_ids: The topics' ids. With them a broker that knows ids (3.1 and newer) refuses a
            topic that was deleted and created again; without them the name counts.
        isolation: With READ_COMMITTED the broker sends nothing above the last stable offset, and
            says which transactions were aborted; their batches are sent all the same.
        max_wait: Seconds that the broker waits for `min_bytes`.
        min_bytes: That the broker waits for.
        max_bytes: Of all records in the response; one batch is sent even if it is larger. Keep
            this well below `settings.max_response_bytes`.
        rack: `client.rack`, to be told a preferred replica.
    """
    version = connection.version(ApiKey.FETCH)
    by_name = groupby(sorted(positions, key=lambda at: at.partition), lambda at: at.partition.topic)
    topics = {name: list(group) for name, group in by_name}
    ids = topic_ids or {}
    if not topics.keys() <= ids.keys():
        version = min(version, _FIRST_FETCH_BY_ID - 1)
    by_id = version >= _FIRST_FETCH_BY_ID
    request = build_request(
        ApiKey.FETCH,
        version,
        replica_id=-1,
        max_wait=round(max_wait * 1000),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=1 if isolation is IsolationLevel.READ_COMMITTED else 0,
        session_epoch=-1,
        topics=[
            {
                **({"topic_id": ids[name]} if by_id else {"topic": name}),
                "partitions": [
                    {
                        "partition": at.partition.partition,
                        "current_leader_epoch": at.leader_epoch,
                        "fetch_offset": at.offset,
                        "partition_max_bytes": at.max_bytes,
                    }
                    for at in group
                ],
            }
            for name, group in topics.items()
        ],
        forgotten_topics_data=(),
        rack_id=rack,
    )
    connection.send(request)


def receive_fetched(
    connection: Connection, topic_ids: Mapping[str, UUID] | None = None
) -> list[FetchedPartition]:
    """The answer to the oldest request in flight, which must be one of `send_fetch`.

    Args:
        connection: The one that the request was sent with.
        topic_ids: What `send_fetch` was given.

    Raises:
        KafkaApiError: the broker refuses the request as a whole. What it refuses of a partition
            is in `error_code`.
        BrokerError: what `Connection.receive` raises.
    """
    version, body = connection.receive_body()
    return decode_fetched(version, body, topic_ids or {}, str(connection))


def receive_fetched_partition(connection: Connection) -> FetchedPartition:
    """The answer to the oldest request in flight, which has asked for one partition by its name.

    Raises:
        KafkaApiError: the broker refuses the request or the partition.
        BrokerError: what `Connection.receive` raises.
    """
    (fetched,) = receive_fetched(connection)
    if fetched.error_code:
        raise api_error(f"{connection} refuses Fetch of {fetched.partition}", fetched.error_code)
    return fetched


def decode_fetched(
    version: int, body: memoryview, topic_ids: Mapping[str, UUID], sender: str
) -> list[FetchedPartition]:
    """The partitions of a Fetch response; see `receive_fetched`."""
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    try:
        return _FetchResponse(version, body, names, sender).read()
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedResponseError(
            f"{sender}: the response to Fetch v{version} cannot be decoded: {error}"
        ) from error


class _FetchResponse:
    """Walks once over the body of a response."""

    def __init__(
        self, version: int, body: memoryview, names: Mapping[UUID, str], sender: str
    ) -> None:
        self._version = version
        self._body = body
        self._names = names
        self._sender = sender
        self._at = 0
        self._flexible = version >= _FIRST_FLEXIBLE_FETCH

    def read(self) -> list[FetchedPartition]:
        self._take(_THROTTLE_BYTES)
        if self._version >= _FIRST_FETCH_WITH_SESSION:
            code, _ = self._unpack(_SESSION)
            if code:
                raise api_error(f"{self._sender}, Fetch v{self._version}", code)
        partitions = []
        for _ in range(self._count()):
            topic = self._topic()
            partitions += [self._partition(topic) for _ in range(self._count())]
            self._tags()
        self._tags()
        if self._at != len(self._body):
            raise MalformedResponseError(
                f"{self._sender}: the response to Fetch v{self._version} ends "
                f"{len(self._body) - self._at} bytes early"
            )
        return partitions

    def _topic(self) -> str:
        if self._version < _FIRST_FETCH_BY_ID:
            size = self._count() if self._flexible else self._unpack(_INT16)[0]
            return str(self._take(size), "utf-8")
        topic_id = UUID(bytes=bytes(self._take(_UUID_BYTES)))
        try:
            return self._names[topic_id]
        except KeyError:
            raise MalformedResponseError(
                f"{self._sender} answers for topic id {topic_id}, which was not asked for"
            ) from None

    def _partition(self, topic: str) -> FetchedPartition:
        index, code, high_watermark, stable = self._unpack(_PARTITION)
        (log_start,) = (
            self._unpack(_LOG_START) if self._version >= _FIRST_FETCH_WITH_LOG_START else (-1,)
        )
        aborted = tuple(self._aborted() for _ in range(self._count()))
        (replica,) = self._unpack(_INT32) if self._version >= _FIRST_FETCH_WITH_REPLICA else (-1,)
        records = self._take(self._count())
        self._tags()
        return FetchedPartition(
            TopicPartition(topic, index),
            code,
            Offset(high_watermark),
            Offset(stable),
            Offset(log_start),
            aborted,
            replica,
            records,
        )

    def _aborted(self) -> AbortedTransaction:
        producer_id, first_offset = self._unpack(_ABORTED)
        self._tags()
        return AbortedTransaction(producer_id, Offset(first_offset))

    def _count(self) -> int:
        """Of an array or of bytes; null counts as none."""
        if self._flexible:
            count, self._at = read_varint(self._body, self._at)
            return max(count - 1, 0)
        (count,) = self._unpack(_INT32)
        return max(int(count), 0)

    def _tags(self) -> None:
        if self._flexible:
            self._at = skip_tagged_fields(self._body, self._at)

    def _unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        values = layout.unpack_from(self._body, self._at)
        self._at += layout.size
        return values

    def _take(self, size: int) -> memoryview:
        end = self._at + size
        if size < 0 or end > len(self._body):
            raise struct.error(f"{size} bytes wanted at {self._at} of {len(self._body)}")
        taken = self._body[self._at : end]
        self._at = end
        return taken


def _string(text: str | None) -> bytes:
    if text is None:
        return _INT16.pack(-1)
    data = text.encode()
    return _INT16.pack(len(data)) + data


@lru_cache(_MANY)
def _compact_string(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    data = text.encode()
    return _compact_count(len(data)) + data


@lru_cache(_MANY)
def _compact_count(count: int) -> bytes:
    """One more than the count, as an unsigned varint."""
    value = count + 1
    encoded = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
