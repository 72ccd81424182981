"""Batches of records in Arrow, from either source in the same schema."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from sidetier.segments.arrow.schema import RECORD_SCHEMA

UNKNOWN = -1


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
        yield ArrowBatch(str(topic), int(partition or 0), _batch(list(run)))


def _batch(messages: Sequence[Message]) -> pa.RecordBatch:
    rows = len(messages)
    stamps = [message.timestamp() for message in messages]
    columns = [
        [message.offset() for message in messages],
        [stamp[1] if stamp[0] else UNKNOWN for stamp in stamps],
        [max(stamp[0] - TIMESTAMP_CREATE_TIME, 0) for stamp in stamps],
        [message.key() for message in messages],
        [message.value() for message in messages],
        [_headers(message) for message in messages],
        [_epoch(message) for message in messages],
        [UNKNOWN] * rows,
        [UNKNOWN] * rows,
        [False] * rows,
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(values, type=field.type)
            for values, field in zip(columns, RECORD_SCHEMA, strict=True)
        ],
        schema=RECORD_SCHEMA,
    )


def _headers(message: Message) -> list[dict[str, object]]:
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [{"key": key, "value": value} for key, value in pairs]


def _epoch(message: Message) -> int:
    epoch = message.leader_epoch()
    return UNKNOWN if epoch is None else epoch
