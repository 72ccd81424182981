"""Produces at a steady rate in a process of its own, and tells how long acknowledgements took.

`steady.py BOOTSTRAP TOPIC PARTITIONS RECORDS_PER_SECOND VALUE_BYTES`: runs until SIGTERM. Each line
of its output is one acknowledgement: the monotonic second in which the record was due, and the
seconds from then on. Latency counts from when a record was *due*: a producer that is held up, and
sends late, does not make the late records look quick.
"""

import signal
import sys
from threading import Event
from time import monotonic

from confluent_kafka import KafkaError, Message, Producer

_TICK_SECONDS = 0.001
_VALUES = 64


def main() -> None:
    """Produce until told to stop."""
    from backlog import values  # noqa: PLC0415 - a script: its own folder is on the path

    bootstrap, topic, (partitions, rate, size) = sys.argv[1], sys.argv[2], map(int, sys.argv[3:6])
    stopping = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5})
    kinds = values(size)
    lines: list[str] = []
    began, number = monotonic(), 0
    while not stopping.is_set():
        due = int((monotonic() - began) * rate)
        for number in range(number, due):  # noqa: B020, PLR1704 - goes on where it stood
            moment = began + number / rate
            producer.produce(
                topic,
                kinds[number % _VALUES],
                partition=number % partitions,
                on_delivery=lambda error, message, moment=moment: lines.append(
                    _line(error, message, moment)
                ),
            )
        number = max(number, due)
        producer.poll(_TICK_SECONDS)
    producer.flush(30)
    print("\n".join(lines))


def _line(error: KafkaError | None, _: Message, due: float) -> str:
    if error is not None:
        raise RuntimeError(f"a record was not delivered: {error}")
    return f"{due:.6f} {monotonic() - due:.6f}"


if __name__ == "__main__":
    main()
