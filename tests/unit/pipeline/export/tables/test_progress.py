from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidetier.pipeline.export.errors import NewerStateError
from sidetier.pipeline.export.lineage import lineage_of
from sidetier.pipeline.export.tables.progress import (
    PREFIX,
    Progress,
    Tail,
    from_properties,
    to_properties,
)
from sidetier.pipeline.planning.split import OffsetRange
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, TopicPartition

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
        st.dictionaries(TPS, st.sampled_from([[(3, 0)], [(3, 0), (5, 17)]]).map(lineage_of)),
    ),
)
EXAMPLE = Progress(
    "prod-a",
    IsolationLevel.READ_COMMITTED,
    {TopicPartition("orders", 1): Offset(7), TopicPartition("orders", 0): Offset(12)},
    {},
    "c1",
)


@settings(deadline=None)  # the first example of a busy machine takes long
@given(PROGRESS)
def test_what_a_commit_says_is_read_back(progress: Progress) -> None:
    properties = to_properties(progress)
    assert all(name.startswith(PREFIX) for name in properties)
    assert from_properties({"spark.app.id": "local-1", **properties}, "the commit") == progress


def test_offsets_are_in_the_form_of_spark() -> None:
    assert to_properties(EXAMPLE)["sidetier.offsets"] == '{"orders":{"0":12,"1":7}}'


def test_what_came_from_the_brokers_is_told_where_there_is_any() -> None:
    assert "sidetier.tail" not in to_properties(EXAMPLE)
    tail = Tail({TopicPartition("orders", 1): Offset(7)}, {"orders": "id-1"})
    told = to_properties(replace(EXAMPLE, tail=tail))
    assert told["sidetier.tail"] == '{"orders":{"1":7}}'
    assert told["sidetier.topics"] == '{"orders":"id-1"}'
    with pytest.raises(MalformedObjectError, match=r"sidetier.topics"):
        from_properties(told | {"sidetier.topics": "[1]"}, "the commit")


def test_leader_epochs_are_told_with_their_starts() -> None:
    tail = Tail(lineages={TopicPartition("orders", 1): lineage_of([(3, 0), (5, 120)])})
    told = to_properties(replace(EXAMPLE, tail=tail))
    assert told["sidetier.epochs"] == '{"orders":{"1":[[3,0],[5,120]]}}'
    for damaged in ("[1]", '{"orders":{"1":[[3]]}}', '{"orders":{"1":[["a",0]]}}', "{"):
        with pytest.raises(MalformedObjectError, match=r"the commit: sidetier.epochs"):
            from_properties(told | {"sidetier.epochs": damaged}, "the commit")


def test_what_brokers_told_is_kept_until_it_can_be_compared() -> None:
    one, other = TopicPartition("orders", 0), TopicPartition("orders", 1)
    told = Tail(lineages={one: lineage_of([(6, 100)]), other: lineage_of([(3, 0)])})
    later = Tail({one: Offset(150)}, lineages={one: lineage_of([(7, 150)])})
    ranges = {one: OffsetRange(Offset(100), Offset(150))}
    held = {one: Offset(100)}
    both = told.and_then(later, held, ranges)
    assert both.lineages == {one: lineage_of([(6, 100), (7, 150)]), other: lineage_of([(3, 0)])}
    ranges = {one: OffsetRange(Offset(160), Offset(170))}
    unknown = told.and_then(Tail(), held, ranges).lineages
    assert unknown == {**told.lineages, one: lineage_of([(6, 100), (2**31 - 1, 170)])}
    longer = Tail(lineages={one: lineage_of([(7, 170)])})
    behind_empty = told.and_then(longer, held, ranges)
    assert behind_empty.lineages[one] == lineage_of([(6, 100), (7, 170)]), "not up to 160"


def test_a_commit_of_others_says_nothing() -> None:
    assert from_properties({"spark.app.id": "local-1"}, "the commit") is None


def test_a_later_version_is_refused_and_named() -> None:
    properties = to_properties(EXAMPLE) | {"sidetier.version": "2", "sidetier.offsets": "[]"}
    with pytest.raises(
        NewerStateError, match="lake: snapshot 5: version 2 of an export's offsets, 1 is"
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
def test_what_is_damaged_is_refused(name: str, value: str | None, said: str) -> None:
    properties: dict[str, str] = dict(to_properties(EXAMPLE))
    if value is None:
        del properties[name]
    else:
        properties[name] = value
    with pytest.raises(MalformedObjectError, match=said):
        from_properties(properties, "snapshot 5")
