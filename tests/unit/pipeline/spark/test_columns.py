"""Records as the columns of Spark's Kafka source."""

import pickle

import pyarrow as pa
import pytest

from sidetier.pipeline.errors import TimestampRangeError
from sidetier.pipeline.reading import timestamps
from sidetier.pipeline.spark.columns import (
    TYPES,
    Shape,
    all_columns,
    chosen_columns,
    decoded_columns,
)
from sidetier.segments.arrow import decode_batches, scan_headers, schema_of
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import TopicPartition
from tests.harness.record_batches import MadeBatch, MadeRecord

TP = TopicPartition("orders", 3)


def records(columns: tuple[str, ...], *some: MadeRecord) -> pa.RecordBatch:
    data = MadeBatch(some).encoded()
    return decode_batches(data, scan_headers(data), columns=decoded_columns(columns))


def test_columns_have_sparks_names_and_types() -> None:
    columns = all_columns(headers=True)
    result = Shape(TP, columns).of(
        records(
            columns,
            MadeRecord(7, 1700000000123, key=None, value=b"v", headers=((b"h", None),)),
            MadeRecord(8, 1700000000124, key=b"k", value=None),
        )
    )
    assert {field.name: field.type for field in result.schema} == dict(TYPES)
    result.validate(full=True)
    first, second = result.to_pylist()
    assert first.pop("timestamp").timestamp() == 1700000000.123
    assert first == {
        "key": None,
        "value": b"v",
        "topic": "orders",
        "partition": 3,
        "offset": 7,
        "timestampType": 0,
        "headers": [{"key": "h", "value": None}],
    }
    assert (second["key"], second["value"], second["headers"]) == (b"k", None, None)


def test_slice_keeps_its_own_headers() -> None:
    made = [MadeRecord(n, 0, headers=((b"n", b"%d" % n),) * (n % 3)) for n in range(9)]
    whole = records(("headers",), *made)
    result = Shape(TP, ("headers",)).of(whole.slice(4, 3)).column(0)
    result.validate(full=True)
    assert result.to_pylist() == [
        [{"key": "n", "value": b"4"}],
        [{"key": "n", "value": b"5"}] * 2,
        None,
    ]


def test_only_named_columns_are_decoded() -> None:
    assert decoded_columns(("topic", "timestampType", "key")) == ("timestamp_type", "key")
    assert decoded_columns(("partition",)) == ("offset",)
    some = records(("partition",), MadeRecord(7, 0), MadeRecord(8, 0))
    assert some.schema == schema_of(("offset",))
    result = Shape(TP, ("partition", "topic")).of(some)
    assert result.to_pylist() == [{"partition": 3, "topic": "orders"}] * 2


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("ofset", "did you mean offset"),
        ("headers", "includeHeaders"),
        ("key,key", "twice"),
        ("", "there is no ''"),
        ([], "none"),
    ],
)
def test_unknown_columns_are_refused(named: str | list[str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        chosen_columns(named, headers=False)


def test_columns_can_be_text_or_a_list() -> None:
    assert chosen_columns("offset, key", headers=False) == ("offset", "key")
    assert chosen_columns(["headers"], headers=True) == ("headers",)
    assert "headers" not in all_columns(headers=False)


@pytest.mark.parametrize("timestamp", [timestamps.EARLIEST_MS, -1, 0, timestamps.LATEST_MS])
def test_timestamp_is_exact_at_both_limits(timestamp: int) -> None:
    result = Shape(TP, ("timestamp",)).of(records(("timestamp",), MadeRecord(7, timestamp)))
    assert result.schema.names == ["timestamp"]
    assert result.column(0).cast(pa.int64()).to_pylist() == [timestamp * 1000]


@pytest.mark.parametrize(
    "timestamp",
    [-(2**63), timestamps.EARLIEST_MS - 1, timestamps.LATEST_MS + 1, 2**63 - 1],
)
def test_error_for_a_timestamp_beyond_the_limits_names_the_record(timestamp: int) -> None:
    """Spark's own source reports `long overflow`; a wrapped timestamp would be wrong."""
    given = records(("timestamp",), MadeRecord(7, 0), MadeRecord(8, timestamp))
    with pytest.raises(TimestampRangeError) as met:
        Shape(TP, ("timestamp",)).of(given)
    assert f"topic orders, partition 3, offset 8: timestamp {timestamp} ms" in str(met.value)
    sent = pickle.loads(pickle.dumps(met.value))  # noqa: S301 -- made here
    assert str(sent) == str(met.value)
    without = Shape(TP, ("offset",)).of(given)
    assert without.column(0).to_pylist() == [7, 8]
    raw = Shape(TP, ("timestamp",), raw_timestamps=True).of(given)
    assert raw.column(0).to_pylist() == [0, timestamp]
