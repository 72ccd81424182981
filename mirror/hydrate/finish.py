"""After the first start with placed segments: what makes the restored topics fit for use.

Every function may be called again after a kill: each looks at what is left to do.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sidetier.mirror.hydrate.plan import HydratePlan, PlannedPartition
from sidetier.mirror.hydrate.topics import DescribedTopic
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import BrokerId, TopicPartition
from sidetier.wire.cluster import Broker, Cluster, Controller
from sidetier.wire.protocol import ApiKey
from sidetier.wire.requests import (
    ActiveProducer,
    abort_hung_transaction,
    active_producers,
)
from sidetier.wire.settings import ClientSettings

_UNUSED_TIMEOUT_MS: Final = 60_000
_MOST_PRODUCER_IDS: Final = 5_000_000
"""Requests for a producer id, about 5,000 a second."""


def connected(properties: Mapping[str, str | int | float | bool]) -> Cluster:
    """The new cluster, by librdkafka's properties; the caller closes it.

    Raises:
        ConfigurationError: a property is not supported.
    """
    return Cluster(ClientSettings.from_properties(properties))


def check_topics(plan: HydratePlan, existing: Mapping[str, DescribedTopic]) -> None:
    """Check that the topics are those that were created for the plan.

    Args:
        plan: the plan.
        existing: the topics as the brokers describe them.

    Raises:
        ConfigurationError: a topic was deleted or created again.
    """
    _refuse(
        f"topic {name} is not the one that `sidetier hydrate prepare` created"
        for name, prepared in plan.prepared.items()
        if name not in existing or existing[name].topic_id != prepared.topic_id
    )


def check_placed(plan: HydratePlan, ends: Mapping[TopicPartition, tuple[int, int]]) -> None:
    """Check that the brokers serve what the plan has placed.

    A later log start is accepted: a step may be repeated after the broker deleted old segments.

    Args:
        plan: the plan, with its topics created.
        ends: log start offset and high watermark of each partition.

    Raises:
        ConfigurationError: a partition begins before its planned start, or ends before its end.
    """
    problems = []
    for partition in plan.partitions:
        start, end = ends[partition.topic_partition]
        if start < partition.start or end < partition.end:
            problems.append(
                f"{partition.topic_partition} holds offsets [{start}, {end}), the plan has "
                f"[{partition.start}, {partition.end}): was `sidetier hydrate place` run on its "
                "broker's host?"
            )
    _refuse(problems)


def check_replicated(
    plan: HydratePlan,
    existing: Mapping[str, DescribedTopic],
    still_open: Sequence["OpenTransactionFound"],
) -> None:
    """Check that the step `replicate` was completed.

    Args:
        plan: the plan, with the replication factors that were used.
        existing: the topics as the brokers describe them.
        still_open: the archived transactions that are open (`archived_open_transactions`).

    Raises:
        ConfigurationError: a partition has too few replicas, or an open transaction.
    """
    problems = [
        f"{name}-{number} has {len(replicas)} of {topic.factor} replicas"
        for name, topic in plan.topics.items()
        for number, replicas in enumerate(existing[name].replicas)
        if len(replicas) < topic.factor
    ]
    problems += [f"{one.partition} has an open transaction of the archive" for one in still_open]
    _refuse(f"{problem}: run `sidetier hydrate replicate` first" for problem in problems)


def _refuse(found: Iterable[str]) -> None:
    problems = list(found)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ConfigurationError(problems[0] + more)


@dataclass(frozen=True, slots=True)
class OpenTransactionFound:
    """An archived transaction without an end, in one partition."""

    partition: TopicPartition
    producer: ActiveProducer


def archived_open_transactions(
    cluster: Cluster, partitions: Sequence[PlannedPartition]
) -> list[OpenTransactionFound]:
    """The open transactions that began in what was placed: their coordinator is gone for good."""
    by_tp = {one.topic_partition: one for one in partitions if one.end > one.start}
    if not by_tp:
        return []
    return [
        OpenTransactionFound(tp, producer)
        for tp, producers in sorted(active_producers(cluster, list(by_tp)).items())
        for producer in producers
        if producer.transaction_start is not None and producer.transaction_start < by_tp[tp].end
    ]


def abort_transactions(cluster: Cluster, found: Iterable[OpenTransactionFound]) -> None:
    """Write an abort marker for each. Without it no read-committed consumer gets any further.

    The marker adds one offset to the partition.
    """
    for one in found:
        abort_hung_transaction(cluster, one.partition, one.producer)


def wanted_replicas(
    plan: HydratePlan,
    existing: Mapping[str, DescribedTopic],
    brokers: Mapping[int, str | None],
) -> dict[TopicPartition, tuple[int, ...]]:
    """The replicas of each partition that has too few.

    The present ones come first, then brokers of the racks with the fewest replicas of it,
    by rising id after that of the first replica.

    Args:
        plan: the plan, with the replication factors.
        existing: the topics as the brokers describe them.
        brokers: the racks of the brokers that are up, by id; None for a broker without one.

    Raises:
        ConfigurationError: there are fewer brokers than replicas.
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
        return sum(rack is not None and brokers.get(one) == rack for one in replicas)

    while len(replicas) < factor:
        chosen = min(others, key=in_rack_of)  # the first of those with the fewest
        others.remove(chosen)
        replicas.append(chosen)
    return tuple(replicas)


def reassign(cluster: Cluster, wanted: Mapping[TopicPartition, tuple[int, ...]]) -> None:
    """Ask for these replicas; the brokers copy the records to the new ones afterwards."""
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
    """The replicas of each partition that has as many as planned, all of them in sync.

    Their number counts too: until a broker has heard of a reassignment, it describes the former
    replicas, and all of those are in sync.
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
    """The highest producer id that any replica remembers from the archived records; -1 for none.

    The leader's memory was emptied by the placed snapshot, but a replica that has copied the
    archived records remembers their producers.
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
    """Use up producer ids until every broker hands out ids above `highest`.

    A producer of the new cluster that got a remembered id would be refused, or, worse, its records
    would be acknowledged and dropped as duplicates.

    Returns:
        How many ids were used up.

    Raises:
        ConfigurationError: there are too many of them.
    """
    used = 0
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
            if highest - response.producer_id > _MOST_PRODUCER_IDS:
                raise ConfigurationError(
                    f"archived records have producer ids up to {highest}, and the new cluster "
                    f"hands out {response.producer_id}: run this again once replicas have "
                    "forgotten these producers, producer.id.expiration.ms (1 day by default, can "
                    "be changed while brokers run) after their last records"
                )
    return used
