"""Reads topics with a Python client until it is stopped: a program, described in `log_readers`.

Arguments: the library, and those that all readers have.
"""

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiokafka
import confluent_kafka
import kafka

_POLL_SECONDS = 0.2
_CLOSE_SECONDS = 20.0
"""Without the endpoint, a client may wait for ever when it closes."""
_TOLERATED = {
    confluent_kafka.KafkaError._ALL_BROKERS_DOWN,
    confluent_kafka.KafkaError._TRANSPORT,
}
"""The endpoint is away; librdkafka connects again."""
_writing = threading.Lock()


@dataclass(slots=True)
class Wanted:
    """What lines on standard input ask for."""

    is_paused: bool = False
    is_stopped: bool = False


@dataclass(frozen=True, slots=True)
class Reader:
    """One consumer."""

    servers: str
    group: str
    topics: Sequence[str]
    name: str
    isolation: str
    mode: str
    refresh_ms: int
    wanted: Wanted

    @property
    def is_assigned(self) -> bool:
        return self.mode == "assign"

    def say(self, *words: str) -> None:
        _write("\t".join(("@", self.name, *words)))

    def say_records(self, records: Sequence[tuple[str, int, bytes]]) -> None:
        lines = [
            "\t".join(("@", self.name, "record", topic, str(offset), _short(value)))
            for topic, offset, value in records
        ]
        if lines:
            _write("\n".join(lines))


def _write(lines: str) -> None:
    with _writing:
        sys.stdout.write(f"{lines}\n")
        sys.stdout.flush()


def _short(value: bytes) -> str:
    return value.partition(b"|")[0].decode()


def read_with_confluent(reader: Reader) -> None:
    """Read with librdkafka."""
    refresh = {"topic.metadata.refresh.interval.ms": reader.refresh_ms} if reader.refresh_ms else {}
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": reader.servers,
            "group.id": reader.group,
            "isolation.level": reader.isolation,
            "auto.offset.reset": "error" if reader.is_assigned else "earliest",
            "enable.auto.commit": not reader.is_assigned,
            "auto.commit.interval.ms": 1000,
            "reconnect.backoff.max.ms": 1000,
            **refresh,
        }
    )
    partitions = [confluent_kafka.TopicPartition(topic, 0, 0) for topic in reader.topics]
    if reader.is_assigned:
        consumer.assign(partitions)
    else:
        consumer.subscribe(list(reader.topics), on_assign=lambda *_: reader.say("assigned"))
    is_paused = False
    while not reader.wanted.is_stopped:
        if is_paused != reader.wanted.is_paused:
            is_paused = not is_paused
            (consumer.pause if is_paused else consumer.resume)(partitions)
            reader.say("paused" if is_paused else "resumed")
        records = []
        for message in consumer.consume(500, _POLL_SECONDS):
            error = message.error()
            if error is None:
                row = message.topic() or "", message.offset() or 0, message.value() or b""
                records.append(row)
            elif error.code() not in _TOLERATED:
                reader.say("failed", error.str())
        reader.say_records(records)
    consumer.close()


class _Assigned(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    """Prints assignments."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def on_partitions_revoked(self, revoked: object) -> None:
        pass

    def on_partitions_assigned(self, assigned: object) -> None:
        del assigned
        self._reader.say("assigned")


class _AssignedToo(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    """Prints assignments."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def on_partitions_revoked(self, revoked: object) -> None:
        pass

    def on_partitions_assigned(self, assigned: object) -> None:
        del assigned
        self._reader.say("assigned")


def _settings(reader: Reader) -> dict[str, Any]:
    refresh = {"metadata_max_age_ms": reader.refresh_ms} if reader.refresh_ms else {}
    return {
        "bootstrap_servers": reader.servers,
        "group_id": None if reader.is_assigned else reader.group,
        "isolation_level": reader.isolation,
        "auto_offset_reset": "none" if reader.is_assigned else "earliest",
        "auto_commit_interval_ms": 1000,
        **refresh,
    }


def read_with_kafka_python(reader: Reader) -> None:
    """Read with kafka-python."""
    consumer = kafka.KafkaConsumer(**_settings(reader))
    partitions = [kafka.TopicPartition(topic, 0) for topic in reader.topics]
    if reader.is_assigned:
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
    else:
        consumer.subscribe(topics=list(reader.topics), listener=_Assigned(reader))
    is_paused = False
    while not reader.wanted.is_stopped:
        if is_paused != reader.wanted.is_paused:
            is_paused = not is_paused
            (consumer.pause if is_paused else consumer.resume)(*partitions)
            reader.say("paused" if is_paused else "resumed")
        try:
            polled = consumer.poll(_POLL_SECONDS * 1000)
        except kafka.errors.KafkaConnectionError:
            continue  # the endpoint is away; applications poll again
        reader.say_records(
            [(row.topic, row.offset, row.value) for rows in polled.values() for row in rows]
        )
    consumer.close()


def read_with_aiokafka(reader: Reader) -> None:
    """Read with aiokafka, in an event loop of its own."""
    asyncio.run(_read_with_aiokafka(reader))


async def _read_with_aiokafka(reader: Reader) -> None:
    consumer = aiokafka.AIOKafkaConsumer(**_settings(reader))
    partitions = [aiokafka.TopicPartition(topic, 0) for topic in reader.topics]
    if reader.is_assigned:
        consumer.assign(partitions)
    else:
        consumer.subscribe(topics=list(reader.topics), listener=_AssignedToo(reader))
    await consumer.start()
    if reader.is_assigned:
        for partition in partitions:
            consumer.seek(partition, 0)
    is_paused = False
    while not reader.wanted.is_stopped:
        if is_paused != reader.wanted.is_paused:
            is_paused = not is_paused
            (consumer.pause if is_paused else consumer.resume)(*partitions)
            reader.say("paused" if is_paused else "resumed")
        polled = await consumer.getmany(timeout_ms=int(_POLL_SECONDS * 1000))
        reader.say_records(
            [(row.topic, row.offset, row.value) for rows in polled.values() for row in rows]
        )
    await consumer.stop()


LIBRARIES: dict[str, Callable[[Reader], None]] = {
    "confluent-kafka": read_with_confluent,
    "kafka-python": read_with_kafka_python,
    "aiokafka": read_with_aiokafka,
}


def _run(read: Callable[[Reader], None], reader: Reader) -> None:
    try:
        read(reader)
    except Exception as error:  # noqa: BLE001 - the test reports it
        reader.say("failed", repr(error).replace("\n", " "))


def main(library: str, servers: str, prefix: str, topics: str, *readers: str) -> None:
    """Read until the end of the standard input."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    wanted = Wanted()
    threads = []
    for words in readers:
        name, isolation, mode, refresh = words.split(":")
        reader = Reader(
            servers, prefix + name, topics.split(","), name, isolation, mode, int(refresh), wanted
        )
        threads.append(
            threading.Thread(target=_run, args=(LIBRARIES[library], reader), daemon=True)
        )
    for thread in threads:
        thread.start()
    for line in sys.stdin:
        wanted.is_paused = line.strip() == "pause"
    wanted.is_stopped = True
    for thread in threads:
        thread.join(_CLOSE_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
