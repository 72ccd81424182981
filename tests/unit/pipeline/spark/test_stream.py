"""Where a stream stands, in the orders in which Spark asks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sidetier.pipeline.errors import StreamBehindError
from sidetier.pipeline.spark.places import close_all
from sidetier.pipeline.spark.settings import read_settings
from sidetier.pipeline.spark.stream import StreamPosition, as_json, from_json
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.factory import open_plain
from sidetier.storage.port import RemoteStorage
from sidetier.storage.settings import StorageEndpoint
from tests.harness.made_archive import MadeArchive, batches

LAYOUT = ArchiveLayout("prod-a", 5)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RemoteStorage]:
    """A file-system store with two partitions: 0 has offsets 0 to 39, 1 has 0 to 19."""
    opened = open_plain(StorageEndpoint(f"file://{tmp_path}/store"))
    partition(opened, 0).segments(0, 20, 40)
    partition(opened, 1).segments(0, 20)
    yield opened
    opened.close()
    close_all()


def partition(store: RemoteStorage, number: int) -> MadeArchive:
    return MadeArchive(store, LAYOUT, TopicPartition("orders", number))


@pytest.fixture
def stream(store: RemoteStorage, tmp_path: Path) -> Iterator["Streams"]:  # noqa: ARG001 -- is there
    """Streams over it, closed at the end."""
    streams = Streams(f"file://{tmp_path}/store")
    yield streams
    streams.close()


class Streams:
    def __init__(self, url: str) -> None:
        self._url = url
        self._open: list[StreamPosition] = []

    def __call__(self, **options: str) -> StreamPosition:
        given = {
            "subscribe": "orders",
            "tiered.storage.url": self._url,
            "tiered.storage.cluster.name": "prod-a",
            **options,
        }
        self._open.append(StreamPosition(read_settings(given, streaming=True)))
        return self._open[-1]

    def close(self) -> None:
        for one in self._open:
            one.close()


def at(*offsets: int) -> dict[str, dict[str, int]]:
    return {"orders": {str(number): offset for number, offset in enumerate(offsets)}}


def test_a_new_stream_begins_at_the_latest_offset_unless_told_otherwise(stream: Streams) -> None:
    assert stream().initial() == at(40, 20)
    assert stream(startingOffsets="earliest").initial() == at(0, 0)
    assert stream(startingOffsets='{"orders": {"0": 7, "1": -1}}').initial() == at(7, 20)


def test_batches_are_limited_from_where_the_last_one_ended(stream: Streams) -> None:
    one = stream(startingOffsets="earliest", maxOffsetsPerTrigger="30")
    begin = one.initial()
    first = one.latest()
    assert first == at(20, 10)
    assert one.latest() == first
    plan = one.plan(begin, first)
    assert [(split.tp.partition, split.range.until) for split in plan.splits] == [(0, 20), (1, 10)]
    assert one.latest() == at(40, 20)


def test_after_a_restart_a_batch_of_nothing_says_where_the_stream_stands(stream: Streams) -> None:
    one = stream(startingOffsets="earliest", maxOffsetsPerTrigger="10")
    assert not one.plan(at(20, 20), at(20, 20)).splits
    assert one.latest() == at(30, 20)


def test_asked_for_the_latest_offset_before_anything_else_a_query_is_new(
    stream: Streams, store: RemoteStorage
) -> None:
    one = stream(startingOffsets="earliest", maxOffsetsPerTrigger="30")
    assert one.latest() == at(20, 10)
    assert one.initial() == at(0, 0)
    other = stream()
    assert other.latest() == at(40, 20)
    partition(store, 1).segment(20, batches(20, 30))
    partition(store, 1).mark(20, 30)
    assert other.initial() == at(40, 20)
    assert other.latest() == at(40, 30)


def test_spark_may_say_where_the_batch_begins(stream: Streams) -> None:
    one = stream(maxOffsetsPerTrigger="10")
    one.initial()
    assert one.latest(at(20, 20)) == at(30, 20)


def test_a_new_partition_begins_at_its_earliest_offset(
    stream: Streams, store: RemoteStorage
) -> None:
    one = stream()
    begin = one.initial()
    partition(store, 2).segments(5, 15)
    end = one.latest()
    assert end == at(40, 20, 15)
    [split] = one.plan(begin, end).splits
    assert (split.tp.partition, split.range.first, split.range.until) == (2, 5, 15)


def test_an_archive_that_ends_before_the_stream_is_an_error_or_waited_for(
    stream: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StreamBehindError, match="stands at offset 99, and the archive ends at 40"):
        stream().latest(at(99, 20))
    assert stream(failOnDataLoss="false").latest(at(99, 20)) == at(99, 20)
    assert "stands at offset 99" in caplog.text


def test_offsets_are_written_as_spark_s_kafka_source_writes_them() -> None:
    offsets = {TopicPartition("b", 10): 5, TopicPartition("b", 2): 4, TopicPartition("a", 0): 3}
    assert as_json(offsets) == {"a": {"0": 3}, "b": {"2": 4, "10": 5}}
    assert from_json(as_json(offsets)) == offsets
