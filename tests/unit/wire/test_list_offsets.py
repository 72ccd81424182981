"""The hand-packed ListOffsets has kio's bytes in each version, and refuses what does not fit."""

from collections.abc import Mapping

import pytest
from kio.schema.errors import ErrorCode

from sidetier.segments.errors import KafkaApiError, MalformedResponseError
from sidetier.segments.offsets import LeaderEpoch, Offset, TopicPartition
from sidetier.wire.list_offsets import OffsetsQuestion
from sidetier.wire.log_offsets import AnsweredOffset, OffsetKind
from sidetier.wire.protocol import ApiKey, build_request, build_response, encode

VERSIONS = range(4, 10)
ANSWER = AnsweredOffset(Offset(1000), LeaderEpoch(7))
TOPICS = {"orders": (0, 3), "payments.eu": (1,)}
QUESTION = OffsetsQuestion(
    [(TopicPartition(topic, n), LeaderEpoch(7)) for topic, ns in TOPICS.items() for n in ns]
)


def response(version: int, topics: Mapping[str, tuple[int, ...]] = TOPICS) -> bytes:
    """The answers of a broker, in another order than they were asked for."""
    return encode(
        build_response(
            ApiKey.LIST_OFFSETS,
            version,
            throttle_time=0,
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {
                            "partition_index": number,
                            "error_code": ErrorCode.fenced_leader_epoch
                            if number == 1
                            else ErrorCode.none,
                            "timestamp": -1,
                            "offset": 1000 + number,
                            "leader_epoch": 7,
                            "old_style_offsets": (),
                        }
                        for number in reversed(numbers)
                    ],
                }
                for topic, numbers in reversed(list(topics.items()))
            ],
        )
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", OffsetKind)
def test_the_request_has_the_bytes_of_kio(version: int, kind: OffsetKind) -> None:
    timestamp, isolation = kind.value
    wanted = build_request(
        ApiKey.LIST_OFFSETS,
        version,
        replica_id=-1,
        isolation_level=isolation,
        topics=[
            {
                "name": topic,
                "partitions": [
                    {"partition_index": n, "current_leader_epoch": 7, "timestamp": timestamp}
                    for n in numbers
                ],
            }
            for topic, numbers in TOPICS.items()
        ],
    )
    assert QUESTION.encode(version, kind) == encode(wanted)


@pytest.mark.parametrize("version", VERSIONS)
def test_answers_are_in_the_order_of_the_question(version: int) -> None:
    first, third, refused = QUESTION.decode(version, memoryview(response(version)), "broker")
    assert (first, third) == (ANSWER, ANSWER._replace(offset=Offset(1003)))
    assert isinstance(refused, KafkaApiError)
    assert refused.code == ErrorCode.fenced_leader_epoch
    assert "payments.eu-1" in str(refused)


def test_tagged_fields_of_a_newer_broker_are_skipped() -> None:
    body = bytearray(response(9, {"orders": (0,)}))
    # The tagged fields of the partition, of its topic and of the response end the body.
    assert body[-3:] == b"\0\0\0"
    tagged = bytes(body[:-3]) + b"\x01\x05\x02ab" + b"\0\0"
    assert QUESTION.decode(9, memoryview(tagged), "broker") == [ANSWER, None, None]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_that_is_cut_or_about_others_is_refused(version: int) -> None:
    body = response(version)
    for cut in range(len(body)):
        with pytest.raises(MalformedResponseError):
            QUESTION.decode(version, memoryview(body[:cut]), "broker")
    with pytest.raises(MalformedResponseError, match=r"left over|cannot be decoded"):
        QUESTION.decode(version, memoryview(body + b"\0"), "broker")
    for topics in ({"other": (0,)}, {"orders": (9,)}):
        with pytest.raises(MalformedResponseError, match="not asked for"):
            QUESTION.decode(version, memoryview(response(version, topics)), "broker")
