"""Topic configurations (DescribeConfigs): what may be archived, and how soon it is deleted."""

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from sidetier.leadership.port import TopicConfig
from sidetier.segments.errors import LeadershipUnavailableError

if TYPE_CHECKING:
    from concurrent.futures import Future

_logger: Final = logging.getLogger("sidetier.leadership.librdkafka")
_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.INVALID_CONFIG,
    }
)


class KafkaTopicConfigs:
    """Asks the cluster for the configuration of topics, all of them in one call."""

    def __init__(
        self, bootstrap_servers: str, properties: Mapping[str, str], timeout: float = 10.0
    ) -> None:
        self._servers = bootstrap_servers
        self._properties = dict(properties)
        self._timeout = timeout
        self._client: AdminClient | None = None

    def topic_configs(self, topics: Iterable[str]) -> Mapping[str, TopicConfig | None]:
        """The configuration of each topic; None where the broker refuses to tell.

        Raises:
            LeadershipUnavailableError: no answer came in time.
        """
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        futures = self._connected().describe_configs(resources, request_timeout=self._timeout)
        return {resource.name: self._answer(future) for resource, future in futures.items()}

    def close(self) -> None:
        """Let the connections go; may be called twice."""
        self._client = None

    def _answer(self, future: "Future[dict[str, ConfigEntry]]") -> TopicConfig | None:
        try:
            return _parse(future.result())
        except KafkaException as error:
            if error.args and error.args[0].code() in _REFUSED:
                return None
            raise LeadershipUnavailableError(
                f"{self._servers}: no topic configuration: {error}"
            ) from error

    def _connected(self) -> AdminClient:
        if self._client is None:
            settings: dict[str, str | int | float | bool] = {
                "bootstrap.servers": self._servers,
                "client.id": "sidetier",
                **self._properties,
            }
            self._client = AdminClient(settings, logger=_logger)
        return self._client


def _parse(entries: Mapping[str, ConfigEntry]) -> TopicConfig:
    values = {name: entry.value for name, entry in entries.items()}
    retention = _milliseconds(values.get("retention.ms"))
    return TopicConfig(
        compacted="compact" in (values.get("cleanup.policy") or ""),
        native_tiering=values.get("remote.storage.enable") == "true",
        retention=None if retention is None or retention < 0 else retention,
        delete_delay=_milliseconds(values.get("file.delete.delay.ms")),
    )


def _milliseconds(text: str | None) -> float | None:
    """Seconds, from what the broker says in ms."""
    return None if text is None else int(text) / 1000
