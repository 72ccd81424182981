"""What the leadership sources need to know; durations are seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sidetier.segments.offsets import BrokerId, TopicPartition


@dataclass(frozen=True, slots=True)
class KraftSettings:
    """Leadership in KRaft mode, from the metadata log, the Metadata request, or both."""

    broker_id: BrokerId
    """`node.id` of the broker that the sidecar stands beside."""
    metadata_log_dir: Path | None = None
    """The directory that holds `__cluster_metadata-0`; None to do without the metadata log."""
    bootstrap_servers: str | None = None
    """The sidecar's own broker, `host:port`; None to do without the Metadata request."""
    cluster_id: str | None = None
    """The cluster id of `meta.properties`; an answer from another cluster ends the source."""
    client_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further librdkafka properties (`security.protocol`, `sasl.…`, `ssl.…`); they win."""
    poll_interval: float = 10.0
    """Between two Metadata requests when nothing hints at a change."""
    log_poll_interval: float = 1.0
    """Between two looks at the metadata log when no file event comes."""
    request_timeout: float = 5.0
    """For one Metadata request."""
    stale_after: float = 60.0
    """How long the last answer is believed while none comes (`inf`: for ever)."""


@dataclass(frozen=True, slots=True)
class ZookeeperSettings:
    """Leadership in ZooKeeper mode."""

    broker_id: BrokerId
    """`broker.id` of the broker that the sidecar stands beside."""
    connect: str
    """Kafka's `zookeeper.connect`: `host:port,host:port/chroot`."""
    cluster_id: str | None = None
    """The cluster id of `meta.properties`; another one under `/cluster/id` ends the source."""
    session_timeout: float = 18.0
    """Asked of ZooKeeper; also how long the view is believed without a connection."""
    auth: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Credentials for ZooKeeper's ACLs, such as `("digest", "user:secret")`."""
    sasl: Mapping[str, str] | None = field(default=None, repr=False)
    """kazoo's `sasl_options`: `mechanism`, `username`, …; needs the package pure-sasl."""
    tls: "ZookeeperTls | None" = None


@dataclass(frozen=True, slots=True)
class ZookeeperTls:
    """TLS towards ZooKeeper; paths of PEM files."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True
    check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class StaticSettings:
    """Leadership by decree, for backfills and tests."""

    partitions: tuple[TopicPartition, ...] | None = None
    """What is led; None for every partition that lies in `log_dirs`."""
    log_dirs: tuple[Path, ...] = ()
    """Where partitions are looked for when none are named."""


LeadershipSettings = KraftSettings | ZookeeperSettings | StaticSettings
