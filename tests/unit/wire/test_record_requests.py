"""Our own Produce and Fetch encoding compared with kio's, in every version."""

import struct
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from sidetier.segments.errors import KafkaApiError, MalformedResponseError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import LeaderEpoch, Offset, TopicPartition
from sidetier.wire.connection import Buffer, Connection
from sidetier.wire.fetch_session import FetchPosition
from sidetier.wire.protocol import ApiKey, build_request, encode, known_versions
from sidetier.wire.record_requests import (
    AbortedTransaction,
    decode_fetched,
    encode_produce,
    send_fetch,
)

TOPIC_ID = UUID(int=77)
IDS = {"topic": TOPIC_ID}
BATCHES: list[tuple[TopicPartition, Buffer]] = [
    (TopicPartition("topic", 0), b"first"),
    (TopicPartition("other", 3), memoryview(b"x" * 300)),
    (TopicPartition("topic", 1), bytearray(b"second")),
]


def versions(api: ApiKey) -> range:
    lowest, highest = known_versions(api)
    return range(lowest, highest + 1)


@pytest.mark.parametrize("version", versions(ApiKey.PRODUCE))
@pytest.mark.parametrize("transactional_id", [None, "id"])
def test_produce_request_can_be_read_by_kio(version: int, transactional_id: str | None) -> None:
    body = encode_produce(version, BATCHES, transactional_id=transactional_id, timeout=1.5)
    request: Any
    data = b"".join(body)
    request, size = entity_reader(load_request_schema(ApiKey.PRODUCE, version))(data, 0)
    assert size == len(data)
    assert (request.transactional_id, request.acks) == (transactional_id, -1)
    assert request.timeout == timedelta(seconds=1.5)
    assert [
        (topic.name, part.index, part.records)
        for topic in request.topic_data
        for part in topic.partition_data
    ] == [("topic", 0, b"first"), ("topic", 1, b"second"), ("other", 3, b"x" * 300)]
    assert encode(request) == data


def test_batches_of_a_produce_request_are_not_copied() -> None:
    body = encode_produce(9, BATCHES, transactional_id=None, timeout=1)
    assert [buffer for buffer in body if any(buffer is batch for _, batch in BATCHES)] == [
        BATCHES[0][1],
        BATCHES[2][1],
        BATCHES[1][1],
    ]


def test_two_batches_of_a_partition_are_refused() -> None:
    batches = [(TopicPartition("topic", 0), b"one"), (TopicPartition("topic", 0), b"two")]
    with pytest.raises(ValueError, match="two batches of topic-0 in one Produce request"):
        encode_produce(8, batches, transactional_id=None, timeout=1)


class Sent:
    """A connection to a broker that supports Fetch up to a version. `body` is what was sent."""

    def __init__(self, version: int) -> None:
        self._version = version
        self.body = b""
        self.version_sent = -1

    def version(self, _: ApiKey) -> int:
        return self._version

    def send_buffers(
        self, _: ApiKey, version: int, body: Sequence[bytes], *, timeout: float | None
    ) -> None:
        assert timeout == 7
        self.version_sent, self.body = version, b"".join(body)


@pytest.mark.parametrize("version", [each for each in versions(ApiKey.FETCH) if each >= 4])
@pytest.mark.parametrize("isolation", IsolationLevel)
def test_fetch_request_is_the_same_as_that_of_kio(version: int, isolation: IsolationLevel) -> None:
    positions = [
        FetchPosition(TopicPartition("topic", 3), Offset(1 << 40), 1 << 20, LeaderEpoch(5)),
        FetchPosition(TopicPartition("other", 0), Offset(7), 9),
        FetchPosition(TopicPartition("topic", 1), Offset(0), 1),
    ]
    ids = {"topic": TOPIC_ID, "other": UUID(int=78)}
    sent = Sent(version)
    limits: dict[str, Any] = {"min_bytes": 3, "max_bytes": 1 << 24}
    send_fetch(
        cast("Connection", sent),
        positions,
        topic_ids=ids,
        isolation=isolation,
        max_wait=0.25,
        rack="r" if version >= 11 else "",
        timeout=7,
        **limits,
    )
    topics = [
        {
            **({"topic_id": ids[name]} if version >= 13 else {"topic": name}),
            "partitions": [
                {
                    "partition": each.partition.partition,
                    "current_leader_epoch": each.leader_epoch if version >= 9 else -1,
                    "fetch_offset": each.offset,
                    "partition_max_bytes": each.max_bytes,
                }
                for each in positions
                if each.partition.topic == name
            ],
        }
        for name in ("topic", "other")
    ]
    request = build_request(
        ApiKey.FETCH,
        version,
        replica_id=-1,
        max_wait=250,
        **limits,
        isolation_level=int(isolation is IsolationLevel.READ_COMMITTED),
        session_epoch=-1,
        topics=topics,
        forgotten_topics_data=(),
        rack_id="r" if version >= 11 else "",
    )
    assert sent.version_sent == version
    assert sent.body == encode(request)


def test_a_topic_without_an_id_makes_a_fetch_name_all_topics() -> None:
    sent = Sent(17)
    positions = [FetchPosition(TopicPartition(name, 0), Offset(0), 1) for name in ("topic", "new")]
    send_fetch(cast("Connection", sent), positions, topic_ids=IDS, timeout=7)
    assert sent.version_sent == 12


@pytest.mark.parametrize("version", versions(ApiKey.FETCH))
def test_fetch_response_written_by_kio_is_decoded(version: int) -> None:
    body = fetch_response(version, records=b"r" * 200, aborted=[(5, 10), (6, 20)])
    fetched, empty = decode_fetched(version, memoryview(body), IDS, "broker")
    assert fetched.partition == TopicPartition("topic", 2)
    assert (fetched.error_code, fetched.high_watermark) == (0, 100)
    assert fetched.last_stable_offset == 90
    assert fetched.log_start_offset == (7 if version >= 5 else -1)
    assert fetched.preferred_read_replica == (4 if version >= 11 else -1)
    assert fetched.aborted == (
        AbortedTransaction(5, Offset(10)),
        AbortedTransaction(6, Offset(20)),
    )
    assert fetched.records == b"r" * 200
    assert (empty.error_code, bytes(empty.records), empty.aborted) == (1, b"", ())


def test_records_of_a_fetch_response_are_writable_views() -> None:
    body = bytearray(fetch_response(12, records=b"records", aborted=[]))
    fetched, _ = decode_fetched(12, memoryview(body), IDS, "broker")
    fetched.records[0:1] = b"R"
    assert b"Records" in body


@pytest.mark.parametrize("version", [4, 11, 12, 17])
def test_truncated_fetch_response_is_refused(version: int) -> None:
    body = fetch_response(version, records=b"r" * 20, aborted=[(5, 10)])
    for end in range(len(body)):
        with pytest.raises(MalformedResponseError):
            decode_fetched(version, memoryview(body)[:end], IDS, "broker")
    with pytest.raises(MalformedResponseError, match=r"broker: .* ends 1 bytes early"):
        decode_fetched(version, memoryview(body + b"\0"), IDS, "broker")


def test_topic_id_that_was_not_requested_is_refused() -> None:
    body = fetch_response(13, records=b"", aborted=[])
    with pytest.raises(MalformedResponseError, match=f"topic id {TOPIC_ID}"):
        decode_fetched(13, memoryview(body), {}, "broker")


def test_error_of_the_whole_fetch_is_raised() -> None:
    with pytest.raises(KafkaApiError, match="broker, Fetch v7: FETCH_SESSION_ID_NOT_FOUND"):
        decode_fetched(7, memoryview(struct.pack(">ihii", 0, 70, 0, 0)), {}, "broker")


def fetch_response(version: int, *, records: bytes, aborted: list[tuple[int, int]]) -> bytes:
    """A response written by kio, with two partitions of a topic; the second has an error and null
    fields.
    """
    response = load_response_schema(ApiKey.FETCH, version)
    module = __import__(response.__module__, fromlist=["PartitionData"])

    def make(name: str, **values: object) -> Any:  # noqa: ANN401 - kio's
        entity = getattr(module, name)
        return entity(**{key: values[key] for key in values if key in entity.__slots__})

    def partition(index: int, code: int, **values: object) -> Any:  # noqa: ANN401 - kio's
        error = module.ErrorCode(code)
        return make(
            "PartitionData",
            partition_index=index,
            error_code=error,
            high_watermark=100,
            last_stable_offset=90,
            log_start_offset=7,
            preferred_read_replica=4,
            **values,
        )

    made = tuple(
        make("AbortedTransaction", producer_id=producer, first_offset=offset)
        for producer, offset in aborted
    )
    topic = make(
        "FetchableTopicResponse",
        topic="topic",
        topic_id=TOPIC_ID,
        partitions=(
            partition(2, 0, aborted_transactions=made, records=records),
            partition(3, 1, aborted_transactions=None, records=None),
        ),
    )
    return encode(
        make(
            "FetchResponse",
            throttle_time=timedelta(0),
            error_code=module.ErrorCode(0) if version >= 7 else None,
            session_id=0,
            responses=(topic,),
        )
    )
