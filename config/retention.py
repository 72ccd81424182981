"""Settings of retention: how much of an archived topic stays on the brokers."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from sidetier.config.types import Part, TopicPattern
from sidetier.config.units import Duration, Size

Patterns = Annotated[tuple[TopicPattern, ...], Field(strict=False)]


def _group_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error}") from None
    return value


GroupPatterns = Annotated[
    tuple[Annotated[str, Field(min_length=1), AfterValidator(_group_pattern)], ...],
    Field(strict=False),
]
INTERNAL_PREFIX: Final = "__"
"""Topics whose names begin with it are never trimmed: Kafka's internal ones, and those of tools."""


class LocalRetentionConfig(Part):
    """Shorter retention on the brokers for archived topics: the leader's sidecar deletes records
    (DeleteRecords) once they are archived and verified. Off unless `topics` is set.
    """

    topics: Patterns = Field(
        default=(),
        description="Regular expressions of topics with local retention. They match the whole "
        "name. Only topics with cleanup.policy=delete are trimmed, never internal topics, and "
        "never topics with remote.storage.enable.",
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
    protect_groups: GroupPatterns = Field(
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
        return any(re.fullmatch(pattern, topic) for pattern in self.topics)

    def protects(self, group: str) -> bool:
        """Whether the records that a consumer group has not committed must stay."""
        return any(re.fullmatch(pattern, group) for pattern in self.protect_groups)


class RetentionConfig(Part):
    """Retention of archived topics."""

    local: LocalRetentionConfig = Field(
        default=LocalRetentionConfig(), description="Retention on the brokers."
    )
