"""Find a mirror's topics on the source, and create and change them on the target."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from kio.schema.errors import ErrorCode

from sidetier.mirror.copy.engine import Copy
from sidetier.mirror.topics.acls import AclCopier
from sidetier.mirror.topics.planning import (
    CatalogOptions,
    PlannedCopy,
    SourceTopic,
    TargetState,
    max_batch_bytes,
    new_topic_problem,
    partitions_of,
    plan_copy,
    text_of,
)
from sidetier.mirror.topics.rules import (
    GROUP_PREFIX,
    Lineage,
    MirrorNames,
    TopicRules,
    decode_lineage,
    lineage_of_copy,
    name_problems,
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
from sidetier.wire.topics import (
    check_new_topic,
    create_partitions,
    create_topic,
    set_topic_settings,
    topic_settings,
)

if TYPE_CHECKING:
    from uuid import UUID

_OFFSETS_TOPIC: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    # Small segments, because only closed segments are compacted and readers start at the beginning.
    "segment.bytes": str(16 << 20),
}

log = structlog.get_logger("sidetier.mirror")


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
        """Return "" if the brokers report no id."""
        return self._cluster.metadata(()).cluster_id or ""

    def topics(self, selects: Callable[[str], bool]) -> dict[str, SourceTopic]:
        """Each topic has the settings that are set on it, or why they cannot be read."""
        described = self._cluster.metadata().topics
        selected = {name: topic for name, topic in described.items() if selects(name)}
        settings, problems = _settings_of(self._cluster, selected, only_set=True)
        return {
            name: SourceTopic(
                len(topic.partitions), settings.get(name, {}), topic.topic_id, problems.get(name)
            )
            for name, topic in selected.items()
        }

    def lineages(self) -> dict[str, Lineage]:
        """Read them from the progress of the mirrors that write to this cluster."""
        lineages: dict[str, Lineage] = {}
        for group in list_groups(self._cluster):
            if not group.startswith(GROUP_PREFIX):
                continue
            for tp, committed in committed_offsets(self._cluster, group).items():
                lineage = decode_lineage(committed.metadata)
                if lineage is not None:
                    lineages[tp.topic] = lineage
        return lineages


def _settings_of(
    cluster: Cluster, topics: Collection[str], *, only_set: bool
) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return the settings of topics, and the problem of each topic whose settings are refused."""
    try:
        return topic_settings(cluster, topics, only_set=only_set), {}
    except KafkaApiError as error:
        # One refused topic fails the request for all of them.
        if error.code != ErrorCode.topic_authorization_failed:
            raise
    settings: dict[str, dict[str, str]] = {}
    problems: dict[str, str] = {}
    for topic in topics:
        try:
            settings |= topic_settings(cluster, [topic], only_set=only_set)
        except KafkaApiError as error:
            if error.code != ErrorCode.topic_authorization_failed:
                raise
            problems[topic] = f"topic {topic}: {error}"
    return settings, problems


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

        The brokers check the topics to create. So one that they refuse is known before
        its former copy is deleted, and before any other topic is created.

        Raises:
            BrokerError: A broker refuses, or none answers.
        """
        topics = self._source.topics(self._rules.selects)
        targets = self._rules.targets(topics)
        cluster_id, lineages = self._source.cluster_id(), self._source.lineages()
        state = self._read_target(set(targets.values()))
        problems = name_problems(targets, _owners(state.progress))
        return [
            self._checked(
                plan_copy(
                    replace(topics[source], problem=problems.get(source, topics[source].problem)),
                    target,
                    lineage_of_copy(source, cluster_id, lineages),
                    state,
                    self._options,
                )
            )
            for source, target in targets.items()
        ]

    def _checked(self, planned: PlannedCopy) -> PlannedCopy:
        """Add the reason why the target topic cannot be created, as far as the brokers show one."""
        if planned.exists or planned.problem is not None:
            return planned
        try:
            effective = check_new_topic(
                self._target,
                planned.target,
                planned.partitions,
                self._options.replication_factor,
                planned.settings,
                is_replaced=planned.replaces is not None,
            )
        except KafkaApiError as error:
            if error.retry:
                raise
            problem: str | None = f"topic {planned.source}: {error}"
        else:
            problem = new_topic_problem(planned.target, effective, self._options)
        if problem is None:
            return planned
        stays = planned.replaces is not None
        if stays:
            problem += f". The former copy {planned.target} stays on the target"
        return replace(planned, problem=problem, exists=stays, replaces=None)

    def _read_target(self, targets: Collection[str]) -> TargetState:
        metadata = self._target.metadata()
        existing = {name: topic for name, topic in metadata.topics.items() if name in targets}
        progress = self._progress()
        settings, problems = _settings_of(self._target, existing, only_set=False)
        return TargetState(
            metadata.cluster_id or "",
            existing,
            settings,
            progress,
            self._topics_with_records(existing, progress),
            problems,
        )

    def copies(self) -> dict[TopicPartition, Copy]:
        """Create missing topics and partitions, and return the partitions of all workers.

        A topic with a problem is left out and logged, see `refused`.

        Raises:
            ConfigurationError: On the first call, if no topic can be copied: a line for each.
            BrokerError: An error of `plan`, or no broker answers.
        """
        if self._acls is not None and self._is_first:
            self._acls.check()
        plans = self.plan()
        refused: dict[str, str] = {
            planned.source: planned.problem for planned in plans if planned.problem is not None
        }
        if len(refused) < len(plans) or not plans:
            # Before any topic is deleted or created, because the brokers may refuse this one. And
            # before the first transaction, because records of the map are part of it.
            self.create_offsets_topic()
        # `_apply` adds those topics to `refused` whose change the brokers refuse.
        sound = [planned for planned in plans if self._apply(planned, refused)]
        if refused and not sound and self._is_first:
            raise ConfigurationError("\n".join(refused.values()))
        self.refused = refused
        self.source_ids = {
            planned.source: planned.source_id for planned in sound if planned.source_id is not None
        }
        created = [planned.target for planned in sound if not planned.exists]
        ids, sizes = self._ids(created), self._sizes(created)
        if self._acls is not None:
            self._acls.copy({planned.source: planned.target for planned in sound})
        self._is_first = False
        return {
            source: self._copy(
                planned,
                source,
                ids.get(planned.target, planned.lineage.target_id),
                sizes.get(planned.target, planned.max_batch_bytes),
            )
            for planned in sound
            for source in partitions_of(planned.source, planned.partitions)
        }

    def _copy(
        self, planned: PlannedCopy, source: TopicPartition, target_id: str | None, size: int | None
    ) -> Copy:
        count = _first_count(planned, source.partition)
        lineage = replace(planned.lineage, target_id=target_id, partitions=count)
        return Copy(
            source,
            TopicPartition(planned.target, source.partition),
            lineage.encoded(),
            planned.source_id,
            target_id or "",
            size,
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
            for tp in partitions_of(name, len(topic.partitions))
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
                if error.retry:
                    raise
                problem = refused[planned.source] = f"topic {planned.source}: {error}"
        # `self.refused` is still from the last call: each problem is logged once.
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
        self._target.forget_leaders(partitions_of(planned.target, planned.partitions))
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
        # Progress with other metadata is allowed: another worker may have begun the new copy.
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
        return {name: text_of(topic.topic_id) for name, topic in described.items()}

    def _sizes(self, topics: Collection[str]) -> dict[str, int | None]:
        """Return the maximum size of a batch in topics that were created just now, where the target
        tells it: the next plan names the others, which the principal may create, not describe.
        """
        settings, _ = _settings_of(self._target, topics, only_set=False)
        return {name: max_batch_bytes(effective) for name, effective in settings.items()}

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


def _owners(progress: Mapping[TopicPartition, CommittedOffset]) -> dict[str, str]:
    """Return the source topic of each target topic that has progress."""
    lineages = {tp.topic: decode_lineage(committed.metadata) for tp, committed in progress.items()}
    return {target: lineage.topic for target, lineage in lineages.items() if lineage is not None}


def _first_count(planned: PlannedCopy, partition: int) -> int | None:
    """Return the source topic's number of partitions when the copy of this partition began."""
    kept = planned.kept.get(partition)
    return planned.partitions if kept is None else kept.partitions
