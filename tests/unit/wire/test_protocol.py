"""Requests of clients and responses of servers, as the endpoint reads and writes them."""

import pytest

from sidetier.segments.errors import MalformedRequestError
from sidetier.wire.protocol import (
    ApiKey,
    build_request,
    build_response,
    decode_request,
    encode,
    encode_header,
    encode_response_header,
    parse_request_header,
)


@pytest.mark.parametrize("version", [1, 9])
def test_a_request_is_read_as_it_was_sent(version: int) -> None:
    """Version 9 is the first with tagged fields, in the header and in the body."""
    values = {"topics": [{"name": "orders"}]}
    if version == 9:
        values |= {
            "include_cluster_authorized_operations": False,  # type: ignore[dict-item]
            "include_topic_authorized_operations": False,  # type: ignore[dict-item]
        }
    request = build_request(ApiKey.METADATA, version, **values)
    frame = memoryview(encode_header(ApiKey.METADATA, version, 77, "cl\u00e9") + encode(request))
    header, position = parse_request_header(frame)
    assert (header.api_key, header.version, header.correlation_id) == (3, version, 77)
    assert header.client_id == "cl\u00e9"
    assert decode_request(ApiKey.METADATA, version, frame, position) == request


@pytest.mark.parametrize("data", [b"", b"\0\3\0\1", b"\0\3\0\1\0\0\0\1\0\5ab"], ids=str)
def test_a_cut_header_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedRequestError):
        parse_request_header(memoryview(data))


def test_a_client_id_that_is_no_text_is_malformed() -> None:
    with pytest.raises(MalformedRequestError, match="utf-8"):
        parse_request_header(memoryview(b"\0\3\0\1\0\0\0\1\0\1\xff"))


def test_a_client_id_may_be_null() -> None:
    header, position = parse_request_header(memoryview(b"\0\3\0\1\0\0\0\1\xff\xff"))
    assert (header.client_id, position) == (None, 10)


def test_a_response_leaves_out_what_an_old_version_does_not_have() -> None:
    values = {
        "throttle_time": 5,
        "topics": [
            {
                "name": "orders",
                "partitions": [
                    {
                        "partition_index": 1,
                        "error_code": 0,
                        "timestamp": 3,
                        "offset": 4,
                        "leader_epoch": 7,
                    }
                ],
            }
        ],
    }
    old = build_response(ApiKey.LIST_OFFSETS, 1, **values)
    assert not hasattr(old, "throttle_time")
    new = build_response(ApiKey.LIST_OFFSETS, 4, **values)
    assert hasattr(new, "throttle_time")


def test_the_header_of_a_response_to_api_versions_has_no_tagged_fields() -> None:
    assert encode_response_header(ApiKey.API_VERSIONS, 4, 1) == b"\0\0\0\1"
    assert encode_response_header(ApiKey.METADATA, 9, 1) == b"\0\0\0\1\0"
    assert encode_response_header(ApiKey.METADATA, 8, 1) == b"\0\0\0\1"
