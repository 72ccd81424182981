"""Producers that record their acknowledgements: an idempotent one, two transactional ones, and one
with acks=1.

Each has its own thread while its context is entered; `stop` waits for all acknowledgements.
"""

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.end_to_end.chaos.ledger import (
    Fate,
    Ledger,
    OpenTransaction,
    Partition,
    Sums,
    checksum,
)

FLUSH_SECONDS = 120.0
PATIENCE_SECONDS = 310.0
BATCH_RECORDS = 20
"""Most records of a batch."""
_TOGETHER = 3
_BURST_RECORDS = 150  # of 500 bytes for each partition: three segments
_OPEN_SECONDS = (1.0, 4.0, 15.0, 25.0, 35.0)
_SURELY_OPEN_SECONDS = 50.0  # of the 60 s of `transaction.timeout.ms`
_PATIENT = {
    "acks": "all",
    "enable.idempotence": True,
    "delivery.timeout.ms": 300_000,
    "linger.ms": 20,
    "batch.num.messages": BATCH_RECORDS,
    "log_level": 0,
}


class Load:
    """Common part of the producers; `rate` is in records per second over all partitions."""

    def __init__(self, name: str, partitions: list[Partition], rate: float, seed: int) -> None:
        self.name = name
        self.partitions = partitions
        self.dice = random.Random(f"{seed}/{name}")
        self.error: BaseException | None = None
        self.stopping = threading.Event()
        self._pause = len(partitions) / rate
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)
        self._number = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()

    def stop(self) -> None:
        """Stop, and wait until everything is acknowledged."""
        self.stopping.set()
        self._thread.join(FLUSH_SECONDS * 3)
        assert not self._thread.is_alive(), f"the {self.name} producer does not come to its end"
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        """Produce until `stopping`, then wait until everything is acknowledged."""
        raise NotImplementedError

    def paced(self) -> bool:
        """Wait as the rate requires; return False at the end of the run."""
        return not self.stopping.wait(self._pause)

    def record(self) -> tuple[bytes, bytes]:
        """The next key and value."""
        self._number += 1
        key = f"{self.name}-{self._number:09d}".encode()
        return key, self.dice.randbytes(self.dice.randrange(200, 800))

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - raised where it is stopped
            self.error = error


def produce_if_possible(
    producer: Producer,
    tp: Partition,
    key: bytes,
    value: bytes,
    on_delivery: Callable[[KafkaError | None, Message], None],
) -> None:
    """Produce a record; skip it if the producer accepts nothing for the partition now."""
    try:
        producer.produce(tp[0], value, key, tp[1], on_delivery=on_delivery)
    except BufferError:
        return  # no broker takes records
    except KafkaException as error:
        # A broker that has just started may not know the topic yet, and librdkafka believes it.
        if error.args[0].code() != KafkaError._UNKNOWN_TOPIC:
            raise


class IdempotentLoad(Load):
    """A producer whose acknowledgements go into the ledger."""

    def __init__(
        self,
        ledger: Ledger,
        bootstrap: str,
        partitions: list[Partition],
        rate: float,
        seed: int,
    ) -> None:
        super().__init__("idempotent", partitions, rate, seed)
        self._ledger = ledger
        self._producer = Producer({**_PATIENT, "bootstrap.servers": bootstrap})

    def run(self) -> None:
        while self.paced():
            for tp in self.partitions:
                self._send(tp)
            self._producer.poll(0)
        left = self._producer.flush(FLUSH_SECONDS)
        assert left == 0, f"{left} records were neither acknowledged nor refused"

    def _send(self, tp: Partition) -> None:
        key, value = self.record()
        number = checksum(key, value)

        def note(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None or offset is None or offset < 0:
                self._ledger.undelivered += 1
            else:
                self._ledger.acknowledge(tp, offset, number, monotonic())

        produce_if_possible(self._producer, tp, key, value, note)


class PausableLoad(Load):
    """An idempotent producer; holding a partition waits until its records are acknowledged."""

    def __init__(
        self, ledger: Ledger, bootstrap: str, topic: str, count: int, rate: float, seed: int
    ) -> None:
        """Create a load over the partitions 0 to `count` - 1 of a topic."""
        super().__init__(topic, [(topic, number) for number in range(count)], rate, seed)
        self._ledger = ledger
        self._settings = {**_PATIENT, "bootstrap.servers": bootstrap}
        self._locks = {tp: threading.Lock() for tp in self.partitions}
        self._producers: dict[Partition, Producer] = {}

    @contextmanager
    def held(self, *partitions: Partition) -> Iterator[None]:
        """Hold these partitions: only `send` produces to them meanwhile."""
        with ExitStack() as stack:
            for tp in sorted(partitions):
                stack.enter_context(self._locks[tp])
            yield

    def send(self, tp: Partition, count: int) -> None:
        """Send `count` records to a held partition, and wait until they are acknowledged."""
        if tp not in self._producers:
            self._producers[tp] = Producer(self._settings)
        producer = self._producers[tp]
        for _ in range(count):
            key, value = self.record()
            producer.produce(tp[0], value, key, tp[1], on_delivery=self._note(tp, key, value))
        left = producer.flush(PATIENCE_SECONDS)
        assert left == 0, f"{left} records to {tp} were neither acknowledged nor refused"

    def begin_anew(self, tp: Partition) -> None:
        """Replace the producer: the cluster has lost the state of the last one."""
        self._producers.pop(tp, None)

    def run(self) -> None:
        while self.paced():
            for tp in self.partitions:
                with self.held(tp):
                    self.send(tp, _TOGETHER)

    def paced(self) -> bool:
        return not self.stopping.wait(self._pause * _TOGETHER)

    def _note(
        self, tp: Partition, key: bytes, value: bytes
    ) -> Callable[[KafkaError | None, Message], None]:
        number = checksum(key, value)

        def note(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None:
                self._ledger.undelivered += 1
                self._ledger.problems.append(f"{tp[0]}-{tp[1]}: a record was refused: {error}")
            elif offset is None or offset < 0:
                self._ledger.acknowledge_unplaced(tp, number)
            else:
                self._ledger.acknowledge(tp, offset, number, monotonic())

        return note


class CarelessLoad(Load):
    """A producer with acks=1, whose acknowledgements promise nothing. Leaders receive records that
    may be lost.
    """

    def __init__(self, bootstrap: str, partitions: list[Partition], rate: float, seed: int) -> None:
        super().__init__("careless", partitions, rate, seed)
        self._producer = Producer(
            {"acks": 1, "linger.ms": 5, "log_level": 0, "bootstrap.servers": bootstrap}
        )
        self._more = threading.Event()
        self._told: list[tuple[Partition, int, int]] = []

    def burst(self) -> None:
        """Send enough records at once to close segments."""
        self._more.set()

    def thrown_away(self, served: Mapping[Partition, Sums]) -> int:
        """Number of records that a leader acknowledged and that were never served."""
        return sum(served[tp].get(offset) != number for tp, offset, number in self._told)

    def run(self) -> None:
        while self.paced():
            for tp in self.partitions * (_BURST_RECORDS if self._more.is_set() else 1):
                self._send(tp)
            self._more.clear()
            self._producer.poll(0)
        self._producer.flush(FLUSH_SECONDS)

    def _send(self, tp: Partition) -> None:
        key, value = self.record()
        number = checksum(key, value)

        def note(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is None and offset is not None and offset >= 0:
                self._told.append((tp, offset, number))

        produce_if_possible(self._producer, tp, key, value, note)


class TransactionalLoad(Load):
    """Transactions of several records over its partitions; three of ten are aborted."""

    def __init__(
        self,
        ledger: Ledger,
        bootstrap: str,
        partitions: list[Partition],
        rate: float,
        seed: int,
        name: str = "transactional",
    ) -> None:
        super().__init__(name, partitions, rate, seed)
        self._ledger = ledger
        self._settings = {
            **_PATIENT,
            "bootstrap.servers": bootstrap,
            "transactional.id": f"chaos-{name}-{seed}",
            "transaction.timeout.ms": 60_000,
            "delivery.timeout.ms": 60_000,
        }
        self._open: list[tuple[Partition, int]] = []
        self.committed = 0
        self.aborted = 0
        self.unknown = 0

    def run(self) -> None:
        producer = None
        while not self.stopping.is_set():
            try:
                producer = self._transaction(producer or self._begin_anew())
            except KafkaException:  # its outcome is unknown; its successor fences it
                self.unknown += 1
                producer = None

    def _begin_anew(self) -> Producer:
        producer = Producer(self._settings)
        producer.init_transactions(30)
        return producer

    def _transaction(self, producer: Producer) -> Producer:
        """Make a transaction, and return the producer for the next one."""
        self._open.clear()
        producer.begin_transaction()
        for _ in range(self.dice.randrange(1, 8)):
            for tp in self.partitions:
                self._send(producer, tp)
            self.paced()
        producer.flush(FLUSH_SECONDS)
        if self.dice.random() < 0.3:
            self._abort(producer)
        else:
            self._commit(producer)
        return producer

    def _commit(self, producer: Producer) -> None:
        deadline = monotonic() + FLUSH_SECONDS
        while True:
            try:
                producer.commit_transaction(10)
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if reason.txn_requires_abort():
                    self._abort(producer)
                    return
                if not reason.retriable() or monotonic() > deadline:
                    raise
            else:
                self.committed += 1
                self._decide(Fate.COMMITTED)
                return

    def _abort(self, producer: Producer) -> None:
        deadline = monotonic() + FLUSH_SECONDS
        while True:
            try:
                producer.abort_transaction(10)
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if not reason.retriable() or monotonic() > deadline:
                    raise
            else:
                self.aborted += 1
                self._decide(Fate.ABORTED)
                return

    def _decide(self, fate: Fate) -> None:
        for tp, offset in self._open:
            self._ledger.decide(tp, offset, fate)
        self._open.clear()

    def _send(self, producer: Producer, tp: Partition) -> None:
        key, value = self.record()
        number = checksum(key, value)
        self._before_send(tp, number)

        def note(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None or offset is None or offset < 0:
                self._ledger.undelivered += 1
                return
            self._ledger.acknowledge(tp, offset, number, monotonic())
            self._open.append((tp, offset))

        producer.produce(tp[0], value, key, tp[1], on_delivery=note)
        producer.poll(0)

    def _before_send(self, tp: Partition, number: int) -> None:
        """Called with the checksum of each record."""


class LongTransactions(TransactionalLoad):
    """Transactions that stay open while segments close; then they are committed, aborted, or their
    producer is fenced by its successor.

    `book` has the transactions that were open, for `verdict.split_by_trim`.
    """

    def __init__(
        self, ledger: Ledger, bootstrap: str, partitions: list[Partition], rate: float, seed: int
    ) -> None:
        super().__init__(ledger, bootstrap, partitions, rate, seed, "long-transactions")
        self.book: list[OpenTransaction] = []
        self.fenced = 0

    def _transaction(self, producer: Producer) -> Producer:
        self._open.clear()
        producer.begin_transaction()
        began = monotonic()
        self._send_to_all(producer)
        firsts = {tp: min(at for other, at in self._open if other == tp) for tp, _ in self._open}
        lasts = self.dice.choice(_OPEN_SECONDS)
        while monotonic() < began + lasts and not self.stopping.is_set():
            self.paced()
            self._send_to_all(producer)
        # The coordinator aborts it after its time-out, which begins with the first record.
        until = min(monotonic(), began + _SURELY_OPEN_SECONDS)
        self.book += [OpenTransaction(tp, first, until) for tp, first in firsts.items()]
        end = self.dice.random()
        if end < 0.5:
            self._commit(producer)
        elif end < 0.8:
            self._abort(producer)
        else:
            producer = self._begin_anew()
            self.fenced += 1
            self._decide(Fate.ABORTED)
        return producer

    def _send_to_all(self, producer: Producer) -> None:
        for tp in self.partitions:
            self._send(producer, tp)
        producer.flush(FLUSH_SECONDS)

    def _before_send(self, tp: Partition, number: int) -> None:
        # A record of a fenced producer may be stored although its acknowledgement was lost.
        self._ledger.acknowledge_unplaced(tp, number)
