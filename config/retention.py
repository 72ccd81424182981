"""Settings of retention: what stays of an archived topic on the brokers and on the store."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from sidetier.config.storage_urls import StorageUrl
from sidetier.config.types import AbsolutePath, NamePatterns, Part, matches_any
from sidetier.config.units import Duration, Size

_Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)]


INTERNAL_PREFIX: Final = "__"
"""Topics whose names begin with it are never trimmed: Kafka's internal ones, and those of tools."""


class LocalRetentionConfig(Part):
    """Shorter retention on the brokers for archived topics: the leader's sidecar deletes records
    (DeleteRecords) once they are archived and verified. Off unless `topics` is set.
    """

    topics: NamePatterns = Field(
        default=(),
        description="Regular expressions of topics with local retention. They match the whole "
        "name. Records are deleted only of topics with cleanup.policy=delete, without "
        "remote.storage.enable, and never of internal topics.",
    )
    age: Duration | None = Field(
        default=None,
        gt=0,
        description="Time that records stay on the brokers, as local.retention.ms of Kafka's own "
        "tiered storage.",
    )
    bytes: Size | None = Field(
        default=None,
        ge=0,
        description="Size of each partition on the brokers, as local.retention.bytes. With age "
        "and bytes, a segment is deleted as soon as one of them allows it.",
    )
    interval: Duration = Field(
        default=300.0, ge=1.0, description="Interval of the passes over all partitions."
    )
    max_bytes_per_second: Size | None = Field(
        default=None,
        gt=0,
        description="Limit on the bytes that are deleted per second, on average over one "
        "interval; default: no limit. A pass deletes at least one segment.",
    )
    protect_groups: NamePatterns = Field(
        default=(),
        description="Regular expressions of consumer groups. Records that such a group has not "
        "committed stay on the brokers. If the committed offsets cannot be read, nothing is "
        "deleted.",
    )

    @property
    def enabled(self) -> bool:
        """Whether any topic has local retention."""
        return bool(self.topics)

    def selects(self, topic: str) -> bool:
        """Whether a topic has local retention, by its name alone."""
        return matches_any(self.topics, topic)

    def protects(self, group: str) -> bool:
        """Whether the records that a consumer group has not committed must stay."""
        return matches_any(self.protect_groups, group)


class RetainedExport(Part):
    """An output of `sidetier export files`."""

    into: StorageUrl = Field(
        description="--into of the export. Credentials and options are those of the archive's "
        "store."
    )
    topics_dir: str = Field(default="topics", description="--topics-dir of the export.")


class RetainedMirror(Part):
    """A mirror of `sidetier mirror`."""

    name: str = Field(min_length=1, description="--name of the mirror.")
    target_config: AbsolutePath = Field(
        description="Properties file of the target cluster's client, as --target-config."
    )
    topics: Mapping[str, str] = Field(
        default_factory=dict,
        description="Names of the copies on the target, by source topic; default for each topic: "
        "the same name.",
    )


class RetainedTable(Part):
    """A table of `sidetier export hudi` or `sidetier export iceberg`."""

    format: Literal["hudi", "iceberg"] = Field(description="Format of the table.")
    location: StorageUrl = Field(
        description="Directory of the table: target.base.path of a Hudi table, with the schemes of "
        "storage.url; of an Iceberg table, the directory that has metadata/. Credentials and "
        "options are those of the archive's store."
    )


class KeepForConfig(Part):
    """Consumers that must not lose records. gc deletes nothing of a topic while the progress of one
    of them is unknown.
    """

    groups: _Names = Field(
        default=(),
        description="Consumer groups on broker.bootstrap_servers: nothing at or above their "
        "committed offsets is deleted.",
    )
    exports: Annotated[tuple[RetainedExport, ...], Field(strict=False)] = Field(
        default=(), description="Exports to files, by the next offsets in their manifests."
    )
    tables: Annotated[tuple[RetainedTable, ...], Field(strict=False)] = Field(
        default=(), description="Exports to tables, by the next offsets in their commits."
    )
    local_groups: _Names = Field(
        default=(),
        description="Consumer groups of `sidetier serve --groups local`, by the committed offsets "
        "that it keeps on the store.",
    )
    mirrors: Annotated[tuple[RetainedMirror, ...], Field(strict=False)] = Field(
        default=(), description="Mirrors, by the progress that their target clusters store."
    )


class StoreRetention(Part):
    """Retention of the archives of some topics."""

    topics: NamePatterns = Field(
        min_length=1,
        description="Regular expressions that match whole topic names. The first rule that matches "
        "a topic applies.",
    )
    age: Duration | None = Field(
        default=None,
        gt=0,
        description="Maximum age of a segment's newest record; default: no limit.",
    )
    bytes: Size | None = Field(
        default=None,
        gt=0,
        description="Size that is kept of each partition, as Kafka's retention.bytes; default: no "
        "limit.",
    )
    keep_for: KeepForConfig = Field(
        default=KeepForConfig(), description="Consumers that must not lose records."
    )

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.age is None and self.bytes is None:
            raise ValueError("must have age, bytes or both")
        return self

    def selects(self, topic: str) -> bool:
        """Whether a pattern matches the topic."""
        return matches_any(self.topics, topic)


class RetentionConfig(Part):
    """Retention of archived topics, on the brokers and on the store. Both are off by default."""

    local: LocalRetentionConfig = Field(
        default=LocalRetentionConfig(), description="Retention on the brokers."
    )
    store: Annotated[tuple[StoreRetention, ...], Field(strict=False)] = Field(
        default=(),
        description="Retention on the store, by topic; `sidetier gc` deletes what is past it. "
        "Without a rule, the archive of a topic is kept for good.",
    )

    def of_topic(self, topic: str) -> StoreRetention | None:
        """Return the rule of a topic; None if its archive is kept for good."""
        return next((rule for rule in self.store if rule.selects(topic)), None)
