"""What users may do with groups: the permitted part of each request is answered as ever."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sidetier.endpoint.groups.local import OFFERED_LOCAL
from sidetier.endpoint.groups.permissions import PermittedGroups
from sidetier.endpoint.groups.relay import OFFERED_RELAY
from sidetier.endpoint.session import Answer, Request, Session
from sidetier.endpoint.users import Access, Names
from sidetier.storage.fake import FakeStorage
from sidetier.wire.protocol import ApiKey, build_response, encode
from tests.harness.endpoint import ask_as, local_groups

LIMITED = Access(Names(frozenset({"orders"})), Names(prefixes=("mine",)))
ANYONE = Session("test:1")
USER = Session("test:2", access=LIMITED)
DENIED = ErrorCode.group_authorization_failed
TOPIC_DENIED = ErrorCode.topic_authorization_failed


@pytest.fixture
def store() -> FakeStorage:
    return FakeStorage()


@pytest.fixture
def groups(store: FakeStorage) -> Iterator[PermittedGroups]:
    made = PermittedGroups(local_groups(store))
    yield made
    made.close()


def commit(
    groups: PermittedGroups, session: Session, group: str, *topics: str, version: int = 9
) -> dict[str, ErrorCode]:
    row = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
    response = ask_as(
        session,
        groups,
        ApiKey.OFFSET_COMMIT,
        version,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[{"name": topic, "partitions": [row]} for topic in topics],
    )
    return {topic.name: topic.partitions[0].error_code for topic in response.topics}


def test_requests_for_another_group_are_refused_and_leave_none(
    store: FakeStorage, groups: PermittedGroups
) -> None:
    member = {"group_id": "theirs", "generation_id": 1, "member_id": "m"}
    requests: dict[ApiKey, tuple[int, dict[str, Any]]] = {
        ApiKey.HEARTBEAT: (4, member),
        ApiKey.SYNC_GROUP: (5, {**member, "assignments": ()}),
        ApiKey.LEAVE_GROUP: (5, {"group_id": "theirs", "members": ()}),
        ApiKey.JOIN_GROUP: (
            9,
            {
                "group_id": "theirs",
                "session_timeout": 10_000,
                "rebalance_timeout": 10_000,
                "member_id": "",
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": b""}],
            },
        ),
    }
    for api, (version, values) in requests.items():
        assert ask_as(USER, groups, api, version, **values).error_code is DENIED
    assert commit(groups, USER, "theirs", "orders") == {"orders": DENIED}
    assert commit(groups, USER, "mine", "other") == {"other": TOPIC_DENIED}
    assert store.requests == []


@pytest.mark.parametrize("version", range(OFFERED_LOCAL[ApiKey.FIND_COORDINATOR][1] + 1))
def test_coordinator_of_permitted_groups_only(groups: PermittedGroups, version: int) -> None:
    if version < 4:
        response = ask_as(USER, groups, ApiKey.FIND_COORDINATOR, version, key="theirs")
        assert response.error_code is DENIED
        response = ask_as(USER, groups, ApiKey.FIND_COORDINATOR, version, key="mine")
        assert response.error_code is ErrorCode.none
        return
    keys = ["theirs", "mine-1", "mine-2"]
    response = ask_as(USER, groups, ApiKey.FIND_COORDINATOR, version, coordinator_keys=keys)
    assert {row.key: row.error_code for row in response.coordinators} == {
        "theirs": DENIED,
        "mine-1": ErrorCode.none,
        "mine-2": ErrorCode.none,
    }


def test_commit_for_another_topic_is_refused_alone(groups: PermittedGroups) -> None:
    assert commit(groups, USER, "mine", "orders", "payments") == {
        "orders": ErrorCode.none,
        "payments": TOPIC_DENIED,
    }
    asked = [{"name": name, "partition_indexes": [0]} for name in ("orders", "payments")]
    response = ask_as(USER, groups, ApiKey.OFFSET_FETCH, 7, group_id="mine", topics=asked)
    assert {
        topic.name: (topic.partitions[0].committed_offset, topic.partitions[0].error_code)
        for topic in response.topics
    } == {"orders": (7, ErrorCode.none), "payments": (-1, TOPIC_DENIED)}


def test_committed_offsets_of_several_groups(groups: PermittedGroups) -> None:
    commit(groups, ANYONE, "mine", "orders", "payments")
    commit(groups, ANYONE, "theirs", "orders")
    names = ("mine", "theirs", "mine-2")
    response = ask_as(
        USER,
        groups,
        ApiKey.OFFSET_FETCH,
        9,
        groups=[{"group_id": name, "topics": None} for name in names],
        require_stable=False,
    )
    assert {group.group_id: group.error_code for group in response.groups} == {
        "mine": ErrorCode.none,
        "mine-2": ErrorCode.none,
        "theirs": DENIED,
    }
    offsets = {group.group_id: [topic.name for topic in group.topics] for group in response.groups}
    assert offsets["mine"] == ["orders"], "all topics of a group are those that the user may read"


def test_groups_are_listed_and_described_if_permitted(groups: PermittedGroups) -> None:
    for name in ("mine", "theirs"):
        commit(groups, ANYONE, name, "orders")
    listed = ask_as(USER, groups, ApiKey.LIST_GROUPS, 4, states_filter=())
    assert [row.group_id for row in listed.groups] == ["mine"]
    response = ask_as(
        USER,
        groups,
        ApiKey.DESCRIBE_GROUPS,
        5,
        groups=["theirs", "mine"],
        include_authorized_operations=False,
    )
    errors = {row.group_id: row.error_code for row in response.groups}
    assert errors == {"mine": ErrorCode.none, "theirs": DENIED}


def test_nothing_of_a_committed_offset_of_another_topic_is_shown(groups: PermittedGroups) -> None:
    row = {"partition_index": 0, "committed_offset": 7, "committed_metadata": "x"}
    ask_as(
        ANYONE, groups, ApiKey.OFFSET_COMMIT, 9,
        group_id="mine", generation_id_or_member_epoch=-1, member_id="",
        topics=[{"name": "orders", "partitions": [row | {"committed_leader_epoch": 5}]}],
    )  # fmt: skip
    user = Session("test:3", access=replace(LIMITED, topics=Names(frozenset({"payments"}))))
    named = [{"name": "orders", "partition_indexes": [0]}]

    def fetched(*topics: Any) -> Any:  # noqa: ANN401 - kio's
        asked = [{"group_id": "mine", "topics": each} for each in topics]
        return ask_as(user, groups, ApiKey.OFFSET_FETCH, 9, groups=asked).groups

    (group,) = fetched(named)
    (hidden,) = group.topics[0].partitions
    assert (hidden.committed_offset, hidden.committed_leader_epoch, hidden.metadata) == (-1, -1, "")
    assert hidden.error_code is TOPIC_DENIED
    # Twice in one request: the names of other topics do not appear either.
    assert fetched(None, named)[0].topics == ()


@pytest.mark.parametrize(
    ("values", "denied"),
    [
        ({"subscribed_topic_names": ("orders",)}, False),
        ({"subscribed_topic_names": None}, False),
        ({"subscribed_topic_names": ("orders", "payments")}, True),
        ({"subscribed_topic_regex": "pay.*"}, True),
        ({"subscribed_topic_regex": ""}, False),
    ],
)
def test_subscriptions_of_the_consumer_protocol(
    groups: PermittedGroups, values: dict[str, Any], *, denied: bool
) -> None:
    def beat(session: Session) -> ErrorCode:
        code: ErrorCode = ask_as(
            session, groups, ApiKey.CONSUMER_GROUP_HEARTBEAT, 1,
            group_id="mine", member_id="m", member_epoch=0, topic_partitions=None, **values,
        ).error_code  # fmt: skip
        return code

    passed_on = ErrorCode.unsupported_version  # the answer of `--groups local`
    assert beat(USER) is (TOPIC_DENIED if denied else passed_on)
    assert beat(ANYONE) is passed_on


class ClusterGroups:
    """Answers ConsumerGroupDescribe with a member that has one topic."""

    offered: Mapping[ApiKey, tuple[int, int]] = OFFERED_RELAY

    def __init__(self, topic: str) -> None:
        self.topic = topic

    def answer(self, request: Request, _session: Session) -> Answer:
        assigned = {"topic_id": None, "topic_name": self.topic, "partitions": (0,)}
        member = {
            "member_id": "m", "member_epoch": 1, "client_id": "c", "client_host": "/h",
            "assignment": {"topic_partitions": [assigned]},
            "target_assignment": {"topic_partitions": ()},
        }  # fmt: skip
        group = {
            "error_code": ErrorCode.none, "group_id": "mine", "group_state": "Stable",
            "group_epoch": 1, "assignment_epoch": 1, "assignor_name": "uniform",
            "members": [member],
        }  # fmt: skip
        response = build_response(request.api, request.version, throttle_time=0, groups=[group])
        return Answer(encode(response))

    def close(self) -> None:
        """No request waits."""


@pytest.mark.parametrize(("topic", "error"), [("orders", ErrorCode.none), ("pay", TOPIC_DENIED)])
@pytest.mark.parametrize("version", [0, 1])
def test_groups_whose_members_read_other_topics_are_not_described(
    topic: str, error: ErrorCode, version: int
) -> None:
    groups = PermittedGroups(ClusterGroups(topic))
    (row,) = ask_as(
        USER, groups, ApiKey.CONSUMER_GROUP_DESCRIBE, version,
        group_ids=["mine"], include_authorized_operations=False,
    ).groups  # fmt: skip
    assert (row.error_code, len(row.members)) == (error, 1 if error is ErrorCode.none else 0)
