"""The one way in which librdkafka's admin client is made here."""

import logging
from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sidetier.segments.errors import ConfigurationError

_logger: Final = logging.getLogger("sidetier.leadership.librdkafka")


def as_texts(properties: Mapping[str, str | int | float | bool]) -> dict[str, str]:
    """Properties as librdkafka reads them: true, not True."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in properties.items()
    }


def admin_client(
    bootstrap_servers: str,
    properties: Mapping[str, str],
    ours: Mapping[str, str | int | float | bool] | None = None,
) -> AdminClient:
    """A client that connects in the background; the given properties win over ours.

    Raises:
        ConfigurationError: librdkafka refuses a property.
    """
    settings: dict[str, str | int | float | bool] = {
        "client.id": "sidetier",
        **(ours or {}),
        "bootstrap.servers": bootstrap_servers,
        **properties,
    }
    try:
        return AdminClient(settings, logger=_logger)
    except (KafkaException, ValueError, TypeError) as error:
        raise ConfigurationError(f"the Kafka client's properties are refused: {error}") from error
