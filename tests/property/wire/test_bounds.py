"""Counts and lengths that clients and brokers announce are checked before memory is reserved."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from sidetier.endpoint.groups.relay import OFFERED_RELAY
from sidetier.endpoint.logins import SASL_REQUESTS
from sidetier.endpoint.protocol import OFFERED
from sidetier.segments.errors import MalformedRequestError
from sidetier.wire.protocol import (
    ApiKey,
    decode_request,
    decode_response,
    known_versions,
    parse_request_header,
)
from tests.harness.hostile_messages import (
    Lie,
    LimitedDecoder,
    encoded,
    frame_of,
    limited_decoder,
)

_Message = tuple[ApiKey, int, bool]
"""Api, version, whether it is a request."""

_UNREADABLE: Final = {ApiKey.DESCRIBE_TRANSACTIONS}
"""Responses for which `wire.protocol` has a schema of its own."""


def _messages() -> Iterator[_Message]:
    for api, (lowest, highest) in {**OFFERED, **OFFERED_RELAY, **SASL_REQUESTS}.items():
        yield from ((api, version, True) for version in range(lowest, highest + 1))
    for api in ApiKey:
        lowest, highest = known_versions(api)
        if api not in _UNREADABLE:
            yield from ((api, version, False) for version in range(lowest, highest + 1))


MESSAGES: Final = tuple(_messages())


def _schema(message: _Message) -> type[Any]:
    api, version, is_request = message
    return load_request_schema(api, version) if is_request else load_response_schema(api, version)


def _bytes(message: _Message, body: bytes) -> bytes:
    api, version, is_request = message
    return frame_of(api, version, body) if is_request else body


def _decoded(message: _Message, body: bytes) -> object:
    api, version, is_request = message
    if not is_request:
        return decode_response(api, version, memoryview(body), "broker")
    frame = memoryview(frame_of(api, version, body))
    return decode_request(api, version, frame, parse_request_header(frame)[1])


def _announcements(message: _Message) -> int:
    lie = Lie(-1, 0)
    encoded(_schema(message), lie)
    return lie.made


@pytest.fixture(scope="module")
def decoder() -> Iterator[LimitedDecoder]:
    with limited_decoder() as started:
        yield started


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: f"{each[0].name}-{each[1]}")
def test_what_is_right_is_decoded_as_kio_decodes_it(message: _Message) -> None:
    """Also with a tagged field of a later version in each entity, which is left out (KIP-482)."""
    schema = _schema(message)
    plain = encoded(schema)
    wanted, size = entity_reader(schema)(plain, 0)
    assert size == len(plain)
    assert _decoded(message, plain) == wanted
    assert _decoded(message, encoded(schema, unknown=b"later")) == wanted
    assert _decoded(message, encoded(schema, unknown=b"l" * 300)) == wanted


@pytest.mark.parametrize("number", [2**31 - 2, 2**32 - 2, -2])
def test_no_announced_count_or_length_reserves_memory(decoder: LimitedDecoder, number: int) -> None:
    """Each array, text and tagged field of each message in turn."""
    for message in MESSAGES:
        api, version, is_request = message
        for position in range(_announcements(message)):
            lie = Lie(position, number)
            data = _bytes(message, encoded(_schema(message), lie))
            decodes = decoder.decodes(api, version, data, is_request=is_request)
            assert not decodes, f"{message}: {lie.name}"


@given(st.data())
def test_what_is_announced_is_there_or_it_is_refused(
    decoder: LimitedDecoder, data: st.DataObject
) -> None:
    message = data.draw(st.sampled_from(MESSAGES))
    api, version, is_request = message
    position = data.draw(st.integers(0, _announcements(message)))
    number = data.draw(st.integers(-3, 20) | st.integers(-(2**31), 2**33))
    whole = _bytes(message, encoded(_schema(message), Lie(position, number)))
    if data.draw(st.booleans()):
        whole = whole[: data.draw(st.integers(0, len(whole)))]
    decoder.decodes(api, version, whole, is_request=is_request)


def test_entries_of_all_arrays_together_are_bounded() -> None:
    body = b"\0" + b"\x80\x80\x08" + b"\2a" * 131_071 + b"\0"  # FindCoordinator, one-letter keys
    frame = memoryview(frame_of(ApiKey.FIND_COORDINATOR, 4, body))
    position = parse_request_header(frame)[1]
    counted: list[int] = []
    decode_request(ApiKey.FIND_COORDINATOR, 4, frame, position, reserve=counted.append)
    assert counted == [131_071]
    with pytest.raises(MalformedRequestError, match="coordinator_keys: 131071 entries so far"):
        decode_request(ApiKey.FIND_COORDINATOR, 4, frame, position, most_entries=131_070)


def test_null_is_refused_where_the_protocol_has_none() -> None:
    frame = memoryview(frame_of(ApiKey.FIND_COORDINATOR, 4, b"\0\0\0"))
    with pytest.raises(MalformedRequestError, match="coordinator_keys: null"):
        decode_request(ApiKey.FIND_COORDINATOR, 4, frame, parse_request_header(frame)[1])
