"""Topic configurations (DescribeConfigs): which topics to archive, and how soon Kafka deletes."""

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
"""Errors of a broker whose metadata does not yet contain a topic that was just created."""


class KafkaTopicConfigs:
    """Reads topic configurations from the cluster, all topics in one call."""

    def __init__(
        self, bootstrap_servers: str, properties: Mapping[str, str], timeout: float = 10.0
    ) -> None:
        """Create the client, which connects in the background.

        Raises:
            ConfigurationError: librdkafka rejects a property.
        """
        self._servers = bootstrap_servers
        self._timeout = timeout
        self._client = admin_client(bootstrap_servers, properties)

    def topic_configs(self, topics: Iterable[str]) -> Mapping[str, TopicConfig | None]:
        """Return the configuration of each topic; None if the broker refuses it.

        Topics that the broker does not know (yet), and topics whose request failed, are left out.

        Raises:
            LeadershipUnavailableError: No topic got a response.
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
            except ValueError as error:  # requested again later; the other topics are returned
                log.warning("topic.config_malformed", topic=resource.name, error=str(error))
        if not answers and failure is not None:
            raise self._unavailable(failure) from failure
        return answers

    def _unavailable(self, error: KafkaException) -> LeadershipUnavailableError:
        return LeadershipUnavailableError(f"{self._servers}: no topic configuration: {error}")

    def close(self) -> None:
        """Do nothing: librdkafka closes the connections when the client is destroyed."""


def _values(entries: Mapping[str, ConfigEntry]) -> dict[str, str | None]:
    return {name: entry.value for name, entry in entries.items()}


def topic_config(values: Mapping[str, str | None]) -> TopicConfig:
    """Return the configuration for archiving from Kafka's settings by name."""
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
    """Convert Kafka's milliseconds to seconds."""
    return None if text is None else int(text) / 1000
