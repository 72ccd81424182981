from dataclasses import replace

import pytest

from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.telemetry.partition_page import (
    DEFAULT_LIMIT,
    MAX_ROWS,
    PartitionQuery,
    ShownState,
    page_of,
    parse_query,
)
from sidetier.telemetry.status import PartitionStatus, Role
from sidetier.uploader.archive.unresolved import StoreRecords, Unresolved
from sidetier.uploader.clock import SYSTEM_CLOCK, Clock
from sidetier.uploader.log_tail import LogTail
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.status_board import DeletionEstimate, StatusBoard, _Known
from tests.harness.status_samples import (
    ARCHIVED,
    GAP,
    HALTED,
    HELD,
    NEAR_DELETION,
    NEW,
    PROBLEMS,
    UPLOADING,
    many,
    snapshot_of,
)

ALL = (ARCHIVED, *PROBLEMS, NEW)


def shown(query: PartitionQuery, *partitions: PartitionStatus) -> list[str]:
    page = page_of(snapshot_of(*(partitions or ALL)), query)
    return [f"{status.topic}-{status.partition}" for status in page.snapshot.partitions]


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        ("severity", ["invoices-0", "clicks-11", "payments-4", "audit-2", "orders-1"]),
        ("name", ["audit-2", "clicks-11", "fresh-0", "invoices-0", "orders-0"]),
        ("age", ["invoices-0", "clicks-11", "orders-1", "payments-4", "audit-2"]),
        ("deletion", ["clicks-11", "payments-4", "orders-1", "audit-2", "fresh-0"]),
        ("bytes", ["clicks-11", "orders-1", "payments-4", "invoices-0", "audit-2"]),
    ],
)
def test_partitions_are_sorted(sort: str, first: list[str]) -> None:
    assert shown(PartitionQuery(sort=sort))[:5] == first


def test_pages_follow_each_other_without_overlap() -> None:
    partitions = (*PROBLEMS, *many(250))
    whole = shown(PartitionQuery(limit=1000), *partitions)
    pages = [shown(PartitionQuery(offset, 100), *partitions) for offset in (0, 100, 200, 300)]
    assert [name for page in pages for name in page] == whole
    assert [len(page) for page in pages] == [100, 100, 55, 0]


def test_filters_select_topics_and_states() -> None:
    assert shown(PartitionQuery(topic="orders")) == ["orders-1", "orders-0"]
    assert shown(PartitionQuery(topic="*o*c*")) == ["invoices-0"]
    assert shown(PartitionQuery(topic="order")) == []
    assert shown(PartitionQuery(topic="[o]rder*")) == []  # only `*` makes a pattern
    assert shown(PartitionQuery(topic="?rder*")) == []
    hard = replace(ARCHIVED, topic="a" * 249)
    assert shown(PartitionQuery(topic="*a" * 200 + "b"), hard) == []  # in no time
    states = frozenset({ShownState.HELD, ShownState.GAP})
    assert shown(PartitionQuery(states=states)) == ["payments-4", "audit-2"]


def test_totals_have_every_state_of_the_selected_topics() -> None:
    """The counts are buttons of the page: they must not change when one of them is pressed."""
    states = frozenset({ShownState.HALTED})
    page = page_of(snapshot_of(*ALL), PartitionQuery(states=states))
    assert (page.matching, page.totals.partitions) == (1, 7)
    assert page.totals.states == {
        "halted": 1,
        "near_deletion": 1,
        "held": 1,
        "quarantining": 0,
        "gap": 1,
        "starting": 0,
        "waiting": 0,
        "uploading": 1,
        "archived": 2,
    }
    assert page.totals.oldest_age_seconds == 9_000.0
    assert page.totals.seconds_until_local_deletion == 210.0
    of_orders = page_of(snapshot_of(*ALL), PartitionQuery(topic="orders")).totals
    assert (of_orders.partitions, of_orders.unarchived_records) == (2, 212_400)


def test_acknowledged_gap_is_no_problem() -> None:
    acknowledged = replace(GAP, unresolved_gap_records=0)
    [state] = page_of(snapshot_of(acknowledged), PartitionQuery()).states
    assert state is ShownState.ARCHIVED
    assert not state.is_problem


def test_query_is_parsed() -> None:
    assert parse_query("") is None
    assert parse_query("topic=orders") is None  # as before there were pages
    assert parse_query("limit=7&offset=20&sort=age&topic=o*&state=held,gap&state=archived") == (
        PartitionQuery(
            20, 7, "age", "o*", frozenset({ShownState.HELD, ShownState.GAP, ShownState.ARCHIVED})
        )
    )
    assert parse_query("offset=&limit=&sort=&topic=&state=") == PartitionQuery(0, DEFAULT_LIMIT)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("limit=0", f"limit=0: expected a number from 1 to {MAX_ROWS}"),
        ("limit=1001", f"limit=1001: expected a number from 1 to {MAX_ROWS}"),
        ("offset=-1", "offset=-1: expected a number from 0"),
        ("offset=" + "9" * 10_000, "offset=9"),
        ("offset=²", "offset=²: expected a number"),
        ("sort=__class__", "sort=__class__: expected one of severity, name"),
        ("state=happy", "state=happy: expected some of halted, near_deletion"),
        ("offset=0&topic=" + "*a" * 300, "topic: longer than 512 characters"),
    ],
)
def test_wrong_query_is_refused(query: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"^" + message.split("=", maxsplit=1)[0]) as refused:
        parse_query(query)
    assert message in str(refused.value)


@pytest.mark.parametrize("sort", ["severity", "name", "age", "deletion", "bytes"])
@pytest.mark.parametrize("with_records", [False, True])
@pytest.mark.parametrize(
    ("offset", "topic", "states"),
    [
        (2, None, frozenset[ShownState]()),
        (60, None, frozenset[ShownState]()),  # the last page
        (0, "*events*1", frozenset[ShownState]()),
        (1, "e*", frozenset({ShownState.ARCHIVED, ShownState.NEAR_DELETION})),
        (0, "no-such-topic", frozenset[ShownState]()),
    ],
)
def test_pages_of_the_status_board_are_those_of_its_snapshot(
    sort: str, offset: int, topic: str | None, states: frozenset[ShownState], *, with_records: bool
) -> None:
    """The board takes a shortcut: it describes in full only the partitions on the page."""
    now = 1_790_000_000.0
    board = StatusBoard("prod-a", BrokerId(1), Clock(lambda: 50.0, lambda: now))
    bare = (HALTED, HELD, ARCHIVED, NEAR_DELETION, UPLOADING, NEW, *many(60))
    for i, status in enumerate(bare):
        known = replace(
            status,
            log_end=None,
            unarchived_records=None,
            unarchived_bytes=None,
            unarchived_age_seconds=None,
            oldest_unstored_age_seconds=None,
            seconds_until_local_deletion=None,
            role=Role.FOLLOWER if i % 11 == 5 else Role.LEADER,
        )
        closed = now - i * 100 if status.unstored_segments else None
        deleted = None if i % 3 else now + 100 * i
        board._known[status.topic_partition] = _Known(known, closed, deleted)
    tails = {
        status.topic_partition: LogTail(Offset(990_000 + 7_000 * i), 500 + i, now - 7 * i)
        for i, status in enumerate(bare)
        if i % 4
    }
    board.set_tails(tails)
    if with_records:
        tp = TopicPartition("events-0000", 7)
        gaps = {tp: ((Offset(1), Offset(4)),)}
        unresolved = Unresolved({tp: 3}, {ARCHIVED.topic_partition: 1}, gaps)
        board.set_store_records(StoreRecords(unresolved, None))
    query = PartitionQuery(offset, 20, sort, topic, states)
    assert board.page(query) == page_of(board.snapshot(), query)


def test_page_of_the_status_board_follows_the_partitions() -> None:
    """The board remembers the order of the names until a partition comes or goes."""
    board = StatusBoard("prod-a", BrokerId(1), SYSTEM_CLOCK)

    def shown_names() -> list[str]:
        statuses = board.page(PartitionQuery(sort="name")).snapshot.partitions
        return [f"{status.topic}-{status.partition}" for status in statuses]

    assert shown_names() == []
    deletion = DeletionEstimate(60.0, None)
    for number in (1, 0):
        board.update(Partition(TopicPartition("orders", number), LeaderEpoch(3)), deletion)
    assert shown_names() == ["orders-0", "orders-1"]
    board.update(Partition(TopicPartition("orders", 1), LeaderEpoch(3)), deletion)
    board.forget(TopicPartition("orders", 0))
    board.forget(TopicPartition("payments", 0))
    assert shown_names() == ["orders-1"]
