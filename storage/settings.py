"""Settings of the storage adapters: frozen values, independent of the configuration's source."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from sidetier.storage.port import ChecksumAlgorithm

MIB: Final = 1024**2
GIB: Final = 1024**3
LARGEST_PUT: Final = 5 * GIB
"""Maximum size of a single PUT, of a part and of a copy in S3, in bytes."""
MAX_PARTS: Final = 10_000
"""Maximum number of parts of one S3 upload."""

SMALL_BODY: Final = 64 * 1024
"""Maximum bytes of a body that is sent together with its headers. Waiting for `100 Continue` would
cost more than the bytes that a refused put sends in vain."""

REWRITTEN: Final = ("offset.wm", "_metadata", "leader-epoch-checkpoint")
"""Last components of the keys that are rewritten often."""

ServerSideEncryption = Literal["AES256", "aws:kms", "aws:kms:dsse"]


SEND_PIECE: Final = 512 * 1024
"""Size of the pieces in which a body is sent, in bytes."""


@dataclass(frozen=True, slots=True)
class AttemptDeadline:
    """Time limit of one attempt: a base, and time in proportion to the bytes moved."""

    base: float = 30.0
    """Seconds for a request without a body."""
    min_bytes_per_second: int = MIB
    """Slower transfers are aborted. Time spent in the body itself (a bandwidth limit) is free."""
    connect: float = 5.0
    """Seconds to open a connection; also the maximum time to send one piece of 512 KiB."""

    def seconds(self, size: int) -> float:
        """Return the time limit of an attempt that moves `size` bytes, in seconds."""
        return self.base + size / self.min_bytes_per_second


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits on the retries of one request: number of attempts, and elapsed seconds."""

    attempts: int = 8
    first_delay: float = 0.2
    """Maximum pause before the second attempt, in seconds; doubles with each attempt."""
    max_delay: float = 10.0
    """Maximum pause between two attempts, in seconds."""
    max_elapsed: float = 60.0
    """Seconds since the start of the first attempt after which no further attempt begins."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Explicit credentials, resolved from the reference in the configuration; never shown."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class S3Settings:
    """Options of an S3 store. The AWS chain or the bucket determines options that are None."""

    endpoint_url: str | None = None
    region: str | None = None
    path_style: bool = False
    profile: str | None = None
    credentials: Credentials | None = None
    """Explicit credentials; None for the AWS chain (environment, profile, IRSA, …)."""
    ca_bundle: Path | None = None
    sse: ServerSideEncryption | None = None
    sse_kms_key_id: str | None = None
    storage_class: str | None = None
    default_class_names: tuple[str, ...] = REWRITTEN
    """Last components of keys that are rewritten often and keep the store's default class."""
    tags: tuple[tuple[str, str], ...] = ()
    class_tag: bool = False
    """Also tag each object with its class: see `object_classes`."""
    checksum: ChecksumAlgorithm = ChecksumAlgorithm.CRC64NVME
    checksum_verified: bool = True
    """False for a store that accepts bytes that do not match the checksum sent with them. Its own
    statements about checksums are then not requested."""
    sign_payload: bool = False
    """Also sign a SHA-256 of the body, for five times the CPU time. Without it only the checksum
    covers the body, which detects accidents; use HTTPS against an attacker on the network."""
    multipart_threshold: int = GIB
    """Larger bodies are sent in parts; in bytes."""
    part_size: int = 256 * MIB
    max_connections: int = 16
    read_timeout: float = 60.0
    """Maximum silence while waiting for a response, in seconds."""


@dataclass(frozen=True, slots=True)
class GcsSettings:
    """Options of Google Cloud Storage. Environment or bucket determine options that are None."""

    endpoint_url: str | None = None
    credentials_file: Path | None = None
    """JSON of a service account or external account; None for application default credentials."""
    access_token: str | None = field(default=None, repr=False)
    """Fixed OAuth token, for an emulator."""
    ca_bundle: Path | None = None
    storage_class: str | None = None
    default_class_names: tuple[str, ...] = REWRITTEN
    read_timeout: float = 60.0


@dataclass(frozen=True, slots=True)
class AzureSettings:
    """Options of Azure Blob Storage. Environment or container determine options that are None."""

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
    """Age in seconds at which the start removes a temporary file that no process holds."""


@dataclass(frozen=True, slots=True)
class HdfsSettings:
    """Options of HDFS. Hadoop's defaults apply to everything that is not set."""

    config_dir: Path | None = None
    """Directory with `core-site.xml` and `hdfs-site.xml`; None for that of HADOOP_CONF_DIR."""
    properties: tuple[tuple[str, str], ...] = ()
    """Hadoop properties by name; they override those of the configuration directory."""


@dataclass(frozen=True, slots=True)
class LocalKeySettings:
    """A key of this configuration: 32 bytes."""

    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class KmsKeySettings:
    """A key of AWS KMS."""

    key_id: str
    """ARN of the key, its id, or an alias (`alias/...`)."""
    region: str | None = None
    """Region; None for that of the AWS environment."""
    endpoint_url: str | None = None
    """Endpoint; None for that of AWS."""


@dataclass(frozen=True, slots=True)
class EncryptionSettings:
    """Encryption of `.log` objects before they are sent."""

    keys: tuple[tuple[str, LocalKeySettings | KmsKeySettings], ...]
    """The keys by name. Each decrypts the objects that it has encrypted."""
    key: str | None = None
    """Name of the key that encrypts; None to encrypt nothing."""
    topics: tuple[str, ...] = ()
    """Regular expressions that match the whole names of the topics to encrypt."""
    refuse_plain: tuple[str, ...] = ()
    """Regular expressions that match the whole names of the topics whose `.log` objects are neither
    stored nor read if they are not encrypted.
    """

    def encrypts(self, topic: str) -> bool:
        """Return whether new objects with records of this topic are encrypted."""
        return self.key is not None and any(re.fullmatch(name, topic) for name in self.topics)


@dataclass(frozen=True, slots=True)
class StorageEndpoint:
    """URL of a store and the options for it.

    Schemes are `s3://bucket/prefix`, `file:///directory`, `gs://`, `abfs://`, `hdfs://` and
    `memory://`. Keys are relative to the URL.
    """

    url: str
    s3: S3Settings = field(default_factory=S3Settings)
    local: LocalSettings = field(default_factory=LocalSettings)
    gcs: GcsSettings = field(default_factory=GcsSettings)
    azure: AzureSettings = field(default_factory=AzureSettings)
    hdfs: HdfsSettings = field(default_factory=HdfsSettings)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    deadline: AttemptDeadline = field(default_factory=AttemptDeadline)
    encryption: EncryptionSettings | None = None

    def refuses_plain(self, topic: str) -> bool:
        """Return whether records of this topic are not read from objects that are not encrypted."""
        names = () if self.encryption is None else self.encryption.refuse_plain
        return any(re.fullmatch(name, topic) for name in names)

    def encrypts(self, topic: str) -> bool:
        """Return whether new objects with records of this topic are encrypted."""
        return self.encryption is not None and self.encryption.encrypts(topic)
