"""Reads of only offsets, from the metadata of segments where that is possible."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sidetier.archive.reader import ArchiveReplacedError
from sidetier.pipeline.errors import MissingRecordsError
from sidetier.segments.errors import StoreUnavailableError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.notes import NEXT_OFFSET_KEY, RECORDS_KEY, SIZE_KEY
from sidetier.segments.offsets import Offset
from sidetier.storage.fake import FakeStorage
from tests.harness.made_archive import MadeArchive, batches, encoded
from tests.harness.record_batches import TransactionalLog
from tests.harness.splits import Told, plan_of, read_splits

OFFSET = ("offset",)


def asked(store: FakeStorage) -> Counter[str]:
    return Counter(request.operation for request in store.requests)


def told(store: FakeStorage, columns: Sequence[str] = OFFSET) -> Told:
    """Read all splits; planning happens before the requests are counted."""
    splits = plan_of(store).splits
    store.requests.clear()
    return read_splits(store, splits, columns=columns, isolation=IsolationLevel.READ_COMMITTED)


@pytest.mark.usefixtures("archive")
def test_one_request_per_segment_gives_all_offsets(store: FakeStorage) -> None:
    assert told(store).offsets == list(range(1200))
    assert asked(store) == {"head": 3}


@pytest.mark.usefixtures("archive")
def test_batches_equal_those_of_a_read(store: FakeStorage) -> None:
    (split,) = plan_of(store).splits
    noted = read_splits(store, [split], columns=OFFSET, most_records=500).batches
    read = read_splits(store, [split], columns=("offset", "key"), most_records=500).batches

    assert [batch.num_rows for batch in noted] == [500, 500, 200]
    assert noted[0].schema == read[0].select(["offset"]).schema


@pytest.mark.usefixtures("archive")
def test_parts_of_segments_are_described_too(store: FakeStorage) -> None:
    splits = plan_of(store, max_split_bytes=6000).splits
    assert len(splits) > 3
    store.requests.clear()

    assert read_splits(store, splits, columns=OFFSET).offsets == list(range(1200))
    assert set(asked(store)) == {"head"}


@pytest.mark.usefixtures("archive")
def test_a_request_beyond_the_end_gets_the_stored_records(store: FakeStorage) -> None:
    assert told(store, ("offset", "timestamp")).offsets == list(range(1200))
    assert asked(store)["stream"]


def test_offsets_of_transactions_are_read(store: FakeStorage) -> None:
    log = TransactionalLog()
    log.write(7, 10)
    log.mark(7, commit=False)
    log.write(8, 10)
    log.mark(8, commit=True)
    archive = MadeArchive(store)
    archive.segment(0, log.batches)
    archive.mark(0, log.next_offset)

    assert told(store).offsets == list(range(11, 21))
    assert asked(store) == {"head": 1, "stream": 1}


def test_offsets_that_compaction_has_removed_are_not_missing(store: FakeStorage) -> None:
    archive = MadeArchive(store)
    archive.segment(0, [*batches(0, 50), *batches(70, 100)])
    archive.mark(0, 100)

    assert told(store).offsets == [*range(50), *range(70, 100)]


def test_offsets_that_compaction_has_removed_at_the_end_are_not_missing(
    store: FakeStorage,
) -> None:
    archive = MadeArchive(store)
    archive.segment(0, batches(0, 90), next_offset=100)
    archive.segment(100, batches(100, 200))
    archive.mark(100, 200)

    assert told(store).offsets == [*range(90), *range(100, 200)]


@pytest.mark.parametrize(
    "notes", [{}, {RECORDS_KEY: "many"}, {RECORDS_KEY: "99"}, {RECORDS_KEY: "100"}]
)
def test_segments_without_metadata_are_read(
    store: FakeStorage, archive: MadeArchive, notes: dict[str, str]
) -> None:
    log = encoded(batches(100, 200))
    archive.put(archive.key(100), log, {NEXT_OFFSET_KEY: "200"} | notes)

    assert told(store).offsets == list(range(1200))
    assert asked(store)["stream"] == 3


def test_pinterests_segments_have_no_metadata_and_are_read(store: FakeStorage) -> None:
    archive = MadeArchive(store, is_pinterest=True)
    archive.segments(0, 100, 200)

    assert told(store).offsets == list(range(200))
    assert "head" not in asked(store)


def test_an_only_offsets_read_reports_a_gap_between_segments(
    store: FakeStorage, archive: MadeArchive
) -> None:
    archive.lose(100)

    with pytest.raises(MissingRecordsError, match=r"offsets \[100, 200\)"):
        told(store)


def test_an_only_offsets_read_reports_a_gap_behind_a_split(store: FakeStorage) -> None:
    archive = MadeArchive(store)
    archive.segments(0, 100)
    archive.segment(200, batches(200, 300))
    archive.mark(200, 300)
    splits = plan_of(store, max_split_bytes=1).splits
    assert all(len(split.pieces) == 1 for split in splits)

    result = read_splits(store, splits, columns=OFFSET, fail_on_data_loss=False)

    assert result.offsets == [*range(100), *range(200, 300)]
    assert [tuple(map(int, (gap.range.start, gap.range.end))) for gap in result.missing] == [
        (100, 200)
    ]


def test_a_damaged_segment_is_counted_because_nothing_is_read(
    store: FakeStorage, archive: MadeArchive
) -> None:
    log = bytearray(encoded(batches(100, 200)))
    log[-1] ^= 1
    notes = {NEXT_OFFSET_KEY: "200", RECORDS_KEY: "100", SIZE_KEY: str(len(log))}
    archive.put(archive.key(100), bytes(log), notes)

    assert told(store).offsets == list(range(1200))
    with pytest.raises(MissingRecordsError, match=r"offsets \[195, 200\)"):
        told(store, ("offset", "key"))


def test_first_segment_with_missing_offsets_ends_the_metadata_requests(
    store: FakeStorage,
) -> None:
    """Not every one of a split's many segments is queried before the read begins."""
    archive = MadeArchive(store)
    archive.segments(*range(0, 4000, 10))
    archive.put(archive.key(10), encoded(batches(10, 20)), {NEXT_OFFSET_KEY: "20"})

    assert told(store).offsets == list(range(3990))
    assert asked(store)["head"] == 2


def test_an_only_offsets_read_reports_a_segment_that_was_deleted_after_planning(
    store: FakeStorage, archive: MadeArchive
) -> None:
    splits = plan_of(store).splits
    archive.lose(100)

    with pytest.raises(MissingRecordsError, match=r"offsets \[100, 200\)"):
        read_splits(store, splits, columns=OFFSET)


def test_an_only_offsets_read_reports_a_segment_that_is_not_the_planned_one(
    store: FakeStorage, archive: MadeArchive
) -> None:
    (split,) = plan_of(store).splits
    archive.segment(100, batches(100, 200, each=7))

    with pytest.raises(ArchiveReplacedError):
        read_splits(store, [split], columns=OFFSET)


def test_offsets_below_the_first_segment_are_not_invented(store: FakeStorage) -> None:
    archive = MadeArchive(store)
    archive.segment(100, batches(100, 200))
    archive.mark(100, 200)
    (split,) = plan_of(store).splits
    wider = replace(split, range=split.range._replace(start=Offset(50)))
    store.requests.clear()

    with pytest.raises(MissingRecordsError, match=r"offsets \[50, 100\)"):
        read_splits(store, [wider], columns=OFFSET)


def test_unavailable_store_is_an_error(store: FakeStorage, archive: MadeArchive) -> None:
    splits = plan_of(store).splits
    store.fail("head", StoreUnavailableError("503"), key=archive.key(100), times=None)

    with pytest.raises(StoreUnavailableError, match="503"):
        read_splits(store, splits, columns=OFFSET)
