"""Rows become messages, for uniform and for varying columns."""

from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
)

from sidetier.consumer.feed import DeliveryRecorder
from sidetier.consumer.kafka_side import KafkaSide
from sidetier.consumer.metrics import ConsumerMetrics
from sidetier.consumer.partition import Partition, Source
from sidetier.consumer.store_side import StoreRecords, messages_of
from sidetier.segments.arrow import RECORD_SCHEMA
from sidetier.segments.offsets import TopicPartition

TP = TopicPartition("orders", 3)
_NO_KAFKA: KafkaSide | None = None


def rows(*changes: dict[str, Any]) -> pa.RecordBatch:
    """Rows with offsets from 10 on unless given otherwise."""
    plain = {
        "timestamp": 1000,
        "timestamp_type": 0,
        "key": b"k",
        "value": b"value",
        "headers": [],
        "leader_epoch": 7,
        "producer_id": -1,
        "producer_epoch": -1,
        "is_control": False,
    }
    made = [{**plain, "offset": 10 + number, **one} for number, one in enumerate(changes)]
    return pa.RecordBatch.from_pylist(made, schema=RECORD_SCHEMA)


def test_uniform_rows_become_messages() -> None:
    found = messages_of(TP, rows({}, {}, {}))

    assert [one.offset() for one in found] == [10, 11, 12]
    assert {(one.topic(), one.partition()) for one in found} == {("orders", 3)}
    assert {one.timestamp() for one in found} == {(TIMESTAMP_CREATE_TIME, 1000)}
    assert {one.leader_epoch() for one in found} == {7}
    assert {(one.key(), one.value()) for one in found} == {(b"k", b"value")}


def test_offsets_with_gaps_become_messages() -> None:
    found = messages_of(TP, rows({"offset": 1}, {"offset": 2}, {"offset": 900}))

    assert [one.offset() for one in found] == [1, 2, 900]


def test_varying_epochs_and_timestamps_become_messages() -> None:
    found = messages_of(
        TP,
        rows(
            {"leader_epoch": 1, "timestamp": 5},
            {"leader_epoch": 2, "timestamp": 6, "timestamp_type": 1},
            {"leader_epoch": 2, "timestamp": -1},
        ),
    )

    assert [one.leader_epoch() for one in found] == [1, 2, 2]
    assert [one.timestamp() for one in found] == [
        (TIMESTAMP_CREATE_TIME, 5),
        (TIMESTAMP_LOG_APPEND_TIME, 6),
        (TIMESTAMP_CREATE_TIME, -1),
    ]


def test_headers_of_some_rows_become_messages() -> None:
    some = {"headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]}
    records = rows(some, {}, {}, some, {})

    assert [one.headers() for one in messages_of(TP, records.slice(1, 2))] == [None, None]
    assert [one.headers() for one in messages_of(TP, records.slice(2))] == [
        None,
        [("a", b"1"), ("b", None)],
        None,
    ]


@pytest.mark.parametrize(("skipped", "most", "size"), [(0, 2, 3), (1, 9, 7), (0, 9, 10)])
def test_bytes_of_values_are_counted(skipped: int, most: int, size: int) -> None:
    counted: list[int] = []

    class Metrics(ConsumerMetrics):
        def __init__(self) -> None:
            pass

        def handed_out(self, source: Source, records: int, size: int) -> None:
            del source, records
            counted.append(size)

    values = (b"gone", b"one", None, b"three", b"", b"56")
    records = rows(*({"value": value} for value in values)).slice(1)
    piece = StoreRecords(Partition(TP, 0, 0), records, 16)
    delivery = DeliveryRecorder(_NO_KAFKA, Metrics(), stores=False)
    if skipped:
        piece.slice(skipped)
    delivery.count_slice(piece.slice(most))
    delivery.flush([])

    assert counted == [size]
