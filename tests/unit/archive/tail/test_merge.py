"""The merge rule of tail packs: the cases that decide it. The model tests it at large."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from sidetier.archive.tail.merge import (
    ZOMBIE_MS,
    ArchivedPart,
    MergedTail,
    PackedRow,
    PackRef,
    Reason,
    merge,
)
from sidetier.archive.tail.needed_rows import Need, need_of
from sidetier.archive.tail.pack import claim
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.offsets import BrokerId, Offset, OffsetRange
from sidetier.segments.producer_snapshot import OpenTransaction
from tests.harness.tail_packs import TOPIC_ID, TP, history, last_stable, tail_row

OTHER_ID = "BBBBBBBBBBBBBBBBBBBBBB"


def _pack(number: int) -> PackRef:
    return PackRef(BrokerId(1), number, f"packs/{number}", "etag", 100, number)


def _range(
    number: int, epochs: EpochHistory, start: int, end: int, *, log_start: int = 0, crc: int = 1
) -> PackedRow:
    row = tail_row(epochs, start, end, log_start=log_start, crc=crc)
    return PackedRow(_pack(number), row)


def _claim(number: int, epochs: EpochHistory, *, log_start: int = 0) -> PackedRow:
    row = claim(TP, TOPIC_ID, epochs, Offset(log_start), Offset(0))
    return PackedRow(_pack(number), row)


def _archived(end: int, epochs: EpochHistory = NO_EPOCHS, *gaps: OffsetRange) -> ArchivedPart:
    return ArchivedPart(Offset(end), epochs, TOPIC_ID, gaps)


def _slices(merged: MergedTail) -> list[tuple[int, int, int]]:
    return [
        (part.source.pack.number, part.start, part.end)
        for part in merged.slices
        if part.source.pack
    ]


def _left_out(merged: MergedTail, *reasons: Reason) -> list[tuple[int, int, int]]:
    return [
        (out.source.pack.number, *out.offsets)
        for out in merged.left_out
        if out.source.pack and out.reason in reasons
    ]


def _kept(archived: ArchivedPart, rows: Iterable[PackedRow]) -> list[int]:
    """The packs of the rows that cleaning keeps."""
    dropped = {Need.ARCHIVED, Need.OTHER_TOPIC}
    return [pack.number for pack, row in rows if pack and need_of(row, archived) not in dropped]


def test_nothing_is_stored() -> None:
    merged = merge(_archived(7), [])
    assert (merged.start, merged.end, merged.slices, merged.topic_id) == (7, 7, (), TOPIC_ID)
    assert (last_stable(merged), merged.newest_ms, merged.leader_epoch) == (None, None, None)
    assert merge(ArchivedPart(), []).end == 0


def test_a_claim_shows_stale_records_before_the_new_leader_has_one() -> None:
    old, new = history((0, 0)), history((0, 0), (1, 300))
    rows = [_range(1, old, 100, 700)]
    assert merge(_archived(100, old), rows).end == 700
    merged = merge(_archived(100, old), [*rows, _claim(2, new)])
    assert (_slices(merged), merged.end) == ([(1, 100, 300)], 300)
    assert _left_out(merged, Reason.STALE) == [(1, 300, 700)]
    assert "of leader epoch 0, and the log of the leader of epoch 1" in merged.left_out[0].text
    # The last row is cut: only the markers tell where its last stable offset is.
    assert last_stable(merged) is None
    # Cleaning keeps the claim as long as the stale records are stored.
    assert sorted(_kept(_archived(100, old), [*rows, _claim(2, new)])) == [1, 2]


def test_an_epoch_that_the_new_leader_has_never_seen_is_stale_from_its_start() -> None:
    # Epoch 4 began at 120. Epoch 5 was elected from a replica that has epoch 3 up to 150.
    three, four, five = (
        history((3, 0)),
        history((3, 0), (4, 120)),
        history((3, 0), (5, 150)),
    )
    rows = [
        _range(1, three, 100, 160),
        _range(2, four, 120, 200),
        _claim(3, four),
        _claim(4, five),
        _range(5, five, 150, 170),
    ]
    merged = merge(_archived(100, three), rows)
    assert _slices(merged) == [(1, 100, 150), (5, 150, 170)]
    assert sorted(_left_out(merged, Reason.STALE)) == [(1, 150, 160), (2, 120, 200)]
    assert merged.epochs == five


def test_batches_of_several_epochs_in_one_row() -> None:
    two, three = history((1, 0), (2, 20)), history((1, 0), (2, 20), (3, 40))
    merged = merge(
        _archived(10, history((1, 0))), [_range(1, two, 0, 50), _range(2, three, 30, 60)]
    )
    assert _slices(merged) == [(1, 10, 40), (2, 40, 60)]
    assert _left_out(merged, Reason.ARCHIVED) == [(1, 0, 10)]
    assert _left_out(merged, Reason.STALE) == [(1, 40, 50)]
    assert _left_out(merged, Reason.DUPLICATE) == [(2, 30, 40)]


def test_the_tail_ends_at_the_first_gap() -> None:
    epochs = history((1, 0))
    merged = merge(_archived(0, epochs), [_range(1, epochs, 0, 5), _range(2, epochs, 6, 9)])
    assert (merged.end, merged.gap) == (5, OffsetRange(Offset(5), Offset(6)))
    assert _left_out(merged, Reason.GAP) == [(2, 6, 9)]
    # A gap right behind the archive, too; and the archive closes it.
    assert merge(_archived(0, epochs), [_range(2, epochs, 6, 9)]).slices == ()
    assert merge(_archived(6, epochs), [_range(2, epochs, 6, 9)]).end == 9


def test_the_archive_wins_and_its_epochs_count() -> None:
    old, new = history((1, 0)), history((1, 0), (4, 50))
    rows = [_range(1, old, 0, 90), _claim(2, old)]
    assert merge(_archived(90, old), rows).slices == ()
    # A later leader has archived offsets 50 to 60: what epoch 1 has above is stale.
    merged = merge(_archived(60, new), rows)
    assert (merged.end, sorted(_left_out(merged, Reason.STALE))) == (60, [(1, 50, 60), (1, 60, 90)])
    assert _left_out(merged, Reason.ARCHIVED) == [(1, 0, 50)]
    # The cluster has lost what it had acknowledged: no other object has these records.
    assert sorted(_kept(_archived(60, new), rows)) == [1]


def test_nothing_is_joined_to_an_archive_that_has_diverged() -> None:
    archived, local = history((1, 0), (2, 80)), history((1, 0), (3, 50))
    rows = [_claim(1, local), _range(2, local, 100, 120)]
    rows.append(_range(3, local, 60, 100))
    merged = merge(_archived(100, archived), rows)
    # Nor is a record archived that the archive has of another leader epoch.
    assert (merged.slices, _left_out(merged, Reason.DIVERGED)) == (
        (),
        [(3, 60, 80), (3, 80, 100), (2, 100, 120)],
    )
    assert sorted(_kept(_archived(100, archived), rows)) == [1, 2, 3]
    assert "offset 99 of leader epoch 2" in merged.left_out[-1].text
    # Behind a gap there is no record to compare.
    gap = OffsetRange(Offset(40), Offset(100))
    assert merge(_archived(100, archived, gap), rows).end == 120


def test_other_topics_of_the_same_name() -> None:
    epochs = history((0, 0))
    mine, other = _range(1, epochs, 0, 5), _range(2, epochs, 5, 9)
    other = PackedRow(other.pack, other.row._replace(topic_id=OTHER_ID))
    merged = merge(_archived(0, epochs), [mine, other])
    assert (merged.end, _left_out(merged, Reason.TOPIC_ID)) == (5, [(2, 5, 9)])
    # Without an archive, the topic is the one of which records were stored last: the number, the
    # time and copies by cleaning in the packs of the deleted topic.
    assert merge(ArchivedPart(), [other]).topic_id == OTHER_ID
    assert merge(ArchivedPart(topic_id=TOPIC_ID), [mine, other]).end == 5
    for rows in ([mine, other], [other, mine]):
        assert merge(ArchivedPart(), rows).topic_id == OTHER_ID
        copied = PackedRow(_pack(9), mine.row._replace(first_stored_ms=1))
        assert merge(ArchivedPart(), [*rows, copied]).topic_id == OTHER_ID


def test_a_history_that_retention_has_cut_proves_nothing_below() -> None:
    old, cut = history((1, 0)), history((7, 90))
    rows = [_range(1, old, 20, 95)]
    archived, both = _archived(20, old), [*rows, _claim(2, cut, log_start=90)]
    merged = merge(archived, both)
    assert merged.slices == ()
    assert _left_out(merged, Reason.UNPROVEN) == [(1, 20, 90)]
    assert _left_out(merged, Reason.STALE) == [(1, 90, 95)]
    assert sorted(_kept(_archived(20, history((1, 0))), [*rows, _claim(2, cut, log_start=90)])) == [
        1,
        2,
    ]
    # An earlier claim of the same leader has the whole history.
    whole = _claim(3, history((1, 0), (7, 80)))
    merged = merge(archived, [*both, whole])
    assert merged.end == 80


def test_rows_of_one_leader_must_agree() -> None:
    one, other = history((3, 0), (5, 50)), history((3, 0), (4, 20), (5, 50))
    with pytest.raises(ArchiveConflictError, match=r"leader epoch 5 has .*packs/1.*packs/2"):
        merge(_archived(0), [_claim(1, one), _claim(2, other)])
    epochs = history((1, 0))
    with pytest.raises(ArchiveConflictError, match=r"\[0, 5\) have other bytes in packs/2 than"):
        merge(_archived(0), [_range(1, epochs, 0, 5), _range(2, epochs, 0, 5, crc=2)])


def test_a_sidecar_continues_where_its_own_log_agrees() -> None:
    old, new = history((0, 0)), history((0, 0), (3, 40))
    own = PackedRow(None, _claim(0, new).row)
    merged = merge(_archived(10, old), [_range(1, old, 10, 60), own])
    assert (merged.end, merged.leader_epoch) == (40, 3)


def test_last_stable_offset_and_log_start() -> None:
    epochs = history((1, 0))
    source = _range(1, epochs, 0, 20, log_start=4)
    row = source.row._replace(open=(OpenTransaction(1, Offset(12)),), max_timestamp=99)
    merged = merge(_archived(0), [PackedRow(source.pack, row)])
    assert (last_stable(merged), merged.log_start, merged.newest_ms) == (12, 4, 99)
    undecided = row._replace(open=(), last_stable=Offset(3))
    assert last_stable(merge(_archived(0), [PackedRow(source.pack, undecided)])) == 3


def _at(source: PackedRow, broker: int, stored_ms: int) -> PackedRow:
    pack = source.pack
    assert pack is not None
    return PackedRow(replace(pack, broker=BrokerId(broker), modified_ms=stored_ms), source.row)


def test_a_pack_that_cannot_be_read_may_have_a_claim() -> None:
    """Without the claim of epoch 5 in it, records that epoch 5 has discarded would be returned."""
    old, new = history((3, 0)), history((3, 0), (5, 50))
    rows = [_at(_range(1, old, 0, 100), 1, 1000)]
    assert merge(_archived(0, old), rows).end == 100
    unread = _at(_claim(4, new), 2, 2000).pack
    assert unread is not None
    merged = merge(_archived(0, old), rows, [unread])
    assert (merged.slices, merged.end) == ((), 0)
    assert _left_out(merged, Reason.UNREAD) == [(1, 0, 100)]
    assert "packs/4 cannot be read, and may show that the leader" in (merged.unread or "")
    # Rows that its newest leader has stored since, in the same sequence of packs ...
    later = _at(_range(5, new, 50, 60), 2, 2001)
    merged = merge(_archived(0, old), [*rows, later], [unread])
    # ... show that it leads; not what its log has below.
    assert merged.end == 0
    assert "packs/4 cannot be read, and may show what" in (merged.unread or "")
    assert _left_out(merged, Reason.UNPROVEN) == [(1, 0, 50)]
    later = _at(_claim(5, new), 2, 2001)
    assert merge(_archived(0, old), [*rows, later], [unread]).end == 50
    early = _at(_claim(5, new), 2, 1999)  # by another sidecar of this broker
    assert merge(_archived(0, old), [*rows, early], [unread]).end == 0
    # ... or of another broker, so much later that a replaced leader would know.
    for stored_ms, end in ((2000 + ZOMBIE_MS, 0), (2001 + ZOMBIE_MS, 100)):
        more = _at(_range(6, old, 90, 100), 1, stored_ms)
        assert merge(_archived(0, old), [*rows, more], [unread]).end == end
        copy = PackedRow(more.pack, more.row._replace(first_stored_ms=1500))
        assert merge(_archived(0, old), [*rows, copy], [unread]).end == 0
        copy = PackedRow(unread, more.row._replace(first_stored_ms=stored_ms))
        assert merge(_archived(0, old), [*rows, copy], [unread]).end == end
    # Without records there is nothing to withhold.
    assert merge(_archived(100, old), rows, [unread]).unread is None


def test_epochs_of_a_gap_are_not_archived() -> None:
    """Retention had deleted their records, so nothing has shown that a later leader has others."""
    archived = history((11, 0), (13, 2), (17, 6), (19, 9))
    gap = OffsetRange(Offset(0), Offset(9))
    claims = [_claim(1, history((11, 0), (13, 2), (19, 3)))]
    ranges = [_range(2, history((19, 3)), 11, 14)]
    assert merge(_archived(11, archived, gap), [*claims, *ranges]).end == 14


def test_a_tail_is_not_joined_where_an_unread_pack_may_show_a_divergence() -> None:
    """The newest leader has stored a range since, which does not show what it has below."""
    archived, local = history((8, 2), (14, 5)), history((10, 2), (19, 7))
    unread = _at(_claim(1, local), 1, 1000).pack
    assert unread is not None
    later = _at(_range(2, local, 7, 8), 1, 2000)
    merged = merge(_archived(7, archived), [later], [unread])
    assert merged.end == 7
    assert "packs/1 cannot be read" in (merged.unread or "")
