"""Find a mirror's topics on the source, check them, and create them on the target."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Protocol
from uuid import UUID

import structlog

from sidetier.mirror.copy.engine import Copy
from sidetier.mirror.topics.acls import AclCopier
from sidetier.mirror.topics.rules import (
    GROUP_PREFIX,
    NOT_COPIED,
    TIMESTAMP_TYPE,
    Lineage,
    MirrorNames,
    TopicRules,
    decode_lineage,
    lineage_of_copy,
    loop_problem,
    may_restart,
    partition_problem,
    progress_problem,
    records_problem,
    timestamp_problem,
)
from sidetier.segments.errors import BrokerUnavailableError, ConfigurationError, KafkaApiError
from sidetier.segments.offsets import TopicPartition
from sidetier.wire.cluster import Cluster, TopicMetadata
from sidetier.wire.requests import (
    LATEST,
    CommittedOffset,
    committed_offsets,
    delete_topics,
    list_groups,
    list_offsets,
)
from sidetier.wire.topics import create_partitions, create_topic, set_topic_settings, topic_settings

_OFFSETS_TOPIC: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    # Small segments, because only closed segments are compacted and readers start at the beginning.
    "segment.bytes": str(16 << 20),
}

log = structlog.get_logger("sidetier.mirror")


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A source topic: number of partitions, settings that are set on the topic, and id."""

    partitions: int
    settings: Mapping[str, str]
    topic_id: UUID | None = None


class SourceTopics(Protocol):
    """The source in which a mirror finds its topics."""

    def cluster_id(self) -> str:
        """Return Kafka's id of the source cluster, or another name of it."""
        ...

    def topics(self, selects: Callable[[str], bool]) -> dict[str, SourceTopic]:
        """Return the topics that exist now and are selected."""
        ...

    def lineages(self) -> dict[str, Lineage]:
        """Return the lineages of the topics that are copies themselves, by topic."""
        ...


class BrokerTopics:
    """The topics of a running cluster. Implements `SourceTopics`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def cluster_id(self) -> str:
        """See the port."""
        return self._cluster.metadata(()).cluster_id or ""

    def topics(self, selects: Callable[[str], bool]) -> dict[str, SourceTopic]:
        """See the port."""
        described = self._cluster.metadata().topics
        selected = {name: topic for name, topic in described.items() if selects(name)}
        settings = topic_settings(self._cluster, selected, only_set=True)
        return {
            name: SourceTopic(len(topic.partitions), settings.get(name, {}), topic.topic_id)
            for name, topic in selected.items()
        }

    def lineages(self) -> dict[str, Lineage]:
        """See the port. Read from the progress of the mirrors that write to this cluster."""
        lineages: dict[str, Lineage] = {}
        for group in list_groups(self._cluster):
            if not group.startswith(GROUP_PREFIX):
                continue
            for tp, committed in committed_offsets(self._cluster, group).items():
                lineage = decode_lineage(committed.metadata)
                if lineage is not None:
                    lineages[tp.topic] = lineage
        return lineages


class CopySettings(StrEnum):
    """Which copies get the settings of their source topic."""

    NONE = "none"
    ONCE = "once"
    """Copies that the mirror creates, at creation."""
    SYNC = "sync"
    """All copies, again whenever a setting is changed on either side."""


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """How topics are created, and which problems are accepted.

    Attributes:
        create: Whether missing topics are created on the target.
        replication_factor: Replication factor of created topics; -1 for the target's default.
        settings: Which copies get the settings that are set on the source topic.
        accept_log_append_time: Whether a target topic may replace timestamps.
        accept_records: Whether a target topic without progress may have records.
        raise_partitions: Whether a copy gets more partitions when its source topic does.
        restart_recreated: Whether a copy is deleted and created again when its source topic was.
        refuse_loops: Whether copies are refused that would feed a cluster its own records.
    """

    create: bool = True
    replication_factor: int = -1
    settings: CopySettings = CopySettings.ONCE
    accept_log_append_time: bool = False
    accept_records: bool = False
    raise_partitions: bool = True
    restart_recreated: bool = False
    refuse_loops: bool = True


@dataclass(frozen=True, slots=True)
class PlannedCopy:
    """The plan for one topic: its copy, and the changes of `copies`, or why it is refused.

    Attributes:
        source: The source topic.
        target: The name of its copy.
        partitions: Number of partitions of the source topic.
        lineage: The lineage of the copy, with the current ids of the topics.
        settings: Settings with which the target topic is created.
        exists: Whether the target topic exists and stays.
        problem: Why the topic cannot be copied; None if it can.
        source_id: Kafka's id of the source topic.
        added_partitions: Number of partitions to add to an existing target topic.
        changed_settings: Settings to set on an existing target topic.
    """

    source: str
    target: str
    partitions: int
    lineage: Lineage
    settings: Mapping[str, str]
    exists: bool
    problem: str | None = None
    source_id: UUID | None = None
    added_partitions: int = 0
    changed_settings: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[int, Lineage] = field(default_factory=dict)
    """The lineages stored with the progress, by partition number."""
    replaces: UUID | None = None
    """The id of an existing target topic to delete first, because the copy begins again."""
    former: Mapping[TopicPartition, CommittedOffset] = field(default_factory=dict)
    """Progress of a target topic that was or will be deleted; brokers delete it after the topic."""


@dataclass(frozen=True, slots=True)
class _TargetState:
    """The target cluster before anything is changed.

    Attributes:
        cluster_id: Kafka's id of the cluster; "" if the brokers have none.
        topics: The topics that exist and have the name of a copy.
        settings: The effective settings of these topics.
        progress: The progress of the mirror.
        with_records: The topics that have a partition with records but without progress.
    """

    cluster_id: str
    topics: Mapping[str, TopicMetadata]
    settings: Mapping[str, Mapping[str, str]]
    progress: Mapping[TopicPartition, CommittedOffset]
    with_records: Collection[str]


class Catalog:
    """Plans and creates the topics of a mirror. Not thread-safe.

    Attributes:
        refused: The topics that cannot be copied, each with the reason, as of the last `copies`.
        source_ids: The ids of the source topics that can be copied, as of the last `copies`.
    """

    def __init__(
        self,
        source: SourceTopics,
        target: Cluster,
        rules: TopicRules,
        names: MirrorNames,
        options: CatalogOptions,
        acls: AclCopier | None = None,
    ) -> None:
        self.refused: Mapping[str, str] = {}
        self.source_ids: Mapping[str, UUID] = {}
        self._source = source
        self._target = target
        self._rules = rules
        self._names = names
        self._options = options
        self._acls = acls
        self._is_first = True

    def plan(self) -> list[PlannedCopy]:
        """Return every selected topic, with its problem if it has one. Changes nothing.

        Raises:
            ConfigurationError: A rename rule gives a name that is not legal, or one name to two
                topics.
            BrokerError: A broker refuses, or none answers.
        """
        topics = self._source.topics(self._rules.selects)
        targets = self._rules.targets(topics)
        cluster_id, lineages = self._source.cluster_id(), self._source.lineages()
        state = self._read_target(set(targets.values()))
        return [
            self._plan_copy(
                topics[source], target, lineage_of_copy(source, cluster_id, lineages), state
            )
            for source, target in targets.items()
        ]

    def _read_target(self, targets: Collection[str]) -> _TargetState:
        metadata = self._target.metadata()
        existing = {name: topic for name, topic in metadata.topics.items() if name in targets}
        progress = self._progress()
        return _TargetState(
            metadata.cluster_id or "",
            existing,
            topic_settings(self._target, existing, only_set=False),
            progress,
            self._topics_with_records(existing, progress),
        )

    def _plan_copy(
        self, topic: SourceTopic, target: str, lineage: Lineage, state: _TargetState
    ) -> PlannedCopy:
        existing = state.topics.get(target)
        lineage = replace(
            lineage,
            source_id=_text(topic.topic_id),
            target_id=None if existing is None else _text(existing.topic_id),
        )
        progress = {tp: state.progress[tp] for tp in state.progress if tp.topic == target}
        replaces = self._replaced_id(existing, lineage, progress)
        wanted = {} if self._options.settings is CopySettings.NONE else topic.settings
        planned = PlannedCopy(
            lineage.topic,
            target,
            topic.partitions,
            lineage,
            {name: value for name, value in wanted.items() if name not in NOT_COPIED},
            exists=existing is not None and replaces is None,
            source_id=topic.topic_id,
            replaces=replaces,
        )
        loop = None
        if self._options.refuse_loops:
            loop = loop_problem(lineage, target, state.cluster_id)
        if existing is None or replaces is not None:
            missing = None
            if not self._options.create:
                missing = f"topic {target} does not exist on the target"
            problem = loop or missing or self._timestamp_problem(target, wanted)
            return replace(planned, problem=problem, former=progress)
        effective = state.settings.get(target, {})
        count = len(existing.partitions)
        kept = _kept(progress, _partitions(target, count))
        # Without progress, the topic may be another one with the same name: nothing is added to it.
        adds = bool(kept) and topic.partitions > count and self._options.raise_partitions
        problems = (
            loop,
            _progress_problem(lineage, kept.values(), target),
            None if adds else partition_problem(lineage.topic, target, topic.partitions, count),
            records_problem(lineage.topic, target) if target in state.with_records else None,
            self._timestamp_problem(target, effective),
        )
        return replace(
            planned,
            problem=next(filter(None, problems), None),
            added_partitions=topic.partitions - count if adds else 0,
            changed_settings=self._changed_settings(wanted, effective),
            kept=kept,
        )

    def _timestamp_problem(self, target: str, settings: Mapping[str, str]) -> str | None:
        if self._options.accept_log_append_time:
            return None
        return timestamp_problem(target, settings)

    def _replaced_id(
        self,
        existing: TopicMetadata | None,
        lineage: Lineage,
        progress: Mapping[TopicPartition, CommittedOffset],
    ) -> UUID | None:
        """Return the id of the target topic to delete first; None if it stays."""
        if existing is None or not self._options.restart_recreated:
            return None
        if not may_restart(lineage, _kept(progress, progress).values()):
            return None
        return existing.topic_id

    def _changed_settings(
        self, wanted: Mapping[str, str], effective: Mapping[str, str]
    ) -> dict[str, str]:
        if self._options.settings is not CopySettings.SYNC:
            return {}
        return {
            name: value
            for name, value in wanted.items()
            if effective.get(name) != value
            and name not in NOT_COPIED
            and (name != TIMESTAMP_TYPE or self._options.accept_log_append_time)
        }

    def copies(self) -> dict[TopicPartition, Copy]:
        """Create missing topics and partitions, and return the partitions of all workers.

        On the first call, a topic with a problem is an error. Later, when topics were added or
        created again while the mirror runs, the topic is left out and logged.

        Raises:
            ConfigurationError: An error of `plan`, or topics that cannot be copied, one line each.
            BrokerError: An error of `plan`, or a topic cannot be created.
        """
        plans = self.plan()
        refused: dict[str, str] = {
            planned.source: planned.problem for planned in plans if planned.problem is not None
        }
        if refused and self._is_first:
            raise ConfigurationError("\n".join(refused.values()))
        sound = [planned for planned in plans if self._apply(planned, refused)]
        self.refused = refused
        self.source_ids = {
            planned.source: planned.source_id for planned in sound if planned.source_id is not None
        }
        ids = self._ids([planned.target for planned in sound if not planned.exists])
        # Before the first transaction, because records of the map are part of it.
        self.create_offsets_topic()
        if self._acls is not None:
            self._acls.copy({planned.source: planned.target for planned in sound})
        self._is_first = False
        return {
            source: self._copy(planned, source, ids.get(planned.target, planned.lineage.target_id))
            for planned in sound
            for source in _partitions(planned.source, planned.partitions)
        }

    def _copy(self, planned: PlannedCopy, source: TopicPartition, target_id: str | None) -> Copy:
        count = _first_count(planned, source.partition)
        lineage = replace(planned.lineage, target_id=target_id, partitions=count)
        return Copy(
            source,
            TopicPartition(planned.target, source.partition),
            lineage.encoded(),
            planned.source_id,
            target_id or "",
        )

    def _progress(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the current progress, without waiting for other workers' open transactions."""
        return committed_offsets(self._target, self._names.group, partitions, require_stable=False)

    def _topics_with_records(
        self,
        existing: Mapping[str, TopicMetadata],
        progress: Mapping[TopicPartition, CommittedOffset],
    ) -> set[str]:
        """Return the target topics that have a partition with records but without progress."""
        if self._options.accept_records:
            return set()
        new = [
            tp
            for name, topic in existing.items()
            for tp in _partitions(name, len(topic.partitions))
            if tp not in progress
        ]
        if not new:
            return set()
        # A copy's progress is committed before its first record. So if another worker has begun
        # this copy meanwhile, the progress that is read after the end offsets shows it.
        ends = list_offsets(self._target, dict.fromkeys(new, LATEST))
        written = [tp for tp in new if ends[tp].offset > 0]
        if not written:
            return set()
        return {tp.topic for tp in set(written) - self._progress(written).keys()}

    def _apply(self, planned: PlannedCopy, refused: dict[str, str]) -> bool:
        """Create or change the target topic. Return False if it has a problem (see `refused`)."""
        problem = planned.problem
        if problem is None:
            try:
                self._change(planned)
            except KafkaApiError as error:
                if error.retry or self._is_first:
                    raise
                problem = refused[planned.source] = str(error)
        if problem is not None and planned.source not in self.refused:
            log.error("mirror.topic_refused", topic=planned.source, reason=problem)
        return problem is None

    def _change(self, planned: PlannedCopy) -> None:
        if not planned.exists:
            self._create(planned)
            log.info("mirror.topic_created", topic=planned.target, partitions=planned.partitions)
        if planned.added_partitions:
            create_partitions(self._target, planned.target, planned.partitions)
            log.info("mirror.partitions_added", topic=planned.target, partitions=planned.partitions)
        if planned.changed_settings:
            set_topic_settings(self._target, planned.target, planned.changed_settings)
            log.info(
                "mirror.settings_changed", topic=planned.target, settings=planned.changed_settings
            )

    def _create(self, planned: PlannedCopy) -> None:
        """Create a target topic after the former one was deleted together with its progress.

        A kill leaves one of three states: the former topic; no topic, with progress that the
        brokers are about to delete; or the new topic without progress. The next call continues from
        there. Other workers may do the same at the same time: the former topic is deleted by its
        id.
        """
        if planned.replaces is not None:
            # Offsets that an open transaction commits for the former topic must not appear after
            # its deletion.
            self._stable_progress(planned.former)
            delete_topics(self._target, [planned.replaces])
            log.warning(
                "mirror.copy_deleted",
                topic=planned.target,
                topic_id=str(planned.replaces),
                reason=f"topic {planned.source} was deleted and created again on the source",
            )
        if planned.former:
            self._target.retrying(lambda: self._require_forgotten(planned))
        # The cache may have the leaders of the deleted topic.
        self._target.forget_leaders(_partitions(planned.target, planned.partitions))
        create_topic(
            self._target,
            planned.target,
            planned.partitions,
            self._options.replication_factor,
            planned.settings,
        )
        if planned.replaces is not None:
            self._target.retrying(lambda: self._require_another_id(planned))

    def _stable_progress(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        return committed_offsets(self._target, self._names.group, list(partitions))

    def _require_forgotten(self, planned: PlannedCopy) -> None:
        left = self._stable_progress(planned.former)
        # Progress with other metadata is no obstacle: another worker may have begun the new copy.
        if any(left[tp].metadata == planned.former[tp].metadata for tp in left):
            raise BrokerUnavailableError(
                "the brokers have not yet deleted the progress of the former topic "
                f"{planned.target}"
            )

    def _require_another_id(self, planned: PlannedCopy) -> None:
        described = self._target.metadata([planned.target]).topics.get(planned.target)
        if described is None or described.topic_id == planned.replaces:
            raise BrokerUnavailableError(
                f"the brokers do not know topic {planned.target} yet, which was created again"
            )

    def _ids(self, topics: Collection[str]) -> dict[str, str | None]:
        if not topics:
            return {}
        described = self._target.metadata(topics).topics
        return {name: _text(topic.topic_id) for name, topic in described.items()}

    def create_offsets_topic(self) -> None:
        """Create the offset map's topic if it does not exist. Raises the errors of `copies`."""
        topic = self._names.offsets_topic
        if topic not in self._target.metadata([topic]).topics:
            create_topic(
                self._target,
                topic,
                1,
                self._options.replication_factor,
                _OFFSETS_TOPIC,
            )


def _partitions(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


def _text(topic_id: UUID | None) -> str | None:
    return None if topic_id is None else str(topic_id)


def _first_count(planned: PlannedCopy, partition: int) -> int | None:
    """Return the source topic's number of partitions when the copy of this partition began."""
    kept = planned.kept.get(partition)
    return planned.partitions if kept is None else kept.partitions


def _kept(
    progress: Mapping[TopicPartition, CommittedOffset], partitions: Iterable[TopicPartition]
) -> dict[int, Lineage]:
    lineages = {
        tp.partition: decode_lineage(progress[tp].metadata) for tp in partitions if tp in progress
    }
    return {number: lineage for number, lineage in lineages.items() if lineage is not None}


def _progress_problem(lineage: Lineage, kept: Iterable[Lineage], target: str) -> str | None:
    for noted in kept:
        problem = progress_problem(lineage, noted, target)
        if problem is not None:
            return problem
    return None
