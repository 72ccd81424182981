"""Create librdkafka's admin client, with the same defaults everywhere."""

import logging
from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sidetier.segments.errors import ConfigurationError

_logger: Final = logging.getLogger("sidetier.leadership.librdkafka")


def as_texts(properties: Mapping[str, str | int | float | bool]) -> dict[str, str]:
    """Return properties in librdkafka's text form: true, not True."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in properties.items()
    }


def admin_client(
    bootstrap_servers: str,
    properties: Mapping[str, str],
    ours: Mapping[str, str | int | float | bool] | None = None,
) -> AdminClient:
    """Return a client that connects in the background.

    Args:
        bootstrap_servers: Addresses of one or more brokers.
        properties: The user's librdkafka properties; they override `ours`.
        ours: Defaults of the caller.

    Raises:
        ConfigurationError: librdkafka rejects a property.
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
