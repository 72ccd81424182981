"""Requests to a cluster as functions: transactions, offsets, producers, quotas, SCRAM users.

Each request goes to the broker that is responsible for it, and is retried until `timeout`
(`Cluster.retrying`); errors as `Cluster.request`. A request for many partitions goes to
their leaders one after the other. Results are plain values: kio's entities stay inside this module.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.static.protocol import RequestPayload

from sidetier.segments.batches import Producer
from sidetier.segments.cluster_state import GroupMember
from sidetier.segments.errors import KafkaApiError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import (
    UNKNOWN_EPOCH,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicPartition,
)
from sidetier.wire.cluster import (
    DEFAULT_TIMEOUT,
    AnyBroker,
    Broker,
    Cluster,
    Controller,
    GroupCoordinator,
    TransactionCoordinator,
)
from sidetier.wire.connection import Connection
from sidetier.wire.protocol import ApiKey, api_error

_T = TypeVar("_T")

EARLIEST: Final = -2
LATEST: Final = -1
MAX_TIMESTAMP: Final = -3
"""Special timestamps of ListOffsets."""

_NO_OPERATIONS: Final = -(2**31)
"""The bits of a broker that reports no operations."""
_OPERATION_BITS: Final = 31
_FIRST_WITH_OPERATIONS: Final = 8
"""Version of Metadata (KIP-430)."""
_CLIENT: Final = -1
"""Replica id of clients, as opposed to brokers."""


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """First record at or after a timestamp; all fields -1 if there is none.

    `leader_epoch` is also -1 from brokers that do not report it.
    """

    offset: Offset
    timestamp: int
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """End of the largest leader epoch up to the requested one; both fields -1 if unknown."""

    leader_epoch: LeaderEpoch
    end_offset: Offset


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """Committed offset of a group: the offset of the next record to read."""

    offset: Offset
    leader_epoch: LeaderEpoch = UNKNOWN_EPOCH
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Membership:
    """Identity of a group member since its last rebalance.

    The coordinator rejects commits of members of earlier generations (KIP-447), and of a member
    whose instance id another process has taken over (KIP-345).
    """

    generation: int
    member_id: str
    instance_id: str | None


NO_MEMBER: Final = Membership(-1, "", None)
"""Membership fields in requests of a process that is not a member."""


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """An existing group; `state` is `Empty`, `Stable` and so on, or "" from brokers before 2.6."""

    protocol_type: str
    state: str

    @property
    def has_members(self) -> bool:
        """Whether the group has members; False if the broker does not report a state."""
        return self.state not in {"Empty", "Dead", ""}


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """State that a partition's leader keeps of a producer.

    `transaction_start` is the first offset of its open transaction; None without one.
    """

    producer: Producer
    coordinator_epoch: int
    last_sequence: int
    last_timestamp: int
    transaction_start: Offset | None


@dataclass(frozen=True, slots=True)
class Transaction:
    """State of a transactional id at its coordinator; `state` is `Ongoing`, `Empty` and so on.

    `start_ms` is None if no transaction is open.
    """

    transactional_id: str
    state: str
    producer: Producer
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """Transactional id in the list of its coordinator."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: BrokerId


@dataclass(frozen=True, slots=True)
class ClientQuota:
    """Quotas of one entity, such as `{"user": "alice", "client-id": None}`; None is the default."""

    entity: Mapping[str, str | None]
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """SCRAM credential of a user for one mechanism. Brokers never send the password or its hash."""

    user: str
    mechanism: str
    iterations: int


def init_producer_id(
    cluster: Cluster,
    transactional_id: str | None = None,
    *,
    transaction_timeout: float = 60.0,
    timeout: float = DEFAULT_TIMEOUT,
) -> Producer:
    """Return a producer id; with a transactional id, abort the former owner's open transaction.

    From then on the former owner is fenced: brokers reject its requests with
    INVALID_PRODUCER_EPOCH or PRODUCER_FENCED.
    """
    route = AnyBroker() if transactional_id is None else TransactionCoordinator(transactional_id)
    response = cluster.request(
        route,
        ApiKey.INIT_PRODUCER_ID,
        timeout=timeout,
        transactional_id=transactional_id,
        transaction_timeout=round(transaction_timeout * 1000),
        producer_id=-1,
        producer_epoch=-1,
    )
    return Producer(response.producer_id, response.producer_epoch)


def add_partitions_to_txn(
    cluster: Cluster,
    transactional_id: str,
    producer: Producer,
    partitions: Collection[TopicPartition],
    *,
    timeout: float = DEFAULT_TIMEOUT,
) -> None:
    """Add partitions to the open transaction. Needed before the first Produce request for them."""
    cluster.request(
        TransactionCoordinator(transactional_id),
        ApiKey.ADD_PARTITIONS_TO_TXN,
        timeout=timeout,
        # The names of the message definition: from version 4 on, only brokers send this request.
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer.id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[
            {"name": topic, "partitions": tuple(numbers)}
            for topic, numbers in _numbers_by_topic(partitions).items()
        ],
    )


def add_offsets_to_txn(
    cluster: Cluster,
    transactional_id: str,
    producer: Producer,
    group: str,
    *,
    timeout: float = DEFAULT_TIMEOUT,
) -> None:
    """Add a group's offsets to the open transaction. Needed before `commit_offsets_in_txn`."""
    cluster.request(
        TransactionCoordinator(transactional_id),
        ApiKey.ADD_OFFSETS_TO_TXN,
        timeout=timeout,
        transactional_id=transactional_id,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        group_id=group,
    )


def commit_offsets_in_txn(  # noqa: PLR0913 - the fields of Kafka's request
    cluster: Cluster,
    transactional_id: str,
    producer: Producer,
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    *,
    membership: Membership = NO_MEMBER,
    timeout: float = DEFAULT_TIMEOUT,
) -> None:
    """Send TxnOffsetCommit: the offsets take effect when the transaction is committed.

    A group with members accepts them from NO_MEMBER, too.
    """
    cluster.request(
        GroupCoordinator(group),
        ApiKey.TXN_OFFSET_COMMIT,
        timeout=timeout,
        transactional_id=transactional_id,
        group_id=group,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        generation_id=membership.generation,
        member_id=membership.member_id,
        group_instance_id=membership.instance_id,
        topics=_committed_by_topic(offsets),
    )


def commit_offsets(
    cluster: Cluster,
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    *,
    membership: Membership = NO_MEMBER,
    timeout: float = DEFAULT_TIMEOUT,
) -> None:
    """Send OffsetCommit, outside a transaction. A group with members rejects it from NO_MEMBER."""
    cluster.request(
        GroupCoordinator(group),
        ApiKey.OFFSET_COMMIT,
        timeout=timeout,
        group_id=group,
        generation_id_or_member_epoch=membership.generation,
        member_id=membership.member_id,
        group_instance_id=membership.instance_id,
        topics=_committed_by_topic(offsets),
    )


def _committed_by_topic(offsets: Mapping[TopicPartition, CommittedOffset]) -> list[dict[str, Any]]:
    """Return the topics of OffsetCommit and TxnOffsetCommit, which have the same structure."""
    return [
        {
            "name": topic,
            "partitions": [
                {
                    "partition_index": number,
                    "committed_offset": committed.offset,
                    "committed_leader_epoch": committed.leader_epoch,
                    "committed_metadata": committed.metadata,
                }
                for number, committed in numbers.items()
            ],
        }
        for topic, numbers in _values_by_topic(offsets).items()
    ]


def end_txn(
    cluster: Cluster,
    transactional_id: str,
    producer: Producer,
    *,
    commit: bool,
    timeout: float = DEFAULT_TIMEOUT,
) -> None:
    """Commit or abort the open transaction.

    The coordinator writes the markers after its response; the next `add_partitions_to_txn` waits
    for them.
    """
    cluster.request(
        TransactionCoordinator(transactional_id),
        ApiKey.END_TXN,
        timeout=timeout,
        transactional_id=transactional_id,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        committed=commit,
    )


def list_offsets(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    timeout: float = DEFAULT_TIMEOUT,
) -> dict[TopicPartition, ListedOffset]:
    """Return the first offset at or after a timestamp in ms, or EARLIEST, LATEST, MAX_TIMESTAMP.

    LATEST is the high watermark; with READ_COMMITTED it is the last stable offset.
    """

    def attempt() -> dict[TopicPartition, ListedOffset]:
        listed: dict[TopicPartition, ListedOffset] = {}
        # Within the attempt, so that partitions whose leader has moved are grouped again.
        for broker, led in cluster.leaders(timestamps).items():
            fields = _listing({tp: timestamps[tp] for tp in led}, isolation)
            response = cluster.request_once(Broker(broker), ApiKey.LIST_OFFSETS, **fields)
            listed.update((tp, row) for tp, row, _ in _listed(response))
        return listed

    return cluster.retrying(attempt, timeout=timeout)


def list_offsets_at(
    leader: Connection,
    timestamps: Mapping[TopicPartition, int],
    *,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    timeout: float = DEFAULT_TIMEOUT,
) -> dict[TopicPartition, ListedOffset | KafkaApiError]:
    """Ask one broker, once, as `list_offsets`; errors are those of single partitions."""
    request = leader.build(ApiKey.LIST_OFFSETS, **_listing(timestamps, isolation))
    response = _asked(leader, request, timeout)
    return {
        tp: api_error(f"{leader} refuses ListOffsets for {tp}", code) if code else row
        for tp, row, code in _listed(response)
    }


def _asked(leader: Connection, request: RequestPayload, timeout: float) -> Any:  # noqa: ANN401 - kio's
    response: Any = leader.request(request, timeout=timeout)
    if getattr(response, "throttle_time", None):
        # The broker does not read from this connection for that time (KIP-219).
        leader.close()
    return response


def _listing(
    timestamps: Mapping[TopicPartition, int], isolation: IsolationLevel
) -> Mapping[str, Any]:
    """Return the fields of a ListOffsets request."""
    return {
        "replica_id": _CLIENT,
        "isolation_level": 1 if isolation is IsolationLevel.READ_COMMITTED else 0,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {"partition_index": number, "timestamp": timestamp}
                    for number, timestamp in numbers.items()
                ],
            }
            for topic, numbers in _values_by_topic(timestamps).items()
        ],
    }


def _listed(response: Any) -> Iterable[tuple[TopicPartition, ListedOffset, int]]:  # noqa: ANN401 - kio's
    """Yield partitions with their offsets and error codes."""
    for topic in response.topics:
        for partition in topic.partitions:
            yield (
                TopicPartition(topic.name, partition.partition_index),
                ListedOffset(
                    Offset(partition.offset),
                    partition.timestamp,
                    LeaderEpoch(getattr(partition, "leader_epoch", -1)),
                ),
                int(partition.error_code),
            )


def epoch_ends(
    cluster: Cluster,
    epochs: Mapping[TopicPartition, LeaderEpoch],
    *,
    timeout: float = DEFAULT_TIMEOUT,
) -> dict[TopicPartition, EpochEnd]:
    """Send OffsetForLeaderEpoch: return where these epochs end in the leaders' logs."""

    def attempt() -> dict[TopicPartition, EpochEnd]:
        ends: dict[TopicPartition, EpochEnd] = {}
        for broker, led in cluster.leaders(epochs).items():
            fields = _epoch_request({tp: epochs[tp] for tp in led})
            response = cluster.request_once(
                Broker(broker), ApiKey.OFFSET_FOR_LEADER_EPOCH, **fields
            )
            ends.update((tp, end) for tp, end, _ in _epoch_answers(response))
        return ends

    return cluster.retrying(attempt, timeout=timeout)


def epoch_end_at(
    leader: Connection, tp: TopicPartition, epoch: LeaderEpoch, *, timeout: float
) -> EpochEnd:
    """Ask one broker, once, as `epoch_ends`.

    Raises:
        KafkaApiError: It refuses the partition.
        BrokerError: It could not be asked.
    """
    request = leader.build(ApiKey.OFFSET_FOR_LEADER_EPOCH, **_epoch_request({tp: epoch}))
    ((_, end, code),) = _epoch_answers(_asked(leader, request, timeout))
    if code:
        raise api_error(f"{leader} refuses OffsetForLeaderEpoch for {tp}", code)
    return end


def _epoch_request(epochs: Mapping[TopicPartition, LeaderEpoch]) -> Mapping[str, Any]:
    return {
        "replica_id": _CLIENT,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {"partition": number, "leader_epoch": epoch}
                    for number, epoch in numbers.items()
                ],
            }
            for topic, numbers in _values_by_topic(epochs).items()
        ],
    }


def _epoch_answers(response: Any) -> Iterable[tuple[TopicPartition, EpochEnd, int]]:  # noqa: ANN401 - kio's
    for topic in response.topics:
        for row in topic.partitions:
            end = EpochEnd(LeaderEpoch(row.leader_epoch), Offset(row.end_offset))
            yield TopicPartition(topic.topic, row.partition), end, int(row.error_code)


def committed_offsets(
    cluster: Cluster,
    group: str,
    partitions: Collection[TopicPartition] | None = None,
    *,
    require_stable: bool = True,
    timeout: float = DEFAULT_TIMEOUT,
) -> dict[TopicPartition, CommittedOffset]:
    """Return the committed offsets of a group; partitions without a commit are left out.

    Args:
        cluster: The cluster.
        group: Name of the group. A missing group has no committed offsets.
        partitions: Partitions to return; None for all. For None, brokers silently leave out
            offsets that an open transaction commits for the first time: name the partitions where
            that matters.
        require_stable: Wait for open transactions that change the offsets. Brokers before 2.5 do
            not support this, which raises an error.
        timeout: Seconds for all attempts.
    """
    response = cluster.request(
        GroupCoordinator(group),
        ApiKey.OFFSET_FETCH,
        timeout=timeout,
        group_id=group,
        topics=None
        if partitions is None
        else [
            {"name": topic, "partition_indexes": tuple(numbers)}
            for topic, numbers in _numbers_by_topic(partitions).items()
        ],
        require_stable=require_stable,
    )
    return {
        TopicPartition(topic.name, partition.partition_index): CommittedOffset(
            Offset(partition.committed_offset),
            LeaderEpoch(getattr(partition, "committed_leader_epoch", -1)),
            partition.metadata or "",
        )
        for topic in response.topics
        for partition in topic.partitions
        if partition.committed_offset >= 0
    }


def list_groups(cluster: Cluster, *, timeout: float = DEFAULT_TIMEOUT) -> dict[str, ListedGroup]:
    """Send ListGroups to every broker; return the groups by name."""

    def attempt() -> dict[str, ListedGroup]:
        groups = {}
        # Each broker lists only the groups that it coordinates.
        for broker in cluster.metadata(()).brokers:
            response = cluster.request_once(Broker(broker), ApiKey.LIST_GROUPS)
            for group in response.groups:
                groups[group.group_id] = ListedGroup(
                    group.protocol_type, getattr(group, "group_state", "")
                )
        return groups

    return cluster.retrying(attempt, timeout=timeout)


def group_members(
    cluster: Cluster, group: str, *, timeout: float = DEFAULT_TIMEOUT
) -> tuple[GroupMember, ...]:
    """Return the members that a group has now. A missing group has none."""
    route = GroupCoordinator(group)
    missing = (ErrorCode.group_id_not_found,)
    response = cluster.request(
        route,
        ApiKey.DESCRIBE_GROUPS,
        timeout=timeout,
        tolerate=missing,
        groups=(group,),
        include_authorized_operations=False,
    )
    (described,) = response.groups
    # Brokers call a group of the protocol of KIP-848 dead or missing here.
    is_missing = described.error_code in missing or described.group_state == "Dead"
    if is_missing and cluster.connection(route).offered(ApiKey.CONSUMER_GROUP_DESCRIBE):
        response = cluster.request(
            route,
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            timeout=timeout,
            tolerate=(*missing, ErrorCode.unsupported_version),  # the feature is off
            group_ids=(group,),
            include_authorized_operations=False,
        )
        (described,) = response.groups
    return tuple(
        GroupMember(member.client_id, member.client_host.removeprefix("/"))
        for member in described.members
    )


def delete_topics(
    cluster: Cluster, topic_ids: Collection[UUID], *, timeout: float = DEFAULT_TIMEOUT
) -> None:
    """Delete topics by their ids (KIP-516). A topic that does not exist is not an error.

    A topic that was created later with the same name stays. Brokers before 2.8 do not support
    topic ids, which raises an error.
    """
    cluster.retrying(
        lambda: cluster.request_once(
            Controller(),
            ApiKey.DELETE_TOPICS,
            tolerate=(ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition),
            topics=[{"name": None, "topic_id": topic_id} for topic_id in topic_ids],
            timeout=round(timeout * 1000),
        ),
        timeout=timeout,
    )


def delete_group(cluster: Cluster, group: str, *, timeout: float = DEFAULT_TIMEOUT) -> None:
    """Delete a consumer group with its offsets. Idempotent: a missing group is not an error."""
    cluster.request(
        GroupCoordinator(group),
        ApiKey.DELETE_GROUPS,
        timeout=timeout,
        tolerate=(ErrorCode.group_id_not_found,),
        groups_names=(group,),
    )


def active_producers(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    *,
    timeout: float = DEFAULT_TIMEOUT,
) -> dict[TopicPartition, tuple[ActiveProducer, ...]]:
    """Send DescribeProducers: return the producers that the partitions' leaders know."""

    def attempt() -> dict[TopicPartition, tuple[ActiveProducer, ...]]:
        producers = {}
        for broker, led in cluster.leaders(partitions).items():
            response = cluster.request_once(
                Broker(broker),
                ApiKey.DESCRIBE_PRODUCERS,
                topics=[
                    {"name": topic, "partition_indexes": tuple(numbers)}
                    for topic, numbers in _numbers_by_topic(led).items()
                ],
            )
            for topic in response.topics:
                for partition in topic.partitions:
                    tp = TopicPartition(topic.name, partition.partition_index)
                    producers[tp] = tuple(map(_active_producer, partition.active_producers))
        return producers

    return cluster.retrying(attempt, timeout=timeout)


def _active_producer(state: Any) -> ActiveProducer:  # noqa: ANN401 - kio's
    start = state.current_txn_start_offset
    return ActiveProducer(
        producer=Producer(state.producer_id, state.producer_epoch),
        coordinator_epoch=state.coordinator_epoch,
        last_sequence=state.last_sequence,
        last_timestamp=state.last_timestamp,
        transaction_start=Offset(start) if start >= 0 else None,
    )


def abort_hung_transaction(
    cluster: Cluster,
    partition: TopicPartition,
    producer: ActiveProducer,
    *,
    timeout: float = DEFAULT_TIMEOUT,
) -> None:
    """Write an abort marker through a partition's leader, for a transaction without a coordinator.

    If a coordinator knows the transaction, this would leave its other partitions open: end such a
    transaction with `init_producer_id`. Brokers require the ClusterAction permission.
    """

    def attempt() -> None:
        (broker,) = cluster.leaders([partition])
        cluster.request_once(
            Broker(broker),
            ApiKey.WRITE_TXN_MARKERS,
            markers=[
                {
                    "producer_id": producer.producer.id,
                    "producer_epoch": producer.producer.epoch,
                    "transaction_result": False,
                    "topics": [
                        {
                            "name": partition.topic,
                            "partition_indexes": (partition.partition,),
                        }
                    ],
                    "coordinator_epoch": producer.coordinator_epoch,
                }
            ],
        )

    cluster.retrying(attempt, timeout=timeout)


def describe_transaction(
    cluster: Cluster, transactional_id: str, *, timeout: float = DEFAULT_TIMEOUT
) -> Transaction:
    """Return a transactional id's state; KafkaApiError TRANSACTIONAL_ID_NOT_FOUND if missing."""
    response = cluster.request(
        TransactionCoordinator(transactional_id),
        ApiKey.DESCRIBE_TRANSACTIONS,
        timeout=timeout,
        transactional_ids=(transactional_id,),
    )
    (state,) = response.transaction_states
    return Transaction(
        transactional_id=state.transactional_id,
        state=state.transaction_state,
        producer=Producer(state.producer_id, state.producer_epoch),
        timeout_ms=state.transaction_timeout,
        start_ms=state.transaction_start_time if state.transaction_start_time >= 0 else None,
        partitions=tuple(
            TopicPartition(topic.topic, number)
            for topic in state.topics
            for number in topic.partitions
        ),
    )


def list_transactions(
    cluster: Cluster, *, states: Collection[str] = (), timeout: float = DEFAULT_TIMEOUT
) -> tuple[ListedTransaction, ...]:
    """Return the transactional ids of all coordinators, or only those in `states` (`Ongoing`)."""

    def attempt() -> tuple[ListedTransaction, ...]:
        listed = []
        # Each broker lists only the transactional ids that it coordinates.
        for broker in cluster.metadata(()).brokers:
            response = cluster.request_once(
                Broker(broker),
                ApiKey.LIST_TRANSACTIONS,
                state_filters=tuple(states),
                producer_id_filters=(),
            )
            listed += [
                ListedTransaction(
                    transaction.transactional_id,
                    transaction.producer_id,
                    transaction.transaction_state,
                    broker,
                )
                for transaction in response.transaction_states
            ]
        return tuple(listed)

    return cluster.retrying(attempt, timeout=timeout)


def allowed_on_cluster(
    cluster: Cluster, *, timeout: float = DEFAULT_TIMEOUT
) -> frozenset[int] | None:
    """Return Kafka's numbers of the ACL operations that this client may use on the cluster.

    Returns:
        The numbers, such as 8 for DESCRIBE. None if the broker does not report them (before 2.3),
        or does not know them.
    """

    def attempt() -> frozenset[int] | None:
        api = ApiKey.DESCRIBE_CLUSTER
        values: dict[str, Any] = {"include_fenced_brokers": False}
        if cluster.connection(AnyBroker()).offered(api) is None:  # before 2.8
            api = ApiKey.METADATA
            if cluster.connection(AnyBroker()).version(api) < _FIRST_WITH_OPERATIONS:
                return None
            values = {"topics": (), "allow_auto_topic_creation": False}
            values["include_topic_authorized_operations"] = False
        values["include_cluster_authorized_operations"] = True
        response = cluster.request_once(AnyBroker(), api, **values)
        bits = getattr(response, "cluster_authorized_operations", _NO_OPERATIONS)
        if bits == _NO_OPERATIONS:
            return None
        return frozenset(number for number in range(_OPERATION_BITS) if bits >> number & 1)

    return cluster.retrying(attempt, timeout=timeout)


def client_quotas(cluster: Cluster, *, timeout: float = DEFAULT_TIMEOUT) -> tuple[ClientQuota, ...]:
    """Send DescribeClientQuotas: return all quotas of users, client ids and addresses."""
    response = cluster.request(
        AnyBroker(), ApiKey.DESCRIBE_CLIENT_QUOTAS, timeout=timeout, components=(), strict=False
    )
    return tuple(
        ClientQuota(
            entity={part.entity_type: part.entity_name for part in entry.entity},
            values={quota.key: quota.value for quota in entry.values},
        )
        for entry in response.entries or ()
    )


def scram_credentials(
    cluster: Cluster, *, timeout: float = DEFAULT_TIMEOUT
) -> tuple[ScramCredential, ...]:
    """Send DescribeUserScramCredentials: return the users with SCRAM credentials."""
    response = cluster.request(
        AnyBroker(), ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, timeout=timeout, users=None
    )
    return tuple(
        ScramCredential(
            result.user,
            _SCRAM_MECHANISMS.get(credential.mechanism, str(credential.mechanism)),
            credential.iterations,
        )
        for result in response.results
        for credential in result.credential_infos
    )


_SCRAM_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


def _numbers_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return topics


def _values_by_topic(values: Mapping[TopicPartition, _T]) -> dict[str, dict[int, _T]]:
    topics: dict[str, dict[int, _T]] = {}
    for (topic, number), value in values.items():
        topics.setdefault(topic, {})[number] = value
    return topics
