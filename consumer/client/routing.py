"""Carries out what `sources` decides: finds the side that a partition is read from.

Nothing here waits: questions go to `Lookups`, and `step` goes on where an answer has come. All runs
on whichever thread holds the consumer's turnstile.
"""

from collections.abc import Callable
from typing import Final, Protocol

from confluent_kafka import KafkaError

from sidetier.consumer.client.errors import GapError, NoOffsetError, StoreError, TieredError
from sidetier.consumer.client.kafka_side import PARKED, KafkaSide, Start
from sidetier.consumer.client.log import log
from sidetier.consumer.client.lookups import Answer, Lookups, Question
from sidetier.consumer.client.partition import Partition, Source
from sidetier.consumer.client.rules import (
    FIRST_PAUSE,
    SETTLED_PAUSE,
    TOLD_EVERY,
    Rules,
    passes,
    pause_after,
)
from sidetier.consumer.client.sources import (
    Again,
    Archive,
    Ask,
    Decision,
    FromKafka,
    FromStore,
    Missing,
    Mode,
    NoReset,
    decide,
)
from sidetier.consumer.metrics import ConsumerMetrics
from sidetier.segments.offsets import TopicPartition

_ROUNDS: Final = 4
"""Questions in a row that Kafka alone answers."""


class StoreSide(Protocol):
    """The part of an `ArchiveReader` that is told what to read; see there."""

    def where(self, tp: TopicPartition) -> str:
        """Where it is looked for."""
        ...

    def assign(self, tp: TopicPartition, offset: int) -> None:
        """Read from there on."""
        ...

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Go on elsewhere."""
        ...

    def unassign(self, tp: TopicPartition) -> None:
        """Forget it."""
        ...

    def pause(self, tp: TopicPartition) -> None:
        """Hand out nothing of it."""
        ...

    def resume(self, tp: TopicPartition) -> None:
        """Go on."""
        ...


class Router:
    """Every assigned partition, and those whose source is looked for.

    Attributes:
        partitions: all that are assigned.
        troubles: errors that the application has to see, in order.
        changes: rises whenever a partition's source changes.
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
        self.troubles: list[TieredError] = []
        self.changes = 0
        self._rules, self._lookups, self._clock = rules, lookups, clock
        self._kafka, self._store = sides
        self._metrics, self._warn = metrics, warn
        self._looking: dict[TopicPartition, Partition] = {}
        self._aims: dict[TopicPartition, Partition] = {}

    @property
    def looking(self) -> bool:
        """Whether a source is looked for: then polling comes back soon."""
        return bool(self._looking)

    def look(self, partition: Partition) -> None:
        """Find its source, after a pause where that was in vain before."""
        partition.source, partition.asking = Source.LOOKING, False
        partition.due = self._clock() + max(0.0, pause_after(partition.tries) - FIRST_PAUSE)
        self._looking[partition.tp] = partition
        self.changes += 1

    def leave(self, partition: Partition) -> None:
        """Nothing more is wanted from where it is read."""
        if partition.source is Source.STORE:
            self._store.unassign(partition.tp)
        elif partition.source is Source.KAFKA and self._kafka is not None:
            self._kafka.hold([partition.tp])

    def forget(self, partition: Partition) -> None:
        """It is not assigned any more."""
        if partition.source is Source.STORE:
            self._store.unassign(partition.tp)
        self._looking.pop(partition.tp, None)
        self._aims.pop(partition.tp, None)
        self.changes += 1

    def again(self, partition: Partition) -> None:
        """Kafka's side may stand anywhere: let the next `step` aim it."""
        if partition.position is None and partition.start < 0:
            self.look(partition)
        else:
            self._aims[partition.tp] = partition

    def step(self) -> None:
        """Go on with every partition whose source is looked for."""
        self.aim()
        for _ in range(_ROUNDS):
            if not self._looking or not self._round():
                return

    def _round(self) -> bool:
        """One decision for each; returns whether something was asked."""
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
        self.aim()
        if questions:
            self._lookups.ask(questions)
        return bool(questions)

    def from_kafka(self, partition: Partition, decision: FromKafka) -> None:
        """Read from Kafka, once `aim` is called."""
        self._say_reset(partition, decision.offset, decision.reset)
        if partition.source is Source.STORE:
            self._store.unassign(partition.tp)
            self._switched(partition, Source.KAFKA, decision.offset)
        partition.settle(Source.KAFKA, decision.offset)
        partition.until = None
        self._looking.pop(partition.tp, None)
        self._aims[partition.tp] = partition
        self.changes += 1

    def aim(self, *more: Partition) -> None:
        """Let Kafka's side stand where it is to be read from."""
        self._aims.update((partition.tp, partition) for partition in more)
        if not self._aims or self._kafka is None:
            return
        aims, self._aims = self._aims, {}
        starts = [start_now(partition) for partition in aims.values()]
        everything = (start_now(partition) for partition in self.partitions.values())
        if self._kafka.aim(starts, everything):
            self._store_again(self._kafka)
        for partition in aims.values():
            partition.behind = False

    def _find(self, partition: Partition, now: float) -> Question | None:
        """Decide, and do it; or what must be asked first."""
        if partition.needs_committed:
            if self._kafka is not None:
                return Question(partition.tp, partition.serial, committed=True, store=True)
            partition.committed_known = True
        broker = self._kafka is not None
        decision = decide(self._rules.mode, self._rules.reset, partition.facts(), broker=broker)
        if isinstance(decision, Ask):
            asked = Question(partition.tp, partition.serial)
            return asked.also(kafka=decision.kafka, store=decision.store)
        self._carry_out(partition, decision, now)
        return None

    def _carry_out(self, partition: Partition, decision: Decision, now: float) -> None:
        if isinstance(decision, FromKafka):
            self.from_kafka(partition, decision)
        elif isinstance(decision, FromStore):
            self._from_store(partition, decision)
        elif isinstance(decision, Missing):
            self._missing(partition, decision, now)
        elif isinstance(decision, NoReset):
            self.troubles.append(NoOffsetError(partition.tp, partition.position, decision.why))
            _later(partition, now + SETTLED_PAUSE)
        elif isinstance(decision, Again):
            partition.tries += 1
            log.debug("consumer.again", partition=str(partition.tp), why=decision.why)
            _later(partition, now + pause_after(partition.tries))

    def _from_store(self, partition: Partition, decision: FromStore) -> None:
        self._say_reset(partition, decision.offset, decision.reset)
        if partition.consumed:
            self._switched(partition, Source.STORE, decision.offset)
        partition.settle(Source.STORE, decision.offset)
        partition.until = decision.until
        self._looking.pop(partition.tp, None)
        self._store.assign(partition.tp, decision.offset)
        if partition.paused:
            self._store.pause(partition.tp)
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
            self.troubles.append(error)
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
            if not passes(answer.kafka_error):
                error = TieredError(answer.kafka_error, partition.tp, partition.position)
                self.troubles.append(error)
            partition.tries += 1
            partition.due = now + pause_after(partition.tries)
            return
        if answer.question.committed:
            partition.committed_known, partition.committed = True, answer.committed
        if answer.question.kafka:
            partition.kafka = answer.kafka
        if answer.question.store:
            partition.archive = answer.archive
            self._say_where(partition)
        if answer.store_error is not None:
            self.store_away(partition, StoreError(partition.tp, None, answer.store_error))

    def _say_where(self, partition: Partition) -> None:
        """Nothing is stored of it: that may be right, or the place be wrong. Said once."""
        nothing = partition.archive == Archive()
        if not nothing or partition.told_nothing or self._rules.mode is Mode.KAFKA_ONLY:
            return
        partition.told_nothing = True
        name, where = str(partition.tp), self._store.where(partition.tp)
        log.warning("consumer.nothing_stored", partition=name, where=where)
        if self._rules.mode is Mode.TIERED_STORAGE_ONLY:
            text = (
                f"nothing of {name} is stored at {where}; it is waited for. See whether "
                "tiered.storage.url and cluster.name, and the topic, are right"
            )
            self._warn(KafkaError(KafkaError._UNKNOWN_PARTITION, text))

    def store_away(self, partition: Partition, error: StoreError) -> None:
        """The store does not answer, or refuses: told now and then, and tried again."""
        if error.passes:
            self._warn(error.error)
        elif partition.tries <= 1 or partition.tries % TOLD_EVERY == 0:
            self.troubles.append(error)

    def _store_again(self, kafka: KafkaSide) -> None:
        """An assignment that is made anew begins without stored offsets: store them again."""
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

    def _say_reset(self, partition: Partition, offset: int, why: str) -> None:
        if why:
            self._metrics.reset()
            log.warning("consumer.offset_reset", partition=str(partition.tp), to=offset, why=why)


def start_now(partition: Partition) -> Start:
    """Where Kafka's side of a partition has to stand now."""
    if partition.source is not Source.KAFKA:
        return Start(partition.tp, PARKED, flowing=False)
    at = partition.start if partition.position is None else partition.position
    return Start(partition.tp, at, flowing=not partition.paused)


def _later(partition: Partition, due: float) -> None:
    partition.forget()
    partition.due = due
