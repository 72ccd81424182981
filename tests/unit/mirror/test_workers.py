"""Workers share partitions as members of a group of a fake coordinator."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sidetier.mirror.copy.workers import KafkaWorkerGroup, Share, decode_share, group_kind
from sidetier.mirror.topics.rules import TopicRules, compiled
from sidetier.segments.errors import (
    ConfigurationError,
    KafkaApiError,
    MalformedResponseError,
    MirrorError,
)
from sidetier.segments.offsets import TopicPartition
from sidetier.wire.protocol import ApiKey
from sidetier.wire.requests import Membership
from sidetier.wire.settings import ClientSettings
from tests.harness.fake_broker import Received, fake_broker
from tests.harness.waiting import wait_until

GROUP = "sidetier-mirror-dr"
WAIT = 30.0


class Coordinator:
    """Answer in the order of `joins`; answer heartbeats with `beat`. The other member is `m-a`."""

    def __init__(self, stack: ExitStack) -> None:
        self.broker = stack.enter_context(fake_broker())
        self.joins: list[ErrorCode] = []
        self.beat = ErrorCode.none
        self.leads = True
        self.generation = 0
        self.broker.answers |= {
            ApiKey.FIND_COORDINATOR: self.find,
            ApiKey.JOIN_GROUP: self.join,
            ApiKey.SYNC_GROUP: self.sync,
            ApiKey.HEARTBEAT: lambda request: request.response(
                throttle_time=0, error_code=self.beat
            ),
            ApiKey.LEAVE_GROUP: lambda request: request.response(
                throttle_time=0, error_code=ErrorCode.none, members=[]
            ),
        }

    def find(self, request: Received) -> bytes:
        host, port = self.broker.address
        return request.response(
            throttle_time=0,
            error_code=ErrorCode.none,
            error_message=None,
            node_id=1,
            host=host,
            port=port,
        )

    def join(self, request: Received) -> bytes:
        error = self.joins.pop(0) if self.joins else ErrorCode.none
        self.generation += error is ErrorCode.none
        members = [
            {"member_id": "m-b", "group_instance_id": "b", "metadata": b""},
            {"member_id": "m-a", "group_instance_id": "a", "metadata": b""},
        ]
        return request.response(
            throttle_time=0,
            error_code=error,
            generation_id=self.generation,
            protocol_type=request.entity.protocol_type,
            protocol_name=request.entity.protocols[0].name,
            leader="m-b" if self.leads else "m-a",
            skip_assignment=False,
            member_id="m-b",
            members=members if self.leads else [],
        )

    def sync(self, request: Received) -> bytes:
        assigned = {
            assignment.member_id: assignment.assignment for assignment in request.entity.assignments
        }
        return request.response(
            throttle_time=0,
            error_code=ErrorCode.none,
            protocol_type=request.entity.protocol_type,
            protocol_name=request.entity.protocol_name,
            assignment=assigned.get("m-b", Share(2, 3).encoded()),
        )

    def received(self, api: ApiKey) -> list[Any]:
        return [request.entity for request in self.broker.received if request.api is api]


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    with ExitStack() as stack:
        yield Coordinator(stack)


@pytest.fixture
def worker(coordinator: Coordinator) -> Iterator[KafkaWorkerGroup]:
    settings = ClientSettings((coordinator.broker.address,))
    rules = TopicRules((compiled("orders", "--topic"),))
    result = KafkaWorkerGroup(settings, GROUP, "b", group_kind(rules), session_timeout=0.5)
    yield result
    result.close()


def test_every_partition_has_one_worker_and_topics_are_distributed_evenly() -> None:
    partitions = [TopicPartition(topic, number) for topic in "abc" for number in range(7)]
    shares = [Share(index, 3) for index in range(3)]
    for tp in partitions:
        assert sum(share.owns(tp) for share in shares) == 1
    for share in shares:
        assert sum(share.owns(tp) for tp in partitions[:7]) in (2, 3)


def test_leader_numbers_the_workers(coordinator: Coordinator, worker: KafkaWorkerGroup) -> None:
    worker.join()
    (sent,) = coordinator.received(ApiKey.SYNC_GROUP)
    shares = {
        assignment.member_id: decode_share(assignment.assignment) for assignment in sent.assignments
    }
    assert shares == {"m-a": Share(0, 2), "m-b": Share(1, 2)}
    tp = TopicPartition("orders", 0)
    assert worker.owns(tp) == Share(1, 2).owns(tp)
    assert worker.membership() == Membership(1, "m-b", "b")


def test_a_follower_accepts_the_placed_records(
    coordinator: Coordinator, worker: KafkaWorkerGroup
) -> None:
    coordinator.leads = False
    worker.join()
    (sent,) = coordinator.received(ApiKey.SYNC_GROUP)
    assert sent.assignments == ()
    tp = TopicPartition("orders", 0)
    assert worker.owns(tp) == Share(2, 3).owns(tp)


def test_rebalance_is_noticed_by_a_heartbeat_and_rejoined_as_the_same_member(
    coordinator: Coordinator, worker: KafkaWorkerGroup
) -> None:
    worker.join()
    assert not worker.must_join_again()
    coordinator.beat = ErrorCode.rebalance_in_progress
    wait_until(worker.must_join_again, WAIT, "the rebalance")
    coordinator.beat = ErrorCode.none
    worker.join()
    assert not worker.must_join_again()
    assert [request.member_id for request in coordinator.received(ApiKey.JOIN_GROUP)] == ["", "m-b"]
    assert worker.membership() == Membership(2, "m-b", "b")


def test_expired_member_joins_as_a_new_one(
    coordinator: Coordinator, worker: KafkaWorkerGroup
) -> None:
    worker.join()
    coordinator.joins = [ErrorCode.unknown_member_id]
    worker.join()
    joins = [request.member_id for request in coordinator.received(ApiKey.JOIN_GROUP)]
    assert joins == ["", "m-b", ""]


def test_worker_whose_name_was_taken_by_another_process_ends(
    coordinator: Coordinator, worker: KafkaWorkerGroup
) -> None:
    coordinator.joins = [ErrorCode.fenced_instance_id]
    with pytest.raises(MirrorError, match="another process of worker b has started"):
        worker.join()


def test_rules_different_from_the_groups_are_a_configuration_error(
    coordinator: Coordinator, worker: KafkaWorkerGroup
) -> None:
    """It has copied nothing yet: exit code 2. A rejoining worker may have copied records."""
    refused = ErrorCode.inconsistent_group_protocol
    coordinator.joins = [refused]
    with pytest.raises(ConfigurationError, match="with other --topic, --exclude or --rename"):
        worker.join()
    worker.join()
    coordinator.joins = [refused]
    with pytest.raises(MirrorError, match="with other --topic, --exclude or --rename"):
        worker.join()


def test_refusal_names_the_request_and_the_error(
    coordinator: Coordinator, worker: KafkaWorkerGroup
) -> None:
    coordinator.joins = [ErrorCode.group_authorization_failed]
    with pytest.raises(KafkaApiError, match=r"JoinGroup.*GROUP_AUTHORIZATION_FAILED"):
        worker.join()


def test_worker_leaves_the_group_at_its_end(
    coordinator: Coordinator, worker: KafkaWorkerGroup
) -> None:
    worker.join()
    worker.close()
    worker.close()
    (left,) = coordinator.received(ApiKey.LEAVE_GROUP)
    assert [(member.member_id, member.group_instance_id) for member in left.members] == [
        ("m-b", "b")
    ]


def test_different_rules_give_a_different_group_kind() -> None:
    one, other = (TopicRules((compiled(text, "--topic"),)) for text in ("a", "b"))
    assert group_kind(one) == group_kind(TopicRules((compiled("a", "--topic"),)))
    assert group_kind(one) != group_kind(other)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", json.dumps({"version": 2}).encode()])
def test_bytes_that_are_no_share_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedResponseError):
        decode_share(data)
