"""Records of the store that are at hand, and the parts of them that are handed out."""

from dataclasses import dataclass, field

import pyarrow as pa
from confluent_kafka import Message

from sidetier.consumer.client.messages import messages_of
from sidetier.consumer.client.partition import Partition


@dataclass(slots=True, eq=False)
class StoreRecords:
    """A batch that the reader has given, handed out row by row or in slices.

    Attributes:
        partition: whose records these are; its position moves with them.
        records: never empty.
        next_offset: where reading goes on behind them.
        row: the first row that is still at hand.
    """

    partition: Partition
    records: pa.RecordBatch
    next_offset: int
    row: int = 0
    left: int = field(init=False)
    """Rows that are still at hand."""
    _messages: list[Message] | None = None

    def __post_init__(self) -> None:
        self.left = int(self.records.num_rows) - self.row

    @property
    def messages(self) -> list[Message]:
        """One for each row, made when first asked for."""
        if self._messages is None:
            self._messages = messages_of(self.partition.tp, self.records)
        return self._messages

    def one(self) -> Message:
        """The next row."""
        message = (self._messages or self.messages)[self.row]
        self.row += 1
        self.left -= 1
        offset = self.next_offset - 1 if not self.left else int(message.offset() or 0)
        self.partition.moved(offset + 1, message.leader_epoch())
        return message

    def slice(self, most: int) -> "StoreSlice":
        """The next rows, at most so many."""
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
    """Rows of a piece that are handed out together."""

    piece: StoreRecords
    start: int
    stop: int

    def messages(self) -> list[Message]:
        """As `consume` hands them out."""
        return self.piece.messages[self.start : self.stop]

    def batch(self) -> pa.RecordBatch:
        """As `consume_arrow` does."""
        return self.piece.records.slice(self.start, self.stop - self.start)
