"""Topic configurations: they decide whether a topic is archived, and when the broker deletes it."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import structlog

from sidetier.leadership.port import TopicConfig, TopicConfigSource
from sidetier.segments.checkpoints import parse_offset_checkpoint
from sidetier.segments.errors import LeadershipError, SegmentError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.unexpected import Subject, UnexpectedErrors
from sidetier.uploader.watching.disk import read_text
from sidetier.uploader.workers import Task, WorkerPool

log: Final = structlog.get_logger()

_ASK_AGAIN_SECONDS: Final = 300.0
_PAUSE_AFTER_FAILURE: Final = 5.0
_SUBJECT: Final = Subject("asking the brokers for topic configurations")


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
        self._pool = pool
        self._now = now
        self._metrics = metrics
        self._errors = errors
        self._refuse_compacted = compacted == "refuse"
        self._known: dict[str, TopicConfig | None] = {}
        self._asked_of: dict[str, str | None] = {}
        """Topic ids when the answers in `_known` were requested."""
        self._next_ask = float("-inf")
        self._not_before = float("-inf")

    def is_known(self, topic: str, topic_id: str | None = None) -> bool:
        """Return whether the topic's configuration is known.

        An answer about an earlier topic of the same name does not count.
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
        if source is None or not self._pool.free or now < self._not_before:
            return
        if self._errors.holds(_SUBJECT):
            return
        # All topics at intervals: an operator can change a configuration at any time.
        again = now >= self._next_ask
        wanted = sorted(t for t, i in topics.items() if again or not self.is_known(t, i))
        if again:
            self._next_ask = now + _ASK_AGAIN_SECONDS
        if wanted:
            ids = {topic: topics[topic] for topic in wanted}
            self._pool.submit(
                Task(
                    lambda: TopicConfigsReceived(source.topic_configs(wanted), ids),
                    TopicConfigsUnavailable,
                )
            )

    def handle(self, event: TopicConfigEvent) -> Iterable[str]:
        """Take a result of `ask`, and return the topics whose configuration is new."""
        if isinstance(event, TopicConfigsUnavailable):
            self._failed(event.error)
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
        self._errors.clear(_SUBJECT)
        return changed

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, LeadershipError):
            self._errors.hold(_SUBJECT, error)
            return
        self._errors.clear(_SUBJECT)
        self._metrics.error(type(error).__name__)
        self._not_before = self._now() + _PAUSE_AFTER_FAILURE
        log.warning("topic.config_unavailable", error=str(error))

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


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    written_ns: int = -1
    offsets: Mapping[TopicPartition, Offset] = field(default_factory=dict)
    read_at: float = float("-inf")


class CleanerCheckpoints:
    """Reads the checkpoint of each log dir when it has changed, at most once a second.

    Args:
        now: Monotonic seconds.
        on_checkpoint: Called with the path of each checkpoint that is read, and with the reason
            where it cannot be used.
    """

    def __init__(
        self,
        now: Callable[[], float],
        on_checkpoint: Callable[[str, SegmentError | None], None] = lambda _, __: None,
    ) -> None:
        self._now = now
        self._on_checkpoint = on_checkpoint
        self._known: dict[str, _Checkpoint] = {}

    def has_cleaned(self, log_dir: str, tp: TopicPartition, log_start: Offset) -> bool:
        """Return whether the cleaner has compacted a part of the log that still exists."""
        known = self._known.get(log_dir, _Checkpoint())
        if self._now() - known.read_at >= _READ_AGAIN_SECONDS:
            known = self._known[log_dir] = self._read(log_dir, known)
        # The checkpoint names the first offset that is not cleaned yet. If
        # the log start has passed it, nothing that was compacted is left.
        return known.offsets.get(tp, Offset(0)) > log_start

    def _read(self, log_dir: str, known: _Checkpoint) -> _Checkpoint:
        path = os.path.join(log_dir, CLEANER_CHECKPOINT_NAME)
        try:
            written = os.stat(path).st_mtime_ns
            if written == known.written_ns:
                return _Checkpoint(written, known.offsets, self._now())
            offsets = parse_offset_checkpoint(read_text(path), path)
        except OSError:
            return _Checkpoint(read_at=self._now())
        except SegmentError as error:
            self._on_checkpoint(path, error)
            return _Checkpoint(read_at=self._now())
        self._on_checkpoint(path, None)
        return _Checkpoint(written, offsets, self._now())
