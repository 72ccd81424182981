"""Requests to a cluster as functions: transactions, offsets, producers, quotas, SCRAM users.

Each goes to the broker that answers it, and is tried again until `timeout` (`Cluster.retrying`);
errors are those of `Cluster.request`. A request for many partitions goes to several leaders, one
after the other. kio's entities do not get out of here.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import (
    UNKNOWN_EPOCH,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicPartition,
)
from sidetier.wire.batches import Producer
from sidetier.wire.cluster import (
    DEFAULT_TIMEOUT,
    AnyBroker,
    Broker,
    Cluster,
    Controller,
    GroupCoordinator,
    TransactionCoordinator,
)
from sidetier.wire.protocol import ApiKey

_T = TypeVar("_T")

EARLIEST: Final = -2
LATEST: Final = -1
MAX_TIMESTAMP: Final = -3
"""Special timestamps of ListOffsets."""

_CLIENT: Final = -1
"""The replica id of clients that are no broker."""


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """The first record at or after a timestamp; -1 where there is none or the broker is too old."""

    offset: Offset
    timestamp: int
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Where the largest leader epoch up to the one asked for ends; both -1 where unknown."""

    leader_epoch: LeaderEpoch
    end_offset: Offset


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What a group has committed: the offset of the next record it reads."""

    offset: Offset
    leader_epoch: LeaderEpoch = UNKNOWN_EPOCH
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Membership:
    """A member of a group, since its last rebalance.

    The coordinator refuses what members of former generations commit (KIP-447), and a member whose
    instance id another process has taken over (KIP-345).
    """

    generation: int
    member_id: str
    instance_id: str | None


NO_MEMBER: Final = Membership(-1, "", None)
"""What requests of a process that is no member have in these fields."""


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group that exists; `state` is `Empty`, `Stable` and so on, and "" for brokers below 2.6."""

    protocol_type: str
    state: str

    @property
    def has_members(self) -> bool:
        """Whether the group has members; False where the broker does not tell."""
        return self.state not in {"Empty", "Dead", ""}


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """What a leader remembers of a producer in one partition.

    `transaction_start` is the first offset of its open transaction, None without one.
    """

    producer: Producer
    coordinator_epoch: int
    last_sequence: int
    last_timestamp: int
    transaction_start: Offset | None


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id as its coordinator knows it; `state` is `Ongoing`, `Empty` and so on.

    `start_ms` is None where the coordinator knows of no start.
    """

    transactional_id: str
    state: str
    producer: Producer
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """A transactional id in the list of its coordinator."""

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
    """That a user has a password for one mechanism; brokers never tell the password or its hash."""

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
    """Get a producer id; with a transactional id, abort what its former owner left open.

    From then on the former owner is fenced: its requests are refused with INVALID_PRODUCER_EPOCH
    or PRODUCER_FENCED.
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
    """Make partitions part of the open transaction, before the first Produce request for them."""
    cluster.request(
        TransactionCoordinator(transactional_id),
        ApiKey.ADD_PARTITIONS_TO_TXN,
        timeout=timeout,
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
    """Make a group's offsets part of the open transaction, before `commit_offsets_in_txn`."""
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
    """TxnOffsetCommit: the offsets become the group's when the transaction is committed.

    A group with members takes them from NO_MEMBER, too.
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
    """OffsetCommit outside of a transaction; from NO_MEMBER a group with members refuses it."""
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
    """The topics of OffsetCommit and TxnOffsetCommit, which are alike."""
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

    Markers are written after the answer: the next `add_partitions_to_txn` waits for them.
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
    """The first offset at or after a timestamp (ms), or EARLIEST, LATEST, MAX_TIMESTAMP.

    LATEST is the high watermark, with READ_COMMITTED the last stable offset.
    """
    level = 1 if isolation is IsolationLevel.READ_COMMITTED else 0

    def attempt() -> dict[TopicPartition, ListedOffset]:
        listed: dict[TopicPartition, ListedOffset] = {}
        for broker, led in cluster.leaders(timestamps).items():
            topics = _values_by_topic({tp: timestamps[tp] for tp in led})
            response = cluster.request_once(
                Broker(broker),
                ApiKey.LIST_OFFSETS,
                replica_id=_CLIENT,
                isolation_level=level,
                topics=[
                    {
                        "name": topic,
                        "partitions": [
                            {"partition_index": number, "timestamp": timestamp}
                            for number, timestamp in numbers.items()
                        ],
                    }
                    for topic, numbers in topics.items()
                ],
            )
            listed.update(_listed(response))
        return listed

    return cluster.retrying(attempt, timeout=timeout)


def _listed(response: Any) -> Iterable[tuple[TopicPartition, ListedOffset]]:  # noqa: ANN401 - kio's
    for topic in response.topics:
        for found in topic.partitions:
            yield (
                TopicPartition(topic.name, found.partition_index),
                ListedOffset(
                    Offset(found.offset),
                    found.timestamp,
                    LeaderEpoch(getattr(found, "leader_epoch", -1)),
                ),
            )


def epoch_ends(
    cluster: Cluster,
    epochs: Mapping[TopicPartition, LeaderEpoch],
    *,
    timeout: float = DEFAULT_TIMEOUT,
) -> dict[TopicPartition, EpochEnd]:
    """OffsetForLeaderEpoch: where the leaders' logs left these epochs."""

    def attempt() -> dict[TopicPartition, EpochEnd]:
        ends = {}
        for broker, led in cluster.leaders(epochs).items():
            topics = _values_by_topic({tp: epochs[tp] for tp in led})
            response = cluster.request_once(
                Broker(broker),
                ApiKey.OFFSET_FOR_LEADER_EPOCH,
                replica_id=_CLIENT,
                topics=[
                    {
                        "topic": topic,
                        "partitions": [
                            {"partition": number, "leader_epoch": epoch}
                            for number, epoch in numbers.items()
                        ],
                    }
                    for topic, numbers in topics.items()
                ],
            )
            for topic in response.topics:
                for found in topic.partitions:
                    tp = TopicPartition(topic.topic, found.partition)
                    ends[tp] = EpochEnd(LeaderEpoch(found.leader_epoch), Offset(found.end_offset))
        return ends

    return cluster.retrying(attempt, timeout=timeout)


def committed_offsets(
    cluster: Cluster,
    group: str,
    partitions: Collection[TopicPartition] | None = None,
    *,
    require_stable: bool = True,
    timeout: float = DEFAULT_TIMEOUT,
) -> dict[TopicPartition, CommittedOffset]:
    """What a group has committed; partitions without a commit are left out.

    Args:
        cluster: The cluster.
        group: The group; one that does not exist has committed nothing.
        partitions: Which ones; None for all. Brokers leave out of "all" what an open transaction
            commits for the first time, without an error: name the partitions where that matters.
        require_stable: Wait for open transactions that change the offsets; brokers before 2.5
            cannot, and are refused.
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
        TopicPartition(topic.name, found.partition_index): CommittedOffset(
            Offset(found.committed_offset),
            LeaderEpoch(getattr(found, "committed_leader_epoch", -1)),
            found.metadata or "",
        )
        for topic in response.topics
        for found in topic.partitions
        if found.committed_offset >= 0
    }


def list_groups(cluster: Cluster, *, timeout: float = DEFAULT_TIMEOUT) -> dict[str, ListedGroup]:
    """ListGroups of every broker: the groups that exist, by name."""

    def attempt() -> dict[str, ListedGroup]:
        groups = {}
        for broker in cluster.metadata(()).brokers:
            response = cluster.request_once(Broker(broker), ApiKey.LIST_GROUPS)
            for group in response.groups:
                groups[group.group_id] = ListedGroup(
                    group.protocol_type, getattr(group, "group_state", "")
                )
        return groups

    return cluster.retrying(attempt, timeout=timeout)


def delete_topics(
    cluster: Cluster, topic_ids: Collection[UUID], *, timeout: float = DEFAULT_TIMEOUT
) -> None:
    """Delete topics by their ids (KIP-516), so that a topic of the same name that was created since
    stays. A topic that does not exist any more is not an error.

    Brokers before 2.8 know no ids, and are refused.
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
    """Delete a consumer group with its offsets. A group that does not exist is not an error."""
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
    """DescribeProducers: the producers that the partitions' leaders remember."""

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
                for found in topic.partitions:
                    tp = TopicPartition(topic.name, found.partition_index)
                    producers[tp] = tuple(map(_active_producer, found.active_producers))
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
    """Write an abort marker to a partition's leader, for a transaction that no coordinator knows.

    For transactions that a coordinator does know it would leave the other partitions open: end
    those with `init_producer_id`. Brokers ask for the ClusterAction permission.
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
    """One transactional id; KafkaApiError TRANSACTIONAL_ID_NOT_FOUND where there is none."""
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
    """The transactional ids of all coordinators, or those in one of `states` (`Ongoing`)."""

    def attempt() -> tuple[ListedTransaction, ...]:
        listed = []
        for broker in cluster.metadata(()).brokers:
            response = cluster.request_once(
                Broker(broker),
                ApiKey.LIST_TRANSACTIONS,
                state_filters=tuple(states),
                producer_id_filters=(),
            )
            listed += [
                ListedTransaction(
                    found.transactional_id, found.producer_id, found.transaction_state, broker
                )
                for found in response.transaction_states
            ]
        return tuple(listed)

    return cluster.retrying(attempt, timeout=timeout)


def client_quotas(cluster: Cluster, *, timeout: float = DEFAULT_TIMEOUT) -> tuple[ClientQuota, ...]:
    """DescribeClientQuotas: every quota of users, client ids and addresses."""
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
    """DescribeUserScramCredentials: which users log in with SCRAM."""
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
