"""Start records that many partitions read at once."""

import pytest

from sidetier.archive.objects.starts import StartRecords, keep_earliest_start
from sidetier.segments.errors import ArchiveConflictError, StoreUnavailableError
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.uploader.archive.archive_state import ArchiveState, Leader
from sidetier.uploader.archive.archive_writer import ArchiveWriter
from sidetier.uploader.archive.metadata_cache import MetadataCache
from sidetier.uploader.state.segment import StoredSegment
from tests.harness.daemons import LAYOUT

LEADER = Leader(BrokerId(1), LeaderEpoch(1), None)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def records(store: FakeStorage, clock: Clock) -> StartRecords:
    return StartRecords(store, LAYOUT, clock)


def partition(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def ask(records: StartRecords, numbers: range) -> list[Offset | None]:
    return [records.read_earliest(partition(number), None) for number in numbers]


def test_one_listing_answers_for_all_partitions_without_a_record(
    store: FakeStorage, records: StartRecords
) -> None:
    for number in (3, 1500):
        keep_earliest_start(store, LAYOUT, partition(number), Offset(7), None)
    found = ask(records, range(2000))
    assert {number for number, start in enumerate(found) if start == 7} == {3, 1500}
    assert set(found) == {7, None}
    assert store.count("list") == 1
    assert store.count("get") == 63 + 1, "those before the listing, and the one that has a record"


def test_few_reads_do_not_cause_a_listing(store: FakeStorage, records: StartRecords) -> None:
    ask(records, range(63))
    assert (store.count("get"), store.count("list")) == (63, 0)


def test_listing_is_valid_for_half_a_minute(
    store: FakeStorage, records: StartRecords, clock: Clock
) -> None:
    ask(records, range(64))
    keep_earliest_start(store, LAYOUT, partition(100), Offset(7), None)
    assert ask(records, range(100, 101)) == [None]
    clock.now = 30.1
    assert ask(records, range(100, 101)) == [7]
    ask(records, range(63))
    assert store.count("list") == 2


def test_failed_listing_fails_only_one_read(store: FakeStorage, records: StartRecords) -> None:
    ask(records, range(63))
    store.fail("list", StoreUnavailableError("t", "away"))
    with pytest.raises(StoreUnavailableError):
        ask(records, range(1))
    assert ask(records, range(70)) == [None] * 70


def test_record_missed_by_a_listing_is_found_before_the_first_watermark(
    store: FakeStorage,
) -> None:
    archive_writer = ArchiveWriter(store, LAYOUT, MetadataCache(1 << 20))
    for number in range(70):
        archive_writer.load(partition(number), LEADER)
    keep_earliest_start(store, LAYOUT, partition(100), Offset(7), None)
    archive = archive_writer.load(partition(100), LEADER)
    assert archive == ArchiveState()
    segment = StoredSegment(BaseOffset(10), Offset(20), 0, 10, 10)
    with pytest.raises(ArchiveConflictError, match="the archive begins at 7"):
        archive_writer.commit(partition(100), archive.beginning_at(Offset(10)), [segment], LEADER)
    assert LAYOUT.watermark_key(partition(100)) not in store.contents()
