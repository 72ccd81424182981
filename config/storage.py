"""Settings of the store: one model per driver, locations, retries and deadlines."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator, Field

from sidetier.config.storage_urls import PlugIn, StorageUrl, load_plug_in
from sidetier.config.types import AbsolutePath, Part, SecretRef, TopicPattern
from sidetier.config.units import Duration, Size

MIB: Final = 1024**2
SMALLEST_PART: Final = 5 * MIB
"""S3 refuses smaller parts, except the last one."""
LARGEST_PUT: Final = 5 * 1024 * MIB
"""S3 refuses a larger single PUT or part."""


def _without_credentials(url: str) -> str:
    """Raise ValueError for credentials in the URL, which errors and log events show."""
    if "@" in url or "?" in url or "#" in url:
        raise ValueError(
            "must not hold a user, a password, ? or #; credentials are given by access_key_id and "
            "secret_access_key"
        )
    return url


EndpointUrl = Annotated[
    str, Field(pattern=r"^https?://[^/]+/?$"), AfterValidator(_without_credentials)
]


class S3Config(Part):
    """Options of an S3 store. Unless given here, credentials come from AWS's credential chain."""

    endpoint_url: EndpointUrl | None = Field(
        default=None, description="Endpoint of a store other than AWS."
    )
    region: str | None = Field(
        default=None, min_length=1, description="Region; from the AWS environment unless given."
    )
    path_style: bool = Field(
        default=False, description="Bucket in the path, not in the host name (most other stores)."
    )
    profile: str | None = Field(
        default=None, min_length=1, description="Profile of the AWS configuration files."
    )
    access_key_id: SecretRef | None = Field(
        default=None, description="{env: NAME} or {file: /path}; with secret_access_key."
    )
    secret_access_key: SecretRef | None = Field(
        default=None, description="{env: NAME} or {file: /path}; with access_key_id."
    )
    session_token: SecretRef | None = Field(
        default=None, description="{env: NAME} or {file: /path}; with temporary keys."
    )
    sse: Literal["AES256", "aws:kms", "aws:kms:dsse"] | None = Field(
        default=None, description="Server-side encryption; the bucket's own default unless given."
    )
    sse_kms_key_id: str | None = Field(
        default=None,
        min_length=1,
        description="Key of aws:kms; the account's default unless given.",
    )
    storage_class: str | None = Field(
        default=None,
        pattern=r"^[A-Z0-9_]+$",
        description="Such as STANDARD_IA; the store's default unless given. The watermark and "
        "_metadata keep the store's default.",
    )
    tags: Mapping[str, str] = Field(
        default_factory=dict, max_length=10, description="Object tags, at most ten."
    )
    ca_bundle: AbsolutePath | None = Field(
        default=None,
        description="PEM file of the CAs that the endpoint's certificate is checked with.",
    )
    checksum: Literal["CRC64NVME", "CRC32C"] = Field(
        default="CRC64NVME", description="Checksum of the whole object that the store verifies."
    )
    multipart_threshold: Size = Field(
        default=1024 * MIB,
        ge=SMALLEST_PART,
        le=LARGEST_PUT,
        description="Larger objects are sent in parts; at most 5GiB.",
    )
    part_size: Size = Field(
        default=256 * MIB,
        ge=SMALLEST_PART,
        le=LARGEST_PUT,
        description="Size of a part, 5MiB to 5GiB; grows by itself where 10,000 would not do.",
    )


class GcsConfig(Part):
    """Options of Google Cloud Storage. Unless given here, credentials are Google's application
    default credentials.
    """

    credentials_file: AbsolutePath | None = Field(
        default=None,
        description="JSON of a service account or of workload identity federation; as "
        "GOOGLE_APPLICATION_CREDENTIALS.",
    )
    endpoint_url: EndpointUrl | None = Field(
        default=None, description="For Private Service Connect, or an emulator."
    )
    access_token: SecretRef | None = Field(
        default=None,
        description="{env: NAME} or {file: /path}: a fixed OAuth token. It is not renewed.",
    )
    storage_class: str | None = Field(
        default=None,
        pattern=r"^[A-Z0-9_]+$",
        description="Such as NEARLINE; the bucket's default unless given. The watermark and "
        "_metadata keep the bucket's default.",
    )
    ca_bundle: AbsolutePath | None = Field(
        default=None,
        description="PEM file of the CAs that the endpoint's certificate is checked with.",
    )


class AzureConfig(Part):
    """Options of Azure Blob Storage. Unless given here, credentials come from the environment
    (workload identity, managed identity, AZURE_ variables).
    """

    account_name: str | None = Field(
        default=None,
        min_length=1,
        description="Storage account; as AZURE_STORAGE_ACCOUNT_NAME.",
    )
    account_key: SecretRef | None = Field(
        default=None, description="{env: NAME} or {file: /path}: a key of the account."
    )
    sas_token: SecretRef | None = Field(
        default=None, description="{env: NAME} or {file: /path}: a shared access signature."
    )
    client_id: str | None = Field(
        default=None, min_length=1, description="Of a service principal or a managed identity."
    )
    client_secret: SecretRef | None = Field(
        default=None, description="{env: NAME} or {file: /path}; with client_id and tenant_id."
    )
    tenant_id: str | None = Field(default=None, min_length=1, description="Of the principal.")
    federated_token_file: AbsolutePath | None = Field(
        default=None, description="Token of workload identity; as AZURE_FEDERATED_TOKEN_FILE."
    )
    endpoint_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^@?#]+$",
        description="For other clouds than the public one, or an emulator: "
        "https://ACCOUNT.blob.core.windows.net.",
    )
    access_tier: Literal["Hot", "Cool", "Cold"] | None = Field(
        default=None,
        description="The account's default unless given. The watermark and _metadata keep the "
        "default.",
    )
    tags: Mapping[str, str] = Field(
        default_factory=dict, max_length=10, description="Blob index tags, at most ten."
    )
    ca_bundle: AbsolutePath | None = Field(
        default=None,
        description="PEM file of the CAs that the endpoint's certificate is checked with.",
    )


class HdfsConfig(Part):
    """Options of HDFS. The user is HADOOP_USER_NAME or the user of the process; with Kerberos, the
    user of the ticket cache.
    """

    config_dir: AbsolutePath | None = Field(
        default=None,
        description="Directory with core-site.xml and hdfs-site.xml; as HADOOP_CONF_DIR.",
    )
    properties: Mapping[str, str] = Field(
        default_factory=dict,
        description="Hadoop properties by their own names, laid over those of the directory; no "
        "secrets. Values are text.",
    )


class RetryConfig(Part):
    """Retries of one request. A failed upload is repeated as long as the segment's bytes exist."""

    attempts: int = Field(default=8, ge=1, description="Tries of one request, the first included.")
    first_delay: Duration = Field(
        default=0.2, gt=0, description="Longest wait before the second try; doubles from there."
    )
    max_delay: Duration = Field(default=10.0, gt=0, description="Longest wait between two tries.")
    max_elapsed: Duration = Field(
        default=60.0, gt=0, description="Time after the first try at which retries end."
    )


class DeadlineConfig(Part):
    """Deadline of one attempt: base + size / min_bytes_per_second."""

    base: Duration = Field(default=30.0, gt=0, description="Deadline of a request without a body.")
    min_bytes_per_second: Size = Field(
        default=1024**2, gt=0, description="Minimum transfer rate; a slower request is cancelled."
    )
    connect: Duration = Field(default=5.0, gt=0, description="Timeout for opening a connection.")
    silence: Duration = Field(
        default=60.0,
        gt=0,
        description="Maximum time without a byte while waiting for an S3 response.",
    )
    hung_after: Duration = Field(
        default=120.0,
        gt=0,
        description="An attempt that takes longer is reported as hung, and its partition makes no "
        "other request until it ends. size / min_bytes_per_second is added for a body. Requests to "
        "a file:// store on NFS have no other limit: the kernel does not end them.",
    )

    def seconds(self, size: int) -> float:
        """Return the deadline, in seconds, of one attempt to send or fetch `size` bytes."""
        return self.base + size / self.min_bytes_per_second


class StorageOverride(Part):
    """Another location for some topics."""

    topics: TopicPattern = Field(
        description="Regular expression of the topics; the first that matches wins."
    )
    url: StorageUrl = Field(description="URL under which those topics are stored.")
    s3: S3Config | None = Field(
        default=None,
        description="Options of this place; what is not given is taken from storage.s3.",
    )
    gcs: GcsConfig | None = Field(default=None, description="The same for gs://.")
    azure: AzureConfig | None = Field(default=None, description="The same for abfs://.")
    hdfs: HdfsConfig | None = Field(default=None, description="The same for hdfs://.")


class StorageProviderConfig(Part):
    """A plug-in that returns the location of topics."""

    name: str = Field(
        description="Its entry point in the group sidetier.storage_endpoints (docs/storage.md)."
    )
    options: Mapping[str, str] = Field(
        default_factory=dict, description="What the plug-in is given; no secrets."
    )


@dataclass(frozen=True, slots=True)
class StorageTarget:
    """Location of one topic: a URL, and the options of its store."""

    url: str
    s3: S3Config
    gcs: GcsConfig
    azure: AzureConfig
    hdfs: HdfsConfig


_Options = TypeVar("_Options", S3Config, GcsConfig, AzureConfig, HdfsConfig)


def _laid_over(options: _Options, other: _Options | None) -> _Options:
    if other is None:
        return options
    return options.model_copy(
        update={name: getattr(other, name) for name in other.model_fields_set}
    )


class StorageConfig(Part):
    """Location of the archive, retries and deadlines."""

    url: StorageUrl = Field(
        description="Root of the archive: s3://bucket/prefix, file:///directory, gs://, abfs://, "
        "hdfs:// or memory://."
    )
    prefix_entropy_bits: int = Field(
        default=5,
        ge=-1,
        le=128,
        description="Bits of the MD5 that spread partitions over prefixes; 0 or -1: none. "
        "Never change it once something is stored; readers must use the same.",
    )
    fencing: Literal["required", "unfenced_acknowledged"] = Field(
        default="required",
        description="Whether a store without conditional writes is refused. Acknowledged: two "
        "sidecars that both believe they lead can then overwrite each other.",
    )
    s3: S3Config = Field(default=S3Config(), description="Options for s3://.")
    gcs: GcsConfig = Field(default=GcsConfig(), description="Options for gs://.")
    azure: AzureConfig = Field(default=AzureConfig(), description="Options for abfs://.")
    hdfs: HdfsConfig = Field(default=HdfsConfig(), description="Options for hdfs://.")
    retry: RetryConfig = Field(default=RetryConfig(), description="Tries of one request.")
    deadline: DeadlineConfig = Field(
        default=DeadlineConfig(), description="Longest time of one attempt."
    )
    overrides: Annotated[tuple[StorageOverride, ...], Field(strict=False)] = Field(
        default=(), description="Other URLs for some topics; the first match applies."
    )
    provider: StorageProviderConfig | None = Field(
        default=None,
        description="A plug-in that says where the topics are stored that no override matches.",
    )

    def target(self, topic: str) -> StorageTarget:
        """Return the location of a topic; writers and readers get the same one.

        The first override that matches applies, then the plug-in, then `url`.

        Raises:
            ConfigurationError: the plug-in is not installed, or fails.
        """
        for override in self.overrides:
            if re.fullmatch(override.topics, topic):
                return self.overridden(override)
        plug_in = self.plug_in()
        url = None if plug_in is None else plug_in.url(topic)
        return self.at(self.url if url is None else url)

    def plug_in(self) -> PlugIn | None:
        """Return the configured plug-in; None without one.

        Raises:
            ConfigurationError: the plug-in is not installed, or fails.
        """
        if self.provider is None:
            return None
        return load_plug_in(self.provider.name, self.provider.options)

    def at(self, url: str) -> StorageTarget:
        """Return the location at a URL, with the options of these settings."""
        return StorageTarget(url, self.s3, self.gcs, self.azure, self.hdfs)

    def overridden(self, override: StorageOverride) -> StorageTarget:
        """Return the location of an override. Its options override those of these settings."""
        return StorageTarget(
            override.url,
            _laid_over(self.s3, override.s3),
            _laid_over(self.gcs, override.gcs),
            _laid_over(self.azure, override.azure),
            _laid_over(self.hdfs, override.hdfs),
        )
