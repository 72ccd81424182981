"""Returned records: their metrics, and the offsets that librdkafka stores for the commit."""

from collections.abc import Iterable, Sequence

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaTopicPartition

from sidetier.consumer.kafka_side import KafkaSide
from sidetier.consumer.metrics import ConsumerMetrics
from sidetier.consumer.partition import Partition, Source
from sidetier.consumer.store_records import StoreSlice


class DeliveryRecorder:
    """Counts returned records and stores positions. `flush` passes both on.

    A position is stored only after the records before it were returned. So a consumer that is
    killed reads uncommitted records again, and loses none.

    Args:
        kafka: None without a broker.
        metrics: receives the sums at each `flush`.
        stores: whether positions are stored (`enable.auto.offset.store`).
    """

    def __init__(self, kafka: KafkaSide | None, metrics: ConsumerMetrics, *, stores: bool) -> None:
        self._kafka, self._metrics, self._stores = kafka, metrics, stores
        self._records = {Source.KAFKA: 0, Source.STORE: 0}
        self._bytes = {Source.KAFKA: 0, Source.STORE: 0}

    def one(self, source: Source, message: Message) -> None:
        """Count one message."""
        self._records[source] += 1
        self._bytes[source] += len(message)

    def many(self, source: Source, messages: Sequence[Message]) -> None:
        """Count messages, none of them an error."""
        self._records[source] += len(messages)
        self._bytes[source] += sum(map(len, messages))

    def part(self, part: StoreSlice) -> None:
        """Count rows of the store."""
        self._records[Source.STORE] += part.stop - part.start
        self._bytes[Source.STORE] += _value_bytes(part)

    def flush(self, partitions: Iterable[Partition]) -> None:
        """Update the metrics, and store the positions that have moved in librdkafka."""
        for source, records in self._records.items():
            if records:
                self._metrics.handed_out(source, records, self._bytes[source])
                self._records[source] = self._bytes[source] = 0
        if self._kafka is None or not self._stores:
            return
        moved = [partition for partition in partitions if partition.dirty]
        if moved:
            self._store(self._kafka, moved)

    def _store(self, kafka: KafkaSide, moved: Sequence[Partition]) -> None:
        try:
            kafka.store([_offset(partition) for partition in moved])
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:
                raise  # _STATE: the assignment was lost, and another member continues
        for partition in moved:
            partition.dirty = False


def _offset(partition: Partition) -> KafkaTopicPartition:
    tp, epoch = partition.tp, partition.leader_epoch
    position = -1 if partition.position is None else partition.position
    if epoch is None or epoch < 0:
        return KafkaTopicPartition(tp.topic, tp.partition, position)
    return KafkaTopicPartition(tp.topic, tp.partition, position, leader_epoch=epoch)


def _value_bytes(part: StoreSlice) -> int:
    """Return the size of the values, from the start of the first to the end of the last.

    A null value has no bytes in an Arrow column.
    """
    values = part.piece.records.column("value")
    bounds = memoryview(values.buffers()[1]).cast("b").cast("i")
    return int(bounds[values.offset + part.stop] - bounds[values.offset + part.start])
