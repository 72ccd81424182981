"""Tail packs: one object with committed batches of many partitions. Pure.

::

    ranges   whole record batches as they are in the log, range after range, without padding
    index    the rows, zlib
    footer   24 bytes: position of the index u64, its length u32, CRC32C u32, number of rows u32,
             magic `STP` and version u8

A row names one range: its partition and topic id, offsets, position, checksum, and the epoch
history of the leader that answered for it. A row without bytes is a claim: its broker has become
the leader of the partition, with this epoch history.

A pack holds partitions of one store, and either only of topics that are encrypted, or only of
others (`StorageEndpoint.encrypts`). A pack is never changed: it is created with If-None-Match.
"""

from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final, NamedTuple

from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.headers import BatchHeader
from sidetier.segments.offsets import LeaderEpoch, Offset, TopicPartition
from sidetier.segments.producer_snapshot import OpenTransaction
from sidetier.segments.txn_index import AbortedTxn

FOOTER_BYTES: Final = 24
Bytes = bytes | bytearray | memoryview


class TailRow(NamedTuple):
    """One row of a pack's index: a range of one partition, or a claim.

    Attributes:
        tp: The partition.
        topic_id: Kafka's id of the topic, in its text form.
        epochs: The epoch history of the leader, from the epoch of `start` on; of a claim, the whole
            `leader-epoch-checkpoint`. The last epoch is the one in which the broker leads, and in
            which it answered for the range; it may begin at or above `end`.
        start: First offset. No committed record is missing in the pack from here up to `end`,
            except those that compaction has removed.
        end: End, exclusive. Of a claim, equal to `start`: the start offset of its leader epoch.
        log_start: Log start offset of the leader.
        last_stable: Last stable offset of the leader. It can be above `end`.
        batches: Number of batches.
        max_timestamp: Largest timestamp, in ms since 1970; -1 if there is none.
        open: The transactions that are open at `end`.
        aborted: The transactions whose abort markers are in the range.
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
    position: int = 0
    size: int = 0
    crc64nvme: int = 0

    @property
    def is_claim(self) -> bool:
        """Whether the row has no bytes."""
        raise NotImplementedError

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The epoch in which the broker answered."""
        raise NotImplementedError

    @property
    def epoch_start(self) -> Offset:
        """Start offset of `leader_epoch`."""
        raise NotImplementedError

    @property
    def last_epoch(self) -> LeaderEpoch | None:
        """Highest leader epoch of the batches; None for a claim."""
        raise NotImplementedError


def epochs_from(history: EpochHistory, start: int) -> EpochHistory:
    """Return the history for the row of a range: from the epoch in force at its start on."""
    raise NotImplementedError


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
    raise NotImplementedError


class PackBuilder:
    """Collects the ranges and claims of a pack. Bytes are referenced, not copied."""

    def __init__(self) -> None:
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Bytes of all ranges so far."""
        raise NotImplementedError

    @property
    def rows(self) -> Sequence[TailRow]:
        """The rows so far."""
        raise NotImplementedError

    def add(self, row: TailRow, *pieces: Bytes) -> TailRow:
        """Add a range with its bytes in pieces, or a claim without bytes.

        Returns:
            The row with position, size and checksum.

        Raises:
            ValueError: A field contradicts the others; no pack has such a row.
        """
        raise NotImplementedError

    def body(self) -> "PackBody":
        """Return the whole pack. `add` must not be called afterwards."""
        raise NotImplementedError


class PackBody:
    """The bytes of a pack, for `RemoteStorage.put_object`."""

    @property
    def size(self) -> int:
        """Length in bytes."""
        raise NotImplementedError

    @property
    def topics(self) -> frozenset[str]:
        """The topics whose records are in the pack. They decide whether it is encrypted."""
        raise NotImplementedError

    def open(self) -> BinaryIO:
        """Return a new stream."""
        raise NotImplementedError


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
    raise NotImplementedError


def decode_index(data: Bytes, footer: Footer, key: str) -> tuple[TailRow, ...]:
    """Parse the index of a pack.

    Args:
        data: The `footer.length` bytes of the index.
        footer: The footer.
        key: The pack's key, for errors.

    Raises:
        MalformedObjectError: Damaged. The message names key, row and field.
    """
    raise NotImplementedError


def decode_pack(data: Bytes, key: str) -> tuple[TailRow, ...]:
    """Parse footer and index of a whole pack. Raises as `decode_index`."""
    raise NotImplementedError


class TailBatch(NamedTuple):
    """One whole batch, as it is in the log."""

    header: BatchHeader
    data: memoryview


def split_range(row: TailRow, data: Bytes, key: str) -> Iterator[TailBatch]:
    """Check the bytes of a range, and yield its batches with their headers.

    Checks the checksum, and that the batches are what the row says: their number, offsets, epochs,
    and the CRC32C of each.

    Raises:
        ChecksumMismatchError: The bytes are not those that were stored.
        MalformedObjectError: The batches contradict the row. The message names key and field.
    """
    raise NotImplementedError
