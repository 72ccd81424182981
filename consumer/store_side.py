"""The store's side: the methods of the archive reader that the consumer needs, and the returned
records.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, repeat
from typing import Any, Final, NamedTuple, Protocol

import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from sidetier.archive.kafka_messages import records_of
from sidetier.archive.partition_archive import ArchiveBounds
from sidetier.archive.reader.results import Taken
from sidetier.consumer.partition import Partition
from sidetier.segments.offsets import Offset, TopicPartition


class StoreSide(Protocol):
    """The methods of `ArchiveReader` that a consumer needs; see there. No method but `take` waits
    for the store's answer, except `bounds`, `kafka_cluster_id` and `offset_for_time`.
    """

    def bounds(self, tp: TopicPartition, *, max_age: float = 0.0) -> ArchiveBounds | None:
        """Return the readable range of the archive; None if there is no archive."""
        ...

    def kafka_cluster_id(self, topic: str) -> str | None:
        """Return Kafka's id of the archived cluster; None if it is not known."""
        ...

    def where(self, tp: TopicPartition) -> str:
        """Return the URL and prefix where the reader looks for the partition."""
        ...

    def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> Offset | None:
        """Return the first offset with this timestamp or a later one; None for no record."""
        ...

    def assign(self, tp: TopicPartition, offset: int) -> None:
        """Read the partition from this offset on."""
        ...

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue at another offset."""
        ...

    def unassign(self, tp: TopicPartition) -> None:
        """Stop reading the partition."""
        ...

    def pause(self, tp: TopicPartition) -> None:
        """Return nothing of the partition until `resume`."""
        ...

    def resume(self, tp: TopicPartition) -> None:
        """Continue a paused partition."""
        ...

    def take(self, max_records: int, timeout: float) -> list[Taken]:
        """Return available records and events; wait up to `timeout` seconds for the first."""
        ...

    def close(self) -> None:
        """End all reading."""
        ...


class NoStore:
    """Reader for `KAFKA_ONLY`, in which the store is not read."""

    def bounds(self, tp: TopicPartition, *, max_age: float = 0.0) -> ArchiveBounds | None:
        """Return None: there is no archive."""
        del tp, max_age
        return None

    def kafka_cluster_id(self, topic: str) -> str | None:
        """Never called."""
        del topic
        return None

    def where(self, tp: TopicPartition) -> str:
        """Return a placeholder; never called."""
        return f"nowhere, for {tp}"

    def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> Offset | None:
        """Return None: there is no archive."""
        del tp, timestamp_ms
        return None

    def assign(self, tp: TopicPartition, offset: int) -> None:
        """Never called."""

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Never called."""

    def unassign(self, tp: TopicPartition) -> None:
        """Ignore the call."""

    def pause(self, tp: TopicPartition) -> None:
        """Never called."""

    def resume(self, tp: TopicPartition) -> None:
        """Never called."""

    def take(self, max_records: int, timeout: float) -> list[Taken]:
        """Return no records."""
        del max_records, timeout
        return []

    def close(self) -> None:
        """Ignore the call."""


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


# Conversion of Arrow records to `confluent_kafka.Message`.
#
# The result is confluent-kafka's own class, so that deserializers and other code that expects it
# work.

_NO_LATENCY: Final = -1.0
"""librdkafka's value in consumed messages, for which `Message.latency()` returns None."""
_make: Final[Callable[..., Message]] = Message

Headers = list[tuple[str, bytes | None]]


def messages_of(tp: TopicPartition, records: pa.RecordBatch) -> list[Message]:
    """Return one message for each row of `RECORD_SCHEMA`, in order.

    Columns are converted as a whole in C. The only Python-level cost of a record is one call of the
    `Message` constructor.

    Args:
        tp: partition of the records.
        records: at least one row.
    """
    return list(
        map(
            _make,
            repeat(tp.topic),
            repeat(tp.partition),
            _rising(records, "offset"),
            _values(records, "key"),
            _values(records, "value"),
            headers_of(records),
            repeat(None),
            _timestamps(records),
            repeat(_NO_LATENCY),
            _mostly_one(_numbers(records, "leader_epoch")),
        )
    )


def headers_of(records: pa.RecordBatch) -> Iterable[Headers | None]:
    """Return the headers of each record as (key, value) pairs; None where it has none."""
    column = records.column("headers")
    # The second buffer of a list column has its int32 offsets.
    offsets = memoryview(column.buffers()[1]).cast("b").cast("i")
    # Equal first and last offsets: no record of the batch has headers.
    if offsets[column.offset] == offsets[column.offset + len(column)]:
        return repeat(None, records.num_rows)
    entries = column.flatten()
    keys = entries.field(0).to_pylist()
    values = entries.field(1).to_pylist()
    bounds = column.offsets.to_numpy()
    # `flatten` returns only the entries of this slice,
    # but the offsets count from the buffer's start.
    first = int(bounds[0])
    starts, ends = (bounds[:-1] - first).tolist(), (bounds[1:] - first).tolist()
    return [
        list(zip(keys[start:end], values[start:end], strict=True)) or None
        for start, end in zip(starts, ends, strict=True)
    ]


def _numbers(records: pa.RecordBatch, name: str) -> npt.NDArray[Any]:
    numbers: npt.NDArray[Any] = records.column(name).to_numpy()
    return numbers


def _rising(records: pa.RecordBatch, name: str) -> Iterable[int]:
    """Return strictly increasing numbers, as a range in the usual case without gaps."""
    numbers = _numbers(records, name)
    first, last = int(numbers[0]), int(numbers[-1])
    return range(first, last + 1) if last - first == len(numbers) - 1 else numbers.tolist()


def _mostly_one(numbers: npt.NDArray[Any]) -> Iterable[int]:
    """Return numbers that are usually all equal; if so, without a list."""
    first = numbers[0]
    return repeat(int(first), len(numbers)) if (numbers == first).all() else numbers.tolist()


def _values(records: pa.RecordBatch, name: str) -> list[bytes | None]:
    values: list[bytes | None] = records.column(name).to_pylist()
    return values


def _timestamps(records: pa.RecordBatch) -> Iterable[tuple[int, int]]:
    """Return (type, ms) pairs. confluent-kafka's types are Kafka's plus 1.

    A record without a timestamp is (TIMESTAMP_CREATE_TIME, -1), as from Kafka's client.
    """
    types = _mostly_one(_numbers(records, "timestamp_type") + TIMESTAMP_CREATE_TIME)
    return zip(types, _numbers(records, "timestamp").tolist(), strict=True)


@dataclass(slots=True, eq=False)
class StoreRecords:
    """A batch of the archive reader, returned row by row or in slices.

    Attributes:
        partition: partition of the records. Its position moves as rows are returned.
        records: never empty.
        next_offset: offset at which reading continues after these records.
        row: the first row that was not returned yet.
    """

    partition: Partition
    records: pa.RecordBatch
    next_offset: int
    row: int = 0
    left: int = field(init=False)
    """Rows that were not returned yet."""
    _messages: list[Message] | None = None

    def __post_init__(self) -> None:
        self.left = int(self.records.num_rows) - self.row

    @property
    def messages(self) -> list[Message]:
        """One message for each row, created at the first access."""
        if self._messages is None:
            self._messages = messages_of(self.partition.tp, self.records)
        return self._messages

    def next_message(self) -> Message:
        """Return the next row."""
        message = (self._messages or self.messages)[self.row]
        self.row += 1
        self.left -= 1
        # After the last row the position skips control batches and compacted offsets behind it.
        offset = self.next_offset - 1 if not self.left else int(message.offset() or 0)
        self.partition.moved(offset + 1, message.leader_epoch())
        return message

    def slice(self, most: int) -> "StoreSlice":
        """Return the next rows, at most `most`."""
        start, stop = self.row, min(self.row + most, int(self.records.num_rows))
        self.row = stop
        self.left -= stop - start
        offset = self.next_offset - 1 if not self.left else self._number("offset", stop - 1)
        self.partition.moved(offset + 1, self._number("leader_epoch", stop - 1))
        return StoreSlice(self, start, stop)

    def _number(self, column: str, row: int) -> int:
        number: int = self.records.column(column)[row].as_py()
        return number


@dataclass(frozen=True, slots=True)
class StoreSlice:
    """Rows of one batch that are returned together, from `start` to `stop` (exclusive)."""

    piece: StoreRecords
    start: int
    stop: int

    def messages(self) -> list[Message]:
        """Return the rows as messages, for `consume`."""
        return self.piece.messages[self.start : self.stop]

    def batch(self) -> pa.RecordBatch:
        """Return the rows as Arrow batch, for `consume_arrow`."""
        return self.piece.records.slice(self.start, self.stop - self.start)
