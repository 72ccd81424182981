"""A topic of a real broker, from whose log a test copies batches into an archive."""

import base64
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka import Message as KafkaMessage

from devtools.sandbox.kafka import KraftCluster
from sidetier.archive.tail.pack import PackBuilder, TailRow, epochs_from
from sidetier.segments.epoch_history import parse_leader_epoch_checkpoint
from sidetier.segments.headers import parse_batch_header
from sidetier.segments.offsets import Offset
from sidetier.segments.offsets import TopicPartition as Partition
from sidetier.segments.transactions import TransactionTracker
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import StorageEndpoint
from tests.harness.made_archive import MadeArchive
from tests.harness.table_exports import LAYOUT, GrowingArchive
from tests.harness.tailed_log import store_pack
from tests.harness.topics import create_topic, watermark_offsets
from tests.harness.transactions import feed_headers
from tests.harness.waiting import wait_until

SECONDS = 20.0
_HEADER = struct.Struct(">qi")
Row = dict[str, Any]


@dataclass
class TailedTopic(GrowingArchive):
    """A topic with two partitions, of which nothing is archived at first."""

    directories: tuple[str, ...] = ()
    cluster: KraftCluster | None = None
    topic: str = "orders"
    archived: dict[int, int] = field(default_factory=dict)
    sent: int = 0
    packs: int = 0

    @property
    def topics(self) -> list[str]:
        return [self.topic]

    @property
    def servers(self) -> str:
        assert self.cluster is not None
        return self.cluster.bootstrap_servers

    @property
    def tail(self) -> tuple[str, ...]:
        """Arguments for the command line."""
        return ("--tail", "kafka", "--bootstrap", self.servers)

    def begin(self) -> "TailedTopic":
        self.create_topic()
        self.create()
        return self

    def create_topic(self) -> None:
        create_topic(self.servers, self.topic, partitions=2, configs={"retention.ms": -1})

    def write(self, count: int, partition: int = 0, *, writer: Producer | None = None) -> None:
        """Produce records in single batches; every third has no value, every fifth has headers."""
        producer = writer or Producer({"bootstrap.servers": self.servers, "linger.ms": 0})
        for _ in range(count):
            self.sent += 1
            producer.produce(
                self.topic,
                None if self.sent % 3 == 0 else f'{{"i": {self.sent}}}'.encode(),
                f"key-{self.sent}".encode(),
                partition,
                timestamp=1_700_000_000_000 + self.sent * 1000,
                headers=[("a", b"1"), ("none", None)] if self.sent % 5 == 0 else [],
            )
            assert producer.flush(SECONDS) == 0

    def transaction(self, count: int, partition: int = 0) -> Producer:
        """Produce records in a transaction, which stays open."""
        self.sent += 1
        name = f"{self.topic}-{self.sent}"
        writer = Producer(
            {
                "bootstrap.servers": self.servers,
                "transactional.id": name,
                "transaction.timeout.ms": 600_000,
                "linger.ms": 0,
            }
        )
        writer.init_transactions(SECONDS)
        writer.begin_transaction()
        self.write(count, partition, writer=writer)
        return writer

    def mixed(self, partition: int = 0) -> None:
        """Produce records, and transactions that are committed or aborted."""
        self.write(4, partition)
        self._end(partition, self.transaction(3, partition).abort_transaction)
        self._end(partition, self.transaction(3, partition).commit_transaction)
        self.write(2, partition)
        self._end(partition, self.transaction(2, partition).abort_transaction)

    def _end(self, partition: int, end: Callable[[float], None]) -> None:
        """End a transaction, and wait for its marker: the broker answers before it writes it."""
        before = watermark_offsets(self.servers, self.topic, partition)[1]
        end(SECONDS)
        wait_until(
            lambda: watermark_offsets(self.servers, self.topic, partition)[1] > before,
            SECONDS,
            "the marker of a transaction",
        )

    def archive_to(self, until: int, partition: int = 0) -> None:
        """Store the batches that begin below an offset, after those already stored."""
        data, base, end = b"", self.archived.get(partition, 0), None
        for first, batch in self._batches(partition):
            if base <= first < until:
                data += batch
                end = first + 1 + struct.unpack_from(">i", batch, 23)[0]
        assert end is not None, "nothing more to store"
        store = open_plain(StorageEndpoint(f"file://{self.root}/store"))
        archive = MadeArchive(store, LAYOUT, Partition(self.topic, partition))
        archive.segment(base, data)
        archive.mark(base, end, topic_id=self.topic_id())
        store.close()
        self.archived[partition] = end

    def pack_tails(self) -> None:
        """Store a pack with the batches of both partitions that are not archived, as the broker's
        sidecar does.
        """
        builder = PackBuilder()
        for partition in (0, 1):
            start = self.archived.get(partition, 0)
            batches = dict(self._batches(partition))
            data = [batch for first, batch in batches.items() if first >= start]
            if not data:
                continue
            tracker = TransactionTracker()
            feed_headers(tracker, b"".join(b for first, b in batches.items() if first < start))
            aborted = len(tracker.aborted)
            feed_headers(tracker, b"".join(data))
            last = parse_batch_header(data[-1])
            file = self._directory(partition) / "leader-epoch-checkpoint"
            epochs = parse_leader_epoch_checkpoint(file.read_text(), str(file))
            row = TailRow(
                Partition(self.topic, partition),
                self.topic_id(),
                epochs_from(epochs, start),
                Offset(start),
                last.next_offset,
                Offset(0),
                tracker.last_stable_offset,
                len(data),
                last.max_timestamp,
                tuple(tracker.open.values()),
                tuple(tracker.aborted[aborted:]),
            )
            builder.add(row, *data)
        store = open_plain(StorageEndpoint(f"file://{self.root}/store"))
        store_pack(store, LAYOUT, builder, 1, self.packs)
        store.close()
        self.packs += 1

    def topic_id(self) -> str:
        text = (self._directory(0) / "partition.metadata").read_text()
        return text.partition("topic_id:")[2].split()[0]

    def _directory(self, partition: int) -> Path:
        assert self.cluster is not None
        name = f"{self.topic}-{partition}"
        [directory] = [
            log_dir / name for log_dir in self.cluster.log_dirs(1) if (log_dir / name).is_dir()
        ]
        return directory

    def _batches(self, partition: int) -> Iterator[tuple[int, bytes]]:
        for path in sorted(self._directory(partition).glob("*.log")):
            data = path.read_bytes()
            at = 0
            while at + _HEADER.size <= len(data) and (length := _HEADER.unpack_from(data, at)[1]):
                end = at + _HEADER.size + length
                yield _HEADER.unpack_from(data, at)[0], data[at:end]
                at = end

    def ends(self) -> dict[int, int]:
        """Return the last stable offsets."""
        return {partition: self.consumed(partition)[1] for partition in (0, 1)}

    def consumed(self, partition: int) -> tuple[list[KafkaMessage], int]:
        """Return what a read-committed consumer reads, and the offset where it ends."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "truth",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([TopicPartition(self.topic, partition, 0)])
        messages: list[KafkaMessage] = []
        try:
            while True:
                message = consumer.poll(SECONDS)
                assert message is not None, "the broker is silent"
                error = message.error()
                if error is None:
                    messages.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    return messages, message.offset() or 0
        finally:
            consumer.close()

    def rows(self) -> list[Row]:
        """Return the consumed records of both partitions, in the row form of table tests."""
        return [_row(message) for partition in (0, 1) for message in self.consumed(partition)[0]]


def _row(message: KafkaMessage) -> Row:
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    return {
        "key": _text(message.key()),
        "value": _text(message.value()),
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
        "timestampType": message.timestamp()[0] - 1,
        "headers": [[key, _text(value)] for key, value in pairs] or None,
    }


def _text(data: bytes | str | None) -> str | None:
    plain = data.encode() if isinstance(data, str) else data
    return None if plain is None else base64.b64encode(plain).decode()
