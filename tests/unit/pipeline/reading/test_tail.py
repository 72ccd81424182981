"""Batches of archive and tail packs: the plan has the ranges of packs, and tasks read them."""

import pickle
from itertools import pairwise
from typing import Any

import pytest

from sidetier.archive.tail.pack import PackBuilder
from sidetier.pipeline.errors import MissingRecordsError, TailPackGoneError, UndecidedRecordsError
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import (
    AtOffsets,
    AtTimes,
    Filters,
    ReadRequest,
    TopicPattern,
    Topics,
)
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.errors import ArchiveError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.fake import FakeStorage
from tests.harness.made_archive import LAYOUT, TP, access_to
from tests.harness.record_batches import MadeBatch, MadeRecord
from tests.harness.splits import plan_of, read_splits
from tests.harness.tailed_log import TailedLog, mixed_log, store_pack, tailed

UNCOMMITTED, COMMITTED = IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED


@pytest.mark.parametrize("isolation", IsolationLevel)
@pytest.mark.parametrize("most", [1, 400, 1 << 20])
def test_each_offset_once(store: FakeStorage, isolation: IsolationLevel, most: int) -> None:
    log = tailed(store)
    end = log.next_offset
    for start, until in ((0, end), (3, 17), (12, end), (13, 14), (17, 20), (20, end)):
        starting, ending = AtOffsets({TP: start}), AtOffsets({TP: until})
        request: dict[str, Any] = {"starting": starting, "ending": ending, "isolation": isolation}
        if (isolation, until) == (COMMITTED, end):  # producer 4 is open at the end
            with pytest.raises(MissingRecordsError, match="no stored marker decides"):
                plan_of(store, with_tail=True, **request)
            request["ending"] = AtOffsets({TP: -1})
        plan = plan_of(store, with_tail=True, max_split_bytes=most, **request)
        plan = pickle.loads(pickle.dumps(plan))  # noqa: S301 - made here
        store.requests.clear()
        expected = [at for at in log.offsets(isolation, end) if start <= at < until]
        read = read_splits(store, plan.splits, isolation=isolation, with_tail=True)
        assert (read.offsets, read.missing) == (expected, []), (start, until)
        packs = {request.key for request in store.requests if request.operation == "list"}
        assert isolation is COMMITTED or not packs, "tasks list nothing"
        if most > 1:
            only = read_splits(
                store, plan.splits, isolation=isolation, with_tail=True, columns=("offset",)
            )
            assert only.offsets == expected
    assert plan_of(store).ranges[TP].end == 12, "without the option"


def test_tasks_read_no_packs_for_a_transaction_that_the_archive_decides(
    store: FakeStorage,
) -> None:
    log = TailedLog(store=store)
    for _ in range(5):
        log.write(1, 4)
    log.mark(1, commit=True)
    log.write(9, 3, transactional=False)
    archived = log.next_offset
    log.archived(0, 4, 8, 12, 16, 21, archived)
    log.write(9, 3, transactional=False)
    log.pack(1, 0, (archived, log.next_offset))
    request: dict[str, Any] = {"isolation": COMMITTED, "max_split_bytes": 1}
    plan = plan_of(store, with_tail=True, **request)
    store.requests.clear()
    read = read_splits(store, plan.splits[:-1], isolation=COMMITTED, with_tail=True)
    assert len(plan.splits) > 5
    assert read.offsets == [at for at in log.offsets(COMMITTED, log.next_offset) if at < archived]
    assert not [one for one in store.requests if "/tail/" in str(one.key)]
    # The marker is in a pack.
    log = TailedLog(store=FakeStorage())
    log.write(1, 4)
    log.archived(0, 4)
    log.mark(1, commit=True)
    log.pack(1, 0, (4, 5))
    assert isinstance(log.store, FakeStorage)
    plan = plan_of(log.store, with_tail=True, ending=AtOffsets({TP: 4}), isolation=COMMITTED)
    assert read_splits(log.store, plan.splits, isolation=COMMITTED, with_tail=True).offsets == [
        0,
        1,
        2,
        3,
    ]


def test_packs_are_read_once_for_all_partitions(store: FakeStorage) -> None:
    builder = PackBuilder()
    logs = [mixed_log(store) for _ in range(4)]
    for number, log in enumerate(logs):
        log.tp = TopicPartition("orders", number)
        if number:  # the first one is in the pack alone
            log.archived(0, 12)
        log.row(12 if number else 0, log.next_offset, builder)
    store_pack(store, LAYOUT, builder, 1, 0)
    for selection in (Topics(("orders",)), TopicPattern("ord.*")):
        store.requests.clear()
        with Planner(access_to(store), with_tail=True) as planner:
            plan = planner.plan(ReadRequest(selection))
        tails = [one for one in store.requests if "/tail/" in str(one.key)]
        assert len(tails) == 4, "brokers, index, packs, and the end of one"
        assert [span.end for span in plan.ranges.values()] == [log.next_offset for log in logs]
    expected = [at for log in logs for at in log.offsets(UNCOMMITTED, log.next_offset)]
    assert read_splits(store, plan.splits, with_tail=True).offsets == expected


def test_times(store: FakeStorage) -> None:
    log = mixed_log(store)
    end = log.next_offset
    log.archived(0, 12)
    log.pack(1, 0, (12, end))
    late = log.batches[0].records[0].timestamp + 2
    log.batches.append(MadeBatch(tuple(MadeRecord(end + at, late + at) for at in range(4))))
    log.next_offset = end + 4
    log.pack(1, 1, (end, end + 4))
    plan = plan_of(store, with_tail=True, starting=AtTimes(late + 2))
    assert plan.ranges[TP] == (end + 2, end + 4)
    assert read_splits(store, plan.splits, with_tail=True).offsets == [end + 2, end + 3]
    since = plan_of(store, with_tail=True, filters=Filters(since_ms=late))
    assert since.pruned > 0
    assert set(read_splits(store, since.splits, with_tail=True).offsets) >= {end, end + 3}


def planned(log: TailedLog, isolation: IsolationLevel, most: int) -> Plan:
    end: dict[str, Any] = {"ending": AtOffsets({TP: -1})}
    return plan_of(log.store, with_tail=True, max_split_bytes=most, isolation=isolation, **end)


@pytest.mark.parametrize("isolation", IsolationLevel)
@pytest.mark.parametrize("most", [1, 1 << 20])
@pytest.mark.parametrize("becomes", ["pack", "segment", "segments", "both"])
def test_ranges_of_a_deleted_pack_are_found_again(
    store: FakeStorage, becomes: str, most: int, isolation: IsolationLevel
) -> None:
    log = mixed_log(store)
    end = log.next_offset
    log.archived(0, 12)
    key = log.pack(1, 0, (12, 14), (14, 18), (18, end))
    plan = planned(log, isolation, most)
    if becomes == "pack":
        log.pack(2, 0, (12, end))
    elif becomes == "segment":
        log.archived(0, 12, end)
    elif becomes == "segments":
        log.archived(0, 12, 16, 19, end)
    else:
        log.archived(0, 12, 16)
        log.pack(2, 0, (14, 19), (19, end))
    store.delete_object(key)
    read = read_splits(store, plan.splits, isolation=isolation, with_tail=True)
    assert (read.offsets, read.missing) == (log.offsets(isolation, end), [])


def test_partition_that_only_a_deleted_pack_had(store: FakeStorage) -> None:
    log = mixed_log(store)
    end = log.next_offset
    key = log.pack(1, 0, (0, 12), (12, end))
    plan = planned(log, UNCOMMITTED, 1)
    log.pack(2, 0, (0, end))
    store.delete_object(key)
    read = read_splits(store, plan.splits, with_tail=True)
    assert read.offsets == log.offsets(UNCOMMITTED, end)


@pytest.mark.parametrize("fails", [True, False])
def test_records_that_nothing_has_any_more_are_a_retriable_error(
    store: FakeStorage, *, fails: bool
) -> None:
    log = mixed_log(store)
    log.archived(0, 12)
    key = log.pack(1, 0, (12, log.next_offset))
    plan = planned(log, UNCOMMITTED, 1)
    store.delete_object(key)
    assert read_splits(store, plan.splits[:1]).offsets == log.offsets(UNCOMMITTED, 12)
    for split in plan.splits[1:]:
        with pytest.raises(TailPackGoneError, match="Run the query again") as raised:
            read_splits(store, [split], with_tail=True, fail_on_data_loss=fails)
        assert raised.value.retry
        assert raised.value.range == split.range
        again = pickle.loads(pickle.dumps(raised.value))  # noqa: S301 - made here
        assert str(again) == str(raised.value)
    assert len(plan.splits) > 1


def test_marker_in_the_tail_decides_records_of_the_archive(store: FakeStorage) -> None:
    log = mixed_log(store)
    end = log.next_offset
    log.archived(0, 3, 5, 7, 12)
    log.pack(1, 0, (12, 14), (14, end))
    plan = planned(log, COMMITTED, 1)
    assert len(plan.splits) == 6
    found = [
        at
        for split in plan.splits
        for at in read_splits(store, [split], isolation=COMMITTED, with_tail=True).offsets
    ]
    assert found == log.offsets(COMMITTED, end)
    with pytest.raises((UndecidedRecordsError, ArchiveError)):
        read_splits(store, plan.splits, isolation=COMMITTED)  # tasks without the option
    assert plan.ranges[TP].end > Offset(12)


def test_plan_ends_at_a_transaction_that_began_in_an_earlier_range(store: FakeStorage) -> None:
    log = mixed_log(store)
    log.archived(0, 12)
    starts = [batch.first for batch in log.batches if batch.first >= 12]
    ranges = list(pairwise([*starts, log.next_offset]))
    for number, each in enumerate(ranges):
        log.pack(1, number, each)
        end = plan_of(store, with_tail=True, isolation=COMMITTED).ranges[TP].end
        expected = log.offsets(COMMITTED, each[1])
        assert (
            read_splits(
                store, planned(log, COMMITTED, 1).splits, isolation=COMMITTED, with_tail=True
            ).offsets
            == expected
        )
        assert end > expected[-1]
