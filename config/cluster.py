"""Settings of the cluster and of this host's broker."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from sidetier.config.base import Part
from sidetier.config.secrets import is_secret_property
from sidetier.config.types import PropertyValue, SecretRef, resolved

ClientValue = PropertyValue | SecretRef


def _secrets_by_reference(client: Mapping[str, ClientValue]) -> Mapping[str, ClientValue]:
    for name in sorted(client):
        if is_secret_property(name) and not isinstance(client[name], SecretRef):
            message = f"{name} must be given as {{env: NAME}} or {{file: /path}}"
            raise ValueError(message)
    if "bootstrap.servers" in client:
        raise ValueError("bootstrap.servers belongs in broker.bootstrap_servers")
    return client


class ClusterConfig(Part):
    """The Kafka cluster."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9._-]+$",
        description="The cluster's name on the store. It is hashed into every key: never change it "
        "once something is stored, and use the same name for every reader.",
    )


class BrokerConfig(Part):
    """The broker that the sidecar runs beside."""

    bootstrap_servers: str | None = Field(
        default=None,
        min_length=1,
        description="Address of the sidecar's own broker, host:port. Without it leadership and "
        "high watermarks are read from the disk alone.",
    )
    client: Annotated[Mapping[str, ClientValue], AfterValidator(_secrets_by_reference)] = Field(
        default_factory=dict,
        description="Further properties for librdkafka (security.protocol, ssl.*, sasl.*). "
        "Passwords and keys as {env: NAME} or {file: /path}.",
    )
    id: int | None = Field(
        default=None,
        ge=0,
        description="The broker's id; read from meta.properties unless given.",
    )

    def client_properties(self) -> dict[str, PropertyValue]:
        """Return the properties for a librdkafka client, with resolved secrets. Do not log them.

        Raises:
            ConfigurationError: a secret cannot be read.
        """
        return resolved(self.client_references())

    def client_references(self) -> dict[str, PropertyValue | SecretRef]:
        """Return the same properties with references instead of secrets."""
        references = dict(self.client)
        if self.bootstrap_servers is not None:
            references["bootstrap.servers"] = self.bootstrap_servers
        return references
