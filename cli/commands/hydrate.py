"""`sidetier hydrate`: restore archived topics on an empty cluster, with the same offsets."""

import importlib
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sidetier.cli import exits
from sidetier.cli.arguments import bootstrap_option, checked_topics
from sidetier.cli.extras import from_extra, quiet_logs
from sidetier.cli.invocation import configuration_options, invocation
from sidetier.cli.output import OutputFormat, emit, output_option
from sidetier.cli.signals import handled_signals
from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from sidetier.archive.access import ArchiveAccess
    from sidetier.cli.progress import Amount
    from sidetier.config.model import Config
    from sidetier.mirror.hydrate.cluster_state import RestoredKind
    from sidetier.mirror.hydrate.finish import OpenTransactionFound
    from sidetier.mirror.hydrate.plan import HydratePlan, PlannedTopic
    from sidetier.mirror.hydrate.survey import Cut
    from sidetier.mirror.hydrate.topics import DescribedTopic, TopicAdmin
    from sidetier.segments.offsets import BrokerId, Offset, TopicPartition

_LIBRARIES: Final = ("cramjam", "kio", "numpy", "pyarrow")
_CONNECTIONS: Final = 32
_SYNC_SECONDS: Final = 7 * 24 * 3600.0
_SYNC_POLL_SECONDS: Final = 1.0
_PLAN: Final = click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
_DRY_RUN: Final = click.option(
    "--dry-run", is_flag=True, help="Show what would be done; change nothing."
)


@click.group(name="hydrate")
@configuration_options
def command() -> None:
    """Restore archived topics on an empty cluster, with the same offsets.

    The archived segments are placed into the brokers' log dirs while the brokers are stopped.
    Offsets, timestamps, headers and transactions are then the same as before. Every step reads one
    plan file, checks the step before it, and can be repeated after an interruption:

    \b
      sidetier hydrate plan plan.json      what is restored, and what is lost
      sidetier hydrate prepare plan.json   create the topics; the new cluster runs
      (stop the brokers cleanly, copy plan.json to each broker's host)
      sidetier hydrate place plan.json     on each host, beside the stopped broker
      (start the brokers)
      sidetier hydrate replicate plan.json abort open transactions, raise the replication factor
      sidetier hydrate verify plan.json    consume everything and compare
      sidetier hydrate finish plan.json    configuration of the topics, group offsets, ACLs, quotas

    cluster.name is the name of the archived cluster. broker.bootstrap_servers is the new cluster.
    After the last step, start producers, consumers, and the sidecars of the new cluster. These
    sidecars need a cluster.name of their own.
    """  # noqa: D301 -- \b is click's marker and must be one character


@command.command(name="plan")
@_PLAN
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    callback=checked_topics,
    help="Topic to restore; repeatable.  [default: every archived topic but Kafka's internal ones]",
)
@click.option(
    "--until",
    metavar="TIME",
    help="Restore up to the first record of this time, such as 2026-11-22T10:00:00Z.",
)
@click.option(
    "--until-offsets",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Restore up to these offsets (exclusive). One line each: topic, partition, offset.",
)
@click.option(
    "--transaction-consistent",
    is_flag=True,
    help="Lower the ends of partitions until no transaction is committed in one partition and cut "
    "off in another. Transactions of version 2 (Kafka 4) only; the others are reported.",
)
@click.option("--dry-run", is_flag=True, help="Show the plan; write no file.")
@configuration_options
@output_option
@click.pass_context
def plan_command(  # noqa: PLR0913 -- one parameter for each option
    context: click.Context,
    *,
    plan_file: Path,
    topics: tuple[str, ...],
    until: str | None,
    until_offsets: Path | None,
    transaction_consistent: bool,
    dry_run: bool,
    output: OutputFormat,
) -> None:
    """Read the archive, and write to the file PLAN what will be placed.

    For each partition the table shows what is restored and what is lost: records after the last
    archived segment were never archived, and recorded gaps are listed.

    \b
    Example:
      sidetier hydrate plan plan.json --until 2026-11-22T10:00:00Z --config old-cluster.yaml

    Exit codes: 0 the plan is written; 2 a setting is wrong, or PLAN exists already; 3 the plan is
    written, but --transaction-consistent cannot guarantee that every transaction is whole, or
    records in gaps are lost.
    """  # noqa: D301 -- \b is click's marker and must be one character
    from sidetier.cli.hydrate.view import PlanResult  # noqa: PLC0415
    from sidetier.cli.stores import open_archive, require_directory  # noqa: PLC0415
    from sidetier.mirror.hydrate.plan import write_plan  # noqa: PLC0415
    from sidetier.segments.names import is_internal_topic  # noqa: PLC0415
    from sidetier.uploader.running.clock import SYSTEM_CLOCK  # noqa: PLC0415

    survey = _with_libraries("survey")
    config = _loaded(context)
    if plan_file.exists() and not dry_run:
        raise ConfigurationError(
            f"{plan_file} exists: a plan is never replaced, because steps may have used it; give "
            "another name, or remove it"
        )

    def wanted(topic: str) -> bool:
        return topic in topics if topics else not is_internal_topic(topic)

    with open_archive(config, connections=_CONNECTIONS) as archive:
        for endpoint in archive.provider.endpoints:
            require_directory(endpoint.url)
        cut = _cut(until, until_offsets)
        plan = replace(
            survey.make_plan(
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
    context.exit(exits.FINDINGS if gaps or unproven else exits.OK)


@command.command(name="prepare")
@_PLAN
@_DRY_RUN
@bootstrap_option
@configuration_options
@output_option
@click.pass_context
def prepare_command(
    context: click.Context,
    *,
    plan_file: Path,
    dry_run: bool,
    bootstrap: str | None,
    output: OutputFormat,
) -> None:
    """Create the planned topics on the new cluster, with one replica and no retention.

    The command writes the topics' ids and the broker of each partition into PLAN. Then stop every
    broker cleanly (SIGTERM), and copy PLAN to each broker's host.

    \b
    Example:
      sidetier hydrate prepare plan.json --bootstrap-server new-1:9092 --config old-cluster.yaml

    Exit codes: 0 all topics exist; 1 the brokers refuse; 2 a topic exists that has records, several
    replicas or another number of partitions.
    """  # noqa: D301 -- \b is click's marker and must be one character
    from sidetier.cli.hydrate.view import PreparedResult  # noqa: PLC0415
    from sidetier.mirror.hydrate import topics  # noqa: PLC0415
    from sidetier.mirror.hydrate.plan import read_plan, with_prepared, write_plan  # noqa: PLC0415

    plan = read_plan(plan_file)
    admin = _admin(_loaded(context), bootstrap)
    if dry_run:
        existing = admin.described(plan.topics)
        emit(PreparedResult(plan, sorted(topics.to_create(plan, existing)), dry_run=True), output)
        return
    cluster_id, prepared = topics.prepare(plan, admin)
    plan = with_prepared(plan, cluster_id, prepared)
    write_plan(plan_file, plan)
    emit(PreparedResult(plan, sorted(prepared), dry_run=False), output)


@command.command(name="place")
@_PLAN
@click.option(
    "--log-dir",
    "log_dirs",
    multiple=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Log dir of the stopped broker; repeatable.  [default: log_dirs]",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Partitions that are placed at the same time.",
)
@click.option("--max-rate", metavar="SIZE", help="Most bytes read per second, such as 200MiB.")
@_DRY_RUN
@configuration_options
@output_option
@click.pass_context
def place_command(  # noqa: PLR0913 -- one parameter for each option
    context: click.Context,
    *,
    plan_file: Path,
    log_dirs: tuple[Path, ...],
    parallel: int,
    max_rate: str | None,
    dry_run: bool,
    output: OutputFormat,
) -> None:
    """Place this broker's partitions into its log dirs. The broker must be stopped.

    Run it on every broker's host, on several hosts at the same time if you like. It holds the
    broker's own lock, so that the broker cannot start meanwhile. It checks every CRC. A partition
    appears in its log dir as a whole. After an interruption the same command continues; it does not
    touch a partition that is already placed. Run it as the broker's user, or as root.

    \b
    Example:
      sidetier hydrate place plan.json --log-dir /var/lib/kafka/data --config old-cluster.yaml

    Exit codes: 0 every partition is placed; 1 a partition could not be placed; 2 a log dir is in
    use, or belongs to another cluster; 130 interrupted.
    """  # noqa: D301 -- \b is click's marker and must be one character
    from sidetier.cli.hydrate.view import DestinationsResult, PlacedResult  # noqa: PLC0415
    from sidetier.cli.progress import Amount, shown  # noqa: PLC0415
    from sidetier.cli.stores import open_archive  # noqa: PLC0415
    from sidetier.config.units import parse_size  # noqa: PLC0415
    from sidetier.mirror.hydrate import log_dir, place  # noqa: PLC0415
    from sidetier.mirror.hydrate.plan import read_plan  # noqa: PLC0415
    from sidetier.uploader.running.clock import SYSTEM_CLOCK  # noqa: PLC0415
    from sidetier.uploader.sending.throttle import Throttle  # noqa: PLC0415

    config = _loaded(context)
    plan = read_plan(plan_file)
    paths = log_dirs or tuple(config.log_dirs)
    if not paths:
        raise ConfigurationError("no log dir is known: set log_dirs, or give --log-dir")
    try:
        rate = None if max_rate is None else float(parse_size(max_rate))
    except ValueError as error:
        raise ConfigurationError(f"--max-rate: {error}") from None
    with log_dir.locked_log_dirs(paths) as locked:
        journals = {entry.path: place.Journal(entry.path, plan.plan_id) for entry in locked}
        pending = {path: journal.switching for path, journal in journals.items()}
        destinations = log_dir.destinations(plan, locked, pending)
        if dry_run:
            emit(DestinationsResult(destinations, journals), output)
            return
        todo = [
            entry.plan
            for entry in destinations
            if str(entry.plan.topic_partition) not in journals[entry.log_dir.path].placed
        ]
        total = Amount(
            sum(len(entry.segments) for entry in todo), sum(entry.size for entry in todo)
        )
        stop = threading.Event()
        with (
            open_archive(config, connections=_CONNECTIONS) as archive,
            shown(total) as progress,
            handled_signals(stop.set),
        ):
            throttle = Throttle(rate, SYSTEM_CLOCK.monotonic, stop.wait)
            amounts = _Amounts(progress.update)
            settings = place.PlaceSettings(parallel, throttle.acquire, amounts.add, stop=stop)
            try:
                placed = place.place(plan, archive, destinations, journals, settings)
            except place.StoppedError:
                click.echo("sidetier: stopped; the same command goes on from here", err=True)
                context.exit(exits.INTERRUPTED)
    emit(PlacedResult(placed), output)
    context.exit(exits.FAILED if any(entry.problem for entry in placed) else exits.OK)


@command.command(name="replicate")
@_PLAN
@click.option(
    "--replication-factor",
    type=click.IntRange(1, 32767),
    help="Replicas of every topic.  [default: as in the lost cluster, if a snapshot tells; else 1]",
)
@_DRY_RUN
@bootstrap_option
@configuration_options
@output_option
@click.pass_context
def replicate_command(
    context: click.Context,
    *,
    plan_file: Path,
    replication_factor: int | None,
    dry_run: bool,
    bootstrap: str | None,
    output: OutputFormat,
) -> None:
    """Abort open transactions and give the placed topics their replicas.

    The brokers must be running again. In this order, the command checks that every partition starts
    and ends where the plan says; aborts the transactions that were open at the end of the archive;
    raises the replication factor and waits until all replicas have caught up; uses up the producer
    ids that replicas remember from archived records. It writes the replication factor into PLAN.

    It needs the permission ClusterAction on the new cluster if that cluster has an authorizer.

    \b
    Example:
      sidetier hydrate replicate plan.json --replication-factor 3 --config old-cluster.yaml

    Exit codes: 0 done; 1 the brokers refuse, or a partition has no leader; 2 a partition is not
    placed as planned.
    """  # noqa: D301 -- \b is click's marker and must be one character
    from sidetier.cli.hydrate.view import ReplicatedResult  # noqa: PLC0415
    from sidetier.mirror.hydrate.plan import read_plan, write_plan  # noqa: PLC0415

    finish = _with_libraries("finish")
    config = _loaded(context)
    plan = _with_factor(read_plan(plan_file), replication_factor)
    admin = _admin(config, bootstrap)
    existing = _placed_topics(plan, admin)
    with finish.connected(_properties(config, bootstrap)) as cluster:
        transactions = finish.archived_open_transactions(cluster, plan.partitions)
        replicas = finish.wanted_replicas(plan, existing, admin.brokers())
        done = ReplicatedResult(_open_rows(transactions), replicas, dry_run=dry_run)
        if dry_run:
            emit(done, output)
            return
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


@command.command(name="verify")
@_PLAN
@click.option(
    "--produce",
    "produced",
    multiple=True,
    callback=checked_topics,
    help="Also produce one record to each partition of this topic; repeatable.",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Partitions that are compared at the same time.",
)
@bootstrap_option
@configuration_options
@output_option
@click.pass_context
def verify_command(
    context: click.Context,
    *,
    plan_file: Path,
    produced: tuple[str, ...],
    parallel: int,
    bootstrap: str | None,
    output: OutputFormat,
) -> None:
    """Read everything that was restored, and compare it with the archive.

    For each partition the command compares the bytes of all batches, the last stable offset and the
    aborted transactions. Where they differ, it consumes every record at both isolation levels, and
    compares the number of records, the first and the last offset, and a checksum over keys, values,
    headers and timestamps. For one partition of each topic it always consumes the last 1,000
    records. It also checks look-ups by time and a commit of the group sidetier-hydrate-verify, and
    with --produce it appends a record.

    \b
    Example:
      sidetier hydrate verify plan.json --config old-cluster.yaml

    Exit codes: 0 everything is equal; 1 the archive or the brokers cannot be read; 3 something
    differs.
    """  # noqa: D301 -- \b is click's marker and must be one character
    from sidetier.cli.hydrate.view import VerifiedResult  # noqa: PLC0415
    from sidetier.cli.stores import open_archive  # noqa: PLC0415
    from sidetier.leadership.cluster import as_texts  # noqa: PLC0415
    from sidetier.mirror.hydrate.plan import check_cluster, read_plan  # noqa: PLC0415

    verify, finish = _with_libraries("verify"), _with_libraries("finish")
    config = _loaded(context)
    plan = read_plan(plan_file)
    check_cluster(plan, _admin(config, bootstrap).cluster_id())
    properties = _properties(config, bootstrap)
    brokers = verify.BrokerSide(as_texts(properties))
    partitions = plan.partitions
    with (
        open_archive(config, connections=_CONNECTIONS) as archive,
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
    context.exit(exits.FINDINGS if result.differs else exits.OK)


@command.command(name="finish")
@_PLAN
@click.option(
    "--cluster/--no-cluster",
    "with_cluster",
    default=None,
    help="Also restore group offsets, ACLs, quotas and the brokers' dynamic configuration from the "
    "snapshots of the lost cluster.  [default: yes, unless the plan has only named topics]",
)
@_DRY_RUN
@bootstrap_option
@configuration_options
@output_option
@click.pass_context
def finish_command(
    context: click.Context,
    *,
    plan_file: Path,
    with_cluster: bool | None,
    dry_run: bool,
    bootstrap: str | None,
    output: OutputFormat,
) -> None:
    """Set the topics' real configuration, and restore group offsets, ACLs and quotas.

    Run it after `sidetier hydrate verify`: afterwards the brokers delete records that are older
    than the topics' retention. The values come from the snapshots of the lost cluster. Without a
    snapshot, retention stays unlimited: set it yourself. The command lists a value that the new
    brokers refuse, and leaves it out. It lists leader.replication.throttled.replicas and
    follower.replication.throttled.replicas and does not restore them, because they name brokers of
    the lost cluster.

    \b
    Example:
      sidetier hydrate finish plan.json --config old-cluster.yaml

    Exit codes: 0 done; 1 the brokers do not answer; 2 an earlier step was not completed; 3 done,
    but the brokers refuse part of the topics' configuration.
    """  # noqa: D301 -- \b is click's marker and must be one character
    from sidetier.cli.hydrate.view import FinishedResult  # noqa: PLC0415
    from sidetier.mirror.hydrate.plan import read_plan  # noqa: PLC0415
    from sidetier.mirror.hydrate.topics import final_configs, not_restored  # noqa: PLC0415

    finish = _with_libraries("finish")
    config = _loaded(context)
    plan = read_plan(plan_file)
    admin = _admin(config, bootstrap)
    existing = _placed_topics(plan, admin)
    with finish.connected(_properties(config, bootstrap)) as cluster:
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
    context.exit(exits.FINDINGS if any(refused.values()) else exits.OK)


class _Amounts:
    """Sum of bytes and segments, reported after each addition; safe for several threads."""

    def __init__(self, tell: "Callable[[Amount, int], None]") -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._segments = self._size = 0

    def add(self, size: int, segments: int) -> None:
        """Add `size` bytes and this number of segments."""
        from sidetier.cli.progress import Amount  # noqa: PLC0415

        with self._lock:
            self._size += size
            self._segments += segments
            self._tell(Amount(self._segments, self._size), 0)


def _with_libraries(module: str) -> Any:  # noqa: ANN401 -- returns a module
    """Import a module of `mirror.hydrate` that needs the extras. `place` runs without them."""
    return from_extra(
        lambda: importlib.import_module(f"sidetier.mirror.hydrate.{module}"),
        f"sidetier hydrate {'plan' if module == 'survey' else module}",
        _LIBRARIES,
        "consumer,mirror",
    )


def _loaded(context: click.Context) -> "Config":
    loaded = invocation(context).load()
    quiet_logs(loaded)
    return loaded.config


def _properties(config: "Config", bootstrap: str | None) -> dict[str, str | int | float | bool]:
    """Return the client properties of the new cluster."""
    properties = config.broker.client_properties()
    if bootstrap is not None:
        properties["bootstrap.servers"] = bootstrap
    if "bootstrap.servers" not in properties:
        raise ConfigurationError(
            "broker.bootstrap_servers is not set: give the new cluster's address by "
            "--bootstrap-server"
        )
    return dict(properties)


def _admin(config: "Config", bootstrap: str | None) -> "TopicAdmin":
    from sidetier.leadership.cluster import admin_client, as_texts  # noqa: PLC0415
    from sidetier.mirror.hydrate.topics import TopicAdmin  # noqa: PLC0415

    properties = as_texts(_properties(config, bootstrap))
    servers = properties.pop("bootstrap.servers")
    return TopicAdmin(admin_client(servers, properties, {"log_level": 0}))


def _placed_topics(plan: "HydratePlan", admin: "TopicAdmin") -> "dict[str, DescribedTopic]":
    """Return the brokers' description of the plan's topics, once all partitions are placed."""
    from sidetier.mirror.hydrate.plan import check_cluster  # noqa: PLC0415

    check_cluster(plan, admin.cluster_id())
    finish = _with_libraries("finish")
    existing = admin.wait_until_led({name: topic.partitions for name, topic in plan.topics.items()})
    finish.check_topics(plan, existing)
    finish.check_placed(
        plan, admin.ends(partition.topic_partition for partition in plan.partitions)
    )
    return existing


def _wait_for_replicas(
    replicas_in_sync: "Callable[[], dict[TopicPartition, tuple[BrokerId, ...]]]",
    partitions: int,
    admin: "TopicAdmin",
) -> "dict[TopicPartition, tuple[BrokerId, ...]]":
    """Wait until `partitions` partitions have all replicas in sync, and print how many remain."""
    in_sync: dict[TopicPartition, tuple[BrokerId, ...]] = {}
    told = 0

    def is_done() -> bool:
        nonlocal in_sync, told
        in_sync = replicas_in_sync()
        missing = partitions - len(in_sync)
        if missing not in (0, told):
            click.echo(f"sidetier: {missing} partitions wait for replicas to catch up", err=True)
        told = missing
        return missing == 0

    admin.wait(is_done, _SYNC_SECONDS, "replicas to catch up", _SYNC_POLL_SECONDS)
    return in_sync


def _restored(
    config: "Config", bootstrap: str | None, plan: "HydratePlan", *, dry_run: bool
) -> "list[RestoredKind]":
    """Restore the lost cluster's state from its snapshots, as of the plan's time.

    A plan with named topics may be for deleted topics, whose group offsets the cluster no longer
    has. Their offsets come from the last snapshots that contain them.
    """
    from sidetier.archive.objects.cluster_snapshots import (  # noqa: PLC0415
        last_group_offsets,
        read_cluster_state,
    )
    from sidetier.cli.stores import open_archive  # noqa: PLC0415
    from sidetier.leadership.cluster import as_texts  # noqa: PLC0415
    from sidetier.mirror.hydrate.cluster_state import restore_cluster_state  # noqa: PLC0415
    from sidetier.mirror.hydrate.kafka_admin import KafkaClusterAdmin  # noqa: PLC0415

    with open_archive(config) as archive:
        store = archive.default_store
        state = read_cluster_state(store, archive.layout, plan.until_ms)
        if not plan.is_whole_cluster:
            # Leave out offsets that groups have committed since the topics were recreated.
            until_ms = plan.planned_ms if plan.until_ms is None else plan.until_ms
            offsets = last_group_offsets(store, archive.layout, plan.topics, until_ms)
            state = replace(state, group_offsets=offsets)
    properties = as_texts(_properties(config, bootstrap))
    admin = KafkaClusterAdmin(properties.pop("bootstrap.servers"), properties)
    return restore_cluster_state(state, admin, dry_run=dry_run)


def _cut(until: str | None, until_offsets: Path | None) -> "Cut":
    from sidetier.mirror.hydrate.survey import Cut  # noqa: PLC0415

    if until is not None and until_offsets is not None:
        raise ConfigurationError("--until and --until-offsets exclude each other")
    return Cut(
        None if until is None else _milliseconds(until),
        None if until_offsets is None else _offsets(until_offsets),
    )


def _milliseconds(text: str) -> int:
    from datetime import datetime  # noqa: PLC0415

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"--until {text}: not a time such as 2026-11-22T10:00:00Z"
        ) from None
    if moment.tzinfo is None:
        raise ConfigurationError(f"--until {text}: give a time zone, such as {text}Z for UTC")
    return int(moment.timestamp() * 1000)


def _offsets(file: Path) -> "dict[TopicPartition, Offset]":
    from sidetier.segments.offsets import Offset, TopicPartition  # noqa: PLC0415

    offsets = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            topic, partition, offset = line.split()
            offsets[TopicPartition(topic, int(partition))] = Offset(int(offset))
        except ValueError:
            raise ConfigurationError(
                f"{file}: line {number}: expected topic, partition and offset, found {line!r}"
            ) from None
    return offsets


def _definitions(
    archive: "ArchiveAccess", topics: "Collection[str]", until_ms: int | None
) -> "dict[str, PlannedTopic]":
    """Return these topics' definitions in snapshots, deleted ones included, or else all topics'."""
    from sidetier.archive.objects.cluster_snapshots import (  # noqa: PLC0415
        last_definitions,
        read_cluster_state,
    )
    from sidetier.mirror.hydrate.plan import PlannedTopic  # noqa: PLC0415

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


def _with_factor(plan: "HydratePlan", factor: int | None) -> "HydratePlan":
    if factor is None:
        return plan
    topics = {
        name: replace(topic, replication_factor=factor) for name, topic in plan.topics.items()
    }
    return replace(plan, topics=topics)


def _open_rows(found: "Sequence[OpenTransactionFound]") -> list[tuple[str, int, int]]:
    return [
        (
            str(transaction.partition),
            transaction.producer.producer.id,
            int(transaction.producer.transaction_start or 0),
        )
        for transaction in found
    ]
