"""The readable part of an archive, and the difference between two snapshots of it."""

from dataclasses import replace

import pytest

from sidetier.archive.missing_offsets import GapReason, first_missing
from sidetier.archive.objects.segment import StoredLog
from sidetier.archive.objects.watermark import Watermark
from sidetier.archive.pinterest import MAX_TAILS, readable_end
from sidetier.archive.view import (
    ArchiveView,
    compare,
    continues,
    view_of_ours,
    view_of_pinterest,
)
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset, OffsetRange
from sidetier.storage.port import ObjectSummary


def stored(base: int, etag: str = "e") -> StoredLog:
    return StoredLog(BaseOffset(base), ObjectSummary(f"{base:020d}.log", 10, etag, 0))


def mark(
    base: int, end: int | None, *, start: int | None = None, epoch: int = 1, topic: str = "t"
) -> Watermark:
    return Watermark(
        BaseOffset(base),
        None if end is None else Offset(end),
        LeaderEpoch(epoch),
        topic_id=topic,
        start_offset=None if start is None else Offset(start),
    )


def ours(*bases: int, end: int, start: int | None = None) -> ArchiveView:
    logs = [stored(base) for base in bases]
    return view_of_ours("here", mark(bases[-1], end, start=start), "e", logs)


def test_segments_above_the_watermark_are_not_part_of_the_archive() -> None:
    view = view_of_ours("here", mark(100, 200), "e", [stored(0), stored(100), stored(150)])

    assert [log.base_offset for log in view.logs] == [0, 100]
    assert (view.start, view.end) == (0, 200)


def test_segments_below_the_start_are_not_part_of_the_archive() -> None:
    view = ours(0, 100, 200, end=300, start=100)

    assert [log.base_offset for log in view.logs] == [100, 200]
    assert view.start == 100


def test_first_slice_may_begin_in_the_batch_that_holds_the_start() -> None:
    view = ours(95, 200, end=300, start=100)

    assert [log.base_offset for log in view.logs] == [95, 200]
    assert view.start == 100


def test_archive_that_is_moved_as_a_whole_is_empty() -> None:
    view = view_of_ours("here", mark(0, 0), "e", [stored(0)])

    assert (view.logs, view.start, view.end) == ((), 0, 0)


def test_segment_with_the_highest_base_holds_offsets_up_to_the_next() -> None:
    view = ours(0, 50, 100, end=150)

    holder = view.holder(70)
    assert holder is not None
    assert (holder.base_offset, view.until(70), view.until(120)) == (50, 100, 150)
    assert [log.base_offset for log in view.below(100)] == [50, 0]
    assert view.holder(-1) is None
    following = view.after(50)
    assert following is not None
    assert following.base_offset == 100


@pytest.mark.parametrize(
    ("old", "new", "first"),
    [
        (ours(0, 100, end=200), ours(0, 100, 200, end=300), None),
        (ours(0, 100, end=200), ours(100, end=200), None),
        (ours(0, 100, end=200), ours(0, 90, end=95), 95),
        (ours(0, 100, end=200), ours(0, 200, end=300), 100),
        (ours(0, 100, end=200), ours(0, 100, end=180), 180),
    ],
    ids=["grown", "retention", "set aside", "a segment lost", "moved back"],
)
def test_growth_and_retention_are_no_change(
    old: ArchiveView, new: ArchiveView, first: int | None
) -> None:
    change = compare(old, new)

    assert (change.first if change else None) == first
    assert change is None or "moved to quarantine" in str(change.message)


def test_another_topic_id_changes_everything() -> None:
    old = ours(0, end=100)
    new = replace(old, watermark=mark(0, 100, topic="other"))

    change = compare(old, new)

    assert change is not None
    assert change.first == 0
    assert "deleted and created again" in str(change.message)
    assert compare(None, new) is None
    gone = compare(old, None)
    assert gone is not None
    assert "retired or removed" in str(gone.message)


def part(*bases: int, end: int, etag: str = "e") -> ArchiveView:
    """An extract of an archive."""
    logs = tuple(stored(base, etag) for base in bases)
    watermark = Watermark(BaseOffset(bases[-1]), Offset(end), topic_id="t")
    return ArchiveView("here", watermark, "", logs, Offset(bases[0]), Offset(end), is_part=True)


def test_extract_is_compared_by_its_own_segments() -> None:
    now = ours(0, 100, 200, 300, end=400)

    assert compare(part(100, 200, end=300), now) is None
    assert compare(part(100, 200, end=300), ours(0, 200, 300, end=400)) is None, "one is gone"
    assert compare(part(0, 100, end=200), ours(200, 300, end=400)) is None, "retention"
    divergenceed = compare(part(100, 200, end=300, etag="other"), now)
    assert divergenceed is not None
    assert divergenceed.first == 100
    assert divergenceed.message is not None
    shorter = compare(part(100, 200, end=300), ours(0, 100, 200, end=250))
    assert shorter is not None
    assert shorter.first == 250
    retired = compare(part(100, end=200), None)
    assert retired is not None
    assert "retired" in str(retired.message)
    assert compare(replace(part(100, end=200), watermark=mark(100, 200, topic="u")), now)


def test_last_pinterest_segment_may_be_stored_again() -> None:
    old = view_of_pinterest("here", mark(100, None), "e", [stored(0), stored(100)], Offset(150))
    new = view_of_pinterest(
        "here", mark(100, None), "e", [stored(0), stored(100, "f")], Offset(200)
    )

    change = compare(old, new)

    assert change is not None
    assert (change.first, change.message) == (100, None)


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (mark(200, 300), True),
        (mark(0, 50), False),
        (mark(200, 300, epoch=2), False),
        (mark(200, 300, topic="other"), False),
        (mark(200, None), False),
        (replace(mark(200, 300), pending="somewhere/"), False),
    ],
)
def test_watermark_continues_its_predecessor_only_by_growth(
    new: Watermark, *, expected: bool
) -> None:
    assert continues(mark(100, 200), new) is expected


# End of a Pinterest archive


@pytest.mark.parametrize(
    ("bases", "named", "tails", "end"),
    [
        ([0, 100], 100, {100: 200}, 200),
        ([0, 100, 200, 300], 0, {0: 100, 100: 200, 200: 300, 300: 400}, 400),
        ([0, 100, 300], 0, {0: 100, 100: 200}, 200),
        ([0, 100], 500, {100: 200}, 200),
        ([0, 200], 200, {200: 300}, 300),
        ([], 100, {}, 0),
        ([100, 200], 50, {100: 200, 200: 300}, 300),
    ],
    ids=["named", "lags", "gap above", "ahead", "gap below", "nothing", "nothing named"],
)
def test_pinterest_archive_ends_before_the_first_gap_above_its_watermark(
    bases: list[int], named: int, tails: dict[int, int], end: int
) -> None:
    logs = [stored(base) for base in bases]

    found = readable_end(logs, BaseOffset(named), lambda log: Offset(tails[log.base_offset]))

    assert found == end


def test_one_view_reads_a_bounded_number_of_ends() -> None:
    asked: list[int] = []

    def end_of(log: StoredLog) -> Offset:
        asked.append(log.base_offset)
        return Offset(log.base_offset + 10)

    logs = [stored(base) for base in range(0, 10_000, 10)]
    assert readable_end(logs, BaseOffset(0), end_of) == (MAX_TAILS + 1) * 10
    assert len(asked) == MAX_TAILS + 1


# Gaps


@pytest.mark.parametrize(
    ("first", "end", "gaps", "expected"),
    [
        (10, 20, [], (10, 20, GapReason.NOT_STORED)),
        (10, 20, [(10, 20)], (10, 20, GapReason.RECORDED_GAP)),
        (10, 20, [(5, 12), (12, 15)], (10, 15, GapReason.RECORDED_GAP)),
        (10, 20, [(15, 18)], (10, 15, GapReason.NOT_STORED)),
        (10, 20, [(5, 30)], (10, 20, GapReason.RECORDED_GAP)),
        (10, 20, [(30, 40), (0, 5)], (10, 20, GapReason.NOT_STORED)),
        (0, 20, [(0, 3)], (0, 5, GapReason.BELOW_START)),
    ],
)
def test_gap_has_one_reason(
    first: int, end: int, gaps: list[tuple[int, int]], expected: tuple[int, int, GapReason]
) -> None:
    recorded = [OffsetRange(Offset(a), Offset(b)) for a, b in gaps]

    missing = first_missing(OffsetRange(Offset(first), Offset(end)), recorded, Offset(5))

    assert (*missing.offsets, missing.reason) == expected
