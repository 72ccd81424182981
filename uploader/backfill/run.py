"""Plan and run one backfill: read the log dirs, ask the broker, store the missing segments."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Final, Protocol

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.objects.layout import check_stored_note
from sidetier.archive.progress import Amount, OnProgress, Progress, ignore_progress
from sidetier.config.model import BrokerConfig, Config
from sidetier.config.storage_urls import file_root
from sidetier.leadership.port import HighWatermark, TopicConfig, TopicConfigSource
from sidetier.segments.errors import ConfigurationError, LeadershipError, LeadershipUnavailableError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.properties import MetaProperties
from sidetier.storage.port import RemoteStorage
from sidetier.telemetry.status import PartitionState, PartitionStatus, StatusSnapshot
from sidetier.uploader.backfill.plan import BackfillPlan, PartitionPlan, Survey
from sidetier.uploader.daemon import Daemon
from sidetier.uploader.gates.high_watermark import HighWatermarkSource
from sidetier.uploader.led_partitions import latest_epoch
from sidetier.uploader.watching.disk import LogDirPartitions, find_partitions

PATIENCE_SECONDS: Final = 6.0
"""The run ends after this time without a running upload or request. By then the daemon has tried
every remaining segment four times, and a broker has written its checkpoint, which it does every 5
s.
"""
_LOOK_SECONDS: Final = 0.2
_HIGHEST: Final = Offset(2**63 - 1)
_NOTHING: Final[Mapping[TopicPartition, PartitionStatus]] = {}


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """What a backfill stores.

    Attributes:
        topics: Names of topics. Without topics and partitions, everything in the log dirs that the
            configuration selects is stored.
        partitions: Names of partitions, such as `orders-3`.
        offline: Send no request to a broker, even if one is configured.
        assume_committed: Take every closed segment as committed. The archive then differs from the
            log if the cluster discarded the last records of this replica.
    """

    topics: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    offline: bool = False
    assume_committed: bool = False


class BackfillAdapters(Protocol):
    """The adapters of a backfill. `uploader.wiring` builds them from the configuration."""

    def identity(self) -> MetaProperties:
        """Return the broker and cluster of the log dirs. Raises ConfigurationError."""
        ...

    def topic_configs(self) -> TopicConfigSource | None:
        """Return the source of topic configurations; None if no broker is configured."""
        ...

    def high_watermarks(self) -> HighWatermarkSource | None:
        """Return the source of high watermarks; None to use the broker's checkpoint only."""
        ...

    def archive(self, *, read_only: bool) -> AbstractContextManager[ArchiveAccess]:
        """Open the archive; with `read_only`, give up after seconds on a store without answers."""
        ...

    def daemon(
        self,
        partitions: tuple[TopicPartition, ...],
        high_watermarks: HighWatermarkSource | None,
    ) -> AbstractContextManager[Daemon]:
        """Build a daemon that leads these partitions. Raises ConfigurationError.

        `high_watermarks`, if given, replaces the configured source.
        """
        ...


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """Result of one partition; `why` is the reason if something is left."""

    plan: PartitionPlan
    next_offset: Offset | None
    stored: Amount
    gap_records: int = 0
    why: str | None = None

    @property
    def left(self) -> int:
        """Number of due segments that are not below the archive end."""
        return len(self.plan.due) - self.stored.segments


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """Result of a backfill; `unreadable` has a line for each log dir that could not be read."""

    partitions: tuple[PartitionOutcome, ...]
    interrupted: bool = False
    unreadable: tuple[str, ...] = ()

    @property
    def findings(self) -> bool:
        """Whether anything was not stored."""
        if self.unreadable:
            return True
        return any(
            partition.left or partition.gap_records or partition.why
            for partition in self.partitions
        )


class AssumedCommitted:
    """HighWatermarkSource that takes every closed segment as committed (--assume-committed)."""

    def __init__(self, directories: Mapping[TopicPartition, str]) -> None:
        self._directories = directories

    def high_watermarks(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, HighWatermark]:
        """Return the highest possible offset, in the latest epoch of the partition's directory."""
        return {
            tp: HighWatermark(_HIGHEST, latest_epoch(self._directories[tp]))
            for tp in partitions
            if tp in self._directories
        }

    def close(self) -> None:
        """Do nothing: no connection is open."""


class Backfill:
    """One backfill of the log dirs. A broker and a sidecar may be running.

    A run that was interrupted or killed leaves a complete archive up to some offset; the next one
    stores the rest.

    Args:
        config: The configuration, with `log_dirs`.
        request: What is stored.
        adapters: Returns the adapters for the configuration with the changes of the request, such
            as `uploader.wiring.ConfiguredBackfill`.

    Raises:
        ConfigurationError: A log dir is wrong, or a named topic or partition is not in one of the
            log dirs.
        LeadershipUnavailableError: A broker is configured and does not answer.
    """

    def __init__(
        self,
        config: Config,
        request: BackfillRequest,
        adapters: Callable[[Config], BackfillAdapters],
    ) -> None:
        self._config = _of_one_run(config, request)
        self._assume_committed = request.assume_committed
        self._adapters = adapters(self._config)
        self._identity = self._adapters.identity()
        self._on_disk = _wanted(self._config, self._identity, request.topics, request.partitions)
        topics = sorted({tp.topic for tp in self._on_disk.directories})
        self._topic_configs = _topic_configs(self._adapters.topic_configs(), topics)

    def plan(self, *, read_only: bool = False) -> BackfillPlan:
        """Return what a run would store; nothing is written.

        Args:
            read_only: Do not even create a store's directory, and give up after seconds on a store
                that does not answer.

        Raises:
            ConfigurationError: The archive belongs to another cluster.
            StorageError: The store refuses, or does not answer.
        """
        with (
            self._adapters.archive(read_only=read_only) as archive,
            self._high_watermarks() as source,
        ):
            return Survey(
                config=self._config,
                layout=archive.layout,
                broker_id=self._identity.broker_id,
                on_disk=self._on_disk,
                store_of=_Stores(archive, self._identity.cluster_id, read_only=read_only).of,
                topic_configs=self._topic_configs,
                high_watermarks=source,
            ).plan()

    def run(
        self,
        plan: BackfillPlan,
        *,
        stop: threading.Event | None = None,
        on_progress: OnProgress = ignore_progress,
    ) -> BackfillReport:
        """Store the planned segments; return when all are stored, or nothing more can be done.

        Segments that a running broker closes meanwhile are not waited for.

        Args:
            plan: The result of `plan`.
            stop: Ends the run early when it is set; running uploads and requests may finish.
            on_progress: Called a few times a second.

        Raises:
            ConfigurationError: The configuration can never work.
            DaemonDiedError: A thread died.
        """
        if not plan.work:
            return _report(plan, _NOTHING)
        partitions = tuple(partition.topic_partition for partition in plan.work)
        assumed = AssumedCommitted(self._on_disk.directories) if self._assume_committed else None
        with self._adapters.daemon(partitions, assumed) as daemon:
            return _run(plan, daemon, stop or threading.Event(), on_progress)

    @contextmanager
    def _high_watermarks(self) -> Iterator[HighWatermarkSource | None]:
        source: HighWatermarkSource | None = AssumedCommitted(self._on_disk.directories)
        if not self._assume_committed:
            source = self._adapters.high_watermarks()
        try:
            yield source
        finally:
            if source is not None:
                source.close()


def _run(
    plan: BackfillPlan, daemon: Daemon, stop: threading.Event, on_progress: OnProgress
) -> BackfillReport:
    total = Amount(plan.segments, plan.size)

    def look() -> None:
        """Report the progress; stop the daemon when everything planned is done."""
        statuses = _by_partition(daemon.status.snapshot())
        done = [partition.done(_next_offset(partition, statuses)) for partition in plan.work]
        amount = Amount(sum(count for count, _ in done), sum(size for _, size in done))
        held = sum(status.last_error is not None for status in statuses.values())
        on_progress(Progress(amount, total, held))
        if stop.is_set() or all(_is_done(partition, statuses) for partition in plan.work):
            daemon.stop()

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="daemon") as pool:
        running = pool.submit(daemon.run_until_settled, PATIENCE_SECONDS)
        while not wait([running], _LOOK_SECONDS).done:
            look()
        running.result()
    look()
    report = _report(plan, _by_partition(daemon.status.snapshot()))
    is_incomplete = any(partition.left for partition in report.partitions)
    return replace(report, interrupted=stop.is_set() and is_incomplete)


def _report(
    plan: BackfillPlan, statuses: Mapping[TopicPartition, PartitionStatus]
) -> BackfillReport:
    outcomes = tuple(_outcome(partition, statuses) for partition in plan.partitions)
    return BackfillReport(outcomes, unreadable=plan.unreadable)


def _by_partition(snapshot: StatusSnapshot) -> Mapping[TopicPartition, PartitionStatus]:
    return {status.topic_partition: status for status in snapshot.partitions}


def _next_offset(
    partition: PartitionPlan, statuses: Mapping[TopicPartition, PartitionStatus]
) -> Offset | None:
    status = statuses.get(partition.topic_partition)
    # A new archive has an end before anything is stored: the base offset of its first segment.
    return (
        partition.next_offset
        if status is None or status.next_offset is None
        else status.next_offset
    )


def _is_done(partition: PartitionPlan, statuses: Mapping[TopicPartition, PartitionStatus]) -> bool:
    status = statuses.get(partition.topic_partition)
    if status is None:
        return False  # the daemon has not listed the partition yet
    reached = status.next_offset is not None and status.next_offset >= partition.target
    return reached or status.state is PartitionState.HALTED


def _outcome(
    partition: PartitionPlan, statuses: Mapping[TopicPartition, PartitionStatus]
) -> PartitionOutcome:
    following = _next_offset(partition, statuses) if partition.has_work else partition.next_offset
    stored = Amount(*partition.done(following)) if partition.has_work else Amount()
    status = statuses.get(partition.topic_partition) if partition.has_work else None
    left = len(partition.due) - stored.segments
    why = partition.refused if partition.due else None
    if status is not None and (left or status.state is PartitionState.HALTED):
        why = status.last_error or status.waiting_for
    gaps = status.gap_records if status is not None else 0
    return PartitionOutcome(partition, following, stored, gaps, why or partition.problem)


def _of_one_run(config: Config, request: BackfillRequest) -> Config:
    """Return the configuration with the changes that a single run needs."""
    changes: dict[str, object] = {
        # `latest` would leave out the old segments, which a backfill is for
        "uploader": config.uploader.model_copy(update={"offset_reset": "earliest"})
    }
    if request.offline:
        changes["broker"] = BrokerConfig(id=config.broker.id)
    return config.model_copy(update=changes)


class _Stores:
    """Opens stores for the survey, and checks the layout note of each store once."""

    def __init__(self, archive: ArchiveAccess, kafka_id: str | None, *, read_only: bool) -> None:
        self._archive = archive
        self._kafka_id = kafka_id
        self._read_only = read_only
        self._checked: set[int] = set()

    def of(self, topic: str) -> RemoteStorage | None:
        """Return the store of a topic; None if opening it would create its directory."""
        root = file_root(self._archive.provider.endpoint(topic).url)
        if self._read_only and root is not None and not (root.is_dir() and any(root.iterdir())):
            return None
        store = self._archive.store(topic)
        if id(store) not in self._checked:
            check_stored_note(store, self._archive.layout, self._kafka_id)
            self._checked.add(id(store))
        return store


def _wanted(
    config: Config, identity: MetaProperties, topics: tuple[str, ...], partitions: tuple[str, ...]
) -> LogDirPartitions:
    """Return the selected partitions, and the partitions and log dirs that cannot be read.

    Raises:
        ConfigurationError: A named topic or partition is not in the log dirs, or is excluded.
    """
    on_disk = find_partitions(map(str, config.log_dirs), lambda _: True, identity)
    every_partition = [*on_disk.directories, *on_disk.refused]
    selected = {tp for tp in every_partition if config.topics.selects(tp.topic)}
    if topics or partitions:
        names_on_disk = {tp.topic for tp in every_partition} | {str(tp) for tp in every_partition}
        selected_names = {tp.topic for tp in selected} | {str(tp) for tp in selected}
        log_dirs = ", ".join(map(str, config.log_dirs))
        problems = [
            f"{name} is left out by topics.include, topics.exclude or topics.internal"
            if name in names_on_disk
            else "; ".join(
                [f"{name} is not in the log dirs {log_dirs}", *on_disk.unreadable.values()]
            )
            for name in (*topics, *partitions)
            if name not in selected_names
        ]
        if problems:
            raise ConfigurationError("\n".join(problems))
        selected = {tp for tp in selected if tp.topic in topics or str(tp) in partitions}
    return LogDirPartitions(
        {tp: directory for tp, directory in on_disk.directories.items() if tp in selected},
        {tp: reason for tp, reason in on_disk.refused.items() if tp in selected},
        unreadable=on_disk.unreadable,
    )


def _topic_configs(
    source: TopicConfigSource | None, topics: list[str]
) -> Mapping[str, TopicConfig | None]:
    """Return the broker's configurations of the topics; empty if no broker is configured."""
    if source is None or not topics:
        return {}
    try:
        return source.topic_configs(topics)
    except LeadershipError as error:
        raise LeadershipUnavailableError(
            f"{error}; is the broker up? --offline goes by the log dirs alone"
        ) from error
    finally:
        source.close()
