"""ListOffsets and OffsetForLeaderEpoch answer as a broker with the same log."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from sidetier.archive.reader.time_search import TimeSearch
from sidetier.endpoint.fair_slots import FairSlots
from sidetier.endpoint.offsets import EpochEnd, ListedOffset, end_of_epoch
from sidetier.segments.arrow import decode_batches, scan_headers
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.errors import StoreUnavailableError
from sidetier.segments.headers import Compression
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import LeaderEpoch, Offset
from sidetier.storage.fake import FakeStorage
from tests.harness import broker_segments
from tests.harness.broker_archive import store_broker_segments
from tests.harness.endpoint import Parts, endpoint_over
from tests.harness.made_archive import MadeArchive, batches
from tests.harness.record_batches import MadeBatch, MadeRecord, TransactionalLog
from tests.harness.waiting import wait_until

LAYOUT = ArchiveLayout("prod-a", 3)


@pytest.mark.parametrize(
    "directory", broker_segments.directories(), ids=lambda path: str(path.name)
)
def test_timestamps_of_broker_segments(directory: Path) -> None:
    """The answer is the first record with such a timestamp: compressed ones and markers count."""
    store = FakeStorage()
    segments = store_broker_segments(store, LAYOUT, directory.name)
    records = [row for segment in segments for row in times_in(segment.read(FileKind.LOG))]
    topic, _, number = directory.name.rpartition("-")
    end = segments[-1].next_base
    with endpoint_over(store, layout=LAYOUT) as parts:
        times = sorted({timestamp for timestamp, _ in records})
        asked = {at + delta for at in times[:: max(1, len(times) // 25)] for delta in (-1, 0, 1)}
        for timestamp in sorted(asked | {0, times[-1] + 1}):
            expected = _first_at(segments_of(records, [s.next_base for s in segments]), timestamp)
            listed = parts.offsets.list_offset(topic, int(number), timestamp, 0)
            assert (listed.timestamp, listed.offset) == expected, timestamp
        newest = max(timestamp for timestamp, _ in records)
        first = min(offset for timestamp, offset in records if timestamp == newest)
        listed = parts.offsets.list_offset(topic, int(number), -3, 0)
        assert (listed.timestamp, listed.offset) == (newest, first)
        assert parts.offsets.list_offset(topic, int(number), -1, 0).offset == end


def times_in(data: bytes) -> list[tuple[int, int]]:
    """Timestamp and offset of all records, markers included."""
    headers = scan_headers(data)
    records = decode_batches(data, headers, keep=np.ones(len(headers), dtype=np.bool_))
    return [(row["timestamp"], row["offset"]) for row in records.to_pylist()]


def segments_of(records: list[tuple[int, int]], ends: list[int]) -> list[list[tuple[int, int]]]:
    starts = [0, *ends[:-1]]
    return [
        [row for row in records if start <= row[1] < end]
        for start, end in zip(starts, ends, strict=True)
    ]


def _first_at(segments: list[list[tuple[int, int]]], timestamp: int) -> tuple[int, int]:
    for segment in segments:
        for at, offset in segment:
            if at >= timestamp:
                return at, offset
    return -1, -1


@pytest.fixture
def parts() -> Iterator[Parts]:
    """Offsets 5 to 44; a transaction is open from 40 on; timestamps equal offsets below that."""
    archive = MadeArchive(FakeStorage())
    archive.segment(5, batches(5, 20))
    log = TransactionalLog(next_offset=40)
    log.write(7, 5)
    archive.segment(20, [*batches(20, 40), *log.batches])
    archive.mark(20, 45)
    archive.epoch_history((2, 5), (4, 30), (9, 60))
    with endpoint_over(archive.store) as made:
        yield made


@pytest.mark.parametrize(
    ("timestamp", "isolation", "offset"),
    [
        (-1, 0, 45),
        (-1, 1, 40),
        (-2, 0, 5),
        (-4, 1, 5),
        (-5, 0, -1),
        (17, 0, 17),
        (39, 1, 39),
        (40, 0, 40),
        (40, 1, -1),  # the record is above the last stable offset
        (-3, 1, -1),
        (-3, 0, 40),
        (10**15, 0, -1),
    ],
)
def test_each_kind_of_question(parts: Parts, timestamp: int, isolation: int, offset: int) -> None:
    for _ in range(2):  # the second answer comes from memory
        listed = parts.offsets.list_offset("orders", 0, timestamp, isolation)
        assert (listed.error, listed.offset) == (ErrorCode.none, offset)


def test_errors_name_what_is_wrong(parts: Parts) -> None:
    unknown = ErrorCode.unknown_topic_or_partition
    assert parts.offsets.list_offset("orders", 1, -1, 0) == ListedOffset(unknown)
    assert parts.offsets.list_offset("nothing", 0, -1, 0) == ListedOffset(unknown)
    assert parts.offsets.epoch_end("nothing", 0, 1) == EpochEnd(unknown)
    assert parts.offsets.list_offset("orders", 0, -9, 0).error is ErrorCode.unsupported_version


def test_a_search_decompresses_no_more_than_its_memory() -> None:
    """A batch above the share of one search is searched alone; a larger one is refused, once."""
    made = [
        MadeBatch((MadeRecord(offset, offset, value=bytes(size)),), Compression.ZSTD)
        for offset, size in enumerate((10, 90_000, 110_000))
    ]
    archive = MadeArchive(FakeStorage())
    archive.segment(0, made)
    archive.mark(0, 3)
    with endpoint_over(archive.store, search_bytes=100_000) as parts:
        listed = [parts.offsets.list_offset("orders", 0, timestamp, 0) for timestamp in range(3)]
        assert [each.offset for each in listed] == [0, 1, -1]
        assert listed[2].error is ErrorCode.message_too_large
        with capture_logs() as logs:
            assert parts.offsets.list_offset("orders", 0, 2, 0) == listed[2]
        assert not logs


@pytest.mark.parametrize(("timestamp", "first_version"), [(-3, 7), (-4, 8), (-5, 9)])
def test_older_versions_have_fewer_special_timestamps(timestamp: int, first_version: int) -> None:
    archive = MadeArchive(FakeStorage())
    archive.segments(0, 20)
    with endpoint_over(archive.store) as parts:
        older = parts.offsets.list_offset("orders", 0, timestamp, 0, first_version - 1)
        assert older == ListedOffset(ErrorCode.unsupported_version)
        known = parts.offsets.list_offset("orders", 0, timestamp, 0, first_version)
        assert known.error is ErrorCode.none


def test_a_store_that_is_away_is_a_retriable_error() -> None:
    store = FakeStorage()
    MadeArchive(store).segments(0, 20)
    with endpoint_over(store) as parts:
        store.fail("get", StoreUnavailableError("away"), times=2)
        error = parts.offsets.list_offset("orders", 0, -1, 0).error
        assert error is ErrorCode.kafka_storage_error
        assert parts.offsets.epoch_end("orders", 0, 1).error is ErrorCode.kafka_storage_error


def test_compressed_batches_are_decoded() -> None:
    records = tuple(MadeRecord(offset, 1000 + offset) for offset in range(10))
    archive = MadeArchive(FakeStorage())
    archive.segment(0, [MadeBatch(records, codec=Compression.ZSTD)])
    archive.mark(0, 10)
    with endpoint_over(archive.store) as parts:
        listed = parts.offsets.list_offset("orders", 0, 1007, 0)
    assert (listed.offset, listed.timestamp) == (7, 1007)


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [(1, (1, 5)), (2, (2, 30)), (3, (2, 30)), (4, (4, 45)), (7, (4, 45)), (9, (4, 45))],
)
def test_epochs_end_where_the_next_one_begins(
    parts: Parts, epoch: int, answer: tuple[int, int]
) -> None:
    """Epoch 9 begins above the archive end: it belongs to a commit that was not completed."""
    end = parts.offsets.epoch_end("orders", 0, epoch)
    assert (end.error, end.leader_epoch, end.end_offset) == (ErrorCode.none, *answer)


def test_epochs_are_read_once_for_each_state_of_the_archive() -> None:
    store = FakeStorage()
    archive = MadeArchive(store)
    archive.segments(0, 20)
    archive.epoch_history((2, 0))
    key = archive.layout.epoch_checkpoint_key(archive.tp)
    with endpoint_over(store) as parts:
        ends = [parts.offsets.epoch_end("orders", 0, epoch).end_offset for epoch in range(2, 9)]
        assert ends == [20] * 7
        assert store.count("get", key) == 1
        archive.segment(20, batches(20, 40))
        archive.epoch_history((2, 0), (3, 20))
        archive.mark(20, 40)
        ends = [parts.offsets.epoch_end("orders", 0, epoch).end_offset for epoch in (2, 3)]
        assert ends == [20, 40]
        assert store.count("get", key) == 2


def test_without_history_no_position_is_taken_for_truncated() -> None:
    assert end_of_epoch(NO_EPOCHS, 6, Offset(30)) == EpochEnd(ErrorCode.none, 6, 30)
    history = EpochHistory(((LeaderEpoch(3), Offset(10)),))
    assert end_of_epoch(history, 3, Offset(30)) == EpochEnd(ErrorCode.none, 3, 30)
    assert end_of_epoch(history, -1, Offset(30)) == EpochEnd(ErrorCode.none, -1, -1)


def test_few_timestamps_are_searched_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search holds batches in memory. Other questions are answered meanwhile."""
    archive = MadeArchive(FakeStorage())
    archive.segments(0, 20, 40)
    may_go, inside, peaks = threading.Event(), [0], [0]
    search = TimeSearch.first_at

    def slow(*arguments: Any) -> Any:  # noqa: ANN401 - those of `first_at`
        inside[0] += 1
        peaks[0] = max(peaks[0], inside[0])
        assert may_go.wait(20)
        inside[0] -= 1
        return search(*arguments)

    with endpoint_over(archive.store) as parts, ThreadPoolExecutor(12) as clients:
        expected = parts.offsets.list_offset("orders", 0, 7, 0)
        parts.offsets._times.clear()
        monkeypatch.setattr(TimeSearch, "first_at", slow)
        answers = [
            clients.submit(parts.offsets.list_offset, "orders", 0, at, 0)
            for at in [7] * 6 + list(range(8, 14))
        ]
        wait_until(lambda: inside[0] == 4, 10, "the searches")
        assert parts.offsets.list_offset("orders", 0, -1, 0).offset == 40
        may_go.set()
        assert [answer.result(20) for answer in answers[:6]] == [expected] * 6
        assert all(answer.result(20).error is ErrorCode.none for answer in answers)
    assert peaks == [4]


def test_a_client_with_many_questions_does_not_overtake_the_others() -> None:
    slots, order = FairSlots(1), list[str]()
    with ThreadPoolExecutor(1) as other:
        with slots.slot():
            asked = other.submit(lambda: _enter(slots, order, "other"))
            wait_until(lambda: len(slots._waiting) == 1, 10, "the other client")
        _enter(slots, order, "first again")
        asked.result(10)
    assert order == ["other", "first again"]
    assert slots._free == 1


def _enter(slots: FairSlots, order: list[str], name: str) -> None:
    with slots.slot():
        order.append(name)
