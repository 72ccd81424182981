"""Batches of Spark's Kafka source, converted to the types of batches from the archive."""

from datetime import UTC, datetime
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError

from sidetier.pipeline.export.errors import MissingJarsError
from sidetier.pipeline.export.sinks.tables.frames import (
    KafkaSource,
    as_stored,
    value_columns,
)
from sidetier.pipeline.export.values.options import ValueFormat, ValueOptions
from sidetier.pipeline.spark.columns import TYPES
from sidetier.segments.isolation import IsolationLevel

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""As Spark defines it: its own name for the element, and only nullable fields."""


def from_spark() -> pa.RecordBatch:
    zoned = pa.timestamp("us", tz="Asia/Kolkata")
    times = pa.array([1_700_000_000_123_000, 0, 1], pa.int64()).cast(zoned)
    headers = [None, [{"key": "a", "value": b"1"}, {"key": "b", "value": None}], []]
    columns = {
        "key": pa.array([b"k", None, b""], pa.binary()),
        "value": pa.array([b"one", None, b"three"], pa.binary()),
        "topic": pa.array(["orders"] * 3),
        "partition": pa.array([3] * 3, pa.int32()),
        "offset": pa.array([7, 8, 10], pa.int64()),
        "timestamp": times,
        "timestampType": pa.array([0] * 3, pa.int32()),
        "headers": pa.array(headers, HEADERS),
    }
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize("start", [0, 1])
def test_batches_equal_those_from_the_archive(start: int) -> None:
    batch = from_spark().slice(start)
    schema = pa.schema(list(TYPES.items()))
    made = as_stored(batch, schema)
    assert made.schema == schema
    made.validate(full=True)
    wanted = batch.to_pylist()
    for row, other in zip(made.to_pylist(), wanted, strict=True):
        assert row == other
    assert made.column("timestamp")[-1].as_py() == datetime(1970, 1, 1, 0, 0, 0, 1, UTC)


def test_values_are_decoded_like_those_from_the_archive() -> None:
    columns = value_columns(ValueOptions(format=ValueFormat.STRING), flat=False)
    [decoded] = columns([as_stored(from_spark(), columns.schema)])
    assert decoded.schema == columns.decoded_schema()
    assert decoded.column("value").to_pylist() == ["one", None, "three"]


def test_error_for_a_missing_jar_gives_its_maven_coordinates() -> None:
    spark = MagicMock(version="3.5.3")
    properties = {"sasl.jaas.config": "open-sesame"}
    made = KafkaSource(spark, properties, IsolationLevel.READ_COMMITTED)
    assert "open-sesame" not in repr(made)
    spark._jvm.java.lang.Class.forName.side_effect = Py4JError("java.lang.ClassNotFoundException")
    with pytest.raises(MissingJarsError, match=r"--packages org\.apache\.spark:.*_2\.12:3\.5\.3"):
        KafkaSource(spark, properties, IsolationLevel.READ_COMMITTED)
