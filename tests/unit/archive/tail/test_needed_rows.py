"""What cleaning keeps: the cases that decide it. The model tests it at large."""

import pytest

from sidetier.archive.tail.merge import ArchivedPart
from sidetier.archive.tail.needed_rows import Kept, Need, joined, need_of
from sidetier.archive.tail.pack import TailRow, claim
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.offsets import Offset, OffsetRange
from tests.harness.tail_packs import TOPIC_ID, TP, history, tail_row

OLD, NEW = history((3, 0)), history((3, 0), (5, 50))
GAP = OffsetRange(Offset(50), Offset(60))


def _archived(end: int, epochs: EpochHistory, *gaps: OffsetRange) -> ArchivedPart:
    return ArchivedPart(Offset(end), epochs, TOPIC_ID, gaps)


@pytest.mark.parametrize(
    ("row", "archived", "need"),
    [
        (tail_row(OLD, 0, 50), _archived(50, OLD), Need.ARCHIVED),
        (tail_row(OLD, 0, 51), _archived(50, OLD), Need.NEEDED),
        # Nothing of the leader that answered is archived yet: its row may refute what is.
        (tail_row(NEW, 40, 60), _archived(90, OLD), Need.NEEDED),
        (tail_row(NEW, 50, 60), _archived(60, history((3, 0), (4, 50))), Need.NEEDED),
        (tail_row(OLD, 40, 60), _archived(60, NEW), Need.LOST),
        (tail_row(OLD, 40, 50), _archived(60, NEW), Need.ARCHIVED),
        # The archive has nothing there, whatever its history says.
        (tail_row(OLD, 40, 60), _archived(60, NEW, GAP), Need.LOST),
        (tail_row(OLD, 40, 60), _archived(90, OLD, GAP), Need.LOST),
        (tail_row(OLD, 52, 55), _archived(90, OLD, GAP), Need.LOST),
        (tail_row(OLD, 40, 50), _archived(90, OLD, GAP), Need.ARCHIVED),
        (tail_row(OLD, 60, 70), _archived(90, OLD, GAP), Need.ARCHIVED),
        (tail_row(OLD, 40, 95), _archived(90, OLD, GAP), Need.NEEDED),
        (
            claim(TP, TOPIC_ID, history((3, 55)), Offset(0), Offset(0)),
            _archived(60, OLD, GAP),
            Need.ARCHIVED,
        ),
        (tail_row(OLD, 0, 50), _archived(50, NO_EPOCHS), Need.NEEDED),
        (tail_row(OLD, 0, 50), ArchivedPart(Offset(50), OLD), Need.NEEDED),
        (tail_row(OLD, 0, 50), ArchivedPart(topic_id=TOPIC_ID), Need.NEEDED),
        (tail_row(OLD, 0, 50), ArchivedPart(topic_id="B" * 22), Need.OTHER_TOPIC),
        (claim(TP, TOPIC_ID, NEW, Offset(0), Offset(0)), _archived(50, OLD), Need.NEEDED),
        (claim(TP, TOPIC_ID, NEW, Offset(0), Offset(0)), _archived(51, NEW), Need.ARCHIVED),
    ],
)
def test_a_row_goes_only_if_the_archive_has_its_records(
    row: TailRow, archived: ArchivedPart, need: Need
) -> None:
    assert need_of(row, archived) is need


def test_rows_are_needed_once() -> None:
    kept = Kept()
    assert kept.add(tail_row(OLD, 10, 20))
    assert kept.add(tail_row(OLD, 20, 30))
    assert not kept.add(tail_row(OLD, 10, 30))
    assert not kept.add(tail_row(OLD, 15, 25))
    assert kept.add(tail_row(OLD, 5, 12))
    assert not kept.add(tail_row(OLD, 5, 30))
    # A range apart, another leader epoch, another topic, and claims.
    assert kept.add(tail_row(OLD, 40, 50))
    assert kept.add(tail_row(OLD, 30, 45))
    assert not kept.add(tail_row(OLD, 5, 50))
    assert kept.add(tail_row(NEW, 10, 20))
    assert kept.add(tail_row(OLD, 10, 20)._replace(topic_id="B" * 22))
    assert kept.add(claim(TP, TOPIC_ID, OLD, Offset(0), Offset(0)))


@pytest.mark.parametrize(("size", "crc"), [(99, (1 << 64) - 1), (100, 1 << 63)])
def test_rows_of_the_same_offsets_with_other_bytes_are_all_kept(size: int, crc: int) -> None:
    """One of them is damaged, and nothing shows which."""
    first = tail_row(OLD, 10, 20)._replace(crc64nvme=(1 << 64) - 1)
    other = first._replace(size=size, crc64nvme=crc)
    kept = Kept()
    assert kept.add(first)
    assert kept.add(tail_row(OLD, 20, 30))
    assert kept.add(other)
    assert not kept.add(first)
    assert not kept.add(other)
    assert not kept.add(tail_row(OLD, 12, 18))


def test_rows_that_follow_each_other_become_one() -> None:
    first = tail_row(NEW, 40, 60)._replace(max_timestamp=9, first_stored_ms=5)
    second = tail_row(NEW, 60, 70)._replace(max_timestamp=7, first_stored_ms=8)
    both = joined(first, second, 200)
    assert both is not None
    assert (both.start, both.end, both.size, both.batches) == (40, 70, 200, 2)
    assert (both.epochs, both.max_timestamp, both.first_stored_ms) == (NEW, 9, 8)
    assert joined(first, second, 199) is None
    for other in (
        tail_row(NEW, 61, 70),  # a gap
        tail_row(NEW, 59, 70),
        tail_row(history((3, 0), (5, 50), (6, 60)), 60, 70),  # another leader
        tail_row(history((4, 0), (5, 50)), 60, 70)._replace(epochs=history((4, 0), (5, 50))),
        second._replace(topic_id="B" * 22),
        claim(TP, TOPIC_ID, history((3, 0), (5, 60)), Offset(0), Offset(0)),
    ):
        assert joined(first, other, 200) is None
    # The log start offset of the second would show the history of the first to be cut.
    cut = history((5, 50))
    assert joined(tail_row(cut, 50, 60), tail_row(cut, 60, 70, log_start=50), 200) is None
    assert (
        joined(tail_row(cut, 50, 60, log_start=50), tail_row(cut, 60, 70, log_start=55), 200)
        is not None
    )
