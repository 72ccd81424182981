"""Recorded gaps and quarantines that are unresolved."""

import pytest

from sidetier.archive.objects.watermark import Watermark, write_watermark
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.archive.unresolved import Unresolved, read_unresolved

LAYOUT = ArchiveLayout("c", 5)
ORDERS, PAY = TopicPartition("orders", 3), TopicPartition("pay", 0)


@pytest.fixture
def store() -> FakeStorage:
    store = FakeStorage()
    put(store, gap_of(ORDERS, 10, 30))
    put(store, gap_of(ORDERS, 40, 45))
    put(store, gap_of(PAY, 0, 7))
    for name in ("one", "two"):
        put(store, f"{LAYOUT.quarantine_prefix(ORDERS)}{name}/plan.json")
        put(store, f"{LAYOUT.quarantine_prefix(ORDERS)}{name}/{0:020d}.log")
    put(store, f"{LAYOUT.quarantine_prefix(PAY)}peer/00ff/{0:020d}.log")
    return store


def put(store: FakeStorage, key: str) -> None:
    store.put_object(key, BytesBody(b"{}"))


def gap_of(tp: TopicPartition, start: int, end: int) -> str:
    return LAYOUT.gap_key(tp, Offset(start), Offset(end))


UNRESOLVED = Unresolved(
    {ORDERS: 25, PAY: 7},
    {ORDERS: 2},
    {
        ORDERS: ((Offset(10), Offset(30)), (Offset(40), Offset(45))),
        PAY: ((Offset(0), Offset(7)),),
    },
)


def test_gaps_and_quarantines_without_acknowledgement_are_unresolved(store: FakeStorage) -> None:
    """Objects quarantined by a takeover never belonged to the archive."""
    assert read_unresolved(store, LAYOUT, ()) == UNRESOLVED


def test_acknowledgement_resolves_one_gap_and_keeps_its_record(store: FakeStorage) -> None:
    put(store, "_sidetier/c/acknowledged/gaps/orders-3/" + gap_of(ORDERS, 10, 30)[-46:])
    put(store, LAYOUT.acknowledgement_key(gap_of(PAY, 0, 7)))
    unresolved = read_unresolved(store, LAYOUT, ())
    assert unresolved.gap_records == {ORDERS: 5}
    assert unresolved.gaps == UNRESOLVED.gaps  # the records are missing all the same


@pytest.mark.parametrize(
    ("start", "left"), [(None, {ORDERS: 25}), (10, {ORDERS: 25}), (42, {ORDERS: 3}), (45, {})]
)
def test_records_that_gc_would_have_deleted_are_not_missing(
    store: FakeStorage, start: int | None, left: dict[TopicPartition, int]
) -> None:
    """Only of a led partition is the archive's start read."""
    first = None if start is None else Offset(start)
    for tp in (ORDERS, PAY):
        watermark = Watermark(BaseOffset(50), Offset(60), start_offset=first)
        write_watermark(store, LAYOUT.watermark_key(tp), watermark, None)
    store.requests.clear()

    unresolved = read_unresolved(store, LAYOUT, {ORDERS})

    assert unresolved.gap_records == {**left, PAY: 7}
    assert unresolved.gaps == UNRESOLVED.gaps
    assert store.count("get") == store.count("get", LAYOUT.watermark_key(ORDERS)) == 1


@pytest.mark.parametrize("data", [None, b"damaged"])
def test_all_gaps_count_while_the_start_is_not_known(
    store: FakeStorage, data: bytes | None
) -> None:
    if data is not None:
        store.put_object(LAYOUT.watermark_key(ORDERS), BytesBody(data))
    assert read_unresolved(store, LAYOUT, {ORDERS}) == UNRESOLVED


def test_newest_gaps_are_listed(store: FakeStorage) -> None:
    for start in range(100, 200, 2):
        put(store, gap_of(PAY, start, start + 1))
    unresolved = read_unresolved(store, LAYOUT, ())
    assert unresolved.gap_records[PAY] == 57
    assert len(unresolved.gaps[PAY]) == 32
    assert unresolved.gaps[PAY][-1] == (198, 199)


def test_quarantine_is_resolved_by_its_acknowledgement_or_its_end(store: FakeStorage) -> None:
    put(store, "_sidetier/c/acknowledged/quarantine/orders-3/one.json")
    assert read_unresolved(store, LAYOUT, ()).quarantines == {ORDERS: 1}
    for row in list(store.list_objects(f"{LAYOUT.quarantine_prefix(ORDERS)}two/")):
        store.delete_object(row.key)
    assert read_unresolved(store, LAYOUT, ()).quarantines == {}


def test_other_clusters_and_unknown_keys_do_not_count(store: FakeStorage) -> None:
    other = ArchiveLayout("other", 5)
    put(store, other.gap_key(ORDERS, Offset(0), Offset(100)))
    put(store, "_sidetier/c/gaps/readme.txt")
    put(store, "_sidetier/c/gaps/orders-3/half-a-name.json")
    put(store, "_sidetier/c/quarantine/readme/x/plan.json")
    assert read_unresolved(store, LAYOUT, ()) == UNRESOLVED
