import pytest

from sidetier.segments.epoch_history import (
    EpochHistory,
    continues,
    encode_leader_epoch_checkpoint,
    joined,
    merge,
    parse_leader_epoch_checkpoint,
    with_earlier_epochs,
)
from sidetier.segments.errors import ArchiveConflictError, SegmentError, UnsupportedFormatError
from sidetier.segments.offsets import LeaderEpoch, Offset
from tests.harness.broker_segments import directories

PATH = "t-0/leader-epoch-checkpoint"


def _entries(*entries: tuple[int, int]) -> tuple[tuple[LeaderEpoch, Offset], ...]:
    return tuple((LeaderEpoch(epoch), Offset(start)) for epoch, start in entries)


def _epoch_history(*entries: tuple[int, int]) -> EpochHistory:
    return EpochHistory(_entries(*entries))


FULL = _epoch_history((0, 0), (3, 100), (5, 200))
RETAINED = _epoch_history((3, 150), (5, 200))


@pytest.mark.parametrize(
    ("epoch_history", "runs", "end"),
    [
        (FULL, [(0, 0)], 100),
        (FULL, [(0, 0), (3, 100), (5, 200)], 300),
        (FULL, [(3, 100)], 200),
        (FULL, [(5, 250)], 10_000),
        (RETAINED, [(3, 100)], 200),  # retention has moved the start of epoch 3
        (RETAINED, [(0, 0), (3, 100)], 200),  # and dropped epoch 0
        (RETAINED, [(2, 120)], 150),
        (_epoch_history(), [], None),
        (FULL, [], None),
    ],
)
def test_batches_of_the_same_history_fit(
    epoch_history: EpochHistory, runs: list[tuple[int, int]], end: int | None
) -> None:
    assert epoch_history.violation(_entries(*runs), end) is None


@pytest.mark.parametrize(
    ("epoch_history", "runs", "end", "problem"),
    [
        (FULL, [(0, 0)], 101, "offsets [0, 101) are of leader epoch 0, but that epoch ends at 100"),
        (FULL, [(0, 0), (3, 99)], 120, "epoch 3, but that epoch starts at 100"),
        (FULL, [(4, 200)], 201, "does not know that epoch"),
        (FULL, [(6, 300)], 301, "does not know that epoch"),
        (FULL, [(0, 0), (5, 100)], 120, "epoch 5, but that epoch starts at 200"),
        (FULL, [(3, 100), (0, 150)], 160, "epoch 0, but that epoch ends at 100"),
        (RETAINED, [(2, 120)], 151, "epoch 2, but epoch 3 starts at 150"),
        (RETAINED, [(4, 170)], 180, "does not know that epoch"),
        (_epoch_history(), [(0, 0)], 1, "has no epoch"),
    ],
)
def test_truncated_batches_do_not_fit(
    epoch_history: EpochHistory, runs: list[tuple[int, int]], end: int, problem: str
) -> None:
    said = epoch_history.violation(_entries(*runs), end)
    assert said is not None
    assert problem in said


def test_batches_of_a_truncated_leader_do_not_fit_the_new_leaders_history() -> None:
    """As observed: 520 was closed at high watermark 700, then rewritten in epoch 1."""
    after = _epoch_history((0, 0), (1, 700))
    assert after.violation(_entries((0, 0)), 520) is None
    assert after.violation(_entries((0, 520)), 1040) is not None
    assert after.violation(_entries((0, 520), (1, 700)), 1040) is None


def test_epoch_of_an_offset_and_end_of_an_epoch_are_found() -> None:
    epochs = [RETAINED.epoch_at(offset) for offset in (149, 150, 199, 200, 9999)]
    assert epochs == [None, 3, 3, 5, 5]
    assert [FULL.end_of(epoch) for epoch in (0, 3, 4, 5)] == [100, 200, 200, None]
    assert FULL.up_to(200) == _epoch_history((0, 0), (3, 100))
    assert FULL.up_to(201) == FULL


@pytest.mark.parametrize(
    ("stored", "local", "merged"),
    [
        (_epoch_history(), FULL, FULL),
        (FULL, _epoch_history(), FULL),
        (FULL, FULL, FULL),
        (FULL, RETAINED, FULL),
        (RETAINED, FULL, FULL),
        (
            _epoch_history((0, 0), (3, 100)),
            _epoch_history((3, 120), (7, 400)),
            _epoch_history((0, 0), (3, 100), (7, 400)),
        ),
        (FULL, _epoch_history((9, 500)), _epoch_history((0, 0), (3, 100), (5, 200), (9, 500))),
        # An epoch without records, which another replica never saw.
        (
            FULL,
            _epoch_history((3, 100), (6, 200)),
            _epoch_history((0, 0), (3, 100), (5, 200), (6, 200)),
        ),
    ],
)
def test_merge_never_shortens_a_history(
    stored: EpochHistory, local: EpochHistory, merged: EpochHistory
) -> None:
    assert merge(stored, local) == merged
    assert merge(merged, local) == merged


@pytest.mark.parametrize(
    ("stored", "local", "reason"),
    [
        (
            FULL,
            _epoch_history((0, 0), (3, 100), (5, 190)),
            "epoch 5 starts at 200 in the archive and at",
        ),
        (
            FULL,
            _epoch_history((0, 0), (3, 100), (6, 190)),
            "epoch 5 starts at 200, but the later epoch 6",
        ),
    ],
)
def test_diverged_histories_are_not_merged(
    stored: EpochHistory, local: EpochHistory, reason: str
) -> None:
    with pytest.raises(ArchiveConflictError, match=reason):
        merge(stored, local)


@pytest.mark.parametrize(
    ("checkpoint", "earlier", "expected"),
    [
        (RETAINED, FULL, FULL),
        (_epoch_history((5, 200)), FULL, FULL),
        (_epoch_history((5, 250), (7, 300)), FULL, _epoch_history(*FULL.entries, (7, 300))),
        (
            _epoch_history((0, 0), (4, 90)),
            FULL,
            _epoch_history((0, 0), (4, 90)),
        ),  # truncation, followed by an election
        (_epoch_history((3, 120), (6, 150)), FULL, _epoch_history((0, 0), (3, 100), (6, 150))),
        (
            _epoch_history((6, 300)),
            FULL,
            _epoch_history((6, 300)),
        ),  # the start of epoch 6 is unknown
        (_epoch_history((4, 150), (5, 200)), FULL, _epoch_history((4, 150), (5, 200))),
        (_epoch_history((3, 90), (5, 200)), RETAINED, _epoch_history((3, 90), (5, 200))),
        (_epoch_history(), FULL, _epoch_history()),
        (FULL, _epoch_history(), FULL),
    ],
)
def test_epochs_dropped_from_the_front_of_a_checkpoint_are_restored(
    checkpoint: EpochHistory, earlier: EpochHistory, expected: EpochHistory
) -> None:
    assert with_earlier_epochs(checkpoint, earlier) == expected
    assert with_earlier_epochs(checkpoint, expected) == expected


@pytest.mark.parametrize(
    ("local", "end", "known"),
    [
        (FULL, 150, True),
        (RETAINED, 150, True),  # the log begins at the archive end, in the same epoch
        (RETAINED, 120, True),
        (RETAINED, 90, False),  # epoch 3 may have begun below 90
        (_epoch_history((3, 80)), 90, False),
        (_epoch_history((6, 400)), 250, False),
        (_epoch_history((5, 400)), 250, True),
        (_epoch_history(), 90, False),
    ],
)
def test_log_continues_an_archive_in_the_epoch_of_its_last_record(
    local: EpochHistory, end: int, *, known: bool
) -> None:
    assert continues(FULL.up_to(end), local, end) is known
    assert not continues(_epoch_history(), local, end)


def test_file_is_read_and_written_like_the_brokers() -> None:
    text = "0\n3\n0 0\n3 100\n5 200\n"
    assert parse_leader_epoch_checkpoint(text, PATH) == FULL
    assert encode_leader_epoch_checkpoint(FULL) == text
    assert parse_leader_epoch_checkpoint("0\n0\n", PATH) == _epoch_history()
    for directory in directories():
        text = (directory / "leader-epoch-checkpoint").read_text()
        assert encode_leader_epoch_checkpoint(parse_leader_epoch_checkpoint(text, PATH)) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0\n1\n0\n", "'0' is not an epoch and an offset"),
        ("0\n1\n0 0 0\n", "is not an epoch and an offset"),
        ("0\n1\na b\n", "is not an epoch and an offset"),
        ("0\n2\n3 100\n3 200\n", "epochs must rise"),
        ("0\n2\n3 100\n4 99\n", "epochs must rise"),
        ("0\n2\n3 100\n", "line 2 says 2 rows, there are 1"),
        ("0\n", "expected the number of rows"),
    ],
)
def test_error_for_a_damaged_file_names_it(text: str, reason: str) -> None:
    with pytest.raises(SegmentError, match=reason) as caught:
        parse_leader_epoch_checkpoint(text, PATH)
    assert str(caught.value).startswith(f"{PATH}: ")


def test_other_versions_are_refused() -> None:
    with pytest.raises(UnsupportedFormatError, match=f"{PATH}: checkpoint version '1', expected 0"):
        parse_leader_epoch_checkpoint("1\n0\n", PATH)


@pytest.mark.parametrize(
    ("below", "above", "entries"),
    [
        ([(0, 0), (1, 6)], [(0, 0), (1, 6), (2, 15)], [(0, 0), (1, 6), (2, 15)]),
        ([(0, 0)], [(0, 0), (1, 9)], [(0, 0), (1, 12)]),  # diverged at 9
        ([(0, 0)], [(1, 12), (2, 12)], [(0, 0), (1, 12), (2, 12)]),
        ([(0, 0)], [(5, 30)], [(0, 0), (5, 30)]),
        ([], [(0, 0), (1, 15)], [(0, 12), (1, 15)]),
        ([(0, 0), (3, 11)], [(0, 0)], [(0, 0)]),  # epoch 3 is in a gap
        ([(0, 0)], [], [(0, 0)]),
    ],
)
def test_history_of_an_archive_and_what_follows_it(
    below: list[tuple[int, int]], above: list[tuple[int, int]], entries: list[tuple[int, int]]
) -> None:
    both = joined(_epoch_history(*below), _epoch_history(*above), Offset(12))
    assert both == _epoch_history(*entries)
