"""The splits and missing offsets of a request, and the requests to the store."""

import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from sidetier.archive.errors import ArchiveReplacedError, WrongPlaceError
from sidetier.archive.objects.watermark import Watermark, encode_watermark
from sidetier.pipeline.errors import MissingRecordsError, NoSuchTopicError
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import (
    Assigned,
    AtOffsets,
    AtTimes,
    Filters,
    NoMatch,
    ReadRequest,
    Selection,
    TopicPattern,
    Topics,
)
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory, checksum_below
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset, OffsetRange, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.provider import OpenStores, PatternEndpointProvider
from sidetier.storage.settings import StorageEndpoint
from tests.harness.made_archive import INDEX_INTERVAL, LAYOUT, TP, MadeArchive, access_to, batches
from tests.harness.record_batches import MadeBatch, MadeRecord, TransactionalLog
from tests.harness.splits import plan_of, read_splits, reads
from tests.harness.waiting import holds_for, wait_until

COMMITTED = IsolationLevel.READ_COMMITTED
OTHER = TopicPartition("payments", 2)


@pytest.fixture
def store() -> FakeStorage:
    return FakeStorage()


@pytest.fixture
def archive(store: FakeStorage) -> MadeArchive:
    made = MadeArchive(store)
    made.segments(0, 100, 200, 300, 400)
    return made


def span(first: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(first), Offset(until))


def ranges(plan: Plan) -> list[OffsetRange]:
    return [split.range for split in plan.splits]


def bases(plan: Plan) -> list[list[int]]:
    return [[int(piece.base_offset) for piece in split.pieces] for split in plan.splits]


def partitions(store: FakeStorage, selection: Selection) -> tuple[TopicPartition, ...]:
    with Planner(access_to(store), threads=2) as planner:
        return planner.partitions(selection)


# Partitions


@pytest.fixture
def several(store: FakeStorage) -> list[TopicPartition]:
    tps = [
        TopicPartition(topic, partition)
        for topic in ("orders", "orders-eu", "payments")
        for partition in (0, 1, 10)
    ]
    for tp in tps:
        MadeArchive(store, tp=tp).segments(0, 100)
    MadeArchive(store, ArchiveLayout("prod-b", 3), TopicPartition("elsewhere", 0)).segments(0, 9)
    return tps


def test_topics_are_found_by_name_and_by_pattern(
    store: FakeStorage, several: list[TopicPartition]
) -> None:
    assert partitions(store, Topics(("payments", "orders", "orders"))) == (
        *several[:3],
        *several[6:],
    )
    assert partitions(store, TopicPattern("orders.*")) == tuple(several[:6])
    assert partitions(store, TopicPattern("order")) == ()
    assert partitions(store, TopicPattern(".*")) == tuple(several)
    assert partitions(store, Assigned((several[4], several[0]))) == (several[0], several[4])


def test_a_named_topic_that_is_not_stored_is_an_error(
    store: FakeStorage, several: list[TopicPartition]
) -> None:
    with pytest.raises(NoSuchTopicError, match=r"topic nothing: .* cluster prod-a at memory://"):
        partitions(store, Topics(("orders", "nothing")))
    with pytest.raises(NoSuchTopicError, match="topic orders, partition 7: nothing of orders-7 is"):
        partitions(store, Assigned((several[0], TopicPartition("orders", 7))))


def test_topic_under_other_entropy_bits_is_an_error(store: FakeStorage) -> None:
    MadeArchive(store, ArchiveLayout("prod-a", 5)).segments(0, 100)

    with pytest.raises(WrongPlaceError, match="the archive has 5 prefix entropy bits"):
        partitions(store, Topics(("orders",)))


def test_each_topic_is_searched_in_its_own_store() -> None:
    places = {"memory://here": FakeStorage(), "memory://there": FakeStorage()}
    here, there = (StorageEndpoint(url) for url in places)
    provider = PatternEndpointProvider(here, [("orders.*", there)])
    access = replace(
        access_to(FakeStorage()),
        provider=provider,
        stores=OpenStores(provider, lambda endpoint: places[endpoint.url]),
    )
    MadeArchive(places[there.url]).segments(0, 100)
    MadeArchive(places[here.url]).segments(0, 50)  # left behind
    MadeArchive(places[here.url], tp=OTHER).segments(0, 50)

    with Planner(access, threads=2) as planner:
        assert planner.partitions(TopicPattern(".*")) == (TP, OTHER)
        assert planner.partitions(Topics(("orders", "payments"))) == (TP, OTHER)
        plan = planner.plan(ReadRequest(TopicPattern(".*")))
    assert plan.ranges == {TP: span(0, 100), OTHER: span(0, 50)}


@pytest.mark.usefixtures("several")
def test_search_for_partitions_does_not_list_their_objects(store: FakeStorage) -> None:
    store.requests.clear()
    partitions(store, TopicPattern(".*"))

    # One request for each of 8 prefixes.
    assert [request.operation for request in store.requests] == ["list"] * 8


# Start and end


@pytest.mark.usefixtures("archive")
def test_archive_is_read_from_its_start_to_its_end(store: FakeStorage) -> None:
    plan = plan_of(store)

    assert plan.ranges == {TP: span(0, 400)}
    assert ranges(plan) == [span(0, 400)]
    assert bases(plan) == [[0, 100, 200, 300]]
    assert plan.missing == ()
    assert plan.pruned == 0
    assert plan.size == sum(store.head_object(piece.key).size for piece in plan.splits[0].pieces)


@pytest.mark.usefixtures("archive")
def test_offsets_may_lie_within_segments(store: FakeStorage) -> None:
    plan = plan_of(store, starting=AtOffsets({TP: 150}), ending=AtOffsets({TP: 250}))

    assert ranges(plan) == [span(150, 250)]
    assert bases(plan) == [[100, 200]]
    first, last = plan.splits[0].pieces
    assert 0 < first.start < first.end == first.size
    assert 0 == last.start < last.end < last.size
    assert read_splits(store, plan.splits).offsets == list(range(150, 250))


@pytest.mark.usefixtures("archive")
def test_earliest_and_latest_have_numbers(store: FakeStorage) -> None:
    plan = plan_of(store, starting=AtOffsets({TP: -2}), ending=AtOffsets({TP: -1}))

    assert plan.ranges == {TP: span(0, 400)}


@pytest.mark.usefixtures("archive")
def test_a_range_whose_end_is_below_its_start_is_empty(store: FakeStorage) -> None:
    for starting, ending in ((300, 200), (500, 400), (400, -1)):
        plan = plan_of(store, starting=AtOffsets({TP: starting}), ending=AtOffsets({TP: ending}))
        assert plan.splits == ()
        assert plan.ranges == {TP: span(starting, starting)}


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"starting": AtOffsets({})}, "startingOffsets: .* leaves out topic orders, partition 0"),
        ({"ending": AtTimes(times={})}, "endingOffsets: .* leaves out topic orders, partition 0"),
        (
            {"starting": AtOffsets({TP: 1, OTHER: 1})},
            "startingOffsets: .*names topic payments, partition 2, which is not read",
        ),
        (
            {"starting": AtOffsets({}), "starting_option": "--starting-offsets"},
            "^--starting-offsets: .* leaves out topic orders, partition 0",
        ),
    ],
)
@pytest.mark.usefixtures("archive")
def test_offsets_name_exactly_the_partitions_that_are_read(
    store: FakeStorage, limits: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        plan_of(store, **limits)


@pytest.mark.usefixtures("archive")
def test_times_are_those_of_records(store: FakeStorage) -> None:
    # The timestamps of records equal their offsets.
    plan = plan_of(store, starting=AtTimes(123), ending=AtTimes(times={TP: 321}))
    assert plan.ranges == {TP: span(123, 321)}

    assert plan_of(store, ending=AtTimes(9999)).ranges == {TP: span(0, 400)}
    with pytest.raises(ConfigurationError, match="topic orders, partition 0: no stored record has"):
        plan_of(store, starting=AtTimes(9999))
    late = plan_of(store, starting=AtTimes(9999), no_match=NoMatch.LATEST)
    assert late.ranges == {TP: span(400, 400)}


def test_empty_archive_is_no_error(store: FakeStorage, archive: MadeArchive) -> None:
    for base in (0, 100, 200, 300):
        archive.lose(base)

    plan = plan_of(store)

    assert plan.splits == ()
    assert plan.missing == ()
    assert plan.ranges == {TP: span(400, 400)}


# Missing offsets


@pytest.mark.usefixtures("archive")
def test_offsets_below_and_above_the_archive_are_missing(store: FakeStorage) -> None:
    MadeArchive(store, tp=OTHER).segments(50, 100)
    request = ReadRequest(
        Assigned((TP, OTHER)),
        AtOffsets({TP: 0, OTHER: 10}),
        AtOffsets({TP: 500, OTHER: 100}),
    )
    with Planner(access_to(store), threads=2) as planner:
        with pytest.raises(
            MissingRecordsError, match=r"partition 0, offsets \[400, 500\) .*; topic"
        ):
            planner.plan(request)
        plan = planner.plan(replace(request, fail_on_data_loss=False, find_gaps=True))

    above, below = plan.missing
    assert (above.tp, above.range) == (TP, span(400, 500))
    assert "above the end of the archive, 400" in above.detail
    assert (below.tp, below.range) == (OTHER, span(10, 50))
    assert "below the start" in below.detail
    assert ranges(plan) == [span(0, 400), span(50, 100)]


def test_recorded_gaps_are_missing(store: FakeStorage) -> None:
    archive = MadeArchive(store)
    archive.segment(0, batches(0, 60))
    archive.segment(100, batches(100, 200))
    archive.gap(60, 100)
    archive.segment(250, batches(250, 300))
    archive.gap(200, 250)
    archive.gap(150, 170)  # stored since
    archive.mark(250, 300)

    plan = plan_of(store, fail_on_data_loss=False)

    assert [gap.range for gap in plan.missing] == [span(60, 100), span(200, 250)]
    assert "the broker had deleted them" in plan.missing[0].detail
    assert ranges(plan) == [span(0, 60), span(100, 200), span(250, 300)]
    result = read_splits(store, plan.splits)
    assert result.offsets == [*range(60), *range(100, 200), *range(250, 300)]


def test_gaps_of_a_topic_are_listed_once(store: FakeStorage) -> None:
    tps = [TopicPartition("orders", number) for number in (0, 1, 10)]
    for tp in tps:
        made = MadeArchive(store, tp=tp)
        made.segment(0, batches(0, 60))
        made.segment(100, batches(100, 200))
        made.gap(60 + tp.partition, 100)
        made.mark(100, 200)
    MadeArchive(store, tp=TopicPartition("orders-1", 0)).gap(0, 60)
    gap_keys = "_sidetier/prod-a/gaps/"

    store.requests.clear()
    plan = plan_of(store, *tps, fail_on_data_loss=False)
    assert [request.key for request in store.requests if request.key.startswith(gap_keys)] == [
        f"{gap_keys}orders-"
    ]
    assert {(gap.tp.partition, gap.range) for gap in plan.missing} == {
        (number, span(60 + number, 100)) for number in (0, 1, 10)
    }

    store.requests.clear()
    plan_of(store, tps[1], fail_on_data_loss=False)
    assert [request.key for request in store.requests if request.key.startswith(gap_keys)] == [
        f"{gap_keys}orders-1/"
    ]
    store.requests.clear()
    plan_of(store, tps[1], starting=AtOffsets({tps[1]: 200}))
    assert not any(request.key.startswith(gap_keys) for request in store.requests)


@pytest.mark.parametrize("is_pinterest", [False, True])
def test_unrecorded_gaps_are_reported_only_on_request(
    store: FakeStorage, *, is_pinterest: bool
) -> None:
    archive = MadeArchive(store, is_pinterest=is_pinterest)
    archive.segment(0, batches(0, 260))
    archive.segment(100, batches(100, 180))  # the one below reaches farther
    archive.segment(300, batches(300, 400))
    archive.segment(500, batches(500, 600))
    archive.mark(500, 600)

    assert plan_of(store).missing == ()
    plan = plan_of(store, find_gaps=True, fail_on_data_loss=False)
    part = plan_of(
        store,
        find_gaps=True,
        fail_on_data_loss=False,
        starting=AtOffsets({TP: 280}),
        ending=AtOffsets({TP: 450}),
    )

    assert [gap.range for gap in plan.missing] == [span(260, 300), span(400, 500)]
    assert "no stored segment holds them" in plan.missing[0].detail
    assert [gap.range for gap in part.missing] == [span(280, 300), span(400, 450)]
    result = read_splits(store, plan.splits)
    assert result.offsets == [*range(260), *range(300, 400), *range(500, 600)]


@pytest.mark.parametrize("find_gaps", [False, True])
def test_compacted_tail_is_no_gap(store: FakeStorage, *, find_gaps: bool) -> None:
    archive = MadeArchive(store)
    archive.segment(0, batches(0, 60), next_offset=100)
    archive.segment(100, batches(100, 180), next_offset=200)
    archive.mark(100, 200)

    plan = plan_of(store, find_gaps=find_gaps)

    assert ranges(plan) == [span(0, 200)]
    assert read_splits(store, plan.splits).offsets == [*range(60), *range(100, 180)]


def test_removed_partition_is_missing(store: FakeStorage, archive: MadeArchive) -> None:
    request = ReadRequest(Topics(("orders",)), fail_on_data_loss=False)
    for base in (0, 100, 200, 300):
        archive.lose(base)
    store.delete_object(LAYOUT.watermark_key(TP))

    with Planner(access_to(store), threads=2) as planner:
        plan = planner.plan_ranges({TP: span(0, 100)}, request)

    assert [gap.range for gap in plan.missing] == [span(0, 100)]
    assert "nothing is stored" in plan.missing[0].detail


# Splits


@pytest.mark.usefixtures("archive")
def test_small_segments_are_combined_and_large_ones_cut(store: FakeStorage) -> None:
    whole = plan_of(store).size

    assert bases(plan_of(store, max_split_bytes=whole // 2 + 100)) == [[0, 100], [200, 300]]
    small = plan_of(store, max_split_bytes=1000)
    assert max(split.size for split in small.splits) <= 1000 + 2 * 300  # an interval of the index
    assert len(small.splits) > 10
    edges = [0, *(split.range.end for split in small.splits)]
    assert [split.range.start for split in small.splits] == edges[:-1]
    assert edges[-1] == 400
    assert read_splits(store, small.splits).offsets == list(range(400))


@pytest.mark.usefixtures("archive")
def test_plan_has_at_least_min_partitions_splits(store: FakeStorage) -> None:
    for least in (1, 3, 8):
        assert least <= len(plan_of(store, min_partitions=least).splits) <= 2 * least


def test_overlaps_are_read_once(store: FakeStorage) -> None:
    archive = MadeArchive(store, is_pinterest=True)
    archive.segment(0, batches(0, 130))
    archive.segment(100, batches(100, 250))
    archive.segment(200, batches(200, 300))
    archive.mark(200, 300)

    plan = plan_of(store, max_split_bytes=1)

    assert [split.range.start for split in plan.splits[1:]] == [
        split.range.end for split in plan.splits[:-1]
    ]
    assert read_splits(store, plan.splits).offsets == list(range(300))


@pytest.mark.usefixtures("archive")
def test_indexes_are_read_only_where_a_segment_is_cut(store: FakeStorage) -> None:
    store.requests.clear()
    plan_of(store)
    assert not reads(store)

    plan_of(store, starting=AtOffsets({TP: 150}), ending=AtOffsets({TP: 350}))
    assert len(reads(store, ".index")) == len(reads(store)) == 2


@pytest.mark.usefixtures("archive")
def test_planning_again_requests_only_changes(store: FakeStorage, archive: MadeArchive) -> None:
    request = ReadRequest(Assigned((TP,)))
    with Planner(access_to(store), threads=2) as planner:
        planner.plan(request)
        store.requests.clear()
        planner.ends([TP], request.isolation)
        assert [request.operation for request in store.requests] == ["get"]
        archive.segment(400, batches(400, 450))
        archive.mark(400, 450)
        plan = planner.plan(request)
    assert plan.ranges == {TP: span(0, 450)}


# Filters


@pytest.mark.usefixtures("archive")
def test_filters_prune_partitions_offsets_and_times(store: FakeStorage) -> None:
    MadeArchive(store, tp=TopicPartition("orders", 1)).segments(0, 100)
    filters = Filters(partitions=frozenset({0}), first=Offset(50), until=Offset(350), since_ms=215)
    plan = plan_of(store, TP, TopicPartition("orders", 1), filters=filters)

    assert plan.ranges == {TP: span(0, 400)}
    assert bases(plan) == [[200, 300]]
    assert ranges(plan) == [span(200, 350)]
    assert plan.missing == ()
    left_out = plan_of(store, starting=AtOffsets({TP: 50}), ending=AtOffsets({TP: 200}))
    assert plan.pruned == left_out.size > 0


@pytest.mark.parametrize("is_pinterest", [True, False])
def test_segments_with_a_late_enough_largest_timestamp_are_kept(
    store: FakeStorage,
    is_pinterest: bool,  # noqa: FBT001
) -> None:
    """By the metadata of the `.log`s; by the time indexes where Pinterest's uploader wrote them."""
    archive = MadeArchive(store, is_pinterest=is_pinterest)
    times = {0: 500, 100: 100, 200: 900, 300: 50}
    for base, time in times.items():
        records = tuple(MadeRecord(at, time if at == base else 0) for at in range(base, base + 100))
        archive.segment(base, [MadeBatch(records)])
    archive.mark(300, 400)
    archive.lose(300, FileKind.TIMEINDEX)

    plan = plan_of(store, filters=Filters(since_ms=400))

    # In Pinterest's archive, nothing shows the timestamp of the last one.
    assert bases(plan) == ([[0], [200, 300]] if is_pinterest else [[0], [200]])
    assert plan.ranges == {TP: span(0, 400)}
    assert not plan.missing


def test_a_time_index_that_has_lost_its_last_entries_hides_no_record(
    store: FakeStorage,
) -> None:
    archive = MadeArchive(store)
    archive.segments(0, 100, 200, 300)
    early = struct.pack(">qI", 110, 10)  # the largest timestamp of the segment is 199
    store.put_object(archive.key(100, FileKind.TIMEINDEX), BytesBody(early))

    assert bases(plan_of(store, filters=Filters(since_ms=150))) == [[100, 200]]
    assert plan_of(store, starting=AtTimes(150)).ranges == {TP: span(150, 300)}


def test_a_time_index_that_cannot_be_trusted_prunes_nothing(store: FakeStorage) -> None:
    archive = MadeArchive(store, is_pinterest=True)
    archive.segments(0, 100, 200, 300, 400, 500)
    store.put_object(archive.key(100, FileKind.TIMEINDEX), BytesBody(bytes(30)))  # two and a half
    store.put_object(archive.key(200, FileKind.TIMEINDEX), BytesBody(bytes(24)))  # never written
    early = struct.pack(">qI", 299, 10)  # of what closing the segment adds, nothing is there yet
    store.put_object(archive.key(300, FileKind.TIMEINDEX), BytesBody(early + bytes(12)))

    plan = plan_of(store, filters=Filters(since_ms=450))

    assert [base for split in bases(plan) for base in split] == [100, 200, 300, 400]


def test_untrimmed_time_index_is_searched_for_a_time(store: FakeStorage) -> None:
    archive = MadeArchive(store, is_pinterest=True)
    archive.segments(0, 100, 200, 300)
    early = struct.pack(">qI", 110, 10)  # the largest, which closing the segment adds, is 199
    store.put_object(archive.key(100, FileKind.TIMEINDEX), BytesBody(early + bytes(12)))

    assert plan_of(store, starting=AtTimes(150)).ranges == {TP: span(150, 300)}


def test_requests_for_segments_run_in_parallel_over_all_partitions(
    store: FakeStorage,
) -> None:
    other = TopicPartition("orders", 1)
    MadeArchive(store).segments(*range(0, 1000, 100))
    MadeArchive(store, tp=other).segments(*range(0, 500, 100))
    request = ReadRequest(
        Assigned((TP, other)), max_split_bytes=1000, filters=Filters(since_ms=300)
    )
    with Planner(access_to(store), threads=3) as planner, ThreadPoolExecutor(1) as caller:
        with ExitStack() as first:
            first.enter_context(store.hold("head"))
            future = caller.submit(planner.plan, request)
            wait_until(lambda: store.count("head") == 1, 10, "the first request")
            holds_for(lambda: store.count("head") == 1, 0.1, "one that must be waited for")
            with store.hold("head"):
                first.close()
                wait_until(lambda: store.count("head") == 1 + 3, 10, "three requests")
                holds_for(lambda: store.count("head") == 1 + 3, 0.1, "no more than threads")
        plan = future.result(timeout=10)

    result = {
        tp: {
            int(piece.base_offset)
            for split in plan.splits
            if split.tp == tp
            for piece in split.pieces
        }
        for tp in (TP, other)
    }
    assert result == {TP: set(range(300, 900, 100)), other: {300}}
    assert store.count("head") == 9 + 4
    assert len(reads(store, ".index")) == 6 + 1


# Read committed


def transactional(store: FakeStorage) -> MadeArchive:
    """Three segments: a transaction that begins in the second one is open at the end."""
    log = TransactionalLog()
    archive = MadeArchive(store)
    result = []
    for number in range(3):
        log.write(-1, 20, transactional=False)
        log.write(number, 5)
        log.write(-1, 20, transactional=False)
        if number != 1:
            log.mark(number, commit=True)
        result.append(list(log.batches))
        del log.batches[:]
    starts = [item[0].first for item in result]
    for base, item in zip(starts, result, strict=True):
        archive.segment(base, item)
    archive.transaction_indexes(starts[0], [], {})
    archive.transaction_indexes(starts[1], [], {})
    archive.transaction_indexes(starts[2], [], {1: starts[1] + 20})
    archive.mark(starts[-1], log.next_offset)
    return archive


def test_committed_records_end_at_the_last_stable_offset(store: FakeStorage) -> None:
    transactional(store)
    stable = 46 + 20

    plan = plan_of(store, isolation=COMMITTED)

    assert plan.ranges == {TP: span(0, stable)}
    result = read_splits(store, plan.splits, isolation=COMMITTED)
    assert result.offsets == [at for at in range(stable) if at != 45]
    assert plan_of(store).ranges[TP].end == 46 + 45 + 46
    beyond = plan_of(
        store, isolation=COMMITTED, ending=AtOffsets({TP: 100}), fail_on_data_loss=False
    )
    assert [gap.range for gap in beyond.missing] == [span(stable, 100)]
    assert "transaction" in beyond.missing[0].detail


def test_last_segment_is_read_once_for_the_last_stable_offset(store: FakeStorage) -> None:
    archive = transactional(store)
    last = archive.key(46 + 45)
    with Planner(access_to(store), threads=2) as planner:
        store.requests.clear()
        assert planner.ends([TP], COMMITTED) == {TP: 66}
        assert [one.key for one in reads(store)] == [last]
        store.requests.clear()
        assert planner.ends([TP], COMMITTED) == {TP: 66}
        assert planner.plan(ReadRequest(Assigned((TP,)), isolation=COMMITTED)).ranges
        assert not reads(store, ".log")
        assert planner.ends([TP], IsolationLevel.READ_UNCOMMITTED) == {TP: 137}


def test_a_range_that_ends_below_the_last_segment_needs_no_last_stable_offset(
    store: FakeStorage,
) -> None:
    transactional(store)
    store.requests.clear()

    plan = plan_of(store, isolation=COMMITTED, ending=AtOffsets({TP: 46}))

    assert ranges(plan) == [span(0, 46)]
    assert not reads(store, ".log")


def test_planner_detects_a_replaced_archive(store: FakeStorage, archive: MadeArchive) -> None:
    archive.mark(300, 400, topic_id="old")
    with Planner(access_to(store), threads=2) as planner:
        assert planner.ends([TP], COMMITTED) == {TP: 400}
        for base in (0, 100, 200, 300):
            archive.lose(base)
        archive.segment(0, batches(0, 900))
        archive.mark(0, 900, topic_id="new")

        with pytest.raises(ArchiveReplacedError, match="deleted and created again"):
            planner.ends([TP], COMMITTED)
        with pytest.raises(ArchiveReplacedError, match="deleted and created again"):
            planner.plan(ReadRequest(Assigned((TP,))))


def test_ranges_beyond_the_cached_snapshot_need_a_new_snapshot(
    store: FakeStorage, archive: MadeArchive
) -> None:
    request = ReadRequest(Assigned((TP,)))
    with Planner(access_to(store), threads=2) as planner:
        planner.ends([TP], request.isolation)
        archive.segment(400, batches(400, 450))
        archive.mark(400, 450)
        store.requests.clear()
        assert ranges(planner.plan_ranges({TP: span(0, 400)}, request)) == [span(0, 400)]
        assert "get" not in {request.operation for request in store.requests}
        assert ranges(planner.plan_ranges({TP: span(0, 450)}, request)) == [span(0, 450)]


def test_previous_segment_is_read_without_a_producer_snapshot(store: FakeStorage) -> None:
    archive = transactional(store)
    archive.lose(46 + 45, FileKind.SNAPSHOT)
    with Planner(access_to(store), threads=2) as planner:
        assert planner.ends([TP], COMMITTED) == {TP: 66}
    assert {one.key for one in reads(store)} == {archive.key(46), archive.key(91)}


def test_ends_and_starts_of_partitions_that_are_not_stored_are_zero(
    store: FakeStorage, archive: MadeArchive
) -> None:
    archive.lose(0)
    with Planner(access_to(store), threads=2) as planner:
        assert planner.ends([TP, OTHER], COMMITTED) == {TP: 400, OTHER: 0}
        assert planner.starts([TP, OTHER]) == {TP: 100, OTHER: 0}


# Bounded size


def stepped(planner: Planner, asked: dict[TopicPartition, OffsetRange], most: int) -> list[Plan]:
    """Plans of consecutive parts, each of at most `most` bytes."""
    plans = []
    while any(item.start < item.end for item in asked.values()):
        ends = planner.ends_within(asked, most)
        parts = {tp: OffsetRange(item.start, ends[tp]) for tp, item in asked.items()}
        for tp, item in asked.items():
            assert min(item.start + 1, item.end) <= ends[tp] <= item.end
        plans.append(planner.plan_ranges(parts, ReadRequest(Assigned(tuple(asked)))))
        asked = {tp: OffsetRange(ends[tp], item.end) for tp, item in asked.items()}
    return plans


@pytest.mark.parametrize("most", [1, 1500, 4000, 9000, 1 << 30])
def test_ranges_end_within_the_byte_limit(store: FakeStorage, most: int) -> None:
    """The limit is shared out in proportion, at index entries; each partition continues."""
    sizes = {TP: 400, OTHER: 100}
    for tp, end in sizes.items():
        MadeArchive(store, tp=tp).segments(*range(0, end + 1, 100))
    with Planner(access_to(store), threads=2) as planner:
        whole = planner.plan_ranges(
            {tp: span(0, end) for tp, end in sizes.items()}, ReadRequest(Assigned((TP, OTHER)))
        )
        store.requests.clear()
        ends = planner.ends_within(whole.ranges, most)
        assert len(reads(store)) == len(reads(store, ".index")) <= 2
        assert planner.ends_within(whole.ranges, most) == ends
        plans = stepped(planner, dict(whole.ranges), most)
    result = read_splits(store, [split for plan in plans for split in plan.splits])
    assert sorted(result.offsets) == sorted([*range(400), *range(100)])
    interval = 2 * INDEX_INTERVAL + 200  # and a batch
    assert all(plan.size <= most + 2 * interval for plan in plans)
    assert len(plans) <= max(whole.size // max(most - 2 * interval, 1), 1) + 2
    first, last = plans[0].ranges, plans[-1].ranges
    if 1500 <= most < whole.size:
        assert first[TP].end == pytest.approx(4 * first[OTHER].end, abs=80)
    assert len(plans) == 1 or last[TP].start > 0


def test_range_ends_with_a_segment_without_an_index(
    store: FakeStorage, archive: MadeArchive
) -> None:
    for base in (0, 100, 200, 300):
        archive.lose(base, FileKind.INDEX)
    size = plan_of(store).size // 4
    with Planner(access_to(store), threads=2) as planner:
        for most, until in ((1, 100), (size + size // 2, 100), (3 * size, 300), (5 * size, 400)):
            assert planner.ends_within({TP: span(0, 400)}, most) == {TP: until}


@pytest.mark.usefixtures("archive")
def test_a_partition_that_is_not_stored_has_no_bytes(store: FakeStorage) -> None:
    archive = MadeArchive(store, tp=OTHER)
    archive.segments(100, 200, 300)
    third = TopicPartition("payments", 3)
    with Planner(access_to(store), threads=2) as planner:
        size = planner.plan(ReadRequest(Assigned((OTHER,)))).size
        behind = {TP: span(400, 900), third: span(0, 50)}
        for most in (1, size):
            assert planner.ends_within(behind, most) == {TP: 900, third: 50}
        assert planner.ends_within({OTHER: span(0, 500)}, size) == {OTHER: 500}
        [end] = planner.ends_within({OTHER: span(0, 500)}, size // 2).values()
        assert 185 <= end <= 215


def test_epoch_history_that_the_watermark_does_not_name_is_ignored(
    store: FakeStorage, archive: MadeArchive
) -> None:
    """The loser of a race for the watermark has written its own epoch history."""
    ours = EpochHistory(((LeaderEpoch(1), Offset(0)), (LeaderEpoch(3), Offset(120))))

    def mark(epoch_history: str | None) -> None:
        result = Watermark(
            BaseOffset(300), Offset(400), LeaderEpoch(3), nonce="n", epoch_history=epoch_history
        )
        archive.put(LAYOUT.watermark_key(TP), encode_watermark(result))

    mark(checksum_below(ours, 400))
    archive.epoch_history((1, 0), (3, 120), (4, 400))
    with Planner(access_to(store), threads=1) as planner:
        assert planner.epoch_histories([TP]) == {TP: ours}, "the next commit may be under way"
        archive.epoch_history((1, 0), (3, 130))
        assert planner.epoch_histories([TP]) == {TP: ours}, "the watermark is the same"
    with Planner(access_to(store), threads=1) as planner:
        assert planner.epoch_histories([TP]) == {TP: NO_EPOCHS}
        archive.epoch_history((1, 0), (3, 120))
        assert planner.epoch_histories([TP]) == {TP: ours}
        mark(None)
        assert planner.epoch_histories([TP])[TP] != NO_EPOCHS


def test_epoch_history_beside_a_pinterest_archive_is_ignored(
    store: FakeStorage,
) -> None:
    """Pinterest's uploader writes none: an earlier sidecar left it."""
    archive = MadeArchive(store, is_pinterest=True)
    archive.segments(0, 100, 200)
    archive.epoch_history((1, 0))
    with Planner(access_to(store), threads=1) as planner:
        assert planner.epoch_histories([TP]) == {TP: NO_EPOCHS}
