"""Planning of a long archive reads chapters instead of the metadata of each segment."""

import logging
from collections import Counter
from typing import Any

import pytest

from sidetier.archive.objects.chapters import SEGMENTS, stored_chapters
from sidetier.pipeline.planning.request import Filters
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import PutOptions
from sidetier.uploader.chapters import LongArchive, write_chapters
from tests.harness.made_archive import LAYOUT, TP, MadeArchive, batches
from tests.harness.splits import plan_of

COUNT = SEGMENTS + 10
SINCE = (SEGMENTS - 1) * 2


@pytest.fixture(scope="module")
def made() -> FakeStorage:
    """Segments of two offsets; each timestamp equals its offset."""
    store = FakeStorage()
    MadeArchive(store).segments(*range(0, (COUNT + 1) * 2, 2))
    return store


@pytest.fixture
def store(made: FakeStorage) -> FakeStorage:
    """The same archive for each test."""
    copy = FakeStorage()
    for row in made.list_objects(""):
        stored = made.get_object(row.key)
        copy.put_object(row.key, BytesBody(stored.data), PutOptions(metadata=stored.head.metadata))
    return copy


def write(store: FakeStorage) -> str:
    """Write the chapter and return its key."""
    archive = LongArchive(store, LAYOUT, TP, None, BaseOffset((COUNT - 1) * 2), COUNT)
    write_chapters(archive, lambda: False)
    (chapter,) = stored_chapters(store, LAYOUT, TP, None)
    return chapter.key


def requests(store: FakeStorage) -> Counter[str]:
    """Number of requests of each kind for `.log` and `.timeindex` objects."""
    return Counter(
        request.operation
        for request in store.requests
        if request.key.endswith((".log", ".timeindex"))
    )


def planned(store: FakeStorage, **request: Any) -> tuple[Plan, Counter[str]]:  # noqa: ANN401
    store.requests.clear()
    plan = plan_of(store, **request)
    return plan, requests(store)


def test_plan_with_chapters_is_equal_and_needs_a_fraction_of_the_requests(
    store: FakeStorage,
) -> None:
    plans: dict[str, dict[str, Any]] = {
        "since": {"filters": Filters(since_ms=SINCE)},
        "gaps": {"find_gaps": True},
    }
    without = {name: planned(store, **request) for name, request in plans.items()}
    write(store)
    for name, request in plans.items():
        plan, asked = planned(store, **request)
        assert plan == without[name][0]
        assert without[name][1].total() >= COUNT
        assert asked.total() <= COUNT - SEGMENTS


def test_the_metadata_of_a_segment_that_was_replaced_since_the_chapter_is_requested(
    store: FakeStorage,
) -> None:
    write(store)
    late = MadeArchive(store)
    late.segment(0, batches(0, 2, 5) + batches(SINCE * 2, SINCE * 2 + 1, 1), 2)
    plan, asked = planned(store, filters=Filters(since_ms=SINCE * 2))
    assert [int(piece.base_offset) for split in plan.splits for piece in split.pieces] == [0]
    assert asked.total() <= COUNT - SEGMENTS + 1


@pytest.mark.parametrize("damage", ["malformed", "gone"])
def test_unreadable_chapter_only_costs_requests(
    store: FakeStorage, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    expected, without = planned(store, filters=Filters(since_ms=SINCE))
    key = write(store)
    if damage == "gone":
        store.delete_object(key)
    else:
        store.put_object(key, BytesBody(b"{}"))
    with caplog.at_level(logging.WARNING, "sidetier.pipeline"):
        plan, asked = planned(store, filters=Filters(since_ms=SINCE))
    assert plan == expected
    assert asked == without
    assert (key in caplog.text) == (damage == "malformed")


def test_short_read_does_not_read_chapters(store: FakeStorage) -> None:
    key = write(store)
    store.requests.clear()
    plan_of(store, filters=Filters(until=Offset(20)), find_gaps=True)
    assert key not in {request.key for request in store.requests}
    assert store.get_object(LAYOUT.object_key(TP, BaseOffset(0), FileKind.LOG)).data
