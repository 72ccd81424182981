"""Produce and Fetch of raw record batches, without copying the batches.

kio copies the records of a Produce request twice, and a Fetch response's once. Here a Produce
request is a list of buffers that includes the caller's batches, and the records of a Fetch response
are views of the received frame. Fetch requests are sent for each few records, and kio takes ten
times as long to write one. It reads Produce responses.

Source: `ProduceRequest.json` (versions 3 to 11) and `FetchRequest.json` (versions 4 to 17) of
Kafka; `fetch_layout` for Fetch responses.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from sidetier.segments.errors import MalformedResponseError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import (
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicPartition,
)
from sidetier.segments.varints import read_unsigned
from sidetier.wire.bounds import skip_tagged_fields, tagged_fields
from sidetier.wire.connection import Buffer, Connection
from sidetier.wire.fetch_layout import (
    ABORTED,
    COUNT,
    FIRST_BY_ID,
    FIRST_FLEXIBLE,
    FIRST_WITH_LOG_START,
    FIRST_WITH_REPLICA,
    FIRST_WITH_SESSION,
    LEADER,
    LEADER_TAG,
    LOG_START,
    PARTITION,
    REPLICA,
    SESSION,
    STRING_LENGTH,
    THROTTLE_TIME,
    UUID_BYTES,
    compact_count,
    compact_string,
    encode_string,
)
from sidetier.wire.fetch_session import (
    LONE,
    NO_SESSION,
    FetchChanges,
    FetchPosition,
    FetchSession,
    Forgotten,
)
from sidetier.wire.protocol import ApiKey, api_error

_ACKS_ALL: Final = -1
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_INDEX = struct.Struct(">i")
_FIRST_FLEXIBLE_PRODUCE: Final = 9
_CLIENT = struct.Struct(">i")
"""The replica id of a request; -1 for clients. Versions from 15 on do not have it (KIP-903)."""
_LAST_WITH_REPLICA_ID: Final = 14
_FIRST_WITH_EPOCH: Final = 9
_LIMITS = struct.Struct(">iii")
_ISOLATION = struct.Struct(">b")
_SESSION = struct.Struct(">ii")
_OFFSET = struct.Struct(">q")


class ProducedPartition(NamedTuple):
    """Response to one batch: its base offset, or the error code (see `protocol.api_error`)."""

    partition: TopicPartition
    error_code: int
    base_offset: Offset
    message: str | None


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """Aborted transaction, whose batches a read_committed reader drops up to its abort marker."""

    producer_id: int
    first_offset: Offset


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """Response for one partition. Offsets are -1 if the broker does not report them.

    Attributes:
        partition: The partition.
        error_code: Kafka's error code; 0 for success.
        high_watermark: High watermark.
        last_stable_offset: Last stable offset.
        log_start_offset: Log start offset.
        aborted: Aborted transactions; only for read_committed fetches.
        preferred_read_replica: Broker id to fetch from instead; -1 for none.
        leader: Broker id and leader epoch of the leader, as a broker that does not lead the
            partition knows them (KIP-951); None if it names none.
        records: Record batches. The first batch can begin below the requested offset, the last one
            can be cut off (`segments.batches.split_batches`). Writable, and belongs to the caller.
    """

    partition: TopicPartition
    error_code: int
    high_watermark: Offset
    last_stable_offset: Offset
    log_start_offset: Offset
    aborted: tuple[AbortedTransaction, ...]
    preferred_read_replica: int
    records: memoryview
    leader: tuple[BrokerId, LeaderEpoch] | None = None


class FetchResponse(NamedTuple):
    """Response to a Fetch.

    Attributes:
        throttle_ms: Milliseconds for which the broker does not read from the connection (KIP-219).
        error_code: Kafka's error code for the whole request; 0 for success.
        session_id: Id of the fetch session; 0 for none.
        partitions: The responses for the partitions.
    """

    throttle_ms: int
    error_code: int
    session_id: int
    partitions: list[FetchedPartition]


def send_produce(
    connection: Connection,
    batches: Iterable[tuple[TopicPartition, Buffer]],
    *,
    transactional_id: str | None = None,
    timeout: float = 30.0,
) -> None:
    """Send batches to the leader of their partitions; all in-sync replicas acknowledge them.

    Args:
        connection: Connection to the leader of all these partitions.
        batches: At most one whole batch per partition (brokers reject two with error 87).
        transactional_id: Transactional id of the producer; its open transaction must contain these
            partitions. None for a producer without transactions.
        timeout: Seconds that the broker waits for its replicas.
    """
    version = connection.version(ApiKey.PRODUCE)
    body = encode_produce(version, batches, transactional_id=transactional_id, timeout=timeout)
    connection.send_buffers(ApiKey.PRODUCE, version, body)


def receive_produced(connection: Connection) -> list[ProducedPartition]:
    """Return the response to the oldest request in flight, which `send_produce` must have sent."""
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
    """Return the body of a Produce request as buffers, the caller's batches among them.

    Raises:
        ValueError: Two batches belong to the same partition.
    """
    topics = _by_topic(batches)
    flexible = version >= _FIRST_FLEXIBLE_PRODUCE
    string, count = (compact_string, compact_count) if flexible else (encode_string, COUNT.pack)
    end = b"\0" if flexible else b""
    head = bytearray(string(transactional_id))
    head += _ACKS_AND_TIMEOUT.pack(_ACKS_ALL, round(timeout * 1000))
    head += count(len(topics))
    body: list[Buffer] = []
    for topic, partitions in topics.items():
        head += string(topic) + count(len(partitions))
        for partition, batch in partitions.items():
            head += _INDEX.pack(partition) + count(len(batch))
            # The batches stay separate buffers, and everything
            # between two batches is one small buffer.
            body += [bytes(head), batch]
            # The tagged fields behind a partition belong to the next small buffer.
            head = bytearray(end)
        head += end
    body.append(bytes(head + end))
    return body


def _by_topic(
    batches: Iterable[tuple[TopicPartition, Buffer]],
) -> dict[str, dict[int, Buffer]]:
    """Group batches by topic: a broker processes only one of several entries of a topic."""
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
    timeout: float | None = None,
    session: FetchSession | None = None,
) -> None:
    """Send a Fetch request to the leader of partitions.

    Args:
        connection: Connection to the leader of all these partitions, or to the preferred replica.
        positions: Positions to read from. If their records do not fit `max_bytes`, the response has
            those of the first ones.
        topic_ids: Topic ids by name. With them, a broker that supports ids (3.1 and newer) rejects
            a topic that was recreated; without them only the name counts.
        isolation: With READ_COMMITTED the broker sends no records above the last stable offset, and
            lists the aborted transactions; it sends their batches nevertheless.
        max_wait: Seconds that the broker waits for `min_bytes`.
        min_bytes: Number of bytes that the broker waits for.
        max_bytes: Maximum bytes of all records in the response; one batch is sent even if it is
            larger. Keep this well below `settings.max_response_bytes`.
        rack: `client.rack`, so that the broker names a preferred replica.
        timeout: Seconds until the response must have arrived; None for `settings.request_timeout`.
        session: Fetch session in which the broker has these positions afterwards; None for a
            request without a session. Its response belongs to `FetchSession.is_refused`.
    """
    version = connection.version(ApiKey.FETCH)
    ids = topic_ids or {}
    # A request names all topics in the same way: one without an id makes all of them names.
    by_id = all(position.partition.topic in ids for position in positions)
    asked = FetchChanges(NO_SESSION, LONE, positions, (), by_id)
    if session is not None and version >= FIRST_WITH_SESSION:
        asked = session.changes(positions, ids)
    if not asked.by_id:
        version = min(version, FIRST_BY_ID - 1)
    topics: dict[str, list[FetchPosition]] = {}
    for position in asked.positions:
        topics.setdefault(position.partition.topic, []).append(position)
    head = bytearray()
    if version <= _LAST_WITH_REPLICA_ID:
        head += _CLIENT.pack(-1)
    head += _LIMITS.pack(round(max_wait * 1000), min_bytes, max_bytes)
    head += _ISOLATION.pack(isolation is IsolationLevel.READ_COMMITTED)
    if version >= FIRST_WITH_SESSION:
        head += _SESSION.pack(asked.session_id, asked.epoch)
    body = bytes(head) + _fetched_topics(version, topics, ids)
    if version >= FIRST_WITH_SESSION:
        body += _forgotten_topics(version, asked.forgotten)
    if version >= FIRST_WITH_REPLICA:
        body += compact_string(rack) if version >= FIRST_FLEXIBLE else encode_string(rack)
    end = b"\0" if version >= FIRST_FLEXIBLE else b""
    connection.send_buffers(ApiKey.FETCH, version, [body + end], timeout=timeout)


def _fetched_topics(
    version: int, topics: Mapping[str, Sequence[FetchPosition]], ids: Mapping[str, UUID]
) -> bytes:
    """Return the topics of a Fetch request."""
    flexible = version >= FIRST_FLEXIBLE
    string, count = (compact_string, compact_count) if flexible else (encode_string, COUNT.pack)
    end = b"\0" if flexible else b""
    data = bytearray(count(len(topics)))
    for name, positions in topics.items():
        data += ids[name].bytes if version >= FIRST_BY_ID else string(name)
        data += count(len(positions))
        for position in positions:
            data += _INDEX.pack(position.partition.partition)
            if version >= _FIRST_WITH_EPOCH:
                data += _INDEX.pack(position.leader_epoch)
            data += _OFFSET.pack(position.offset)
            if flexible:
                data += _INDEX.pack(-1)  # last fetched epoch
            if version >= FIRST_WITH_LOG_START:
                data += _OFFSET.pack(-1)  # of a follower
            data += _INDEX.pack(position.max_bytes) + end
        data += end
    return bytes(data)


def _forgotten_topics(version: int, forgotten: Iterable[Forgotten]) -> bytes:
    """Return the topics that a Fetch request removes from its session."""
    flexible = version >= FIRST_FLEXIBLE
    string, count = (compact_string, compact_count) if flexible else (encode_string, COUNT.pack)
    end = b"\0" if flexible else b""
    topics: dict[bytes, list[int]] = {}
    for (name, number), topic_id in forgotten:
        key = string(name) if topic_id is None else topic_id.bytes
        topics.setdefault(key, []).append(number)
    data = bytearray(count(len(topics)))
    for key, numbers in topics.items():
        data += key + count(len(numbers)) + b"".join(map(_INDEX.pack, numbers)) + end
    return bytes(data)


def receive_fetched(
    connection: Connection, topic_ids: Mapping[str, UUID] | None = None
) -> list[FetchedPartition]:
    """Return the response to the oldest request in flight, which `send_fetch` must have sent.

    Args:
        connection: Connection that sent the request.
        topic_ids: The same as for `send_fetch`.

    Raises:
        KafkaApiError: The broker rejected the whole request. `error_code` has the errors of single
            partitions.
        BrokerError: See `Connection.receive`.
    """
    version, body = connection.receive_body()
    return decode_fetched(version, body, topic_ids or {}, str(connection))


def receive_fetched_partition(connection: Connection) -> FetchedPartition:
    """Return the response to the oldest request in flight, for one partition by its topic's name.

    Raises:
        KafkaApiError: The broker rejected the request or the partition.
        BrokerError: See `Connection.receive`.
    """
    (fetched,) = receive_fetched(connection)
    if fetched.error_code:
        raise api_error(f"{connection} refuses Fetch of {fetched.partition}", fetched.error_code)
    return fetched


def decode_fetched(
    version: int, body: memoryview, topic_ids: Mapping[str, UUID], sender: str
) -> list[FetchedPartition]:
    """Return the partitions of a Fetch response; see `receive_fetched`."""
    response = decode_fetch(version, body, topic_ids, sender)
    if response.error_code:
        raise api_error(f"{sender}, Fetch v{version}", response.error_code)
    return response.partitions


def decode_fetch(
    version: int, body: memoryview, topic_ids: Mapping[str, UUID], sender: str
) -> FetchResponse:
    """Return a Fetch response; raises MalformedResponseError if it cannot be decoded."""
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    try:
        return _FetchResponse(version, body, names, sender).read()
    except (struct.error, ValueError) as error:
        raise MalformedResponseError(
            f"{sender}: the response to Fetch v{version} cannot be decoded: {error}"
        ) from error


class _FetchResponse:
    """Sequential decoder of a response's body."""

    def __init__(
        self, version: int, body: memoryview, names: Mapping[UUID, str], sender: str
    ) -> None:
        self._version = version
        self._body = body
        self._names = names
        self._sender = sender
        self._at = 0
        self._flexible = version >= FIRST_FLEXIBLE

    def read(self) -> FetchResponse:
        (throttle_ms,) = self._unpack(THROTTLE_TIME)
        code, session_id = 0, NO_SESSION
        if self._version >= FIRST_WITH_SESSION:
            code, session_id = self._unpack(SESSION)
        partitions: list[FetchedPartition] = []
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
        return FetchResponse(throttle_ms, code, session_id, partitions)

    def _topic(self) -> str:
        if self._version < FIRST_BY_ID:
            size = self._count() if self._flexible else self._unpack(STRING_LENGTH)[0]
            return str(self._take(size), "utf-8")
        topic_id = UUID(bytes=bytes(self._take(UUID_BYTES)))
        try:
            return self._names[topic_id]
        except KeyError:
            raise MalformedResponseError(
                f"{self._sender} answers for topic id {topic_id}, which was not asked for"
            ) from None

    def _partition(self, topic: str) -> FetchedPartition:
        index, code, high_watermark, stable = self._unpack(PARTITION)
        (log_start,) = self._unpack(LOG_START) if self._version >= FIRST_WITH_LOG_START else (-1,)
        aborted = tuple(self._aborted() for _ in range(self._count()))
        (replica,) = self._unpack(REPLICA) if self._version >= FIRST_WITH_REPLICA else (-1,)
        records = self._take(self._count())
        leader = self._leader() if code else None
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
            leader,
        )

    def _leader(self) -> tuple[BrokerId, LeaderEpoch] | None:
        """Return the leader that the tagged fields of a partition name."""
        if not self._flexible:
            return None
        named = tagged_fields(self._body, self._at)[0].get(LEADER_TAG)
        if named is None:
            return None
        broker, epoch = LEADER.unpack_from(named)
        return None if broker < 0 else (BrokerId(broker), LeaderEpoch(epoch))

    def _aborted(self) -> AbortedTransaction:
        producer_id, first_offset = self._unpack(ABORTED)
        self._tags()
        return AbortedTransaction(producer_id, Offset(first_offset))

    def _count(self) -> int:
        """Read the length of an array or of bytes; 0 for null."""
        if self._flexible:
            count, self._at = read_unsigned(self._body, self._at)
            return max(count - 1, 0)
        (count,) = self._unpack(COUNT)
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
            raise struct.error(f"{size} bytes are needed at byte {self._at}, of {len(self._body)}")
        piece = self._body[self._at : end]
        self._at = end
        return piece
