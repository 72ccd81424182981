"""Selection of partitions: by topic, by a pattern of topic names, or one by one."""

import re
from dataclasses import dataclass

from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class Topics:
    """Every stored partition of these topics: `subscribe`."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """Every stored partition of each topic whose whole name matches: `subscribePattern`.

    Raises:
        ConfigurationError: the pattern is not a regular expression.
    """

    pattern: str

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ConfigurationError(
                f"subscribePattern {self.pattern!r}: must be a regular expression: {error}"
            ) from None

    def matches(self, topic: str) -> bool:
        """Whether the topic's whole name matches."""
        return re.fullmatch(self.pattern, topic) is not None


@dataclass(frozen=True, slots=True)
class Assigned:
    """These partitions: `assign`."""

    partitions: tuple[TopicPartition, ...]


Selection = Topics | TopicPattern | Assigned


def is_selected(selection: Selection, tp: TopicPartition) -> bool:
    """Whether the selection includes a partition, stored or not."""
    if isinstance(selection, Topics):
        return tp.topic in selection.names
    if isinstance(selection, TopicPattern):
        return selection.matches(tp.topic)
    return tp in selection.partitions
