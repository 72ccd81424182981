"""Where segments are stored, and how hard the sidecar tries."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from sidetier.config.base import Part
from sidetier.config.clouds import AzureConfig, GcsConfig
from sidetier.config.s3 import S3Config
from sidetier.config.types import SecretRef, TopicPattern
from sidetier.config.units import Duration, Size

SCHEMES: Final = ("s3", "file", "gs", "abfs", "hdfs", "memory")


def _storage_url(value: str) -> str:
    """The url without trailing slashes; raises ValueError with what is wrong."""
    known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
    parts = urlsplit(value)
    if "://" not in value or parts.scheme not in SCHEMES:
        raise ValueError(f"must begin with one of {known}")
    if parts.username or parts.password:
        raise ValueError("must not hold a user or a password")
    if "?" in value or "#" in value:
        raise ValueError("must not hold ? or #")
    if parts.scheme == "file" and (parts.netloc or not parts.path.strip("/")):
        raise ValueError("must name an absolute directory: file:///path/to/archive")
    if parts.scheme in ("s3", "gs", "abfs") and not parts.netloc:
        raise ValueError(f"must name a bucket: {parts.scheme}://bucket/prefix")
    return f"{parts.scheme}://{value.split('://', 1)[1].rstrip('/')}"


StorageUrl = Annotated[str, AfterValidator(_storage_url)]


class RetryConfig(Part):
    """How a request is tried again; above it, an upload is tried for as long as its bytes exist."""

    attempts: int = Field(default=8, ge=1, description="Tries of one request, the first included.")
    first_delay: Duration = Field(
        default=0.2, gt=0, description="Longest wait before the second try; doubles from there."
    )
    max_delay: Duration = Field(default=10.0, gt=0, description="Longest wait between two tries.")
    max_elapsed: Duration = Field(
        default=60.0, gt=0, description="No further try once this much time has passed."
    )


class DeadlineConfig(Part):
    """How long one attempt may take: base + size / min_bytes_per_second."""

    base: Duration = Field(default=30.0, gt=0, description="For a request without a body.")
    min_bytes_per_second: Size = Field(
        default=1024**2, gt=0, description="A slower transfer than this is given up."
    )
    connect: Duration = Field(default=5.0, gt=0, description="To open a connection.")
    silence: Duration = Field(
        default=60.0, gt=0, description="Longest silence while an S3 store's answer is awaited."
    )
    hung_after: Duration = Field(
        default=120.0,
        gt=0,
        description="An attempt that takes longer is reported as hung, and its partition makes no "
        "other request until it ends. size / min_bytes_per_second is added for a body. Requests to "
        "a file:// store on NFS have no other limit: the kernel does not end them.",
    )

    def seconds(self, size: int) -> float:
        """The deadline of one attempt to send or fetch `size` bytes."""
        return self.base + size / self.min_bytes_per_second


class StorageOverride(Part):
    """Another place for some topics."""

    topics: TopicPattern = Field(
        description="Regular expression of the topics; the first that matches wins."
    )
    url: StorageUrl = Field(description="Where those topics are stored.")
    s3: S3Config | None = Field(
        default=None,
        description="Options of this place; what is not given is taken from storage.s3.",
    )


@dataclass(frozen=True, slots=True)
class StorageTarget:
    """The place of one topic: a url, and the options where it is S3."""

    url: str
    s3: S3Config


class StorageConfig(Part):
    """Where segments are stored, and how hard the sidecar tries."""

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
    fsspec: Mapping[str, str | int | float | bool | SecretRef] = Field(
        default_factory=dict,
        description="Options for the fsspec driver of hdfs://, by its own names. "
        "Secrets as {env: NAME} or {file: /path}.",
    )
    retry: RetryConfig = Field(default=RetryConfig(), description="Tries of one request.")
    deadline: DeadlineConfig = Field(
        default=DeadlineConfig(), description="Longest time of one attempt."
    )
    overrides: Annotated[tuple[StorageOverride, ...], Field(strict=False)] = Field(
        default=(), description="Other places for some topics; the first that matches wins."
    )

    def target(self, topic: str) -> StorageTarget:
        """Where the topic is stored; pure, the same for writer and reader."""
        for override in self.overrides:
            if re.fullmatch(override.topics, topic):
                return StorageTarget(override.url, self.merged(override.s3))
        return StorageTarget(self.url, self.s3)

    def targets(self) -> tuple[StorageTarget, ...]:
        """Every place that is configured, without repeats."""
        places = [StorageTarget(self.url, self.s3)]
        places += [StorageTarget(other.url, self.merged(other.s3)) for other in self.overrides]
        return tuple(place for i, place in enumerate(places) if place not in places[:i])

    def fsspec_options(self) -> dict[str, Any]:
        """Options for the fsspec driver, secrets resolved: keep them out of logs.

        Raises:
            ConfigurationError: a secret cannot be read.
        """
        return {
            name: value.resolve() if isinstance(value, SecretRef) else value
            for name, value in self.fsspec.items()
        }

    def merged(self, s3: S3Config | None) -> S3Config:
        """The options of an override laid over those of `storage.s3`."""
        if s3 is None:
            return self.s3
        return self.s3.model_copy(update={name: getattr(s3, name) for name in s3.model_fields_set})
