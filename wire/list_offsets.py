"""ListOffsets of many partitions, in the leader epochs in which a broker leads them, without kio.

kio takes 20 ms of CPU time for the response about 2,000 partitions; this module takes 1 ms. A
broker refuses a partition that it does not lead in the given epoch (KIP-320).

Source: `ListOffsetsRequest.json` and `ListOffsetsResponse.json` of Kafka, versions 4 to 9. From
version 6 on, counts and lengths are compact, and tagged fields end each structure.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from sidetier.segments.errors import (
    KafkaApiError,
    MalformedResponseError,
    UnsupportedVersionError,
)
from sidetier.segments.offsets import LeaderEpoch, Offset, TopicPartition
from sidetier.segments.varints import read_unsigned
from sidetier.wire.bounds import skip_tagged_fields
from sidetier.wire.connection import Connection
from sidetier.wire.fetch_layout import COUNT, STRING_LENGTH, compact_count, compact_string
from sidetier.wire.fetch_layout import encode_string as plain_string
from sidetier.wire.log_offsets import AnsweredOffset, OffsetKind
from sidetier.wire.protocol import ApiKey, api_error, missing_permission

FIRST_WITH_EPOCHS: Final = 4
"""The first version with leader epochs: Kafka 2.1."""
_FIRST_FLEXIBLE: Final = 6
_HEAD: Final = struct.Struct(">ib")  # replica id, isolation level
_CLIENT: Final = -1
_THROTTLE_BYTES: Final = 4
_PARTITION: Final = struct.Struct(">iiq")  # index, current leader epoch, timestamp
_ANSWER: Final = struct.Struct(">ihqqi")  # index, error code, timestamp, offset, leader epoch
_FLEXIBLE_ANSWER: Final = struct.Struct(">ihqqiB")  # and the number of tagged fields


class OffsetsQuestion:
    """The partitions to ask for, with their leader epochs. The encoded form is made once."""

    def __init__(self, partitions: Sequence[tuple[TopicPartition, LeaderEpoch]]) -> None:
        self.partitions = partitions
        self._places: dict[str, dict[int, int]] = {}
        """By topic and number of the partition: its place in `partitions`."""
        for place, ((topic, number), _) in enumerate(partitions):
            self._places.setdefault(topic, {})[number] = place
        self._encoded: dict[tuple[int, OffsetKind], bytes] = {}

    def encode(self, version: int, kind: OffsetKind) -> bytes:
        """Return the body of the request."""
        body = self._encoded.get((version, kind))
        if body is None:
            body = self._encoded[version, kind] = self._body(version, kind)
        return body

    def _body(self, version: int, kind: OffsetKind) -> bytes:
        flexible = version >= _FIRST_FLEXIBLE
        string, count = (compact_string, compact_count) if flexible else (plain_string, COUNT.pack)
        end = b"\0" if flexible else b""
        timestamp, isolation = kind.value
        body = bytearray(_HEAD.pack(_CLIENT, isolation) + count(len(self._places)))
        for topic, places in self._places.items():
            body += string(topic) + count(len(places))
            for number, place in places.items():
                body += _PARTITION.pack(number, self.partitions[place][1], timestamp) + end
            body += end
        return bytes(body + end)

    def decode(
        self, version: int, body: memoryview, sender: str
    ) -> list[AnsweredOffset | KafkaApiError | None]:
        """Return the answers in the order of `partitions`; None for one without an answer.

        Raises:
            MalformedResponseError: The response cannot be decoded, or is about other partitions.
        """
        answers: list[AnsweredOffset | KafkaApiError | None] = [None] * len(self.partitions)
        try:
            for topic, rows in _topics(version, body):
                places = self._places[topic]
                for number, code, _, offset, epoch, *_ in rows:
                    answers[places[number]] = (
                        _refusal(sender, TopicPartition(topic, number), code)
                        if code
                        else AnsweredOffset(Offset(offset), LeaderEpoch(epoch))
                    )
        except (struct.error, ValueError, IndexError) as error:
            raise MalformedResponseError(
                f"{sender}: the response to ListOffsets v{version} cannot be decoded: {error}"
            ) from error
        except KeyError as error:
            raise MalformedResponseError(
                f"{sender}: the response to ListOffsets v{version} is about {error}, which was not "
                "asked for"
            ) from None
        return answers


def list_offsets(
    connection: Connection, question: OffsetsQuestion, kind: OffsetKind, timeout: float
) -> list[AnsweredOffset | KafkaApiError | None]:
    """Ask the broker. One request, and one attempt.

    Returns:
        The answers in the order of `question.partitions`; None for a partition without an answer.

    Raises:
        UnsupportedVersionError: The broker is older than Kafka 2.1.
        BrokerError: The broker does not respond, or not in Kafka's protocol.
    """
    try:
        version = connection.version(ApiKey.LIST_OFFSETS, at_least=FIRST_WITH_EPOCHS)
    except UnsupportedVersionError as error:
        raise UnsupportedVersionError(
            f"{error}: a broker older than Kafka 2.1 does not check leader epochs in ListOffsets"
        ) from None
    body = question.encode(version, kind)
    connection.send_buffers(ApiKey.LIST_OFFSETS, version, [body], timeout=timeout)
    _, response = connection.receive_body()
    return question.decode(version, response, str(connection))


def _refusal(sender: str, tp: TopicPartition, code: int) -> KafkaApiError:
    return api_error(
        f"{sender} refuses ListOffsets for {tp}",
        code,
        missing_permission(ApiKey.LIST_OFFSETS, code),
    )


def _topics(version: int, body: memoryview) -> Iterator[tuple[str, Iterator[tuple[int, ...]]]]:
    """Yield each topic with the fields of its partitions."""
    flexible = version >= _FIRST_FLEXIBLE
    row = _FLEXIBLE_ANSWER if flexible else _ANSWER
    at = _THROTTLE_BYTES
    topics, at = _count(body, at, flexible=flexible)
    for _ in range(topics):
        length, at = _length(body, at, flexible=flexible)
        name, at = str(body[at : at + length], "utf-8"), at + length
        partitions, at = _count(body, at, flexible=flexible)
        end = at + partitions * row.size
        if partitions < 0 or end > len(body):
            raise ValueError(f"{partitions} partitions of {name} do not fit {len(body)} bytes")
        rows = list(row.iter_unpack(body[at:end]))
        if flexible and any(fields[-1] for fields in rows):
            rows, end = _tagged_rows(body, at, partitions)
        yield name, iter(rows)
        at = skip_tagged_fields(body, end) if flexible else end
    at = skip_tagged_fields(body, at) if flexible else at
    if at != len(body):
        raise ValueError(f"{len(body) - at} bytes are left over")


def _tagged_rows(body: memoryview, at: int, count: int) -> tuple[list[tuple[int, ...]], int]:
    """Decode partitions one by one: some have tagged fields."""
    rows = []
    for _ in range(count):
        rows.append(_ANSWER.unpack_from(body, at))
        at = skip_tagged_fields(body, at + _ANSWER.size)
    return rows, at


def _count(body: memoryview, at: int, *, flexible: bool) -> tuple[int, int]:
    if flexible:
        number, at = read_unsigned(body, at)
        return number - 1, at
    return COUNT.unpack_from(body, at)[0], at + COUNT.size


def _length(body: memoryview, at: int, *, flexible: bool) -> tuple[int, int]:
    if flexible:
        number, at = read_unsigned(body, at)
        return number - 1, at
    return STRING_LENGTH.unpack_from(body, at)[0], at + STRING_LENGTH.size
