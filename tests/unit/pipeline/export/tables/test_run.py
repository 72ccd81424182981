from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.pipeline.export.epoch_history import epoch_history_of
from sidetier.pipeline.export.errors import (
    BehindError,
    BrokenProgressError,
    LogTruncatedError,
    LostProgressError,
    NotCommittedError,
    OtherExportError,
    OtherTopicError,
    OtherWriterError,
    StrayCommitError,
)
from sidetier.pipeline.export.sinks.tables.commit_metadata import Progress, last_progress
from sidetier.pipeline.export.sinks.tables.frames import Rows
from sidetier.pipeline.export.sinks.tables.run import Committed, TableRun, TableTerms
from sidetier.pipeline.export.state import Offsets, Ranges
from sidetier.pipeline.planning.log_offsets import UndecidedTail
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.epoch_history import NO_EPOCHS
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from tests.unit.pipeline.export.tables.fakes import FakeSource, FakeTable, grow

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def source() -> FakeSource:
    return FakeSource({A: OffsetRange(Offset(0), Offset(10)), B: OffsetRange(Offset(5), Offset(5))})


def export(table: FakeTable, source: FakeSource, terms: TableTerms | None = None) -> Committed:
    return TableRun(source, terms or TableTerms(), table, source.frame).run()


def raising(error: BaseException) -> Callable[[], None]:
    def fault() -> None:
        raise error

    return fault


def records(tp: TopicPartition, first: int, until: int) -> list[tuple[TopicPartition, int]]:
    return [(tp, offset) for offset in range(first, until)]


def test_run_continues_at_the_tables_offsets(source: FakeSource) -> None:
    table = FakeTable()
    assert export(table, source).offsets == {A: 10, B: 5}
    grow(source, A, 13)
    grow(source, B, 7)
    done = export(table, source)
    assert (done.offsets, done.spanned, len(done.commits)) == ({A: 13, B: 7}, 5, 1)
    assert table.rows == records(A, 0, 13) + records(B, 5, 7)
    assert table.commits[1].since == table.commits[0].offsets


@pytest.mark.parametrize(
    ("terms", "each"),
    [(TableTerms(most_bytes=40), 4), (TableTerms(most_offsets=2, most_bytes=40), 2)],
)
def test_commits_are_bounded_in_bytes(source: FakeSource, terms: TableTerms, each: int) -> None:
    table = FakeTable()
    done = export(table, source, terms)
    assert [one.offsets[A] for one in table.commits] == [*range(each, 10, each), 10]
    assert (done.offsets, done.spanned) == ({A: 10, B: 5}, 10)
    assert table.rows == records(A, 0, 10)


def test_tail_offsets_from_the_brokers_are_in_each_commit(source: FakeSource) -> None:
    table = FakeTable()
    source.cut, source.ids = {A: 4, B: 5}, {"t": "id-1"}
    export(table, source, TableTerms(most_offsets=3))
    assert [one.tail.offsets for one in table.commits] == [{}, {A: 6}, {A: 9}, {A: 10}]
    assert table.commits[-1].tail.topic_ids == {"t": "id-1"}

    archived = FakeSource({A: OffsetRange(Offset(0), Offset(7)), B: source.ranges[B]})
    assert export(table, archived).commits == (), "it is not archived that far yet"
    grow(archived, A, 12)
    export(table, archived)
    assert table.rows == records(A, 0, 12)
    assert table.commits[-1].tail == table.commits[-2].tail

    source.ids = {"t": "id-2"}
    with pytest.raises(OtherTopicError, match=r"lake.db.t has the topic id id-1, but the next"):
        export(table, source)


def test_run_without_new_records_makes_no_commit(source: FakeSource) -> None:
    table = FakeTable()
    export(table, source)
    assert export(table, source).commits == ()
    assert len(table.commits) == 1


@pytest.mark.parametrize("allow_empty", [True, False])
def test_first_run_from_the_latest_offset_commits_where_it_starts(
    source: FakeSource, *, allow_empty: bool
) -> None:
    table, terms = FakeTable(), TableTerms(commits_start=True, allow_empty=allow_empty)
    source.ranges[A] = OffsetRange(Offset(10), Offset(10))
    [commit] = export(table, source, terms).commits
    assert (table.progress(), table.rows) == (table.commits[0], [])
    assert (table.commits[0].commit, table.commits[0].offsets) == (commit, {A: 10, B: 5})
    assert export(table, source, terms).commits == ()
    source.ranges[A] = OffsetRange(Offset(14), Offset(14))  # the latest offset is a later one now
    export(table, source, terms)
    assert table.rows == records(A, 10, 14)


def test_commits_are_bounded_in_offsets(source: FakeSource) -> None:
    table = FakeTable()
    done = export(table, source, TableTerms(most_offsets=4))
    assert [one.offsets[A] for one in table.commits] == [4, 8, 10]
    assert done.commits == tuple(one.commit for one in table.commits)


def test_failed_commit_is_undone_and_reported(source: FakeSource) -> None:
    table = FakeTable(before=[raising(NotCommittedError("disk full"))])
    with pytest.raises(NotCommittedError, match="disk full"):
        export(table, source)
    assert table.recovered == 2
    assert not table.rows
    export(table, source)
    assert table.rows == records(A, 0, 10)


def test_error_after_the_commit_is_ignored(source: FakeSource) -> None:
    table = FakeTable(after=[raising(NotCommittedError("cleaning failed"))])
    assert export(table, source).offsets == {A: 10, B: 5}
    assert table.rows == records(A, 0, 10)


def test_commit_that_the_table_does_not_show_is_an_error(source: FakeSource) -> None:
    table = FakeTable()
    table.after.append(table.commits.clear)
    with pytest.raises(StrayCommitError, match="the table's last one is none"):
        export(table, source)


def test_other_writer_is_reported_at_once(source: FakeSource) -> None:
    table = FakeTable(before=[raising(OtherWriterError("refused"))])
    with pytest.raises(OtherWriterError):
        export(table, source)
    assert not table.commits


def test_offsets_without_a_record_are_committed_or_left(source: FakeSource) -> None:
    source.aborted = set(range(4, 8))
    kept, left = FakeTable(), FakeTable()
    export(kept, source, TableTerms(most_offsets=4))
    done = export(left, source, TableTerms(most_offsets=4, allow_empty=False))
    assert [one.offsets[A] for one in kept.commits] == [4, 8, 10]
    assert [one.offsets[A] for one in left.commits] == [4, 10]
    assert kept.rows == left.rows == records(A, 0, 4) + records(A, 8, 10)
    assert (done.spanned, done.skipped) == (6, 4)


def test_offsets_left_at_the_end_are_read_again(source: FakeSource) -> None:
    source.aborted = set(range(4, 10))
    table = FakeTable()
    terms = TableTerms(most_offsets=4, allow_empty=False)
    assert export(table, source, terms).offsets[A] == 4
    source.aborted.clear()
    export(table, source, terms)
    assert table.rows == records(A, 0, 10)


def test_partition_that_is_not_exported_now_keeps_its_offset(source: FakeSource) -> None:
    table = FakeTable()
    export(table, source)
    grow(source, A, 11)
    del source.ranges[B]
    assert export(table, source).offsets == {A: 11, B: 5}


@pytest.mark.parametrize(
    ("cluster", "terms", "said"),
    [
        ("prod-b", TableTerms(), "of the cluster 'prod-a', not of 'prod-b'"),
        ("prod-a", TableTerms(isolation=IsolationLevel.READ_UNCOMMITTED), "not read_uncommitted"),
    ],
)
def test_export_with_other_terms_than_the_tables_is_refused(
    source: FakeSource, cluster: str, terms: TableTerms, said: str
) -> None:
    table = FakeTable()
    export(table, source)
    grow(source, A, 20)
    source.cluster = cluster
    with pytest.raises(OtherExportError, match=said):
        export(table, source, terms)
    assert len(table.commits) == 1


def test_replaced_archive_is_refused(source: FakeSource) -> None:
    table = FakeTable()
    export(table, source)
    grow(source, A, 3)
    with pytest.raises(BehindError):
        export(table, source)


class Killed(BaseException):
    """Death of the driver."""


FAULTS = st.sampled_from([NotCommittedError("failed"), OtherWriterError("refused"), Killed()])
STEPS = st.lists(
    st.tuples(
        st.integers(0, 9),  # number of offsets in a commit
        st.integers(1, 9) | st.none(),  # so many offsets in a commit
        st.booleans(),  # whether offsets without records are committed
        st.lists(FAULTS | st.none(), max_size=3),  # fault before a commit
        st.lists(FAULTS | st.none(), max_size=3),  # fault after a commit
    ),
    max_size=8,
)


@settings(deadline=None)  # the first example takes long on a busy machine
@given(STEPS, st.sets(st.integers(0, 40)))
def test_every_record_is_in_the_table_once_after_any_faults(
    steps: list[tuple[int, int | None, bool, list[Any], list[Any]]], aborted: set[int]
) -> None:
    table = FakeTable()
    source = FakeSource({tp: OffsetRange(Offset(0), Offset(0)) for tp in (A, B)}, aborted)
    for more, most, allow_empty, before, after in steps:
        for tp in (A, B):
            grow(source, tp, source.ranges[tp].end + more)
        table.before = [raising(one) if one else lambda: None for one in before]
        table.after = [raising(one) if one else lambda: None for one in after]
        with suppress(NotCommittedError, OtherWriterError, Killed):
            export(table, source, TableTerms(most_offsets=most, allow_empty=allow_empty))
        assert len(table.rows) == len(set(table.rows)), "a record is there twice"
    table.before, table.after = [], []
    export(table, source)
    until = source.ranges[A].end
    wanted = {(tp, one) for tp in (A, B) for one in range(until) if one not in aborted}
    assert set(table.rows) == wanted
    assert len(table.rows) == len(wanted)


class Forgetful(FakeTable):
    """A table whose first commits were archived or have expired."""

    def progress(self) -> Progress | None:
        if not self.commits:
            raise LostProgressError("none of the commits is of this export")
        return super().progress()


def test_lost_progress_is_an_error_unless_a_new_start_is_requested(source: FakeSource) -> None:
    with pytest.raises(LostProgressError):
        export(Forgetful(), source)
    table = Forgetful()
    export(table, source, TableTerms(anew=True))
    assert table.rows == records(A, 0, 10)


def test_two_concurrent_writers_are_detected_in_the_commits(source: FakeSource) -> None:
    table = FakeTable()
    export(table, source)
    first = table.commits[0]
    twice = [replace(first, since=first.offsets, commit=name) for name in ("late", "next")]
    late, following = replace(twice[0], offsets={A: Offset(20), B: Offset(5)}), twice[1]
    with pytest.raises(BrokenProgressError, match=r"next does not begin where .* late, ended"):
        last_progress([following, None, late, first])
    assert last_progress([following, None, first]) == following


def test_export_continues_with_another_history_only_if_requested(source: FakeSource) -> None:
    table = FakeTable()
    source.epoch_history = epoch_history_of([(1, 0), (3, 6)])
    export(table, source)
    assert table.commits[-1].tail.epoch_histories[A] == source.epoch_history
    assert B not in table.commits[-1].tail.epoch_histories, "nothing of it was exported"
    source.epoch_history = epoch_history_of([(1, 0), (3, 6), (4, 8)])
    grow(source, A, 12)
    grow(source, B, 8)
    said = (
        r"topic t, partition 0, offsets \[8, 10\) \(leader epoch 3, now 4\).* Nothing was written"
    )
    with pytest.raises(LogTruncatedError, match=said):
        export(table, source)
    assert len(table.commits) == 1
    terms = TableTerms(reread=True, most_offsets=2)
    assert export(table, source, terms).offsets == {A: 12, B: 8}
    assert sorted(table.rows[10:]) == records(A, 8, 12) + records(B, 5, 8)
    first, then, *_ = table.commits
    assert then.since == first.offsets
    assert then.offsets[A] < 10, "the next run goes on from here"
    assert last_progress(reversed(table.commits)) == table.commits[-1]
    assert export(table, source).commits == ()


class Growing(FakeSource):
    """A source whose archive grows beyond a divergence after the first chunk of a run was read."""

    def frame(self, plan: Plan) -> Rows:
        self.epoch_history = epoch_history_of([(5, 0), (6, 8)])
        return super().frame(plan)


@pytest.mark.parametrize("reread", [False, True])
def test_divergence_found_during_a_run_ends_it_unless_reread_is_set(*, reread: bool) -> None:
    table, source = FakeTable(), FakeSource({A: OffsetRange(Offset(0), Offset(10))})
    source.epoch_history = epoch_history_of([(5, 0)])
    export(table, source)
    growing = Growing({A: OffsetRange(Offset(0), Offset(20))}, epoch_history=source.epoch_history)
    terms = TableTerms(most_offsets=4, reread=reread)
    if reread:
        assert export(table, growing, terms).offsets == {A: 20}
        assert table.rows == records(A, 0, 14) + records(A, 8, 20)
        return
    with pytest.raises(LogTruncatedError, match=r"offsets \[8, 14\) \(leader epoch 5, now 6\)"):
        export(table, growing, terms)
    assert table.rows == records(A, 0, 14)


def test_skipped_offsets_without_records_keep_their_own_epoch() -> None:
    """Epoch rows of the state belong to the state's offset, not to the start of the next chunk."""
    table, source = FakeTable(), FakeSource({A: OffsetRange(Offset(0), Offset(4))})
    source.epoch_history = epoch_history_of([(5, 0)])
    export(table, source)
    source.epoch_history = epoch_history_of([(5, 0), (6, 6)])
    source.aborted = set(range(4, 8))
    grow(source, A, 12)
    export(table, source, TableTerms(most_offsets=4, allow_empty=False))
    assert table.rows == records(A, 0, 4) + records(A, 8, 12)
    assert export(table, source).commits == ()


def test_table_of_an_earlier_version_has_no_epoch_history(source: FakeSource) -> None:
    table = FakeTable()
    export(table, source)
    assert table.commits[-1].tail.epoch_histories == {}
    source.epoch_history = epoch_history_of([(1, 0), (4, 8)])
    grow(source, A, 12)
    export(table, source)
    assert table.commits[-1].tail.epoch_histories == {A: source.epoch_history}
    source.epoch_history = NO_EPOCHS
    grow(source, A, 14)
    export(table, source)
    kept = {A: epoch_history_of([(4, 12), (2**31 - 1, 14)])}
    assert table.commits[-1].tail.epoch_histories == kept, "of what comes now nothing is known"


def test_second_divergence_is_detected_before_the_first_is_exported_again() -> None:
    """Partition B has no new records in the first chunk, and no commit of its own in between."""
    table = FakeTable()
    source = FakeSource({tp: OffsetRange(Offset(0), Offset(40)) for tp in (A, B)})
    source.epoch_history = epoch_history_of([(1, 0)])
    export(table, source)
    source.epoch_history = epoch_history_of([(1, 0), (2, 30)])
    source.ranges = {A: OffsetRange(Offset(0), Offset(50)), B: OffsetRange(Offset(0), Offset(30))}
    done = export(table, source, TableTerms(reread=True))
    assert done.offsets == {A: 50, B: 30}
    assert len(done.commits) == 1
    assert table.commits[-1].tail.epoch_histories == {
        A: epoch_history_of([(1, 0), (2, 30)]),
        B: epoch_history_of([(1, 0)]),
    }
    assert table.rows == [*records(A, 0, 40), *records(B, 0, 40), *records(A, 30, 50)]
    source.epoch_history = epoch_history_of([(1, 0), (3, 10)])
    grow(source, B, 60)
    with pytest.raises(LogTruncatedError, match=r"partition 1, offsets \[10, 30\)"):
        export(table, source)


class Behind(FakeSource):
    """A source where the brokers' log of B ends below the table's offset."""

    def available(
        self,
        next_offsets: Offsets,
        tail: Offsets | None = None,
        behind: list[BehindError] | None = None,
    ) -> Ranges:
        errors: list[BehindError] = []
        left = super().available(next_offsets, tail, errors)
        if behind is not None:
            behind.append(BehindError(B, "B is exported up to 40", "another table"))
        return {tp: span for tp, span in left.items() if tp != B}


@pytest.mark.parametrize("source_type", [FakeSource, Behind], ids=["archive", "brokers"])
def test_partition_that_ends_below_the_table_does_not_block_the_others(
    source_type: type[FakeSource],
) -> None:
    ranges = {tp: OffsetRange(Offset(0), Offset(40)) for tp in (A, B)}
    table, source = FakeTable(), FakeSource(ranges, ids={"t": "id-1"})
    export(table, source)
    shorter = {A: OffsetRange(Offset(0), Offset(60)), B: OffsetRange(Offset(0), Offset(24))}
    quarantined = source_type(shorter, ids={"t": "id-1"})
    done = export(table, quarantined)
    assert done.offsets == {A: 60, B: 40}
    [left_out] = done.held_back
    assert (left_out.tp, left_out.offset, left_out.is_finding) == (B, 40, True)
    quarantined.ids = {}
    with pytest.raises(BehindError):
        export(table, quarantined)


@pytest.mark.parametrize(("newest_ms", "hung"), [(900_000, False), (900_001, True)])
def test_hung_transaction_is_reported(newest_ms: int, *, hung: bool) -> None:
    source = FakeSource({A: OffsetRange(Offset(0), Offset(4))})
    source.open = {A: UndecidedTail(Offset(0), Offset(4), Offset(9), 7, 0, newest_ms)}
    terms = TableTerms(now_ms=lambda: 1_000_000)
    [told] = export(FakeTable(), source, terms).held_back
    assert (told.tp, told.offset, told.is_finding, told.age_s) == (A, 4, hung, 1000.0)
    assert "offsets [4, 9) wait for a transaction: producer 7" in told.detail
    assert "1970-01-01T00:00:00+00:00 (0:16:40 ago)" in told.detail
    grow(source, A, 9)
    source.open = {}
    assert export(FakeTable(), source, terms).held_back == ()
