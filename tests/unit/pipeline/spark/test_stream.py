"""The position of a stream, in the orders of Spark's calls."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidetier.archive.errors import ArchiveReplacedError
from sidetier.pipeline.errors import (
    StreamBehindError,
    StreamTopicReplacedError,
    StreamTruncatedError,
)
from sidetier.pipeline.planning.split import Plan
from sidetier.pipeline.spark.settings import close_all, read_settings
from sidetier.pipeline.spark.stream import StreamPosition
from sidetier.pipeline.spark.stream_offset import OffsetJson, StreamOffset, as_json, from_json
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import LeaderEpoch, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.factory import open_plain
from sidetier.storage.port import RemoteStorage
from sidetier.storage.settings import StorageEndpoint
from tests.harness.diverged_archive import before_the_election, elect_uncleanly, go_on, set_aside
from tests.harness.made_archive import MadeArchive, batches
from tests.harness.record_batches import MadeBatch, MadeRecord
from tests.harness.splits import read_splits
from tests.harness.tail_packs import TOPIC_ID
from tests.harness.tailed_log import TailedLog

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
    """Streams over the store; they are closed at the end."""
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
        for item in self._open:
            item.close()


def at(*offsets: int) -> dict[str, dict[str, int]]:
    return {"orders": {str(number): offset for number, offset in enumerate(offsets)}}


def test_a_new_stream_begins_at_the_latest_offset_by_default(stream: Streams) -> None:
    assert stream().initial() == at(40, 20)
    assert stream(startingOffsets="earliest").initial() == at(0, 0)
    assert stream(startingOffsets='{"orders": {"0": 7, "1": -1}}').initial() == at(7, 20)


def test_batches_are_limited_from_the_end_of_the_last_one(stream: Streams) -> None:
    one = stream(startingOffsets="earliest", maxOffsetsPerTrigger="30")
    begin = one.initial()
    first = one.latest()
    assert first == at(20, 10)
    assert one.latest() == first
    plan = one.plan(begin, first)
    assert [(split.tp.partition, split.range.end) for split in plan.splits] == [(0, 20), (1, 10)]
    assert one.latest() == at(40, 20)


def test_after_a_restart_an_empty_batch_shows_the_position_of_the_stream(stream: Streams) -> None:
    one = stream(startingOffsets="earliest", maxOffsetsPerTrigger="10")
    assert not one.plan(at(20, 20), at(20, 20)).splits
    assert one.latest() == at(30, 20)


def test_a_query_whose_first_call_requests_the_latest_offset_is_new(
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


def test_spark_may_pass_the_start_of_the_batch(stream: Streams) -> None:
    one = stream(maxOffsetsPerTrigger="10")
    one.initial()
    assert one.latest(at(20, 20)) == at(30, 20)


def test_new_partition_begins_at_its_earliest_offset(stream: Streams, store: RemoteStorage) -> None:
    one = stream()
    begin = one.initial()
    partition(store, 2).segments(5, 15)
    end = one.latest()
    assert end == at(40, 20, 15)
    [split] = one.plan(begin, end).splits
    assert (split.tp.partition, split.range.start, split.range.end) == (2, 5, 15)


def test_archive_that_ends_below_the_stream_is_an_error_or_waited_for(
    stream: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StreamBehindError, match="is at offset 99, and the archive ends at 40"):
        stream().latest(at(99, 20))
    assert stream(failOnDataLoss="false").latest(at(99, 20)) == at(99, 20)
    assert "is at offset 99" in caplog.text


def test_offsets_are_written_as_sparks_kafka_source_writes_them() -> None:
    places = {
        TopicPartition("b", 10): Offset(5),
        TopicPartition("b", 2): Offset(4),
        TopicPartition("a", 0): Offset(3),
    }
    offset = StreamOffset(places)
    assert as_json(offset) == {"a": {"0": 3}, "b": {"2": 4, "10": 5}}
    assert from_json(as_json(offset)) == offset


def test_an_offset_has_the_leader_epochs_and_topic_ids() -> None:
    tp = TopicPartition("a", 0)
    epochs = EpochHistory(((LeaderEpoch(1), Offset(0)), (LeaderEpoch(3), Offset(12))))
    offset = StreamOffset({tp: Offset(40)}, {tp: epochs}, {"a": "first"}, {tp: Offset(24)})
    assert json.loads(json.dumps(as_json(offset))) == {
        "a": {"0": 40},
        "sidetier:leader_epochs": {"a": {"0": [[1, 0], [3, 12]]}},
        "sidetier:topic_ids": {"a": "first"},
        "sidetier:reread_from": {"a": {"0": 24}},
    }
    assert from_json(json.loads(json.dumps(as_json(offset)))) == offset


@pytest.mark.parametrize(
    ("offset", "error"),
    [
        ({"a": {"0": 3}, "sidetier:more": {}}, "sidetier:more.*a later one"),
        ({"a": {"zero": 3}}, "not one of this source"),
        ({"a": 3}, "not one of this source"),
        ({"a": {"0": 3}, "sidetier:leader_epochs": {"a": {"0": [1]}}}, "not one of this source"),
    ],
)
def test_unknown_offset_version_is_refused(offset: OffsetJson, error: str) -> None:
    with pytest.raises(MalformedObjectError, match=error):
        from_json(offset)


@pytest.fixture
def diverged(tmp_path: Path) -> Iterator[MadeArchive]:
    """An archive of partition 0 with the offsets 0 to 39, of leader epochs 1 and 3."""
    opened = open_plain(StorageEndpoint(f"file://{tmp_path}/diverged"))
    archive = partition(opened, 0)
    before_the_election(archive, "first")
    yield archive
    opened.close()
    close_all()


@pytest.fixture
def following(diverged: MadeArchive, tmp_path: Path) -> Iterator["Streams"]:  # noqa: ARG001 -- is there
    streams = Streams(f"file://{tmp_path}/diverged")
    yield streams
    streams.close()


def read(plan: Plan) -> list[tuple[int, int]]:
    """The ranges of a plan's splits."""
    return [(split.range.start, split.range.end) for split in plan.splits]


def restarted(stream: StreamPosition, stands: OffsetJson) -> StreamPosition:
    """Restart the stream as Spark does."""
    stream.plan(stands, stands)
    return stream


def read_to_the_end(stream: StreamPosition) -> OffsetJson:
    """Read one batch and return its end."""
    begin = stream.initial()
    end = stream.latest()
    assert read(stream.plan(begin, end)) == [(0, 40)]
    return end


EARLIEST = {"startingOffsets": "earliest"}
REREAD = {**EARLIEST, "onTruncation": "reread"}


def test_stream_stops_at_a_divergence_below_its_position(
    diverged: MadeArchive, following: Streams
) -> None:
    stands = read_to_the_end(following(**EARLIEST))
    elect_uncleanly(diverged, topic_id="first")
    with pytest.raises(
        StreamTruncatedError, match=r"offsets \[24, 40\) .leader epoch 3, now 4"
    ) as met:
        restarted(following(**EARLIEST), stands).latest()
    assert "onTruncation" in str(met.value)
    with pytest.raises(StreamTruncatedError):
        following(**EARLIEST, failOnDataLoss="false").latest(stands)


def test_running_and_restarted_streams_handle_a_divergence_equally(
    diverged: MadeArchive, following: Streams
) -> None:
    running = following(**REREAD)
    stands = read_to_the_end(running)
    elect_uncleanly(diverged, topic_id="first")
    end = running.latest()
    assert end == restarted(following(**REREAD), stands).latest()
    assert read(running.plan(stands, end)) == [(24, 50)]


def test_records_that_replace_discarded_ones_are_read_once(
    diverged: MadeArchive, following: Streams
) -> None:
    stands = read_to_the_end(following(**REREAD))
    elect_uncleanly(diverged, end=40, topic_id="first")
    again = restarted(following(**REREAD), stands)
    end = again.latest()
    assert read(again.plan(stands, end)) == [(24, 40)]
    # Planned again after a crash it is the same batch, and the next batch contains none of it.
    later = following(**REREAD)
    assert read(later.plan(stands, end)) == [(24, 40)]
    assert later.latest() == end
    assert not later.plan(end, end).splits
    diverged.segment(40, batches(40, 45))
    diverged.mark(40, 45, leader_epoch=4, topic_id="first")
    last = later.latest()
    assert read(later.plan(end, last)) == [(40, 45)]


def test_batch_planned_before_the_election_is_read_as_far_as_it_exists(
    diverged: MadeArchive, following: Streams
) -> None:
    begin = following(**REREAD, maxOffsetsPerTrigger="20")
    half, end = begin.latest(), begin.latest(as_json(StreamOffset({diverged.tp: Offset(20)})))
    elect_uncleanly(diverged, topic_id="first")
    with pytest.raises(StreamTruncatedError):
        following(**EARLIEST).plan(half, end)
    again = following(**REREAD)
    assert read(again.plan(half, end)) == [(20, 24)]
    last = again.latest()
    assert read(again.plan(end, last)) == [(24, 50)]


def test_stream_waits_until_the_archive_shows_the_divergence(
    diverged: MadeArchive, following: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    stands = read_to_the_end(following(**REREAD))
    set_aside(diverged, "first")
    with pytest.raises(StreamBehindError, match="is at offset 40, and the archive ends at 24"):
        restarted(following(**EARLIEST), stands).latest()
    waiting = restarted(following(**REREAD), stands)
    assert waiting.latest() == stands
    assert "the archive ends at 24" in caplog.text
    go_on(diverged, 30, "first")
    end = waiting.latest()
    assert end["orders"] == {"0": 30}
    assert read(waiting.plan(stands, end)) == [(24, 30)]


def test_an_offset_of_an_earlier_version_continues_and_gets_leader_epochs(
    diverged: MadeArchive, following: Streams
) -> None:
    one = restarted(following(**EARLIEST), at(40))
    assert one.latest() == at(40)
    diverged.segment(40, batches(40, 45))
    diverged.mark(40, 45, topic_id="first")
    end = one.latest()
    assert end["sidetier:leader_epochs"] == {"orders": {"0": ((1, 0), (3, 12))}}
    assert read(one.plan(at(40), end)) == [(40, 45)]


def test_running_stream_without_known_epochs_ends_at_a_divergence(
    diverged: MadeArchive, following: Streams
) -> None:
    one = restarted(following(**REREAD), at(40))
    assert one.latest() == at(40)
    elect_uncleanly(diverged, topic_id="first")
    with pytest.raises(ArchiveReplacedError):
        one.latest()


def test_recreated_topic_is_an_error_or_read_from_its_start(
    diverged: MadeArchive, following: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    stands = read_to_the_end(following(**EARLIEST))
    for base in (0, 10, 20, 30):
        diverged.lose(base)
    diverged.segments(0, 60)
    diverged.epoch_history((0, 0))
    diverged.mark(0, 60, topic_id="second")
    with pytest.raises(
        StreamTopicReplacedError, match="id first, and the archive has the topic with the id sec"
    ):
        restarted(following(**EARLIEST), stands).latest()
    again = restarted(following(**EARLIEST, failOnDataLoss="false"), stands)
    end = again.latest()
    assert "created again" in caplog.text
    assert read(again.plan(stands, end)) == [(0, 60)]
    assert end["sidetier:topic_ids"] == {"orders": "second"}
    assert again.latest() == end


@pytest.fixture
def tailed(store: RemoteStorage, monkeypatch: pytest.MonkeyPatch) -> TailedLog:
    """A log of batches with three records, archived up to 12, and in a pack up to 18."""
    monkeypatch.setattr("sidetier.pipeline.spark.stream.PACK_SECONDS", 0.0)
    log = TailedLog(store=store, layout=LAYOUT, tp=TopicPartition("tailed", 0))
    for _ in range(8):
        log.write(9, 3, transactional=False)
    log.archived(0, 6, 12)
    log.pack(1, 0, (12, 18))
    return log


TAILED = {
    "subscribe": "tailed",
    "startingOffsets": "earliest",
    "tiered.storage.with.tail": "true",
    "maxOffsetsPerTrigger": "100",
}


def offsets_of(log: TailedLog, plan: Plan) -> list[int]:
    return read_splits(log.store, plan.splits, layout=LAYOUT, with_tail=True).offsets


def test_stream_reads_records_of_packs_once(stream: Streams, tailed: TailedLog) -> None:
    position = stream(**TAILED)
    first = position.initial()
    second = position.latest()
    assert json.loads(json.dumps(second)) == {
        "tailed": {"0": 18},
        "sidetier:leader_epochs": {"tailed": {"0": [[0, 0]]}},
        "sidetier:topic_ids": {"tailed": TOPIC_ID},
    }
    planned = position.plan(first, second)
    tailed.archived(0, 6, 12, 15)
    assert offsets_of(tailed, planned) == list(range(18))
    assert position.latest() == second
    tailed.pack(2, 0, (18, 24))
    third = position.latest()
    assert offsets_of(tailed, position.plan(second, third)) == list(range(18, 24))
    # After a restart, the last batch is planned again. Its records are archived by now.
    tailed.archived(0, 6, 12, 15, 24)
    for key in [row.key for row in tailed.store.list_objects(LAYOUT.tails_prefix())]:
        tailed.store.delete_object(key)
    restarted = stream(**TAILED)
    assert offsets_of(tailed, restarted.plan(second, third)) == list(range(18, 24))
    assert restarted.latest() == third


@pytest.mark.parametrize("restarts", [False, True])
def test_records_of_packs_that_a_later_leader_has_discarded(
    stream: Streams, tailed: TailedLog, *, restarts: bool
) -> None:
    position = stream(**TAILED)
    first = position.initial()
    second = position.latest()
    assert position.plan(first, second).splits
    new = tailed.elected_uncleanly(15)
    new.claim(2, 0)
    if restarts:
        position = stream(**TAILED)
        position.plan(second, second)
    with pytest.raises(StreamTruncatedError, match=r"offsets \[15, 18\) .leader epoch 0, now 1"):
        position.latest()
    for first_record in range(15, 24, 3):
        rows = (MadeRecord(at, value=b"new") for at in range(first_record, first_record + 3))
        new.batches.append(MadeBatch(tuple(rows)))
    new.pack(2, 1, (15, 24))
    rereading = stream(**TAILED, onTruncation="reread")
    rereading.plan(second, second)
    third = rereading.latest()
    assert offsets_of(tailed, rereading.plan(second, third)) == list(range(15, 24))


def test_stream_waits_while_it_is_not_known_what_packs_have(
    stream: Streams, tailed: TailedLog, caplog: pytest.LogCaptureFixture
) -> None:
    position = stream(**TAILED)
    first = position.initial()
    second = position.latest()
    position.plan(first, second)
    key = LAYOUT.tail_pack_key(3, 0)
    tailed.store.put_object(key, BytesBody(b"damaged"))
    assert position.latest() == second
    assert position.latest() == second
    text = f"the stream waits: tailed-0: {key} cannot be read"
    assert caplog.text.count(text) == 1, "once, not at each trigger"
    tailed.store.delete_object(key)
    tailed.pack(1, 1, (18, 24))
    assert position.latest()["tailed"] == {"0": 24}
