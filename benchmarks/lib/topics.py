"""Topics of a shape, written to a real broker and moved to a store by the sidecar."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from devtools.sandbox.kafka import KraftCluster
from lib.backlog import Failures, make_producer, values, words
from lib.sidecar import Setup, Sidecar
from lib.stores import LAYOUT, FileStore, RealStore
from sidetier.segments.arrow import scan_headers
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition

_KEY_BYTES = 10
_MORE = 1.05
"""Factor of the produced bytes over the bytes to store: the last segment stays active and is not
stored.
"""
_STORED_TIMEOUT = 180.0
_LOOK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    """A topic, by default of one partition.

    Bytes of a record (key and value), of a batch, of a segment, and of all records, before the
    producer compresses them. With a codec the values are words, and random bytes otherwise.
    """

    record: int
    batch: int
    segment: int
    size: int
    codec: str = "none"
    partitions: int = 1

    @property
    def topic(self) -> str:
        """Name of the topic."""
        codec = "" if self.codec == "none" else f"-{self.codec}"
        count = "" if self.partitions == 1 else f"-p{self.partitions}"
        return f"r{self.record}-b{self.batch >> 10}k{codec}{count}"

    def topic_partitions(self) -> list[TopicPartition]:
        """Return all partitions."""
        return [TopicPartition(self.topic, number) for number in range(self.partitions)]


def write(cluster: KraftCluster, shape: Shape) -> None:
    """Create the topic and fill it at full speed; timestamps rise with the offsets."""
    config = {"segment.bytes": str(shape.segment), "max.message.bytes": str(4 << 20)}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    topic = NewTopic(shape.topic, shape.partitions, 1, config=config)
    admin.create_topics([topic])[shape.topic].result(30)
    producer = make_producer(
        cluster,
        linger_ms=200,
        compression_type=shape.codec,
        batch_size=shape.batch,
        batch_num_messages=1_000_000,
        message_max_bytes=4 << 20,
        queue_buffering_max_messages=2_000_000,
    )
    make_values = values if shape.codec == "none" else words
    kinds, failures = make_values(shape.record - _KEY_BYTES), Failures()
    for number in range(int(shape.size * _MORE) // shape.record):
        key, value = b"%010d" % number, kinds[number % len(kinds)]
        while True:
            try:
                producer.produce(
                    shape.topic, value, key, number % shape.partitions, on_delivery=failures.note
                )
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush(120)
    failures.check()


def closed_end(cluster: KraftCluster, tp: TopicPartition) -> int:
    """Return one past the last offset of the closed segments."""
    directory = cluster.log_dirs(1)[0] / str(tp)
    return max(int(path.stem) for path in directory.glob("*.log"))


def store(
    cluster: KraftCluster,
    real: RealStore | FileStore,
    shapes: Sequence[Shape],
    directory: Path,
) -> dict[str, int]:
    """Let the sidecar store every closed segment.

    Returns:
        For each topic the sum of its partitions' archive end offsets: the number of stored records.
    """
    topics = [shape.topic for shape in shapes]
    more = {
        "broker": {"bootstrap_servers": cluster.bootstrap_servers},
        "leadership": {"source": "auto"},
        "topics": {"include": topics},
        "uploader": {"niceness": 0},
    }
    setup = Setup(directory, cluster.log_dirs(1), real.storage, more, real.environment)
    ends = {tp: closed_end(cluster, tp) for shape in shapes for tp in shape.topic_partitions()}
    with Sidecar(setup) as sidecar:
        sidecar.wait_until(
            lambda: all(real.stored_up_to(tp) >= Offset(end) for tp, end in ends.items()),
            _STORED_TIMEOUT,
            "the sidecar to store all that is closed",
        )
    return {topic: sum(end for tp, end in ends.items() if tp.topic == topic) for topic in topics}


def mean_batch(real: RealStore, topic: str) -> tuple[float, float]:
    """Return mean bytes and records of a stored batch, as the producer built them."""
    path = real.bucket / LAYOUT.object_key(TopicPartition(topic, 0), BaseOffset(0), FileKind.LOG)
    with path.open("rb") as log:
        rows = scan_headers(log.read(_LOOK_BYTES)).rows
    return float(rows["length"].mean()), float(rows["record_count"].mean())
