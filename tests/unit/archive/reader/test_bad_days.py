"""Reading damaged archives and failing stores: nothing is skipped silently, and nothing is lost."""

import logging
import pickle

import pytest

from sidetier.archive.reader import (
    ArchiveReplacedError,
    DamagedArchiveError,
    Failed,
    Gap,
    GapReason,
    NoArchiveError,
    ReachedEnd,
    Records,
    WrongPlaceError,
)
from sidetier.segments.errors import (
    AccessDeniedError,
    MalformedObjectError,
    StoreThrottledError,
    StoreUnavailableError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.storage.retrying import RetryingStorage
from sidetier.storage.settings import RetryPolicy
from tests.harness.made_archive import (
    LAYOUT,
    TP,
    URL,
    Clock,
    MadeArchive,
    batches,
    encoded,
    offsets,
    read_from,
    read_over,
    reading,
    take_to_end,
    take_until,
)
from tests.harness.record_batches import MadeBatch, MadeRecord


@pytest.fixture
def archive() -> MadeArchive:
    made = MadeArchive()
    made.segments(0, 100, 200, 300)
    return made


@pytest.fixture
def fake(archive: MadeArchive) -> FakeStorage:
    assert isinstance(archive.store, FakeStorage)
    return archive.store


# Damaged objects


def test_truncated_object_is_an_error_that_names_the_missing_offsets(
    archive: MadeArchive,
) -> None:
    log = encoded(batches(100, 200))
    archive.put(archive.key(100), log[:-30], {"sidetier-next-offset": "200"})

    taken = read_from(archive, 50)

    assert offsets(taken) == list(range(50, 195))
    failed = taken[-1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, DamagedArchiveError)
    assert (failed.next_offset, *failed.error.offsets) == (195, 195, 200)
    assert failed.error.key == archive.key(100)
    assert log[failed.error.position :] == encoded(batches(195, 200))
    assert archive.key(100) in str(failed.error)
    assert "offsets [195, 200) are missing" in str(failed.error)
    assert offsets(read_over(archive, 50)) == [*range(50, 195), *range(200, 300)]


def test_damage_survives_the_way_from_an_executor_to_the_driver() -> None:
    error = DamagedArchiveError("cut", "a/key.log", 7, OffsetRange(Offset(1), Offset(5)))
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 -- our own
    assert (str(again), again.key, again.position, again.offsets) == ("cut", "a/key.log", 7, (1, 5))


def test_flipped_bit_loses_only_its_batch(archive: MadeArchive) -> None:
    log = bytearray(encoded(batches(100, 200)))
    at = len(encoded(batches(100, 150)))
    log[at + 70] ^= 1
    archive.put(archive.key(100), bytes(log), {"sidetier-next-offset": "200"})

    taken = read_from(archive, 0)

    failed = taken[-1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, DamagedArchiveError)
    assert (*failed.error.offsets, failed.error.position) == (150, 155, at)
    assert offsets(taken) == list(range(150))
    assert offsets(read_over(archive, 0)) == [*range(150), *range(155, 300)]


def test_damaged_header_loses_the_rest_of_its_segment(archive: MadeArchive) -> None:
    log = bytearray(encoded(batches(100, 200)))
    log[len(encoded(batches(100, 150))) + 16] = 9
    archive.put(archive.key(100), bytes(log), {"sidetier-next-offset": "200"})

    assert offsets(read_over(archive, 0)) == [*range(150), *range(200, 300)]


def test_damage_is_harmless_if_another_segment_has_the_offsets(
    archive: MadeArchive,
) -> None:
    archive.put(archive.key(100), encoded(batches(100, 200))[:-30])
    archive.segment(50, batches(50, 200))

    taken = read_from(archive, 0)

    assert offsets(taken) == list(range(300))
    assert taken[-1] == ReachedEnd(TP, Offset(300))


@pytest.mark.parametrize("recorded", [True, False])
def test_missing_segment_is_reported_as_a_gap(archive: MadeArchive, *, recorded: bool) -> None:
    archive.lose(100)
    if recorded:
        archive.gap(100, 200)

    taken = read_from(archive, 0)

    gap = taken[-1]
    assert isinstance(gap, Gap)
    assert gap.offsets == (100, 200)
    assert gap.reason is (GapReason.RECORDED_GAP if recorded else GapReason.NOT_STORED)
    assert f"{URL}/{LAYOUT.partition_prefix(TP)}" in gap.detail
    assert offsets(taken) == list(range(100))
    assert offsets(read_over(archive, 0)) == [*range(100), *range(200, 300)]


def test_gap_is_reported_until_the_reader_seeks_past_it(archive: MadeArchive) -> None:
    archive.lose(100)
    with reading(archive.store) as reader:
        reader.assign(TP, 0)
        first = take_to_end(reader)
        assert reader.take(100, 0.05) == []
        assert reader.position(TP) == 100
        reader.seek(TP, 100)
        assert take_to_end(reader)[-1] == first[-1]


def test_offsets_below_the_start_are_reported_as_out_of_range(archive: MadeArchive) -> None:
    archive.lose(0)

    taken = read_from(archive, 5)

    gap = taken[-1]
    assert isinstance(gap, Gap)
    assert (*gap.offsets, gap.reason) == (5, 100, GapReason.BELOW_START)


def test_compaction_leaves_no_gap(archive: MadeArchive) -> None:
    some = [one for one in batches(100, 200) if one.first not in {100, 120, 195}]
    archive.segment(100, some, next_offset=200)

    taken = read_from(archive, 0)

    left = [offset for one in some for offset in range(one.first, one.last + 1)]
    assert offsets(taken) == [*range(100), *left, *range(200, 300)]
    assert taken[-1] == ReachedEnd(TP, Offset(300))


class Heard:
    """Record the keys whose segments were scanned for lack of an index."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.hits: list[bool] = []
        self.bytes = 0
        self.records = 0

    def fetched(self, tp: object, size: int) -> None:
        assert tp == TP
        self.bytes += size

    def decoded(self, tp: object, records: int) -> None:
        assert tp == TP
        self.records += records

    def prefetch(self, tp: object, *, hit: bool) -> None:
        assert tp == TP
        self.hits.append(hit)

    def fell_back(self, key: str, reason: str) -> None:
        assert reason
        self.keys.append(key)


@pytest.mark.parametrize("harm", ["missing", "empty", "half an entry", "falling", "beyond the log"])
def test_segment_without_a_usable_index_is_scanned_and_reported_once(
    harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    archive = MadeArchive()
    log = archive.segment(0, batches(0, 3000))
    archive.mark(0, 3000)
    assert len(log) > 65536
    key = archive.key(0, FileKind.INDEX)
    data = archive.store.get_object(key).data
    if harm == "missing":
        archive.store.delete_object(key)
    else:
        archive.put(
            key,
            {
                "empty": b"",
                "half an entry": data[:-3],
                "falling": data[8:16] + data,
                "beyond the log": data + b"\x7f\xff\xff\xff\x7f\xff\xff\xff",
            }[harm],
        )
    heard = Heard()
    with caplog.at_level(logging.WARNING), reading(archive.store, observer=heard) as reader:
        for _ in range(2):
            reader.assign(TP, 2500)
            assert offsets(take_to_end(reader)) == list(range(2500, 3000))

    assert heard.keys == [archive.key(0)]
    assert len([text for text in caplog.messages if archive.key(0) in text]) == 1


def test_observer_receives_bytes_records_and_cache_hits(archive: MadeArchive) -> None:
    heard = Heard()
    with reading(archive.store, observer=heard) as reader:
        reader.assign(TP, 0)
        take_to_end(reader, most=50)

    assert heard.records == 300
    assert heard.bytes == len(encoded(batches(0, 300)))
    assert len(heard.hits) == 3


# Archives of Pinterest's uploader


@pytest.fixture
def pinterest() -> MadeArchive:
    made = MadeArchive(is_pinterest=True)
    made.segments(0, 100, 200, 300)
    return made


def test_end_of_a_pinterest_archive_is_read_from_its_bytes(pinterest: MadeArchive) -> None:
    pinterest.mark(0, 0)
    pinterest.put(LAYOUT.metadata_key(TP), b'{"topicPartition": "names no segment at all"}')

    taken = read_from(pinterest, 0)

    assert offsets(taken) == list(range(300))
    assert taken[-1] == ReachedEnd(TP, Offset(300))


def test_gap_of_a_pinterest_archive_is_reported_below_and_ends_it_above_the_watermark(
    pinterest: MadeArchive,
) -> None:
    pinterest.segment(400, batches(400, 500))
    pinterest.lose(100)

    taken = read_over(pinterest, 0)

    assert [one.offsets for one in taken if isinstance(one, Gap)] == [(100, 200)]
    assert offsets(taken) == [*range(100), *range(200, 300)]
    assert taken[-1] == ReachedEnd(TP, Offset(300))


def test_empty_indexes_of_a_pinterest_archive_need_one_request(
    pinterest: MadeArchive,
) -> None:
    assert isinstance(pinterest.store, FakeStorage)
    pinterest.segment(300, batches(300, 3000))
    pinterest.mark(300, 0)
    for base in (0, 100, 200, 300):
        pinterest.put(pinterest.key(base, FileKind.INDEX), b"")
    with reading(pinterest.store) as reader:
        bounds = reader.bounds(TP)
    assert bounds is not None
    assert (bounds.start_offset, bounds.next_offset, bounds.is_pinterest) == (0, 3000, True)
    assert pinterest.store.count("stream", pinterest.key(300)) == 1
    assert offsets(read_from(pinterest, 250)) == list(range(250, 3000))


@pytest.mark.parametrize("index", [True, False])
def test_truncated_last_segment_of_a_pinterest_archive_is_reported(
    pinterest: MadeArchive, *, index: bool
) -> None:
    pinterest.put(pinterest.key(200), encoded(batches(200, 300))[:-10])
    if not index:
        pinterest.put(pinterest.key(200, FileKind.INDEX), b"")

    taken = read_from(pinterest, 0)

    failed = taken[-1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, DamagedArchiveError)
    assert failed.error.offsets.start == 295
    assert offsets(taken) == list(range(295))


# Changes during the read


@pytest.mark.parametrize(
    ("first", "missing"),
    [
        pytest.param(0, [], id="batches-on-both-sides-prove-it"),
        pytest.param(15, [range(15)], id="may-be-another-segment"),
    ],
)
def test_compaction_before_an_overlapping_segment_of_pinterest(
    first: int, missing: list[range]
) -> None:
    archive = MadeArchive(is_pinterest=True)
    archive.segment(0, [*batches(first, 10), *batches(15, 30)])
    archive.segment(15, batches(15, 40))
    archive.mark(15, 40)

    taken = read_over(archive, 0)

    assert offsets(taken) == [*range(first, 10), *range(15, 40)]
    assert [range(*one.offsets) for one in taken if isinstance(one, Gap)] == missing


def test_segment_stored_again_with_more_records_is_read_on() -> None:
    pinterest = MadeArchive(is_pinterest=True)
    pinterest.segment(0, batches(0, 100))
    pinterest.segment(100, batches(100, 150))
    pinterest.mark(100, 150)
    clock = Clock()
    with reading(pinterest.store, clock=clock) as reader:
        reader.assign(TP, 0)
        assert take_to_end(reader)[-1] == ReachedEnd(TP, Offset(150))
        pinterest.segment(100, batches(100, 200))
        clock.now += 10
        taken = take_to_end(reader)

    assert offsets(taken) == list(range(150, 200))
    assert taken[-1] == ReachedEnd(TP, Offset(200))


def test_segment_replaced_while_it_is_read_is_read_on() -> None:
    pinterest = MadeArchive(is_pinterest=True)
    pinterest.segment(0, batches(0, 400))
    pinterest.segment(500, batches(500, 600))
    pinterest.mark(500, 600)
    with reading(
        pinterest.store, first_range=400, largest_range=400, memory_budget=1 << 20
    ) as reader:
        reader.assign(TP, 0)
        taken = take_until(reader, lambda one: isinstance(one, Records), most=20)
        pinterest.segment(0, batches(0, 500, each=7))
        taken += take_to_end(reader)

    assert offsets(taken) == list(range(600))
    assert taken[-1] == ReachedEnd(TP, Offset(600))


def test_new_segments_are_found_at_the_interval_with_one_request_per_check(
    archive: MadeArchive, fake: FakeStorage
) -> None:
    clock = Clock()
    with reading(archive.store, clock=clock, look_interval=5.0) as reader:
        reader.assign(TP, 250)
        take_to_end(reader)
        before = len(fake.requests)
        assert reader.take(10, 0.05) == []
        assert len(fake.requests) == before
        clock.now += 5.1
        assert reader.take(10, 1.5) == []
        assert [one.operation for one in fake.requests[before:]] == ["get"]

        archive.segment(300, batches(300, 350))
        archive.mark(300, 350)
        clock.now += 5.1
        before = len(fake.requests)
        taken = take_to_end(reader)
        asked = [one.operation for one in fake.requests[before:]]

    assert offsets(taken) == list(range(300, 350))
    assert taken[-1] == ReachedEnd(TP, Offset(350))
    assert (asked.count("list"), asked.count("get")) == (1, 2)  # offset.wm and _metadata


def test_deletions_at_the_archive_start_are_noticed_after_max_view_age(
    archive: MadeArchive,
) -> None:
    """With or without new segments: nothing else reveals such a deletion."""
    clock = Clock()
    with reading(archive.store, clock=clock) as reader:
        found = reader.bounds(TP)
        assert found is not None
        assert found.start_offset == 0
        reader.assign(TP, 150)
        archive.lose(0)
        archive.segment(300, batches(300, 350))
        archive.mark(300, 350)
        clock.now += 61
        found = reader.bounds(TP)
        taken = take_to_end(reader)
    assert found is not None
    assert (found.start_offset, found.next_offset) == (100, 350)
    assert offsets(taken) == list(range(150, 350))


def test_segments_above_the_watermark_are_not_returned(archive: MadeArchive) -> None:
    archive.segment(300, batches(300, 400))

    assert offsets(read_from(archive, 280)) == list(range(280, 300))


def test_recreated_topic_is_an_error(archive: MadeArchive) -> None:
    archive.mark(200, 300, topic_id="first")
    clock = Clock()
    with reading(archive.store, clock=clock) as reader:
        reader.assign(TP, 250)
        take_to_end(reader)
        for base in (0, 100, 200):
            archive.lose(base)
        archive.segment(0, batches(0, 500))
        archive.mark(0, 500, topic_id="second")
        clock.now += 10
        failed = take_to_end(reader)[-1]

    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ArchiveReplacedError)
    assert "deleted and created again" in str(failed.error)
    assert failed.next_offset == 300


def test_topic_recreated_between_a_look_at_the_bounds_and_the_read_is_an_error(
    archive: MadeArchive,
) -> None:
    archive.mark(200, 300, topic_id="first")
    clock = Clock()
    with reading(archive.store, clock=clock) as reader:
        assert reader.bounds(TP) is not None
        archive.mark(200, 300, topic_id="second")
        clock.now += 10
        reader.assign(TP, 250)
        failed = take_to_end(reader)[-1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ArchiveReplacedError)
    assert failed.next_offset == 250


def test_retired_archive_is_an_error(archive: MadeArchive) -> None:
    clock = Clock()
    with reading(archive.store, clock=clock) as reader:
        reader.assign(TP, 250)
        take_to_end(reader)
        archive.store.delete_object(LAYOUT.watermark_key(TP))
        clock.now += 10
        failed = take_to_end(reader)[-1]

    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ArchiveReplacedError)
    assert "retired or removed" in str(failed.error)


def test_quarantine_below_the_position_is_an_error(archive: MadeArchive) -> None:
    clock = Clock()
    with reading(archive.store, clock=clock) as reader:
        reader.assign(TP, 250)
        take_to_end(reader)
        archive.lose(200)
        archive.segment(200, batches(200, 240))
        archive.segment(240, batches(240, 400))
        archive.mark(240, 400, leader_epoch=5)
        clock.now += 10
        failed = take_to_end(reader)[-1]

    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ArchiveReplacedError)
    assert failed.error.first == 200
    assert "moved to quarantine" in str(failed.error)


def test_quarantine_above_the_position_is_read_as_replaced(
    archive: MadeArchive, fake: FakeStorage
) -> None:
    clock = Clock()
    with reading(
        archive.store, clock=clock, max_view_age=60, first_range=500, largest_range=500
    ) as reader:
        # The reader gets no record of the segment before the archive is checked again.
        with fake.hold("stream", archive.key(200)):
            reader.assign(TP, 50)
            first = take_until(reader, lambda one: isinstance(one, Records), most=5)
            archive.lose(200)
            archive.segment(200, batches(200, 220, each=10))
            archive.mark(200, 220, leader_epoch=5)
            clock.now += 100
            reader.bounds(TP)
        taken = first + take_to_end(reader)

    assert offsets(taken) == list(range(50, 220))
    assert taken[-1] == ReachedEnd(TP, Offset(220))


# Failing stores


def test_store_outage_is_reported_and_the_read_continues_at_its_position(
    archive: MadeArchive, fake: FakeStorage
) -> None:
    clock = Clock()
    fake.fail("stream", StoreUnavailableError("connection refused"), nth=4, times=3)
    with reading(
        archive.store, clock=clock, failed_pause=5, first_range=300, fetch_threads=1
    ) as reader:
        reader.assign(TP, 0)
        taken = take_to_end(reader)
        failed = taken[-1]
        assert reader.take(10, 0.05) == []
        while not isinstance(taken[-1], ReachedEnd):
            clock.now += 5.1
            taken += take_to_end(reader)

    assert isinstance(failed, Failed)
    assert isinstance(failed.error, StoreUnavailableError)
    assert failed.error.retry
    assert 0 < failed.next_offset < 300
    assert offsets(taken) == list(range(300))


def test_store_that_is_away_at_the_start_is_reported_and_retried_after_a_pause(
    archive: MadeArchive, fake: FakeStorage
) -> None:
    clock = Clock()
    with reading(archive.store, clock=clock, failed_pause=5) as reader:
        with fake.away():
            reader.assign(TP, 120)
            failed = take_to_end(reader)[-1]
            asked = len(fake.requests)
            assert reader.take(10, 0.05) == []
            assert len(fake.requests) == asked
        clock.now += 5.1
        taken = take_to_end(reader)

    assert isinstance(failed, Failed)
    assert failed.next_offset == 120
    assert offsets(taken) == list(range(120, 300))


def test_brief_failures_are_retried_by_the_storage_layer_and_not_reported(
    archive: MadeArchive, fake: FakeStorage
) -> None:
    fake.fail("stream", StoreThrottledError("503 SlowDown"), nth=2, times=2)
    fake.fail("get", StoreUnavailableError("500"), times=2)
    policy = RetryPolicy(attempts=5, first_delay=0.001, max_delay=0.001)
    archive.store = RetryingStorage(fake, policy)

    taken = read_from(archive, 0, first_range=300)

    assert offsets(taken) == list(range(300))
    assert taken[-1] == ReachedEnd(TP, Offset(300))


def test_throttling_store_is_reported_with_its_reason(
    archive: MadeArchive, fake: FakeStorage
) -> None:
    fake.fail("get", StoreThrottledError("get: 503 SlowDown"), times=1)

    taken = read_from(archive, 0)

    assert isinstance(taken[-1], Failed)
    assert "503 SlowDown" in str(taken[-1].error)


def test_expired_credentials_are_reported_and_stop_requests_until_resume(
    archive: MadeArchive, fake: FakeStorage
) -> None:
    expired = AccessDeniedError("GetObject: 400 ExpiredToken: the provided token has expired")
    clock = Clock()
    with reading(archive.store, clock=clock) as reader:
        fake.fail("stream", expired, times=None)
        reader.assign(TP, 0)
        failed = take_to_end(reader)[-1]
        clock.now += 1000
        before = len(fake.requests)
        assert reader.take(10, 0.05) == []
        assert len(fake.requests) == before
        fake.heal()
        reader.resume(TP)
        assert offsets(take_to_end(reader)) == list(range(300))

    assert isinstance(failed, Failed)
    assert "ExpiredToken" in str(failed.error)
    assert not failed.error.retry


def test_failing_partition_does_not_stop_the_others(fake: FakeStorage) -> None:
    good = MadeArchive(fake, tp=replace_partition(1))
    good.segments(0, 100, 200)
    fake.fail("stream", StoreUnavailableError("cut"), key=MadeArchive().key(0), times=None)
    with reading(fake, fetch_threads=2) as reader:
        reader.assign(TP, 0)
        reader.assign(good.tp, 0)
        taken = take_until(reader, lambda one: isinstance(one, ReachedEnd) and one.tp == good.tp)

    assert offsets(one for one in taken if one.tp == good.tp) == list(range(200))


def replace_partition(number: int) -> TopicPartition:
    return TP._replace(partition=number)


# The requested position


def test_offset_above_the_end_waits_for_the_archive_to_reach_it(archive: MadeArchive) -> None:
    clock = Clock()
    with reading(archive.store, clock=clock) as reader:
        reader.assign(TP, 350)
        assert take_to_end(reader) == [ReachedEnd(TP, Offset(350))]
        archive.segment(300, batches(300, 400))
        archive.mark(300, 400)
        clock.now += 10
        taken = take_to_end(reader)

    assert offsets(taken) == list(range(350, 400))


def test_malformed_watermark_is_reported_with_its_key(archive: MadeArchive) -> None:
    archive.put(LAYOUT.watermark_key(TP), b"not a watermark")

    failed = read_from(archive, 0)[-1]

    assert isinstance(failed, Failed)
    assert isinstance(failed.error, MalformedObjectError)
    assert LAYOUT.watermark_key(TP) in str(failed.error)


def test_segment_that_vanishes_during_the_read_is_reported_as_a_gap(archive: MadeArchive) -> None:
    with reading(archive.store) as reader:
        reader.bounds(TP)
        archive.lose(100)
        reader.assign(TP, 0)
        taken = take_to_end(reader)

    assert offsets(taken) == list(range(100))
    gap = taken[-1]
    assert isinstance(gap, Gap)
    assert gap.offsets == (100, 200)


def test_missing_archive_error_names_the_searched_location() -> None:
    archive = MadeArchive()

    failed = read_from(archive, 0)[-1]

    assert isinstance(failed, Failed)
    assert isinstance(failed.error, NoArchiveError)
    assert f"{URL}/{LAYOUT.partition_prefix(TP)}" in str(failed.error)
    with reading(archive.store) as reader:
        assert reader.bounds(TP) is None
        assert reader.offset_for_time(TP, 0) is None


def test_segments_without_a_watermark_are_not_read(archive: MadeArchive) -> None:
    archive.store.delete_object(LAYOUT.watermark_key(TP))

    failed = read_from(archive, 0)[-1]

    assert isinstance(failed, Failed)
    assert isinstance(failed.error, NoArchiveError)
    assert "has no offset.wm" in str(failed.error)


@pytest.mark.parametrize("noted", [True, False])
def test_error_for_other_entropy_bits_gives_the_setting(
    archive: MadeArchive, *, noted: bool
) -> None:
    if noted:
        archive.put(LAYOUT.layout_key(), b'{"version":1,"bits":3,"kafka_cluster_id":null}')
    other = ArchiveLayout(LAYOUT.cluster, 5)
    with reading(archive.store, layout=other) as reader:
        with pytest.raises(WrongPlaceError, match=r"set it to 3") as raised:
            reader.bounds(TP)
        assert f"{URL}/{other.partition_prefix(TP)}" in str(raised.value)
        reader.assign(TP, 0)
        failed = take_to_end(reader)[-1]
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, WrongPlaceError)


def test_two_versions_of_a_segment_are_never_mixed() -> None:
    def segment(filling: bytes) -> bytes:
        return encoded(
            MadeBatch((MadeRecord(offset, value=filling * 50_000),)) for offset in range(60)
        )

    archive = MadeArchive()
    log = archive.segment(0, segment(b"a"))
    archive.mark(0, 60)
    whole = 4 * len(log) // 60  # of batches: no checksum reveals that they are of two versions
    with reading(
        archive.store, memory_budget=1 << 20, first_range=whole, largest_range=whole
    ) as reader:
        reader.assign(TP, 0)
        taken = take_until(reader, lambda one: isinstance(one, Records), most=3)
        archive.segment(0, segment(b"b"))
        taken += take_to_end(reader)

    failed = taken[-1]
    values = {
        value[:1]
        for one in taken
        if isinstance(one, Records)
        for value in one.records.column("value").to_pylist()
    }
    assert values == {b"a"}
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ArchiveReplacedError)
    assert 0 < len(offsets(taken)) < 60
