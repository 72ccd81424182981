"""The logs of topics, from one snapshot of the archive and one of the brokers."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from sidetier.config.model import BrokerConfig
from sidetier.pipeline.errors import NoSuchTopicError
from sidetier.pipeline.export.epoch_history import Position, position_at
from sidetier.pipeline.export.errors import BehindError
from sidetier.pipeline.export.tail.brokers import broker_topic
from sidetier.pipeline.export.tail.consuming import record_timestamps
from sidetier.pipeline.export.tail.logs import BrokerTopic, Log, joined, require_same_topic
from sidetier.pipeline.planning.log_offsets import LogOffsets, UndecidedTail
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import Topics
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
    """Reads the logs of topics, and keeps the last result, so that all steps of a run use the same.

    Attributes:
        broker: connection to the cluster.
        say: receives a message if an export must wait for the archive.
        logs: the logs of the last `read`.
        topic_ids: topic ids that the brokers gave then.
        waiting: partitions whose export must wait for the archive, and the offsets to wait for.
        ask_timestamps: returns the timestamps, in ms, of records at offsets on the brokers.
    """

    planner: Planner
    broker: BrokerConfig
    topics: tuple[str, ...]
    ask: AskBrokers = broker_topic
    say: Callable[[str], None] = field(default=lambda _text: None)
    logs: dict[TopicPartition, Log] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    waiting: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    ask_timestamps: AskTimestamps = record_timestamps

    def read(
        self, isolation: IsolationLevel, behind: list[BehindError] | None = None
    ) -> Mapping[TopicPartition, Log]:
        """Read the present logs of all partitions, the archive's first.

        Args:
            isolation: decides where readable records end.
            behind: receives the errors of partitions that `joined` refuses. They are left out of
                the result.

        Raises:
            NoSuchTopicError: neither archive nor brokers have the topic.
            ConfigurationError: the brokers belong to another cluster.
            OtherTopicError: archive and brokers have different topics of one name.
            BrokerBehindError: see `joined`; only if `behind` is None.
            LeadershipUnavailableError: the cluster does not answer.
            ArchiveError, StorageError: see `Planner.reaches`.
        """
        self.logs, self.topic_ids = {}, {}
        for topic in self.topics:
            refused: list[BehindError] = []
            logs = self._read(topic, isolation, refused)
            if any(log.has_gap for log in logs.values()):
                # Records that were archived and deleted between the two snapshots are archived now.
                refused.clear()
                logs = self._read(topic, isolation, refused)
            if refused and behind is None:
                raise refused[0]
            if behind is not None:
                behind += refused
            self.logs |= logs
        return self.logs

    def known(self, isolation: IsolationLevel) -> Mapping[TopicPartition, Log]:
        """Return the logs of the last `read`; read them if there was none."""
        return self.logs or self.read(isolation)

    def reach(self, tp: TopicPartition, first: Offset) -> Offset:
        """Return the offset, exclusive, up to which an export can read from `first`.

        If it must wait for the archive, report this once, and note it in `waiting`.
        """
        log = self.logs[tp]
        if not log.waits(first):
            self.waiting.pop(tp, None)
        elif self.waiting.get(tp) != log.undecided:
            self.waiting[tp] = span = log.undecided
            self.say(
                f"{tp}: offsets {span} are archived, but the end of their transaction is not, and "
                "the broker has deleted them: they and the following records are exported once it "
                "is archived"
            )
        return log.reach(first)

    def undecided(
        self,
        archived: Mapping[TopicPartition, UndecidedTail],
        reached: Callable[[TopicPartition], int | None],
    ) -> dict[TopicPartition, UndecidedTail]:
        """Return the open transactions at the ends of logs that an export has reached.

        They are open on the brokers, or in the archive if the brokers do not have the partition.
        librdkafka has no DescribeProducers, so the producer id is known only if the transaction
        starts in the archive. The timestamp of the first record is the start time of the
        transaction.

        Args:
            archived: the transactions that are open in the archive.
            reached: returns the next offset of a partition; None if the export has none.
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
        """Return the positions that an export keeps after these ranges.

        Raises the errors of `Planner.epoch_histories`.
        """
        archived = [tp for tp in ranges if self.logs[tp].stored > 0]
        epoch_histories = self.planner.epoch_histories(archived)
        return {
            tp: _position(span, self.logs[tp], epoch_histories.get(tp, NO_EPOCHS))
            for tp, span in ranges.items()
        }

    def _read(
        self, topic: str, isolation: IsolationLevel, refused: list[BehindError]
    ) -> dict[TopicPartition, Log]:
        stored, no_archive = self._stored(topic, isolation)
        on_brokers = self.ask(self.broker, topic, isolation)
        if on_brokers is None and no_archive is not None:
            raise no_archive
        if on_brokers is None:
            self.say(f"{topic}: the brokers have no topic of this name: only the archive is read")
        return self._joined(topic, stored, on_brokers, refused)

    def _stored(
        self, topic: str, isolation: IsolationLevel
    ) -> tuple[Mapping[TopicPartition, LogOffsets], NoSuchTopicError | None]:
        try:
            tps = self.planner.partitions(Topics((topic,)))
        except NoSuchTopicError as error:
            return {}, error
        return self.planner.log_offsets(tps, isolation), None

    def _joined(
        self,
        topic: str,
        stored: Mapping[TopicPartition, LogOffsets],
        on_brokers: BrokerTopic | None,
        refused: list[BehindError],
    ) -> dict[TopicPartition, Log]:
        if on_brokers is not None:
            self._require_same_cluster(topic, on_brokers.cluster_id)
        live = {} if on_brokers is None else on_brokers.logs
        topic_id = None if on_brokers is None else on_brokers.topic_id
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
                f"--bootstrap: the brokers belong to the Kafka cluster {cluster_id}, but the "
                f"archive is of cluster {known}: give the brokers of the archived cluster"
            )


def _position(span: OffsetRange, log: Log, stored: EpochHistory) -> Position:
    archived = min(log.cut, span.end) if span.start < log.cut else None
    return position_at(
        span.end, stored, log.epoch, is_stored=span.end <= log.stored, archived=archived
    )


def _ids(stored: Iterable[LogOffsets]) -> set[str]:
    return {log.topic_id for log in stored if log.topic_id is not None}
