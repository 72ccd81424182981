"""Which consumer groups skip records, from committed offsets and log start offsets."""

import pytest

from sidetier.mirror.topics.rules import MirrorNames
from sidetier.segments.cluster_state import GroupMember
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.uploader.trim.groups_behind import (
    GroupBehind,
    GroupInTopic,
    groups_behind,
    in_topics,
    with_archive,
)

FIRST, SECOND, OTHER = (
    TopicPartition(*where) for where in (("orders", 0), ("orders", 1), ("clicks", 0))
)


def behind(group: str, tp: TopicPartition, committed: int, log_start: int) -> GroupBehind:
    return GroupBehind(group, tp, Offset(committed), Offset(log_start))


def test_groups_below_a_log_start() -> None:
    log_starts = {FIRST: Offset(40), SECOND: Offset(20)}
    committed = {
        "at": {FIRST: Offset(40), SECOND: Offset(20)},
        "below": {SECOND: Offset(19), FIRST: Offset(0), OTHER: Offset(0)},
        "protected": {FIRST: Offset(1)},
        "never": {},
    }
    found = list(groups_behind(log_starts, committed, lambda group: group != "protected"))
    assert found == [behind("below", FIRST, 0, 40), behind("below", SECOND, 19, 20)]
    assert [entry.skipped for entry in found] == [40, 1]


@pytest.mark.parametrize("kind", ["mirror", "restore", "drill"])
def test_progress_of_copies_is_not_a_position_in_this_log(kind: str) -> None:
    """It is an offset of the source, committed on the target."""
    committed = {MirrorNames("dr", kind).group: {FIRST: Offset(1)}}
    assert not list(groups_behind({FIRST: Offset(40)}, committed))


@pytest.mark.parametrize(
    ("start", "end", "counts"),
    [(0, 40, True), (0, 11, True), (39, 50, True), (0, 10, False), (40, 50, False)],
)
def test_archive_has_some_of_the_skipped_records(start: int, end: int, counts: bool) -> None:  # noqa: FBT001 - a parameter of the test
    entry = behind("g", FIRST, 10, 40)
    stored = {FIRST: OffsetRange(Offset(start), Offset(end))}
    assert with_archive([entry], stored) == [entry] * counts
    assert not with_archive([entry], {})


def test_partitions_are_added_up_by_group_and_topic() -> None:
    entries = [behind("a", OTHER, 0, 5), behind("b", FIRST, 0, 5), behind("b", SECOND, 1, 5)]
    member = GroupMember("billing", "10.0.0.7")
    assert in_topics(entries, {"a": (), "b": (member,)}) == [
        GroupInTopic("b", "orders", 2, 9, (member,)),
        GroupInTopic("a", "clicks", 1, 5, ()),
    ]
    assert in_topics(entries[:1], {})[0].members is None


def test_text_of_members() -> None:
    def text(members: tuple[GroupMember, ...] | None) -> str:
        return GroupInTopic("g", "t", 1, 1, members).members_text

    assert (text(None), text(())) == ("unknown", "none")
    twice = (GroupMember("billing", "10.0.0.7"),) * 2
    assert text(twice) == "2: billing at 10.0.0.7"
    many = tuple(GroupMember(f"c{number}", "host") for number in range(5))
    assert text(many) == "5: c0 at host, c1 at host, c2 at host, ..."
