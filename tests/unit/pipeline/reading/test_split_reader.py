"""Reading of a split: requests to the store, and missing or damaged segments."""

import pickle
import threading
from dataclasses import replace

import pytest

from sidetier.archive.reader import ArchiveReplacedError
from sidetier.pipeline.errors import MissingRecordsError, UndecidedRecordsError
from sidetier.pipeline.planning.split import Missing
from sidetier.pipeline.reading.split_reader import ReadOptions, read_split
from sidetier.segments.errors import (
    BatchTooLargeError,
    StoreUnavailableError,
    UnsupportedFormatError,
)
from sidetier.segments.headers import Compression
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import Offset, OffsetRange
from sidetier.storage.fake import FakeStorage
from tests.harness.batches import with_crc
from tests.harness.made_archive import TP, MadeArchive, access_to, batches, encoded
from tests.harness.record_batches import MadeBatch, MadeRecord, TransactionalLog
from tests.harness.splits import plan_of, read_splits, reads
from tests.harness.waiting import wait_until

COMMITTED = IsolationLevel.READ_COMMITTED


def span(first: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(first), Offset(until))


# Requests


@pytest.mark.usefixtures("archive")
def test_task_reads_only_the_bytes_of_its_pieces(store: FakeStorage) -> None:
    plan = plan_of(store, max_split_bytes=6000)
    assert [len(split.pieces) for split in plan.splits][:2] == [2, 1]
    for split in plan.splits:
        store.requests.clear()
        result = read_splits(store, [split], isolation=COMMITTED)

        assert result.offsets == list(range(split.range.start, split.range.end))
        assert {request.operation for request in store.requests} == {"stream"}
        pieces = [(piece.key, piece.start, piece.end) for piece in split.pieces]
        assert [(one.key, one.start, one.end) for one in reads(store)] == pieces


@pytest.mark.usefixtures("archive")
def test_bound_within_a_batch_cuts_the_batch(store: FakeStorage) -> None:
    split = plan_of(store).splits[0]
    inner = replace(split, range=span(103, 107))

    assert read_splits(store, [inner]).offsets == [103, 104, 105, 106]
    assert read_splits(store, [inner], isolation=COMMITTED).offsets == [103, 104, 105, 106]


@pytest.mark.usefixtures("archive")
def test_only_requested_columns_are_returned(store: FakeStorage) -> None:
    split = plan_of(store).splits[0]

    result = read_splits(store, [split], columns=("timestamp", "key"), most_records=7)

    assert {tuple(batch.schema.names) for batch in result.batches} == {("timestamp", "key")}
    assert max(batch.num_rows for batch in result.batches) == 7
    assert sum(batch.num_rows for batch in result.batches) == 1200


def open_at_the_cut(store: FakeStorage, between: int) -> tuple[MadeArchive, int]:
    """Store a transaction over the offsets 0 to 9 whose marker follows `between` other batches;
    return the marker's position.
    """
    log = TransactionalLog()
    log.write(7, 10)
    for _ in range(between):
        log.write(-1, 10, transactional=False)
    marker = log.mark(7, commit=True)
    for _ in range(40):
        log.write(-1, 10, transactional=False)
    archive = MadeArchive(store)
    archive.segment(0, log.batches)
    archive.mark(0, log.next_offset)
    return archive, marker.first


def test_marker_after_the_split_is_searched_in_the_segment(store: FakeStorage) -> None:
    open_at_the_cut(store, between=3)
    plan = plan_of(store, isolation=COMMITTED)
    whole = plan.splits[0]
    end = 400
    split = replace(whole, range=span(0, 10), pieces=(replace(whole.pieces[0], end=end),))
    store.requests.clear()

    result = read_splits(store, [split], isolation=COMMITTED)

    assert result.offsets == list(range(10))
    assert {request.operation for request in store.requests} == {"stream"}
    ranges = [(one.start, one.end) for one in reads(store, ".log")]
    assert ranges == [(0, end), (end, whole.pieces[0].size)]
    store.requests.clear()
    assert read_splits(store, [split]).offsets == list(range(10))
    assert [(one.start, one.end) for one in reads(store, ".log")] == [(0, end)]


def test_marker_in_the_next_segment_needs_no_listing(store: FakeStorage) -> None:
    log = TransactionalLog()
    log.write(7, 10)
    log.mark(7, commit=True)
    log.write(-1, 10, transactional=False)
    archive = MadeArchive(store)
    archive.segment(0, log.batches[:1])
    archive.segment(10, log.batches[1:])
    archive.mark(10, log.next_offset)
    plan = plan_of(store, isolation=COMMITTED, max_split_bytes=1)
    assert [piece.base_offset for piece in plan.splits[0].origin.behind] == [10]
    store.requests.clear()
    result = read_splits(store, plan.splits[:1], isolation=COMMITTED)

    assert result.offsets == list(range(10))
    assert {request.operation for request in store.requests} <= {"stream", "head"}


def test_marker_in_a_later_segment_is_found_by_a_listing(store: FakeStorage) -> None:
    log = TransactionalLog()
    archive = MadeArchive(store)
    bases = []
    log.write(7, 10)
    for number in range(4):
        if number == 3:
            log.mark(7, commit=True)
        log.write(-1, 5, transactional=False)
        bases.append(log.batches[0].first)
        archive.segment(bases[-1], list(log.batches))
        del log.batches[:]
    archive.mark(bases[-1], log.next_offset)
    plan = plan_of(store, isolation=COMMITTED, max_split_bytes=1)

    result = read_splits(store, plan.splits, isolation=COMMITTED)

    assert result.offsets == [at for at in range(log.next_offset) if at != 25]
    assert not result.missing


def test_undecided_records_are_never_skipped(store: FakeStorage) -> None:
    log = TransactionalLog()
    log.write(-1, 10, transactional=False)
    log.write(7, 10)
    log.write(-1, 10, transactional=False)
    archive = MadeArchive(store)
    archive.segment(0, log.batches)
    archive.mark(0, log.next_offset)
    split = plan_of(store).splits[0]

    for fail_on_data_loss in (True, False):
        with pytest.raises(
            UndecidedRecordsError, match=r"offsets \[10, 30\): .*no stored"
        ) as error:
            read_splits(store, [split], isolation=COMMITTED, fail_on_data_loss=fail_on_data_loss)
        again = pickle.loads(pickle.dumps(error.value))  # noqa: S301 -- our own
        assert (again.tp, again.range) == (TP, span(10, 30))
        assert str(again) == str(error.value)


# Missing data


def lost(store: FakeStorage) -> list[Missing]:
    """The missing range in place of the second segment; assert that the rest is read."""
    result = read_splits(store, plan_of(store).splits, fail_on_data_loss=False)
    assert result.offsets == [at for at in range(1200) if not 100 <= at < 200]
    return result.missing


def test_a_gap_is_an_error_or_a_reported_range(store: FakeStorage, archive: MadeArchive) -> None:
    archive.lose(100)

    with pytest.raises(MissingRecordsError) as caught:
        read_splits(store, plan_of(store).splits)
    (missing,) = lost(store)

    assert "topic orders, partition 0, offsets [100, 200)" in str(caught.value)
    assert "failOnDataLoss" in str(caught.value)
    assert caught.value.missing == (missing,)
    assert missing.range == span(100, 200)
    assert "no stored segment holds them" in missing.detail
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  as executors send it
    assert str(again) == str(caught.value)


def test_a_damaged_batch_is_an_error_or_a_reported_range(
    store: FakeStorage, archive: MadeArchive
) -> None:
    log = bytearray(encoded(batches(100, 200)))
    log[len(encoded(batches(100, 155))) - 1] ^= 1
    archive.put(archive.key(100), bytes(log), {"sidetier-next-offset": "200"})
    plan = plan_of(store)

    with pytest.raises(MissingRecordsError, match=r"offsets \[150, 155\) .*00100\.log"):
        read_splits(store, plan.splits)
    result = read_splits(store, plan.splits, fail_on_data_loss=False)

    assert [gap.range for gap in result.missing] == [span(150, 155)]
    assert result.offsets == [*range(150), *range(155, 1200)]


def test_segment_deleted_after_planning_is_missing(
    store: FakeStorage, archive: MadeArchive
) -> None:
    plan = plan_of(store)
    archive.lose(100)

    with pytest.raises(MissingRecordsError, match=r"offsets \[100, 200\)"):
        read_splits(store, plan.splits)
    result = read_splits(store, plan.splits, fail_on_data_loss=False)

    assert [gap.range for gap in result.missing] == [span(100, 200)]
    assert result.offsets == [*range(100), *range(200, 1200)]


def test_segments_deleted_by_retention_after_planning_are_missing(
    store: FakeStorage, archive: MadeArchive
) -> None:
    plan = plan_of(store)
    archive.lose(0)
    archive.lose(100)

    result = read_splits(store, plan.splits, fail_on_data_loss=False)

    assert [gap.range for gap in result.missing] == [span(0, 200)]
    assert "below the start" in result.missing[0].detail
    assert result.offsets == list(range(200, 1200))


def test_offsets_that_pinterests_archive_has_lost_at_its_end_are_missing(
    store: FakeStorage,
) -> None:
    archive = MadeArchive(store, is_pinterest=True)
    archive.segments(0, 100, 200, 300)
    plan = plan_of(store)
    archive.lose(200)
    archive.mark(100, 200)

    for isolation in IsolationLevel:
        result = read_splits(store, plan.splits, isolation=isolation, fail_on_data_loss=False)
        assert result.offsets == list(range(200))
        assert [gap.range for gap in result.missing] == [span(200, 300)]
        assert "ends at 200 now" in result.missing[0].detail


def test_missing_offsets_are_reported_only_within_the_split(
    store: FakeStorage, archive: MadeArchive
) -> None:
    split = plan_of(store).splits[0]
    archive.lose(100)
    inner = replace(split, range=span(20, 150), pieces=split.pieces[:2])

    result = read_splits(store, [inner], fail_on_data_loss=False)

    assert [gap.range for gap in result.missing] == [span(100, 150)]
    assert "offsets [100, 150)" in result.missing[0].detail
    assert result.offsets == list(range(20, 100))


# Permanent errors


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_another_topic_id_of_the_same_name_is_an_error(
    store: FakeStorage, archive: MadeArchive, *, fail_on_data_loss: bool
) -> None:
    archive.mark(200, 1200, topic_id="old")
    plan = plan_of(store)
    for base in (0, 100, 200):
        archive.lose(base)
    archive.segment(0, batches(0, 2000))
    archive.mark(0, 2000, topic_id="new")

    with pytest.raises(
        ArchiveReplacedError, match="belonged to topic id old and now belongs to new"
    ):
        read_splits(store, plan.splits, fail_on_data_loss=fail_on_data_loss)


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_divergence_is_an_error(
    store: FakeStorage, archive: MadeArchive, *, fail_on_data_loss: bool
) -> None:
    plan = plan_of(store)
    archive.lose(100)
    archive.lose(200)
    archive.segment(100, batches(100, 700, each=7))
    archive.mark(100, 700, leader_epoch=9)

    with pytest.raises(ArchiveReplacedError, match="moved to quarantine or replaced"):
        read_splits(store, plan.splits, fail_on_data_loss=fail_on_data_loss)


def test_retired_archive_is_an_error(store: FakeStorage, archive: MadeArchive) -> None:
    plan = plan_of(store)
    for base in (0, 100, 200):
        archive.lose(base)
    store.delete_object(archive.layout.watermark_key(TP))

    with pytest.raises(ArchiveReplacedError, match="retired or removed"):
        read_splits(store, plan.splits, fail_on_data_loss=False)


def test_unavailable_store_is_an_error_at_once(store: FakeStorage, archive: MadeArchive) -> None:
    plan = plan_of(store)
    store.fail("stream", StoreUnavailableError("503"), key=archive.key(100), times=None)

    with pytest.raises(StoreUnavailableError, match="503"):
        read_splits(store, plan.splits, fail_on_data_loss=False)


def test_archive_without_indexes_is_read(store: FakeStorage) -> None:
    archive = MadeArchive(store, is_pinterest=True)
    archive.segments(0, 100, 1200)
    for base in (0, 100):
        archive.lose(base, FileKind.INDEX)
    plan = plan_of(store, max_split_bytes=3000)

    assert [split.range for split in plan.splits] == [span(0, 100), span(100, 1200)]
    assert read_splits(store, plan.splits).offsets == list(range(1200))


@pytest.mark.usefixtures("archive")
def test_read_can_be_cancelled(store: FakeStorage) -> None:
    split, before = plan_of(store).splits[0], set(threading.enumerate())
    reading = read_split(
        access_to(store), split, ReadOptions(most_records=10), lambda _missing: None
    )

    assert next(reading).num_rows == 10
    reading.close()
    wait_until(lambda: set(threading.enumerate()) <= before, 30, "its threads to end")


def test_batch_above_the_limit_is_never_skipped(store: FakeStorage) -> None:
    archive = MadeArchive(store)
    large = MadeBatch((MadeRecord(5, value=bytes(2 << 20)),), Compression.GZIP)
    archive.segment(0, [*batches(0, 5), large, *batches(6, 10)])
    archive.mark(0, 10)
    [split] = plan_of(store).splits
    with pytest.raises(BatchTooLargeError, match=r"offsets \[5, 6\) are more than 1048576 bytes"):
        read_splits(store, [split], fail_on_data_loss=False, max_batch_bytes=1 << 20)
    result = read_splits(store, [split], fail_on_data_loss=False, max_batch_bytes=3 << 20)
    assert (result.offsets, result.missing) == (list(range(10)), [])


def test_batch_of_an_unknown_codec_is_never_skipped(store: FakeStorage) -> None:
    archive = MadeArchive(store)
    batch = bytearray(MadeBatch((MadeRecord(5),)).encoded())
    batch[22] |= 6
    archive.segment(0, encoded(batches(0, 5)) + with_crc(batch) + encoded(batches(6, 10)))
    archive.mark(0, 10)
    [split] = plan_of(store).splits
    with pytest.raises(UnsupportedFormatError, match="unknown compression 6"):
        read_splits(store, [split], fail_on_data_loss=False)
