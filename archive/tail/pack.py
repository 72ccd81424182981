"""Tail packs: one object with committed batches of many partitions. Pure.

::

    ranges   whole record batches as they are in the log, range after range, without padding
    index    the rows, zlib
    footer   24 bytes, big-endian: byte position of the index u64, its length u32, CRC32C u32 of the
             index and of the footer's other fields, number of rows u32, magic `STP` and version u8

A row describes one range: its partition and topic id, offsets, size, checksum, and the epoch
history of the leader that answered for it. A row without bytes is a claim: its broker has become
the leader of the partition, with this epoch history.

A pack holds partitions of one store, and either only topics that are encrypted, or only others
(`StorageEndpoint.encrypts`). A pack is never changed: it is created with If-None-Match.

The decompressed index::

    number of topics u32, then for each: length of the name u8, name, topic id in its text form (22)
    numbers of 64 bits, column by column (`_COLUMNS`), then the epochs of all rows (epoch, start),
    their open transactions (producer id, producer epoch, first offset), and their aborted ones
    (producer id, first, last and last stable offset), each column by column

The numbers are stored as eight planes: the highest bytes of all numbers first, the lowest last. So
the many zeros are together, and zlib removes them.
"""

import io
import re
import struct
import sys
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from operator import itemgetter
from typing import BinaryIO, Final, NamedTuple, cast

from sidetier.archive.objects.codec import unknown_version
from sidetier.segments.batches import check_crc, split_batches
from sidetier.segments.crc import crc32c, crc64nvme
from sidetier.segments.epoch_history import Entry, EpochHistory
from sidetier.segments.errors import (
    ChecksumMismatchError,
    DamagedSegmentError,
    MalformedObjectError,
    UnsupportedFormatError,
)
from sidetier.segments.headers import HEADER_BYTES, BatchHeader
from sidetier.segments.offsets import MAX_OFFSET, LeaderEpoch, Offset, TopicPartition
from sidetier.segments.producer_snapshot import OpenTransaction
from sidetier.segments.txn_index import AbortedTxn

_FOOTER: Final = struct.Struct(">QIII3sB")
FOOTER_BYTES: Final = _FOOTER.size
_MAGIC: Final = b"STP"
VERSION: Final = 1
_WORD: Final = 8
_COUNT: Final = struct.Struct(">I")
_COLUMNS: Final = (
    "number of the topic",
    "partition",
    "start",
    "end - start",
    "size",
    "batches",
    "CRC64NVME as a signed number",
    "largest timestamp + 1",
    "log start offset",
    "end - last stable offset",
    "number of epochs",
    "number of open transactions",
    "number of aborted transactions",
    "when the first pack with these records was stored",
)
_COUNTS: Final = slice(10, 13)
"""The columns that count the numbers of the next tables."""
_LEVEL: Final = 6
MAX_ROWS: Final = 100_000
MAX_INDEX_BYTES: Final = 16 << 20
"""Largest index, also decompressed: 112 bytes for each row, and its epochs and transactions."""
FULL_INDEX_BYTES: Final = 8 << 20
"""A pack whose rows have this number of bytes in the index is complete."""
_MAX_EPOCH: Final = 2**31 - 1
_TOPIC_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TOPIC_ID_BYTES: Final = 22

Bytes = bytes | bytearray | memoryview


LeaderKey = tuple[TopicPartition, str, LeaderEpoch]
"""Partition, topic id and leader epoch of rows."""


class TailRow(NamedTuple):
    """One row of a pack's index: a range of one partition, or a claim.

    Attributes:
        tp: The partition.
        topic_id: Kafka's id of the topic, in its text form.
        epochs: The epoch history of the leader, from the epoch of `start` on (`epochs_from`); of a
            claim, the whole `leader-epoch-checkpoint`. The last epoch is the one in which the
            broker leads, and in which it answered for the range; it may begin at or above `end`.
        start: First offset. No committed record is missing in the pack from here up to `end`,
            except those that compaction has removed.
        end: End, exclusive. Of a claim, equal to `start`: the start offset of its leader epoch.
        log_start: Log start offset of the leader.
        last_stable: Last stable offset of the leader. It can be above `end`.
        batches: Number of batches.
        max_timestamp: Largest timestamp, in ms since 1970; -1 if there is none.
        open: The transactions that are open at `end`.
        aborted: The transactions whose abort markers are in the range.
        first_stored_ms: Of a row that cleaning has copied: when the first pack with its records was
            stored, in ms since 1970; 0 in that first pack.
        position: Byte position in the pack. `PackBuilder` sets it, and the next two.
        size: Size in bytes; 0 for a claim.
        crc64nvme: Checksum of the bytes.
    """

    tp: TopicPartition
    topic_id: str
    epochs: EpochHistory
    start: Offset
    end: Offset
    log_start: Offset
    last_stable: Offset
    batches: int = 0
    max_timestamp: int = -1
    open: tuple[OpenTransaction, ...] = ()
    aborted: tuple[AbortedTxn, ...] = ()
    first_stored_ms: int = 0
    position: int = 0
    size: int = 0
    crc64nvme: int = 0

    @property
    def is_claim(self) -> bool:
        """Whether the row has no bytes."""
        return self.start == self.end

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The epoch in which the broker answered."""
        return self.epochs.entries[-1][0]

    @property
    def leader_key(self) -> LeaderKey:
        """Identifies the log that the row is from: its leader in one epoch."""
        return self.tp, self.topic_id, self.leader_epoch

    @property
    def log_order(self) -> tuple[LeaderKey, Offset, Offset]:
        """Sort key: rows of one leader together, in the order of its log."""
        return self.leader_key, self.start, self.end

    @property
    def last_epoch(self) -> LeaderEpoch | None:
        """Highest leader epoch of the batches; None for a claim."""
        return None if self.is_claim else self.epochs.epoch_at(self.end - 1)


def epochs_from(history: EpochHistory, start: int) -> EpochHistory:
    """Return the history for the row of a range: from the epoch in force at its start on."""
    at = bisect_right(history.entries, start, key=itemgetter(1)) - 1
    return EpochHistory(history.entries[max(at, 0) :])


def claim(
    tp: TopicPartition,
    topic_id: str,
    checkpoint: EpochHistory,
    log_start: Offset,
    last_stable: Offset,
) -> TailRow:
    """Return the claim of a broker that leads a partition in the last epoch of its checkpoint.

    Raises:
        ValueError: The checkpoint is empty.
    """
    if not checkpoint.entries:
        raise ValueError(f"{tp}: the leader epoch checkpoint has no epoch")
    start = checkpoint.entries[-1][1]
    return TailRow(tp, topic_id, checkpoint, start, start, log_start, last_stable)


def index_bytes(epochs: EpochHistory, still_open: Sized = (), aborted: Sized = ()) -> int:
    """Return the bytes of a row in the decompressed index, without the name of its topic."""
    tables = (epochs.entries, 2), (still_open, 3), (aborted, 4)
    return _WORD * (len(_COLUMNS) + sum(len(table) * columns for table, columns in tables))


class PackBuilder:
    """Collects the ranges and claims of a pack. Bytes are referenced, not copied."""

    def __init__(self) -> None:
        self._rows: list[TailRow] = []
        self._pieces: list[Bytes] = []
        self._topics: set[tuple[str, str]] = set()
        self._size = 0
        self._index_bytes = _COUNT.size

    @property
    def size(self) -> int:
        """Bytes of all ranges so far."""
        return self._size

    @property
    def rows(self) -> Sequence[TailRow]:
        """The rows so far."""
        return self._rows

    def add(self, row: TailRow, *pieces: Bytes) -> TailRow:
        """Add a range with its bytes in pieces, or a claim without bytes.

        Returns:
            The row with position, size and checksum.

        Raises:
            ValueError: A field contradicts the others, or the index has no room for the row.
                Nothing is added.
        """
        size, crc = 0, 0
        for piece in pieces:
            size, crc = size + len(piece), crc64nvme(piece, crc)
        row = self.place(row._replace(size=size, crc64nvme=crc))
        self._pieces += pieces
        return row

    def place(self, row: TailRow) -> TailRow:
        """Add a row whose size and checksum are known, without its bytes.

        Returns:
            The row with its position.

        Raises:
            ValueError: As for `add`.
        """
        row = row._replace(position=self._size)
        problem = _problem(row)
        if problem is not None:
            raise ValueError(f"{row.tp}: {problem}")
        topic = row.tp.topic, row.topic_id
        in_index = index_bytes(row.epochs, row.open, row.aborted)
        if topic not in self._topics:
            in_index += 1 + len(row.tp.topic) + _TOPIC_ID_BYTES
        total, number = self._index_bytes + in_index, len(self._rows) + 1
        if total > MAX_INDEX_BYTES or number > MAX_ROWS:
            raise ValueError(
                f"{row.tp}: a row with {len(row.epochs.entries)} leader epochs, {len(row.open)} "
                f"open and {len(row.aborted)} aborted transactions has {in_index} bytes in the "
                f"index of a pack, which would then have {number} rows and {total} bytes; the "
                f"limits are {MAX_ROWS} and {MAX_INDEX_BYTES}"
            )
        self._topics.add(topic)
        self._index_bytes = total
        self._rows.append(row)
        self._size += row.size
        return row

    @property
    def topics(self) -> frozenset[str]:
        """The topics of the rows so far."""
        return frozenset(topic for topic, _ in self._topics)

    def end(self) -> bytes:
        """Return what follows the ranges: index and footer.

        Raises:
            ValueError: There are no rows.
        """
        if not self._rows:
            raise ValueError("a pack without rows")
        packed = zlib.compress(_encode_rows(self._rows), _LEVEL)
        fields = (self._size, len(packed), 0, len(self._rows), _MAGIC, VERSION)
        footer = _FOOTER.pack(*fields[:2], _crc_of(packed, _FOOTER.pack(*fields)), *fields[3:])
        return packed + footer

    def body(self) -> "PackBody":
        """Return the whole pack. Raises ValueError if there are no rows."""
        return PackBody((*self._pieces, self.end()), self.topics)


@dataclass(frozen=True)
class PackBody:
    """The bytes of a pack, for `RemoteStorage.put_object`.

    Attributes:
        pieces: The bytes.
        topics: The topics whose records are in the pack. They decide whether it is encrypted.
    """

    pieces: tuple[Bytes, ...]
    topics: frozenset[str]

    @property
    def size(self) -> int:
        """Length in bytes."""
        return sum(map(len, self.pieces))

    @property
    def end(self) -> bytes:
        """Index and footer."""
        return bytes(self.pieces[-1])

    def open(self) -> BinaryIO:
        """Return a new stream."""
        pieces = [memoryview(piece).cast("B") for piece in self.pieces if len(piece)]
        return open_pieces(map(len, pieces), pieces.__getitem__)


def open_pieces(sizes: Iterable[int], piece: Callable[[int], Bytes]) -> BinaryIO:
    """Return a stream of pieces, one after the other.

    Args:
        sizes: The size of each piece, above 0.
        piece: Returns a piece by its number. What it raises comes from `read`.
    """
    return cast("BinaryIO", _PiecesStream(sizes, piece))


class _PiecesStream(io.RawIOBase):
    """See `open_pieces`."""

    def __init__(self, sizes: Iterable[int], piece: Callable[[int], Bytes]) -> None:
        self._piece = piece
        self._starts = list(accumulate(sizes, initial=0))
        self._size, self._at = self._starts[-1], 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        left = max(self._size - self._at, 0)
        buffer = bytearray(left if size < 0 else min(size, left))
        self.fill(memoryview(buffer))
        return bytes(buffer)

    def fill(self, buffer: memoryview) -> int:
        """See `FillingStream`."""
        done = 0
        while done < len(buffer) and self._at < self._size:
            number = bisect_right(self._starts, self._at) - 1
            skipped = self._at - self._starts[number]
            part = memoryview(self._piece(number))[skipped : skipped + len(buffer) - done]
            buffer[done : done + len(part)] = part
            done += len(part)
            self._at += len(part)
        return done


class Footer(NamedTuple):
    """The last bytes of a pack.

    Attributes:
        position: Byte position of the index.
        length: Length of the index in bytes.
        crc32c: Checksum of the index and of the footer's other fields.
        rows: Number of rows.
    """

    position: int
    length: int
    crc32c: int
    rows: int


def decode_footer(data: Bytes, size: int, key: str) -> Footer:
    """Parse the footer in the last bytes of a pack.

    Args:
        data: At least the last `FOOTER_BYTES` bytes of the pack.
        size: Size of the pack.
        key: Its key, for errors.

    Raises:
        MalformedObjectError: Not a pack, of a newer version, cut or damaged. The message names key
            and field.
    """
    if len(data) < FOOTER_BYTES:
        raise MalformedObjectError(f"{key}: {len(data)} bytes are too few for a tail pack")
    *fields, magic, version = _FOOTER.unpack_from(data, len(data) - FOOTER_BYTES)
    if magic != _MAGIC:
        raise MalformedObjectError(
            f"{key}: magic: the object does not end as a tail pack does: it is cut, or another "
            "object"
        )
    if version != VERSION:
        raise unknown_version(key, version, VERSION)
    footer = Footer(*fields)
    if footer.length > MAX_INDEX_BYTES or footer.rows > MAX_ROWS:
        raise MalformedObjectError(
            f"{key}: an index of {footer.rows} rows and {footer.length} bytes is larger than any "
            f"pack has: {MAX_ROWS} rows and {MAX_INDEX_BYTES} bytes at most"
        )
    if footer.position + footer.length + FOOTER_BYTES != size:
        raise MalformedObjectError(
            f"{key}: position and length of the index, {footer.position} and {footer.length}, do "
            f"not fit {size} bytes"
        )
    return footer


class PackIndex(NamedTuple):
    """The index of a pack.

    Attributes:
        partitions: The partitions of its rows.
        rows: The rows that were asked for.
    """

    partitions: frozenset[TopicPartition]
    rows: tuple[TailRow, ...]


def decode_index(
    data: Bytes, footer: Footer, key: str, wanted: Container[TopicPartition] | None = None
) -> PackIndex:
    """Parse the index of a pack.

    Args:
        data: The `footer.length` bytes of the index.
        footer: The footer.
        key: The pack's key, for errors.
        wanted: The partitions whose rows are returned, and checked; None for all.

    Raises:
        MalformedObjectError: Damaged. The message names key, row and field.
    """
    unsigned = _FOOTER.pack(footer.position, footer.length, 0, footer.rows, _MAGIC, VERSION)
    if len(data) != footer.length or _crc_of(data, unsigned) != footer.crc32c:
        raise MalformedObjectError(f"{key}: crc32c: it does not match the bytes of the index")
    # The checksum finds accidents. What follows also stands up to bytes that were made up.
    try:
        decompressor = zlib.decompressobj()
        index = decompressor.decompress(data, MAX_INDEX_BYTES)
    except zlib.error as error:
        raise MalformedObjectError(f"{key}: index: {error}") from None
    if not decompressor.eof or decompressor.unused_data:
        raise MalformedObjectError(
            f"{key}: index: it does not end with its zlib stream, or has more than "
            f"{MAX_INDEX_BYTES} bytes"
        )
    try:
        return _decode_rows(index, footer, wanted)
    except _FieldError as error:
        raise MalformedObjectError(f"{key}: {error}") from None


class TailBatch(NamedTuple):
    """One whole batch, as it is in the log."""

    header: BatchHeader
    data: memoryview


def check_range(row: TailRow, data: Bytes, key: str) -> None:
    """Compare the bytes of a range with the checksum in its row.

    Raises:
        ChecksumMismatchError: They are not those that were stored.
    """
    if len(data) != row.size or crc64nvme(data) != row.crc64nvme:
        raise ChecksumMismatchError(
            f"{key}: {row.tp}, offsets [{row.start}, {row.end}): crc64nvme: the {len(data)} bytes "
            f"at {row.position} are not those that were stored"
        )


def split_range(row: TailRow, data: Bytes, key: str) -> Iterator[TailBatch]:
    """Check the bytes of a range, and yield its batches with their headers.

    Checks the checksum, and that the batches are as in the row: their number, offsets, epochs, and
    the CRC32C of each.

    Raises:
        ChecksumMismatchError: The bytes are not those that were stored.
        MalformedObjectError: The batches contradict the row. The message names key and field.
    """
    place = f"{key}: {row.tp}, offsets [{row.start}, {row.end})"
    check_range(row, data, key)
    expected, batches, size = int(row.start), 0, 0
    try:
        for batch, header in split_batches(memoryview(data)):
            check_crc(batch)
            if header.base_offset < expected or header.next_offset > row.end:
                raise MalformedObjectError(
                    f"{place}: offsets: a batch has [{header.base_offset}, {header.next_offset})"
                )
            if header.leader_epoch != row.epochs.epoch_at(header.base_offset):
                raise MalformedObjectError(
                    f"{place}: epochs: the batch at {header.base_offset} is of leader epoch "
                    f"{header.leader_epoch}"
                )
            expected, batches, size = header.next_offset, batches + 1, size + header.length
            yield TailBatch(header, batch)
    except (DamagedSegmentError, UnsupportedFormatError) as error:
        raise MalformedObjectError(f"{place}: {error}") from None
    if batches != row.batches or size != row.size:
        raise MalformedObjectError(
            f"{place}: batches: {batches} with {size} bytes, and the row has {row.batches} with "
            f"{row.size}"
        )


class _FieldError(Exception):
    """A field is wrong; the text names it."""


def _crc_of(index: Bytes, footer: bytes) -> int:
    """Return the checksum of an index and of a footer whose own checksum is 0."""
    return crc32c(footer, crc32c(index))


def _problem(row: TailRow) -> str | None:  # noqa: C901, PLR0911 - one line for each field
    """Return which field of a row is wrong, and why; None if all are right."""
    if not 0 <= row.tp.partition <= _MAX_EPOCH:
        return f"partition: {row.tp.partition}"
    if _TOPIC.fullmatch(row.tp.topic) is None:
        return f"topic: {row.tp.topic[:60]!r}"
    if _TOPIC_ID.fullmatch(row.topic_id) is None:
        return f"topic_id: {row.topic_id[:60]!r}"
    if not 0 <= row.start <= row.end <= MAX_OFFSET:
        return f"start and end: {row.start} and {row.end}"
    is_claim = row.start == row.end
    if is_claim != (row.size == 0) or is_claim != (row.batches == 0):
        return (
            f"size and batches: {row.size} and {row.batches} for the offsets from {row.start} to "
            f"{row.end}"
        )
    if row.batches < 0 or row.size < row.batches * HEADER_BYTES:
        return f"batches: {row.batches} in {row.size} bytes"
    if not (0 <= row.log_start <= MAX_OFFSET and 0 <= row.last_stable <= MAX_OFFSET):
        return f"log_start and last_stable: {row.log_start} and {row.last_stable}"
    if row.max_timestamp < -1:
        return f"max_timestamp: {row.max_timestamp}"
    if row.first_stored_ms < 0:
        return f"first_stored_ms: {row.first_stored_ms}"
    return _epochs_problem(row) or _transactions_problem(row)


def _epochs_problem(row: TailRow) -> str | None:
    entries = row.epochs.entries
    if not entries:
        return "epochs: there are none"
    if entries[0][0] < 0 or entries[-1][0] > _MAX_EPOCH or entries[0][1] < 0:
        return f"epochs: {entries[0]} to {entries[-1]}"
    for (epoch, start), (next_epoch, next_start) in pairwise(entries):
        if epoch >= next_epoch or start > next_start:
            return f"epochs: {(next_epoch, next_start)} follows {(epoch, start)}"
    if row.start == row.end != entries[-1][1]:
        return f"start: a claim of the epoch that starts at {entries[-1][1]} has {row.start}"
    if entries[0][1] > row.start:
        return f"epochs: the first one starts at {entries[0][1]}, above {row.start}"
    return None


def _transactions_problem(row: TailRow) -> str | None:
    for transaction in row.open:
        if not 0 <= transaction.first_offset < row.end or transaction.producer_id < 0:
            return f"open: {transaction}"
    for aborted in row.aborted:
        is_possible = 0 <= aborted.first_offset <= aborted.last_offset
        if not (is_possible and row.start <= aborted.last_offset < row.end):
            return f"aborted: {aborted}"
        if not 0 <= aborted.last_stable_offset <= MAX_OFFSET or aborted.producer_id < 0:
            return f"aborted: {aborted}"
    return None


def _encode_rows(rows: Sequence[TailRow]) -> bytes:
    topics: dict[tuple[str, str], int] = {}
    table = [
        (
            topics.setdefault((row.tp.topic, row.topic_id), len(topics)),
            row.tp.partition,
            row.start,
            row.end - row.start,
            row.size,
            row.batches,
            _signed(row.crc64nvme),
            row.max_timestamp + 1,
            row.log_start,
            row.end - row.last_stable,
            len(row.epochs.entries),
            len(row.open),
            len(row.aborted),
            row.first_stored_ms,
        )
        for row in rows
    ]
    names = [_COUNT.pack(len(topics))]
    for topic, topic_id in topics:
        names += [bytes([len(topic)]), topic.encode("ascii"), topic_id.encode("ascii")]
    epochs = [entry for row in rows for entry in row.epochs.entries]
    still_open = [
        (each.producer_id, each.producer_epoch, each.first_offset)
        for row in rows
        for each in row.open
    ]
    aborted = [
        (each.producer_id, each.first_offset, each.last_offset, each.last_stable_offset)
        for row in rows
        for each in row.aborted
    ]
    numbers = array("q")
    for part in (table, epochs, still_open, aborted):
        numbers.extend(chain.from_iterable(zip(*part, strict=True)))
    return b"".join(names) + _planes(numbers)


def _planes(numbers: "array[int]") -> bytes:
    if sys.byteorder == "little":
        numbers.byteswap()
    raw = numbers.tobytes()
    return b"".join(raw[plane::_WORD] for plane in range(_WORD))


def _from_planes(data: Bytes) -> "array[int]":
    count = len(data) // _WORD
    raw = bytearray(len(data))
    for plane in range(_WORD):
        raw[plane::_WORD] = data[plane * count : (plane + 1) * count]
    numbers = array("q")
    numbers.frombytes(raw)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def _signed(crc: int) -> int:
    return crc - (1 << 64) if crc >> 63 else crc


class _Numbers:
    """The numbers of an index, taken table by table."""

    def __init__(self, numbers: "array[int]") -> None:
        self._numbers = numbers
        self._at = 0

    def table(self, rows: int, columns: int, field: str) -> list["array[int]"]:
        """Return the columns of the next table."""
        end = self._at + rows * columns
        if end > len(self._numbers):
            raise _FieldError(f"{field}: {rows} of them do not fit into the index")
        parts = [
            self._numbers[self._at + column * rows : self._at + (column + 1) * rows]
            for column in range(columns)
        ]
        self._at = end
        return parts

    def check_end(self) -> None:
        """Refuse numbers that belong to no row."""
        if self._at != len(self._numbers):
            raise _FieldError(f"index: {len(self._numbers) - self._at} numbers are left over")


def _decode_rows(
    index: bytes, footer: Footer, wanted: Container[TopicPartition] | None
) -> PackIndex:
    topics, at = _decode_topics(index)
    if (len(index) - at) % _WORD:
        raise _FieldError("index: it is cut within a number")
    numbers = _Numbers(_from_planes(memoryview(index)[at:]))
    table = numbers.table(footer.rows, len(_COLUMNS), "rows")
    if not footer.rows:
        raise _FieldError("rows: there are none")
    counts = table[_COUNTS]
    if any(min(column) < 0 for column in counts):
        raise _FieldError("rows: the number of epochs or transactions is negative")
    lists = [
        numbers.table(sum(column), columns, field)
        for column, columns, field in zip(
            counts, (2, 3, 4), ("epochs", "open", "aborted"), strict=True
        )
    ]
    numbers.check_end()
    # A pack has one partition in many rows, and many packs have the same ones.
    partitions: dict[tuple[int, int], TopicPartition] = {}
    for number, place in enumerate(zip(table[0], table[1], strict=True)):
        if place not in partitions:
            if not 0 <= place[0] < len(topics):
                raise _FieldError(f"row {number}: topic: {place[0]} of {len(topics)}")
            partitions[place] = TopicPartition(topics[place[0]][0], place[1])
    if sum(table[4]) != footer.position:
        raise _FieldError(
            f"size: the rows have {sum(table[4])} bytes, and the pack {footer.position}"
        )
    chosen = {place: tp for place, tp in partitions.items() if wanted is None or tp in wanted}
    rows = tuple(_rows_of(table, topics, chosen, lists)) if chosen else ()
    return PackIndex(frozenset(partitions.values()), rows)


def _rows_of(
    table: Sequence[Sequence[int]],
    topics: Sequence[tuple[str, str]],
    chosen: Mapping[tuple[int, int], TopicPartition],
    lists: Sequence[Sequence[Sequence[int]]],
) -> Iterator[TailRow]:
    """Yield the rows of the chosen partitions."""
    position, ats = 0, [0, 0, 0]
    # Rows of one partition, and of many, share these: a cluster's tail has a million rows.
    histories: dict[tuple[tuple[int, ...], ...], EpochHistory] = {}
    for number, columns in enumerate(zip(*table, strict=True)):
        topic, partition, start, offsets, size, batches, crc, newest, log_start, stable = columns[
            :10
        ]
        counts, first_stored_ms = columns[_COUNTS], columns[13]
        begins, ats = ats, [at + count for at, count in zip(ats, counts, strict=True)]
        position += size
        tp = chosen.get((topic, partition))
        if tp is None:
            continue
        entries, still_open, aborted = (
            tuple(zip(*(column[begin:end] for column in parts), strict=True)) if end > begin else ()
            for parts, begin, end in zip(lists, begins, ats, strict=True)
        )
        epochs = histories.get(entries)
        if epochs is None:
            epochs = histories[entries] = EpochHistory(cast("tuple[Entry, ...]", entries))
        end = start + offsets
        row = TailRow(
            tp,
            topics[topic][1],
            epochs,
            Offset(start),
            Offset(end),
            Offset(log_start),
            Offset(end - stable),
            batches,
            newest - 1,
            tuple(OpenTransaction(each[0], Offset(each[2]), each[1]) for each in still_open),
            tuple(
                AbortedTxn(each[0], Offset(each[1]), Offset(each[2]), Offset(each[3]))
                for each in aborted
            ),
            first_stored_ms,
            position - size,
            size,
            crc if crc >= 0 else crc + (1 << 64),
        )
        problem = _problem(row)
        if problem is not None:
            raise _FieldError(f"row {number} ({tp}): {problem}")
        yield row


def _decode_topics(index: bytes) -> tuple[list[tuple[str, str]], int]:
    """Return the topics with their ids, and the position behind them."""
    if len(index) < _COUNT.size:
        raise _FieldError("topics: the index is cut")
    (count,) = _COUNT.unpack_from(index)
    topics, at = [], _COUNT.size
    for number in range(count):
        end = at + 1 + index[at] if at < len(index) else at
        name, topic_id = index[at + 1 : end], index[end : end + _TOPIC_ID_BYTES]
        at = end + _TOPIC_ID_BYTES
        if at > len(index) or not (name.isascii() and topic_id.isascii()):
            raise _FieldError(f"topics: the one with number {number} is cut, or not ASCII")
        topics.append((name.decode("ascii"), topic_id.decode("ascii")))
    return topics, at
