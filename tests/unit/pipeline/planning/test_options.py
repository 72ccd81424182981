"""Options of Spark's Kafka source, and the errors for wrong ones."""

import logging
import subprocess
import sys

import pytest

from sidetier.pipeline.planning.offsets_json import numbers_json, parse_numbers
from sidetier.pipeline.planning.options import option_names, read_request
from sidetier.pipeline.planning.request import (
    DEFAULT_SPLIT_BYTES,
    Assigned,
    AtOffsets,
    AtTimes,
    Edge,
    NoMatch,
    ReadRequest,
    TopicPattern,
    Topics,
)
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import TopicPartition

A0, A1, B2 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 2)
OF_A = {"subscribe": "a"}


def test_defaults_equal_sparks() -> None:
    assert read_request(OF_A) == ReadRequest(
        Topics(("a",)),
        Edge.EARLIEST,
        Edge.LATEST,
        no_match=NoMatch.ERROR,
        isolation=IsolationLevel.READ_UNCOMMITTED,
        fail_on_data_loss=True,
        include_headers=False,
        min_partitions=None,
        max_offsets_per_trigger=None,
        max_split_bytes=DEFAULT_SPLIT_BYTES,
    )
    assert read_request(OF_A, streaming=True).starting is Edge.LATEST


def test_option_names_are_case_insensitive_and_every_option_is_read() -> None:
    request = read_request(
        {
            "SUBSCRIBE": " a, b ,",
            "startingoffsets": '{"a": {"0": 23, "1": -2}, "b": {"2": 7}}',
            "endingOffsets": '{"a": {"0": 50, "1": -1}, "b": {"2": 9}}',
            "startingOffsetsByTimestampStrategy": "Latest",
            "minpartitions": "10",
            "maxOffsetsPerTrigger": "1000",
            "failOnDataLoss": "False",
            "includeheaders": "true",
            "Kafka.Isolation.Level": "read_committed",
            "maxBytesPerSplit": "64MiB",
            "tiered.storage.url": "file:///archive",
        }
    )

    assert request == ReadRequest(
        Topics(("a", "b")),
        AtOffsets({A0: 23, A1: -2, B2: 7}),
        AtOffsets({A0: 50, A1: -1, B2: 9}),
        no_match=NoMatch.LATEST,
        isolation=IsolationLevel.READ_COMMITTED,
        fail_on_data_loss=False,
        include_headers=True,
        min_partitions=10,
        max_offsets_per_trigger=1000,
        max_split_bytes=64 * 1024**2,
    )


def test_partitions_are_selected_by_pattern_or_one_by_one() -> None:
    assert read_request({"subscribePattern": "a.*"}).selection == TopicPattern("a.*")
    assigned = read_request({"assign": '{"b": [2], "a": [1, 0, 0]}'}).selection
    assert assigned == Assigned((A0, A1, B2))


def test_single_time_takes_precedence_over_times_and_offsets() -> None:
    by_offset = OF_A | {"startingOffsets": "earliest", "endingOffsets": "latest"}
    by_times = by_offset | {
        "startingOffsetsByTimestamp": '{"a": {"0": 1000}}',
        "endingOffsetsByTimestamp": '{"a": {"0": 2000}}',
    }
    by_time = by_times | {"startingTimestamp": "0", "endingTimestamp": "4000"}

    assert read_request(by_times).starting == AtTimes(times={A0: 1000})
    assert read_request(by_times).ending == AtTimes(times={A0: 2000})
    assert read_request(by_time).starting == AtTimes(0)
    assert read_request(by_time).ending == AtTimes(4000)


@pytest.mark.parametrize(
    ("text", "time"), [("1970-01-02", 86_400_000), ("1970-01-01T00:00:05Z", 5000), ("2s", 7000)]
)
def test_times_may_be_dates_and_times_before_now(text: str, time: int) -> None:
    given = OF_A | {"startingTimestamp": text, "endingTimestamp": text}
    request = read_request(given, now_ms=9000)
    assert (request.starting, request.ending) == (AtTimes(time), AtTimes(time))


def test_stream_may_begin_at_the_latest_offset_and_a_batch_may_not() -> None:
    latest = OF_A | {"startingOffsets": '{"a": {"0": -1}}'}

    assert read_request(latest, streaming=True).starting == AtOffsets({A0: -1})
    with pytest.raises(ConfigurationError, match=r"startingOffsets: cannot be latest \(-1\) for"):
        read_request(latest)


def test_options_of_a_broker_have_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "sidetier.pipeline"):
        request = read_request(
            OF_A | {"kafka.bootstrap.servers": "secret:9092", "fetchOffset.numRetries": "3"}
        )

    assert request == read_request(OF_A)
    assert "kafka.bootstrap.servers" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "exactly one of subscribe, subscribePattern and assign .* none of them is given"),
        (OF_A | {"assign": "{}"}, "both subscribe and assign are given"),
        ({"subscribe": " , "}, "subscribe .*selects no topic"),
        ({"assign": "{}"}, "assign .*selects no topic"),
        ({"subscribePattern": ""}, "subscribePattern .*selects no topic"),
        ({"subscribePattern": "a("}, "subscribePattern 'a\\(': must be a regular expression"),
        ({"assign": '{"a": 1}'}, 'assign: 1 under topic a: must be JSON such as {"orders": '),
        ({"assign": '{"a": [-1]}'}, "assign: partition -1 of topic a"),
        (OF_A | {"startingOffset": "earliest"}, "no such option; did you mean startingOffsets?"),
        (OF_A | {"startingoffset": "earliest"}, "no such option; did you mean startingOffsets?"),
        (OF_A | {"Subscribe": "b"}, "subscribe: given twice"),
        (OF_A | {"startingOffsets": "latest"}, "startingOffsets: cannot be latest in a batch"),
        (OF_A | {"endingOffsets": "earliest"}, "endingOffsets: cannot be earliest in a batch"),
        (OF_A | {"endingOffsets": '{"a":{"0":-2}}'}, r"cannot be earliest \(-2\) for topic a"),
        (OF_A | {"startingOffsets": '{"a":{"0":-3}}'}, "-3 for topic a, partition 0: must be an"),
        (OF_A | {"startingOffsets": '{"a":{"0":true}}'}, "True for topic a, partition 0"),
        (OF_A | {"startingOffsets": '{"a":{"x":1}}'}, "startingOffsets: partition 'x'"),
        (OF_A | {"startingOffsets": '{"a":[1]}'}, "under topic a: must be JSON"),
        (OF_A | {"startingOffsets": "[]"}, "startingOffsets: '\\[\\]': must be JSON"),
        (OF_A | {"startingOffsets": "first"}, "startingOffsets: 'first' .*must be JSON"),
        (OF_A | {"startingOffsets": '{"a":{"0":1,"0":2}}'}, "'0', which is given twice"),
        (
            OF_A | {"startingTimestamp": "today"},
            "startingTimestamp: 'today' is not a time: use a",
        ),
        (OF_A | {"startingOffsetsByTimestampStrategy": "x"}, "'x': must be error or latest"),
        (OF_A | {"kafka.isolation.level": "serializable"}, "must be read_uncommitted or read_com"),
        (OF_A | {"failOnDataLoss": "yes"}, "failOnDataLoss 'yes': must be true or false"),
        (OF_A | {"minPartitions": "many"}, "minPartitions 'many': must be a whole number"),
        (OF_A | {"minPartitions": "0"}, "minPartitions 0: must be above 0"),
        (OF_A | {"maxBytesPerSplit": "big"}, "maxBytesPerSplit 'big': must be a size"),
        (OF_A | {"maxBytesPerSplit": "0"}, "maxBytesPerSplit 0: must be above 0"),
    ],
)
def test_error_names_the_wrong_option(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        read_request(options)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_stream_has_no_ending_offsets(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}: a stream has no end"):
        read_request(OF_A | {name: "latest"}, streaming=True)


def test_numbers_round_trip_through_json() -> None:
    numbers = {B2: 7, A1: -2, A0: 23}

    assert numbers_json(numbers) == '{"a":{"0":23,"1":-2},"b":{"2":7}}'
    assert parse_numbers(numbers_json(numbers), "offsets") == numbers


def test_options_are_read_without_pyarrow_and_pyspark() -> None:
    program = (
        "import sys, sidetier.pipeline.planning.options\n"
        "sys.exit(str(sorted({'numpy', 'pyarrow', 'pyspark', 'boto3'} & set(sys.modules))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )

    assert done.stderr.strip() == "[]"


def test_every_option_has_a_name() -> None:
    assert {"subscribe", "kafka.isolation.level", "maxBytesPerSplit"} <= set(option_names())
