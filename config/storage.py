"""Settings of the store: locations, retries and deadlines."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from sidetier.config.base import Part
from sidetier.config.clouds import AzureConfig, GcsConfig, HdfsConfig
from sidetier.config.s3 import S3Config
from sidetier.config.storage_urls import PlugIn, StorageUrl, load_plug_in
from sidetier.config.types import TopicPattern
from sidetier.config.units import Duration, Size


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
        plug_in = self._plug_in()
        url = None if plug_in is None else plug_in.url(topic)
        return self.at(self.url if url is None else url)

    def targets(self) -> tuple[StorageTarget, ...]:
        """Return every configured location, without duplicates; raises as `target`."""
        places = [self.at(self.url), *map(self.overridden, self.overrides)]
        plug_in = self._plug_in()
        if plug_in is not None:
            places += map(self.at, plug_in.urls())
        return tuple(place for i, place in enumerate(places) if place not in places[:i])

    def _plug_in(self) -> PlugIn | None:
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
