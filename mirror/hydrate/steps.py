"""Steps that rebuild a lost cluster from its archive: plan, replicate, verify and finish.

`topics.prepare` and `place.place` are the steps between the first two.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.objects.cluster_snapshots import (
    last_definitions,
    last_group_offsets,
    read_cluster_state,
)
from sidetier.leadership.cluster import as_texts
from sidetier.mirror.cluster_state.kafka_admin import KafkaClusterAdmin
from sidetier.mirror.cluster_state.restore import RestoredKind, restore_cluster_state
from sidetier.mirror.hydrate import finish, verify
from sidetier.mirror.hydrate.finish import OpenTransaction
from sidetier.mirror.hydrate.plan import HydratePlan, PlannedTopic, check_cluster
from sidetier.mirror.hydrate.survey import Cut, make_plan
from sidetier.mirror.hydrate.topics import (
    DescribedTopic,
    Properties,
    TopicAdmin,
    final_configs,
    not_restored,
)
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.names import is_internal_topic
from sidetier.segments.offsets import BrokerId, TopicPartition

_SYNC_SECONDS: Final = 7 * 24 * 3600.0
_SYNC_POLL_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is restored.

    Attributes:
        topics: Names of topics; empty for all but internal ones.
        cut: The end of the restored records.
        transaction_consistent: Lower the ends until no transaction is half restored.
    """

    topics: tuple[str, ...] = ()
    cut: Cut = field(default_factory=Cut)
    transaction_consistent: bool = False


@dataclass(frozen=True, slots=True)
class ReplicateReport:
    """Result of `replicate_topics`, or of its dry run.

    Attributes:
        aborted: The aborted transactions.
        replicas: The replicas of each partition.
        dry_run: Whether nothing was changed.
        producer_ids: Number of producer ids that were used up.
    """

    aborted: Sequence[OpenTransaction]
    replicas: Mapping[TopicPartition, tuple[int, ...]]
    dry_run: bool
    producer_ids: int = 0


@dataclass(frozen=True, slots=True)
class VerifyTopicsReport:
    """Result of `verify_topics`; `problems` are those outside any partition's records."""

    partitions: Sequence[verify.Verified]
    problems: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether the comparison has found a problem."""
        return bool(self.problems) or any(partition.problems for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class FinishReport:
    """Result of `finish_topics`, or of its dry run.

    Attributes:
        configs: Configuration of each topic; None for a config that gets the broker's default.
        refused: Configs that the brokers refuse, and why.
        restored: What was restored from snapshots of the lost cluster.
        not_restored: Configs that name brokers of the lost cluster.
        dry_run: Whether nothing was changed.
    """

    configs: Mapping[str, Mapping[str, str | None]]
    refused: Mapping[str, Mapping[str, str]]
    restored: Sequence[RestoredKind]
    not_restored: Mapping[str, Mapping[str, str]]
    dry_run: bool


def plan_restore(archive: ArchiveAccess, request: PlanRequest) -> HydratePlan:
    """Plan the restore from the archive alone.

    Raises:
        ConfigurationError: The request does not fit the archive, or nothing is archived.
        SidetierError: The archive cannot be read.
    """
    archive.require_directories()
    topics = request.topics

    def wanted(topic: str) -> bool:
        return topic in topics if topics else not is_internal_topic(topic)

    plan = replace(
        make_plan(
            archive,
            wanted,
            request.cut,
            _definitions(archive, topics, request.cut.until_ms),
            is_transaction_consistent=request.transaction_consistent,
        ),
        is_whole_cluster=not topics,
        planned_ms=time.time_ns() // 1_000_000,
    )
    missing = sorted(set(topics) - set(plan.topics))
    if missing or not plan.topics:
        raise ConfigurationError(
            f"nothing is archived of {', '.join(missing) or 'any topic'} in the archive of "
            f"cluster {archive.layout.cluster} at {archive.provider.default.url}"
        )
    return plan


def replicate_topics(
    plan: HydratePlan,
    properties: Properties,
    *,
    dry_run: bool = False,
    before_change: Callable[[], None] = lambda: None,
    on_missing: Callable[[int], None] = lambda _: None,
) -> ReplicateReport:
    """Abort open transactions, and give the placed topics their replicas.

    Args:
        plan: The plan, with the replication factors.
        properties: Properties of the new cluster's clients.
        dry_run: Change nothing.
        before_change: Called before the first change: the caller stores the plan, because
            `finish_topics` compares the replicas with it.
        on_missing: Called with the number of partitions that wait for replicas.

    Raises:
        ConfigurationError: A partition is not placed as planned.
        SidetierError: The brokers refuse, or a partition has no leader.
    """
    admin = TopicAdmin.connected(properties)
    existing = _placed_topics(plan, admin)
    with finish.connected(dict(properties)) as cluster:
        transactions = finish.archived_open_transactions(cluster, plan.partitions)
        replicas = finish.wanted_replicas(plan, existing, admin.brokers())
        report = ReplicateReport(transactions, replicas, dry_run=dry_run)
        if dry_run:
            return report
        before_change()
        finish.abort_transactions(cluster, transactions)
        finish.reassign(cluster, replicas)
        in_sync = _wait_for_replicas(
            lambda: finish.replicas_in_sync(cluster, plan), len(plan.partitions), admin, on_missing
        )
        remembered = finish.highest_remembered_producer_id(
            cluster,
            {
                partition.topic_partition: in_sync[partition.topic_partition]
                for partition in plan.partitions
                if partition.end > partition.start
            },
        )
        used = finish.pass_producer_ids(cluster, admin.brokers(), remembered)
    return replace(report, producer_ids=used)


def verify_topics(
    archive: ArchiveAccess,
    plan: HydratePlan,
    properties: Properties,
    *,
    produced: Collection[str] = (),
    parallel: int = 4,
) -> VerifyTopicsReport:
    """Compare all restored partitions with the archive.

    Args:
        archive: The archive.
        plan: The plan.
        properties: Properties of the new cluster's clients.
        produced: Topics to which a record is produced, to see that this works.
        parallel: Number of partitions that are compared at the same time.

    Raises:
        SidetierError: The archive or the brokers cannot be read.
    """
    check_cluster(plan, TopicAdmin.connected(properties).cluster_id())
    brokers = verify.BrokerSide(as_texts(dict(properties)))
    partitions = plan.partitions
    with closing(verify.ArchiveSide(archive)) as archived:
        rows = verify.verify_partitions(
            partitions,
            archived,
            brokers,
            lambda: finish.connected(dict(properties)),
            at_once=parallel,
        )
    problems = brokers.commit(
        {partition.topic_partition: partition.end for partition in partitions}
    )
    for partition in partitions:
        if partition.topic in produced:
            problem = brokers.produce(partition, b"sidetier hydrate verify")
            problems += [] if problem is None else [problem]
    return VerifyTopicsReport(rows, tuple(problems))


def finish_topics(
    archive: ArchiveAccess,
    plan: HydratePlan,
    properties: Properties,
    *,
    with_cluster: bool | None = None,
    dry_run: bool = False,
) -> FinishReport:
    """Set the topics' real configuration, and restore the cluster's state.

    Args:
        archive: The archive.
        plan: The plan.
        properties: Properties of the new cluster's clients.
        with_cluster: Whether to restore the cluster's state, such as groups and ACLs; None if the
            plan is of the whole cluster.
        dry_run: Change nothing.

    Raises:
        ConfigurationError: An earlier step was not completed.
        SidetierError: The brokers do not answer.
    """
    admin = TopicAdmin.connected(properties)
    existing = _placed_topics(plan, admin)
    with finish.connected(dict(properties)) as cluster:
        still_open = finish.archived_open_transactions(cluster, plan.partitions)
    finish.check_replicated(plan, existing, still_open)
    if with_cluster is None:
        with_cluster = plan.is_whole_cluster
    configs_by_topic = {
        name: final_configs(topic.configs) for name, topic in sorted(plan.topics.items())
    }
    refused = (
        {}
        if dry_run
        else {name: admin.configure(name, configs) for name, configs in configs_by_topic.items()}
    )
    restored = _restored(archive, properties, plan, dry_run=dry_run) if with_cluster else []
    return FinishReport(configs_by_topic, refused, restored, not_restored(plan), dry_run=dry_run)


def _placed_topics(plan: HydratePlan, admin: TopicAdmin) -> dict[str, DescribedTopic]:
    """Return the brokers' description of the plan's topics, once all partitions are placed."""
    check_cluster(plan, admin.cluster_id())
    existing = admin.wait_until_led({name: topic.partitions for name, topic in plan.topics.items()})
    finish.check_topics(plan, existing)
    finish.check_placed(
        plan, admin.log_ranges(partition.topic_partition for partition in plan.partitions)
    )
    return existing


def _wait_for_replicas(
    replicas_in_sync: Callable[[], dict[TopicPartition, tuple[BrokerId, ...]]],
    partitions: int,
    admin: TopicAdmin,
    on_missing: Callable[[int], None],
) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """Wait until `partitions` partitions have all replicas in sync."""
    in_sync: dict[TopicPartition, tuple[BrokerId, ...]] = {}
    last_missing = 0

    def is_done() -> bool:
        nonlocal in_sync, last_missing
        in_sync = replicas_in_sync()
        missing = partitions - len(in_sync)
        if missing not in (0, last_missing):
            on_missing(missing)
        last_missing = missing
        return missing == 0

    admin.wait(is_done, _SYNC_SECONDS, "replicas to catch up", _SYNC_POLL_SECONDS)
    return in_sync


def _restored(
    archive: ArchiveAccess, properties: Properties, plan: HydratePlan, *, dry_run: bool
) -> list[RestoredKind]:
    """Restore the lost cluster's state from its snapshots, as of the plan's time.

    A plan with named topics may be for deleted topics, whose group offsets the cluster no longer
    has. Their offsets come from the last snapshots that contain them.
    """
    store = archive.default_store
    state = read_cluster_state(store, archive.layout, plan.until_ms)
    if not plan.is_whole_cluster:
        # Leave out offsets that groups have committed since the topics were recreated.
        until_ms = plan.planned_ms if plan.until_ms is None else plan.until_ms
        offsets = last_group_offsets(store, archive.layout, plan.topics, until_ms)
        state = replace(state, group_offsets=offsets)
    client = as_texts(dict(properties))
    admin = KafkaClusterAdmin(client.pop("bootstrap.servers"), client)
    return restore_cluster_state(state, admin, dry_run=dry_run)


def _definitions(
    archive: ArchiveAccess, topics: Collection[str], until_ms: int | None
) -> dict[str, PlannedTopic]:
    """Return these topics' definitions in snapshots, deleted ones included, or else all topics'."""
    store = archive.default_store
    if topics:
        definitions = last_definitions(store, archive.layout, dict.fromkeys(topics), until_ms)
    else:
        state = read_cluster_state(store, archive.layout, until_ms)
        definitions = {} if state.topics is None else dict(state.topics.topics)
    return {
        name: PlannedTopic(
            definition.partitions, definition.replication_factor, dict(definition.configs)
        )
        for name, definition in definitions.items()
    }
