from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sidetier.pipeline.export.sinks.files.names import FileName, escaped, parse_file_name
from sidetier.pipeline.export.sinks.files.options import FilesOptions, PartitionerKind
from sidetier.pipeline.export.sinks.files.partitioners import partitioner_of
from sidetier.pipeline.export.sinks.files.rows import check_time_field, times_of
from sidetier.pipeline.export.values.options import ValueOptions
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import Offset, TopicPartition

SCHEMA = ValueOptions.model_validate({"format": "json", "schema_text": "{}"}, strict=False)
VALUES = pa.array(
    [
        {"country": "de", "paid": True, "at": 1000, "who": {"name": "a/b"}},
        {"country": None, "paid": False, "at": None, "who": {"name": ""}},
        {"country": "de", "paid": True, "at": 2000, "who": None},
        None,
    ],
    pa.struct(
        [
            ("country", pa.string()),
            ("paid", pa.bool_()),
            ("at", pa.int64()),
            ("who", pa.struct([("name", pa.string())])),
        ]
    ),
)
NULL = "__HIVE_DEFAULT_PARTITION__"


def encoded(times: list[int], values: pa.Array, **options: Any) -> list[str]:  # noqa: ANN401
    made = FilesOptions.model_validate(options, strict=False)
    partition = partitioner_of(made, 3, values.type)
    found = partition(values, np.array(times, dtype=np.int64))
    return [found.names[code] for code in found.codes]


def test_default_partitioner_uses_the_kafka_partition() -> None:
    assert encoded([1, 2], pa.array([None, None], pa.binary())) == ["partition=3"] * 2


def test_field_partitioner_uses_the_values_of_fields() -> None:
    found = encoded(
        [0] * 4,
        VALUES,
        partitioner="field",
        partition_fields=["country", "paid", "who.name"],
        value=SCHEMA,
    )
    assert found == [
        "country=de/paid=true/who.name=a%2Fb",
        f"country={NULL}/paid=false/who.name={NULL}",
        f"country=de/paid=true/who.name={NULL}",
        f"country={NULL}/paid={NULL}/who.name={NULL}",
    ]


def test_time_partitioners_use_the_timestamp() -> None:
    at = [
        round(datetime(2026, 11, 21, hour, minute, tzinfo=UTC).timestamp() * 1000)
        for hour, minute in ((22, 59), (23, 0), (23, 10))
    ]
    values = pa.array([None] * 3, pa.binary())
    assert encoded(at, values, partitioner="hourly") == [
        "year=2026/month=11/day=21/hour=22",
        "year=2026/month=11/day=21/hour=23",
        "year=2026/month=11/day=21/hour=23",
    ]
    berlin = encoded(at, values, partitioner="daily", timezone="Europe/Berlin")
    assert [path[-2:] for path in berlin] == ["21", "22", "22"]
    quarters = encoded(
        at, values, partitioner="time", path_format="HH'h'mm", partition_duration_ms=900_000
    )
    assert quarters == ["22h45", "23h00", "23h00"]


def test_day_begins_at_midnight_of_the_time_zone() -> None:
    """Also for an offset that is not a whole number of hours."""
    at = round(datetime(2026, 11, 20, 18, 15, tzinfo=UTC).timestamp() * 1000)
    values = pa.array([None] * 2, pa.binary())
    found = encoded([at - 1, at], values, partitioner="daily", timezone="Asia/Kathmandu")
    assert [path[-2:] for path in found] == ["20", "21"]


@pytest.mark.parametrize("name", ["nothing", "who.age", "country.x"])
def test_unknown_fields_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="no such field"):
        encoded([0] * 4, VALUES, partitioner="field", partition_fields=[name], value=SCHEMA)


def test_field_that_cannot_be_a_directory_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="can be no directory"):
        encoded([0] * 4, VALUES, partitioner="field", partition_fields=["who"], value=SCHEMA)


def test_timestamps_of_records_are_extracted() -> None:
    stamps = pa.array([5, -1, 2**62, -7], pa.int64())
    times, misfits = times_of(stamps, pa.nulls(4), None)
    assert times.tolist() == [5, -1, -1, -1]
    assert [one.row for one in misfits] == [1, 2, 3]
    assert "has a date" in misfits[1].reason


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1000, None], pa.int64()), 1000),
        (pa.array(["1970-01-01T00:00:01Z", "soon"]), 1000),
        (pa.array(["1970-01-01T01:00:01+01:00", None]), 1000),
        (pa.array([1_000_999, None], pa.timestamp("us", tz="UTC")), 1000),
        (pa.array([1, None], pa.date32()), 86_400_000),
        (pa.array([-1000, 2**61], pa.int64()), -1000),
    ],
)
def test_times_of_a_field_are_extracted(column: pa.Array, expected: int) -> None:
    values = pa.StructArray.from_arrays([column], ["at"])
    check_time_field(values.type, "at")
    times, misfits = times_of(pa.array([0, 0], pa.int64()), values, "at")
    assert times.tolist() == [expected, -1]
    [misfit] = misfits
    assert misfit.row == 1
    assert "field at" in misfit.reason


def test_field_without_a_time_type_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is bool"):
        check_time_field(VALUES.type, "paid")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"partitioner": "field"}, "needs partition fields"),
        ({"partition_fields": ["a"]}, "needs partition fields"),
        ({"partitioner": "field", "partition_fields": ["a"]}, "json, avro or protobuf"),
        ({"timestamp_field": "a"}, "json, avro or protobuf"),
        ({"path_format": "YYYY"}, "by time"),
        ({"format": "raw", "value": SCHEMA}, "as they are"),
        ({"key_delimiter": b"\t"}, "for raw files"),
        ({"compression": "brotli"}, "snappy"),
        ({"topics_dir": "/topics"}, "without a slash"),
        ({"topics_dir": "a/../b"}, "without a slash"),
        ({"flush_size": 0}, "greater than"),
        ({"unheard": 1}, "Extra inputs"),
    ],
)
def test_contradicting_options_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        FilesOptions.model_validate(options, strict=False)


def test_options_round_trip_through_json() -> None:
    options = FilesOptions(
        partitioner=PartitionerKind.TIME, delimiter=b"\xff\0", max_open_files=7, value=SCHEMA
    )
    assert FilesOptions.model_validate_json(options.model_dump_json()) == options


def test_file_names_contain_topic_partition_and_first_offset() -> None:
    name = FileName(TopicPartition("my.topic-1", 12), Offset(345), "snappy.parquet")
    assert str(name) == "my.topic-1+12+0000000345.snappy.parquet"
    assert parse_file_name(str(name), "my.topic-1") == name
    assert parse_file_name(str(name), "my.topic") is None
    long = FileName(TopicPartition("t", 0), Offset(12_345_678_901), "avro")
    assert parse_file_name(str(long), "t") == long
    for other in (
        "t+0+345.avro",
        "t+00+0000000345.avro",
        "t+0+00000000345.avro",
        "t+0+0000000345",
        "manifest.json",
        "part-0000.parquet",
    ):
        assert parse_file_name(other, "t") is None


@pytest.mark.parametrize("topic", ["t" * 231, "t" * 232, "t" * 249])
def test_file_names_of_long_topics_fit_a_file_system(topic: str) -> None:
    names = [
        FileName(TopicPartition(topic, number), Offset(offset), "avro")
        for number in (0, 12)
        for offset in (0, 12_345_678_901)
    ]
    assert max(len(str(name)) for name in names) <= 255
    assert len({str(name) for name in names}) == len(names)
    for name in names:
        assert parse_file_name(str(name), topic) == name
        # Earlier versions wrote it to object stores.
        earlier = f"{topic}+{name.tp.partition}+{name.start:010d}.avro"
        assert parse_file_name(earlier, topic) == name
    assert str(FileName(TopicPartition("t" * 237, 0), Offset(0), "avro")) == (
        "t" * 237 + "+0+0000000000.avro"
    )


@pytest.mark.parametrize(
    ("value", "path"),
    [("a b", "a b"), ("", NULL), ("..", "%2E%2E"), ("x=1/é\n", "x%3D1%2Fé%0A")],
)
def test_values_are_encoded_as_directory_names(value: str, path: str) -> None:
    assert escaped(value) == path
