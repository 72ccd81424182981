"""Questions to both sides: where each begins and ends, and what the group has committed.

Kafka is asked on the polling thread: confluent-kafka lets one thread at a time into a consumer, and
a call from a second one waits for as long as the first goes on polling. It takes a millisecond or
two; where no broker answers, a second, seldom. The store, which is slower, is asked in the
background.
"""

import queue
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, Self

from confluent_kafka import KafkaError

from sidetier.archive.bounds import ArchiveBounds
from sidetier.consumer.client.kafka_side import AtKafka, KafkaSide
from sidetier.consumer.client.sources import Archive
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import OffsetRange, TopicPartition


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
    kafka: OffsetRange | None = None
    archive: Archive | None = None
    kafka_error: KafkaError | None = None
    store_error: SidetierError | None = None


class Lookups:
    """Asks Kafka first, then the store: what Kafka deletes in between is stored by then.

    Args:
        kafka: None where there is no broker.
        store: who looks at archives.
        pool: where the store is asked; threads of its own unless given.
        threads: how many archives are looked at, at once.
    """

    def __init__(
        self,
        kafka: KafkaSide | None,
        store: Looker,
        *,
        pool: Executor | None = None,
        threads: int = 6,
    ) -> None:
        self._kafka, self._store = kafka, store
        self._pool = pool or ThreadPoolExecutor(threads, thread_name_prefix="sidetier-look")
        self._found: queue.SimpleQueue[Answer | BaseException] = queue.SimpleQueue()

    def ask(self, questions: Sequence[Question]) -> None:
        """Each gets one answer; waits for Kafka's."""
        answers = {one.tp: Answer(one) for one in questions}
        self._each(answers, [one.tp for one in questions if one.committed], _committed)
        self._each(answers, [one.tp for one in questions if one.kafka], _spans)
        for answer in answers.values():
            if answer.question.store and answer.kafka_error is None:
                self._pool.submit(self._look, answer)
            else:
                self._found.put(answer)

    def answers(self) -> Iterable[Answer]:
        """What has come; does not wait. A mistake of ours in asking is raised here."""
        while True:
            try:
                found = self._found.get_nowait()
            except queue.Empty:
                return
            if isinstance(found, BaseException):
                raise found
            yield found

    def close(self) -> None:
        """No more questions."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _each(
        self,
        answers: dict[TopicPartition, Answer],
        tps: list[TopicPartition],
        ask: Callable[[KafkaSide, list[TopicPartition]], dict[TopicPartition, AtKafka]],
    ) -> None:
        if not tps or self._kafka is None:
            return
        for tp, found in ask(self._kafka, tps).items():
            answer = answers[tp]
            answers[tp] = replace(
                answer,
                committed=found.committed if found.committed is not None else answer.committed,
                kafka=found.span or answer.kafka,
                kafka_error=found.error or answer.kafka_error,
            )

    def _look(self, answer: Answer) -> None:
        try:
            self._found.put(self._looked(answer))
        except BaseException as error:  # noqa: BLE001 -- raised where the answer is awaited
            self._found.put(error)

    def _looked(self, answer: Answer) -> Answer:
        try:
            bounds = self._store.bounds(answer.question.tp)
        except SidetierError as error:
            return replace(answer, archive=Archive(away=True), store_error=error)
        return replace(answer, archive=Archive(_stored(bounds)))


def _committed(kafka: KafkaSide, tps: list[TopicPartition]) -> dict[TopicPartition, AtKafka]:
    return kafka.committed(tps)


def _spans(kafka: KafkaSide, tps: list[TopicPartition]) -> dict[TopicPartition, AtKafka]:
    return kafka.spans(tps)


def _stored(bounds: ArchiveBounds | None) -> OffsetRange | None:
    if bounds is None or bounds.start_offset >= bounds.next_offset:
        return None
    return OffsetRange(bounds.start_offset, bounds.next_offset)
