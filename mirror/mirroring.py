"""Copy topics of one Kafka cluster into another, each record exactly once."""

import threading
import time
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Literal

from prometheus_client import CollectorRegistry

from sidetier.archive.access import ArchiveAccess, open_archive
from sidetier.config.model import Config
from sidetier.config.types import References, resolved
from sidetier.leadership.cluster import as_texts
from sidetier.mirror.cluster_state.kafka_admin import KafkaClusterAdmin
from sidetier.mirror.copy.archive_source import ArchiveSource
from sidetier.mirror.copy.engine import Copy, Engine, write_map_records
from sidetier.mirror.copy.run import CopyReport, CopyRequest, OnCounts, run_engine
from sidetier.mirror.copy.source import KafkaSource
from sidetier.mirror.copy.target import KafkaTarget
from sidetier.mirror.copy.workers import KafkaWorkerGroup, group_kind
from sidetier.mirror.offsets.groups import ClusterGroups
from sidetier.mirror.offsets.offset_sync import OffsetSync
from sidetier.mirror.offsets.stored_map import MapStore
from sidetier.mirror.offsets.translate import OffsetMapReader
from sidetier.mirror.partition_log import ClusterLog, wait_for_open_transactions
from sidetier.mirror.spark_copy import PartitionTask, SparkCopy, TaskArchive, plan_tasks
from sidetier.mirror.spark_driver import SparkEngine, check_spark_request, copy_on_spark
from sidetier.mirror.topics.acls import AclCopier
from sidetier.mirror.topics.catalog import BrokerTopics, Catalog
from sidetier.mirror.topics.planning import CatalogOptions, CopySettings, PlannedCopy
from sidetier.mirror.topics.rules import (
    Lineage,
    MirrorNames,
    TopicRules,
    compiled,
    decode_lineage,
    was_added,
)
from sidetier.segments.errors import ConfigurationError, KafkaApiError, MirrorError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, TopicPartition
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

_LEADER_SECONDS: Final = 10.0
"""Longest wait for the leaders of the source's partitions."""


class Delivery(StrEnum):
    """How often a record is copied after a failure."""

    EXACTLY_ONCE = "exactly-once"
    """Records and progress in one transaction."""
    AT_LEAST_ONCE = "at-least-once"
    """Progress after the records, so that a failure copies some records twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorRequest:
    """What a mirror copies, and how.

    Attributes:
        name: Name of the mirror; its progress is kept under it.
        copy: The topics, and the limits of the copy.
        delivery: How often a record is copied after a failure.
        begin: Where a partition starts that this mirror has never copied.
        accept_target_records: Copy also into topics that have records, but no progress of this
            mirror.
        on_new_partitions: What to do when a source topic gets more partitions.
        on_recreate: What to do when a source topic is deleted and created again; `restart` deletes
            the copy with all its records.
        copy_settings: Which copies get the configuration of their source topic.
        copy_acls: Give the copies the ACLs of their source topics, without the permission to write.
        until_caught_up: Stop after the records that the source had committed at the start.
        worker: Name of this process among the workers that share the partitions.
        session_timeout: Seconds without a heartbeat after which other workers take over.
        transaction_timeout: Seconds after which the target aborts a dead worker's transaction.
        group_patterns: Regular expressions for whole names of consumer groups, which the mirror
            sets on the target to their positions on the source.
        translate_interval: Interval in seconds at which it sets these groups.
        offset_map_runs: Maximum entries of each partition in the offset map.
    """

    name: str
    copy: CopyRequest = field(default_factory=CopyRequest)
    delivery: Delivery = Delivery.EXACTLY_ONCE
    begin: Literal["beginning", "end"] = "beginning"
    accept_target_records: bool = False
    on_new_partitions: Literal["add", "refuse"] = "add"
    on_recreate: Literal["stop", "restart"] = "stop"
    copy_settings: CopySettings = CopySettings.ONCE
    copy_acls: bool = False
    until_caught_up: bool = False
    worker: str = "0"
    session_timeout: float = 30.0
    transaction_timeout: float = 60.0
    group_patterns: tuple[str, ...] = ()
    translate_interval: float = 60.0
    offset_map_runs: int = 1024


@dataclass(frozen=True, slots=True)
class MirrorPlan:
    """What a mirror would copy.

    Attributes:
        topics: The topics.
        offsets_left: Number of offsets to copy of each source topic, including markers and aborted
            records.
    """

    topics: Sequence[PlannedCopy]
    offsets_left: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Mirror:
    """A mirror with open clients of both clusters and the archive; `open_mirror` returns it."""

    request: MirrorRequest
    names: MirrorNames
    rules: TopicRules
    catalog: Catalog
    source: Cluster
    target: Cluster
    source_client: Callable[[], Cluster]
    target_client: Callable[[], Cluster]
    archive: ArchiveSource | None
    archive_access: ArchiveAccess | None
    stop: threading.Event
    config: Config | None
    source_references: References
    target_references: References
    spark: SparkEngine | None
    registry: CollectorRegistry | None

    def copies(self, among: Container[TopicPartition] | None) -> dict[TopicPartition, Copy]:
        """Return the partitions of all workers; with `among`, only those in it."""
        copies = self.catalog.copies()
        return {tp: copy for tp, copy in copies.items() if among is None or tp in among}

    def first_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Offset]:
        """Return the first offsets of partitions without progress, if they have a leader.

        With `--from end`, a partition that was added to a topic that is already copied still begins
        at its beginning.
        """
        partitions = self._with_leader(partitions)
        at = dict.fromkeys(partitions, EARLIEST)
        if self.request.begin == "end":
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

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Offset]:
        """Return the current last stable offsets: the exclusive ends of the committed records.

        Partitions without a leader are missing.
        """
        listed = list_offsets(
            self.source,
            dict.fromkeys(self._with_leader(partitions), LATEST),
            isolation=IsolationLevel.READ_COMMITTED,
        )
        return {tp: listed_offset.offset for tp, listed_offset in listed.items()}

    def _with_leader(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """Wait until the partitions have leaders, for a while; return those that have one.

        Raises:
            SidetierError: The brokers refuse, or cannot be asked.
        """
        try:
            self.source.retrying(lambda: self.source.leaders(partitions), timeout=_LEADER_SECONDS)
        except KafkaApiError as error:
            if not error.retry:
                raise
            without = self.source.leaders_or_errors(partitions)[1]
            return [tp for tp in partitions if tp not in without]
        return partitions

    def wait_until_visible(self, copies: Mapping[TopicPartition, Copy]) -> None:
        """Wait until no other worker's open transaction hides copied records, or for a signal."""
        targets = [copy.target for copy in copies.values()]
        wait_for_open_transactions(self.target, targets, self.stop)

    def plan(self) -> MirrorPlan:
        """Return what would be copied. Nothing is changed.

        Raises:
            SidetierError: A cluster or the archive cannot be read.
        """
        planned = self.catalog.plan()
        done = committed_offsets(self.target, self.names.group)
        records_left: dict[str, int] = {}
        for topic in planned:
            sources = [TopicPartition(topic.source, number) for number in range(topic.partitions)]
            first, ends = self.first_offsets(sources), self.ends(sources)
            records_left[topic.source] = sum(
                max(
                    ends[tp] - _start(done, TopicPartition(topic.target, tp.partition), first[tp]),
                    0,
                )
                for tp in first.keys() & ends.keys()
            )
        return MirrorPlan(planned, records_left)

    def run(self, on_counts: OnCounts = lambda _: None) -> CopyReport:
        """Copy until `stop` is set, or with `until_caught_up` until everything is copied.

        Args:
            on_counts: Called every second of a copy in this process.

        Raises:
            ConfigurationError: A topic does not fit; nothing was copied.
            SidetierError: A cluster or the archive cannot be read or written.
        """
        workers = KafkaWorkerGroup(
            self.target.settings,
            self.names.group,
            self.request.worker,
            group_kind(self.rules),
            session_timeout=self.request.session_timeout,
        )
        try:
            if self.spark is not None:
                return self._copy_on_spark(workers, self.spark)
            return self._copy_here(workers, on_counts)
        finally:
            workers.close()

    def _copy_here(self, workers: KafkaWorkerGroup, on_counts: OnCounts) -> CopyReport:
        begun = self.catalog.copies() if self.request.until_caught_up else None
        until = None if begun is None else self.ends(begun)
        source = KafkaSource(
            self.source_client, self.archive, until=until, on_gap=self.request.copy.on_gap
        )
        exactly_once = self.request.delivery is Delivery.EXACTLY_ONCE
        transactional_id = self.names.transactional_id(self.request.worker)
        target = KafkaTarget(
            self.target,
            self.names.group,
            transactional_id if exactly_once else None,
            membership=workers.membership,
            transaction_timeout=self.request.transaction_timeout,
            task_id=self.names.partition_transactional_id,
        )
        engine = Engine(
            source,
            target,
            lambda: self.copies(begun),
            self.first_offsets,
            offsets_topic=self.names.offsets_topic,
            workers=workers,
            limits=self.request.copy.limits,
            # With an end, only partitions count that existed at the start: nothing to refresh.
            refresh_seconds=None if until is not None else 30.0,
            stop=self.stop,
            leave_out=True,
        )
        try:
            with self._offset_sync(lambda: engine.copies) as offset_sync:
                result = run_engine(
                    engine,
                    self.stop,
                    registry=self.registry,
                    refused=lambda: self.catalog.refused,
                    offset_sync=offset_sync,
                    on_counts=on_counts,
                )
            # An open transaction of another worker hides the records behind it from consumers with
            # read_committed.
            if until is not None and exactly_once:
                self.wait_until_visible(engine.copies)
            return result
        finally:
            source.close()
            target.close()

    def _copy_on_spark(self, workers: KafkaWorkerGroup, spark: SparkEngine) -> CopyReport:
        """Copy with Spark tasks, which commit as the driver: it is the mirror's only worker."""
        workers.join()
        if workers.count > 1:
            raise ConfigurationError(
                f"mirror {self.names.name} has other running workers ({workers.count - 1}), but "
                "--engine spark must be the only worker: stop the other workers first, or replace "
                "a single one by giving its --worker"
            )
        # An open transaction of an earlier process of this worker would block read-committed
        # consumers, and the progress.
        init_producer_id(
            self.target,
            self.names.transactional_id(self.request.worker),
            transaction_timeout=self.request.transaction_timeout,
        )
        begun = self.catalog.copies()
        ends = self.ends(begun)
        # A killed task may have left a transaction open, and a read of stable offsets would wait
        # for it. The partition's next task aborts it, and reads the progress again.
        done = committed_offsets(
            self.target,
            self.names.group,
            [copy.target for copy in begun.values()],
            require_stable=False,
        )
        starts = {tp: done[copy.target].offset for tp, copy in begun.items() if copy.target in done}
        starts |= self.first_offsets([tp for tp in begun if tp not in starts])
        copies = {tp: copy for tp, copy in begun.items() if tp in starts and tp in ends}
        planned = [
            PartitionTask(entry, starts[tp], ends[tp], is_begun=entry.target in done)
            for tp, entry in copies.items()
        ]
        copy = SparkCopy(
            self.names,
            plan_tasks(planned, {tp: committed.offset for tp, committed in done.items()}),
            self.request.copy.limits,
            self.target_references,
            source=self.source_references,
            archive=(
                TaskArchive(self.config.cluster.name, self.config.storage)
                if self.config is not None and self.archive is not None
                else None
            ),
            membership=workers.membership(),
            transaction_timeout=self.request.transaction_timeout,
        )
        result = copy_on_spark(
            spark,
            copy,
            self.target,
            self.stop,
            planned=planned,
            check=lambda: self._require_alone(workers),
        )
        self.wait_until_visible(copies)
        ended = threading.Event()
        # Set from the start: `run` then takes only the last turn.
        ended.set()
        with self._offset_sync(lambda: copies) as offset_sync:
            offset_sync.run(ended, self.stop)
        result.counts.left_out |= {
            tp: f"{tp} had no leader at the start" for tp in begun.keys() - copies.keys()
        }
        # The target topic of a copy may have been deleted and recreated while its tasks ran.
        topics = {tp.topic for tp in copies}
        return replace(
            result,
            refused={
                **self.catalog.refused,
                **{
                    entry.source: entry.problem
                    for entry in self.catalog.plan()
                    if entry.source in topics and entry.problem is not None
                },
            },
            groups_problem=offset_sync.groups_problem,
        )

    def _require_alone(self, workers: KafkaWorkerGroup) -> None:
        if workers.must_join_again():
            raise MirrorError(
                f"another worker of mirror {self.names.name} has started, or the target has not "
                "received a heartbeat for --session-timeout. --engine spark must be the only "
                "worker, so the copy was cancelled"
            )

    @contextmanager
    def _offset_sync(
        self, copies: Callable[[], Mapping[TopicPartition, Copy]]
    ) -> Iterator[OffsetSync]:
        """Open the task that shortens the offset map, stores it, and sets consumer groups."""
        patterns = [compiled(text, "--translate-groups") for text in self.request.group_patterns]
        store, archive = None, self.archive_access
        if archive is not None:
            store = MapStore(archive.default_store, archive.layout, self.names.name)
        topic = self.names.offsets_topic
        # Separate clients: a client may be used by one thread only.
        with (
            self.source_client() as source,
            self.target_client() as target,
            closing(KafkaTarget(target, self.names.group, None)) as map_writer,
        ):
            yield OffsetSync(
                lambda: {copy.source: copy.target for copy in copies().values()},
                self.names.group,
                OffsetMapReader(ClusterLog(target), topic, self.request.offset_map_runs),
                ClusterGroups(source),
                ClusterGroups(target),
                shorten=lambda records: write_map_records(
                    map_writer, topic, records, time.time_ns() // 1_000_000
                ),
                store=store,
                patterns=patterns,
                interval=self.request.translate_interval,
            )


@contextmanager
def open_mirror(  # noqa: PLR0913 -- four have a default
    request: MirrorRequest,
    source: References,
    target: References,
    *,
    config: Config | None = None,
    stop: threading.Event | None = None,
    spark: SparkEngine | None = None,
    registry: CollectorRegistry | None = None,
) -> Iterator[Mirror]:
    """Open the clients of a mirror; closed on exit.

    Args:
        request: What is copied.
        source: Properties of the source's Kafka client, in librdkafka's names.
        target: Properties of the target's Kafka client.
        config: Configuration of the source's archive, for records that the brokers have deleted;
            None to read the brokers only.
        stop: Ends the copy when it is set, after the transaction under way. Also set after a
            failure.
        spark: Copies in Spark tasks; None to copy in this process. Needs `until_caught_up`.
        registry: Gets the metrics of a copy in this process.

    Raises:
        ConfigurationError: A setting does not fit, or the archive is of another cluster.
        SidetierError: A cluster or the archive cannot be read.
    """
    names, rules = MirrorNames(request.name), request.copy.rules
    if spark is not None:
        clients = {"source": source, "target": target}
        check_spark_request(request.copy, clients, has_registry=registry is not None)
        _check_end(request)
    stop = stop or threading.Event()
    source_properties = as_texts(resolved(source))
    target_properties = as_texts(resolved(target))
    source_settings = ClientSettings.from_properties(source_properties)
    target_settings = ClientSettings.from_properties(target_properties)
    acls = None
    if request.copy_acls:
        acls = AclCopier(_admin(source_properties), _admin(target_properties))
    with ExitStack() as stack:
        access, archive = None, None
        if config is not None:
            access = stack.enter_context(
                open_archive(config.cluster.name, config.storage, stop=stop)
            )
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
                replication_factor=request.copy.replication_factor or -1,
                accept_log_append_time=request.copy.accept_log_append_time,
                accept_records=request.accept_target_records,
                settings=request.copy_settings,
                raise_partitions=request.on_new_partitions == "add",
                restart_recreated=request.on_recreate == "restart",
            ),
            acls,
        )
        yield Mirror(
            request,
            names,
            rules,
            catalog,
            source_cluster,
            target_cluster,
            lambda: Cluster(source_settings, stop=stop),
            lambda: Cluster(target_settings, stop=stop),
            archive,
            access,
            stop,
            config,
            source,
            target,
            spark,
            registry,
        )


def _check_end(request: MirrorRequest) -> None:
    if not request.until_caught_up:
        raise ConfigurationError(
            "--engine spark copies up to an end: add --until-caught-up. A mirror without an end "
            "runs with --engine local, in as many workers as it needs"
        )
    if request.delivery is not Delivery.EXACTLY_ONCE:
        raise ConfigurationError(
            "--delivery at-least-once is for --engine local: of two attempts of a task, nothing "
            "would stop the slower one"
        )


def _admin(properties: Mapping[str, str]) -> KafkaClusterAdmin:

    client_properties = {
        name: value for name, value in properties.items() if name != "bootstrap.servers"
    }
    return KafkaClusterAdmin(properties["bootstrap.servers"], client_properties)


def _start(
    done: Mapping[TopicPartition, CommittedOffset], target: TopicPartition, first: int
) -> int:
    return done[target].offset if target in done else first
