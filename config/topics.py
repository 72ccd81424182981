"""Settings of the topics to archive."""

import re
from typing import Annotated, Final, Literal

from pydantic import Field

from sidetier.config.base import Part
from sidetier.config.types import TopicPattern

INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state"}
)
"""Internal topics of the brokers (`Topic.INTERNAL_TOPICS` in Kafka)."""

METADATA_TOPIC: Final = "__cluster_metadata"
"""KRaft's metadata log: a directory in a log dir, but not a topic."""

Patterns = Annotated[tuple[TopicPattern, ...], Field(strict=False)]


class TopicsConfig(Part):
    """Topics to archive: patterns match the whole name, and exclude overrides include."""

    include: Patterns = Field(
        default=(".*",), min_length=1, description="Regular expressions of topics to archive."
    )
    exclude: Patterns = Field(
        default=(), description="Regular expressions of topics to exclude; overrides include."
    )
    internal: bool = Field(
        default=False,
        description="Archive the broker's internal topics too (__consumer_offsets and the like).",
    )
    compacted: Literal["refuse", "as_closed"] = Field(
        default="refuse",
        description="What to do with a compacted topic: refuse it with a clear error, or archive "
        "each segment as it closes, before compaction.",
    )

    def selects(self, topic: str) -> bool:
        """Whether the topic is archived, by its name alone."""
        if topic == METADATA_TOPIC or (topic in INTERNAL_TOPICS and not self.internal):
            return False
        if any(re.fullmatch(pattern, topic) for pattern in self.exclude):
            return False
        return any(re.fullmatch(pattern, topic) for pattern in self.include)
