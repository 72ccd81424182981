"""Create the topics of the new cluster with safe settings, and set the real ones at the end."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

import tenacity
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from sidetier.leadership.cluster import End, admin_client, all_offsets, as_texts, kafka_text
from sidetier.mirror.hydrate.plan import HydratePlan, PreparedTopic
from sidetier.segments.errors import ConfigurationError, LeadershipUnavailableError
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

Properties = Mapping[str, str | int | float | bool]
"""Properties of a Kafka client, with `bootstrap.servers`."""
SAFE_CONFIGS: Final[Mapping[str, str]] = {
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "cleanup.policy": "delete",
    # Until `replicate`, each partition has one replica.
    "min.insync.replicas": "1",
}
"""With any other retention, the broker deletes old segments within seconds of its start."""

THROTTLED_REPLICAS: Final = frozenset(
    {"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
)
"""Topic configs that name brokers of the lost cluster; a reassignment left them behind."""

_RETENTION: Final = frozenset({"retention.ms", "retention.bytes"})
_TIMEOUT: Final = 30.0
_LEADER_SECONDS: Final = 60.0
_CONTROLLER_SECONDS: Final = 60.0
_CONTROLLER_TIMEOUT: Final = 10.0
_POLL_SECONDS: Final = 0.2
_NOT_LEADING: Final = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""Errors of a broker that does not lead the partition yet, or no longer leads it."""
_NO_ANSWER: Final = frozenset(
    {
        KafkaError._TIMED_OUT,  # noqa: SLF001 -- public names
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001 -- waited for a connection
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._PARTIAL,  # noqa: SLF001 -- of a broker that has just started
    }
)
_REFUSED_VALUES: Final = frozenset({KafkaError.INVALID_CONFIG, KafkaError.POLICY_VIOLATION})
_UNKNOWN_OFFSET: Final = -1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DescribedTopic:
    """A topic as the brokers describe it.

    Attributes:
        topic_id: Kafka's id of the topic; None if the brokers have none.
        replicas: The broker ids of the replicas, by partition number.
        leaders: The broker id of the leader, by partition number; -1 without a leader.
    """

    topic_id: str | None
    replicas: tuple[tuple[int, ...], ...]
    leaders: tuple[int, ...]

    def is_led(self, partition: int) -> bool:
        """Whether the partition exists and has a leader."""
        return partition < len(self.leaders) and self.leaders[partition] >= 0


class TopicAdmin:
    """Creates, describes and configures topics through librdkafka's admin client.

    Every method raises LeadershipUnavailableError if no broker answers, or one refuses.

    Args:
        client: An admin client of the new cluster.
        stop: Set to end any waiting.
    """

    def __init__(self, client: AdminClient, stop: threading.Event | None = None) -> None:
        self._client = client
        self._stop = stop or threading.Event()

    @classmethod
    def connected(cls, properties: Properties) -> Self:
        """Return a client of the cluster at `bootstrap.servers`. Raises ConfigurationError."""
        texts = as_texts(properties)
        return cls(admin_client(texts.pop("bootstrap.servers"), texts))

    def cluster_id(self) -> str | None:
        """Return Kafka's id of the cluster."""
        cluster_id = self._described_cluster().cluster_id
        return None if cluster_id is None else str(cluster_id)

    def brokers(self) -> dict[int, str | None]:
        """Return the racks of the brokers that are up, by id; None for a broker without a rack."""
        return {node.id: node.rack for node in self._described_cluster().nodes}

    def described(self, topics: Iterable[str]) -> dict[str, DescribedTopic]:
        """Return the topics that exist, by name."""
        names = list(topics)
        if not names:
            return {}
        futures = self._ask(
            lambda: self._client.describe_topics(TopicCollection(names), request_timeout=_TIMEOUT)
        )
        topics_by_name = {}
        for name, future in futures.items():
            try:
                description = future.result()
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise LeadershipUnavailableError(
                    f"topic {name} cannot be described: {error}"
                ) from error
            topics_by_name[name] = _described(description)
        return topics_by_name

    def create(self, topics: Mapping[str, int], configs: Mapping[str, str]) -> set[str]:
        """Create topics with one replica per partition; `topics` has their partition counts.

        Returns:
            The topics that were created. Other topics already exist and stay unchanged.
        """
        return self._create(topics, configs, validate_only=False)

    def check_new(self, topics: Mapping[str, int], configs: Mapping[str, str]) -> None:
        """Let the brokers check what `create` would create. Raises its error; changes nothing."""
        self._create(topics, configs, validate_only=True)

    def _create(
        self, topics: Mapping[str, int], configs: Mapping[str, str], *, validate_only: bool
    ) -> set[str]:
        if not topics:
            return set()
        new = [
            NewTopic(name, partitions, 1, config=dict(configs))
            for name, partitions in topics.items()
        ]
        futures = self._ask(
            lambda: self._client.create_topics(
                new, request_timeout=_TIMEOUT, validate_only=validate_only
            )
        )
        created = set()
        for name, future in futures.items():
            try:
                future.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise LeadershipUnavailableError(
                        f"topic {name} cannot be created: {error}"
                    ) from error
            else:
                created.add(name)
        return created

    def wait_until_led(self, topics: Mapping[str, int]) -> dict[str, DescribedTopic]:
        """Wait until each partition of the topics has a leader.

        Each broker learns of new topics and leaders independently: one broker may describe a topic
        that another does not know yet.

        Args:
            topics: The partition counts of the topics.

        Returns:
            All topics, as described by a broker that knows every leader.
        """
        described: dict[str, DescribedTopic] = {}

        def without_leader() -> list[TopicPartition]:
            described.update(self.described(topics))
            return [
                TopicPartition(name, number)
                for name, partitions in topics.items()
                for number in range(partitions)
                if name not in described or not described[name].is_led(number)
            ]

        try:
            self.wait(lambda: not without_leader(), _LEADER_SECONDS, "leaders")
        except LeadershipUnavailableError:
            waiting = without_leader()
            if not waiting:
                return described
            first = waiting[0]
            state = "has no leader" if first.topic in described else "does not exist"
            raise LeadershipUnavailableError(
                f"{first} {state} after {_LEADER_SECONDS:.0f} s (the same holds for "
                f"{len(waiting) - 1} other partitions): is every broker running?"
            ) from None
        return described

    def log_ranges(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
        """Return the log start offset and high watermark of each partition."""
        wanted = list(tps)
        if not wanted:
            return {}
        # A broker that has just become a leader refuses until it has loaded the partition.
        trying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_not_leading),
            stop=tenacity.stop_after_delay(_LEADER_SECONDS),
            wait=tenacity.wait_exponential(multiplier=0.1, max=2.0),
            sleep=tenacity.sleep_using_event(self._stop),
            reraise=True,
        )
        # The start first: it only rises, so that it is not above an end that is read later.
        starts, ends = (
            self._ask(
                lambda end=end: trying(all_offsets, self._client, wanted, end, _TIMEOUT)  # type: ignore[misc]
            )
            for end in (End.START, End.LATEST)
        )
        return {
            tp: OffsetRange(Offset(starts[tp].offset), Offset(ends[tp].offset)) for tp in wanted
        }

    def configure(self, topic: str, configs: Mapping[str, str | None]) -> dict[str, str]:
        """Set configs of a topic; None removes a config, so that the broker's default applies.

        The brokers accept all of the configs or none. If they refuse all, each is set alone:
        another Kafka version may not know a config, or not accept its value.

        Returns:
            The configs that the brokers refuse, each with the reason.
        """
        if not configs:
            return {}
        reason = self._try_configure(topic, configs)
        if reason is None:
            return {}
        if len(configs) == 1:
            return dict.fromkeys(configs, reason)
        return {
            refused: reason
            for name, value in configs.items()
            for refused, reason in self.configure(topic, {name: value}).items()
        }

    def _try_configure(self, topic: str, configs: Mapping[str, str | None]) -> str | None:
        """Set the configs; return why the brokers refuse them, None if they accept them."""
        entries = [
            ConfigEntry(
                name,
                "" if value is None else value,
                incremental_operation=(
                    AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
                ),
            )
            for name, value in sorted(configs.items())
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        futures = self._ask(
            lambda: self._client.incremental_alter_configs([resource], request_timeout=_TIMEOUT)
        )
        try:
            futures[resource].result()
        except KafkaException as error:
            if error.args[0].code() in _REFUSED_VALUES:
                return str(error.args[0].str())
            raise LeadershipUnavailableError(f"topic {topic} cannot be configured: {error}") from (
                error
            )
        return None

    def wait(
        self, done: Callable[[], bool], seconds: float, goal: str, every: float = _POLL_SECONDS
    ) -> None:
        """Wait until `done` returns True; it is called every `every` seconds.

        Raises:
            LeadershipUnavailableError: It did not return True within `seconds`.
        """
        for _ in range(max(1, int(seconds / every))):
            if done():
                return
            if self._stop.wait(every):
                break
        raise LeadershipUnavailableError(f"waited {seconds:.0f} s for {goal}, without success")

    def _described_cluster(self) -> Any:  # noqa: ANN401 -- librdkafka's type has no public name
        """Describe the cluster through its controller.

        For a while after a broker has died, other brokers still name it as the controller, and
        librdkafka waits for the controller that it learned first. Therefore each attempt refreshes
        the metadata.
        """
        trying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_is_unanswered),
            stop=tenacity.stop_after_delay(_CONTROLLER_SECONDS),
            sleep=tenacity.sleep_using_event(self._stop),
            reraise=True,
        )

        def ask() -> Any:  # noqa: ANN401 -- librdkafka's type has no public name
            # Refreshes the controller, and fails if a broker that has just started knows no brokers
            # yet: such an answer to `describe_cluster` ends the process (`cluster_id_of`). Another
            # broker may still give one: then run the command again.
            self._client.list_topics(timeout=_CONTROLLER_TIMEOUT)
            return self._client.describe_cluster(request_timeout=_CONTROLLER_TIMEOUT).result()

        return self._ask(lambda: trying(ask))

    def _ask(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except KafkaException as error:
            raise LeadershipUnavailableError(f"the new cluster refuses: {error}") from error


def is_not_leading(error: BaseException) -> bool:
    """Whether a broker refused because it does not lead the partition. This may pass."""
    return isinstance(error, KafkaException) and error.args[0].code() in _NOT_LEADING


def _is_unanswered(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in _NO_ANSWER


def _described(description: Any) -> DescribedTopic:  # noqa: ANN401 -- librdkafka's type has no public name
    replicas = [
        tuple(node.id for node in partition.replicas) for partition in description.partitions
    ]
    leaders = [
        _UNKNOWN_OFFSET if partition.leader is None else partition.leader.id
        for partition in description.partitions
    ]
    topic_id = None if description.topic_id is None else kafka_text(str(description.topic_id))
    return DescribedTopic(topic_id, tuple(replicas), tuple(leaders))


def to_create(plan: HydratePlan, admin: TopicAdmin) -> dict[str, int]:
    """Return the topics of the plan that do not exist yet, with their partition counts.

    Changes nothing. Every topic of the plan is checked, so that a refused plan leaves none.

    Raises:
        ConfigurationError: An existing topic cannot take segments.
        LeadershipUnavailableError: The brokers do not answer, or refuse a topic.
    """
    existing = admin.described(plan.topics)
    check_existing(plan, existing, admin.log_ranges(_partitions(existing)))
    missing = {
        name: topic.partitions for name, topic in plan.topics.items() if name not in existing
    }
    admin.check_new(missing, SAFE_CONFIGS)
    return missing


def check_existing(
    plan: HydratePlan,
    existing: Mapping[str, DescribedTopic],
    logs: Mapping[TopicPartition, OffsetRange],
) -> None:
    """Check that existing topics, left by an interrupted run, can take archived segments.

    Raises:
        ConfigurationError: A topic has records, another number of partitions, or several replicas.
    """
    for name, topic in existing.items():
        wanted = plan.topics[name]
        if len(topic.replicas) != wanted.partitions:
            raise ConfigurationError(
                f"topic {name} exists with {len(topic.replicas)} partitions, the plan has "
                f"{wanted.partitions}; delete it, or leave it out with --topic"
            )
        if any(len(replicas) != 1 for replicas in topic.replicas):
            raise ConfigurationError(
                f"topic {name} exists with several replicas: segments on one of them would be "
                "deleted by the others; delete it, or leave it out with --topic"
            )
        used = [
            number for number in range(wanted.partitions) if logs[TopicPartition(name, number)].size
        ]
        if used:
            raise ConfigurationError(
                f"topic {name} exists and has records in partition {used[0]}; segments are placed "
                "only into empty topics: delete it, or leave it out with --topic"
            )


def prepare(plan: HydratePlan, admin: TopicAdmin) -> tuple[str | None, dict[str, PreparedTopic]]:
    """Create the topics of a plan; use those that an interrupted run has created.

    Returns:
        The cluster's id, and for each topic its id and the broker of each partition.

    Raises:
        ConfigurationError: An existing topic cannot take segments (usually found before any topic
            is created), or the brokers refuse its safe configs.
        LeadershipUnavailableError: The brokers do not answer, or refuse.
    """
    created = admin.create(to_create(plan, admin), SAFE_CONFIGS)
    described = admin.wait_until_led(
        {name: topic.partitions for name, topic in plan.topics.items()}
    )
    # The first broker that described the topics may not have known all of them.
    taken_over = {name: topic for name, topic in described.items() if name not in created}
    check_existing(plan, taken_over, admin.log_ranges(_partitions(taken_over)))
    for name in taken_over:
        for config, reason in admin.configure(name, SAFE_CONFIGS).items():
            raise ConfigurationError(
                f"topic {name}: the brokers refuse {config}={SAFE_CONFIGS[config]}: {reason}"
            )
    return admin.cluster_id(), {
        name: PreparedTopic(topic.topic_id, tuple(replicas[0] for replicas in topic.replicas))
        for name, topic in described.items()
    }


def _partitions(topics: Mapping[str, DescribedTopic]) -> list[TopicPartition]:
    return [
        TopicPartition(name, number)
        for name, topic in topics.items()
        for number in range(len(topic.replicas))
    ]


def final_configs(configs: Mapping[str, str] | None) -> dict[str, str | None]:
    """Return the configs to set on a topic at the end; `THROTTLED_REPLICAS` are left out.

    Args:
        configs: The configs on the lost cluster; None if unknown. In that case the retention stays
            unlimited, because only the operator knows the right one.
    """
    safe: dict[str, str | None] = dict.fromkeys(SAFE_CONFIGS)
    if configs is None:
        return {name: value for name, value in safe.items() if name not in _RETENTION}
    restored = {name: value for name, value in configs.items() if name not in THROTTLED_REPLICAS}
    return {**safe, **restored}


def not_restored(plan: HydratePlan) -> dict[str, dict[str, str]]:
    """Return the configs of the lost cluster that `final_configs` leaves out, by topic."""
    left_out = {
        name: {
            config: value
            for config, value in sorted((topic.configs or {}).items())
            if config in THROTTLED_REPLICAS
        }
        for name, topic in sorted(plan.topics.items())
    }
    return {name: configs for name, configs in left_out.items() if configs}
