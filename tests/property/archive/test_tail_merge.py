"""The merge rule of tail packs against a model of a replicated partition (KIP-101)."""

import random
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.archive.tail import merge as rule
from sidetier.archive.tail.merge import ArchivedPart, MergedTail, PackedRow, TailSlice, merge
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.offsets import Offset, OffsetRange
from tests.harness.tail_model import Choose, Merge, Model

_SEEDS = 2000


def _run(model: Model, steps: int, merge_rows: Merge = merge) -> None:
    for _ in range(steps):
        model.act()
    # The leader's claim is stored once its sidecar has run a cycle.
    model.settle()
    model.check(merge_rows)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**63), st.integers(5, 120))
def test_a_merged_tail_is_the_log_of_the_leader(seed: int, steps: int) -> None:
    _run(Model(random.Random(seed).randrange), steps)


def _without_claims(part: ArchivedPart, rows: Iterable[PackedRow]) -> MergedTail:
    return merge(part, [source for source in rows if not source.row.is_claim])


def _without_topic_ids(part: ArchivedPart, rows: Iterable[PackedRow]) -> MergedTail:
    topic_id = part.topic_id or ""
    return merge(part, [PackedRow(pack, row._replace(topic_id=topic_id)) for pack, row in rows])


def _stale_wins(part: ArchivedPart, rows: Iterable[PackedRow]) -> MergedTail:
    def split(source: PackedRow, _: EpochHistory) -> tuple[list[OffsetRange], list[object]]:
        row = source.row
        return [OffsetRange(row.start, row.end)] if row.size else [], []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rule, "_split", split)
        return merge(part, rows)


def _gaps_are_skipped(part: ArchivedPart, rows: Iterable[PackedRow]) -> MergedTail:
    def joined(pieces: Sequence[TailSlice], begin: Offset) -> Iterator[TailSlice]:
        reached = begin
        for piece in pieces:
            if piece.end > reached:
                yield piece._replace(start=max(piece.start, reached))
                reached = piece.end

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rule, "_joined", joined)
        return merge(part, rows)


class _CleansBehindGaps(Model):
    """Cleaning drops ranges that its own packs do not join to the archive."""

    def clean(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rule, "_DEAD", frozenset({*rule._DEAD, rule.Reason.GAP}))
            super().clean()


def _is_killed(make: "type[Model]", merge_rows: Merge) -> bool:
    for seed in range(_SEEDS):
        source = random.Random(seed)
        try:
            _run(make(_choose(source)), source.randrange(20, 120), merge_rows)
        except (AssertionError, ArchiveConflictError):
            return True
    return False


def _choose(source: random.Random) -> Choose:
    return source.randrange


@pytest.mark.parametrize(
    ("make", "merge_rows"),
    [
        pytest.param(Model, _without_claims, id="without claims"),
        pytest.param(Model, _stale_wins, id="a stale epoch wins"),
        pytest.param(Model, _gaps_are_skipped, id="gaps are skipped"),
        pytest.param(Model, _without_topic_ids, id="topic ids are not compared"),
        pytest.param(_CleansBehindGaps, merge, id="cleaning drops what is behind a gap"),
    ],
)
def test_the_model_finds_a_wrong_rule(make: type[Model], merge_rows: Merge) -> None:
    assert _is_killed(make, merge_rows)
