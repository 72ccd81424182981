"""Digests of the records that consumers get, to compare an archive with its copy."""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa

from sidetier.archive.reader import ArchiveReader, Failed, Gap, ReachedEnd, Records
from sidetier.mirror.hydrate.batch_scan import scan_batches
from sidetier.segments.errors import ArchiveError
from sidetier.segments.offsets import OffsetRange, TopicPartition
from sidetier.segments.transactions import Marker, TransactionTracker

COLUMNS: Final = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")
"""The columns that a digest covers."""
# Offset, timestamp, timestamp type.
_FIXED = struct.Struct(">qqb")
_LENGTH = struct.Struct(">i")
_NULL: Final = _LENGTH.pack(-1)
_TAKE: Final = 10_000
_BOUNDS_SECONDS: Final = 60.0


@dataclass(slots=True)
class Digest:
    """Digest of the records of a partition.

    Attributes:
        records: Number of records.
        first_offset: Offset of the first record; None without records.
        last_offset: Offset of the last record; None without records.
        checksum: Checksum over offset, timestamp, timestamp type, key, value and headers of each
            record.
        timestamps: A sample of timestamps across the partition, for look-ups by time.
    """

    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    checksum: int = 0
    timestamps: list[int] = field(default_factory=list)

    def add(self, batch: pa.RecordBatch, hidden: "HiddenOffsets | None" = None) -> None:
        """Add records in offset order, except the hidden ones."""
        columns = [batch.column(name).to_pylist() for name in COLUMNS]
        for offset, timestamp, kind, key, value, headers in zip(*columns, strict=True):
            if hidden is not None and hidden.has(offset):
                continue
            if self.first_offset is None:
                self.first_offset = offset
            self.last_offset = offset
            if self.records.bit_count() == 1:  # after 1, 2, 4, 8, ... records
                self.timestamps.append(timestamp)
            self.records += 1
            # A sum, so that batches of any size give the same. Each hash
            # includes the offset, so records that changed places are found.
            self.checksum += _hashed(offset, timestamp, kind, key, value, headers)
        self.checksum %= 1 << 64

    def difference(self, other: "Digest") -> str | None:
        """Return how `other` differs from this digest, which is the expected one; None if equal."""
        if self.records != other.records:
            return f"{other.records} records, expected {self.records}"
        if (self.first_offset, self.last_offset) != (other.first_offset, other.last_offset):
            return (
                f"offsets {other.first_offset} to {other.last_offset}, expected "
                f"{self.first_offset} to {self.last_offset}"
            )
        if self.checksum != other.checksum:
            return "the checksum over keys, values, headers and timestamps differs"
        return None


def _hashed(
    offset: int,
    timestamp: int,
    kind: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Mapping[str, Any]] | None,
) -> int:
    parts = [_FIXED.pack(offset, timestamp, kind), _sized(key), _sized(value)]
    for header in headers or ():
        parts += (_sized(header["key"].encode()), _sized(header["value"]))
    return int.from_bytes(blake2b(b"".join(parts), digest_size=8).digest())


def _sized(data: bytes | None) -> bytes:
    return _NULL if data is None else _LENGTH.pack(len(data)) + data


class HiddenOffsets:
    """Offsets that a read-committed consumer does not see. Look-ups must be in ascending order."""

    def __init__(self, ranges: Iterable[OffsetRange]) -> None:
        self._ranges = sorted(ranges)
        self._at = 0

    def has(self, offset: int) -> bool:
        """Whether the offset is hidden."""
        while self._at < len(self._ranges) and self._ranges[self._at].end <= offset:
            self._at += 1
        return self._at < len(self._ranges) and self._ranges[self._at].start <= offset


@dataclass(frozen=True, slots=True)
class LogBytes:
    """A segment to read.

    Attributes:
        key: Its name, for errors.
        chunks: Its bytes.
        offsets: The offsets that count. Batches outside are ignored.
    """

    key: str
    chunks: Iterable[bytes | bytearray]
    offsets: OffsetRange


def hidden_ranges(segments: Iterable[LogBytes]) -> list[OffsetRange]:
    """Return the offsets of transactions that were aborted, or are not decided in the segments.

    Args:
        segments: The segments to read, by ascending base offset.

    Raises:
        DamagedSegmentError, UnsupportedFormatError: A segment is not a sequence of batches.
        StorageError: As `RemoteStorage` documents.
    """
    tracker = TransactionTracker()
    undecided: dict[int, list[OffsetRange]] = {}
    hidden: list[OffsetRange] = []
    for segment in segments:
        for _, header, marker in scan_batches(segment.chunks, segment.key):
            if header.base_offset >= segment.offsets.end:
                break
            if header.next_offset <= segment.offsets.start:
                continue
            ended = tracker.feed(header, marker)
            if ended is not None:
                batches = undecided.pop(ended.producer_id)
                hidden += batches if marker is Marker.ABORT else []
            elif header.is_transactional and not header.is_control:
                batch = OffsetRange(header.base_offset, header.next_offset)
                undecided.setdefault(header.producer_id, []).append(batch)
    return hidden + [batch for batches in undecided.values() for batch in batches]


def archived_records(
    reader: ArchiveReader, tp: TopicPartition, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """Yield the records in [`start`, `end`); skip gaps.

    Raises:
        ArchiveError: It ends below `end` now: the reader would wait for the rest.
        SidetierError: The archive cannot be read.
    """
    if end <= start:
        return
    _require_stored(reader, tp, end)
    reader.assign(tp, start, until=end)
    try:
        while True:
            for taken in reader.take(_TAKE, 1.0):
                match taken:
                    case Records(records=records):
                        yield records
                    case Gap(offsets=OffsetRange(end=behind)):
                        reader.seek(tp, behind)
                    case Failed(error=error) if not error.retry:
                        raise error
                    case ReachedEnd():
                        return
    finally:
        reader.unassign(tp)


def _require_stored(reader: ArchiveReader, tp: TopicPartition, end: int) -> None:
    bounds = reader.bounds(tp, max_age=_BOUNDS_SECONDS)
    stored = 0 if bounds is None else bounds.next_offset
    if stored < end:
        raise ArchiveError(
            f"{tp}: the stored records end at offset {stored} now, and ended at {end} or above "
            "before: records were discarded (an unclean election), or moved away"
        )
