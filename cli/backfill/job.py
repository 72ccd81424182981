"""Plan and run one backfill: read the log dirs, ask the broker, store what is missing."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.objects.layout import check_note, read_note
from sidetier.cli.backfill.plan import BackfillPlan
from sidetier.cli.backfill.progress import Amount, shown
from sidetier.cli.backfill.run import AssumedCommitted, Backfill, Outcome, no_run
from sidetier.cli.backfill.survey import Ground, survey
from sidetier.cli.store_waits import told_waits
from sidetier.cli.stores import layout_of, open_archive, with_short_timeouts
from sidetier.cli.wiring import (
    daemon,
    high_watermark_source,
    identify,
    stopped_by_signals,
    topic_config_source,
)
from sidetier.config.cluster import BrokerConfig
from sidetier.config.contradictions import file_root
from sidetier.config.loading import LoadedConfig
from sidetier.config.model import Config
from sidetier.leadership.port import TopicConfig
from sidetier.leadership.settings import StaticSettings
from sidetier.segments.errors import ConfigurationError, LeadershipError, LeadershipUnavailableError
from sidetier.segments.properties import MetaProperties
from sidetier.storage.port import RemoteStorage
from sidetier.telemetry.metrics import Metrics, create_registry
from sidetier.uploader.gates.high_watermark import HighWatermarkSource
from sidetier.uploader.watching.disk import LogDirPartitions, find_partitions


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
    found: LogDirPartitions
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
            ground = Ground(
                config=config,
                layout=layout_of(config),
                broker_id=self.identity.broker_id,
                found=self.found,
                store_of=_Stores(archive, self.identity.cluster_id, read_only=read_only).of,
                topic_configs=self.topic_configs,
                high_watermarks=source,
            )
            return survey(ground)

    def run(self, plan: BackfillPlan) -> Outcome:
        """Store what the plan names."""
        if not plan.work:
            return no_run(plan)
        config, loaded = self.scope.config, self.scope.loaded
        leads = StaticSettings(tuple(partition.topic_partition for partition in plan.work))
        assumed = AssumedCommitted(self.found.directories) if self.scope.assume_committed else None
        metrics = Metrics(create_registry(), config.http.max_partition_series)
        with (
            daemon(
                config, metrics, loaded.origins, leadership=leads, high_watermarks=assumed
            ) as built,
            shown(Amount(plan.segments, plan.size)) as progress,
        ):
            backfill = Backfill(plan, built, progress)
            with stopped_by_signals(backfill):
                return backfill.run()

    @contextmanager
    def _high_watermarks(self) -> Iterator[HighWatermarkSource | None]:
        source: HighWatermarkSource | None = AssumedCommitted(self.found.directories)
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
        ConfigurationError: A log dir is wrong, or a named topic or partition is not in one.
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
        on_disk.unreadable,
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
