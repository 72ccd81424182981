"""What an adapter needs to know: plain frozen values, without a rule about where they come from."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from sidetier.storage.port import ChecksumAlgorithm

MIB: Final = 1024**2
GIB: Final = 1024**3
LARGEST_PUT: Final = 5 * GIB
"""S3 refuses a larger single PUT, a larger part and a larger copy."""
MOST_PARTS: Final = 10_000
"""S3 refuses more parts in one upload."""

SMALL_BODY: Final = 64 * 1024
"""Bytes up to which a body leaves together with its headers: to wait for `100 Continue` would cost
more than what a refused put sends in vain."""

REWRITTEN: Final = ("offset.wm", "_metadata", "leader-epoch-checkpoint")
"""Last components of the keys that are rewritten often."""

ServerSideEncryption = Literal["AES256", "aws:kms", "aws:kms:dsse"]


SEND_PIECE: Final = 512 * 1024
"""A body is sent in pieces of so many bytes."""


@dataclass(frozen=True, slots=True)
class AttemptDeadline:
    """How long one attempt may take: a base, and time that grows with the bytes moved."""

    base: float = 30.0
    """Seconds for a request without a body."""
    min_bytes_per_second: int = MIB
    """A slower transfer is given up. Time that the body itself takes (a bandwidth cap) is free."""
    connect: float = 5.0
    """Seconds to open a connection; also the longest that a piece of 512 KiB may take to leave."""

    def seconds(self, size: int) -> float:
        """Seconds that an attempt to move `size` bytes may take."""
        return self.base + size / self.min_bytes_per_second


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a request is tried: bounded in attempts and in elapsed seconds."""

    attempts: int = 8
    first_delay: float = 0.2
    """Longest pause before the second try, in seconds; doubles from there."""
    max_delay: float = 10.0
    """Longest pause between two tries, in seconds."""
    max_elapsed: float = 60.0
    """No further try begins once so many seconds have passed since the first began."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Explicit keys, resolved from where they were referred to; never shown."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Options of an S3 store; what is None is left to the AWS chain or to the bucket."""

    endpoint_url: str | None = None
    region: str | None = None
    path_style: bool = False
    profile: str | None = None
    credentials: Credentials | None = None
    """Explicit keys; without them the whole AWS chain is asked (environment, profile, IRSA, …)."""
    ca_bundle: Path | None = None
    sse: ServerSideEncryption | None = None
    sse_kms_key_id: str | None = None
    storage_class: str | None = None
    default_class_names: tuple[str, ...] = REWRITTEN
    """Last components of keys that are rewritten often, and keep the store's default class."""
    tags: tuple[tuple[str, str], ...] = ()
    checksum: ChecksumAlgorithm = ChecksumAlgorithm.CRC64NVME
    checksum_verified: bool = True
    """False for a store that accepts bytes that do not match the checksum sent with them; what it
    says of checksums is then not asked for."""
    sign_payload: bool = False
    """Also sign a SHA-256 of the body: five times the CPU. Without it the body is covered by the
    checksum alone, which finds accidents; against an attacker on the wire use HTTPS."""
    multipart_threshold: int = GIB
    """A body larger than this, in bytes, is sent in parts."""
    part_size: int = 256 * MIB
    max_connections: int = 16
    read_timeout: float = 60.0
    """Longest silence, in seconds, while an answer is awaited."""


@dataclass(frozen=True, slots=True)
class GcsSettings:
    """Options of Google Cloud Storage; what is None is left to the environment or the bucket."""

    endpoint_url: str | None = None
    credentials_file: Path | None = None
    """A service account's or an external account's JSON; else the application default ones."""
    access_token: str | None = field(default=None, repr=False)
    """A fixed OAuth token, for an emulator."""
    ca_bundle: Path | None = None
    storage_class: str | None = None
    default_class_names: tuple[str, ...] = REWRITTEN
    read_timeout: float = 60.0


@dataclass(frozen=True, slots=True)
class AzureSettings:
    """Options of Azure Blob Storage; what is None is left to the environment or the container."""

    account_name: str | None = None
    account_key: str | None = field(default=None, repr=False)
    sas_token: str | None = field(default=None, repr=False)
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    tenant_id: str | None = None
    federated_token_file: Path | None = None
    endpoint_url: str | None = None
    ca_bundle: Path | None = None
    access_tier: str | None = None
    default_class_names: tuple[str, ...] = REWRITTEN
    tags: tuple[tuple[str, str], ...] = ()
    read_timeout: float = 60.0


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """Options of the file-system store."""

    stale_after: float = 3600.0
    """Seconds after which a temporary file that no process holds is swept away at start."""


@dataclass(frozen=True, slots=True)
class HdfsSettings:
    """Options of HDFS; what is not given is Hadoop's default."""

    config_dir: Path | None = None
    """With `core-site.xml` and `hdfs-site.xml`; else the environment's HADOOP_CONF_DIR."""
    properties: tuple[tuple[str, str], ...] = ()
    """Hadoop's, by their own names, laid over those of the directory."""


@dataclass(frozen=True, slots=True)
class StorageEndpoint:
    """One place: a url (`s3://bucket/prefix`, `file:///directory`, `gs://`, `abfs://`, `hdfs://`,
    `memory://`) and the options for it. Keys are relative to the url.
    """

    url: str
    s3: S3Settings = field(default_factory=S3Settings)
    local: LocalSettings = field(default_factory=LocalSettings)
    gcs: GcsSettings = field(default_factory=GcsSettings)
    azure: AzureSettings = field(default_factory=AzureSettings)
    hdfs: HdfsSettings = field(default_factory=HdfsSettings)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    deadline: AttemptDeadline = field(default_factory=AttemptDeadline)
