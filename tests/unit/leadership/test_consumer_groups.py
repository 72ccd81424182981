"""Consumer groups are read from the brokers: offsets, members, and whether all are listed."""

from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode

from sidetier.leadership.consumer_groups import KafkaConsumerGroups
from sidetier.leadership.port import ReadGroups
from sidetier.segments.cluster_state import GroupMember
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.protocol import ApiKey
from tests.harness.fake_broker import FakeBroker, Received, coordinated_by, fake_broker, led_by

DESCRIBE_ON_CLUSTER = 1 << 8
ERRORS = {
    "refused": ErrorCode.group_authorization_failed,
    "deleted": ErrorCode.group_id_not_found,
}


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """A broker with the groups a, other, deleted and refused. Each has committed 7 in t-3."""
    with fake_broker() as broker:
        broker.answers = {
            ApiKey.METADATA: lambda request: led_by(broker, request),
            ApiKey.FIND_COORDINATOR: lambda request: coordinated_by(broker, request),
            ApiKey.LIST_GROUPS: listed,
            ApiKey.OFFSET_FETCH: committed,
            ApiKey.DESCRIBE_CLUSTER: lambda request: allowed(request, DESCRIBE_ON_CLUSTER),
            ApiKey.DESCRIBE_GROUPS: classic_members,
            ApiKey.CONSUMER_GROUP_DESCRIBE: members,
        }
        yield broker


def reader(broker: FakeBroker) -> KafkaConsumerGroups:
    return KafkaConsumerGroups(str(broker.address), {})


def listed(request: Received) -> bytes:
    rows = [
        {
            "group_id": name,
            "protocol_type": "consumer",
            "group_state": "Stable",
            "group_type": "classic",
        }
        for name in ("a", "other", "deleted", "refused")
    ]
    return request.response(throttle_time=0, error_code=ErrorCode.none, groups=rows)


def committed(request: Received) -> bytes:
    partition = {
        "partition_index": 3,
        "committed_offset": 7,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": ErrorCode.none,
    }
    error = ERRORS.get(request.entity.group_id, ErrorCode.none)
    return request.response(
        throttle_time=0, topics=[{"name": "t", "partitions": [partition]}], error_code=error
    )


def allowed(request: Received, operations: int) -> bytes:
    return request.response(
        throttle_time=0,
        error_code=ErrorCode.none,
        error_message=None,
        endpoint_type=1,
        cluster_id="cluster",
        controller_id=1,
        brokers=[],
        cluster_authorized_operations=operations,
    )


def classic_members(request: Received) -> bytes:
    """Describe classic-1 with a member, and all others as missing."""
    [name] = request.entity.groups
    member: dict[str, object] = {
        "member_id": "m",
        "group_instance_id": None,
        "client_id": "app",
        "client_host": "/10.0.0.7",
        "member_metadata": b"",
        "member_assignment": b"",
    }
    is_classic = name == "classic-1"
    described = {
        "error_code": ErrorCode.none if is_classic else ErrorCode.group_id_not_found,
        "error_message": None,
        "group_id": name,
        "group_state": "Stable" if is_classic else "Dead",
        "protocol_type": "consumer",
        "protocol_data": "",
        "members": [member] if is_classic else [],
        "authorized_operations": 0,
    }
    return request.response(throttle_time=0, groups=[described])


def members(request: Received) -> bytes:
    """Describe new-1 with a member, and refuse refused-1."""
    [name] = request.entity.group_ids
    errors = {"new-1": ErrorCode.none, "refused-1": ErrorCode.group_authorization_failed}
    assignment: dict[str, object] = {"topic_partitions": []}
    member: dict[str, object] = {
        "member_id": "m",
        "instance_id": None,
        "rack_id": None,
        "member_epoch": 1,
        "client_id": "new-app",
        "client_host": "/::1",
        "subscribed_topic_names": [],
        "subscribed_topic_regex": None,
        "assignment": assignment,
        "target_assignment": assignment,
        "member_type": 1,
    }
    described = {
        "error_code": errors.get(name, ErrorCode.group_id_not_found),
        "error_message": None,
        "group_id": name,
        "group_state": "Stable",
        "group_epoch": 1,
        "assignment_epoch": 1,
        "assignor_name": "",
        "members": [member] if name == "new-1" else [],
        "authorized_operations": 0,
    }
    return request.response(throttle_time=0, groups=[described])


def test_a_group_that_cannot_be_read_does_not_hide_the_others(broker: FakeBroker) -> None:
    read = reader(broker).committed_offsets((), None)
    at = {TopicPartition("t", 3): Offset(7)}
    assert read.offsets == {"a": at, "other": at}
    assert read.unread.keys() == {"refused"}
    assert "needs Describe on the group" in read.unread["refused"]
    assert read.incomplete is None


def test_without_the_permission_not_all_groups_are_listed(broker: FakeBroker) -> None:
    broker.answers[ApiKey.DESCRIBE_CLUSTER] = lambda request: allowed(request, 0)
    read = reader(broker).committed_offsets((), None)
    assert "needs Describe on the cluster" in str(read.incomplete)


def test_only_wanted_groups_are_read(broker: FakeBroker) -> None:
    read = reader(broker).committed_offsets(["unlisted"], lambda group: group == "other")
    at = {TopicPartition("t", 3): Offset(7)}
    assert read == ReadGroups({"other": at, "unlisted": at})
    assert ApiKey.DESCRIBE_CLUSTER not in broker.apis()


def test_members_of_classic_and_new_groups(broker: FakeBroker) -> None:
    wanted = ["classic-1", "new-1", "deleted-1", "refused-1"]
    assert reader(broker).members(wanted) == {
        "classic-1": (GroupMember("app", "10.0.0.7"),),
        "new-1": (GroupMember("new-app", "::1"),),
        "deleted-1": (),
    }


def test_members_at_a_broker_without_the_new_protocol(broker: FakeBroker) -> None:
    del broker.versions[ApiKey.CONSUMER_GROUP_DESCRIBE]
    assert reader(broker).members(["classic-1", "deleted-1"]) == {
        "classic-1": (GroupMember("app", "10.0.0.7"),),
        "deleted-1": (),
    }
