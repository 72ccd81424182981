from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.pipeline.export.epoch_history import epoch_history_of
from sidetier.pipeline.export.errors import BrokenProgressError, LostProgressError, NewerStateError
from sidetier.pipeline.export.sinks.tables.commit_metadata import (
    PREFIX,
    SMALL_STATE,
    Progress,
    following,
    from_properties,
    last_progress,
    to_properties,
)
from sidetier.pipeline.export.state import Tail
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

TPS = st.builds(
    TopicPartition,
    st.text("abcXYZ0189._-", min_size=1, max_size=20),
    st.integers(0, 100_000),
)
OFFSETS = st.dictionaries(TPS, st.integers(0, 2**63 - 1).map(Offset))
PROGRESS = st.builds(
    Progress,
    cluster=st.text(min_size=1, max_size=20),
    isolation=st.sampled_from(IsolationLevel),
    offsets=OFFSETS,
    since=OFFSETS,
    commit=st.uuids().map(lambda one: one.hex),
    tail=st.builds(
        Tail,
        OFFSETS,
        st.dictionaries(st.text(min_size=1), st.text(), max_size=3),
        st.dictionaries(TPS, st.sampled_from([[(3, 0)], [(3, 0), (5, 17)]]).map(epoch_history_of)),
    ),
)
EXAMPLE = Progress(
    "prod-a",
    IsolationLevel.READ_COMMITTED,
    {TopicPartition("orders", 1): Offset(7), TopicPartition("orders", 0): Offset(12)},
    {},
    "c1",
)


@settings(deadline=None)  # the first example takes long on a busy machine
@given(PROGRESS)
def test_progress_round_trips_through_commit_properties(progress: Progress) -> None:
    properties = to_properties(progress)
    assert all(name.startswith(PREFIX) for name in properties)
    assert from_properties({"spark.app.id": "local-1", **properties}, "the commit") == progress


def test_offsets_have_sparks_json_form() -> None:
    assert to_properties(EXAMPLE)["sidetier.offsets"] == '{"orders":{"0":12,"1":7}}'


def test_offsets_exported_from_the_brokers_are_in_the_properties() -> None:
    assert "sidetier.tail" not in to_properties(EXAMPLE)
    tail = Tail({TopicPartition("orders", 1): Offset(7)}, {"orders": "id-1"})
    told = to_properties(replace(EXAMPLE, tail=tail))
    assert told["sidetier.tail"] == '{"orders":{"1":7}}'
    assert told["sidetier.topics"] == '{"orders":"id-1"}'
    with pytest.raises(MalformedObjectError, match=r"sidetier.topics"):
        from_properties(told | {"sidetier.topics": "[1]"}, "the commit")


def test_leader_epochs_are_in_the_properties_with_their_start_offsets() -> None:
    tail = Tail(epoch_histories={TopicPartition("orders", 1): epoch_history_of([(3, 0), (5, 120)])})
    told = to_properties(replace(EXAMPLE, tail=tail))
    assert told["sidetier.epochs"] == '{"orders":{"1":[[3,0],[5,120]]}}'
    for damaged in ("[1]", '{"orders":{"1":[[3]]}}', '{"orders":{"1":[["a",0]]}}', "{"):
        with pytest.raises(MalformedObjectError, match=r"the commit: sidetier.epochs"):
            from_properties(told | {"sidetier.epochs": damaged}, "the commit")


def test_epochs_reported_by_brokers_are_kept_until_they_can_be_compared() -> None:
    one, other = TopicPartition("orders", 0), TopicPartition("orders", 1)
    told = Tail(
        epoch_histories={one: epoch_history_of([(6, 100)]), other: epoch_history_of([(3, 0)])}
    )
    later = Tail({one: Offset(150)}, epoch_histories={one: epoch_history_of([(7, 150)])})
    ranges = {one: OffsetRange(Offset(100), Offset(150))}
    held = {one: Offset(100)}
    both = told.and_then(later, held, ranges)
    assert both.epoch_histories == {
        one: epoch_history_of([(6, 100), (7, 150)]),
        other: epoch_history_of([(3, 0)]),
    }
    ranges = {one: OffsetRange(Offset(160), Offset(170))}
    unknown = told.and_then(Tail(), held, ranges).epoch_histories
    assert unknown == {**told.epoch_histories, one: epoch_history_of([(6, 100), (2**31 - 1, 170)])}
    longer = Tail(epoch_histories={one: epoch_history_of([(7, 170)])})
    behind_empty = told.and_then(longer, held, ranges)
    assert behind_empty.epoch_histories[one] == epoch_history_of([(6, 100), (7, 170)]), (
        "not up to 160"
    )


def test_commit_of_another_writer_has_no_progress() -> None:
    assert from_properties({"spark.app.id": "local-1"}, "the commit") is None


def test_later_version_is_refused_and_named() -> None:
    properties = to_properties(EXAMPLE) | {"sidetier.version": "3", "sidetier.offsets": "[]"}
    with pytest.raises(
        NewerStateError, match="lake: snapshot 5: version 3 of an export's offsets, 2 is"
    ):
        from_properties(properties, "lake: snapshot 5")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("sidetier.offsets", None, "does not say sidetier.offsets"),
        ("sidetier.offsets", "{", "snapshot 5"),
        ("sidetier.offsets", "[1]", "must be JSON such as"),
        ("sidetier.offsets", '{"t": 5}', "5 under topic t"),
        ("sidetier.offsets", '{"t": {"x": 5}}', "partition 'x'"),
        ("sidetier.since", '{"t": {"0": -1}}', "offset -1 of topic t, partition 0 is below 0"),
        ("sidetier.since", '{"t": {"0": true}}', "True for topic t"),
        ("sidetier.isolation", "serializable", "serializable"),
        ("sidetier.version", "one", "sidetier.version is 'one'"),
    ],
)
def test_damaged_properties_are_refused(name: str, value: str | None, said: str) -> None:
    properties: dict[str, str] = dict(to_properties(EXAMPLE))
    if value is None:
        del properties[name]
    else:
        properties[name] = value
    with pytest.raises(MalformedObjectError, match=said):
        from_properties(properties, "snapshot 5")


MANY = [TopicPartition(f"orders-{at // 10:04d}", at % 10) for at in range(1000)]


def large(commit: str, until: int, news: int = 0, **changes: Any) -> Progress:  # noqa: ANN401
    """The state of a thousand partitions; `count` of them end at `until`, the others at 1000."""
    offsets = {tp: Offset(until if at < news else 1000) for at, tp in enumerate(MANY)}
    epoch_histories = dict.fromkeys(MANY, epoch_history_of([(3, 0), (5, 100)]))
    tail = Tail({}, {tp.topic: "id" for tp in MANY}, epoch_histories)
    made = Progress("prod-a", IsolationLevel.READ_COMMITTED, offsets, {}, commit, tail)
    return replace(made, **changes)


def written(*commits: Progress, every: int = 50) -> list[dict[str, str]]:
    """The properties of consecutive commits, oldest first."""
    said: list[dict[str, str]] = []
    for one in commits:
        last = last_progress(from_properties(each, "t") for each in reversed(said))
        said.append(to_properties(following(one, last, every)))
    return said


def read(said: Iterable[dict[str, str]]) -> Progress | None:
    return last_progress(from_properties(one, "t") for one in reversed(list(said)))


def versions(said: Iterable[dict[str, str]]) -> list[str]:
    return [one["sidetier.version"] for one in said]


def bytes_of(said: dict[str, str]) -> int:
    return sum(len(name) + len(value) for name, value in said.items())


def test_large_state_is_written_in_one_of_several_commits() -> None:
    commits = [large(f"c{at}", 1000 + at, at) for at in range(7)]
    said = written(*commits, every=3)
    assert versions(said) == ["1", "2", "2", "1", "2", "2", "1"]
    assert bytes_of(said[0]) > SMALL_STATE
    assert max(bytes_of(one) for one in said if one["sidetier.version"] == "2") < 600
    for count, commit in enumerate(commits, start=1):
        found = read(said[:count])
        assert found is not None
        assert (found.offsets, found.tail, found.commit) == (
            commit.offsets,
            commit.tail,
            commit.commit,
        )


def test_small_state_is_in_each_commit_in_the_form_of_earlier_versions() -> None:
    said = written(EXAMPLE, replace(EXAMPLE, commit="c2"))
    assert versions(said) == ["1", "1"]
    assert said[0].keys() == {f"sidetier.{one}" for one in KEYS_OF_VERSION_1}
    assert said[1].keys() - said[0].keys() == {"sidetier.previous"}


KEYS_OF_VERSION_1 = ("version", "cluster", "isolation", "offsets", "since", "commit")


def test_commits_of_an_earlier_version_are_continued() -> None:
    old = large("c0", 1000)
    said = written(old, replace(large("c1", 1001, 1), since=old.offsets))
    assert "sidetier.previous" not in said[0]
    assert versions(said) == ["1", "2"]
    assert read(said) is not None


def test_changes_as_large_as_the_state_are_written_as_a_whole_state() -> None:
    moved = dict.fromkeys(MANY, epoch_history_of([(6, 100), (7, 200)]))
    tail = replace(large("c1", 1).tail, epoch_histories=moved)
    assert versions(written(large("c0", 1000), large("c1", 1500, 1000, tail=tail))) == ["1", "1"]


def test_forgotten_epoch_histories_require_a_whole_state() -> None:
    """A repeated export forgets epoch histories; a list of changes cannot express that."""
    forgets = replace(large("c1", 1).tail, epoch_histories={})
    said = written(large("c0", 1000), large("c1", 1001, 1, tail=forgets), large("c2", 1002, 1))
    assert versions(said) == ["1", "1", "1"]


def test_expired_whole_state_is_an_error_unless_it_was_cached() -> None:
    first, *rest = written(large("c0", 1000), large("c1", 1001, 1), large("c2", 1002, 1))
    newest_first = [from_properties(one, "t") for one in reversed(rest)]
    with pytest.raises(LostProgressError, match="since the commit c0, which has the whole state"):
        last_progress(newest_first)
    whole = from_properties(first, "t")
    assert isinstance(whole, Progress)
    found = last_progress(newest_first, {"c0": whole}.get)
    assert found is not None
    assert (found.commit, found.offsets[MANY[0]], len(found.offsets)) == ("c2", 1002, 1000)


def test_changes_of_two_writers_are_detected() -> None:
    said = written(large("c0", 1000), large("c1", 1001, 1))
    late = said[1] | {"sidetier.commit": "late"}
    with pytest.raises(BrokenProgressError, match="late does not begin where the one before it"):
        read([*said, late])


def test_table_that_is_rolled_back_continues_from_there() -> None:
    said = written(*(large(f"c{at}", 1000 + at, 1) for at in range(4)))
    back = said[:2]
    found = read(back)
    assert found is not None
    again = [*back, to_properties(following(large("c9", 1009, 1), found, 50))]
    found = read(again)
    assert found is not None
    assert (found.commit, found.previous, found.offsets[MANY[0]]) == ("c9", "c1", 1009)
