"""Merging replicas' views of one history neither loses nor invents any part of it."""

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sidetier.segments.epoch_history import (
    EpochHistory,
    encode_leader_epoch_checkpoint,
    encode_runs,
    extend,
    merge,
    parse_leader_epoch_checkpoint,
    parse_runs,
    truncate,
)
from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.offsets import LeaderEpoch, Offset

END = 200


def _epoch_history(entries: list[tuple[int, int]]) -> EpochHistory:
    return EpochHistory(tuple((LeaderEpoch(epoch), Offset(start)) for epoch, start in entries))


@st.composite
def histories(draw: st.DrawFn) -> EpochHistory:
    """The true history from offset 0 to END: every epoch with records."""
    starts = draw(st.lists(st.integers(1, END - 1), max_size=8, unique=True))
    epochs = draw(
        st.lists(
            st.integers(0, 30), min_size=len(starts) + 1, max_size=len(starts) + 1, unique=True
        )
    )
    return _epoch_history(list(zip(sorted(epochs), [0, *sorted(starts)], strict=True)))


def seen_from(history: EpochHistory, log_start: int) -> EpochHistory:
    """The history known to a replica whose log begins there: earlier epochs are gone, and the first
    start is moved (Kafka's `truncateFromStart`).
    """
    epoch = history.epoch_at(log_start)
    assert epoch is not None
    later = [entry for entry in history.entries if entry[1] > log_start]
    return EpochHistory(((epoch, Offset(log_start)), *later))


offsets = st.integers(0, END)
log_starts = st.integers(0, END - 1)


@given(histories(), log_starts, log_starts)
def test_two_views_of_one_history_merge_to_a_true_one(
    history: EpochHistory, one: int, other: int
) -> None:
    stored, local = seen_from(history, one), seen_from(history, other)
    merged = merge(stored, local)
    for offset in range(min(one, other), END):
        assert merged.epoch_at(offset) == history.epoch_at(offset)
    assert merged == merge(local, stored)
    assert merge(merged, local) == merged


@given(histories(), st.lists(offsets, min_size=3, max_size=3, unique=True), log_starts)
def test_growing_archive_knows_the_epoch_of_all_its_records(
    history: EpochHistory, growth: list[int], log_start: int
) -> None:
    """Whatever retention removed from the log before the archive grew, and whatever an abandoned
    commit left.
    """
    archive_start, committed, grown = sorted(growth)
    log_start = min(log_start, committed)
    stored = seen_from(history, archive_start).up_to(committed)
    left = (*stored.entries, (LeaderEpoch(99), Offset(committed)))
    extended = extend(EpochHistory(left), seen_from(history, log_start), committed, grown)
    for offset in range(archive_start, grown):
        assert extended.epoch_at(offset) == history.epoch_at(offset)
    assert all(start < grown for _, start in extended.entries)
    assert set(stored.entries) <= {*extended.entries, stored.entries[0]}


@given(histories(), offsets, st.integers(1, END))
def test_divergence_below_the_known_end_is_never_merged(
    history: EpochHistory, divergence_offset: int, tail: int
) -> None:
    assume(any(start > divergence_offset for _, start in history.entries))
    local = EpochHistory(
        (
            *truncate(history, divergence_offset).entries,
            (LeaderEpoch(99), Offset(divergence_offset)),
        )
    )
    with pytest.raises(ArchiveConflictError):
        merge(history, local)
    with pytest.raises(ArchiveConflictError):
        extend(history, local, END, END + tail)


@given(histories(), st.data())
def test_epoch_has_one_start(history: EpochHistory, data: st.DataObject) -> None:
    """Except for the first row: retention moves it up, never down."""
    assume(len(history.entries) > 1)
    at = data.draw(st.integers(1, len(history.entries) - 1))
    epoch, start = history.entries[at]
    above = history.entries[at + 1][1] if at + 1 < len(history.entries) else END
    other = data.draw(st.integers(history.entries[at - 1][1], above).filter(lambda o: o != start))
    moved = list(history.entries)
    moved[at] = (epoch, Offset(other))
    with pytest.raises(ArchiveConflictError, match=f"leader epoch {epoch} starts at"):
        merge(history, EpochHistory(tuple(moved)))
    if other > start:
        assert merge(history, EpochHistory(tuple(moved)), sparse=True) == history
    else:
        with pytest.raises(ArchiveConflictError):
            merge(history, EpochHistory(tuple(moved[at:])))


@given(histories(), offsets)
def test_truncation_keeps_the_earlier_epochs(history: EpochHistory, divergence_offset: int) -> None:
    kept = truncate(history, divergence_offset)
    assert all(
        kept.epoch_at(offset) == history.epoch_at(offset) for offset in range(divergence_offset)
    )
    assert all(start < divergence_offset for _, start in kept.entries)
    assert truncate(kept, divergence_offset) == kept
    later = EpochHistory((*kept.entries, (LeaderEpoch(99), Offset(divergence_offset))))
    assert merge(kept, later) == later


@given(histories())
def test_epoch_history_round_trips_through_its_text(history: EpochHistory) -> None:
    assert parse_leader_epoch_checkpoint(encode_leader_epoch_checkpoint(history), "x") == history
    assert parse_runs(encode_runs(history.entries)) == history
    for one, two in pairwise(history.entries):
        assert parse_runs(encode_runs([two, one])) == EpochHistory(())


@given(st.text(alphabet="0123456789@,- x٣", max_size=20))
def test_malformed_epoch_notes_give_no_epochs(text: str) -> None:
    found = parse_runs(text)
    assert found == EpochHistory(()) or encode_runs(found.entries) == ",".join(
        "@".join(str(int(number)) for number in part.split("@")) for part in text.split(",")
    )
