"""Records of the store that were fetched, and the slices of them that are returned."""

from dataclasses import dataclass, field

import pyarrow as pa
from confluent_kafka import Message

from sidetier.consumer.client.messages import messages_of
from sidetier.consumer.client.partition import Partition


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

    def one(self) -> Message:
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
