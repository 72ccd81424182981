"""Topic configurations (DescribeConfigs): what may be archived, and how soon it is deleted."""

from collections.abc import Iterable, Mapping
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin._config import ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from sidetier.leadership.admin import admin_client
from sidetier.leadership.port import TopicConfig
from sidetier.segments.errors import LeadershipUnavailableError

_INFINITE: Final = float("inf")
_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_CONFIG,
    }
)
log: Final = structlog.get_logger()
_UNKNOWN: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART})
"""A broker whose metadata lags says so of a topic that was just created."""


class KafkaTopicConfigs:
    """Asks the cluster for the configuration of topics, all of them in one call."""

    def __init__(
        self, bootstrap_servers: str, properties: Mapping[str, str], timeout: float = 10.0
    ) -> None:
        """Connects in the background.

        Raises:
            ConfigurationError: librdkafka refuses a property.
        """
        self._servers = bootstrap_servers
        self._timeout = timeout
        self._client = admin_client(bootstrap_servers, properties)

    def topic_configs(self, topics: Iterable[str]) -> Mapping[str, TopicConfig | None]:
        """The configuration of each topic; None where the broker refuses to tell. Topics that it
        does not know (yet), or could not be asked for, are left out.

        Raises:
            LeadershipUnavailableError: there is no answer for any of them.
        """
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        try:
            futures = self._client.describe_configs(resources, request_timeout=self._timeout)
        except KafkaException as error:
            raise self._unavailable(error) from error
        answers: dict[str, TopicConfig | None] = {}
        failure: KafkaException | None = None
        for resource, future in futures.items():
            try:
                answers[resource.name] = topic_config(_values(future.result()))
            except KafkaException as error:
                if error.args[0].code() in _REFUSED:
                    answers[resource.name] = None
                elif error.args[0].code() not in _UNKNOWN:
                    failure = error
            except ValueError as error:  # asked again; the other topics go on meanwhile
                log.warning("topic.config_malformed", topic=resource.name, error=str(error))
        if not answers and failure is not None:
            raise self._unavailable(failure) from failure
        return answers

    def _unavailable(self, error: KafkaException) -> LeadershipUnavailableError:
        return LeadershipUnavailableError(f"{self._servers}: no topic configuration: {error}")

    def close(self) -> None:
        """Nothing to wait for: the connections go with the client."""


def _values(entries: Mapping[str, ConfigEntry]) -> dict[str, str | None]:
    return {name: entry.value for name, entry in entries.items()}


def topic_config(values: Mapping[str, str | None]) -> TopicConfig:
    """What of a topic's settings, by their names in Kafka, matters to archiving."""
    policy = (values.get("cleanup.policy") or "").split(",")
    deletes = "compact" not in policy or "delete" in policy
    retention = _milliseconds(values.get("retention.ms")) if deletes else _INFINITE
    size = values.get("retention.bytes") if deletes else None
    return TopicConfig(
        compacted="compact" in policy,
        native_tiering=values.get("remote.storage.enable") == "true",
        retention=_INFINITE if retention is not None and retention < 0 else retention,
        retention_bytes=None if size is None or int(size) < 0 else int(size),
        delete_delay=_milliseconds(values.get("file.delete.delay.ms")),
    )


def _milliseconds(text: str | None) -> float | None:
    """Seconds, from what the broker says in ms."""
    return None if text is None else int(text) / 1000
