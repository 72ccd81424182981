"""Lookups: where each side starts and ends, and what the group has committed.

Kafka is asked on the polling thread: confluent-kafka allows one thread at a time in a consumer, and
a call of a second thread would wait as long as the first one polls. An answer takes 1 to 2 ms;
without a reachable broker, up to 1 s per request (`LOOKUP_SECONDS`). The store is slower and is
asked on background threads.
"""

import queue
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Self

from confluent_kafka import KafkaError

from sidetier.archive.partition_archive import ArchiveBounds
from sidetier.consumer.kafka_side import AtKafka, KafkaSide
from sidetier.consumer.sources import UNKNOWN, Archive, Identity
from sidetier.consumer.store_side import StoreSide
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class Question:
    """A lookup for one partition.

    Attributes:
        serial: number of the partition's assignment or seek; see `Partition`.
        committed: ask for the group's committed offset.
        kafka: ask where Kafka's log starts and ends.
        store: ask where the archive starts and ends.
    """

    tp: TopicPartition
    serial: int
    committed: bool = False
    kafka: bool = False
    store: bool = False

    def also(self, *, kafka: bool, store: bool) -> Self:
        """Return the question with other values for `kafka` and `store`."""
        return replace(self, kafka=kafka, store=store)


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a question. Only what was asked for is set.

    Attributes:
        identity: the topic that the cluster has now, asked together with `kafka` or `archive`.
        remembered: no broker has answered with an id: `identity` is an earlier answer, or unknown.
    """

    question: Question
    committed: int | None = None
    kafka: OffsetRange | None = None
    archive: Archive | None = None
    identity: Identity = UNKNOWN
    remembered: bool = False
    kafka_error: KafkaError | None = None
    store_error: SidetierError | None = None


class Lookups:
    """Asks Kafka first, then the store.

    In this order no offset is missed: offsets that Kafka deletes between the two answers are stored
    by then.

    Args:
        kafka: None without a broker.
        store: the archive reader.
        pool: executor for lookups in the store; by default a pool of `threads` threads.
        threads: lookups in the store at the same time.
    """

    def __init__(
        self,
        kafka: KafkaSide | None,
        store: StoreSide,
        *,
        pool: Executor | None = None,
        threads: int = 6,
    ) -> None:
        self._kafka, self._store = kafka, store
        self._pool = pool or ThreadPoolExecutor(threads, thread_name_prefix="sidetier-look")
        self._found: queue.SimpleQueue[Answer | BaseException] = queue.SimpleQueue()

    def ask(self, questions: Sequence[Question]) -> None:
        """Start the lookups, one answer for each question. Returns once Kafka has answered."""
        answers = {question.tp: Answer(question) for question in questions}
        self._each(
            answers, [question.tp for question in questions if question.committed], _committed
        )
        self._each(answers, [question.tp for question in questions if question.kafka], _spans)
        self._identify(answers)
        for answer in answers.values():
            if answer.question.store and answer.kafka_error is None:
                self._pool.submit(self._look, answer)
            else:
                self._found.put(answer)

    def answers(self) -> Iterable[Answer]:
        """Yield the answers that have arrived, without waiting.

        Raises:
            BaseException: an unexpected exception of a background thread, so that it is not lost.
        """
        while True:
            try:
                answer = self._found.get_nowait()
            except queue.Empty:
                return
            if isinstance(answer, BaseException):
                raise answer
            yield answer

    def close(self) -> None:
        """Stop the background threads; drop lookups that have not started."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _each(
        self,
        answers: dict[TopicPartition, Answer],
        tps: list[TopicPartition],
        ask: Callable[[KafkaSide, list[TopicPartition]], dict[TopicPartition, AtKafka]],
    ) -> None:
        if not tps or self._kafka is None:
            return
        for tp, reply in ask(self._kafka, tps).items():
            answer = answers[tp]
            answers[tp] = replace(
                answer,
                committed=reply.committed if reply.committed is not None else answer.committed,
                kafka=reply.span or answer.kafka,
                kafka_error=reply.error or answer.kafka_error,
            )

    def _identify(self, answers: dict[TopicPartition, Answer]) -> None:
        """Ask for the cluster's topics, before the store is asked which topics are archived."""
        asked = [tp for tp, each in answers.items() if each.question.kafka or each.question.store]
        if not asked or self._kafka is None:
            return
        identities = self._kafka.identities({tp.topic for tp in asked})
        for tp in asked:
            answer = identities[tp.topic]
            # Without an answer, the archive is read, and compared again before Kafka is read.
            answers[tp] = replace(
                answers[tp],
                identity=self._kafka.seen.get(tp.topic, UNKNOWN),
                remembered=not isinstance(answer, Identity) or answer.topic_id is None,
            )

    def _look(self, answer: Answer) -> None:
        try:
            self._found.put(self._looked(answer))
        except BaseException as error:  # noqa: BLE001 -- raised where the answer is awaited
            self._found.put(error)

    def _looked(self, answer: Answer) -> Answer:
        tp = answer.question.tp
        try:
            found = archive_of(self._store, tp, answer.identity)
        except SidetierError as error:
            return replace(answer, archive=Archive(unavailable=True), store_error=error)
        # The topic may have been created again since the remembered answer.
        verified = found.verified and not answer.remembered
        return replace(answer, archive=replace(found, verified=verified))


def _committed(kafka: KafkaSide, tps: list[TopicPartition]) -> dict[TopicPartition, AtKafka]:
    return kafka.committed(tps)


def _spans(kafka: KafkaSide, tps: list[TopicPartition]) -> dict[TopicPartition, AtKafka]:
    return kafka.spans(tps)


def archive_of(
    store: StoreSide, tp: TopicPartition, here: Identity, *, max_age: float = 0.0
) -> Archive:
    """Look up what the store holds of a partition of the topic that the cluster has.

    Args:
        store: the archive reader.
        tp: the partition.
        here: the cluster's topic.
        max_age: maximum age of the store's answer, in seconds.

    Raises:
        SidetierError: the store does not answer.
    """
    bounds = store.bounds(tp, max_age=max_age)
    if bounds is None:
        return Archive()
    there = Identity(bounds.topic_id, store.kafka_cluster_id(tp.topic))
    if there.differs(here):
        return Archive(identity=there, foreign=True)
    verified = there.topic_id is not None and there.topic_id == here.topic_id
    return Archive(_stored(bounds), identity=there, verified=verified)


def _stored(bounds: ArchiveBounds) -> OffsetRange | None:
    if bounds.start_offset >= bounds.next_offset:
        return None
    return OffsetRange(bounds.start_offset, bounds.next_offset)
