"""Records that the brokers serve, read during the run: everything that was ever below a high
watermark.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.end_to_end.chaos.ledger import LogStart, Partition, Sums, checksum

_BATCH = 500
_WAIT_SECONDS = 0.3
_ASK_SECONDS = 30.0
_LOOK_SECONDS = 0.5
_LOOK_PATIENCE = 5.0


def reader_of(bootstrap: str, isolation: str = "read_uncommitted") -> Consumer:
    """A consumer that does not log errors about stopped brokers. By default, it returns aborted
    records, too.
    """
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "chaos",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "enable.partition.eof": True,  # reports an end after a transaction marker
            "log_level": 0,
        }
    )


class Served:
    """Reads every partition from its start on while its context is entered."""

    def __init__(self, bootstrap: str, partitions: Sequence[Partition]) -> None:
        self.sums: dict[Partition, Sums] = {tp: Sums() for tp in partitions}
        self.problems: list[str] = []
        self.error: BaseException | None = None
        self._bootstrap = bootstrap
        self._positions = dict.fromkeys(partitions, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="served", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop; may be called twice."""
        self._stop.set()
        self._thread.join()

    def position(self, tp: Partition) -> int:
        """The last read offset plus one."""
        return self._positions[tp]

    def _run(self) -> None:
        consumer = reader_of(self._bootstrap)
        try:
            consumer.assign([TopicPartition(*tp, 0) for tp in self._positions])
            while not self._stop.is_set():
                self._take(consumer)
        except BaseException as error:  # noqa: BLE001 - looked at by the verdict
            self.error = error
        finally:
            consumer.close()

    def _take(self, consumer: Consumer) -> None:
        for message in consumer.consume(_BATCH, _WAIT_SECONDS):
            found = _read(message)
            if found is None:
                continue
            tp, position, number = found
            if number is not None and not self.sums[tp].put(position - 1, number):
                self.problems.append(f"{tp[0]}-{tp[1]}: other bytes were served at {position - 1}")
            self._positions[tp] = max(self._positions[tp], position)


class LogStarts:
    """Observes the log start offsets of partitions while its context is entered; `seen` has each
    change.
    """

    def __init__(self, bootstrap: str, partitions: Sequence[Partition]) -> None:
        self.seen: list[LogStart] = []
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-starts", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        consumer, last = reader_of(self._bootstrap), dict.fromkeys(self._partitions, 0)
        try:
            while not self._stop.wait(_LOOK_SECONDS):
                for tp in self._partitions:
                    with suppress(KafkaException):
                        start, _ = _ends(consumer, tp, _LOOK_PATIENCE)
                        if start > last[tp]:
                            self.seen.append(LogStart(tp, start, monotonic()))
                            last[tp] = start
        finally:
            consumer.close()


def read_tails(
    bootstrap: str,
    starts: dict[Partition, int],
    timeout: float,
    isolation: str = "read_uncommitted",
) -> dict[Partition, Sums]:
    """Records that the brokers hold now, from each start up to the high watermark; for
    `read_committed`, up to the last stable offset.

    Raises:
        AssertionError: an offset could not be read in time.
    """
    consumer = reader_of(bootstrap, isolation)
    try:
        return {tp: _tail(consumer, tp, start, timeout) for tp, start in starts.items()}
    finally:
        consumer.close()


def high_watermarks(bootstrap: str, partitions: Sequence[Partition]) -> dict[Partition, int]:
    """The high watermark of each partition; KafkaException if one has no leader."""
    consumer = reader_of(bootstrap)
    try:
        return {tp: _ends(consumer, tp)[1] for tp in partitions}
    finally:
        consumer.close()


def _tail(consumer: Consumer, tp: Partition, start: int, timeout: float) -> Sums:
    found = Sums()
    low, high = _ends(consumer, tp)
    position = max(low, start)
    consumer.assign([TopicPartition(*tp, position)])
    deadline = monotonic() + timeout
    while position < high:
        assert monotonic() < deadline, f"{tp[0]}-{tp[1]}: nothing is served at {position} of {high}"
        for message in consumer.consume(_BATCH, _WAIT_SECONDS):
            read = _read(message)
            if read is not None and read[0] == tp:
                position = max(position, read[1])
                if read[2] is not None:
                    found.put(read[1] - 1, read[2])
    return found


def _read(message: Message) -> tuple[Partition, int, int | None] | None:
    """The partition, the next position, and the checksum if it is a record; None if nothing
    changed. The end of a partition counts as a change: its last offset may be a transaction marker.
    """
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    error = message.error()
    if topic is None or partition is None or offset is None:
        return None
    if error is None:
        return (topic, partition), offset + 1, checksum(message.key(), message.value())
    if error.code() == KafkaError._PARTITION_EOF:
        return (topic, partition), offset, None
    return None


def _ends(consumer: Consumer, tp: Partition, timeout: float = _ASK_SECONDS) -> tuple[int, int]:
    ends = consumer.get_watermark_offsets(TopicPartition(*tp), timeout=timeout)
    if ends is None:
        raise KafkaException(f"{tp[0]}-{tp[1]}: no offsets")
    return ends
