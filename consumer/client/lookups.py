"""Questions to both sides, asked in the background so that polling never waits for an answer."""

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, Self

from confluent_kafka import KafkaError

from sidetier.consumer.archive.bounds import ArchiveBounds
from sidetier.consumer.client.kafka_side import AtKafka, KafkaSide
from sidetier.consumer.client.sources import Archive, Span
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import TopicPartition


class Looker(Protocol):
    """The part of an `ArchiveReader` that answers questions."""

    def bounds(self, tp: TopicPartition, *, max_age: float = 0.0) -> ArchiveBounds | None:
        """See `ArchiveReader.bounds`."""
        ...


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a partition; `serial` is that of its assignment or seek."""

    tp: TopicPartition
    serial: int
    committed: bool = False
    kafka: bool = False
    store: bool = False

    def also(self, *, kafka: bool, store: bool) -> Self:
        """The same partition, and these sides."""
        return replace(self, kafka=kafka, store=store)


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found; only what was asked for is set."""

    question: Question
    committed: int | None = None
    kafka: Span | None = None
    archive: Archive | None = None
    kafka_error: KafkaError | None = None
    store_error: SidetierError | None = None


class Lookups:
    """Asks Kafka first, then the store: what Kafka deletes in between is stored by then.

    Args:
        kafka: None where there is no broker.
        store: who looks at archives.
        pools: where Kafka and the store are asked; their own threads unless given.
        threads: how many archives are looked at, at once.
    """

    def __init__(
        self,
        kafka: KafkaSide | None,
        store: Looker,
        *,
        pools: tuple[Executor, Executor] | None = None,
        threads: int = 6,
    ) -> None:
        self._kafka, self._store = kafka, store
        self._kafka_pool, self._store_pool = pools or (
            ThreadPoolExecutor(1, thread_name_prefix="sidetier-ask-kafka"),
            ThreadPoolExecutor(threads, thread_name_prefix="sidetier-ask-store"),
        )
        self._found: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._asking_kafka = threading.Lock()
        self._closed = False

    def ask(self, questions: Sequence[Question]) -> None:
        """Each gets one answer."""
        at_kafka = [one for one in questions if one.committed or one.kafka]
        if at_kafka:
            self._kafka_pool.submit(self._ask_kafka, at_kafka)
        for question in questions:
            if not (question.committed or question.kafka):
                self._store_pool.submit(self._ask_store, Answer(question))

    def answers(self) -> Iterable[Answer]:
        """What has come; does not wait."""
        while True:
            try:
                yield self._found.get_nowait()
            except queue.Empty:
                return

    def close(self) -> None:
        """No more questions; returns when Kafka's client is not used any more."""
        self._closed = True
        for pool in (self._kafka_pool, self._store_pool):
            pool.shutdown(wait=False, cancel_futures=True)
        with self._asking_kafka:
            pass

    def _ask_kafka(self, questions: Sequence[Question]) -> None:
        answers = {one.tp: Answer(one) for one in questions}
        with self._asking_kafka:
            self._each(answers, [one.tp for one in questions if one.committed], _committed)
            self._each(answers, [one.tp for one in questions if one.kafka], _spans)
        for answer in answers.values():
            if answer.question.store and answer.kafka_error is None and not self._closed:
                self._store_pool.submit(self._ask_store, answer)
            else:
                self._found.put(answer)

    def _each(
        self,
        answers: dict[TopicPartition, Answer],
        tps: list[TopicPartition],
        ask: Callable[[KafkaSide, list[TopicPartition]], dict[TopicPartition, AtKafka]],
    ) -> None:
        if not tps or self._closed or self._kafka is None:
            return
        for tp, found in ask(self._kafka, tps).items():
            answer = answers[tp]
            answers[tp] = replace(
                answer,
                committed=found.committed if found.committed is not None else answer.committed,
                kafka=found.span or answer.kafka,
                kafka_error=found.error or answer.kafka_error,
            )

    def _ask_store(self, answer: Answer) -> None:
        try:
            bounds = self._store.bounds(answer.question.tp)
        except SidetierError as error:
            self._found.put(replace(answer, archive=Archive(away=True), store_error=error))
            return
        self._found.put(replace(answer, archive=Archive(_stored(bounds))))


def _committed(kafka: KafkaSide, tps: list[TopicPartition]) -> dict[TopicPartition, AtKafka]:
    return kafka.committed(tps)


def _spans(kafka: KafkaSide, tps: list[TopicPartition]) -> dict[TopicPartition, AtKafka]:
    return kafka.spans(tps)


def _stored(bounds: ArchiveBounds | None) -> Span | None:
    if bounds is None or bounds.start_offset >= bounds.next_offset:
        return None
    return Span(bounds.start_offset, bounds.next_offset)
