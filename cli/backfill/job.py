"""Plan and run one backfill: read the log dirs, ask the broker, store the missing segments."""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.objects.layout import check_note, read_note
from sidetier.archive.progress import Amount, OnProgress, Progress
from sidetier.cli.backfill.survey import BackfillPlan, PartitionPlan, Survey
from sidetier.cli.progress import shown
from sidetier.cli.signals import handled_signals
from sidetier.cli.stores import layout_of, open_archive, told_waits, with_short_timeouts
from sidetier.cli.wiring import (
    daemon,
    high_watermark_source,
    identify,
    topic_config_source,
)
from sidetier.config.loading import LoadedConfig
from sidetier.config.model import BrokerConfig, Config
from sidetier.config.storage_urls import file_root
from sidetier.leadership.port import HighWatermark, TopicConfig
from sidetier.leadership.settings import StaticSettings
from sidetier.segments.errors import ConfigurationError, LeadershipError, LeadershipUnavailableError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.properties import MetaProperties
from sidetier.storage.port import RemoteStorage
from sidetier.telemetry.metrics import Metrics, create_registry
from sidetier.telemetry.status import PartitionState, PartitionStatus, StatusSnapshot
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
class Outcome:
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
    """One run; `stop` ends it early and lets requests under way finish."""

    def __init__(self, plan: BackfillPlan, daemon: Daemon, report: OnProgress) -> None:
        self._plan = plan
        self._daemon = daemon
        self._report = report
        self._interrupted = False
        self._total = Amount(plan.segments, plan.size)

    def stop(self) -> None:
        """End early; running uploads and requests may finish. Callable from any thread and signal
        handler.
        """
        self._interrupted = True
        self._daemon.stop()

    def run(self) -> Outcome:
        """Store the due segments; return when all are stored, or nothing more can be done.

        Segments that a running broker closes meanwhile are not waited for.

        Raises:
            ConfigurationError: The configuration can never work.
            DaemonDiedError: A thread died.
        """
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="daemon") as pool:
            running = pool.submit(self._daemon.run_until_settled, PATIENCE_SECONDS)
            while not wait([running], _LOOK_SECONDS).done:
                self._look()
            running.result()
        self._look()
        return self._outcome()

    def _look(self) -> None:
        """Report the progress; stop the daemon when everything planned is done."""
        statuses = _by_partition(self._daemon.status.snapshot())
        done = [partition.done(_next_offset(partition, statuses)) for partition in self._plan.work]
        segments, sizes = sum(count for count, _ in done), sum(size for _, size in done)
        held = sum(status.last_error is not None for status in statuses.values())
        self._report(Progress(Amount(segments, sizes), self._total, held))
        if all(_is_done(partition, statuses) for partition in self._plan.work):
            self._daemon.stop()

    def _outcome(self) -> Outcome:
        statuses = _by_partition(self._daemon.status.snapshot())
        outcomes = tuple(_outcome(partition, statuses) for partition in self._plan.partitions)
        is_incomplete = any(partition.left for partition in outcomes)
        return Outcome(outcomes, self._interrupted and is_incomplete, self._plan.unreadable)


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


def no_run(plan: BackfillPlan) -> Outcome:
    """Return the result of a plan without work."""
    outcomes = tuple(_outcome(partition, _NOTHING) for partition in plan.partitions)
    return Outcome(outcomes, unreadable=plan.unreadable)


class Scope:
    """The loaded configuration, with the changes that a single run needs."""

    def __init__(self, loaded: LoadedConfig, *, offline: bool, assume_committed: bool) -> None:
        config = loaded.config
        changes: dict[str, object] = {
            # `latest` would leave out the old segments, which a backfill is for
            "uploader": config.uploader.model_copy(update={"offset_reset": "earliest"})
        }
        if offline:
            changes["broker"] = BrokerConfig(id=config.broker.id)
        self.loaded = loaded
        self.config: Config = config.model_copy(update=changes)
        self.assume_committed = assume_committed


@dataclass(frozen=True, slots=True)
class Job:
    """The partitions of the log dirs, and the broker's answers about their topics."""

    scope: Scope
    identity: MetaProperties
    on_disk: LogDirPartitions
    topic_configs: Mapping[str, TopicConfig | None]

    def survey(self, *, read_only: bool) -> BackfillPlan:
        """Plan the backfill.

        Args:
            read_only: Do not even create a store's directory, and give up after seconds on a store
                that does not answer.
        """
        config = with_short_timeouts(self.scope.config) if read_only else self.scope.config
        with (
            told_waits() as calls,
            open_archive(config, calls=calls) as archive,
            self._high_watermarks() as source,
        ):
            return Survey(
                config=config,
                layout=layout_of(config),
                broker_id=self.identity.broker_id,
                on_disk=self.on_disk,
                store_of=_Stores(archive, self.identity.cluster_id, read_only=read_only).of,
                topic_configs=self.topic_configs,
                high_watermarks=source,
            ).plan()

    def run(self, plan: BackfillPlan) -> Outcome:
        """Store the planned segments."""
        if not plan.work:
            return no_run(plan)
        config, loaded = self.scope.config, self.scope.loaded
        leads = StaticSettings(tuple(partition.topic_partition for partition in plan.work))
        assumed = (
            AssumedCommitted(self.on_disk.directories) if self.scope.assume_committed else None
        )
        metrics = Metrics(create_registry(), config.http.max_partition_series)
        with (
            daemon(
                config, metrics, loaded.origins, leadership=leads, high_watermarks=assumed
            ) as built,
            shown() as report,
        ):
            backfill = Backfill(plan, built, report)
            with handled_signals(backfill.stop):
                return backfill.run()

    @contextmanager
    def _high_watermarks(self) -> Iterator[HighWatermarkSource | None]:
        source: HighWatermarkSource | None = AssumedCommitted(self.on_disk.directories)
        if not self.scope.assume_committed:
            source = high_watermark_source(self.scope.config)
        try:
            yield source
        finally:
            if source is not None:
                source.close()


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
            note = read_note(store, self._archive.layout)
            if note is not None:
                check_note(note, self._archive.layout, self._kafka_id)
            self._checked.add(id(store))
        return store


def prepare(scope: Scope, topics: tuple[str, ...], partitions: tuple[str, ...]) -> Job:
    """Read the log dirs and ask the broker for topic configurations; write nothing.

    Raises:
        ConfigurationError: A log dir is wrong, or a named topic or partition is not in one of
            the log dirs.
        LeadershipUnavailableError: A broker is configured and does not answer.
    """
    config = scope.config
    identity = identify(config, scope.loaded.origins)
    selected = _wanted(config, identity, topics, partitions)
    names = sorted({tp.topic for tp in selected.directories})
    return Job(scope, identity, selected, _topic_configs(config, names))


def _wanted(
    config: Config, identity: MetaProperties, topics: tuple[str, ...], partitions: tuple[str, ...]
) -> LogDirPartitions:
    """Return the selected partitions, and those of them and the log dirs that cannot be read.

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


def _topic_configs(config: Config, topics: list[str]) -> Mapping[str, TopicConfig | None]:
    """Return the broker's configurations of the topics; empty if no broker is configured."""
    source = topic_config_source(config)
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
