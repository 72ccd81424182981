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
        known: The names among which it selects.
        among: What these topics are, for messages.
    """

    setting: SettingPath
    pattern: str
    topics: tuple[str, ...]
    known: Collection[str]
    among: str = "of the cluster"

    def unmatched(self) -> str:
        """Return the text for a pattern that selects none of the topics, with the nearest name."""
        near = suggestion(self.pattern, self.known)
        return f"{self.pattern!r} matches no topic {self.among}{near}"


def selections(config: Config, topics: Collection[str]) -> Iterator[PatternSelection]:
    """Yield each pattern of the configuration, with the topics among these that it selects."""
    for setting, patterns in _settings(config):
        for pattern in patterns:
            yield PatternSelection(setting, pattern, _matching(pattern, topics), topics)
    early, among = config.uploader.early, "that uploader.early.topics selects"
    selected = [topic for topic in topics if early.selects(topic)]
    for i, override in enumerate(early.overrides):
        setting, pattern = ("uploader", "early", "overrides", i, "topics"), override.topics
        yield PatternSelection(setting, pattern, _matching(pattern, selected), selected, among)


def _matching(pattern: str, topics: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted(topic for topic in topics if matches_any([pattern], topic)))


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
