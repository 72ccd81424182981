"""Chapters cover whole thousands of committed segments, are written once and copy object
metadata.
"""

from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from sidetier.archive.objects.chapters import (
    SEGMENTS,
    ChapterEntry,
    decode_chapter,
    encode_chapter,
    read_chapter,
    stored_chapters,
)
from sidetier.segments.errors import MalformedObjectError, StoreUnavailableError
from sidetier.segments.names import FileKind
from sidetier.segments.notes import (
    MAX_TIMESTAMP_KEY,
    NEXT_OFFSET_KEY,
    RECORDS_KEY,
    object_note,
)
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import PutOptions
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.chapters import (
    ChapterEvent,
    Chapters,
    ChaptersWritten,
    LongArchive,
    LongArchives,
    write_chapters,
)
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.unexpected import UnexpectedErrors
from sidetier.uploader.workers import Task
from tests.harness.made_archive import LAYOUT, TP

TOPIC_ID = "pmTu1d3tQpKVzRcZVnVdEQ"


def go_on() -> bool:
    return False


def stop_after(requests: int) -> Callable[[], bool]:
    left = iter(range(requests))
    return lambda: next(left, None) is None


def store_logs(
    store: FakeStorage, first: int, count: int, *, is_pinterest: bool = False, body: bytes = b"x"
) -> None:
    """Store segments of ten offsets each."""
    for base in range(first, first + count * 10, 10):
        notes = {
            NEXT_OFFSET_KEY: str(base + 10),
            MAX_TIMESTAMP_KEY: str(base + 7),
            RECORDS_KEY: "10",
        }
        key = LAYOUT.object_key(TP, BaseOffset(base), FileKind.LOG)
        store.put_object(key, BytesBody(body), PutOptions(metadata={} if is_pinterest else notes))


def archive(store: FakeStorage, segments: int, first: int = 0) -> LongArchive:
    last = BaseOffset(first + (segments - 1) * 10)
    return LongArchive(store, LAYOUT, TP, TOPIC_ID, last, segments)


def chapters(store: FakeStorage) -> list[tuple[int, int]]:
    found = stored_chapters(store, LAYOUT, TP, TOPIC_ID)
    return [(chapter.start, chapter.end) for chapter in found]


def entries(store: FakeStorage) -> list[ChapterEntry]:
    found = stored_chapters(store, LAYOUT, TP, TOPIC_ID)
    return [entry for chapter in found for entry in read_chapter(store, chapter)]


def test_each_thousand_committed_segments_become_a_chapter() -> None:
    store = FakeStorage()
    store_logs(store, 0, 2 * SEGMENTS + 5)
    # The last thousand is incomplete: one of its segments is above the watermark.
    assert write_chapters(archive(store, 2 * SEGMENTS - 1), go_on) == SEGMENTS - 1
    assert chapters(store) == [(0, 10_000)]
    assert write_chapters(archive(store, 2 * SEGMENTS + 5), go_on) == 5
    assert chapters(store) == [(0, 10_000), (10_000, 20_000)]
    found = entries(store)
    assert [entry.base_offset for entry in found] == list(range(0, 20_000, 10))
    row = next(iter(store.list_objects(LAYOUT.partition_prefix(TP))))
    assert found[0] == ChapterEntry(BaseOffset(0), Offset(10), 1, row.etag, 7, 10)


def test_segments_deleted_at_the_start_are_left_out_of_the_chapter() -> None:
    store = FakeStorage()
    store_logs(store, 500, SEGMENTS)
    assert write_chapters(archive(store, SEGMENTS, first=500), go_on) == 0
    assert chapters(store) == [(500, 10_500)]


def test_written_chapters_are_not_written_again() -> None:
    store = FakeStorage()
    store_logs(store, 0, SEGMENTS)
    write_chapters(archive(store, SEGMENTS), go_on)
    before = {row.key: row.etag for row in store.list_objects("_sidetier/")}
    assert write_chapters(archive(store, SEGMENTS), go_on) == 0
    assert {row.key: row.etag for row in store.list_objects("_sidetier/")} == before


def test_a_segment_with_another_size_than_the_noted_one_is_left_out_of_the_chapter() -> None:
    """Readers ask for its own metadata then, and notice the difference."""
    store = FakeStorage()
    store_logs(store, 0, SEGMENTS)
    key = LAYOUT.object_key(TP, BaseOffset(70), FileKind.LOG)
    notes = {**store.head_object(key).metadata, **object_note(key, 2)}
    store.put_object(key, BytesBody(b"x"), PutOptions(metadata=notes))
    assert write_chapters(archive(store, SEGMENTS), go_on) == 0
    found = [entry.base_offset for entry in entries(store)]
    assert found == [base for base in range(0, SEGMENTS * 10, 10) if base != 70]


def test_segments_of_pinterest_make_no_chapter() -> None:
    store = FakeStorage()
    store_logs(store, 0, SEGMENTS, is_pinterest=True)
    write_chapters(archive(store, SEGMENTS), go_on)
    assert chapters(store) == []


def test_chapter_leaves_out_segments_of_pinterest() -> None:
    store = FakeStorage()
    store_logs(store, 0, 3, is_pinterest=True)
    store_logs(store, 30, SEGMENTS - 3)
    write_chapters(archive(store, SEGMENTS), go_on)
    assert [entry.base_offset for entry in entries(store)] == list(range(30, 10_000, 10))


@pytest.mark.parametrize("requests", [0, 1, 500, SEGMENTS])
def test_stopped_writer_leaves_no_chapter(requests: int) -> None:
    store = FakeStorage()
    store_logs(store, 0, SEGMENTS)
    write_chapters(archive(store, SEGMENTS), stop_after(requests))
    assert chapters(store) == []


def test_chapters_of_another_topic_id_are_not_found() -> None:
    store = FakeStorage()
    store_logs(store, 0, SEGMENTS)
    write_chapters(archive(store, SEGMENTS), go_on)
    assert stored_chapters(store, LAYOUT, TP, "another") == []


def test_only_archives_with_enough_segments_are_queued_for_chapters() -> None:
    store, told = FakeStorage(), LongArchives()
    told.put(archive(store, SEGMENTS - 1))
    assert told.take() is None
    told.put(archive(store, SEGMENTS))
    told.put(archive(store, SEGMENTS + 1))
    assert told.take() == archive(store, SEGMENTS + 1)
    assert told.take() is None


class AtOnce:
    """A pool that runs each task when it is submitted."""

    free = True

    def __init__(self) -> None:
        self.results: list[ChapterEvent] = []

    def submit(self, task: Task[ChapterEvent]) -> None:
        self.results.append(task.run())


def test_chapters_are_written_on_after_gc_has_deleted_segments() -> None:
    store, told, pool = FakeStorage(), LongArchives(), AtOnce()
    metrics = Metrics(CollectorRegistry())
    errors = UnexpectedErrors(metrics, SYSTEM_CLOCK)
    writer = Chapters(told, pool, lambda: 0.0, metrics, errors)  # type: ignore[arg-type]
    store_logs(store, 0, 4 * SEGMENTS)

    def grown_to(end: int, segments: int) -> None:
        told.put(LongArchive(store, LAYOUT, TP, TOPIC_ID, BaseOffset(end - 10), segments))
        writer.write_if_due()
        for result in pool.results:
            assert isinstance(result, ChaptersWritten)
            writer.handle(result)
        pool.results.clear()

    grown_to(20_000, 2 * SEGMENTS)
    assert len(chapters(store)) == 2
    # The entries of the first 1,500 segments are gone; then the archive grows as fast as before.
    grown_to(25_000, SEGMENTS)
    grown_to(30_000, SEGMENTS + 500)
    assert chapters(store)[-1] == (20_000, 30_000)


def test_chapter_entries_round_trip_through_the_encoding() -> None:
    some = [
        ChapterEntry(BaseOffset(0), Offset(10), 5, "e1", 7, 10),
        ChapterEntry(BaseOffset(10), Offset(12), 6, "e2", None, None),
    ]
    assert decode_chapter(encode_chapter(some), "k") == some


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"segments": 7}',
        b'{"segments": [[1, 2]]}',
        b'{"segments": [[1, 2, 3, 4, 5, 6]]}',
        b'{"segments": [["1", 2, 3, "e", 5, 6]]}',
        b'{"segments": [[true, 2, 3, "e", 5, 6]]}',
    ],
)
def test_error_for_a_malformed_chapter_names_the_key(data: bytes) -> None:
    with pytest.raises(MalformedObjectError, match="some/key"):
        decode_chapter(data, "some/key")


def test_unknown_field_of_a_later_version_is_ignored() -> None:
    data = b'{"version": 1, "segments": [[0, 10, 5, "e", 7, 10, "later"]]}'
    assert decode_chapter(data, "k") == [ChapterEntry(BaseOffset(0), Offset(10), 5, "e", 7, 10)]


def test_failed_put_leaves_no_chapter() -> None:
    store = FakeStorage()
    store_logs(store, 0, SEGMENTS)
    store.fail("put", StoreUnavailableError("away"), times=None)
    with pytest.raises(StoreUnavailableError):
        write_chapters(archive(store, SEGMENTS), go_on)
    assert chapters(store) == []
