"""Topic configurations: they decide whether a topic is archived, and when the broker deletes it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import structlog

from sidetier.leadership.port import TopicConfig, TopicConfigSource
from sidetier.segments.errors import LeadershipError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.periodic import PeriodicTask
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.unexpected import UnexpectedErrors
from sidetier.uploader.watching.checkpoints import OffsetCheckpoints, OnCheckpoint
from sidetier.uploader.workers import WorkerPool

log: Final = structlog.get_logger()

_ASK_AGAIN_SECONDS: Final = 300.0
_PAUSE_AFTER_FAILURE: Final = 5.0


@dataclass(frozen=True, slots=True)
class TopicConfigsReceived:
    """Brokers have answered.

    Attributes:
        answers: Configuration of each topic; None if the brokers do not show it to the sidecar.
        topic_ids: Ids of the topics at the time of the request.
    """

    answers: Mapping[str, TopicConfig | None]
    topic_ids: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class TopicConfigsUnavailable:
    """No broker has answered."""

    error: Exception


TopicConfigEvent = TopicConfigsReceived | TopicConfigsUnavailable


class TopicRules:
    """Asks for the configuration of new topics at once, and of all topics every 5 minutes.

    Without a source every topic is allowed: an operator who archives from the disk alone is
    responsible for the choice of topics.
    """

    def __init__(
        self,
        source: TopicConfigSource | None,
        pool: WorkerPool[TopicConfigEvent],
        now: Callable[[], float],
        metrics: Metrics,
        errors: UnexpectedErrors,
        compacted: Literal["refuse", "as_closed"],
    ) -> None:
        self._source = source
        self._now = now
        self._task = PeriodicTask(
            "asking the brokers for topic configurations",
            pool,
            now,
            metrics,
            errors,
            expected=(LeadershipError,),
            pause=_PAUSE_AFTER_FAILURE,
        )
        self._refuse_compacted = compacted == "refuse"
        self._known: dict[str, TopicConfig | None] = {}
        self._asked_of: dict[str, str | None] = {}
        """Topic ids when the answers in `_known` were requested."""
        self._next_ask = float("-inf")

    def is_known(self, topic: str, topic_id: str | None = None) -> bool:
        """Return whether the configuration is known of this topic, not of an earlier one of its
        name.
        """
        if self._source is None:
            return True
        return topic in self._known and topic_id in {None, self._asked_of.get(topic, topic_id)}

    def config(self, topic: str) -> TopicConfig:
        """Return the known configuration of the topic, or the defaults."""
        return self._known.get(topic) or TopicConfig()

    def refusal(self, topic: str, *, cleaned: bool = False) -> str | None:
        """Return why the topic must not be archived; None where it may.

        Without a source, the topic counts as compacted if the cleaner has compacted its log
        (`cleaned`).
        """
        config = self.config(topic)
        if self._source is None and cleaned:
            config = replace(config, compacted=True)
        return refusal_of(topic, config, refuse_compacted=self._refuse_compacted)

    def ask_for(self, partitions: Iterable[Partition]) -> None:
        """Ask for the topics of these partitions, as `ask` does."""
        topics: dict[str, str | None] = {}
        for partition in partitions:
            topic = partition.topic_partition.topic
            if topic not in topics or not partition.unsure:
                topics[topic] = partition.topic_id or topics.get(topic)
        self.ask(topics)

    def ask(self, topics: Mapping[str, str | None]) -> None:
        """Ask for unknown topics, or for all of them if the last such request was 5 minutes ago.

        Args:
            topics: The id of each topic by its name; None where it is not known yet.
        """
        source, now = self._source, self._now()
        if source is None or not self._task.is_due:
            return
        # All topics at intervals: an operator can change a configuration at any time.
        again = now >= self._next_ask
        wanted = sorted(t for t, i in topics.items() if again or not self.is_known(t, i))
        if again:
            self._next_ask = now + _ASK_AGAIN_SECONDS
        if wanted:
            ids = {topic: topics[topic] for topic in wanted}
            self._task.begin(
                lambda: TopicConfigsReceived(source.topic_configs(wanted), ids),
                TopicConfigsUnavailable,
            )

    def handle(self, event: TopicConfigEvent) -> Iterable[str]:
        """Take a result of `ask`, and return the topics whose configuration is new."""
        if isinstance(event, TopicConfigsUnavailable):
            if self._task.failed(event.error):
                log.warning("topic.config_unavailable", error=str(event.error))
            return ()
        answers, ids = event.answers, event.topic_ids
        for topic, config in answers.items():
            if config is None and topic not in self._known:
                log.warning("topic.config_unreadable", topic=topic)
        changed = [
            topic
            for topic, config in answers.items()
            if not self.is_known(topic, ids[topic]) or self._known[topic] != config
        ]
        # After `changed` was computed, which compares with the earlier answers.
        self._known.update(answers)
        asked_ids = {topic: ids[topic] for topic in answers}
        self._asked_of.update(
            {topic: topic_id for topic, topic_id in asked_ids.items() if topic_id is not None}
        )
        self._task.succeeded()
        return changed

    def close(self) -> None:
        """Close the connections."""
        if self._source is not None:
            self._source.close()


def refusal_of(topic: str, config: TopicConfig, *, refuse_compacted: bool) -> str | None:
    """Return why a topic of this configuration must not be archived; None where it may."""
    if config.native_tiering:
        return (
            f"topic {topic} has remote.storage.enable=true: the broker tiers it itself, and "
            "deletes local segments on its own terms; add it to topics.exclude"
        )
    if config.compacted and refuse_compacted:
        return (
            f"topic {topic} is compacted (cleanup.policy): its closed segments are rewritten; "
            "add it to topics.exclude, or set topics.compacted: as_closed"
        )
    return None


CLEANER_CHECKPOINT_NAME: Final = "cleaner-offset-checkpoint"
_READ_AGAIN_SECONDS: Final = 1.0


class CleanerCheckpoints:
    """Tells from the checkpoint of each log dir which logs Kafka's log cleaner has compacted.

    Args:
        now: Monotonic seconds.
        on_checkpoint: Notes what was read.
    """

    def __init__(
        self, now: Callable[[], float], on_checkpoint: OnCheckpoint = lambda _, __: None
    ) -> None:
        self._checkpoints = OffsetCheckpoints(
            CLEANER_CHECKPOINT_NAME, _READ_AGAIN_SECONDS, now, on_checkpoint
        )

    def has_cleaned(self, log_dir: str, tp: TopicPartition, log_start: Offset) -> bool:
        """Return whether the cleaner has compacted a part of the log that still exists."""
        # The checkpoint names the first offset that is not cleaned yet. If
        # the log start has passed it, nothing that was compacted is left.
        return self._checkpoints.of(log_dir).offsets.get(tp, Offset(0)) > log_start
