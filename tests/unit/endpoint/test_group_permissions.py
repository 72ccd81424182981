"""What users may do with groups: the permitted part of each request is answered as ever."""

from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sidetier.endpoint.groups.local import OFFERED_LOCAL
from sidetier.endpoint.groups.permissions import PermittedGroups
from sidetier.endpoint.session import Session
from sidetier.endpoint.users import Access, Names
from sidetier.storage.fake import FakeStorage
from sidetier.wire.protocol import ApiKey
from tests.harness.endpoint import ask_as, local_groups

LIMITED = Access(Names(frozenset({"orders"})), Names(prefixes=("mine",)))
ANYONE = Session("test:1")
USER = Session("test:2", access=LIMITED)
DENIED = ErrorCode.group_authorization_failed
TOPIC_DENIED = ErrorCode.topic_authorization_failed


@pytest.fixture
def groups() -> Iterator[PermittedGroups]:
    made = PermittedGroups(local_groups(FakeStorage()))
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


def test_requests_for_another_group_are_refused(groups: PermittedGroups) -> None:
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
