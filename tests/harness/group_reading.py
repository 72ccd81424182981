"""Members of consumer groups that read an archived topic with three partitions of 40 records."""

from pathlib import Path
from time import monotonic

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from sidetier.segments import offsets as archived
from sidetier.storage.local import LocalStorage
from sidetier.storage.port import RemoteStorage
from tests.harness.made_archive import MadeArchive
from tests.harness.serve_process import LAYOUT
from tests.harness.waiting import wait_until

PARTITIONS = 3
END = 40
ALL = {(partition, offset) for partition in range(PARTITIONS) for offset in range(END)}


def store_topic(place: Path | RemoteStorage, topic: str, topic_id: str | None = None) -> None:
    """Store a topic with three partitions of 40 records in a store, or below `place`/store."""
    store = LocalStorage(place / "store") if isinstance(place, Path) else place
    for number in range(PARTITIONS):
        archive = MadeArchive(store, LAYOUT, archived.TopicPartition(topic, number))
        archive.segments(0, 20, END)
        archive.mark(20, END, topic_id=topic_id)


def read(consumer: Consumer, records: int, seconds: float = 40) -> list[tuple[int, int]]:
    """Return partition and offset of this many records."""
    received: list[tuple[int, int]] = []
    deadline = monotonic() + seconds
    while len(received) < records:
        assert monotonic() < deadline, f"{len(received)} of {records} records"
        for message in consumer.consume(records - len(received), 0.1):
            error = message.error()
            if error is None:
                received.append((message.partition() or 0, message.offset() or 0))
            elif not error.retriable() and error.code() not in {
                KafkaError._TRANSPORT,
                KafkaError._ALL_BROKERS_DOWN,
            }:
                raise KafkaException(error)
    return received


def commit(consumer: Consumer) -> None:
    """Commit the positions; again while the coordinator is away."""

    def try_once() -> bool:
        try:
            consumer.commit(asynchronous=False)
        except KafkaException:
            return False
        return True

    wait_until(try_once, 40, "a commit", every=0.2)


def committed(bootstrap: str, group: str) -> dict[int, int]:
    """Return the committed offsets by partition, as an administrator sees them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = [ConsumerGroupTopicPartitions(group)]
    (answer,) = admin.list_consumer_group_offsets(asked).values()
    rows: list[TopicPartition] = answer.result(20).topic_partitions or []
    return {row.partition: row.offset for row in rows if row.offset >= 0}
