"""One call of `sidetier mirror`, from the configuration to the exit code.

Needs the packages of the extra `mirror`.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import click
from prometheus_client import CollectorRegistry, start_http_server

from sidetier.archive.access import ArchiveAccess
from sidetier.cli import exits
from sidetier.cli.arguments import size_text
from sidetier.cli.export.spark_session import SUBMITTED
from sidetier.cli.invocation import Invocation
from sidetier.cli.mirror.on_spark import SPARK, copy_on_spark, require_engine
from sidetier.cli.mirror.options import client_references, topic_rules
from sidetier.cli.mirror.view import CopyResult, PlanResult
from sidetier.cli.output import OutputFormat, emit
from sidetier.cli.stores import open_archive
from sidetier.config.model import Config
from sidetier.config.types import References, resolved
from sidetier.leadership.cluster import as_texts
from sidetier.mirror.cluster_state.kafka_admin import KafkaClusterAdmin
from sidetier.mirror.copy.archive_source import ArchiveSource
from sidetier.mirror.copy.engine import Copy, Counts, Engine, Limits, write_map_records
from sidetier.mirror.copy.source import KafkaSource, OnGap
from sidetier.mirror.copy.target import KafkaTarget
from sidetier.mirror.copy.workers import KafkaWorkerGroup, group_kind
from sidetier.mirror.metrics import MirrorCollector
from sidetier.mirror.offsets.groups import ClusterGroups
from sidetier.mirror.offsets.offset_sync import OffsetSync
from sidetier.mirror.offsets.stored_map import MapStore
from sidetier.mirror.offsets.translate import OffsetMapReader
from sidetier.mirror.partition_log import ClusterLog, wait_for_open_transactions
from sidetier.mirror.spark_copy import PartitionTask, SparkCopy, TaskArchive, plan_tasks
from sidetier.mirror.topics.acls import AclCopier
from sidetier.mirror.topics.catalog import BrokerTopics, Catalog
from sidetier.mirror.topics.planning import CatalogOptions, CopySettings
from sidetier.mirror.topics.rules import (
    Lineage,
    MirrorNames,
    TopicRules,
    compiled,
    decode_lineage,
    was_added,
)
from sidetier.segments.errors import ConfigurationError, MirrorError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.telemetry.logs import configure_logs
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import (
    EARLIEST,
    LATEST,
    CommittedOffset,
    committed_offsets,
    init_producer_id,
    list_offsets,
)
from sidetier.wire.settings import ClientSettings

_LINE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class MirrorSession:
    """Open clients of both clusters, the archive, and the rules of a running mirror."""

    names: MirrorNames
    rules: TopicRules
    catalog: Catalog
    source: Cluster
    target: Cluster
    source_client: Callable[[], Cluster]
    target_client: Callable[[], Cluster]
    archive: ArchiveSource | None
    archive_access: ArchiveAccess | None
    begin: str
    stop: threading.Event
    config: Config | None
    source_references: References
    target_references: References

    def copies(self, until: Mapping[TopicPartition, Offset] | None) -> dict[TopicPartition, Copy]:
        """Return the partitions of all workers; with `until`, only those in it."""
        copies = self.catalog.copies()
        return {tp: copy for tp, copy in copies.items() if until is None or tp in until}

    def first_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Offset]:
        """Return the first offsets of partitions without progress.

        With `--from end`, a partition that was added to a topic that is already copied still begins
        at its beginning.
        """
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

    def ends(self, copies: Mapping[TopicPartition, Copy]) -> dict[TopicPartition, Offset]:
        """Return the current last stable offsets: the exclusive ends of the committed records."""
        listed = list_offsets(
            self.source, dict.fromkeys(copies, LATEST), isolation=IsolationLevel.READ_COMMITTED
        )
        return {tp: listed_offset.offset for tp, listed_offset in listed.items()}

    def wait_until_visible(self, copies: Mapping[TopicPartition, Copy]) -> None:
        """Wait until no other worker's open transaction hides copied records, or for a signal."""
        targets = [copy.target for copy in copies.values()]
        wait_for_open_transactions(self.target, targets, self.stop)


def mirror(call: Invocation, given: Mapping[str, Any], output: OutputFormat) -> int:
    """Copy the topics that the options select; return the exit code.

    Raises:
        ConfigurationError: A setting or a topic does not fit; nothing was copied.
        SidetierError: A cluster or the archive cannot be read or written.
    """
    with _opened(call, given) as session:
        if given["dry_run"]:
            return _show_plan(session, output)
        workers = KafkaWorkerGroup(
            session.target.settings,
            session.names.group,
            given["worker"],
            group_kind(session.rules),
            session_timeout=given["session_timeout"],
        )
        copy = _copy_on_spark if given["engine"] == SPARK else _copy_here
        try:
            result = copy(session, workers, given)
        finally:
            workers.close()
        emit(result, output)
        is_left = result.counts.lag_records or result.groups_problem is not None
        if given["engine"] == SPARK and session.stop.is_set() and is_left:
            return exits.INTERRUPTED
        return result.exit_code


def _copy_here(
    session: MirrorSession, workers: KafkaWorkerGroup, given: Mapping[str, Any]
) -> CopyResult:
    until = session.ends(session.catalog.copies()) if given["until_caught_up"] else None
    source = KafkaSource(
        session.source_client, session.archive, until=until, on_gap=OnGap(given["on_gap"])
    )
    exactly_once = given["delivery"] == "exactly-once"
    transactional_id = session.names.transactional_id(given["worker"])
    target = KafkaTarget(
        session.target,
        session.names.group,
        transactional_id if exactly_once else None,
        membership=workers.membership,
        transaction_timeout=given["transaction_timeout"],
        task_id=session.names.partition_transactional_id,
    )
    engine = Engine(
        source,
        target,
        lambda: session.copies(until),
        session.first_offsets,
        offsets_topic=session.names.offsets_topic,
        workers=workers,
        limits=copy_limits(given),
        # With an end, only partitions count that existed at the start: there is nothing to refresh.
        refresh_seconds=None if until is not None else 30.0,
        stop=session.stop,
        leave_out=True,
    )
    try:
        with _offset_sync(session, lambda: engine.copies, given) as offset_sync:
            result = run_engine(
                engine,
                session.stop,
                metrics_port=given["metrics_port"],
                refused=lambda: session.catalog.refused,
                offset_sync=offset_sync,
            )
        # An open transaction of another worker hides the records behind it from consumers with
        # read_committed.
        if until is not None and exactly_once:
            session.wait_until_visible(engine.copies)
        return result
    finally:
        source.close()


def _copy_on_spark(
    session: MirrorSession, workers: KafkaWorkerGroup, given: Mapping[str, Any]
) -> CopyResult:
    """Copy with Spark tasks, which commit as the driver: it is the mirror's only worker."""
    workers.join()
    if workers.count > 1:
        raise ConfigurationError(
            f"mirror {session.names.name} has other running workers ({workers.count - 1}), but "
            "--engine spark must be the only worker: stop the other workers first, or replace a "
            "single one by giving its --worker"
        )
    # An open transaction of an earlier process of this worker would block read-committed consumers,
    # and the progress.
    init_producer_id(
        session.target,
        session.names.transactional_id(given["worker"]),
        transaction_timeout=given["transaction_timeout"],
    )
    copies = session.catalog.copies()
    ends = session.ends(copies)
    # A killed task may have left a transaction open, and a read of stable offsets would wait for
    # it. The partition's next task aborts it, and reads the progress again.
    done = committed_offsets(
        session.target,
        session.names.group,
        [copy.target for copy in copies.values()],
        require_stable=False,
    )
    starts = {tp: done[copy.target].offset for tp, copy in copies.items() if copy.target in done}
    starts |= session.first_offsets([tp for tp in copies if tp not in starts])
    planned = [
        PartitionTask(entry, starts[tp], ends[tp], is_begun=entry.target in done)
        for tp, entry in copies.items()
    ]
    copy = SparkCopy(
        session.names,
        plan_tasks(planned, {tp: committed.offset for tp, committed in done.items()}),
        copy_limits(given),
        session.target_references,
        source=session.source_references,
        archive=(
            TaskArchive(session.config.cluster.name, session.config.storage)
            if session.config is not None and session.archive is not None
            else None
        ),
        membership=workers.membership(),
        transaction_timeout=given["transaction_timeout"],
    )
    result = copy_on_spark(
        copy,
        given["master"] or SUBMITTED,
        session.target,
        session.stop,
        planned=planned,
        check=lambda: _require_alone(session, workers),
    )
    session.wait_until_visible(copies)
    ended = threading.Event()
    # Set from the start: `run` then takes only the last turn.
    ended.set()
    with _offset_sync(session, lambda: copies, given) as offset_sync:
        offset_sync.run(ended, session.stop)
    # The target topic of a copy may have been deleted and recreated while its tasks ran.
    topics = {tp.topic for tp in copies}
    return replace(
        result,
        refused={
            **session.catalog.refused,
            **{
                entry.source: entry.problem
                for entry in session.catalog.plan()
                if entry.source in topics and entry.problem is not None
            },
        },
        groups_problem=offset_sync.groups_problem,
    )


def _require_alone(session: MirrorSession, workers: KafkaWorkerGroup) -> None:
    if workers.must_join_again():
        raise MirrorError(
            f"another worker of mirror {session.names.name} has started, or the target has not "
            "received a heartbeat for --session-timeout. --engine spark must be the only worker, "
            "so the copy was cancelled"
        )


@contextmanager
def _offset_sync(
    session: MirrorSession,
    copies: Callable[[], Mapping[TopicPartition, Copy]],
    given: Mapping[str, Any],
) -> Iterator[OffsetSync]:
    """Open the task that shortens the offset map, stores it, and sets consumer groups."""
    patterns = [compiled(text, "--translate-groups") for text in given["group_patterns"]]
    store, archive = None, session.archive_access
    if archive is not None:
        store = MapStore(archive.default_store, archive.layout, session.names.name)
    topic = session.names.offsets_topic
    # Separate clients: a client may be used by one thread only.
    with (
        session.source_client() as source,
        session.target_client() as target,
        closing(KafkaTarget(target, session.names.group, None)) as map_writer,
    ):
        yield OffsetSync(
            lambda: {copy.source: copy.target for copy in copies().values()},
            session.names.group,
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


@contextmanager
def _opened(call: Invocation, given: Mapping[str, Any]) -> Iterator[MirrorSession]:

    names, rules = _named(given)
    config = None
    configure_logs("console" if sys.stderr.isatty() else "json")
    if call.is_configured():
        loaded = call.load(needs_log_dirs=False)
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
        source_cluster = stack.enter_context(Cluster(source_settings, stop=stop))
        if access is not None:
            cluster_id = source_cluster.metadata(()).cluster_id
            archive = ArchiveSource(access, cluster_id=cluster_id)
            archive.require_same_cluster()
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
        yield MirrorSession(
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


def _require_engine(given: Mapping[str, Any], clients: Mapping[str, References]) -> None:
    """Check the options that `--engine spark` requires.

    Raises:
        ConfigurationError: An option does not fit the engine.
    """
    require_engine(given, clients)
    if given["engine"] != SPARK:
        return
    if not given["until_caught_up"]:
        raise ConfigurationError(
            "--engine spark copies up to an end: add --until-caught-up. A mirror without an end "
            "runs with --engine local, in as many workers as it needs"
        )
    if given["delivery"] != "exactly-once":
        raise ConfigurationError(
            "--delivery at-least-once is for --engine local: of two attempts of a task, nothing "
            "would stop the slower one"
        )


def _admin(properties: Mapping[str, str]) -> KafkaClusterAdmin:

    client_properties = {
        name: value for name, value in properties.items() if name != "bootstrap.servers"
    }
    return KafkaClusterAdmin(properties["bootstrap.servers"], client_properties)


def _named(given: Mapping[str, Any]) -> tuple[MirrorNames, TopicRules]:

    if given["name"] is None:
        raise ConfigurationError("--name is missing: the mirror's progress is kept under it")
    rules = topic_rules(given["topics"], given["exclude"], given["rename"])
    return MirrorNames(given["name"]), rules


def _show_plan(session: MirrorSession, output: OutputFormat) -> int:

    planned = session.catalog.plan()
    done = committed_offsets(session.target, session.names.group)
    records_left: dict[str, int] = {}
    for topic in planned:
        sources = [TopicPartition(topic.source, number) for number in range(topic.partitions)]
        first, ends = session.first_offsets(sources), session.ends(dict.fromkeys(sources, None))  # type: ignore[arg-type]
        records_left[topic.source] = sum(
            max(ends[tp] - _start(done, TopicPartition(topic.target, tp.partition), first[tp]), 0)
            for tp in sources
        )
    result = PlanResult(planned, records_left)
    emit(result, output)
    return result.exit_code


def _start(
    done: Mapping[TopicPartition, CommittedOffset], target: TopicPartition, first: int
) -> int:
    return done[target].offset if target in done else first


def copy_limits(given: Mapping[str, Any]) -> Limits:
    """Return the limits that the options of `options.copy_options` set."""
    return Limits(
        transaction_bytes=given["transaction_bytes"],
        transaction_seconds=given["transaction_interval"],
        bytes_per_second=given["max_rate"],
        max_batch_bytes=given["max_batch_bytes"],
    )


def run_engine(
    engine: Engine,
    stop: threading.Event,
    *,
    metrics_port: int | None,
    refused: Callable[[], Mapping[str, str]] = dict,
    offset_sync: OffsetSync | None = None,
) -> CopyResult:
    """Run until the engine ends, or a signal sets `stop`.

    Args:
        engine: Runs in a thread of its own.
        stop: Set by a signal.
        metrics_port: Port for Prometheus; None for no metrics.
        refused: Returns the topics that are left out now, with the reason.
        offset_sync: Runs beside the engine, and a last time after it. If a signal ended the engine,
            a failure of the last time does not matter: the mirror will be started again.

    Raises:
        SidetierError: As `Engine.run`.
    """
    if metrics_port is not None:
        registry = CollectorRegistry()
        sync_counts = offset_sync.counts if offset_sync is not None else None
        registry.register(MirrorCollector(engine.counts, sync_counts, refused=refused))
        start_http_server(metrics_port, registry=registry)
    is_urgent = threading.Event()

    def on_signal(*_: object) -> None:
        is_urgent.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    failures: list[BaseException] = []
    ended = threading.Event()
    worker = threading.Thread(
        target=_run, args=(engine.run, failures, ended, is_urgent), name="mirror-engine"
    )
    syncer = _start_sync(offset_sync, ended, is_urgent, failures, stop)
    started = time.monotonic()
    worker.start()
    _show_progress(engine.counts, ended, lambda: time.monotonic() - started)
    worker.join()
    if syncer is not None:
        syncer.join()
    if failures:
        raise failures[0]
    groups_problem = None
    if offset_sync is not None and not stop.is_set():
        groups_problem = offset_sync.groups_problem
    return CopyResult(engine.counts, time.monotonic() - started, refused(), groups_problem)


def _run(
    work: Callable[[], None],
    failures: list[BaseException],
    ended: threading.Event,
    has_failed: threading.Event,
) -> None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 -- `run_engine` raises it
        failures.append(error)
        has_failed.set()
    finally:
        ended.set()


def _start_sync(
    offset_sync: OffsetSync | None,
    engine_ended: threading.Event,
    is_urgent: threading.Event,
    failures: list[BaseException],
    stop: threading.Event,
) -> threading.Thread | None:
    """Start a thread that syncs until the engine has ended; its unexpected error stops the
    engine.
    """
    if offset_sync is None:
        return None
    thread = threading.Thread(
        target=_run,
        # An event of its own: the end of the sync is not the end of the engine.
        args=(lambda: offset_sync.run(engine_ended, is_urgent), failures, threading.Event(), stop),
        name="mirror-offset-sync",
    )
    thread.start()
    return thread


def _show_progress(counts: Counts, ended: threading.Event, seconds: Callable[[], float]) -> None:
    """Update one line on standard error every second, if that is a terminal."""
    is_terminal = sys.stderr.isatty()
    last_bytes, last = 0, seconds()
    while not ended.wait(_LINE_SECONDS):
        now = seconds()
        rate = (counts.bytes - last_bytes) / max(now - last, 1e-9)
        last_bytes, last = counts.bytes, now
        if is_terminal:
            click.echo(
                f"\r{counts.records} records, {size_text(counts.bytes)}, {rate / 1e6:.1f} MB/s, "
                f"lag {counts.lag_records} records, {counts.aborts} aborts\x1b[K",
                nl=False,
                err=True,
            )
    if is_terminal:
        click.echo(err=True)
