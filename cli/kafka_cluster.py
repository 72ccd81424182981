"""A real cluster, asked through librdkafka, which splits a call by leader."""

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from sidetier.cli.cluster_facts import ClusterMap, LogOffsets, ReplicaSet, Settings
from sidetier.leadership.admin import admin_client
from sidetier.leadership.offsets import End, ask_offsets
from sidetier.segments.errors import LeadershipUnavailableError
from sidetier.segments.offsets import Offset, TopicPartition

_TIMEOUT_SECONDS: Final = 10.0
_NO_BROKER: Final = -1


class KafkaCluster:
    """Asks the brokers at an address."""

    def __init__(
        self, servers: str, properties: Mapping[str, str], timeout: float = _TIMEOUT_SECONDS
    ) -> None:
        """Connects in the background.

        Raises:
            ConfigurationError: librdkafka refuses a property.
        """
        self._servers = servers
        self._timeout = timeout
        # What goes wrong comes back from the calls: no log beside the command's own words.
        self._client = admin_client(servers, properties, {"log_level": 0})

    def map(self) -> ClusterMap:
        """See the port. All topics are asked for: naming one could create it."""
        try:
            told = self._client.list_topics(timeout=self._timeout)
        except KafkaException as error:
            raise self._unavailable("metadata", error) from error
        return ClusterMap(
            told.cluster_id,
            told.orig_broker_id if told.orig_broker_id >= 0 else None,
            {broker: f"{one.host}:{one.port}" for broker, one in told.brokers.items()},
            {
                TopicPartition(topic, number): _replica_set(one)
                for topic, described in told.topics.items()
                for number, one in described.partitions.items()
            },
        )

    def bounds(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogOffsets]:
        """See the port."""
        wanted = list(partitions)
        starts, ends = (self._offsets(wanted, end) for end in (End.START, End.LATEST))
        return {
            tp: LogOffsets(starts[tp][0], ends[tp][0], starts[tp][1] or ends[tp][1])
            for tp in wanted
        }

    def _offsets(
        self, wanted: list[TopicPartition], end: End
    ) -> dict[TopicPartition, tuple[Offset | None, str | None]]:
        if not wanted:
            return {}
        try:
            found = ask_offsets(self._client, wanted, end, self._timeout)
        except KafkaException as error:
            raise self._unavailable("offsets", error) from error
        return {
            tp: (None, _said(told)) if isinstance(told, KafkaException) else (told.offset, None)
            for tp, told in found.items()
        }

    def topic_settings(self, topics: Iterable[str]) -> Mapping[str, Settings]:
        """See the port."""
        found, _ = self._settings(ResourceType.TOPIC, topics)
        return found

    def broker_settings(self, broker_id: int) -> Settings:
        """See the port."""
        found, problem = self._settings(ResourceType.BROKER, [str(broker_id)])
        if str(broker_id) not in found:
            raise self._unavailable(f"settings of broker {broker_id}", problem)
        return found[str(broker_id)]

    def _settings(
        self, kind: ResourceType, names: Iterable[str]
    ) -> tuple[dict[str, Settings], str | None]:
        resources = [ConfigResource(kind, name) for name in names]
        if not resources:
            return {}, None
        try:
            futures = self._client.describe_configs(resources, request_timeout=self._timeout)
        except KafkaException as error:
            raise self._unavailable("settings", error) from error
        found: dict[str, Settings] = {}
        problem = None
        for resource, future in futures.items():
            entries, failed = _outcome(future)
            problem = problem or failed
            if entries is not None:
                found[resource.name] = {name: entry.value for name, entry in entries.items()}
        return found, problem

    def _unavailable(self, what: str, why: object) -> LeadershipUnavailableError:
        said = _said(why) if isinstance(why, KafkaException) else why
        return LeadershipUnavailableError(f"{self._servers} tells no {what}: {said}")


def _replica_set(told: Any) -> ReplicaSet:  # noqa: ANN401 -- librdkafka's, without a public name
    leader = None if told.leader == _NO_BROKER else int(told.leader)
    return ReplicaSet(leader, tuple(told.replicas), tuple(told.isrs))


def _outcome(future: Future[Any]) -> tuple[Any, str | None]:
    """The answer, or why there is none; librdkafka bounds the wait."""
    try:
        return future.result(), None
    except KafkaException as error:
        return None, _said(error)


def _said(error: KafkaException) -> str:
    """The error's words, without its number."""
    inner = error.args[0] if error.args else None
    return str(inner.str() if isinstance(inner, KafkaError) else error)
