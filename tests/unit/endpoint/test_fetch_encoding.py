"""Fetch responses that are framed by hand are those that Kafka's clients decode."""

from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.consumer import FetchResponse
from kio.schema.errors import ErrorCode

from sidetier.endpoint.blocks import Lease
from sidetier.endpoint.fetch import FetchedData, FetchedTopic, encode_fetch
from sidetier.segments.offsets import Offset
from sidetier.wire.protocol import ApiKey, decode_response
from sidetier.wire.record_requests import AbortedTransaction
from tests.harness.endpoint import joined
from tests.harness.made_archive import batches, encoded

TOPIC_ID = UUID(int=7)
RECORDS = encoded(batches(0, 40))


def topics() -> list[FetchedTopic]:
    full = FetchedData(
        0,
        high_watermark=Offset(40),
        last_stable_offset=Offset(30),
        log_start_offset=Offset(5),
        aborted=(AbortedTransaction(9, Offset(3)), AbortedTransaction(10, Offset(4))),
        lease=Lease([memoryview(RECORDS)[:100], memoryview(RECORDS)[100:]]),
    )
    empty = FetchedData(1, high_watermark=Offset(8), log_start_offset=Offset(0), aborted=())
    failed = FetchedData(300, ErrorCode.offset_out_of_range)
    long_name = "a" * 200  # its length takes two bytes of a varint
    return [
        FetchedTopic("orders", TOPIC_ID, [full, empty]),
        FetchedTopic(long_name, UUID(int=8), [failed]),
    ]


@pytest.mark.parametrize("version", range(4, 18))
def test_kio_decodes_each_version(version: int) -> None:
    body = memoryview(joined(encode_fetch(version, topics())))
    response: Any = decode_response(ApiKey.FETCH, version, body, "endpoint")
    orders, other = response.responses
    if version >= 13:
        assert (orders.topic_id, other.topic_id) == (TOPIC_ID, UUID(int=8))
    else:
        assert (orders.topic, other.topic) == ("orders", "a" * 200)
    full, empty = orders.partitions
    assert bytes(full.records) == RECORDS
    assert (full.partition_index, full.high_watermark, full.last_stable_offset) == (0, 40, 30)
    assert [(a.producer_id, a.first_offset) for a in full.aborted_transactions] == [(9, 3), (10, 4)]
    assert (empty.partition_index, empty.high_watermark) == (1, 8)
    assert not empty.records
    assert empty.aborted_transactions == ()
    failed = other.partitions[0]
    assert (failed.partition_index, failed.error_code) == (300, ErrorCode.offset_out_of_range)
    assert failed.aborted_transactions is None
    if version >= 5:
        assert full.log_start_offset == 5
    if version >= 11:
        assert full.preferred_read_replica == -1
    if version >= 7:
        assert response.session_id == 0


@pytest.mark.parametrize("version", range(4, 18))
def test_a_second_decoder_sees_the_same(version: int) -> None:
    response = FetchResponse.decode(joined(encode_fetch(version, topics())), version=version)
    rows = [row for topic in response.responses for row in topic.partitions]
    assert [row.partition_index for row in rows] == [0, 1, 300]
    assert [row.error_code for row in rows] == [0, 0, 1]
    assert [row.high_watermark for row in rows] == [40, 8, -1]
    assert bytes(rows[0].records) == RECORDS
    assert len(rows[0].aborted_transactions) == 2


def test_an_error_of_the_whole_response() -> None:
    body = joined(encode_fetch(16, (), ErrorCode.fetch_session_id_not_found))
    response: Any = decode_response(ApiKey.FETCH, 16, memoryview(body), "endpoint")
    assert response.error_code is ErrorCode.fetch_session_id_not_found
