"""Produces at a steady rate in a separate process, and reports the time to each acknowledgement.

`steady.py BOOTSTRAP TOPIC PARTITIONS RECORDS_PER_SECOND VALUE_BYTES` runs until SIGTERM. Each line
of its output is one acknowledgement: the monotonic second in which the record was *due*, and the
seconds from then. Latency counts from the due time, so that late records of a producer that was
held up do not look fast.
"""

import random
import signal
import sys
from collections.abc import Callable
from threading import Event
from time import monotonic

from confluent_kafka import KafkaError, Message, Producer

_TICK_SECONDS = 0.001
_VALUES = 64


def main() -> None:
    """Produce until SIGTERM."""
    bootstrap, topic, (partitions, rate, size) = sys.argv[1], sys.argv[2], map(int, sys.argv[3:6])
    stopping = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5})
    source = random.Random(size)
    kinds = [source.randbytes(size) for _ in range(_VALUES)]
    lines: list[str] = []

    def note(error: KafkaError | None, due: float) -> None:
        if error is not None:
            raise RuntimeError(f"a record was not delivered: {error}")
        lines.append(f"{due:.6f} {monotonic() - due:.6f}")

    began, sent = monotonic(), 0
    while not stopping.is_set():
        due = int((monotonic() - began) * rate)
        for number in range(sent, due):
            producer.produce(
                topic,
                kinds[number % _VALUES],
                partition=number % partitions,
                on_delivery=_with_due(note, began + number / rate),
            )
        sent = max(sent, due)
        producer.poll(_TICK_SECONDS)
    producer.flush(30)
    print("\n".join(lines))


def _with_due(
    note: Callable[[KafkaError | None, float], None], due: float
) -> Callable[[KafkaError | None, Message], None]:
    return lambda error, _: note(error, due)


if __name__ == "__main__":
    main()
