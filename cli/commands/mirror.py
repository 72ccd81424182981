"""`sidetier mirror`: copy a cluster's topics into another cluster, each record exactly once."""

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from sidetier.cli import exits
from sidetier.cli.commands import mirror_adopt, mirror_translate
from sidetier.cli.extras import from_extra
from sidetier.cli.invocation import Invocation, configuration_options, invocation
from sidetier.cli.mirror.options import (
    LIBRARIES,
    client_references,
    copy_options,
    duration,
    engine_options,
    source_options,
    target_options,
    topic_rules,
)
from sidetier.cli.output import OutputFormat, output_option
from sidetier.segments.errors import ConfigurationError, MirrorError

if TYPE_CHECKING:
    from sidetier.archive.access import ArchiveAccess
    from sidetier.cli.mirror.session import CopyResult
    from sidetier.config.model import Config
    from sidetier.config.types import References
    from sidetier.mirror.archive_source import ArchiveSource
    from sidetier.mirror.catalog import Catalog
    from sidetier.mirror.engine import Copy
    from sidetier.mirror.hydrate.kafka_admin import KafkaClusterAdmin
    from sidetier.mirror.offset_sync import OffsetSync
    from sidetier.mirror.topics import Lineage, MirrorNames, TopicRules
    from sidetier.mirror.workers import KafkaWorkerGroup
    from sidetier.segments.offsets import Offset, TopicPartition
    from sidetier.wire.cluster import Cluster
    from sidetier.wire.requests import CommittedOffset


@click.group(name="mirror", invoke_without_command=True)
@click.option("--name", metavar="NAME", help="Name of the mirror; its progress is kept under it.")
@source_options
@target_options
@copy_options
@click.option(
    "--delivery",
    type=click.Choice(["exactly-once", "at-least-once"]),
    default="exactly-once",
    show_default=True,
    help="Records and progress in one transaction; or progress after the records, so that a "
    "failure copies some records twice.",
)
@click.option(
    "--from",
    "begin",
    type=click.Choice(["beginning", "end"]),
    default="beginning",
    show_default=True,
    help="Where partitions begin that were never copied by this mirror.",
)
@click.option(
    "--accept-target-records",
    is_flag=True,
    help="Copy into topics that have records, but no progress of this mirror.",
)
@click.option(
    "--on-new-partitions",
    type=click.Choice(["add", "refuse"]),
    default="add",
    show_default=True,
    help="What happens when a source topic gets more partitions: its copy gets as many, or the "
    "topic is copied no more.",
)
@click.option(
    "--on-recreate",
    type=click.Choice(["stop", "restart"]),
    default="stop",
    show_default=True,
    help="What happens when a source topic is deleted and created again: it is copied no more, and "
    "its copy stays; or its copy is deleted with all records, created again, and begun anew.",
)
@click.option(
    "--copy-settings",
    type=click.Choice(["none", "once", "sync"]),
    default="once",
    show_default=True,
    help="Which copies get the settings of their source topic: none, those that are created, or "
    "all of them, kept in step.",
)
@click.option(
    "--copy-acls",
    is_flag=True,
    help="Give the copies the ACLs of their source topics, without the permission to write.",
)
@click.option("--no-archive", is_flag=True, help="Read the brokers alone.")
@click.option(
    "--until-caught-up", is_flag=True, help="End at what the source has committed at the start."
)
@engine_options
@click.option(
    "--worker",
    metavar="NAME",
    default="0",
    show_default=True,
    help="Name of this process among those that share the partitions, such as the pod's. A process "
    "that starts with it takes over from an earlier one.",
)
@click.option(
    "--session-timeout",
    metavar="DURATION",
    default="30s",
    show_default=True,
    callback=duration,
    help="Time without a heartbeat after which the other workers take over.",
)
@click.option(
    "--transaction-timeout",
    metavar="DURATION",
    default="60s",
    show_default=True,
    callback=duration,
    help="Time after which the target aborts the transaction of a worker that is gone.",
)
@click.option(
    "--translate-groups",
    "group_patterns",
    metavar="PATTERN",
    multiple=True,
    help="Regular expression for whole names of consumer groups that are kept on the target where "
    "they are on the source; repeatable.  [default: none]",
)
@click.option(
    "--translate-interval",
    metavar="DURATION",
    default="60s",
    show_default=True,
    callback=duration,
    help="Time from one setting of the groups to the next.",
)
@click.option(
    "--offset-map-runs",
    type=click.IntRange(256),
    default=1024,
    show_default=True,
    help="Entries of the offset map that are kept of each partition: the newest half exactly, and "
    "fewer the older they are. A transaction adds one entry.",
)
@output_option
@configuration_options
@click.pass_context
def command(context: click.Context, /, output: OutputFormat, **given: Any) -> None:  # noqa: ANN401 -- click passes values of several types
    """Copy topics into another cluster, each record exactly once.

    The mirror reads the configured archive, if there is one, where the source's brokers have
    deleted records that were not copied yet. It keeps keys, values, headers, timestamps and
    partitions; `sidetier mirror translate-offsets` translates offsets.

    \b
    Example:
      sidetier mirror --name dr --topic 'orders.*' \\
        --source bootstrap.servers=a:9092 --target bootstrap.servers=b:9092

    Exit codes: 0 done; 1 a failure; 2 a setting or a topic is wrong, and nothing was copied; 3
    done, but with gaps, or without topics that could no longer be copied, or groups could not be
    set at the end; 130 stopped, with --engine spark.
    """  # noqa: D301 -- \b is click's marker and must be one character
    if context.invoked_subcommand is not None:
        return
    call = invocation(context)
    context.exit(from_extra(lambda: _mirror(call, given, output), "mirror", LIBRARIES, "mirror"))


def _mirror(call: Invocation, given: Mapping[str, Any], output: OutputFormat) -> int:
    from sidetier.cli.mirror.on_spark import SPARK  # noqa: PLC0415 -- `--help` must not load Kafka's client
    from sidetier.cli.output import emit  # noqa: PLC0415
    from sidetier.mirror.workers import KafkaWorkerGroup, group_kind  # noqa: PLC0415

    with _opened(call, given) as mirror:
        if given["dry_run"]:
            return _show_plan(mirror, output)
        workers = KafkaWorkerGroup(
            mirror.target.settings,
            mirror.names.group,
            given["worker"],
            group_kind(mirror.rules),
            session_timeout=given["session_timeout"],
        )
        copy = _copy_on_spark if given["engine"] == SPARK else _copy_here
        try:
            result = copy(mirror, workers, given)
        finally:
            workers.close()
        emit(result, output)
        is_left = result.counts.lag_records or result.groups_problem is not None
        if given["engine"] == SPARK and mirror.stop.is_set() and is_left:
            return exits.INTERRUPTED
        return result.exit_code


def _copy_here(
    mirror: "_Mirror", workers: "KafkaWorkerGroup", given: Mapping[str, Any]
) -> "CopyResult":
    from sidetier.cli.mirror.session import copy_limits, run_engine  # noqa: PLC0415
    from sidetier.mirror.engine import Engine  # noqa: PLC0415
    from sidetier.mirror.source import KafkaSource, OnGap  # noqa: PLC0415
    from sidetier.mirror.target import KafkaTarget  # noqa: PLC0415

    until = mirror.ends(mirror.catalog.copies()) if given["until_caught_up"] else None
    source = KafkaSource(
        mirror.source_client, mirror.archive, until=until, on_gap=OnGap(given["on_gap"])
    )
    exactly_once = given["delivery"] == "exactly-once"
    transactional_id = mirror.names.transactional_id(given["worker"])
    target = KafkaTarget(
        mirror.target,
        mirror.names.group,
        transactional_id if exactly_once else None,
        membership=workers.membership,
        transaction_timeout=given["transaction_timeout"],
        task_id=mirror.names.partition_transactional_id,
    )
    engine = Engine(
        source,
        target,
        lambda: mirror.copies(until),
        mirror.first_offsets,
        offsets_topic=mirror.names.offsets_topic,
        workers=workers,
        limits=copy_limits(given),
        refresh_seconds=None if until is not None else 30.0,
        stop=mirror.stop,
    )
    try:
        with _offset_sync(mirror, lambda: engine.copies, given) as offset_sync:
            result = run_engine(
                engine,
                mirror.stop,
                metrics_port=given["metrics_port"],
                refused=lambda: mirror.catalog.refused,
                offset_sync=offset_sync,
            )
        if until is not None and exactly_once:
            mirror.wait_until_visible(engine.copies)
        return result
    finally:
        source.close()


def _copy_on_spark(
    mirror: "_Mirror", workers: "KafkaWorkerGroup", given: Mapping[str, Any]
) -> "CopyResult":
    """Copy with Spark tasks, which commit as the driver: it is the mirror's only worker."""
    from sidetier.cli.export.spark_session import SUBMITTED  # noqa: PLC0415
    from sidetier.cli.mirror.on_spark import copy_on_spark  # noqa: PLC0415
    from sidetier.cli.mirror.session import copy_limits  # noqa: PLC0415
    from sidetier.mirror.spark_copy import (  # noqa: PLC0415
        PartitionTask,
        SparkCopy,
        TaskArchive,
        plan_tasks,
    )
    from sidetier.wire.requests import committed_offsets, init_producer_id  # noqa: PLC0415

    workers.join()
    if workers.count > 1:
        raise ConfigurationError(
            f"mirror {mirror.names.name} has other running workers ({workers.count - 1}), but "
            "--engine spark must be the only worker: stop the other workers first, or replace a "
            "single one by giving its --worker"
        )
    # An open transaction of an earlier process of this worker would block read-committed consumers,
    # and the progress.
    init_producer_id(
        mirror.target,
        mirror.names.transactional_id(given["worker"]),
        transaction_timeout=given["transaction_timeout"],
    )
    copies = mirror.catalog.copies()
    ends = mirror.ends(copies)
    # A killed task may have left a transaction open, and a read of stable offsets would wait for
    # it. The partition's next task aborts it, and reads the progress again.
    done = committed_offsets(
        mirror.target,
        mirror.names.group,
        [copy.target for copy in copies.values()],
        require_stable=False,
    )
    starts = {tp: done[copy.target].offset for tp, copy in copies.items() if copy.target in done}
    starts |= mirror.first_offsets([tp for tp in copies if tp not in starts])
    planned = [
        PartitionTask(entry, starts[tp], ends[tp], is_begun=entry.target in done)
        for tp, entry in copies.items()
    ]
    copy = SparkCopy(
        mirror.names,
        plan_tasks(planned, {tp: committed.offset for tp, committed in done.items()}),
        copy_limits(given),
        mirror.target_references,
        source=mirror.source_references,
        archive=(
            TaskArchive(mirror.config.cluster.name, mirror.config.storage)
            if mirror.config is not None and mirror.archive is not None
            else None
        ),
        membership=workers.membership(),
        transaction_timeout=given["transaction_timeout"],
    )
    result = copy_on_spark(
        copy,
        given["master"] or SUBMITTED,
        mirror.target,
        mirror.stop,
        planned=planned,
        check=lambda: _require_alone(mirror, workers),
    )
    mirror.wait_until_visible(copies)
    ended = threading.Event()
    ended.set()
    with _offset_sync(mirror, lambda: copies, given) as offset_sync:
        offset_sync.run(ended, mirror.stop)
    # The target topic of a copy may have been deleted and recreated while its tasks ran.
    topics = {tp.topic for tp in copies}
    return replace(
        result,
        refused={
            entry.source: entry.problem
            for entry in mirror.catalog.plan()
            if entry.source in topics and entry.problem is not None
        },
        groups_problem=offset_sync.groups_problem,
    )


def _require_alone(mirror: "_Mirror", workers: "KafkaWorkerGroup") -> None:
    if workers.must_join_again():
        raise MirrorError(
            f"another worker of mirror {mirror.names.name} has started, or the target has not "
            "received a heartbeat for --session-timeout. --engine spark must be the only worker, "
            "so the copy was cancelled"
        )


@contextmanager
def _offset_sync(
    mirror: "_Mirror",
    copies: "Callable[[], Mapping[TopicPartition, Copy]]",
    given: Mapping[str, Any],
) -> "Iterator[OffsetSync]":
    """Open the task that shortens the offset map, stores it, and sets consumer groups."""
    from sidetier.mirror.engine import write_map_records  # noqa: PLC0415
    from sidetier.mirror.groups import ClusterGroups  # noqa: PLC0415
    from sidetier.mirror.offset_sync import OffsetSync  # noqa: PLC0415
    from sidetier.mirror.partition_log import ClusterLog  # noqa: PLC0415
    from sidetier.mirror.stored_map import MapStore  # noqa: PLC0415
    from sidetier.mirror.target import KafkaTarget  # noqa: PLC0415
    from sidetier.mirror.topics import compiled  # noqa: PLC0415
    from sidetier.mirror.translate import OffsetMapReader  # noqa: PLC0415

    patterns = [compiled(text, "--translate-groups") for text in given["group_patterns"]]
    store, archive = None, mirror.archive_access
    if archive is not None:
        store = MapStore(archive.default_store, archive.layout, mirror.names.name)
    topic = mirror.names.offsets_topic
    # Separate clients: a client may be used by one thread only.
    with (
        mirror.source_client() as source,
        mirror.target_client() as target,
        closing(KafkaTarget(target, mirror.names.group, None)) as map_writer,
    ):
        yield OffsetSync(
            lambda: {copy.source: copy.target for copy in copies().values()},
            mirror.names.group,
            OffsetMapReader(ClusterLog(target), topic, given["offset_map_runs"]),
            ClusterGroups(source),
            ClusterGroups(target),
            shorten=lambda records: write_map_records(
                map_writer, topic, records, time.time_ns() // 1_000_000
            ),
            store=store,
            patterns=patterns,
            interval=given["translate_interval"],
        )


@dataclass(frozen=True, slots=True)
class _Mirror:
    """Open clients and state of a running mirror."""

    names: "MirrorNames"
    rules: "TopicRules"
    catalog: "Catalog"
    source: "Cluster"
    target: "Cluster"
    source_client: "Callable[[], Cluster]"
    target_client: "Callable[[], Cluster]"
    archive: "ArchiveSource | None"
    archive_access: "ArchiveAccess | None"
    begin: str
    stop: threading.Event
    config: "Config | None"
    source_references: "References"
    target_references: "References"

    def copies(
        self, until: "Mapping[TopicPartition, Offset] | None"
    ) -> "dict[TopicPartition, Copy]":
        """Return the partitions of all workers; with `until`, only those in it."""
        copies = self.catalog.copies()
        return {tp: copy for tp, copy in copies.items() if until is None or tp in until}

    def first_offsets(
        self, partitions: "Collection[TopicPartition]"
    ) -> "Mapping[TopicPartition, Offset]":
        """Return the first offsets of partitions without progress.

        With `--from end`, a partition that was added to a topic that is already copied still begins
        at its beginning.
        """
        from sidetier.mirror.topics import decode_lineage, was_added  # noqa: PLC0415
        from sidetier.segments.isolation import IsolationLevel  # noqa: PLC0415
        from sidetier.wire.requests import (  # noqa: PLC0415
            EARLIEST,
            LATEST,
            committed_offsets,
            list_offsets,
        )

        at = dict.fromkeys(partitions, EARLIEST)
        if self.begin == "end":
            done = committed_offsets(self.target, self.names.group, require_stable=False)
            lineages: dict[str, list[Lineage]] = {}
            for committed in done.values():
                lineage = decode_lineage(committed.metadata)
                if lineage is not None:
                    lineages.setdefault(lineage.topic, []).append(lineage)
            at = {
                tp: EARLIEST if was_added(tp.partition, lineages.get(tp.topic, ())) else LATEST
                for tp in partitions
            }
        listed = list_offsets(self.source, at, isolation=IsolationLevel.READ_COMMITTED)
        first_offsets = {tp: listed_offset.offset for tp, listed_offset in listed.items()}
        for tp in partitions:
            view = None
            if self.archive is not None and at[tp] != LATEST:
                view = self.archive.view(tp, topic_id=self.catalog.source_ids.get(tp.topic))
            if view is not None and view.start < view.end:
                first_offsets[tp] = min(first_offsets[tp], view.start)
        return first_offsets

    def ends(self, copies: "Mapping[TopicPartition, Copy]") -> "dict[TopicPartition, Offset]":
        """Return the current last stable offsets: the exclusive ends of the committed records."""
        from sidetier.segments.isolation import IsolationLevel  # noqa: PLC0415
        from sidetier.wire.requests import LATEST, list_offsets  # noqa: PLC0415

        listed = list_offsets(
            self.source, dict.fromkeys(copies, LATEST), isolation=IsolationLevel.READ_COMMITTED
        )
        return {tp: listed_offset.offset for tp, listed_offset in listed.items()}

    def wait_until_visible(self, copies: "Mapping[TopicPartition, Copy]") -> None:
        """Wait until no other worker's open transaction hides copied records, or for a signal."""
        from sidetier.mirror.partition_log import wait_for_open_transactions  # noqa: PLC0415

        targets = [copy.target for copy in copies.values()]
        wait_for_open_transactions(self.target, targets, self.stop)


@contextmanager
def _opened(call: Invocation, given: Mapping[str, Any]) -> Iterator[_Mirror]:
    from contextlib import ExitStack  # noqa: PLC0415

    from sidetier.cli.stores import open_archive  # noqa: PLC0415
    from sidetier.config.types import resolved  # noqa: PLC0415
    from sidetier.leadership.cluster import as_texts  # noqa: PLC0415
    from sidetier.mirror.acls import AclCopier  # noqa: PLC0415
    from sidetier.mirror.archive_source import ArchiveSource  # noqa: PLC0415
    from sidetier.mirror.catalog import (  # noqa: PLC0415
        BrokerTopics,
        Catalog,
        CatalogOptions,
        CopySettings,
    )
    from sidetier.telemetry.logs import configure_logs  # noqa: PLC0415
    from sidetier.wire.cluster import Cluster  # noqa: PLC0415
    from sidetier.wire.settings import ClientSettings  # noqa: PLC0415

    names, rules = _named(given)
    config = None
    configure_logs("console" if sys.stderr.isatty() else "json")
    if call.is_configured():
        loaded = call.load()
        configure_logs(loaded.config.log.format, loaded.config.log.level)
        config = loaded.config
    source_references = client_references("source", given, config)
    target_references = client_references("target", given)
    _require_engine(given, {"source": source_references, "target": target_references})
    source_properties = as_texts(resolved(source_references))
    target_properties = as_texts(resolved(target_references))
    source_settings = ClientSettings.from_properties(source_properties)
    target_settings = ClientSettings.from_properties(target_properties)
    acls = None
    if given["copy_acls"]:
        acls = AclCopier(_admin(source_properties), _admin(target_properties))
    stop = threading.Event()
    with ExitStack() as stack:
        access, archive = None, None
        if config is not None and not given["no_archive"]:
            access = stack.enter_context(open_archive(config, stop=stop))
            archive = ArchiveSource(access)
        source_cluster = stack.enter_context(Cluster(source_settings, stop=stop))
        target_cluster = stack.enter_context(Cluster(target_settings))
        catalog = Catalog(
            BrokerTopics(source_cluster),
            target_cluster,
            rules,
            names,
            CatalogOptions(
                replication_factor=given["replication_factor"] or -1,
                accept_log_append_time=given["accept_log_append_time"],
                accept_records=given["accept_target_records"],
                settings=CopySettings(given["copy_settings"]),
                raise_partitions=given["on_new_partitions"] == "add",
                restart_recreated=given["on_recreate"] == "restart",
            ),
            acls,
        )
        yield _Mirror(
            names,
            rules,
            catalog,
            source_cluster,
            target_cluster,
            lambda: Cluster(source_settings, stop=stop),
            lambda: Cluster(target_settings, stop=stop),
            archive,
            access,
            given["begin"],
            stop,
            config,
            source_references,
            target_references,
        )


def _require_engine(given: Mapping[str, Any], clients: "Mapping[str, References]") -> None:
    """Check the options that `--engine spark` requires.

    Raises:
        ConfigurationError: An option does not fit the engine.
    """
    from sidetier.cli.mirror.on_spark import SPARK, require_engine  # noqa: PLC0415

    require_engine(given, clients)
    if given["engine"] != SPARK:
        return
    if not given["until_caught_up"]:
        raise ConfigurationError(
            "--engine spark copies up to an end: add --until-caught-up. A mirror that goes on for "
            "ever runs with --engine local, in as many workers as it needs"
        )
    if given["delivery"] != "exactly-once":
        raise ConfigurationError(
            "--delivery at-least-once is for --engine local: of two attempts of a task, nothing "
            "would hold the slower one back"
        )


def _admin(properties: Mapping[str, str]) -> "KafkaClusterAdmin":
    from sidetier.mirror.hydrate.kafka_admin import KafkaClusterAdmin  # noqa: PLC0415

    client_properties = {
        name: value for name, value in properties.items() if name != "bootstrap.servers"
    }
    return KafkaClusterAdmin(properties["bootstrap.servers"], client_properties)


def _named(given: Mapping[str, Any]) -> "tuple[MirrorNames, TopicRules]":
    from sidetier.mirror.topics import MirrorNames  # noqa: PLC0415

    if given["name"] is None:
        raise ConfigurationError("--name is missing: the mirror's progress is kept under it")
    rules = topic_rules(given["topics"], given["exclude"], given["rename"])
    return MirrorNames(given["name"]), rules


def _show_plan(mirror: _Mirror, output: OutputFormat) -> int:
    from sidetier.cli.mirror.session import PlanResult  # noqa: PLC0415
    from sidetier.cli.output import emit  # noqa: PLC0415
    from sidetier.segments.offsets import TopicPartition  # noqa: PLC0415
    from sidetier.wire.requests import committed_offsets  # noqa: PLC0415

    planned = mirror.catalog.plan()
    done = committed_offsets(mirror.target, mirror.names.group)
    records_left: dict[str, int] = {}
    for topic in planned:
        sources = [TopicPartition(topic.source, number) for number in range(topic.partitions)]
        first, ends = mirror.first_offsets(sources), mirror.ends(dict.fromkeys(sources, None))  # type: ignore[arg-type]
        records_left[topic.source] = sum(
            max(ends[tp] - _start(done, TopicPartition(topic.target, tp.partition), first[tp]), 0)
            for tp in sources
        )
    result = PlanResult(planned, records_left)
    emit(result, output)
    return result.exit_code


def _start(
    done: "Mapping[TopicPartition, CommittedOffset]", target: "TopicPartition", first: int
) -> int:
    return done[target].offset if target in done else first


command.add_command(mirror_adopt.command)
command.add_command(mirror_translate.command)
