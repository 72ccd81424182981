"""The requests of groups with `--groups local`, in all versions and from several clients."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from time import monotonic
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from sidetier.endpoint.groups import local
from sidetier.endpoint.groups.classic_group import GroupLimits
from sidetier.endpoint.groups.coordinator import CoordinatorSettings
from sidetier.endpoint.groups.local import OFFERED_LOCAL, LocalGroups
from sidetier.endpoint.groups.stored_offsets import Offsets, OwnedGroup
from sidetier.endpoint.metrics import GroupMetrics
from sidetier.endpoint.session import Session
from sidetier.segments.errors import StoreUnavailableError
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.wire.protocol import ApiKey
from tests.harness.endpoint import ask, ask_as, local_groups
from tests.harness.waiting import holds_for, wait_until

NONE = ErrorCode.none
QUICK = CoordinatorSettings(
    group=GroupLimits(initial_delay=0.05), store_wait=0.2, retry_pause=0.05, least_session=0.1
)


def every_version(api: ApiKey) -> pytest.MarkDecorator:
    lowest, highest = OFFERED_LOCAL[api]
    return pytest.mark.parametrize("version", range(lowest, highest + 1))


@pytest.fixture
def store() -> FakeStorage:
    return FakeStorage()


@pytest.fixture
def groups(store: FakeStorage) -> Iterator[LocalGroups]:
    made = local_groups(store)
    yield made
    made.close()


def join(
    groups: LocalGroups,
    member_id: str = "",
    version: int = 9,
    group: str = "g",
    **values: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401 - kio's
    if version >= 1:
        values.setdefault("rebalance_timeout", 60_000)
    return ask(
        groups, ApiKey.JOIN_GROUP, version,
        group_id=group,
        **{
            "session_timeout": 10_000, "member_id": member_id, "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"topics"}],
        } | values,
    )  # fmt: skip


def joined(groups: LocalGroups, version: int = 9, **values: Any) -> Any:  # noqa: ANN401
    """Join with the member id that MEMBER_ID_REQUIRED returns."""
    first = join(groups, version=version, **values)
    if first.error_code is not ErrorCode.member_id_required:
        return first
    return join(groups, first.member_id, version, **values)


def sync(
    groups: LocalGroups,
    member: Any,  # noqa: ANN401
    assignments: dict[str, bytes],
    version: int = 5,
) -> Any:  # noqa: ANN401
    rows = [{"member_id": name, "assignment": data} for name, data in assignments.items()]
    values: dict[str, Any] = {"protocol_type": "consumer", "protocol_name": "range"}
    return ask(
        groups, ApiKey.SYNC_GROUP, version,
        group_id="g", generation_id=member.generation_id, member_id=member.member_id,
        assignments=rows, **(values if version >= 5 else {}),
    )  # fmt: skip


def commit(  # noqa: PLR0913 - the fields of OffsetCommit
    groups: LocalGroups,
    offset: int,
    *,
    version: int = 9,
    member: Any = None,  # noqa: ANN401
    topic: str = "orders",
    partition: int = 0,
    metadata: str | None = None,
    group: str = "g",
) -> ErrorCode:
    row = {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_metadata": metadata,
    }
    response = ask(
        groups, ApiKey.OFFSET_COMMIT, version,
        group_id=group,
        generation_id_or_member_epoch=-1 if member is None else member.generation_id,
        member_id="" if member is None else member.member_id,
        topics=[{"name": topic, "partitions": [row]}],
    )  # fmt: skip
    (answered,) = response.topics[0].partitions
    assert (response.topics[0].name, answered.partition_index) == (topic, partition)
    code: ErrorCode = answered.error_code
    return code


def fetched(
    groups: LocalGroups, version: int = 9, partitions: tuple[int, ...] | None = None
) -> dict[int, int]:
    topics = None
    if partitions is not None:
        topics = [{"name": "orders", "partition_indexes": partitions}]
    if version < 8:
        response = ask(groups, ApiKey.OFFSET_FETCH, version, group_id="g", topics=topics)
    else:
        (response,) = ask(
            groups, ApiKey.OFFSET_FETCH, version, groups=[{"group_id": "g", "topics": topics}]
        ).groups
    assert getattr(response, "error_code", NONE) is NONE
    return {
        row.partition_index: row.committed_offset
        for topic in response.topics
        for row in topic.partitions
    }


def described(groups: LocalGroups, version: int = 6) -> Any:  # noqa: ANN401
    values = {"include_authorized_operations": False} if version >= 3 else {}
    return ask(groups, ApiKey.DESCRIBE_GROUPS, version, groups=("g",), **values).groups[0]


# One member, in each version


@every_version(ApiKey.FIND_COORDINATOR)
def test_the_endpoint_is_the_coordinator_of_groups_only(groups: LocalGroups, version: int) -> None:
    def find(key: str, key_type: int) -> list[Any]:
        values: dict[str, Any] = {"coordinator_keys": (key, "b")} if version >= 4 else {"key": key}
        if version >= 1:
            values["key_type"] = key_type
        response = ask(groups, ApiKey.FIND_COORDINATOR, version, **values)
        return list(response.coordinators) if version >= 4 else [response]

    found = find("g", 0)
    assert len(found) == (2 if version >= 4 else 1)
    for row in found:
        assert (row.error_code, row.node_id, row.host, row.port) == (NONE, 0, "kafka.example", 9092)
    if version >= 1:
        refused = find("tx", 1)[0]
        assert refused.error_code is ErrorCode.transactional_id_authorization_failed
        assert refused.node_id == -1


@every_version(ApiKey.JOIN_GROUP)
def test_join_in_each_version(groups: LocalGroups, version: int) -> None:
    first = join(groups, version=version)
    if version >= 4:
        assert first.error_code is ErrorCode.member_id_required
        first = join(groups, first.member_id, version)
    assert (first.error_code, first.generation_id, first.protocol_name) == (NONE, 1, "range")
    assert first.member_id == first.leader == first.members[0].member_id
    assert first.member_id.startswith("test-")
    assert first.members[0].metadata == b"topics"


@every_version(ApiKey.SYNC_GROUP)
def test_sync_in_each_version(groups: LocalGroups, version: int) -> None:
    member = joined(groups)
    answer = sync(groups, member, {member.member_id: b"all"}, version)
    assert (answer.error_code, answer.assignment) == (NONE, b"all")
    unknown = replace(member, member_id="other")
    assert sync(groups, unknown, {}, version).error_code is ErrorCode.unknown_member_id


@every_version(ApiKey.HEARTBEAT)
def test_heartbeat_in_each_version(groups: LocalGroups, version: int) -> None:
    def beat(group: str) -> Any:  # noqa: ANN401
        return ask(
            groups, ApiKey.HEARTBEAT, version,
            group_id=group, generation_id=1, member_id=member.member_id,
        )  # fmt: skip

    member = joined(groups)
    assert beat("g").error_code is NONE
    assert beat("other").error_code is ErrorCode.unknown_member_id


@every_version(ApiKey.LEAVE_GROUP)
def test_leave_in_each_version(groups: LocalGroups, version: int) -> None:
    member = joined(groups)

    def leave(group: str, member_id: str) -> ErrorCode:
        values: dict[str, Any] = {"member_id": member_id}
        if version >= 3:
            values = {"members": [{"member_id": member_id, "group_instance_id": None}]}
        response = ask(groups, ApiKey.LEAVE_GROUP, version, group_id=group, **values)
        code: ErrorCode = (response.members[0] if version >= 3 else response).error_code
        return code

    assert leave("g", "other") is ErrorCode.unknown_member_id
    assert leave("g", member.member_id) is NONE
    assert leave("g", member.member_id) is leave("x", "y") is ErrorCode.unknown_member_id


@every_version(ApiKey.OFFSET_COMMIT)
def test_commit_in_each_version(store: FakeStorage, groups: LocalGroups, version: int) -> None:
    assert commit(groups, 5, version=version) is NONE
    assert b'"orders":{"0":[5,-1,""]}' in store.contents()["_sidetier/prod-a/groups/g.json"]


@every_version(ApiKey.OFFSET_FETCH)
def test_fetch_of_offsets_in_each_version(groups: LocalGroups, version: int) -> None:
    assert fetched(groups, version, (0, 1)) == {0: -1, 1: -1}
    commit(groups, 5)
    assert fetched(groups, version, (0, 1)) == {0: 5, 1: -1}
    if version >= 2:
        assert fetched(groups, version) == {0: 5}


@every_version(ApiKey.DESCRIBE_GROUPS)
def test_describe_in_each_version(groups: LocalGroups, version: int) -> None:
    def describe() -> Any:  # noqa: ANN401
        values = {"include_authorized_operations": False} if version >= 3 else {}
        return ask(groups, ApiKey.DESCRIBE_GROUPS, version, groups=("g", "x"), **values).groups

    commit(groups, 5)
    empty, unknown = describe()
    assert (empty.group_state, empty.members) == ("Empty", ())
    assert (unknown.group_state, unknown.error_code) == (
        "Dead", ErrorCode.group_id_not_found if version >= 6 else NONE
    )  # fmt: skip
    member = joined(groups)
    assert describe()[0].group_state == "CompletingRebalance"
    assert describe()[0].members[0].member_metadata == b""
    sync(groups, member, {member.member_id: b"all"})
    stable = describe()[0]
    assert (stable.group_state, stable.protocol_type, stable.protocol_data) == (
        "Stable", "consumer", "range"
    )  # fmt: skip
    (row,) = stable.members
    assert (row.client_id, row.client_host) == ("test", "/test")
    assert (row.member_metadata, row.member_assignment) == (b"topics", b"all")


@every_version(ApiKey.LIST_GROUPS)
def test_list_in_each_version(groups: LocalGroups, version: int) -> None:
    commit(groups, 5, group="stored")
    joined(groups)

    def names(**filters: Any) -> list[str]:  # noqa: ANN401
        response = ask(groups, ApiKey.LIST_GROUPS, version, **filters)
        return [row.group_id for row in response.groups]

    assert names() == ["g", "stored"]
    if version >= 4:
        assert names(states_filter=("completingrebalance",)) == ["g"]
    if version >= 5:
        assert names(types_filter=("consumer",)) == []
        assert names(types_filter=("Classic",)) == ["g", "stored"]


def test_an_answer_is_bounded_in_bytes(
    groups: LocalGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The groups behind the bound get an error that clients retry for these groups only."""
    monkeypatch.setattr(local, "MAX_ANSWER", 600)
    names = ["a", "b", "c"]
    for name in names:
        commit(groups, 5, group=name, metadata="m" * 200)
        joined(groups, group=name, protocols=[{"name": "range", "metadata": b"m" * 600}])
    later = ErrorCode.coordinator_load_in_progress
    rows = ask(groups, ApiKey.DESCRIBE_GROUPS, 2, groups=names).groups
    assert [(row.group_id, row.error_code) for row in rows] == [
        ("a", NONE), ("b", later), ("c", later),
    ]  # fmt: skip
    asked = [{"group_id": name, "topics": None} for name in names]
    rows = ask(groups, ApiKey.OFFSET_FETCH, 8, groups=asked, require_stable=False).groups
    assert [(row.group_id, len(row.topics), row.error_code) for row in rows] == [
        ("a", 1, NONE), ("b", 0, later), ("c", 0, later),
    ]  # fmt: skip


@every_version(ApiKey.CONSUMER_GROUP_HEARTBEAT)
def test_the_consumer_protocol_gets_a_clear_error(groups: LocalGroups, version: int) -> None:
    answer = ask(
        groups, ApiKey.CONSUMER_GROUP_HEARTBEAT, version,
        group_id="g", member_id="m", member_epoch=0, topic_partitions=None,
    )  # fmt: skip
    assert answer.error_code is ErrorCode.unsupported_version
    assert "group.protocol=classic" in answer.error_message


# What is refused


@pytest.mark.parametrize(
    ("case", "error"),
    [
        ({"group": ""}, ErrorCode.invalid_group_id),
        ({"group": "x" * 300}, ErrorCode.invalid_group_id),
        ({"session_timeout": 10}, ErrorCode.invalid_session_timeout),
        ({"session_timeout": 2_000_000}, ErrorCode.invalid_session_timeout),
        ({"member_id": "unknown"}, ErrorCode.unknown_member_id),
        ({"protocols": ()}, ErrorCode.inconsistent_group_protocol),
    ],
)
@pytest.mark.parametrize("version", [0, 6, 9])
def test_joins_that_are_refused(
    groups: LocalGroups, case: dict[str, Any], error: ErrorCode, version: int
) -> None:
    answer = join(groups, version=version, **case)
    assert (answer.error_code, answer.generation_id, answer.members) == (error, -1, ())


def test_commits_that_are_refused(groups: LocalGroups) -> None:
    member = joined(groups)
    sync(groups, member, {})
    unknown = ErrorCode.unknown_topic_or_partition
    assert commit(groups, 1, topic="other", member=member) is unknown
    assert commit(groups, 1, partition=3, member=member) is unknown
    too_large = commit(groups, 1, metadata="é" * 2049, member=member)
    assert too_large is ErrorCode.offset_metadata_too_large
    assert commit(groups, 1, metadata="é" * 2048, member=member) is NONE
    old = replace(member, generation_id=0)
    assert commit(groups, 9, member=old) is ErrorCode.illegal_generation
    assert commit(groups, 9) is ErrorCode.unknown_member_id  # not while there are members
    assert fetched(groups) == {0: 1}


REFUSED_JOINS: list[dict[str, Any]] = [
    {"group": "x" * 300},
    {"session_timeout": 10},
    {"member_id": "unknown"},
    {"protocols": ()},
    {"protocol_type": ""},
    {"protocols": [{"name": "range", "metadata": bytes(5 << 20)}]},
]


@pytest.mark.parametrize("case", REFUSED_JOINS)
def test_a_join_that_is_refused_leaves_no_group(store: FakeStorage, case: dict[str, Any]) -> None:
    registry = CollectorRegistry()
    groups = local_groups(store, metrics=GroupMetrics(registry))
    assert join(groups, version=0, **case).error_code is not NONE
    assert registry.get_sample_value("sidetier_endpoint_groups") == 0
    assert store.requests == []
    groups.close()


def test_a_commit_that_is_refused_leaves_no_group(store: FakeStorage) -> None:
    registry = CollectorRegistry()
    member = joined(local_groups(FakeStorage()))
    groups = local_groups(store, metrics=GroupMetrics(registry))
    assert commit(groups, 1, member=member) is ErrorCode.unknown_member_id
    assert commit(groups, 1, topic="other") is ErrorCode.unknown_topic_or_partition
    assert commit(groups, 1, metadata="x" * 5000) is ErrorCode.offset_metadata_too_large
    assert registry.get_sample_value("sidetier_endpoint_groups") == 0
    assert store.requests == []
    groups.close()


def test_a_member_that_must_join_again_with_its_id_takes_no_group(
    store: FakeStorage, groups: LocalGroups
) -> None:
    first = join(groups)
    assert first.error_code is ErrorCode.member_id_required
    assert store.requests == []
    assert join(groups, first.member_id).error_code is NONE
    assert list(store.contents()) == ["_sidetier/prod-a/groups/g.json"]


FULL = [
    (replace(QUICK, members=1), {"group": "other"}),
    (replace(QUICK, memory=5500), {"group": "other", "protocols": [("range", bytes(4000))]}),
]


@pytest.mark.parametrize(("settings", "case"), FULL, ids=["members", "memory"])
def test_members_of_all_groups_are_bounded(
    store: FakeStorage, settings: CoordinatorSettings, case: dict[str, Any]
) -> None:
    if "protocols" in case:
        rows = [{"name": name, "metadata": data} for name, data in case["protocols"]]
        case = case | {"protocols": rows}
    ahead = [0.0]
    groups = local_groups(store, settings=settings, clock=lambda: monotonic() + ahead[0])
    member = joined(groups)
    assert member.error_code is NONE
    with capture_logs() as logs:
        for _ in range(3):
            refused = join(groups, version=0, **case)
            assert refused.error_code is ErrorCode.coordinator_not_available
    full = [entry for entry in logs if entry["event"] == "endpoint.groups_full"]
    assert [(entry["requests"], entry["members"]) for entry in full] == [(1, 1)]
    assert list(store.contents()) == ["_sidetier/prod-a/groups/g.json"]
    assert sync(groups, member, {}).error_code is NONE  # the members that it has are served
    ahead[0] = 60.0  # no request ends the session of the first member
    assert join(groups, version=0, **case).error_code is NONE
    groups.close()


def test_one_client_cannot_take_the_places_of_all_others(store: FakeStorage) -> None:
    """Neither with members nor with member ids that it never uses; users count before hosts."""
    ahead = [0.0]
    settings = replace(QUICK, members=100, members_per_owner=2)
    groups = local_groups(store, settings=settings, clock=lambda: monotonic() + ahead[0])

    def ask_for_id(session: Session, group: str) -> ErrorCode:
        code: ErrorCode = ask_as(
            session, groups, ApiKey.JOIN_GROUP, 9,
            group_id=group, session_timeout=1_800_000, rebalance_timeout=60_000, member_id="",
            protocol_type="consumer", protocols=[{"name": "range", "metadata": b"topics"}],
        ).error_code  # fmt: skip
        return code

    given, full = ErrorCode.member_id_required, ErrorCode.coordinator_not_available
    one, other = Session("10.0.0.1:5"), Session("10.0.0.2:5")
    with capture_logs() as logs:
        assert [ask_for_id(one, name) for name in "abc"] == [given, given, full]
    assert [row["bound"] for row in logs if row["event"] == "endpoint.groups_full"] == [
        "2 members of /10.0.0.1"
    ]
    assert [ask_for_id(other, name) for name in "ab"] == [given, given]
    user = Session("10.0.0.1:6", principal="alice")
    assert [ask_for_id(user, name) for name in "abc"] == [given, given, full]
    assert ask_for_id(Session("10.0.0.2:6", principal="alice"), "a") is full
    ahead[0] = 15.0  # nothing asks for the other groups
    assert ask_for_id(one, "d") is given
    assert groups._coordinator._owners == {"/10.0.0.1": 1}
    groups.close()


def test_one_client_creates_a_number_of_groups_a_day(store: FakeStorage) -> None:
    """Groups that exist are served; those of other clients are, too, up to the bound of all."""
    settings = replace(QUICK, new_groups=4, new_groups_per_owner=2, retry_pause=0.0)
    full = ErrorCode.coordinator_not_available
    groups = local_groups(store, settings=settings)
    assert [commit(groups, 1, group=name) for name in "abc"] == [NONE, NONE, full]
    assert joined(groups, group="d").error_code is full
    assert commit(groups, 2, group="a") is NONE
    assert not any(row.key.endswith(("c.json", "d.json")) for row in store.list_objects(""))
    other = Session("test2:1")
    asked = {
        "session_timeout": 10_000, "rebalance_timeout": 60_000, "member_id": "",
        "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}],
    }  # fmt: skip
    answers = [
        ask_as(other, groups, ApiKey.JOIN_GROUP, 3, group_id=name, **asked) for name in "efg"
    ]
    assert [answer.error_code for answer in answers] == [NONE, NONE, full]
    groups.close()
    again = local_groups(store, settings=replace(settings, new_groups=0))
    assert commit(again, 3, group="a") is NONE
    again.close()


def test_owners_are_counted_only_when_members_change(groups: LocalGroups) -> None:
    """With 1,000 owners it takes half a millisecond, which all groups would wait for."""
    member = joined(groups)
    assert sync(groups, member, {member.member_id: b"all"}).error_code is NONE
    (group,) = groups._coordinator._all()
    counted = group.owners
    assert counted.total() == 1
    assert commit(groups, 5, member=member) is NONE
    assert group.owners is counted is group.machine.owners
    assert join(groups).error_code is ErrorCode.member_id_required
    assert group.owners == {"/test": 2}
    assert group.owners is not counted


def test_assignments_and_offsets_are_bounded(store: FakeStorage) -> None:
    registry = CollectorRegistry()
    groups = local_groups(
        store, settings=replace(QUICK, memory=8000), metrics=GroupMetrics(registry)
    )
    member = joined(groups)
    refused = sync(groups, member, {member.member_id: bytes(9000)})
    assert refused.error_code is ErrorCode.coordinator_not_available
    assert sync(groups, member, {member.member_id: bytes(3000)}).error_code is NONE
    full = ErrorCode.coordinator_not_available
    assert commit(groups, 1, member=member, metadata="x" * 4000) is full
    assert commit(groups, 1, member=member) is NONE
    held = registry.get_sample_value("sidetier_endpoint_group_bytes")
    assert held is not None
    assert 4000 < held < 8000
    groups.close()


def test_the_assignments_of_one_group_are_bounded(groups: LocalGroups) -> None:
    member = joined(groups)
    too_large = sync(groups, member, {member.member_id: bytes((4 << 20) + 1)})
    assert too_large.error_code is ErrorCode.group_max_size_reached
    assert sync(groups, member, {}).error_code is NONE


def test_the_most_groups(store: FakeStorage) -> None:
    groups = local_groups(store, settings=replace(QUICK, groups=2))
    joined(groups)
    assert commit(groups, 1, group="a") is NONE
    assert commit(groups, 1, group="b") is NONE  # in place of a, which has no members
    joined(groups, group="b")
    assert commit(groups, 1, group="c") is ErrorCode.coordinator_not_available
    groups.close()


def test_groups_whose_members_have_gone_make_room(store: FakeStorage) -> None:
    ahead = [0.0]
    groups = local_groups(
        store, settings=replace(QUICK, groups=1), clock=lambda: monotonic() + ahead[0]
    )
    sync(groups, joined(groups), {})
    assert commit(groups, 1, group="b") is ErrorCode.coordinator_not_available
    ahead[0] = 60.0  # no request ends the session
    assert commit(groups, 1, group="b") is NONE
    groups.close()


def test_a_commit_is_handed_to_the_store_before_its_member_can_lose_its_partitions(
    groups: LocalGroups, clients: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = joined(groups)
    sync(groups, member, {})
    store_offsets = OwnedGroup.commit

    def slow(owned: OwnedGroup, offsets: Offsets) -> Future[None]:
        leaving = [{"member_id": member.member_id, "group_instance_id": None}]
        left = clients.submit(ask, groups, ApiKey.LEAVE_GROUP, 5, group_id="g", members=leaving)
        holds_for(lambda: not left.done(), 0.3, "the member is in the group")
        return store_offsets(owned, offsets)

    monkeypatch.setattr(OwnedGroup, "commit", slow)
    assert commit(groups, 1, member=member) is NONE


# Several members


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def test_two_members_rebalance(groups: LocalGroups, clients: ThreadPoolExecutor) -> None:
    first = joined(groups)
    sync(groups, first, {first.member_id: b"all"})
    second: Future[Any] = clients.submit(joined, groups)
    beat = {"group_id": "g", "generation_id": 1, "member_id": first.member_id}
    wait_until(
        lambda: (
            ask(groups, ApiKey.HEARTBEAT, 4, **beat).error_code is ErrorCode.rebalance_in_progress
        ),
        5,
        "the rebalance",
    )
    assert not second.done()
    rows = described(groups).members
    assert {row.member_assignment for row in rows} == {b""}, "as from brokers: only while stable"
    leader, follower = join(groups, first.member_id), second.result(5)
    assert leader.generation_id == follower.generation_id == 2
    waiting = clients.submit(sync, groups, follower, {})
    sync(groups, leader, {leader.member_id: b"0", follower.member_id: b"1"})
    assert waiting.result(5).assignment == b"1"


def test_a_waiting_member_is_answered_when_a_session_ends(
    store: FakeStorage, clients: ThreadPoolExecutor
) -> None:
    registry = CollectorRegistry()
    groups = local_groups(store, settings=QUICK, metrics=GroupMetrics(registry))
    first = joined(groups, session_timeout=300)
    sync(groups, first, {first.member_id: b"all"})
    assert registry.get_sample_value("sidetier_endpoint_group_members") == 1
    second = clients.submit(joined, groups).result(5)  # the first sends no heartbeat
    assert (second.generation_id, len(second.members)) == (2, 1)
    groups.close()


def test_a_stop_ends_all_waits(groups: LocalGroups, clients: ThreadPoolExecutor) -> None:
    first = joined(groups)
    waiting = [clients.submit(joined, groups) for _ in range(2)]
    wait_until(
        lambda: ask(
            groups, ApiKey.HEARTBEAT, 4, group_id="g", generation_id=1, member_id=first.member_id
        ).error_code is ErrorCode.rebalance_in_progress,
        5, "the rebalance",
    )  # fmt: skip
    groups.close()
    errors = {each.result(5).error_code for each in waiting}
    assert errors == {ErrorCode.coordinator_not_available}


# The store, and other endpoints


def test_offsets_and_members_after_a_restart(store: FakeStorage) -> None:
    before = local_groups(store)
    member = joined(before)
    sync(before, member, {})
    assert commit(before, 7, member=member) is NONE
    after = local_groups(store, "two")  # the first was killed
    assert fetched(after) == {0: 7}
    assert commit(after, 8, member=member) is ErrorCode.unknown_member_id
    assert sync(after, member, {}).error_code is ErrorCode.unknown_member_id
    assert join(after, member.member_id).error_code is ErrorCode.unknown_member_id
    again = joined(after)
    sync(after, again, {})
    assert commit(after, 9, member=again) is NONE
    before.close()
    after.close()


def test_a_second_endpoint_fences_the_first(
    store: FakeStorage, clients: ThreadPoolExecutor
) -> None:
    registry = CollectorRegistry()
    first = local_groups(store, metrics=GroupMetrics(registry))
    member = joined(first)
    sync(first, member, {})
    commit(first, 5, member=member)
    second = local_groups(store, "two")
    assert fetched(second) == {0: 5}
    assert commit(first, 6, member=member) is NONE  # to read takes nothing
    rival = joined(second)
    sync(second, rival, {})
    waiting = clients.submit(joined, first)
    wait_until(lambda: not waiting.done(), 5, "a member that waits")
    assert commit(first, 100, member=member) is ErrorCode.not_coordinator
    assert waiting.result(5).error_code is ErrorCode.not_coordinator
    assert join(first, member.member_id).error_code is ErrorCode.not_coordinator
    assert commit(second, 7, member=rival) is NONE
    assert fetched(second) == fetched(first) == {0: 7}
    assert registry.get_sample_value("sidetier_endpoint_lost_groups_total") == 1
    first.close()
    second.close()


def beat(groups: LocalGroups, member: Any) -> ErrorCode:  # noqa: ANN401
    code: ErrorCode = ask(
        groups, ApiKey.HEARTBEAT, 4,
        group_id="g", generation_id=member.generation_id, member_id=member.member_id,
    ).error_code  # fmt: skip
    return code


class Ahead:
    """A clock that tests can put forward."""

    seconds = 0.0

    def __call__(self) -> float:
        return monotonic() + self.seconds


def test_a_replaced_owner_notices_it_without_a_commit(store: FakeStorage) -> None:
    clock = Ahead()
    first = local_groups(store, settings=QUICK, clock=clock)
    member = joined(first, session_timeout=60_000)
    sync(first, member, {})
    commit(first, 5, member=member)
    second = local_groups(store, "two", settings=QUICK)
    commit(second, 6)
    requests = len(store.requests)
    assert beat(first, member) is NONE  # it has asked the store less than 5 s before
    assert fetched(first) == {0: 5}
    assert len(store.requests) == requests
    clock.seconds = 6
    wait_until(lambda: beat(first, member) is ErrorCode.not_coordinator, 5, "the loss of the group")
    assert fetched(first) == {0: 6}
    first.close()
    second.close()


def test_a_replaced_owner_answers_no_old_offsets(store: FakeStorage) -> None:
    """The first OffsetFetch after a long time waits for the answer of the store."""
    clock = Ahead()
    first = local_groups(store, settings=QUICK, clock=clock)
    commit(first, 5)
    second = local_groups(store, "two", settings=QUICK)
    commit(second, 6)
    clock.seconds = 6
    assert fetched(first) == {0: 6}
    first.close()
    second.close()


def test_members_stay_and_offsets_wait_while_the_owner_cannot_be_confirmed(
    store: FakeStorage,
) -> None:
    clock = Ahead()
    groups = local_groups(store, settings=QUICK, clock=clock)
    member = joined(groups, session_timeout=600_000)
    sync(groups, member, {})
    commit(groups, 5, member=member)
    clock.seconds = 6
    loading = ErrorCode.coordinator_load_in_progress
    with store.away():
        for _ in range(3):
            assert beat(groups, member) is NONE
            answer = ask(groups, ApiKey.OFFSET_FETCH, 9, groups=[{"group_id": "g", "topics": None}])
            assert answer.groups[0].error_code is loading
        assert sum(each.operation == "head" for each in store.requests) == 1
    clock.seconds = 12
    assert fetched(groups) == {0: 5}
    assert beat(groups, member) is NONE
    groups.close()


def test_a_lost_group_is_served_again_without_a_restart(store: FakeStorage) -> None:
    clock = Ahead()
    registry = CollectorRegistry()
    first = local_groups(store, settings=QUICK, clock=clock, metrics=GroupMetrics(registry))
    member = joined(first)
    sync(first, member, {})
    second = local_groups(store, "two", settings=QUICK)
    commit(second, 6)
    lost = ErrorCode.not_coordinator
    assert commit(first, 5, member=member) is lost
    requests = len(store.requests)
    clock.seconds = 20  # too early
    assert (join(first).error_code, commit(first, 5)) == (lost, lost)
    assert len(store.requests) == requests
    commit(second, 7)
    clock.seconds = 31  # the other endpoint has committed since the group was lost
    assert join(first).error_code is lost
    assert commit(second, 8) is NONE
    clock.seconds = 62
    assert join(first).error_code is lost
    clock.seconds = 93  # now it has been quiet for long enough
    again = joined(first)
    assert again.error_code is NONE
    assert beat(first, member) is ErrorCode.unknown_member_id  # it joins again
    sync(first, again, {})
    assert fetched(first) == {0: 8}
    assert commit(first, 9, member=again) is NONE
    assert commit(second, 10) is lost
    assert registry.get_sample_value("sidetier_endpoint_lost_groups_total") == 1
    first.close()
    second.close()


def test_offsets_of_a_topic_that_was_created_again_are_absent(store: FakeStorage) -> None:
    ids = {"orders": "first"}
    groups = local_groups(store, topic_id=ids.get)
    commit(groups, 5)
    commit(groups, 6, partition=1)
    assert fetched(groups) == {0: 5, 1: 6}
    ids["orders"] = "second"
    with capture_logs() as logs:
        for version in range(*OFFERED_LOCAL[ApiKey.OFFSET_FETCH]):
            assert fetched(groups, version, (0, 1)) == {0: -1, 1: -1}
        assert fetched(groups) == {}
    (ignored,) = logs
    assert ignored["event"] == "endpoint.committed_offsets_ignored"
    assert (ignored["group"], ignored["topic"]) == ("g", "orders")
    assert (ignored["committed_topic_id"], ignored["topic_id"]) == ("first", "second")
    commit(groups, 1)
    groups.close()
    after = local_groups(store, "two", topic_id=ids.get)  # a restart
    assert fetched(after, 9, (0, 1)) == {0: 1, 1: -1}
    after.close()


def test_offsets_without_a_topic_id_are_valid(store: FakeStorage) -> None:
    """They are from an archive without ids, or from before topic ids were stored."""
    ids: dict[str, str] = {}
    groups = local_groups(store, topic_id=ids.get)
    commit(groups, 5)
    ids["orders"] = "first"
    assert fetched(groups) == {0: 5}
    commit(groups, 6, partition=1)
    ids.clear()  # the archive cannot be read now
    assert fetched(groups) == {0: 5, 1: 6}
    groups.close()


def test_a_store_that_is_away(store: FakeStorage) -> None:
    groups = local_groups(store, settings=QUICK)
    with store.away():
        assert join(groups, version=0).error_code is ErrorCode.coordinator_not_available
        loading = ask(groups, ApiKey.OFFSET_FETCH, 9, groups=[{"group_id": "g", "topics": None}])
        assert loading.groups[0].error_code is ErrorCode.coordinator_load_in_progress
        requests = len(store.requests)
        assert commit(groups, 1) is ErrorCode.coordinator_not_available
        assert len(store.requests) == requests  # a pause before the group is loaded again
    wait_until(lambda: commit(groups, 1) is NONE, 5, "the store to be asked again")
    store.fail("put", StoreUnavailableError("503"))
    assert commit(groups, 2) is ErrorCode.coordinator_not_available
    assert fetched(groups) == {0: 1}
    groups.close()


def test_a_store_that_is_slow(store: FakeStorage) -> None:
    groups = local_groups(store, settings=QUICK)
    with store.hold("get"):
        assert commit(groups, 1) is ErrorCode.coordinator_load_in_progress
    wait_until(lambda: commit(groups, 1) is NONE, 5, "the group")
    with store.hold("put"):
        assert commit(groups, 2) is ErrorCode.coordinator_not_available
        assert fetched(groups) == {0: 1}
    wait_until(lambda: fetched(groups) == {0: 2}, 5, "the write that was not answered")
    groups.close()


def test_a_damaged_object_is_named_and_not_replaced(store: FakeStorage) -> None:
    key = "_sidetier/prod-a/groups/g.json"
    first = local_groups(store)
    commit(first, 1)
    first.close()
    damaged = store.contents()[key].replace(b'"version":1', b'"version":2')
    store.put_object(key, BytesBody(damaged))
    groups = local_groups(store, "two")
    assert commit(groups, 2) is ErrorCode.coordinator_not_available
    assert store.contents()[key] == damaged
    groups.close()


def test_members_that_wait_do_not_wake_each_other(
    store: FakeStorage, clients: ThreadPoolExecutor
) -> None:
    """Four members wait for a fifth that does not join again. One that wakes reads the clock."""
    reads: list[float] = []

    def clock() -> float:
        reads.append(monotonic())
        return reads[-1]

    groups = local_groups(store, clock=clock)
    first = joined(groups)
    sync(groups, first, {})
    waiting = [clients.submit(joined, groups) for _ in range(4)]
    wait_until(lambda: len(described(groups).members) == 5, 10, "the members to wait for the first")
    before = len(reads)
    holds_for(lambda: not any(each.done() for each in waiting), 0.5, "all members wait")
    assert len(reads) - before < 50
    groups.close()
    assert all(each.result(5).error_code is not NONE for each in waiting)
