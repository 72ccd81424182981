"""Settings of the leadership sources; durations are in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sidetier.segments.offsets import BrokerId, TopicPartition


@dataclass(frozen=True, slots=True)
class KraftSettings:
    """Leadership in KRaft mode, from the metadata log, the Metadata request, or both."""

    broker_id: BrokerId
    """`node.id` of the sidecar's own broker."""
    metadata_log_dir: Path | None = None
    """Log dir that contains `__cluster_metadata-0`; None to work without the metadata log."""
    bootstrap_servers: str | None = None
    """The sidecar's own broker, `host:port`; None to work without the Metadata request."""
    cluster_id: str | None = None
    """Cluster id of `meta.properties`. A response from another cluster ends the source."""
    client_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """librdkafka properties (`security.protocol`, `sasl.…`, `ssl.…`); they override our own."""
    poll_interval: float = 10.0
    """Time between two Metadata requests while nothing hints at a change."""
    log_poll_interval: float = 1.0
    """Time between two reads of the metadata log while there are no file events."""
    request_timeout: float = 5.0
    """Timeout of one Metadata request."""
    stale_after: float = 60.0
    """How long the last response stays valid without a new one (`inf`: forever)."""


@dataclass(frozen=True, slots=True)
class ZookeeperSettings:
    """Leadership in ZooKeeper mode."""

    broker_id: BrokerId
    """`broker.id` of the sidecar's own broker."""
    connect: str
    """Kafka's `zookeeper.connect`: `host:port,host:port/chroot`."""
    cluster_id: str | None = None
    """Cluster id of `meta.properties`. Another id under `/cluster/id` ends the source."""
    session_timeout: float = 18.0
    """Requested session timeout; also how long the view stays valid without a connection."""
    auth: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Credentials for ZooKeeper's ACLs, such as `("digest", "user:secret")`."""
    sasl: Mapping[str, str] | None = field(default=None, repr=False)
    """kazoo's `sasl_options`: `mechanism`, `username`, …; needs the package pure-sasl."""
    tls: "ZookeeperTls | None" = None


@dataclass(frozen=True, slots=True)
class ZookeeperTls:
    """TLS settings for ZooKeeper; paths of PEM files."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True
    check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class StaticSettings:
    """Static leadership, for backfills and tests."""

    partitions: tuple[TopicPartition, ...] | None = None
    """Led partitions; None for every partition in `log_dirs`."""
    log_dirs: tuple[Path, ...] = ()
    """Log dirs that are searched for partitions if `partitions` is None."""


LeadershipSettings = KraftSettings | ZookeeperSettings | StaticSettings
