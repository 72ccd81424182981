"""Make the restored topics ready for use, after the first start with placed segments.

Every function may be called again after a kill: each checks what is left to do.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sidetier.mirror.hydrate.plan import HydratePlan, PlannedPartition
from sidetier.mirror.hydrate.topics import DescribedTopic
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import BrokerId, OffsetRange, TopicPartition
from sidetier.wire.cluster import Broker, Cluster, Controller
from sidetier.wire.protocol import ApiKey
from sidetier.wire.requests import (
    ActiveProducer,
    abort_hung_transaction,
    active_producers,
)
from sidetier.wire.settings import ClientSettings

_UNUSED_TIMEOUT_MS: Final = 60_000
_MAX_PRODUCER_IDS: Final = 5_000_000
"""Requests for a producer id, at about 5,000 a second."""


def connected(properties: Mapping[str, str | int | float | bool]) -> Cluster:
    """Open a client of the new cluster with librdkafka's properties. The caller closes it.

    Raises:
        ConfigurationError: A property is not supported.
    """
    return Cluster(ClientSettings.from_properties(properties))


def check_topics(plan: HydratePlan, existing: Mapping[str, DescribedTopic]) -> None:
    """Check that the topics are those that were created for the plan.

    Args:
        plan: The plan.
        existing: The topics as the brokers describe them.

    Raises:
        ConfigurationError: A topic was deleted or created again.
    """
    _refuse(
        [
            f"topic {name} is not the topic that `sidetier hydrate prepare` created"
            for name, prepared in plan.prepared.items()
            if name not in existing or existing[name].topic_id != prepared.topic_id
        ]
    )


def check_placed(plan: HydratePlan, logs: Mapping[TopicPartition, OffsetRange]) -> None:
    """Check that the brokers serve the offsets that the plan has placed.

    A higher log start is accepted: a step may be repeated after the broker deleted old segments.

    Args:
        plan: The plan, with its topics created.
        logs: Log start offset and high watermark of each partition.

    Raises:
        ConfigurationError: A partition begins before its planned start, or ends before its end.
    """
    problems = []
    for partition in plan.partitions:
        log = logs[partition.topic_partition]
        if log.start < partition.start or log.end < partition.end:
            problems.append(
                f"{partition.topic_partition} holds offsets {log}, the plan has "
                f"[{partition.start}, {partition.end}): was `sidetier hydrate place` run on its "
                "broker's host?"
            )
    _refuse(problems)


def check_replicated(
    plan: HydratePlan,
    existing: Mapping[str, DescribedTopic],
    still_open: Sequence["OpenTransaction"],
) -> None:
    """Check that the step `replicate` was completed.

    Args:
        plan: The plan, with the replication factors that were used.
        existing: The topics as the brokers describe them.
        still_open: The archived transactions that are open (`archived_open_transactions`).

    Raises:
        ConfigurationError: A partition has too few replicas, or an open transaction.
    """
    problems = [
        f"{name}-{number} has {len(replicas)} of {topic.factor} replicas"
        for name, topic in plan.topics.items()
        for number, replicas in enumerate(existing[name].replicas)
        if len(replicas) < topic.factor
    ]
    problems += [
        f"{transaction.partition} has an open transaction of the archive"
        for transaction in still_open
    ]
    _refuse([f"{problem}: run `sidetier hydrate replicate` first" for problem in problems])


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ConfigurationError(problems[0] + more)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An archived transaction in one partition that no marker ends."""

    partition: TopicPartition
    producer: ActiveProducer


def archived_open_transactions(
    cluster: Cluster, partitions: Sequence[PlannedPartition]
) -> list[OpenTransaction]:
    """Return open transactions that began in placed records; their coordinator no longer exists."""
    by_tp = {
        partition.topic_partition: partition
        for partition in partitions
        if partition.end > partition.start
    }
    if not by_tp:
        return []
    return [
        OpenTransaction(tp, producer)
        for tp, producers in sorted(active_producers(cluster, list(by_tp)).items())
        for producer in producers
        if producer.transaction_start is not None and producer.transaction_start < by_tp[tp].end
    ]


def abort_transactions(cluster: Cluster, transactions: Iterable[OpenTransaction]) -> None:
    """Write an abort marker for each transaction. Without it, read-committed consumers are stuck.

    The marker adds one offset to the partition.
    """
    for transaction in transactions:
        abort_hung_transaction(cluster, transaction.partition, transaction.producer)


def wanted_replicas(
    plan: HydratePlan,
    existing: Mapping[str, DescribedTopic],
    brokers: Mapping[int, str | None],
) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the wanted replicas of each partition that has too few.

    The present replicas come first. Then come brokers in the racks with the fewest replicas of the
    partition, by ascending id after the first replica's.

    Args:
        plan: The plan, with the replication factors.
        existing: The topics as the brokers describe them.
        brokers: The racks of the brokers that are up, by id; None for a broker without a rack.

    Raises:
        ConfigurationError: There are fewer brokers than replicas.
    """
    wanted: dict[TopicPartition, tuple[int, ...]] = {}
    for name, topic in plan.topics.items():
        if topic.factor > len(brokers):
            raise ConfigurationError(
                f"topic {name} had {topic.factor} replicas, but only {len(brokers)} brokers are "
                "up; start the others, or give --replication-factor"
            )
        for number, present in enumerate(existing[name].replicas):
            if len(present) < topic.factor:
                wanted[TopicPartition(name, number)] = _more_replicas(
                    present, topic.factor, brokers
                )
    return wanted


def _more_replicas(
    present: Sequence[int], factor: int, brokers: Mapping[int, str | None]
) -> tuple[int, ...]:
    replicas = list(present)
    others = sorted(set(brokers) - set(present), key=lambda broker: (broker < present[0], broker))

    def in_rack_of(broker: int) -> int:
        rack = brokers[broker]
        return sum(rack is not None and brokers.get(replica) == rack for replica in replicas)

    while len(replicas) < factor:
        chosen = min(others, key=in_rack_of)  # ties: the first in the order of `others`
        others.remove(chosen)
        replicas.append(chosen)
    return tuple(replicas)


def reassign(cluster: Cluster, wanted: Mapping[TopicPartition, tuple[int, ...]]) -> None:
    """Request these replicas. The brokers then copy the records to the new replicas."""
    topics: dict[str, list[TopicPartition]] = {}
    for tp in sorted(wanted):
        topics.setdefault(tp.topic, []).append(tp)
    for name, tps in topics.items():
        cluster.request(
            Controller(),
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            topics=[
                {
                    "name": name,
                    "partitions": [
                        {"partition_index": tp.partition, "replicas": wanted[tp]} for tp in tps
                    ],
                }
            ],
        )


def replicas_in_sync(
    cluster: Cluster, plan: HydratePlan
) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """Return the replicas of each partition that has as many as planned, all in sync.

    The number must be checked too: until a broker has learned of a reassignment, it describes the
    former replicas, all of which are in sync.
    """
    described = cluster.metadata(sorted(plan.topics)).topics
    return {
        TopicPartition(name, number): partition.replicas
        for name, topic in described.items()
        for number, partition in topic.partitions.items()
        if len(partition.in_sync) >= plan.topics[name].factor
        and set(partition.replicas) == set(partition.in_sync)
    }


def highest_remembered_producer_id(
    cluster: Cluster, partitions: Mapping[TopicPartition, Iterable[BrokerId]]
) -> int:
    """Return the highest producer id that a replica remembers from archived records; -1 for none.

    The placed snapshot has emptied the leader's memory, but a replica that has copied the archived
    records remembers their producers.
    """
    by_broker: dict[BrokerId, dict[str, list[int]]] = {}
    for tp, replicas in partitions.items():
        for broker in replicas:
            by_broker.setdefault(broker, {}).setdefault(tp.topic, []).append(tp.partition)
    highest = -1
    for broker, topics in by_broker.items():
        response = cluster.request(
            Broker(broker),
            ApiKey.DESCRIBE_PRODUCERS,
            topics=[
                {"name": name, "partition_indexes": tuple(sorted(numbers))}
                for name, numbers in topics.items()
            ],
        )
        for topic in response.topics:
            for partition in topic.partitions:
                ids = (producer.producer_id for producer in partition.active_producers)
                highest = max(highest, max(ids, default=-1))
    return highest


def pass_producer_ids(
    cluster: Cluster,
    brokers: Iterable[int],
    highest: int,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Request producer ids until every broker assigns ids above `highest`.

    If a producer of the new cluster got a remembered id, the broker would refuse its records or,
    worse, acknowledge them and drop them as duplicates.

    Args:
        cluster: The new cluster.
        brokers: The ids of the brokers.
        highest: The highest remembered producer id.
        progress: Called with each producer id that was assigned.

    Returns:
        Number of ids that were used up.

    Raises:
        ConfigurationError: There are too many ids to use up.
    """
    used = 0
    # Each broker assigns ids from blocks of its own, so every one has to pass.
    for broker in sorted(brokers):
        while True:
            response = cluster.request(
                Broker(BrokerId(broker)),
                ApiKey.INIT_PRODUCER_ID,
                transactional_id=None,
                transaction_timeout=_UNUSED_TIMEOUT_MS,
                producer_id=-1,
                producer_epoch=-1,
            )
            used += 1
            progress(int(response.producer_id))
            if response.producer_id > highest:
                break
            if highest - response.producer_id > _MAX_PRODUCER_IDS:
                raise ConfigurationError(
                    f"archived records have producer ids up to {highest}, and the new cluster "
                    f"assigns {response.producer_id}: run this again once replicas have "
                    "forgotten these producers, producer.id.expiration.ms (1 day by default, can "
                    "be changed while brokers run) after their last records"
                )
    return used
