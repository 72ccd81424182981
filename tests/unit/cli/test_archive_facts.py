"""Search for one offset in a store."""

import json

import pytest

from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.acknowledgements import acknowledged_gaps
from sidetier.archive.objects.watermark import Watermark, encode_watermark
from sidetier.cli.inspect.archive import ArchivedPartition
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.notes import NEXT_OFFSET_KEY
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import PutOptions

TP = TopicPartition("orders", 3)
LAYOUT = ArchiveLayout("prod-a", 3)


@pytest.fixture
def store() -> FakeStorage:
    return FakeStorage(now_ms=lambda: 1_600_000_000_000)


def add(store: FakeStorage, base: int, end: int) -> str:
    """Store the three objects of a segment."""
    for kind in (FileKind.INDEX, FileKind.TIMEINDEX):
        store.put_object(LAYOUT.object_key(TP, BaseOffset(base), kind), BytesBody(b""))
    key = LAYOUT.object_key(TP, BaseOffset(base), FileKind.LOG)
    store.put_object(key, BytesBody(b"x" * 7), PutOptions(metadata={NEXT_OFFSET_KEY: str(end)}))
    return key


def mark(store: FakeStorage, base: int, end: int) -> None:
    watermark = Watermark(BaseOffset(base), Offset(end), LeaderEpoch(1), BrokerId(2), nonce="n")
    store.put_object(LAYOUT.watermark_key(TP), BytesBody(encode_watermark(watermark)))


def put_json(store: FakeStorage, key: str, value: object) -> None:
    store.put_object(key, BytesBody(json.dumps(value).encode()))


def archive(store: FakeStorage) -> ArchivedPartition:
    return ArchivedPartition(StoredPartition(store, LAYOUT, TP), "s3://bucket")


@pytest.mark.parametrize(
    ("offset", "base"),
    [
        (0, 0),
        (9, 0),
        (10, None),
        (19, None),
        (20, 20),
        (29, 20),
        (5_000_000, 4_000_000),
        (30, None),
    ],
)
def test_segment_of_an_offset_is_found_near_and_far(
    offset: int, base: int | None, store: FakeStorage
) -> None:
    for start, end in ((0, 10), (20, 30), (4_000_000, 6_000_000)):
        add(store, start, end)
    found = archive(store).holder(Offset(offset))
    assert (None if found is None else found.base_offset) == base
    if found is not None:
        assert found.size_bytes == 7
        assert found.key == LAYOUT.object_key(TP, BaseOffset(base or 0), FileKind.LOG)


def test_search_in_a_long_archive_does_not_list_all_of_it(store: FakeStorage) -> None:
    """The search begins near the offset: 4,000 segments are 12 pages of a listing."""
    for number in range(4_000):
        add(store, number * 100, number * 100 + 100)
    before = store.count()
    found = archive(store).holder(Offset(390_050))
    assert found is not None
    assert found.base_offset == 390_000
    assert store.count() - before <= 2


def test_all_facts_about_an_offset_are_found(store: FakeStorage) -> None:
    key = add(store, 10, 20)
    mark(store, 10, 40)
    gap = LAYOUT.gap_key(TP, Offset(20), Offset(40))
    put_json(store, gap, {"version": 1, "broker_id": 4, "leader_epoch": 9})
    put_json(store, LAYOUT.start_key(TP), {"version": 1, "start_offset": 10})
    stored = archive(store).about(Offset(12))
    assert stored.uri == f"s3://bucket/{LAYOUT.partition_prefix(TP)}"
    assert stored.watermark.next_offset == 40
    assert (stored.first_base, stored.start_offset) == (10, 10)
    assert stored.holder is not None
    assert (stored.holder.key, stored.gap) == (key, None)
    lost = archive(store).about(Offset(39))
    assert lost.holder is None
    assert lost.gap is not None
    assert (lost.gap.key, lost.gap.start_offset, lost.gap.end_offset) == (gap, 20, 40)
    assert (lost.gap.broker_id, lost.gap.leader_epoch) == (4, 9)
    assert lost.gap.recorded_ms == 1_600_000_000_000
    assert archive(store).about(Offset(40)).gap is None


def test_objects_in_folders_below_the_gaps_are_not_gaps(store: FakeStorage) -> None:
    gap = LAYOUT.gap_key(TP, Offset(20), Offset(40))
    nested = f"{LAYOUT.gap_prefix(TP)}copy/{gap.rpartition('/')[2]}"
    put_json(store, nested, {"version": 1, "broker_id": 4, "leader_epoch": 9})
    put_json(store, LAYOUT.acknowledgement_key(nested), {"version": 1})
    assert archive(store).about(Offset(30)).gap is None
    assert acknowledged_gaps(store, LAYOUT, TP) == {}
    put_json(store, gap, {"version": 1, "broker_id": 4, "leader_epoch": 9})
    found = archive(store).about(Offset(30)).gap
    assert found is not None
    assert (found.key, found.acknowledgement) == (gap, None)


def test_empty_archive_is_a_valid_answer(store: FakeStorage) -> None:
    found = archive(store).about(Offset(5))
    assert found.watermark.problem == "no offset.wm"
    assert (found.first_base, found.holder, found.gap, found.moved_away) == (None, None, None, ())


def test_quarantined_and_retired_segments_are_found_by_the_nearest_base_offset(
    store: FakeStorage,
) -> None:
    root = f"_sidetier/prod-a/retired/{TP}/old-id/"
    for name in (
        "00000000000000000000.log",
        "00000000000000000050.log",
        "00000000000000000090.log",
    ):
        put_json(store, root + name, {})
    put_json(store, f"_sidetier/prod-a/quarantine/{TP}/1/00000000000000000070.log", {})
    assert archive(store).about(Offset(60)).moved_away == (f"{root}00000000000000000050.log",)
    assert len(archive(store).about(Offset(75)).moved_away) == 2


def test_other_entropy_bits_are_refused(store: FakeStorage) -> None:
    put_json(store, LAYOUT.layout_key(), {"version": 1, "bits": 5, "kafka_cluster_id": None})
    with pytest.raises(ConfigurationError, match="has keys with 5"):
        archive(store).about(Offset(0))


def test_search_needs_at_most_ten_requests(store: FakeStorage) -> None:
    add(store, 0, 10)
    mark(store, 0, 10)
    before = store.count()
    archive(store).about(Offset(5))
    assert store.count() - before <= 10
