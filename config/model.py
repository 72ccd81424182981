"""The configuration: one frozen model for each part. Unknown keys are refused.

Durations are in seconds and sizes in bytes; both accept a unit (`30s`, `5m`, `16MiB`).
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints

from sidetier.config.fleet import FleetConfig
from sidetier.config.retention import RetentionConfig
from sidetier.config.secrets import is_secret_property
from sidetier.config.storage import StorageConfig
from sidetier.config.types import (
    AbsolutePath,
    NamePatterns,
    Part,
    PropertyValue,
    SecretRef,
    matches_any,
    resolved,
)
from sidetier.config.units import Duration
from sidetier.config.uploader import UploaderConfig
from sidetier.segments.offsets import TopicPartition

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
        description="The cluster's name on the store. It is part of the hash in every key: never "
        "change it after the first upload, and use the same name for every reader.",
    )


class BrokerConfig(Part):
    """The broker that the sidecar runs beside."""

    bootstrap_servers: str | None = Field(
        default=None,
        min_length=1,
        description="Address of the sidecar's own broker, host:port. Without it, the sidecar reads "
        "leadership and high watermarks only from the disk.",
    )
    client: Annotated[Mapping[str, ClientValue], AfterValidator(_secrets_by_reference)] = Field(
        default_factory=dict,
        description="Further librdkafka properties (security.protocol, ssl.*, sasl.*). Passwords "
        "and keys are given as {env: NAME} or {file: /path}.",
    )
    id: int | None = Field(
        default=None,
        ge=0,
        description="The broker's id; default: that of meta.properties.",
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


INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state"}
)
"""Internal topics of the brokers (`Topic.INTERNAL_TOPICS` in Kafka)."""

METADATA_TOPIC: Final = "__cluster_metadata"
"""KRaft's metadata log: a directory in a log dir, but not a topic."""


class TopicsConfig(Part):
    """Topics to archive: patterns match the whole name, and exclude overrides include."""

    include: NamePatterns = Field(
        default=(".*",), min_length=1, description="Regular expressions of topics to archive."
    )
    exclude: NamePatterns = Field(
        default=(), description="Regular expressions of topics to exclude; overrides include."
    )
    internal: bool = Field(
        default=False,
        description="Also archive the broker's internal topics, such as __consumer_offsets.",
    )
    compacted: Literal["refuse", "as_closed"] = Field(
        default="refuse",
        description="Treatment of compacted topics: refuse halts their partitions with an error; "
        "as_closed archives each segment after it closes, before compaction.",
    )

    def selects(self, topic: str) -> bool:
        """Whether the topic is archived, by its name alone."""
        if topic == METADATA_TOPIC or (topic in INTERNAL_TOPICS and not self.internal):
            return False
        return matches_any(self.include, topic) and not matches_any(self.exclude, topic)


def _partition_name(value: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9._-]+-(0|[1-9]\d*)", value) is None:
        raise ValueError("must be <topic>-<partition>, such as orders-0")
    return value


class KraftConfig(Part):
    """Leadership in a KRaft cluster."""

    metadata_log: bool = Field(
        default=True,
        description="Read the broker's copy of the metadata log on the disk. If false, the leaders "
        "come only from Metadata requests to broker.bootstrap_servers.",
    )
    metadata_log_dir: AbsolutePath | None = Field(
        default=None,
        description="The broker's metadata.log.dir; default: the log dir that has "
        "__cluster_metadata-0.",
    )
    confirm_interval: Duration = Field(
        default=10.0,
        gt=0,
        description="Interval of Metadata requests to the broker while the "
        "metadata log does not change.",
    )


class ZookeeperSaslConfig(Part):
    """SASL authentication to ZooKeeper."""

    mechanism: Literal["DIGEST-MD5", "GSSAPI"] = Field(
        default="DIGEST-MD5", description="SASL mechanism."
    )
    username: str | None = Field(
        default=None, min_length=1, description="User name for DIGEST-MD5."
    )
    password: SecretRef | None = Field(
        default=None, description="Password for DIGEST-MD5: {env: NAME} or {file: /path}."
    )
    service: str = Field(default="zookeeper", min_length=1, description="Service name for GSSAPI.")


class ZookeeperTlsConfig(Part):
    """TLS connections to ZooKeeper."""

    ca_file: AbsolutePath | None = Field(default=None, description="PEM file of trusted CAs.")
    cert_file: AbsolutePath | None = Field(
        default=None, description="PEM file of the sidecar's certificate."
    )
    key_file: AbsolutePath | None = Field(
        default=None, description="PEM file of the sidecar's private key."
    )
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
    sasl: ZookeeperSaslConfig | None = Field(default=None, description="SASL; default: off.")
    tls: ZookeeperTlsConfig | None = Field(default=None, description="TLS; default: off.")


class StaticConfig(Part):
    """A fixed list of led partitions, for backfills and tests."""

    partitions: Annotated[
        tuple[Annotated[str, AfterValidator(_partition_name)], ...], Field(strict=False)
    ] = Field(
        default=(),
        description="Led partitions, as <topic>-<partition>. If empty, all partitions in the log "
        "dirs.",
    )

    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        """Return the partitions as topic and number."""
        split = (name.rsplit("-", 1) for name in self.partitions)
        return tuple(TopicPartition(topic, int(number)) for topic, number in split)


class LeadershipConfig(Part):
    """How the sidecar learns which partitions its broker leads."""

    source: Literal["auto", "kraft", "zookeeper", "static"] = Field(
        default="auto",
        description="Source of leadership; auto chooses kraft or zookeeper by meta.properties.",
    )
    kraft: KraftConfig = Field(default=KraftConfig(), description="Settings for a KRaft cluster.")
    zookeeper: ZookeeperConfig = Field(
        default=ZookeeperConfig(), description="Settings for a cluster on ZooKeeper."
    )
    static: StaticConfig = Field(
        default=StaticConfig(), description="Fixed leadership, for backfills and tests."
    )


def _runbook_url(text: str) -> str:
    """Return the URL without a trailing slash; refuse other schemes, such as `javascript:`."""
    if text and not text.startswith(("https://", "http://")):
        raise ValueError(f"{text!r}: expected https://... or http://...")
    return text.rstrip("/")


HostPattern = Annotated[
    str, StringConstraints(pattern=r"^(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?$")
]


class HttpConfig(Part):
    """HTTP server with the status page, /metrics, /healthz, /readyz and /api/partitions."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address to listen on. 0.0.0.0 accepts connections from other hosts, :: also "
        "over IPv6; a Prometheus on another host needs one of them.",
    )
    port: int = Field(default=9108, ge=0, le=65535, description="Port; 0 lets the system choose.")
    bearer_token: SecretRef | None = Field(
        default=None,
        description="Token that requests must have in the header Authorization: Bearer, as {env: "
        "NAME} or {file: /path}. /healthz and /readyz also answer without it, but then without "
        "reasons. The same applies to --metrics-port of sidetier serve.",
    )
    allowed_hosts: Annotated[tuple[HostPattern, ...], Field(strict=False)] = Field(
        default=(),
        description="Names under which the HTTP port also answers without a bearer token, such as "
        "sidetier.example.com or *.example.com. Always allowed are addresses, names without a dot, "
        "names of this host, and those that end in .local, .svc or .internal. A request with "
        "another name in its header Host gets status 421: a page of a hostile site could have led "
        "a browser here (DNS rebinding). The same applies to --metrics-port of sidetier serve and "
        "to sidetier fleet serve.",
    )
    max_partition_series: int = Field(
        default=5000,
        ge=0,
        description="Maximum number of partitions with series of their own. With more partitions, "
        "metrics have no labels topic and partition.",
    )
    runbook_url: Annotated[str, AfterValidator(_runbook_url)] = Field(
        default="",
        description="Address of docs/runbook of the repository, for links of the status page: "
        "<runbook_url>/SidetierGapFound.md. Without it, the page shows only the pages' names.",
    )

    def token_reader(self) -> Callable[[], str] | None:
        """Return what reads the bearer token; None without one.

        Raises:
            ConfigurationError: The token cannot be read now.
        """
        if self.bearer_token is None:
            return None
        self.bearer_token.resolve()
        return self.bearer_token.resolve


def local_url(host: str, port: int) -> str:
    """Return the URL of a server that listens on `host`, for a client on the same host."""
    any_address = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 -- mapped
    plain = host.strip("[]")
    address = any_address.get(plain, plain)
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


class LogConfig(Part):
    """Log of the sidecar, on standard error."""

    format: Literal["json", "console"] = Field(
        default="json", description="Log format: one JSON object per line, or text for people."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Minimum severity of log lines."
    )


_HASTY_ATTEMPTS: Final = 3
_HASTY_SECONDS: Final = 10.0


class Config(Part):
    """The whole configuration of one sidecar."""

    cluster: ClusterConfig = Field(description="The Kafka cluster.")
    log_dirs: Annotated[tuple[AbsolutePath, ...], Field(strict=False)] = Field(
        min_length=1,
        description="All directories of the broker's log.dirs. A pattern (*, ?) is replaced by "
        "the log dirs that it matches on this host.",
    )
    broker: BrokerConfig = Field(default=BrokerConfig(), description="The broker on this host.")
    topics: TopicsConfig = Field(default=TopicsConfig(), description="The topics to archive.")
    leadership: LeadershipConfig = Field(
        default=LeadershipConfig(), description="Source of leadership."
    )
    storage: StorageConfig = Field(description="The object store.")
    uploader: UploaderConfig = Field(
        default=UploaderConfig(), description="Threads, limits and reactions of the daemon."
    )
    retention: RetentionConfig = Field(
        default=RetentionConfig(),
        description="Retention of archived topics, on the brokers and on the store.",
    )
    http: HttpConfig = Field(
        default=HttpConfig(), description="HTTP server with metrics, health and status."
    )
    log: LogConfig = Field(default=LogConfig(), description="The sidecar's log.")
    fleet: FleetConfig = Field(
        default=FleetConfig(), description="Sidecars of all brokers, for `sidetier fleet`."
    )

    def with_storage(self, **changes: object) -> Self:
        """Return the configuration with other settings of `storage`."""
        storage = self.storage.model_copy(update=changes)
        return self.model_copy(update={"storage": storage})

    def with_few_retries(self) -> Self:
        """Return the configuration with few retries, so that reads of records fail soon.

        Each attempt keeps the configured deadline: a slow store answers within it.
        """
        retry = self.storage.retry
        changes = {
            "attempts": min(retry.attempts, _HASTY_ATTEMPTS),
            "max_elapsed": min(retry.max_elapsed, _HASTY_SECONDS),
        }
        return self.with_storage(retry=retry.model_copy(update=changes))

    def with_short_timeouts(self) -> Self:
        """Return the configuration with few retries and short deadlines, so that a command fails
        soon.

        A silent store uses up the time in one attempt. It is not divided among the attempts: a
        store that needs longer than a share of it would never be read.
        """
        deadline = self.storage.deadline
        changes = {
            name: min(getattr(deadline, name), _HASTY_SECONDS)
            for name in ("base", "connect", "silence")
        }
        return self.with_few_retries().with_storage(deadline=deadline.model_copy(update=changes))


class ReaderConfig(Config):
    """The configuration of a command that only reads the store: log dirs may be missing."""

    log_dirs: Annotated[tuple[AbsolutePath, ...], Field(strict=False)] = Field(
        default=(), description=Config.model_fields["log_dirs"].description
    )
