"""Steps of `sidetier hydrate` that read records or transactions: plan, replicate, verify, finish.

Needs the packages of the extras `consumer` and `mirror`.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from sidetier.archive.access import ArchiveAccess, require_directory
from sidetier.archive.objects.cluster_snapshots import (
    last_definitions,
    last_group_offsets,
    read_cluster_state,
)
from sidetier.cli import exits
from sidetier.cli.hydrate.placing import CONNECTIONS, cluster_properties, topic_admin
from sidetier.cli.hydrate.view import FinishedResult, PlanResult, ReplicatedResult, VerifiedResult
from sidetier.cli.output import OutputFormat, emit
from sidetier.cli.stores import open_archive
from sidetier.config.model import Config
from sidetier.config.times import parse_time
from sidetier.leadership.cluster import as_texts
from sidetier.mirror.cluster_state.kafka_admin import KafkaClusterAdmin
from sidetier.mirror.cluster_state.restore import RestoredKind, restore_cluster_state
from sidetier.mirror.hydrate import finish, verify
from sidetier.mirror.hydrate.finish import OpenTransaction
from sidetier.mirror.hydrate.plan import (
    HydratePlan,
    PlannedTopic,
    check_cluster,
    read_plan,
    write_plan,
)
from sidetier.mirror.hydrate.survey import Cut, make_plan
from sidetier.mirror.hydrate.topics import DescribedTopic, TopicAdmin, final_configs, not_restored
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.names import is_internal_topic
from sidetier.segments.offsets import BrokerId, Offset, TopicPartition
from sidetier.uploader.clock import SYSTEM_CLOCK

_SYNC_SECONDS: Final = 7 * 24 * 3600.0
_SYNC_POLL_SECONDS: Final = 1.0


def plan_restore(  # noqa: PLR0913 -- one parameter for each option
    config: Config,
    plan_file: Path,
    topics: Collection[str],
    until: str | None,
    until_offsets: Path | None,
    output: OutputFormat,
    *,
    transaction_consistent: bool,
    dry_run: bool,
) -> int:
    """Plan the restore from the archive alone; return the exit code.

    Raises:
        ConfigurationError: The plan's file exists, an option does not fit, or nothing is archived.
        SidetierError: The archive cannot be read.
    """
    if plan_file.exists() and not dry_run:
        raise ConfigurationError(
            f"{plan_file} exists: a plan is never replaced, because steps may have used it; give "
            "another name, or remove it"
        )

    def wanted(topic: str) -> bool:
        return topic in topics if topics else not is_internal_topic(topic)

    with open_archive(config, connections=CONNECTIONS) as archive:
        for endpoint in archive.provider.endpoints:
            require_directory(endpoint.url)
        cut = _cut(until, until_offsets)
        plan = replace(
            make_plan(
                archive,
                wanted,
                cut,
                _definitions(archive, topics, cut.until_ms),
                is_transaction_consistent=transaction_consistent,
            ),
            is_whole_cluster=not topics,
            planned_ms=int(SYSTEM_CLOCK.wall() * 1000),
        )
    missing = sorted(set(topics) - set(plan.topics))
    if missing or not plan.topics:
        raise ConfigurationError(
            f"nothing is archived of {', '.join(missing) or 'any topic'} in the archive of "
            f"cluster {config.cluster.name} at {config.storage.url}"
        )
    if not dry_run:
        write_plan(plan_file, plan)
    emit(PlanResult(plan, None if dry_run else str(plan_file)), output)
    gaps = any(partition.gaps for partition in plan.partitions)
    unproven = transaction_consistent and not plan.has_whole_transactions
    return exits.FINDINGS if gaps or unproven else exits.OK


def replicate_topics(
    config: Config,
    plan_file: Path,
    replication_factor: int | None,
    bootstrap: str | None,
    output: OutputFormat,
    *,
    dry_run: bool,
) -> None:
    """Abort open transactions, and give the placed topics their replicas.

    Raises:
        ConfigurationError: A partition is not placed as planned.
        SidetierError: The brokers refuse, or a partition has no leader.
    """
    plan = _with_factor(read_plan(plan_file), replication_factor)
    admin = topic_admin(config, bootstrap)
    existing = _placed_topics(plan, admin)
    with finish.connected(cluster_properties(config, bootstrap)) as cluster:
        transactions = finish.archived_open_transactions(cluster, plan.partitions)
        replicas = finish.wanted_replicas(plan, existing, admin.brokers())
        done = ReplicatedResult(_open_rows(transactions), replicas, dry_run=dry_run)
        if dry_run:
            emit(done, output)
            return
        # First the plan: `finish` compares the replicas with the factor in it, also if this step is
        # interrupted and repeated without --replication-factor.
        write_plan(plan_file, plan)
        finish.abort_transactions(cluster, transactions)
        finish.reassign(cluster, replicas)
        in_sync = _wait_for_replicas(
            lambda: finish.replicas_in_sync(cluster, plan), len(plan.partitions), admin
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
    emit(replace(done, producer_ids=used), output)


def verify_topics(
    config: Config,
    plan_file: Path,
    produced: Collection[str],
    bootstrap: str | None,
    output: OutputFormat,
    *,
    parallel: int,
) -> int:
    """Compare all restored partitions with the archive; return the exit code.

    Raises:
        SidetierError: The archive or the brokers cannot be read.
    """
    plan = read_plan(plan_file)
    check_cluster(plan, topic_admin(config, bootstrap).cluster_id())
    properties = cluster_properties(config, bootstrap)
    brokers = verify.BrokerSide(as_texts(properties))
    partitions = plan.partitions
    with (
        open_archive(config, connections=CONNECTIONS) as archive,
        closing(verify.ArchiveSide(archive)) as archived,
    ):
        rows = verify.verify_partitions(
            partitions, archived, brokers, lambda: finish.connected(properties), at_once=parallel
        )
    problems = brokers.commit(
        {partition.topic_partition: partition.end for partition in partitions}
    )
    for partition in partitions:
        if partition.topic in produced:
            problem = brokers.produce(partition, b"sidetier hydrate verify")
            problems += [] if problem is None else [problem]
    result = VerifiedResult(rows, tuple(problems))
    emit(result, output)
    return exits.FINDINGS if result.differs else exits.OK


def finish_topics(
    config: Config,
    plan_file: Path,
    bootstrap: str | None,
    output: OutputFormat,
    *,
    with_cluster: bool | None,
    dry_run: bool,
) -> int:
    """Set the topics' real configuration, and restore the cluster's state; return the exit code.

    Raises:
        ConfigurationError: An earlier step was not completed.
        SidetierError: The brokers do not answer.
    """
    plan = read_plan(plan_file)
    admin = topic_admin(config, bootstrap)
    existing = _placed_topics(plan, admin)
    with finish.connected(cluster_properties(config, bootstrap)) as cluster:
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
    restored = _restored(config, bootstrap, plan, dry_run=dry_run) if with_cluster else []
    result = FinishedResult(
        configs_by_topic, refused, restored, not_restored(plan), dry_run=dry_run
    )
    emit(result, output)
    return exits.FINDINGS if any(refused.values()) else exits.OK


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
) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """Wait until `partitions` partitions have all replicas in sync, and print how many remain."""
    in_sync: dict[TopicPartition, tuple[BrokerId, ...]] = {}
    last_missing = 0

    def is_done() -> bool:
        nonlocal in_sync, last_missing
        in_sync = replicas_in_sync()
        missing = partitions - len(in_sync)
        if missing not in (0, last_missing):
            click.echo(f"sidetier: {missing} partitions wait for replicas to catch up", err=True)
        last_missing = missing
        return missing == 0

    admin.wait(is_done, _SYNC_SECONDS, "replicas to catch up", _SYNC_POLL_SECONDS)
    return in_sync


def _restored(
    config: Config, bootstrap: str | None, plan: HydratePlan, *, dry_run: bool
) -> list[RestoredKind]:
    """Restore the lost cluster's state from its snapshots, as of the plan's time.

    A plan with named topics may be for deleted topics, whose group offsets the cluster no longer
    has. Their offsets come from the last snapshots that contain them.
    """
    with open_archive(config) as archive:
        store = archive.default_store
        state = read_cluster_state(store, archive.layout, plan.until_ms)
        if not plan.is_whole_cluster:
            # Leave out offsets that groups have committed since the topics were recreated.
            until_ms = plan.planned_ms if plan.until_ms is None else plan.until_ms
            offsets = last_group_offsets(store, archive.layout, plan.topics, until_ms)
            state = replace(state, group_offsets=offsets)
    properties = as_texts(cluster_properties(config, bootstrap))
    admin = KafkaClusterAdmin(properties.pop("bootstrap.servers"), properties)
    return restore_cluster_state(state, admin, dry_run=dry_run)


def _cut(until: str | None, until_offsets: Path | None) -> Cut:

    if until is not None and until_offsets is not None:
        raise ConfigurationError("--until and --until-offsets exclude each other")
    return Cut(
        None if until is None else _milliseconds(until),
        None if until_offsets is None else _offsets(until_offsets),
    )


def _milliseconds(text: str) -> int:

    try:
        return parse_time(text, int(SYSTEM_CLOCK.wall() * 1000))
    except ValueError as error:
        raise ConfigurationError(f"--until: {error}") from None


def _offsets(file: Path) -> dict[TopicPartition, Offset]:

    offsets = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            topic, partition, offset = line.split()
            offsets[TopicPartition(topic, int(partition))] = Offset(int(offset))
        except ValueError:
            raise ConfigurationError(
                f"{file}: line {number}: expected topic, partition and offset, got {line!r}"
            ) from None
    return offsets


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


def _with_factor(plan: HydratePlan, factor: int | None) -> HydratePlan:
    if factor is None:
        return plan
    topics = {
        name: replace(topic, replication_factor=factor) for name, topic in plan.topics.items()
    }
    return replace(plan, topics=topics)


def _open_rows(transactions: Sequence[OpenTransaction]) -> list[tuple[str, int, int]]:
    return [
        (
            str(transaction.partition),
            transaction.producer.producer.id,
            int(transaction.producer.transaction_start or 0),
        )
        for transaction in transactions
    ]
