"""Settings of the retention on the store, which `sidetier gc` enforces."""

import re
from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from sidetier.config.storage_urls import StorageUrl
from sidetier.config.types import AbsolutePath, Part, TopicPattern
from sidetier.config.units import Duration, Size

_Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)]


class RetainedExport(Part):
    """An output of `sidetier export files`."""

    into: StorageUrl = Field(
        description="Its --into. Credentials and options are those of the archive's store."
    )
    topics_dir: str = Field(default="topics", description="Its --topics-dir.")


class RetainedMirror(Part):
    """A mirror of `sidetier mirror`."""

    name: str = Field(min_length=1, description="Its --name.")
    target_config: AbsolutePath = Field(
        description="Properties file of the target cluster's client, as --target-config."
    )
    topics: Mapping[str, str] = Field(
        default_factory=dict,
        description="Names of the copies on the target, by source topic; default for each topic: "
        "the same name.",
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
    mirrors: Annotated[tuple[RetainedMirror, ...], Field(strict=False)] = Field(
        default=(), description="Mirrors, by the progress that their target clusters store."
    )


class StoreRetention(Part):
    """Retention of the archives of some topics."""

    topics: Annotated[tuple[TopicPattern, ...], Field(strict=False)] = Field(
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
        return any(re.fullmatch(pattern, topic) for pattern in self.topics)


class RetentionConfig(Part):
    """Deletion of archived records. Off by default."""

    store: Annotated[tuple[StoreRetention, ...], Field(strict=False)] = Field(
        default=(),
        description="Retention on the store, by topic; `sidetier gc` deletes what is past it. "
        "Without a rule, the archive of a topic is kept for good.",
    )

    def of_topic(self, topic: str) -> StoreRetention | None:
        """Return the rule of a topic; None if its archive is kept for good."""
        return next((rule for rule in self.store if rule.selects(topic)), None)
