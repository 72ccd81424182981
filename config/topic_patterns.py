"""The settings that select topics by pattern, and the topics that each pattern selects."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sidetier.config.model import Config
from sidetier.config.problems import SettingPath, suggestion
from sidetier.config.types import matches_any


@dataclass(frozen=True, slots=True)
class PatternSelection:
    """The topics that one pattern selects.

    Attributes:
        setting: The setting that contains the pattern.
        pattern: A regular expression that matches whole topic names.
        topics: The selected names, sorted.
    """

    setting: SettingPath
    pattern: str
    topics: tuple[str, ...]

    def unmatched(self, known: Collection[str]) -> str:
        """Return the text for a pattern that selects none of the cluster's topics, with the
        nearest name.
        """
        return f"{self.pattern!r} matches no topic of the cluster{suggestion(self.pattern, known)}"


def selections(config: Config, topics: Collection[str]) -> Iterator[PatternSelection]:
    """Yield each pattern of the configuration, with the topics among these that it selects."""
    for setting, patterns in _settings(config):
        for pattern in patterns:
            selected = sorted(topic for topic in topics if matches_any([pattern], topic))
            yield PatternSelection(setting, pattern, tuple(selected))


def _settings(config: Config) -> Iterator[tuple[SettingPath, tuple[str, ...]]]:
    yield ("topics", "include"), config.topics.include
    yield ("topics", "exclude"), config.topics.exclude
    for i, override in enumerate(config.storage.overrides):
        yield ("storage", "overrides", i, "topics"), (override.topics,)
    encryption = config.storage.encryption
    if encryption is not None:
        yield ("storage", "encryption", "topics"), encryption.topics
        yield ("storage", "encryption", "refuse_plain"), encryption.refuse_plain
    yield ("uploader", "early", "topics"), config.uploader.early.topics
    if config.uploader.tail.enabled:
        yield ("uploader", "tail", "topics"), config.uploader.tail.topics
    yield ("retention", "local", "topics"), config.retention.local.topics
    for i, rule in enumerate(config.retention.store):
        yield ("retention", "store", i, "topics"), rule.topics
