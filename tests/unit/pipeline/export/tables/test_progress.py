import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidetier.pipeline.export.errors import NewerStateError
from sidetier.pipeline.export.tables.progress import (
    PREFIX,
    Progress,
    from_properties,
    to_properties,
)
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, TopicPartition

OFFSETS = st.dictionaries(
    st.builds(
        TopicPartition,
        st.text("abcXYZ0189._-", min_size=1, max_size=20),
        st.integers(0, 100_000),
    ),
    st.integers(0, 2**63 - 1).map(Offset),
)
PROGRESS = st.builds(
    Progress,
    cluster=st.text(min_size=1, max_size=20),
    isolation=st.sampled_from(IsolationLevel),
    offsets=OFFSETS,
    since=OFFSETS,
    commit=st.uuids().map(lambda one: one.hex),
)
EXAMPLE = Progress(
    "prod-a",
    IsolationLevel.READ_COMMITTED,
    {TopicPartition("orders", 1): Offset(7), TopicPartition("orders", 0): Offset(12)},
    {},
    "c1",
)


@given(PROGRESS)
def test_what_a_commit_says_is_read_back(progress: Progress) -> None:
    properties = to_properties(progress)
    assert all(name.startswith(PREFIX) for name in properties)
    assert from_properties({"spark.app.id": "local-1", **properties}, "the commit") == progress


def test_offsets_are_in_the_form_of_spark() -> None:
    assert to_properties(EXAMPLE)["sidetier.offsets"] == '{"orders":{"0":12,"1":7}}'


def test_a_commit_of_others_says_nothing() -> None:
    assert from_properties({"spark.app.id": "local-1"}, "the commit") is None


def test_a_later_version_is_refused_and_named() -> None:
    properties = to_properties(EXAMPLE) | {"sidetier.version": "2", "sidetier.offsets": "[]"}
    with pytest.raises(NewerStateError, match=r"lake: snapshot 5 .* later version .* 2; up to 1"):
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
