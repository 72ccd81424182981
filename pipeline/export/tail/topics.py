"""The logs of topics, from one look at the archive and one at the brokers."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from sidetier.config.cluster import BrokerConfig
from sidetier.pipeline.errors import NoSuchTopicError
from sidetier.pipeline.export.epoch_history import Position, position_at
from sidetier.pipeline.export.errors import BehindError
from sidetier.pipeline.export.tail.brokers import broker_topic
from sidetier.pipeline.export.tail.consuming import record_timestamps
from sidetier.pipeline.export.tail.logs import BrokerTopic, Log, joined, require_same_topic
from sidetier.pipeline.planning.log_offsets import LogOffsets, UndecidedTail
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.selection import Topics
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

AskBrokers = Callable[[BrokerConfig, str, IsolationLevel], BrokerTopic | None]
AskTimestamps = Callable[
    [BrokerConfig, Mapping[TopicPartition, Offset]], Mapping[TopicPartition, int]
]


@dataclass(slots=True)
class TopicLogs:
    """Looks, and keeps what was seen last, so that all of one run goes by the same.

    Attributes:
        broker: where the cluster is, and how it is reached.
        said: is told where an export has to wait for the archive.
        ask_timestamps: gives the timestamps of records by their offsets on the brokers, in ms.
        logs: of the last look.
        topic_ids: those that the brokers gave then.
        waiting: where an export has to wait for the archive, and for which offsets.
    """

    planner: Planner
    broker: BrokerConfig
    topics: tuple[str, ...]
    ask: AskBrokers = broker_topic
    said: Callable[[str], None] = field(default=lambda _text: None)
    logs: dict[TopicPartition, Log] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    waiting: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    ask_timestamps: AskTimestamps = record_timestamps

    def look(
        self, isolation: IsolationLevel, behind: list[BehindError] | None = None
    ) -> Mapping[TopicPartition, Log]:
        """How far every partition goes now: the archive is asked first. `behind` collects the
        errors of partitions that `joined` refuses; they are left out.

        Raises:
            NoSuchTopicError: neither has the topic.
            ConfigurationError: the brokers are those of another cluster.
            OtherTopicError: they have two topics of one name.
            BrokerBehindError: see `joined`; without a list for it.
            LeadershipUnavailableError: the cluster does not answer.
            ArchiveError, StorageError: as `Planner.reaches`.
        """
        self.logs, self.topic_ids = {}, {}
        for topic in self.topics:
            refused: list[BehindError] = []
            logs = self._look(topic, isolation, refused)
            if any(one.has_gap for one in logs.values()):
                # What was archived, and then deleted, between the two looks is there by now.
                refused.clear()
                logs = self._look(topic, isolation, refused)
            if refused and behind is None:
                raise refused[0]
            if behind is not None:
                behind += refused
            self.logs |= logs
        return self.logs

    def known(self, isolation: IsolationLevel) -> Mapping[TopicPartition, Log]:
        """Those of the last look, or of a first one."""
        return self.logs or self.look(isolation)

    def reach(self, tp: TopicPartition, first: Offset) -> Offset:
        """Up to where one comes who begins at `first`, by the last look; whoever has to wait for
        the archive is told, and noted in `waiting`.
        """
        log = self.logs[tp]
        if not log.waits(first):
            self.waiting.pop(tp, None)
        elif self.waiting.get(tp) != log.undecided:
            self.waiting[tp] = span = log.undecided
            self.said(
                f"{tp}: offsets {span} are archived, in a transaction "
                "whose end is not, and the broker has deleted them: they and what follows are "
                "exported once it is"
            )
        return log.reach(first)

    def undecided(
        self,
        archived: Mapping[TopicPartition, UndecidedTail],
        reached: Callable[[TopicPartition], int | None],
    ) -> dict[TopicPartition, UndecidedTail]:
        """What waits for a transaction where an export has reached the end of the last look: what
        is open on the brokers, and in the archive of a partition that they do not have.

        Librdkafka does not have DescribeProducers, so the producer id is known only where the
        transaction begins in the archive. The first record tells when a transaction began.

        Args:
            archived: the transactions that are open in the archive.
            reached: the next offset of a partition; None where the export has none.
        """
        at_end = {tp: log for tp, log in self.logs.items() if reached(tp) == log.latest}
        known = {
            tp: tail
            for tp, tail in archived.items()
            if tp in at_end and at_end[tp].latest == tail.first
        }
        waiting = {
            tp: OffsetRange(log.latest, log.high_watermark)
            for tp, log in at_end.items()
            if log.high_watermark is not None and log.latest < log.high_watermark
        }
        firsts = {tp: span.start for tp, span in waiting.items() if tp not in known}
        times = self.ask_timestamps(self.broker, firsts) if firsts else {}
        return known | {
            tp: replace(known[tp], until=span.end, is_archived=False)
            if tp in known
            else UndecidedTail(
                at_end[tp].earliest,
                span.start,
                span.end,
                None,
                times.get(tp),
                None,
                is_archived=False,
            )
            for tp, span in waiting.items()
        }

    def positions(
        self, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> dict[TopicPartition, Position]:
        """What an export keeps that has read these ranges, by the last look; raises as
        `Planner.epoch_histories`.
        """
        archived = [tp for tp in ranges if self.logs[tp].stored > 0]
        epoch_histories = self.planner.epoch_histories(archived)
        return {
            tp: _position(span, self.logs[tp], epoch_histories.get(tp, NO_EPOCHS))
            for tp, span in ranges.items()
        }

    def _look(
        self, topic: str, isolation: IsolationLevel, refused: list[BehindError]
    ) -> dict[TopicPartition, Log]:
        stored, nothing = self._stored(topic, isolation)
        found = self.ask(self.broker, topic, isolation)
        if found is None and nothing is not None:
            raise nothing
        if found is None:
            self.said(f"{topic}: the brokers have no topic of this name: only the archive is read")
        return self._joined(topic, stored, found, refused)

    def _stored(
        self, topic: str, isolation: IsolationLevel
    ) -> tuple[Mapping[TopicPartition, LogOffsets], NoSuchTopicError | None]:
        try:
            tps = self.planner.partitions(Topics((topic,)))
        except NoSuchTopicError as error:
            return {}, error
        return self.planner.reaches(tps, isolation), None

    def _joined(
        self,
        topic: str,
        stored: Mapping[TopicPartition, LogOffsets],
        found: BrokerTopic | None,
        refused: list[BehindError],
    ) -> dict[TopicPartition, Log]:
        if found is not None:
            self._require_same_cluster(topic, found.cluster_id)
        live = {} if found is None else found.logs
        topic_id = None if found is None else found.topic_id
        for known in _ids(stored.values()):
            require_same_topic(topic, known, topic_id, "the archive")
        if topic_id is not None:
            self.topic_ids[topic] = topic_id
        tps = {TopicPartition(topic, number) for number in live} | stored.keys()
        logs = {}
        for tp in sorted(tps):
            try:
                logs[tp] = joined(tp, stored.get(tp), live.get(tp.partition))
            except BehindError as error:
                refused.append(error)
        return logs

    def _require_same_cluster(self, topic: str, cluster_id: str | None) -> None:
        known = self.planner.kafka_cluster_id(topic)
        if None not in {known, cluster_id} and known != cluster_id:
            raise ConfigurationError(
                f"--bootstrap: the brokers are those of the Kafka cluster {cluster_id}, and the "
                f"archive is that of {known}: give those of the cluster that was archived"
            )


def _position(span: OffsetRange, log: Log, stored: EpochHistory) -> Position:
    archived = min(log.cut, span.end) if span.start < log.cut else None
    return position_at(
        span.end, stored, log.epoch, is_stored=span.end <= log.stored, archived=archived
    )


def _ids(stored: Iterable[LogOffsets]) -> set[str]:
    return {one.topic_id for one in stored if one.topic_id is not None}
