"""Comparison of two epoch histories at a position. An oracle compares them offset by offset."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidetier.pipeline.export.epoch_history import (
    Position,
    epoch_history_of,
    followed,
    is_doubtful,
    position_at,
    rows_of,
    shortened,
    truncated,
)
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.offsets import LeaderEpoch, Offset, OffsetRange, TopicPartition

TP = TopicPartition("orders", 0)
Rows = list[tuple[int, int]]


def divergence_of(position: Position, *present: tuple[int, int]) -> tuple[int, int] | None:
    found = truncated(TP, position, epoch_history_of(present))
    return None if found is None else (found.range.start, found.range.end)


def exported(until: int, *rows: tuple[int, int]) -> Position:
    return position_at(Offset(until), epoch_history_of(rows))


@pytest.mark.parametrize(
    ("known", "present", "divergence_offset"),
    [
        ([(5, 0)], [(5, 0)], None),
        ([(5, 0)], [(5, 0), (6, 100)], None),
        ([(5, 0)], [(5, 0), (6, 99)], 99),
        ([(5, 0)], [(5, 0), (6, 60), (7, 130)], 60),
        ([(4, 0), (5, 50)], [(4, 0), (6, 40)], 40),
        ([(4, 0), (5, 50)], [(4, 0), (6, 60)], 50),  # the later leader had more records of epoch 4
        ([(5, 0), (6, 60)], [(5, 0), (7, 100)], 60),  # KIP-320 alone does not detect it
        ([(5, 70)], [(6, 40)], 40),  # every known offset has another epoch now
        ([], [(5, 0)], None),
        ([(5, 0)], [], None),
    ],
)
def test_divergence_below_the_exported_offset_is_found(
    known: Rows, present: Rows, divergence_offset: int | None
) -> None:
    expected = None if divergence_offset is None else (divergence_offset, 100)
    assert divergence_of(exported(100, *known), *present) == expected


def test_divergence_is_described_with_its_epochs() -> None:
    found = truncated(TP, exported(100, (4, 0), (5, 50)), epoch_history_of([(4, 0), (6, 40)]))
    assert str(found) == "topic orders, partition 0, offsets [40, 100) (leader epoch 5, now 6)"


def test_broker_reports_only_its_newest_epoch() -> None:
    stored = epoch_history_of([(5, 50)])

    def behind(newest: int | None) -> Position:
        epoch = None if newest is None else LeaderEpoch(newest)
        return position_at(Offset(100), stored, epoch, is_stored=False)

    assert behind(None) == Position(Offset(100))
    assert behind(4) == Position(Offset(100)), "a broker that is late tells nothing"
    assert behind(5) == Position(Offset(100), stored)
    assert rows_of(behind(6).epoch_history) == ((6, 100),)
    # Epoch 6 may have begun at any offset and may have no record.
    assert divergence_of(behind(6), (5, 50), (6, 90)) is None
    assert divergence_of(behind(6), (5, 50), (7, 100)) is None
    assert divergence_of(behind(6), (5, 50), (7, 80)) == (80, 100)


def test_bounds_of_two_runs_do_not_contradict_each_other() -> None:
    """Two runs at the brokers, each under another leader, before any record is archived."""
    first = position_at(Offset(100), epoch_history_of([(5, 50)]), LeaderEpoch(6), is_stored=False)
    then = position_at(Offset(150), epoch_history_of([(5, 50)]), LeaderEpoch(7), is_stored=False)
    both = Position(Offset(150), followed(first, then))
    assert rows_of(both.epoch_history) == ((6, 100), (7, 150))
    assert divergence_of(both, (5, 50), (6, 90), (7, 100)) is None
    assert divergence_of(both, (5, 50), (7, 120)) is None, "epoch 6 may have had no record"
    assert divergence_of(both, (5, 50), (6, 90), (7, 97)) == (97, 150)
    assert divergence_of(both, (5, 50), (6, 90), (8, 140)) == (140, 150)
    longer = position_at(Offset(180), epoch_history_of([]), LeaderEpoch(7), is_stored=False)
    assert rows_of(followed(both, longer)) == ((6, 100), (7, 180))
    exact = exported(180, (5, 50), (6, 90), (7, 100))
    assert followed(both, exact) == exact.epoch_history, "they show that the bounds hold"
    assert rows_of(followed(exported(120, (4, 0), (5, 50)), then)) == ((5, 120), (7, 150))
    unknown = Position(Offset(150), followed(first, Position(Offset(150))))
    assert divergence_of(unknown, (5, 50), (6, 90), (7, 120)) is None, (
        "of what lies behind nobody knows"
    )
    assert str(truncated(TP, unknown, epoch_history_of([(5, 50), (7, 97)]))).endswith(
        "epoch 6, now 7)"
    )
    assert followed(Position(Offset(100)), Position(Offset(150))).entries == ()


def test_bounds_hold_when_a_run_reads_a_diverged_archive_and_newer_brokers() -> None:
    """Offsets up to 100 come from the archive, of epoch 5; up to 120 from the brokers, whose epoch
    6 begins at 80.
    """
    before, stored = exported(50, (5, 0)), epoch_history_of([(5, 0)])
    after = position_at(Offset(120), stored, LeaderEpoch(6), is_stored=False, archived=Offset(100))
    both = Position(Offset(120), followed(before, after))
    assert rows_of(both.epoch_history) == ((5, 100), (6, 120))
    assert divergence_of(both, (5, 0), (6, 80)) == (80, 120)
    assert divergence_of(both, (5, 0), (6, 100)) is None
    late = position_at(Offset(120), stored, LeaderEpoch(4), is_stored=False, archived=Offset(80))
    held = Position(Offset(120), followed(exported(100, (5, 0)), late))
    assert divergence_of(held, (5, 0), (6, 90)) == (90, 120), "the higher bound holds"

    then = position_at(Offset(200), stored, LeaderEpoch(7), is_stored=False, archived=Offset(160))
    assert rows_of(followed(both, then)) == ((5, 160), (7, 200)), "a bound that says more"


def test_exact_epochs_that_contradict_known_ones_do_not_replace_them() -> None:
    """The archive grew beyond the divergence while a run was under way."""
    before, after = exported(100, (5, 0)), exported(125, (5, 0), (6, 80))
    assert is_doubtful(before, after)
    both = Position(Offset(125), followed(before, after))
    assert divergence_of(both, (5, 0), (6, 80)) == (80, 125)
    assert not is_doubtful(before, exported(125, (5, 0), (6, 100)))
    many = exported(200, (5, 0), (6, 90), (7, 130), (8, 140), (9, 150), (10, 160))
    assert is_doubtful(before, many), "its rows do not go as far back"
    assert divergence_of(Position(Offset(200), followed(before, many)), (5, 0), (6, 90)) == (
        90,
        200,
    )


@pytest.mark.parametrize(
    ("known", "offset", "kept"),
    [
        ([(4, 0), (5, 50)], 60, [(4, 0), (5, 50)]),
        ([(4, 0), (5, 50)], 50, [(4, 0)]),
        ([(4, 30), (5, 50)], 30, []),
        ([(4, 60), (5, 100)], 80, [(4, 60), (5, 80)]),
        ([(4, 60), (5, 100)], 40, [(4, 40)]),
        ([(4, 60), (2**31 - 1, 100)], 80, [(4, 60), (2**31 - 1, 80)]),
        ([(4, 60), (2**31 - 1, 100)], 40, [(4, 40)]),
        ([], 40, []),
    ],
)
def test_epochs_below_a_divergence_stay_known(known: Rows, offset: int, kept: Rows) -> None:
    """Exact rows and bounds of records exported up to offset 100."""
    before = Position(Offset(100), epoch_history_of(known))
    after = Position(Offset(offset), shortened(before, Offset(offset)))
    assert rows_of(after.epoch_history) == tuple(kept)
    assert after.is_bounded is (before.is_bounded and bool(kept))


def test_epoch_start_hidden_by_compaction_is_no_divergence() -> None:
    known = exported(100, (4, 0), (5, 10), (6, 95))
    assert divergence_of(known, (4, 0), (5, 10), (6, 80)) is None
    assert divergence_of(known, (4, 0), (5, 10), (6, 80), (7, 98)) == (98, 100)
    assert divergence_of(exported(100, (5, 70), (6, 80)), (5, 40), (7, 100)) == (80, 100)


def test_epochs_within_a_recorded_gap_are_not_compared() -> None:
    """The writer of the gap record did not know where the next epoch begins; the next leader
    does.
    """
    gap = [OffsetRange(Offset(60), Offset(100))]
    present = epoch_history_of([(5, 0), (6, 80)])
    assert truncated(TP, exported(100, (5, 0)), present, gap) is None
    assert truncated(TP, exported(101, (5, 0)), present, gap) is not None
    assert truncated(TP, exported(120, (5, 0), (6, 100)), present, gap) is None


@st.composite
def histories(draw: st.DrawFn) -> tuple[EpochHistory, EpochHistory, int]:
    """An epoch history, another that diverges from it or continues it, and an offset."""
    epoch, old = 0, [(0, 0)]
    for start in sorted(draw(st.sets(st.integers(1, 60), max_size=7))):
        epoch += draw(st.integers(1, 2))
        old.append((epoch, start))
    until = draw(st.integers(old[-1][1] + 1, 70))
    left = draw(st.integers(1, until))
    new = [row for row in old if row[1] < left]
    for start in sorted(draw(st.sets(st.integers(left, 80), min_size=1, max_size=3))):
        epoch += draw(st.integers(1, 2))
        new.append((epoch, start))
    return epoch_history_of(old), epoch_history_of(new), until


@given(histories())
def test_divergence_is_found_exactly_as_far_back_as_rows_are_kept(
    drawn: tuple[EpochHistory, EpochHistory, int],
) -> None:
    old, new, until = drawn
    position = position_at(Offset(until), old)
    differ = [at for at in range(until) if old.epoch_at(at) != new.epoch_at(at)]
    found = truncated(TP, position, new)
    assert (found is not None) == bool(differ)
    if found is not None and differ[0] >= position.epoch_history.entries[0][1]:
        assert (found.range.start, found.range.end) == (differ[0], until)
    assert len(position.epoch_history.entries) <= 4
