"""A long listing split into parts returns the complete listing."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.archive.inventory import listing
from sidetier.archive.inventory.listing import part_bounds, partition_rows
from sidetier.segments.errors import AccessDeniedError
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import LISTED_AT_ONCE, ObjectSummary

PREFIX = "1a/cluster/topic-0/"


def archive(bases: Sequence[int]) -> FakeStorage:
    store = FakeStorage()
    names = [f"{base:020d}.{kind}" for base in bases for kind in ("log", "index", "timeindex")]
    for name in [*names, "_metadata", "leader-epoch-checkpoint", "offset.wm"]:
        store.put_object(PREFIX + name, BytesBody(b"x"))
    return store


def rows(bases: Sequence[int]) -> list[ObjectSummary]:
    return [
        ObjectSummary(f"{PREFIX}{base:020d}{kind}", 1, "e", 0)
        for base in bases
        for kind in (FileKind.INDEX, FileKind.LOG, FileKind.TIMEINDEX)
    ]


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat a store that answers at once as one with long latency."""
    monkeypatch.setattr(listing, "_PATIENCE", -1.0)


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("newest", [0, 400, 19_990, 1_000_000])
@pytest.mark.parametrize(
    "bases",
    [range(0, 20_000, 10), [*range(0, 4000, 4), *range(10_000, 20_000, 100)], range(100), []],
    ids=["alike", "larger later", "one page", "none"],
)
def test_parts_give_all_rows_in_order_for_any_split(bases: Sequence[int], newest: int) -> None:
    store = archive(bases)
    found = partition_rows(store, PREFIX, BaseOffset(newest))
    assert found == list(store.list_objects(PREFIX))


@pytest.mark.usefixtures("far")
def test_parts_request_little_more_than_one_listing() -> None:
    store = archive(range(0, 20_000, 10))
    partition_rows(store, PREFIX, BaseOffset(19_990))
    assert 7 <= store.count("list") <= 7 + 3


def test_store_that_answers_at_once_is_listed_by_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listing, "_PATIENCE", 3600.0)
    store = archive(range(0, 20_000, 10))
    partition_rows(store, PREFIX, BaseOffset(19_990))
    assert store.count("list") == 7


@pytest.mark.parametrize(("segments", "calls"), [(100, 0), (2000, 1)])
def test_caller_may_wait_before_the_second_page(segments: int, calls: int) -> None:
    store = archive(range(0, 10 * segments, 10))
    listed: list[int] = []
    rows = partition_rows(
        store, PREFIX, BaseOffset(10 * segments), lambda: listed.append(store.count("list"))
    )
    assert len(rows) == 3 * segments + 3
    assert listed == [1] * calls


@pytest.mark.usefixtures("far")
def test_error_in_one_part_fails_the_listing() -> None:
    store = archive(range(0, 20_000, 10))
    store.fail("list", AccessDeniedError("list: 403 AccessDenied"), nth=3)
    with pytest.raises(AccessDeniedError):
        partition_rows(store, PREFIX, BaseOffset(19_990))


@settings(deadline=None)  # a loaded machine takes longer for an example than 200 ms
@given(
    first=st.integers(0, 10**6),
    step=st.integers(1, 10**4),
    newest=st.integers(0, 10**12),
)
def test_parts_after_the_first_have_at_least_one_page(first: int, step: int, newest: int) -> None:
    page = rows(range(first, first + 400 * step, step))[:LISTED_AT_ONCE]
    reached = int(page[-1].key.removeprefix(PREFIX)[:20])
    bounds = [
        int(bound.removeprefix(PREFIX)) for bound in part_bounds(page, PREFIX, BaseOffset(newest))
    ]
    ends = [reached, *bounds, newest]
    if bounds:
        assert all(b - a >= reached - first for a, b in pairwise(ends))
    else:
        assert newest - reached < 2 * (reached - first)


def test_page_without_segments_is_not_split() -> None:
    strange = [
        ObjectSummary(f"{PREFIX}{number:05d}.txt", 1, "e", 0) for number in range(LISTED_AT_ONCE)
    ]
    assert part_bounds(strange, PREFIX, BaseOffset(10**9)) == []
