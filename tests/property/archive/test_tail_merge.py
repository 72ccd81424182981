"""The merge rule of tail packs against a model of a replicated partition (KIP-101)."""

import random
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.archive.tail import merge as rule
from sidetier.archive.tail.merge import (
    ArchivedPart,
    MergedTail,
    PackedRow,
    PackRef,
    TailSlice,
    merge,
)
from sidetier.archive.tail.needed_rows import Need, need_of
from sidetier.archive.tail.pack import TailRow
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.offsets import Offset, OffsetRange
from tests.harness.tail_model import Choose, Merge, Model, NeedOf

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


def _without_claims(
    part: ArchivedPart, rows: Iterable[PackedRow], unread: Sequence[PackRef]
) -> MergedTail:
    return merge(part, [source for source in rows if not source.row.is_claim], unread)


def _without_topic_ids(
    part: ArchivedPart, rows: Iterable[PackedRow], unread: Sequence[PackRef]
) -> MergedTail:
    topic_id = part.topic_id or ""
    ours = [PackedRow(pack, row._replace(topic_id=topic_id)) for pack, row in rows]
    return merge(part, ours, unread)


def _unread_is_ignored(
    part: ArchivedPart, rows: Iterable[PackedRow], _: Sequence[PackRef]
) -> MergedTail:
    return merge(part, rows)


def _stale_wins(
    part: ArchivedPart, rows: Iterable[PackedRow], unread: Sequence[PackRef]
) -> MergedTail:
    def split(source: PackedRow, _: EpochHistory) -> tuple[list[OffsetRange], list[object]]:
        row = source.row
        return [OffsetRange(row.start, row.end)] if row.size else [], []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rule, "_split", split)
        return merge(part, rows, unread)


def _gaps_are_skipped(
    part: ArchivedPart, rows: Iterable[PackedRow], unread: Sequence[PackRef]
) -> MergedTail:
    def joined(pieces: Sequence[TailSlice], begin: Offset) -> Iterator[TailSlice]:
        reached = begin
        for piece in pieces:
            if piece.end > reached:
                yield piece._replace(start=max(piece.start, reached))
                reached = piece.end

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rule, "_joined", joined)
        return merge(part, rows, unread)


def _below_the_end(row: TailRow, archived: ArchivedPart) -> Need:
    """What lies below the archive end offset is archived, whatever is there."""
    if row.topic_id == archived.topic_id and row.end <= (archived.end or 0):
        return Need.ARCHIVED
    return need_of(row, archived)


def _replaced_goes(row: TailRow, archived: ArchivedPart) -> Need:
    need = need_of(row, archived)
    return Need.ARCHIVED if need is Need.LOST else need


def _is_killed(merge_rows: Merge, need: NeedOf) -> bool:
    for seed in range(_SEEDS):
        source = random.Random(seed)
        try:
            _run(Model(_choose(source), need), source.randrange(20, 120), merge_rows)
        except (AssertionError, ArchiveConflictError):
            return True
    return False


def _choose(source: random.Random) -> Choose:
    return source.randrange


@pytest.mark.parametrize(
    ("merge_rows", "need"),
    [
        pytest.param(_without_claims, need_of, id="without claims"),
        pytest.param(_stale_wins, need_of, id="a stale epoch wins"),
        pytest.param(_gaps_are_skipped, need_of, id="gaps are skipped"),
        pytest.param(_without_topic_ids, need_of, id="topic ids are not compared"),
        pytest.param(_unread_is_ignored, need_of, id="packs that cannot be read are ignored"),
        pytest.param(merge, _below_the_end, id="cleaning drops what is below the archive end"),
        pytest.param(merge, _replaced_goes, id="cleaning drops what the archive has replaced"),
    ],
)
def test_the_model_finds_a_wrong_rule(merge_rows: Merge, need: NeedOf) -> None:
    assert _is_killed(merge_rows, need)
