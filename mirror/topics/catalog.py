"""Find a mirror's topics on the source, check them, and create them on the target."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Protocol
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
from sidetier.wire.cluster import AnyBroker, Cluster, Controller, TopicMetadata
from sidetier.wire.protocol import ApiKey
from sidetier.wire.requests import (
    LATEST,
    CommittedOffset,
    committed_offsets,
    delete_topics,
    list_groups,
    list_offsets,
)

_TOPIC: Final = 2
_SET_ON_TOPIC: Final = 1
"""Resource type and configuration source of DescribeConfigs (KIP-226)."""
_SET: Final = 0
"""Operation of IncrementalAlterConfigs (KIP-339)."""
_CREATE_TIMEOUT_MS: Final = 30_000
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
class Planned:
    """The plan for one topic: its copy, and what `copies` would change or why it is refused.

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
    """The id of an existing target topic to delete first, because the copy is made again."""
    former: Mapping[TopicPartition, CommittedOffset] = field(default_factory=dict)
    """Progress of a target topic that was or will be deleted; brokers delete it after the topic."""


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

    def plan(self) -> list[Planned]:  # noqa: C901 -- one branch per possible problem
        """Return every selected topic, with its problem if it has one. Changes nothing.

        Raises:
            ConfigurationError: A rename rule gives a name that is not legal, or one name to two
                topics.
            BrokerError: A broker refuses, or none answers.
        """
        topics = self._source.topics(self._rules.selects)
        targets = self._rules.targets(topics)
        cluster_id, lineages = self._source.cluster_id(), self._source.lineages()
        metadata = self._target.metadata()
        existing_topics = {
            name: topic for name, topic in metadata.topics.items() if name in targets.values()
        }
        settings = topic_settings(self._target, existing_topics, only_set=False)
        progress = self._progress()
        has_records = self._topics_with_records(existing_topics, progress)
        planned = []
        for source, target in targets.items():
            topic = topics[source]
            lineage = replace(
                lineage_of_copy(source, cluster_id, lineages),
                source_id=_text(topic.topic_id),
                target_id=_text(existing_topics[target].topic_id)
                if target in existing_topics
                else None,
            )
            problem = None
            if self._options.refuse_loops:
                problem = loop_problem(lineage, target, metadata.cluster_id or "")
            is_copied = self._options.settings is not CopySettings.NONE
            wanted = dict(topic.settings) if is_copied else {}
            effective: Mapping[str, str | None] = wanted
            added = 0
            kept: dict[int, Lineage] = {}
            former = {tp: progress[tp] for tp in progress if tp.topic == target}
            existing = existing_topics.get(target)
            replaces = self._replaced_id(existing, lineage, former)
            if replaces is not None:
                existing = None
            if existing is not None:
                effective = settings.get(target, {})
                count = len(existing.partitions)
                kept = _kept(progress, _partitions(target, count))
                problem = problem or _progress_problem(lineage, kept.values(), target)
                if kept and topic.partitions > count and self._options.raise_partitions:
                    added = topic.partitions - count
                else:
                    problem = problem or partition_problem(source, target, topic.partitions, count)
                if target in has_records:
                    problem = problem or records_problem(source, target)
            elif not self._options.create:
                problem = problem or f"topic {target} does not exist on the target"
            if not self._options.accept_log_append_time:
                problem = problem or timestamp_problem(target, effective)
            planned.append(
                Planned(
                    source,
                    target,
                    topic.partitions,
                    lineage,
                    {name: value for name, value in wanted.items() if name not in NOT_COPIED},
                    existing is not None,
                    problem,
                    topic.topic_id,
                    added,
                    {} if existing is None else self._changed_settings(wanted, effective),
                    kept,
                    replaces,
                    former if existing is None else {},
                )
            )
        return planned

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
        self, wanted: Mapping[str, str], effective: Mapping[str, str | None]
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
        planned = self.plan()
        refused: dict[str, str] = {
            topic.source: topic.problem for topic in planned if topic.problem is not None
        }
        if refused and self._is_first:
            raise ConfigurationError("\n".join(refused.values()))
        sound = [topic for topic in planned if self._apply(topic, refused)]
        self.refused = refused
        self.source_ids = {
            topic.source: topic.source_id for topic in sound if topic.source_id is not None
        }
        ids = self._ids([topic.target for topic in sound if not topic.exists])
        self.create_offsets_topic()
        if self._acls is not None:
            self._acls.copy({topic.source: topic.target for topic in sound})
        self._is_first = False
        return {
            source: self._copy(topic, source, ids.get(topic.target, topic.lineage.target_id))
            for topic in sound
            for source in _partitions(topic.source, topic.partitions)
        }

    def _copy(self, one: Planned, source: TopicPartition, target_id: str | None) -> Copy:
        count = _first_count(one, source.partition)
        lineage = replace(one.lineage, target_id=target_id, partitions=count)
        return Copy(
            source,
            TopicPartition(one.target, source.partition),
            lineage.encoded(),
            one.source_id,
            target_id or "",
        )

    def _progress(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the current progress, without waiting for other workers' open transactions."""
        return committed_offsets(self._target, self._names.group, partitions, require_stable=False)

    def _topics_with_records(
        self,
        there: Mapping[str, TopicMetadata],
        progress: Mapping[TopicPartition, CommittedOffset],
    ) -> set[str]:
        """Return the target topics that have a partition with records but without progress."""
        if self._options.accept_records:
            return set()
        new = [
            tp
            for name, topic in there.items()
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

    def _apply(self, one: Planned, refused: dict[str, str]) -> bool:
        """Create or change the target topic. Return False if it has a problem (see `refused`)."""
        problem = one.problem
        if problem is None:
            try:
                self._change(one)
            except KafkaApiError as error:
                if error.retry or self._is_first:
                    raise
                problem = refused[one.source] = str(error)
        if problem is not None and one.source not in self.refused:
            log.error("mirror.topic_refused", topic=one.source, reason=problem)
        return problem is None

    def _change(self, one: Planned) -> None:
        if not one.exists:
            self._create(one)
            log.info("mirror.topic_created", topic=one.target, partitions=one.partitions)
        if one.added_partitions:
            create_partitions(self._target, one.target, one.partitions)
            log.info("mirror.partitions_added", topic=one.target, partitions=one.partitions)
        if one.changed_settings:
            set_topic_settings(self._target, one.target, one.changed_settings)
            log.info("mirror.settings_changed", topic=one.target, settings=one.changed_settings)

    def _create(self, one: Planned) -> None:
        """Create a target topic after the former one was deleted together with its progress.

        A kill leaves one of three states: the former topic; no topic, with progress that the
        brokers are about to delete; or the new topic without progress. The next call continues from
        there. Other workers may do the same at the same time: the former topic is deleted by its
        id.
        """
        if one.replaces is not None:
            # Offsets that an open transaction commits for the former topic must not appear after
            # its deletion.
            self._stable_progress(one.former)
            delete_topics(self._target, [one.replaces])
            log.warning(
                "mirror.copy_deleted",
                topic=one.target,
                topic_id=str(one.replaces),
                reason=f"topic {one.source} was deleted and created again on the source",
            )
        if one.former:
            self._target.retrying(lambda: self._require_forgotten(one))
        self._target.forget_leaders(_partitions(one.target, one.partitions))
        create_topic(
            self._target,
            one.target,
            one.partitions,
            self._options.replication_factor,
            one.settings,
        )
        if one.replaces is not None:
            self._target.retrying(lambda: self._require_another_id(one))

    def _stable_progress(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        return committed_offsets(self._target, self._names.group, list(partitions))

    def _require_forgotten(self, one: Planned) -> None:
        left = self._stable_progress(one.former)
        # Progress with other metadata is no obstacle: another worker may have begun the new copy.
        if any(left[tp].metadata == one.former[tp].metadata for tp in left):
            raise BrokerUnavailableError(
                f"the brokers have not yet deleted the progress of topic {one.target}, which was "
                "deleted"
            )

    def _require_another_id(self, one: Planned) -> None:
        described = self._target.metadata([one.target]).topics.get(one.target)
        if described is None or described.topic_id == one.replaces:
            raise BrokerUnavailableError(
                f"the brokers do not know topic {one.target} yet, which was created again"
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


def create_topic(
    cluster: Cluster, topic: str, partitions: int, replication: int, settings: Mapping[str, str]
) -> None:
    """Create a topic. It is not an error if another worker has just created it.

    Raises:
        BrokerError: The cluster refuses it.
    """
    try:
        cluster.retrying(
            lambda: cluster.request_once(
                Controller(),
                ApiKey.CREATE_TOPICS,
                topics=[
                    {
                        "name": topic,
                        "num_partitions": partitions,
                        "replication_factor": replication,
                        "assignments": (),
                        "configs": [
                            {"name": name, "value": value} for name, value in settings.items()
                        ],
                    }
                ],
                timeout=_CREATE_TIMEOUT_MS,
                validate_only=False,
            )
        )
    except KafkaApiError as error:
        if error.name != "TOPIC_ALREADY_EXISTS":
            raise
    cluster.retrying(lambda: _require_leaders(cluster, topic, partitions))


def create_partitions(cluster: Cluster, topic: str, partitions: int) -> None:
    """Add partitions to a topic. It is not an error if another worker has just done so.

    Args:
        cluster: The cluster of the topic.
        topic: The topic.
        partitions: The new total number of partitions.

    Raises:
        BrokerError: The cluster refuses it.
    """
    try:
        cluster.retrying(
            lambda: cluster.request_once(
                Controller(),
                ApiKey.CREATE_PARTITIONS,
                topics=[{"name": topic, "count": partitions, "assignments": None}],
                timeout=_CREATE_TIMEOUT_MS,
                validate_only=False,
            )
        )
    except KafkaApiError as error:
        if error.name != "INVALID_PARTITIONS":
            raise
        if len(cluster.metadata([topic]).topics[topic].partitions) < partitions:
            raise
    cluster.retrying(lambda: _require_leaders(cluster, topic, partitions))


def set_topic_settings(cluster: Cluster, topic: str, settings: Mapping[str, str]) -> None:
    """Set these settings on a topic; its other settings stay unchanged.

    Raises:
        BrokerError: The cluster refuses it.
    """
    cluster.request(
        Controller(),
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        resources=[
            {
                "resource_type": _TOPIC,
                "resource_name": topic,
                "configs": [
                    {"name": name, "config_operation": _SET, "value": value}
                    for name, value in settings.items()
                ],
            }
        ],
        validate_only=False,
    )


def _partitions(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


def _text(topic_id: UUID | None) -> str | None:
    return None if topic_id is None else str(topic_id)


def _first_count(one: Planned, partition: int) -> int | None:
    """Return the source topic's number of partitions when the copy of this one began."""
    kept = one.kept.get(partition)
    return one.partitions if kept is None else kept.partitions


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


def _require_leaders(cluster: Cluster, topic: str, partitions: int) -> None:
    cluster.leaders(_partitions(topic, partitions))


def topic_settings(
    cluster: Cluster, topics: Collection[str], *, only_set: bool
) -> dict[str, dict[str, str]]:
    """Return the settings of topics.

    Args:
        cluster: The cluster to ask.
        topics: The topic names.
        only_set: Return only settings that are set on the topic itself, not all effective ones.

    Raises:
        BrokerError: A broker refuses, or none answers.
    """
    if not topics:
        return {}
    response: Any = cluster.request(
        AnyBroker(),
        ApiKey.DESCRIBE_CONFIGS,
        resources=[
            {"resource_type": _TOPIC, "resource_name": name, "configuration_keys": None}
            for name in topics
        ],
    )
    return {
        result.resource_name: {
            entry.name: entry.value
            for entry in result.configs
            if entry.value is not None and (not only_set or entry.config_source == _SET_ON_TOPIC)
        }
        for result in response.results
    }
