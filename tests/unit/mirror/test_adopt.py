"""The records that an old mirror has copied, searched on the source."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidetier.mirror.adopt import (
    CommittedAs,
    Verdict,
    adopt_partition,
    align,
    next_offsets,
    progress_to_write,
    require_stopped,
    write_progress,
)
from sidetier.mirror.copy.engine import Copy
from sidetier.mirror.copy.offset_map import Run
from sidetier.segments.errors import BrokerUnavailableError, ConfigurationError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.records import Record
from sidetier.wire.requests import CommittedOffset
from tests.harness.mirror_groups import FakeGroups, FakeLog
from tests.harness.mirror_target import MAP, TARGET, FakeTarget

SOURCE = TopicPartition("orders", 0)
COPY = Copy(SOURCE, TARGET, "lineage")


def record(offset: int, number: int) -> Record:
    """Record number `number` of the source, at the given offset."""
    return Record(Offset(offset), 1000 + number, b"key", b"%d" % number)


def source_log(count: int) -> FakeLog:
    return FakeLog({SOURCE: [record(at, at) for at in range(count)]})


def target_log(numbers: list[int], first: int = 0) -> FakeLog:
    """A copy with these source records, each separated by an unused offset."""
    rows = [record(first + 2 * row, number) for row, number in enumerate(numbers)]
    return FakeLog({TARGET: rows}, starts={TARGET: first})


@pytest.mark.parametrize(
    ("copied", "committed", "progress"),
    [
        (range(60), 40, 60),  # produced beyond the commit
        (range(40), 40, 40),
        (range(30), 40, 30),  # committed before the records were written
        ([*range(50), *range(40, 60)], 40, 60),  # restarted, with some records repeated
        ([*range(50), *range(40, 45)], 40, 50),  # stopped before it had caught up with itself
    ],
)
def test_progress_follows_the_last_copied_record(
    copied: list[int], committed: int, progress: int
) -> None:
    adopted = adopt_partition(COPY, Offset(committed), source_log(100), target_log(list(copied)))
    assert adopted.verdict is Verdict.VERIFIED
    assert adopted.progress == progress
    assert adopted.possible_duplicates == 0


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.integers(0, 30), st.integers(0, 30))
def test_a_verified_progress_is_right_for_any_records(
    contents: list[int], copied: int, committed: int
) -> None:
    """Many records are equal; the other program has copied the first `copied` once, in order."""
    rows = [Record(Offset(at), 5, None, b"%d" % value) for at, value in enumerate(contents)]
    copied, committed = min(copied, len(rows)), min(committed, len(rows))
    adopted = adopt_partition(
        COPY,
        Offset(committed),
        FakeLog({SOURCE: rows}),
        FakeLog({TARGET: rows[:copied]}),
    )
    if adopted.verdict is Verdict.VERIFIED:
        assert adopted.progress == copied


def test_compared_records_make_an_offset_map() -> None:
    adopted = adopt_partition(
        COPY, Offset(4), source_log(10), FakeLog({TARGET: [record(7 + at, at) for at in range(6)]})
    )
    assert adopted.runs == (Run(0, 7, 6),)
    assert adopted.compared == 6


def test_only_the_last_offsets_are_compared() -> None:
    source, target = source_log(100), target_log(list(range(60)))
    adopted = adopt_partition(COPY, Offset(40), source, target, compare=10, search=30)
    assert target.reads == [(109, 119)]
    assert source.reads == [(30, 70)]
    assert (adopted.progress, adopted.compared) == (60, 5)


def test_without_a_match_the_commit_counts_and_duplicates_are_reported() -> None:
    other = FakeLog({TARGET: [record(0, 777)]})
    adopted = adopt_partition(COPY, Offset(40), source_log(100), other)
    assert adopted.verdict is Verdict.NOT_FOUND
    assert (adopted.progress, adopted.possible_duplicates) == (40, 60)
    adopted = adopt_partition(COPY, Offset(40), source_log(100), other, compare=0)
    assert adopted.verdict is Verdict.NOT_COMPARED
    assert adopted.possible_duplicates == 60


def test_equal_records_are_no_proof_of_the_position() -> None:
    same = [Record(Offset(at), 5, None, b"beat") for at in range(20)]
    result = align(same[:3], same)
    assert result is not None
    assert not result.is_unique
    adopted = adopt_partition(COPY, Offset(3), FakeLog({SOURCE: same}), FakeLog({TARGET: same[:3]}))
    assert adopted.verdict is Verdict.AMBIGUOUS
    assert adopted.progress == 3


def test_empty_target_is_accepted_only_at_the_beginning() -> None:
    empty = FakeLog({TARGET: []})
    assert adopt_partition(COPY, Offset(0), source_log(5), empty).verdict is Verdict.NOTHING_COPIED
    expired = FakeLog({TARGET: []}, starts={TARGET: 9})
    for log, committed in ((empty, 3), (expired, 0)):
        adopted = adopt_partition(COPY, Offset(committed), source_log(5), log)
        assert adopted.verdict is Verdict.NOT_FOUND


def test_commit_beyond_the_source_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="next offset is 6, and the source ends at 5"):
        adopt_partition(COPY, Offset(6), source_log(5), target_log([]))
    with pytest.raises(ConfigurationError, match="does not exist"):
        adopt_partition(COPY, Offset(5), source_log(5), FakeLog())


def test_the_committed_offset_is_the_next_offset_or_the_last_record() -> None:
    committed = {SOURCE: CommittedOffset(Offset(7))}
    assert next_offsets(committed, CommittedAs.NEXT_OFFSET) == {SOURCE: 7}
    assert next_offsets(committed, CommittedAs.LAST_RECORD) == {SOURCE: 8}


def test_running_mirror_is_refused() -> None:
    groups = FakeGroups(with_members={"copier"})
    groups.set("copier", SOURCE, 3)
    with pytest.raises(ConfigurationError, match="copier has members"):
        require_stopped(groups, "copier")
    with pytest.raises(ConfigurationError, match="no consumer group other"):
        require_stopped(groups, "other")


def test_different_existing_progress_is_never_changed() -> None:
    adopted = adopt_partition(COPY, Offset(3), source_log(5), target_log([0, 1, 2]))
    wanted = {TARGET: CommittedOffset(Offset(3), metadata="lineage")}
    assert progress_to_write([adopted], {}) == wanted
    assert progress_to_write([adopted], wanted) == {}
    with pytest.raises(ConfigurationError, match="progress is source offset 9"):
        progress_to_write([adopted], {TARGET: CommittedOffset(Offset(9))})


@pytest.mark.parametrize("step", ["start", "send", "flush", "commit", "committed"])
def test_kill_leaves_all_or_none_of_the_progress_and_a_second_run_completes_it(step: str) -> None:
    adopted = adopt_partition(COPY, Offset(3), source_log(5), target_log([0, 1, 2, 3]))

    def killed(at: str) -> None:
        if at == step:
            raise BrokerUnavailableError("killed")

    target = FakeTarget(fault=killed)

    def write() -> None:
        missing = progress_to_write([adopted], target.committed)
        if missing:
            write_progress(target, missing, [adopted], MAP.topic, 1)

    with pytest.raises(BrokerUnavailableError):
        write()
    assert (TARGET in target.committed) == (step == "committed") == bool(target.log)
    target.fault = lambda _step: None
    write()
    write()
    assert target.committed[TARGET] == CommittedOffset(Offset(4), metadata="lineage")
    assert target.offset_map().target_of(3) == 6
    assert len(target.log) == 1
