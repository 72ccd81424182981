"""Settings for the source of leadership: which partitions the broker leads."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sidetier.config.base import Part
from sidetier.config.types import AbsolutePath, SecretRef
from sidetier.config.units import Duration
from sidetier.segments.offsets import TopicPartition


def _partition_name(value: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9._-]+-(0|[1-9]\d*)", value) is None:
        raise ValueError("must be <topic>-<partition>, such as orders-0")
    return value


class KraftConfig(Part):
    """Leadership in a KRaft cluster."""

    metadata_log: bool = Field(
        default=True,
        description="Watch the broker's own copy of the metadata log on the disk. Off: only "
        "broker.bootstrap_servers is asked.",
    )
    metadata_log_dir: AbsolutePath | None = Field(
        default=None,
        description="The broker's metadata.log.dir; found in the log dirs unless given.",
    )
    confirm_interval: Duration = Field(
        default=10.0, gt=0, description="How often the broker is asked when nothing has changed."
    )


class ZookeeperSaslConfig(Part):
    """SASL authentication to ZooKeeper."""

    mechanism: Literal["DIGEST-MD5", "GSSAPI"] = Field(
        default="DIGEST-MD5", description="The SASL mechanism."
    )
    username: str | None = Field(default=None, min_length=1, description="For DIGEST-MD5.")
    password: SecretRef | None = Field(
        default=None, description="For DIGEST-MD5: {env: NAME} or {file: /path}."
    )
    service: str = Field(
        default="zookeeper", min_length=1, description="For GSSAPI: the service's name."
    )


class ZookeeperTlsConfig(Part):
    """TLS connections to ZooKeeper."""

    ca_file: AbsolutePath | None = Field(default=None, description="PEM file of trusted CAs.")
    cert_file: AbsolutePath | None = Field(default=None, description="PEM file of our certificate.")
    key_file: AbsolutePath | None = Field(default=None, description="PEM file of our private key.")
    key_password: SecretRef | None = Field(
        default=None, description="Password of the private key: {env: NAME} or {file: /path}."
    )
    verify: bool = Field(default=True, description="Check the server's certificate.")


class ZookeeperConfig(Part):
    """Leadership in a cluster on ZooKeeper."""

    connect: str | None = Field(
        default=None,
        min_length=1,
        description="The broker's zookeeper.connect: host:port,host:port/chroot.",
    )
    session_timeout: Duration = Field(default=18.0, gt=0, description="ZooKeeper session timeout.")
    sasl: ZookeeperSaslConfig | None = Field(default=None, description="SASL; off unless given.")
    tls: ZookeeperTlsConfig | None = Field(default=None, description="TLS; off unless given.")


class StaticConfig(Part):
    """A fixed list of led partitions, for backfills and tests."""

    partitions: Annotated[
        tuple[Annotated[str, AfterValidator(_partition_name)], ...], Field(strict=False)
    ] = Field(
        default=(),
        description="The partitions that are led, as <topic>-<partition>; empty: every one found.",
    )

    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        """Return the partitions as topic and number."""
        split = (name.rsplit("-", 1) for name in self.partitions)
        return tuple(TopicPartition(topic, int(number)) for topic, number in split)


class LeadershipConfig(Part):
    """How the sidecar learns which partitions its broker leads."""

    source: Literal["auto", "kraft", "zookeeper", "static"] = Field(
        default="auto",
        description="Where leadership is read; auto takes the mode from meta.properties.",
    )
    kraft: KraftConfig = Field(default=KraftConfig(), description="In a KRaft cluster.")
    zookeeper: ZookeeperConfig = Field(
        default=ZookeeperConfig(), description="In a cluster on ZooKeeper."
    )
    static: StaticConfig = Field(default=StaticConfig(), description="For backfills and tests.")
