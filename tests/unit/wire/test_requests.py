"""Every request can be encoded in every version that brokers may require."""

from collections.abc import Callable, Collection
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from sidetier.segments.batches import Producer
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.wire import groups, requests
from sidetier.wire.cluster import Cluster, Route
from sidetier.wire.protocol import (
    ApiKey,
    DescribeTransactionsResponse,
    build_entity,
    build_request,
    decode_response,
    encode,
    known_versions,
)
from sidetier.wire.requests import ActiveProducer, CommittedOffset, Membership
from sidetier.wire.settings import ClientSettings

TP = TopicPartition("topic", 3)
PRODUCER = Producer(9, 1)
MEMBER = Membership(3, "member", "instance")
KIND = groups.GroupKind("type", "protocol")


class _SentError(Exception):
    """Contains the request that would have been sent."""


class Sending(Cluster):
    """End each call with its first request."""

    def leaders(
        self, partitions: Collection[TopicPartition]
    ) -> dict[BrokerId, list[TopicPartition]]:
        return {BrokerId(1): list(partitions)}

    def request_once(
        self,
        route: Route,  # noqa: ARG002 - of the real one
        api: ApiKey,
        /,
        *,
        tolerate: Collection[ErrorCode] = (),  # noqa: ARG002 - of the real one
        **values: object,
    ) -> Any:  # noqa: ANN401 - of the real one
        raise _SentError(api, values)


CALLS: dict[str, tuple[Callable[[Cluster], object], int]] = {
    "InitProducerId": (requests.init_producer_id, 0),
    "InitProducerId with id": (lambda cluster: requests.init_producer_id(cluster, "id"), 0),
    "AddPartitionsToTxn": (
        lambda cluster: requests.add_partitions_to_txn(cluster, "id", PRODUCER, [TP]),
        0,
    ),
    "AddOffsetsToTxn": (
        lambda cluster: requests.add_offsets_to_txn(cluster, "id", PRODUCER, "g"),
        0,
    ),
    "TxnOffsetCommit": (
        lambda cluster: requests.commit_offsets_in_txn(
            cluster, "id", PRODUCER, "g", {TP: CommittedOffset(Offset(7))}
        ),
        0,
    ),
    "OffsetCommit": (
        lambda cluster: requests.commit_offsets(cluster, "g", {TP: CommittedOffset(Offset(7))}),
        2,
    ),
    "DeleteTopics": (lambda cluster: requests.delete_topics(cluster, [UUID(int=7)]), 6),
    "DeleteGroups": (lambda cluster: requests.delete_group(cluster, "g"), 0),
    "EndTxn": (lambda cluster: requests.end_txn(cluster, "id", PRODUCER, commit=True), 0),
    "ListOffsets": (lambda cluster: requests.list_offsets(cluster, {TP: requests.EARLIEST}), 1),
    "ListOffsets committed": (
        lambda cluster: requests.list_offsets(
            cluster, {TP: requests.LATEST}, isolation=IsolationLevel.READ_COMMITTED
        ),
        2,
    ),
    "OffsetForLeaderEpoch": (
        lambda cluster: requests.epoch_ends(cluster, {TP: LeaderEpoch(2)}),
        2,
    ),
    "OffsetFetch": (lambda cluster: requests.committed_offsets(cluster, "g", [TP]), 7),
    "OffsetFetch unstable": (
        lambda cluster: requests.committed_offsets(cluster, "g", [TP], require_stable=False),
        1,
    ),
    "OffsetFetch of all": (lambda cluster: requests.committed_offsets(cluster, "g"), 7),
    "DescribeGroups": (lambda cluster: requests.group_members(cluster, "g"), 0),
    "DescribeProducers": (lambda cluster: requests.active_producers(cluster, [TP]), 0),
    "WriteTxnMarkers": (
        lambda cluster: requests.abort_hung_transaction(
            cluster, TP, ActiveProducer(PRODUCER, 0, 1, 2, Offset(3))
        ),
        1,
    ),
    "DescribeTransactions": (lambda cluster: requests.describe_transaction(cluster, "id"), 0),
    "TxnOffsetCommit of a member": (
        lambda cluster: requests.commit_offsets_in_txn(
            cluster, "id", PRODUCER, "g", {TP: CommittedOffset(Offset(7))}, membership=MEMBER
        ),
        3,
    ),
    "OffsetCommit of a member": (
        lambda cluster: requests.commit_offsets(
            cluster, "g", {TP: CommittedOffset(Offset(7))}, membership=MEMBER
        ),
        7,
    ),
    "JoinGroup": (
        lambda cluster: groups.join_group(
            cluster, "g", KIND, "one", session_timeout=30, rebalance_timeout=60
        ),
        5,
    ),
    "SyncGroup": (
        lambda cluster: groups.sync_group(cluster, "g", KIND, MEMBER, {"member": b"share"}),
        5,
    ),
    "Heartbeat": (lambda cluster: groups.heartbeat(cluster, "g", MEMBER), 3),
    "LeaveGroup": (lambda cluster: groups.leave_group(cluster, "g", MEMBER), 3),
    "DescribeClientQuotas": (requests.client_quotas, 0),
    "DescribeUserScramCredentials": (requests.scram_credentials, 0),
}


@pytest.mark.parametrize(("call", "oldest"), CALLS.values(), ids=CALLS.keys())
def test_request_is_encoded_from_its_oldest_version_on_and_refused_below(
    call: Callable[[Cluster], object], oldest: int
) -> None:
    with pytest.raises(_SentError) as raised:
        call(Sending(ClientSettings(())))
    api, values = raised.value.args
    lowest, highest = known_versions(api)
    for version in range(lowest, oldest):
        with pytest.raises(ValueError, match=f"v{version} has no "):
            build_request(api, version, **values)
    for version in range(oldest, highest + 1):
        assert encode(build_request(api, version, **values))


def test_transactional_id_without_a_transaction_is_decoded() -> None:
    """Kio's entity has no value for a transaction without a start time."""
    state = {
        "error_code": ErrorCode.none,
        "transactional_id": "id",
        "transaction_state": "Empty",
        "transaction_timeout": 60_000,
        "transaction_start_time": -1,
        "producer_id": 9,
        "producer_epoch": 1,
        "topics": (),
    }
    values = {"throttle_time": 0, "transaction_states": [state]}
    body = encode(build_entity(DescribeTransactionsResponse, values))
    response: Any = decode_response(ApiKey.DESCRIBE_TRANSACTIONS, 0, memoryview(body), "broker")
    assert response.transaction_states[0].transaction_start_time == -1
