"""Router: carries out the decisions of `sources` and points each partition at its source.

Nothing here waits for the store: `Lookups` asks it in the background, and `step` continues when an
answer has arrived. All methods run on the thread that holds the consumer's `PollLock`.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog
from confluent_kafka import KafkaError
from structlog.stdlib import BoundLogger
from structlog.typing import EventDict, WrappedLogger

from sidetier.consumer.errors import GapError, NoOffsetError, StoreError, TieredError, is_transient
from sidetier.consumer.kafka_side import PARKED, KafkaSide, Start
from sidetier.consumer.lookups import Answer, Lookups, Question
from sidetier.consumer.metrics import ConsumerMetrics
from sidetier.consumer.partition import Partition, Source
from sidetier.consumer.sources import (
    UNKNOWN,
    Archive,
    Ask,
    Decision,
    FromKafka,
    FromStore,
    Identity,
    Missing,
    Mode,
    NoReset,
    RetryLater,
    Rules,
    decide,
)
from sidetier.consumer.store_side import StoreSide
from sidetier.segments.backoff import backoff

if TYPE_CHECKING:
    from sidetier.segments.errors import SidetierError
    from sidetier.segments.offsets import TopicPartition

# Log of the consumer, on the application's own `logging`: a library must not write to stdout.
#
# A line is the event's name and its values, `consumer.switched partition=orders-0 to=store
# offset=5`, from the logger `sidetier.consumer`.

NAME: Final = "sidetier.consumer"


def _line(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    name = event.pop("event")
    return " ".join([str(name), *(f"{key}={value}" for key, value in event.items() if value != "")])


log: Final[BoundLogger] = structlog.wrap_logger(
    logging.getLogger(NAME),
    processors=[structlog.stdlib.filter_by_level, _line],
    wrapper_class=BoundLogger,
)


FIRST_PAUSE: Final = 0.25
"""Backoff before both sources are asked again, in seconds. Doubles up to `LONGEST_PAUSE`."""
LONGEST_PAUSE: Final = 10.0
SETTLED_PAUSE: Final = 60.0
"""Seconds until a partition that stopped with a permanent error is tried again."""
REPORT_EVERY: Final = 10
"""A permanent error that continues is reported to the application at every tenth try."""
_UNDECIDED: Final = 2
"""Number of ends of the archive at one offset that prove an undecided transaction."""
_ROUNDS: Final = 4
"""Maximum rounds of lookups in one `step`. Kafka answers a lookup before the next round."""


class Router:
    """All assigned partitions, and for each the search for its source.

    An exception (Ctrl-C) may come between any two steps. So a partition whose source is the store
    is always assigned to the archive reader, and a search ends with the last step of its decision.

    Attributes:
        partitions: all assigned partitions.
        errors: errors for the application, oldest first.
        changes: counter that increases when the source or the pause of any partition changes.
    """

    def __init__(
        self,
        rules: Rules,
        sides: tuple[KafkaSide | None, StoreSide],
        lookups: Lookups,
        clock: Callable[[], float],
        metrics: ConsumerMetrics,
        warn: Callable[[KafkaError], None],
    ) -> None:
        self.partitions: dict[TopicPartition, Partition] = {}
        self.errors: list[TieredError] = []
        self.changes = 0
        self._rules, self._lookups, self._clock = rules, lookups, clock
        self._kafka, self._store = sides
        self._metrics, self._warn = metrics, warn
        self._looking: dict[TopicPartition, Partition] = {}
        self._aims: dict[TopicPartition, Partition] = {}

    @property
    def looking(self) -> bool:
        """Whether the source of any partition is still unknown. Polling then waits only briefly."""
        return bool(self._looking)

    def look(self, partition: Partition) -> None:
        """Search the partition's source, after a backoff if earlier tries failed."""
        self._looking[partition.tp] = partition
        partition.source, partition.asking = Source.LOOKING, False
        # The first search after a failure begins at once.
        partition.due = self._clock() + max(0.0, pause_after(partition.tries) - FIRST_PAUSE)
        self.changes += 1

    def leave(self, partition: Partition) -> None:
        """Stop reading the partition from its present source."""
        if partition.source is Source.STORE:
            self.look(partition)
            self._store.unassign(partition.tp)
        elif partition.source is Source.KAFKA and self._kafka is not None:
            self._kafka.hold([partition.tp])

    def forget(self, partition: Partition) -> None:
        """Remove a partition that is no longer assigned."""
        self._store.unassign(partition.tp)
        self._looking.pop(partition.tp, None)
        self._aims.pop(partition.tp, None)
        self.changes += 1

    def again(self, partition: Partition) -> None:
        """Aim Kafka's consumer at the partition's position in the next `step`.

        For partitions whose position in Kafka's consumer is unknown after an interruption.
        """
        if partition.position is None and partition.start < 0:
            self.look(partition)
        else:
            self._aims[partition.tp] = partition

    def step(self) -> None:
        """Continue the search for every partition whose source is unknown."""
        self.aim()
        for _ in range(_ROUNDS):
            if not self._looking or not self._round():
                return

    def _round(self) -> bool:
        """Decide once for each partition; return whether a lookup was started."""
        now = self._clock()
        for answer in self._lookups.answers():
            self._answered(answer, now)
        questions = []
        for partition in list(self._looking.values()):
            if not partition.asking and partition.due <= now:
                question = self._find(partition, now)
                if question is not None:
                    partition.asking = True
                    questions.append(question)
        # Before the lookups, which can take a second each without a reachable broker.
        self.aim()
        if questions:
            self._lookups.ask(questions)
        return bool(questions)

    def from_kafka(self, partition: Partition, decision: FromKafka) -> None:
        """Read the partition from Kafka once `aim` is called.

        If the position may be an offset of a deleted topic, the search begins again instead.
        """
        if not self._is_of_the_clusters_topic(partition):
            return
        self._log_reset(partition, decision.offset, decision.reset)
        if partition.source is Source.STORE:
            self._switched(partition, Source.KAFKA, decision.offset)
        self._looking[partition.tp] = partition
        partition.settle(Source.KAFKA, decision.offset)
        partition.until = None
        self._aims[partition.tp] = partition
        # Also if it was not read from there: an interruption may have come after `assign`.
        self._store.unassign(partition.tp)
        self._looking.pop(partition.tp, None)
        self.changes += 1

    def _is_of_the_clusters_topic(self, partition: Partition) -> bool:
        """Whether Kafka can be read at the partition's position; if not, search its source again.

        The topic may have been deleted and created again while its archive was read.
        """
        if self._kafka is None:
            return True
        topic = partition.tp.topic
        before, answer = partition.identity, self._kafka.identities([topic])[topic]
        now = answer if isinstance(answer, Identity) else UNKNOWN
        # Not without an id: the topic is away, or the asked broker does not know it yet.
        confirmed = now != UNKNOWN and (now.topic_id is not None or before.topic_id is None)
        changed = now.differs(before)
        partition.identified(now)
        if not changed:
            if confirmed or before == UNKNOWN:  # neither the archive nor a lookup has led here
                return True
            partition.tries += 1
            partition.ended = None  # Kafka has not refused the offset
        self.leave(partition)
        partition.forget()
        self.look(partition)
        return False

    def aim(self, *more: Partition) -> None:
        """Seek Kafka's consumer to the positions that it must read from."""
        self._aims.update((partition.tp, partition) for partition in more)
        if not self._aims or self._kafka is None:
            return
        aims, self._aims = self._aims, {}
        try:
            starts = [start_now(partition) for partition in aims.values()]
            everything = (start_now(partition) for partition in self.partitions.values())
            if self._kafka.aim(starts, everything):
                self.store_again(self._kafka)
        except BaseException:
            # The application may catch it and poll again: the consumer has not moved yet.
            self._aims = aims | self._aims
            raise
        for partition in aims.values():
            partition.behind = False

    def _find(self, partition: Partition, now: float) -> Question | None:
        """Carry out the decision, or return the question that must be answered first."""
        if partition.needs_committed:
            if self._kafka is not None:
                return Question(partition.tp, partition.serial, committed=True, store=True)
            partition.committed_known = True
        broker = self._kafka is not None
        decision = decide(self._rules.mode, self._rules.reset, partition.facts(), broker=broker)
        if isinstance(decision, Ask):
            question = Question(partition.tp, partition.serial)
            return question.also(kafka=decision.kafka, store=decision.store)
        self._carry_out(partition, decision, now)
        return None

    def _carry_out(self, partition: Partition, decision: Decision, now: float) -> None:
        if partition.recreated:
            self.clear_stored(partition)
        if isinstance(decision, FromKafka):
            self.from_kafka(partition, decision)
        elif isinstance(decision, FromStore):
            self._from_store(partition, decision)
        elif isinstance(decision, Missing):
            self._missing(partition, decision, now)
        elif isinstance(decision, NoReset):
            self.errors.append(NoOffsetError(partition.tp, partition.position, decision.why))
            _later(partition, now + SETTLED_PAUSE)
        elif isinstance(decision, RetryLater):
            partition.tries += 1
            log.debug("consumer.again", partition=str(partition.tp), why=decision.why)
            _later(partition, now + pause_after(partition.tries))

    def clear_stored(self, partition: Partition) -> None:
        """Let no offset that was stored so far be committed: it is one of a deleted topic."""
        partition.consumed, partition.dirty, partition.stored = False, False, None
        if self._kafka is not None:
            self._kafka.clear_stored([partition.tp])

    def _from_store(self, partition: Partition, decision: FromStore) -> None:
        self._log_reset(partition, decision.offset, decision.reset)
        if partition.consumed:
            self._switched(partition, Source.STORE, decision.offset)
        if partition.archive is not None and partition.identity == UNKNOWN:
            partition.identity = partition.archive.identity
        self._warn_if_undecided(partition, decision.offset)
        self._store.assign(partition.tp, decision.offset)
        if partition.paused:
            self._store.pause(partition.tp)
        partition.settle(Source.STORE, decision.offset)
        partition.until = decision.until
        self._looking.pop(partition.tp, None)
        self.changes += 1

    def _missing(self, partition: Partition, missing: Missing, now: float) -> None:
        if partition.missing_since is None:
            partition.missing_since = now
        if not missing.settled and now - partition.missing_since < self._rules.patience:
            partition.tries += 1
            partition.ask_again()
            partition.due = now + min(1.0, pause_after(partition.tries))
            return
        detail = partition.detail
        if not self._rules.skip_gaps:
            error = GapError(partition.tp, missing.first, missing.end, detail)
            self.errors.append(error)
            partition.ask_again()
            partition.due = now + SETTLED_PAUSE
            return
        name, first, end = str(partition.tp), missing.first, missing.end
        log.warning("consumer.gap_skipped", partition=name, first=first, end=end, detail=detail)
        self._metrics.gap(end - first)
        partition.position, partition.missing_since, partition.detail = end, None, ""
        partition.dirty = partition.consumed
        _later(partition, now)

    def _answered(self, answer: Answer, now: float) -> None:
        partition = self.partitions.get(answer.question.tp)
        if partition is None or partition.serial != answer.question.serial:
            return
        partition.asking = False
        if answer.kafka_error is not None:
            if not is_transient(answer.kafka_error):
                error = TieredError(answer.kafka_error, partition.tp, partition.position)
                self.errors.append(error)
            partition.tries += 1
            partition.due = now + pause_after(partition.tries)
            return
        if self._is_outdated(answer):
            partition.tries += 1
            partition.due = now + pause_after(partition.tries)
            return
        _learn(partition, answer)
        if answer.question.store:
            self._warn_if_empty(partition)
            self._warn_if_foreign(partition, answer.identity)
        if answer.store_error is not None:
            self.report_store_error(
                partition, self.store_error(partition.tp, None, answer.store_error)
            )

    def _is_outdated(self, answer: Answer) -> bool:
        """Whether the topic was created again, and its old archive retired, between both answers.

        The store, which is asked last, then has the archive of a topic that the brokers did not
        have yet. Without an answer of the brokers, it may be so.
        """
        if self._kafka is None or answer.archive is None or not answer.archive.foreign:
            return False
        topic = answer.question.tp.topic
        identity = self._kafka.identities([topic])[topic]
        # First the type: a KafkaError can be compared with numbers only.
        return not isinstance(identity, Identity) or identity != answer.identity

    def _warn_if_empty(self, partition: Partition) -> None:
        """Warn once if the store has nothing of the partition: its URL may be wrong."""
        nothing = partition.archive == Archive()
        if not nothing or partition.warned_empty or self._rules.mode is Mode.KAFKA_ONLY:
            return
        partition.warned_empty = True
        name, place = str(partition.tp), self._store.where(partition.tp)
        log.warning("consumer.nothing_stored", partition=name, where=place)
        if self._rules.mode is Mode.TIERED_STORAGE_ONLY:
            text = (
                f"nothing of {name} is stored at {place}; the consumer waits for it. Check "
                "tiered.storage.url, cluster.name and the topic"
            )
            self._warn(KafkaError(KafkaError._UNKNOWN_PARTITION, text))

    def _warn_if_foreign(self, partition: Partition, here: Identity) -> None:
        """Warn once if the archive is of another topic than the cluster's."""
        archive = partition.archive
        if archive is None or not archive.foreign or partition.warned_foreign == archive.identity:
            return
        partition.warned_foreign = archive.identity
        name, place = str(partition.tp), self._store.where(partition.tp)
        fix = (
            f"sidetier retire {partition.tp.topic}"
            if _same_cluster(here, archive.identity)
            else "tiered.storage.url or tiered.storage.cluster.name"
        )
        log.warning(
            "consumer.archive_of_another_topic",
            partition=name,
            archive=archive.identity,
            kafka=here,
            where=place,
            fix=fix,
        )
        text = (
            f"{place} has the archive of {archive.identity}, but the brokers have {here}: it is "
            f"not read. To correct it: {fix}"
        )
        self._warn(KafkaError(KafkaError._INCONSISTENT, text))

    def _warn_if_undecided(self, partition: Partition, offset: int) -> None:
        """Warn if the archive is read again at an offset at which it ended without progress.

        The first time, the archive may have grown in between. At the next, a transaction begins
        there, and its end is not archived yet: Kafka has the end, and no longer the beginning.
        """
        if partition.ended is None or partition.ended[0] != offset:
            return
        if partition.ended[1] % REPORT_EVERY != _UNDECIDED:
            return
        log.warning("consumer.undecided_transaction", partition=str(partition.tp), offset=offset)
        text = (
            f"{partition.tp}: the end of the transaction at offset {offset} is not archived yet, "
            "and Kafka has deleted its beginning: the consumer waits for the sidecar; "
            "isolation.level read_uncommitted returns the records"
        )
        self._warn(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE, text))

    def store_error(
        self, tp: "TopicPartition", offset: int | None, cause: "SidetierError"
    ) -> StoreError:
        """Return the application's error for an error of the store."""
        return StoreError(tp, offset, cause, has_file=self._rules.has_file)

    def report_store_error(self, partition: Partition, error: StoreError) -> None:
        """Report a store that does not answer or refuses.

        A transient error goes to `error_cb`. Any other error goes to the application at the first
        try and at every tenth.
        """
        if error.passes:
            self._warn(error.error)
        elif partition.tries <= 1 or partition.tries % REPORT_EVERY == 0:
            self.errors.append(error)

    def store_again(self, kafka: KafkaSide) -> None:
        """Store the offsets again: a new assignment in librdkafka begins without stored offsets."""
        offsets = []
        for partition in self.partitions.values():
            partition.dirty = partition.consumed
            if partition.stored is not None:
                offsets.append(partition.stored)
        if offsets:
            kafka.store(offsets)

    def _switched(self, partition: Partition, to: Source, offset: int) -> None:
        self._metrics.switched(to)
        log.info("consumer.switched", partition=str(partition.tp), to=to.value, offset=offset)

    def _log_reset(self, partition: Partition, offset: int, why: str) -> None:
        if why:
            self._metrics.reset()
            log.warning("consumer.offset_reset", partition=str(partition.tp), to=offset, why=why)


def start_now(partition: Partition) -> Start:
    """Return where Kafka's consumer must read the partition now."""
    if partition.source is not Source.KAFKA:
        return Start(partition.tp, PARKED, flowing=False)
    at = partition.start if partition.position is None else partition.position
    return Start(partition.tp, at, flowing=not partition.paused)


def _learn(partition: Partition, answer: Answer) -> None:
    here, archive = answer.identity, partition.archive
    there = answer.archive
    if here.topic_id is None and partition.identity != UNKNOWN and there and not there.foreign:
        here = there.identity  # no broker has named the topic: two archives can be compared
    if here.differs(partition.identity) or (
        archive is not None and not archive.foreign and here.differs(archive.identity)
    ):
        partition.forget()  # earlier answers were about the deleted topic
    partition.identified(here)
    if answer.question.committed:
        partition.committed_known, partition.committed = True, answer.committed
    if answer.question.kafka:
        partition.kafka = answer.kafka
    if answer.question.store:
        partition.archive = answer.archive


def _same_cluster(one: Identity, other: Identity) -> bool:
    return not Identity(cluster_id=one.cluster_id).differs(Identity(cluster_id=other.cluster_id))


def _later(partition: Partition, due: float) -> None:
    # Both sides are asked again then.
    partition.forget()
    partition.due = due


def pause_after(tries: int) -> float:
    """Return the backoff in seconds after this number of failed tries in a row."""
    return backoff(tries, FIRST_PAUSE, LONGEST_PAUSE)
