"""Arrow batches of records, in the same schema from either source."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
from confluent_kafka import Message

from sidetier.archive.reading.kafka_messages import records_of


class ArrowBatch(NamedTuple):
    """Records of one partition in offset order, with the columns of `RECORD_SCHEMA`.

    Kafka's client does not report `producer_id` and `producer_epoch`: in records from Kafka they
    are -1.
    """

    topic: str
    partition: int
    records: pa.RecordBatch


def batches_of(messages: Iterable[Message]) -> Iterator[ArrowBatch]:
    """Yield one batch for each run of messages of the same partition.

    Args:
        messages: messages of Kafka without errors.
    """
    for (topic, partition), run in groupby(
        messages, lambda message: (message.topic(), message.partition())
    ):
        yield ArrowBatch(str(topic), int(partition or 0), records_of(list(run)))
