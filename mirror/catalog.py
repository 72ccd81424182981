"""The topics of a mirror: found on the source, checked, and created on the target."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from zlib import crc32

import structlog

from sidetier.mirror.engine import Copy
from sidetier.mirror.topics import (
    GROUP_PREFIX,
    NOT_COPIED,
    Lineage,
    MirrorNames,
    TopicRules,
    decode_lineage,
    lineage_of_copy,
    loop_problem,
    partition_problem,
    timestamp_problem,
)
from sidetier.segments.errors import ConfigurationError, KafkaApiError
from sidetier.segments.offsets import TopicPartition
from sidetier.wire.cluster import AnyBroker, Broker, Cluster, Controller
from sidetier.wire.protocol import ApiKey
from sidetier.wire.requests import committed_offsets

_TOPIC: Final = 2
_SET_ON_TOPIC: Final = 1
"""Resource type and configuration source of DescribeConfigs (KIP-226)."""
_CREATE_TIMEOUT_MS: Final = 30_000

log = structlog.get_logger("sidetier.mirror")


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A source topic: its number of partitions, and the settings that are set on it."""

    partitions: int
    settings: Mapping[str, str]


class SourceTopics(Protocol):
    """Where a mirror finds its topics."""

    def cluster_id(self) -> str:
        """Kafka's id of the source cluster, or another name of it."""
        ...

    def topics(self, selects: Callable[[str], bool]) -> dict[str, SourceTopic]:
        """The topics that exist now and are selected."""
        ...

    def lineages(self) -> dict[str, Lineage]:
        """Where the topics come from that are copies themselves."""
        ...


class BrokerTopics:
    """The topics of a running cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def cluster_id(self) -> str:
        """See the port."""
        return self._cluster.metadata(()).cluster_id or ""

    def topics(self, selects: Callable[[str], bool]) -> dict[str, SourceTopic]:
        """See the port."""
        described = self._cluster.metadata().topics
        found = {name: topic for name, topic in described.items() if selects(name)}
        settings = topic_settings(self._cluster, found, only_set=True)
        return {
            name: SourceTopic(len(topic.partitions), settings.get(name, {}))
            for name, topic in found.items()
        }

    def lineages(self) -> dict[str, Lineage]:
        """See the port: the progress of the mirrors that write to this cluster says it."""
        found: dict[str, Lineage] = {}
        for broker in self._cluster.metadata(()).brokers:
            response = self._cluster.request(Broker(broker), ApiKey.LIST_GROUPS)
            for group in response.groups:
                if not group.group_id.startswith(GROUP_PREFIX):
                    continue
                for tp, committed in committed_offsets(self._cluster, group.group_id).items():
                    lineage = decode_lineage(committed.metadata)
                    if lineage is not None:
                        found[tp.topic] = lineage
        return found


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """How topics are created and what is accepted.

    Attributes:
        create: Whether missing topics are created on the target.
        replication_factor: Of created topics; -1 for the target's default.
        copy_settings: Whether created topics get the settings that are set on the source topic.
        accept_log_append_time: Whether a target topic may replace timestamps.
        refuse_loops: Whether copies are refused that would feed a cluster its own records.
        worker: This worker, from 0.
        workers: How many workers share the partitions.
    """

    create: bool = True
    replication_factor: int = -1
    copy_settings: bool = True
    accept_log_append_time: bool = False
    refuse_loops: bool = True
    worker: int = 0
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Planned:
    """One topic: its copy's name, and what `apply` would do or why it does nothing."""

    source: str
    target: str
    partitions: int
    lineage: Lineage
    settings: Mapping[str, str]
    exists: bool
    problem: str | None = None


class Catalog:
    """Plans and creates the topics of a mirror; for one thread."""

    def __init__(
        self,
        source: SourceTopics,
        target: Cluster,
        rules: TopicRules,
        names: MirrorNames,
        options: CatalogOptions,
    ) -> None:
        self._source = source
        self._target = target
        self._rules = rules
        self._names = names
        self._options = options
        self._is_first = True

    def plan(self) -> list[Planned]:
        """Every selected topic, with its problem if it has one. Changes nothing.

        Raises:
            ConfigurationError: a rename rule gives an impossible name, or one name to two topics.
            BrokerError: a broker refuses, or none answers.
        """
        found = self._source.topics(self._rules.selects)
        targets = self._rules.targets(found)
        cluster_id, lineages = self._source.cluster_id(), self._source.lineages()
        metadata = self._target.metadata()
        there = {name: topic for name, topic in metadata.topics.items() if name in targets.values()}
        settings = topic_settings(self._target, there, only_set=False)
        planned = []
        for source, target in targets.items():
            lineage = lineage_of_copy(source, cluster_id, lineages)
            problem = None
            if self._options.refuse_loops:
                problem = loop_problem(lineage, target, metadata.cluster_id or "")
            wanted = dict(found[source].settings) if self._options.copy_settings else {}
            if target in there:
                count = len(there[target].partitions)
                problem = problem or partition_problem(
                    source, target, found[source].partitions, count
                )
                effective: Mapping[str, str | None] = settings.get(target, {})
            else:
                effective = wanted
                if not self._options.create:
                    problem = problem or f"topic {target} does not exist on the target"
            if not self._options.accept_log_append_time:
                problem = problem or timestamp_problem(target, effective)
            planned.append(
                Planned(
                    source,
                    target,
                    found[source].partitions,
                    lineage,
                    {name: value for name, value in wanted.items() if name not in NOT_COPIED},
                    target in there,
                    problem,
                )
            )
        return planned

    def copies(self) -> dict[TopicPartition, Copy]:
        """Create what is missing, and return this worker's partitions.

        A topic with a problem is refused the first time; later, when topics were added while the
        mirror runs, it is left out and logged.

        Raises:
            ConfigurationError: as `plan`; or topics that cannot be copied, one line each.
            BrokerError: as `plan`; or a topic cannot be created.
        """
        planned = self.plan()
        problems = [one.problem for one in planned if one.problem is not None]
        if problems and self._is_first:
            raise ConfigurationError("\n".join(problems))
        for problem in problems:
            log.error("mirror.topic_refused", reason=problem)
        sound = [one for one in planned if one.problem is None]
        self._create([one for one in sound if not one.exists])
        self._create_offsets_topic()
        self._is_first = False
        every = [
            Copy(
                TopicPartition(one.source, number),
                TopicPartition(one.target, number),
                one.lineage.encoded(),
            )
            for one in sound
            for number in range(one.partitions)
        ]
        return {copy.source: copy for copy in every if self._is_ours(copy.source)}

    def _is_ours(self, tp: TopicPartition) -> bool:
        return crc32(str(tp).encode()) % self._options.workers == self._options.worker

    def _create(self, missing: Collection[Planned]) -> None:
        for one in missing:
            create_topic(
                self._target,
                one.target,
                one.partitions,
                self._options.replication_factor,
                one.settings,
            )
            log.info("mirror.topic_created", topic=one.target, partitions=one.partitions)

    def _create_offsets_topic(self) -> None:
        topic = self._names.offsets_topic
        if topic not in self._target.metadata([topic]).topics:
            create_topic(
                self._target,
                topic,
                1,
                self._options.replication_factor,
                {"cleanup.policy": "compact"},
            )


def create_topic(
    cluster: Cluster, topic: str, partitions: int, replication: int, settings: Mapping[str, str]
) -> None:
    """Create a topic; no error where another worker has just done so.

    Raises:
        BrokerError: the cluster refuses it.
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


def _require_leaders(cluster: Cluster, topic: str, partitions: int) -> None:
    cluster.leaders([TopicPartition(topic, number) for number in range(partitions)])


def topic_settings(
    cluster: Cluster, topics: Collection[str], *, only_set: bool
) -> dict[str, dict[str, str]]:
    """The settings of topics: all effective ones, or those that are set on the topic itself.

    Raises:
        BrokerError: a broker refuses, or none answers.
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
