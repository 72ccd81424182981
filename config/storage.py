"""Settings of the store: one model per driver, locations, retries and deadlines."""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from sidetier.config.storage_urls import PlugIn, StorageUrl, load_plug_in
from sidetier.config.types import AbsolutePath, NamePattern, NamePatterns, Part, SecretRef
from sidetier.config.units import Duration, Size
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.notes import CLASS_TAG

MIB: Final = 1024**2
SMALLEST_PART: Final = 5 * MIB
"""S3 refuses smaller parts, except the last one."""
LARGEST_PUT: Final = 5 * 1024 * MIB
"""S3 refuses a larger single PUT or part."""
MAX_TAGS: Final = 10


def _without_credentials(url: str) -> str:
    """Raise ValueError for credentials in the URL, which errors and log events show."""
    if "@" in url or "?" in url or "#" in url:
        raise ValueError(
            "must not contain a user, a password, ? or #; give credentials as access_key_id and "
            "secret_access_key"
        )
    return url


EndpointUrl = Annotated[
    str, Field(pattern=r"^https?://[^/]+/?$"), AfterValidator(_without_credentials)
]


class S3Config(Part):
    """Options of an S3 store. Unless given here, credentials come from AWS's credential chain."""

    endpoint_url: EndpointUrl | None = Field(
        default=None, description="Endpoint of an S3-compatible store; default: AWS."
    )
    region: str | None = Field(
        default=None, min_length=1, description="Region; default: that of the AWS environment."
    )
    path_style: bool = Field(
        default=False,
        description="Put the bucket into the path instead of the host name, as "
        "most S3-compatible stores need.",
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
        default=None, description="Server-side encryption; default: that of the bucket."
    )
    sse_kms_key_id: str | None = Field(
        default=None,
        min_length=1,
        description="Key for aws:kms; default: that of the account.",
    )
    storage_class: str | None = Field(
        default=None,
        pattern=r"^[A-Z0-9_]+$",
        description="Storage class of segments, such as STANDARD_IA; default: that of the store. "
        "offset.wm and _metadata always have the default.",
    )
    tags: Mapping[str, str] = Field(
        default_factory=dict, max_length=10, description="Object tags, at most ten."
    )
    class_tag: bool = Field(
        default=False,
        description="Also tag each object with sidetier-class=segment, quarantine or metadata, so "
        "that one lifecycle rule of the bucket covers a class (docs/storage.md). tags then has at "
        "most nine. Needs the permission s3:PutObjectTagging; some S3-compatible stores refuse "
        "tags.",
    )
    ca_bundle: AbsolutePath | None = Field(
        default=None,
        description="PEM file of the CAs that verify the endpoint's certificate.",
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
        description="Size of a part, 5MiB to 5GiB; larger for objects that would need more than "
        "10,000 parts.",
    )

    @model_validator(mode="after")
    def _ten_tags(self) -> Self:
        if self.class_tag and (len(self.tags) > MAX_TAGS - 1 or CLASS_TAG in self.tags):
            raise ValueError(
                f"class_tag adds the tag {CLASS_TAG}, and an object has at most {MAX_TAGS} tags"
            )
        return self


class GcsConfig(Part):
    """Options of Google Cloud Storage. Unless given here, credentials are Google's application
    default credentials.
    """

    credentials_file: AbsolutePath | None = Field(
        default=None,
        description="JSON file of a service account or of workload identity federation, as in "
        "GOOGLE_APPLICATION_CREDENTIALS.",
    )
    endpoint_url: EndpointUrl | None = Field(
        default=None, description="Endpoint of Private Service Connect or of an emulator."
    )
    access_token: SecretRef | None = Field(
        default=None,
        description="Fixed OAuth token, as {env: NAME} or {file: /path}. It is not renewed.",
    )
    storage_class: str | None = Field(
        default=None,
        pattern=r"^[A-Z0-9_]+$",
        description="Storage class, such as NEARLINE; default: that of the bucket, which "
        "offset.wm and _metadata always have.",
    )
    ca_bundle: AbsolutePath | None = Field(
        default=None,
        description="PEM file of the CAs that verify the endpoint's certificate.",
    )


class AzureConfig(Part):
    """Options of Azure Blob Storage. Unless given here, credentials come from the environment
    (workload identity, managed identity, AZURE_ variables).
    """

    account_name: str | None = Field(
        default=None,
        min_length=1,
        description="Storage account, as in AZURE_STORAGE_ACCOUNT_NAME.",
    )
    account_key: SecretRef | None = Field(
        default=None, description="Key of the account, as {env: NAME} or {file: /path}."
    )
    sas_token: SecretRef | None = Field(
        default=None, description="Shared access signature, as {env: NAME} or {file: /path}."
    )
    client_id: str | None = Field(
        default=None,
        min_length=1,
        description="Client id of a service principal or of a managed identity.",
    )
    client_secret: SecretRef | None = Field(
        default=None,
        description="Client secret, as {env: NAME} or {file: /path}; needs "
        "client_id and tenant_id.",
    )
    tenant_id: str | None = Field(
        default=None, min_length=1, description="Tenant id of the service principal."
    )
    federated_token_file: AbsolutePath | None = Field(
        default=None,
        description="Token file of workload identity, as in AZURE_FEDERATED_TOKEN_FILE.",
    )
    endpoint_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^@?#]+$",
        description="Endpoint of another cloud than the public one, or of an emulator, in the "
        "form https://ACCOUNT.blob.core.windows.net.",
    )
    access_tier: Literal["Hot", "Cool", "Cold"] | None = Field(
        default=None,
        description="Access tier; default: that of the account, which offset.wm and _metadata "
        "always have.",
    )
    tags: Mapping[str, str] = Field(
        default_factory=dict,
        max_length=10,
        description="Blob index tags of each object, at most 10.",
    )
    ca_bundle: AbsolutePath | None = Field(
        default=None,
        description="PEM file of the CAs that verify the endpoint's certificate.",
    )


class HdfsConfig(Part):
    """Options of HDFS. The user is HADOOP_USER_NAME or the user of the process; with Kerberos, the
    user of the ticket cache.
    """

    config_dir: AbsolutePath | None = Field(
        default=None,
        description="Directory with core-site.xml and hdfs-site.xml, as in HADOOP_CONF_DIR.",
    )
    properties: Mapping[str, str] = Field(
        default_factory=dict,
        description="Hadoop properties, which override those of config_dir; no secrets. Values "
        "are text.",
    )


class RetryConfig(Part):
    """Retries of one request. A failed upload is repeated as long as the segment's bytes exist."""

    attempts: int = Field(
        default=8,
        ge=1,
        description="Maximum number of attempts of one request, including the first.",
    )
    first_delay: Duration = Field(
        default=0.2,
        gt=0,
        description="Maximum pause before the second attempt; doubles with each further attempt.",
    )
    max_delay: Duration = Field(
        default=10.0, gt=0, description="Maximum pause between two attempts."
    )
    max_elapsed: Duration = Field(
        default=60.0,
        gt=0,
        description="Time since the start of the first attempt after which no "
        "further attempt begins.",
    )


class DeadlineConfig(Part):
    """Deadline of one attempt: base + size / min_bytes_per_second.

    Responses of a read that break off are resumed for twice that time, from the first response on.
    """

    base: Duration = Field(
        default=30.0,
        gt=0,
        description="Deadline of a request without a body. size / min_bytes_per_second is added "
        "for a body. Responses of a read that break off are resumed for twice that time, from the "
        "first response on.",
    )
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


KEY_BYTES: Final = 32
KEY_NAME: Final = r"^[A-Za-z0-9._-]{1,64}$"
"""Names of encryption keys: each encrypted object has the name in its header."""


class EncryptionKeyConfig(Part):
    """A key that encrypts the data keys of segments: 32 bytes in base64, by reference, or a key of
    AWS KMS.
    """

    # The pattern refuses a key that is given in place of a name: its base64 ends with "=".
    env: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Name of an environment variable with 32 bytes in base64.",
    )
    file: AbsolutePath | None = Field(
        default=None, description="Path of a file with 32 bytes in base64."
    )
    aws_kms: str | None = Field(
        default=None,
        min_length=1,
        description="ARN or id of a symmetric key of AWS KMS, or an alias, alias/NAME. Credentials "
        "come from AWS's credential chain.",
    )
    region: str | None = Field(
        default=None, min_length=1, description="Region of aws_kms; default: that of AWS_REGION."
    )
    endpoint_url: EndpointUrl | None = Field(
        default=None, description="Endpoint of aws_kms; default: that of AWS."
    )

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if sum(place is not None for place in (self.env, self.file, self.aws_kms)) != 1:
            raise ValueError("must have one of env, file and aws_kms")
        if self.aws_kms is None and (self.region or self.endpoint_url):
            raise ValueError("region and endpoint_url belong to aws_kms")
        return self

    def resolve(self) -> bytes:
        """Read the key of `env` or `file`.

        Raises:
            ConfigurationError: It cannot be read, or is not 32 bytes in base64. The text does not
                show it.
        """
        reference = SecretRef(env=self.env, file=self.file)
        try:
            key = base64.b64decode(reference.resolve().strip(), validate=True)
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise ConfigurationError(
                f"the encryption key in {reference} must be {KEY_BYTES} bytes in base64, as "
                "`openssl rand -base64 32` writes them"
            )
        return key


class EncryptionConfig(Part):
    """Encryption of segments (`.log`) before they are sent to the store."""

    topics: NamePatterns = Field(
        default=(),
        description="Regular expressions that match whole topic names. New segments of these "
        "topics are encrypted; needs key.",
    )
    key: str | None = Field(
        default=None, description="Name of the key, among keys, that encrypts new segments."
    )
    keys: Mapping[Annotated[str, Field(pattern=KEY_NAME)], EncryptionKeyConfig] = Field(
        description="Keys by name. Each decrypts the segments that it has encrypted; keep a key "
        "as long as such a segment is stored.",
        min_length=1,
    )
    refuse_plain: NamePatterns = Field(
        default=(),
        description="Regular expressions that match whole topic names. Segments of these topics "
        "are neither stored nor read if they are not encrypted.",
    )

    @model_validator(mode="after")
    def _known_key(self) -> Self:
        if self.key is not None and self.key not in self.keys:
            raise ValueError(f"key {self.key!r} is not among keys: {', '.join(sorted(self.keys))}")
        if self.topics and self.key is None:
            raise ValueError("topics needs key, the name of the key that encrypts their segments")
        return self


class StorageOverride(Part):
    """Another location for some topics."""

    topics: NamePattern = Field(
        description="Regular expression that matches whole topic names; the first override that "
        "matches applies."
    )
    url: StorageUrl = Field(description="Root of these topics' archives.")
    s3: S3Config | None = Field(
        default=None,
        description="Options for s3://; default for each option: that of storage.s3.",
    )
    gcs: GcsConfig | None = Field(
        default=None, description="Options for gs://; default for each option: that of storage.gcs."
    )
    azure: AzureConfig | None = Field(
        default=None,
        description="Options for abfs://; default for each option: that of storage.azure.",
    )
    hdfs: HdfsConfig | None = Field(
        default=None,
        description="Options for hdfs://; default for each option: that of storage.hdfs.",
    )


class StorageProviderConfig(Part):
    """A plug-in that returns the location of topics."""

    name: str = Field(
        description="Name of the plug-in's entry point in the group sidetier.storage_endpoints "
        "(docs/storage.md)."
    )
    options: Mapping[str, str] = Field(
        default_factory=dict, description="Options that the plug-in receives; no secrets."
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
        description="Number of bits of the MD5 at the beginning of a key, which distribute "
        "partitions over prefixes; 0 or -1: none. Never change it after the first upload; readers "
        "must use the same number.",
    )
    fencing: Literal["required", "unfenced_acknowledged"] = Field(
        default="required",
        description="required refuses a store without conditional writes. With "
        "unfenced_acknowledged, two sidecars that both believe that they lead can overwrite each "
        "other's objects.",
    )
    s3: S3Config = Field(default=S3Config(), description="Options for s3://.")
    gcs: GcsConfig = Field(default=GcsConfig(), description="Options for gs://.")
    azure: AzureConfig = Field(default=AzureConfig(), description="Options for abfs://.")
    hdfs: HdfsConfig = Field(default=HdfsConfig(), description="Options for hdfs://.")
    encryption: EncryptionConfig | None = Field(
        default=None,
        description="Encryption of segments before they are sent (docs/encryption.md); readers "
        "need keys only.",
    )
    retry: RetryConfig = Field(default=RetryConfig(), description="Attempts of one request.")
    deadline: DeadlineConfig = Field(
        default=DeadlineConfig(), description="Time limits of one attempt."
    )
    overrides: Annotated[tuple[StorageOverride, ...], Field(strict=False)] = Field(
        default=(), description="Other URLs for some topics; the first match applies."
    )
    provider: StorageProviderConfig | None = Field(
        default=None,
        description="Plug-in that returns the location of topics that no override matches.",
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
