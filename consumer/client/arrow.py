"""Batches of records in Arrow, from either source in the same schema."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
from confluent_kafka import Message

from sidetier.archive.reading.kafka_messages import records_of


class ArrowBatch(NamedTuple):
    """Records of one partition, in order of offsets; the columns are those of `RECORD_SCHEMA`.

    What Kafka's client does not tell is -1 there: `producer_id` and `producer_epoch`.
    """

    topic: str
    partition: int
    records: pa.RecordBatch


def batches_of(messages: Iterable[Message]) -> Iterator[ArrowBatch]:
    """Messages of Kafka, none of them an error, one batch for each run of a partition."""
    for (topic, partition), run in groupby(messages, lambda one: (one.topic(), one.partition())):
        yield ArrowBatch(str(topic), int(partition or 0), records_of(list(run)))
