"""Record batches with real records in every codec, in the form of a producer."""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import cramjam

from sidetier.segments.headers import Compression, TimestampType
from tests.harness.batches import with_crc
from tests.harness.metadata_log import zigzag

_HEADER = struct.Struct(">qiiBIhiqqqhii")


class Framing(Enum):
    """How snappy blocks are framed: Kafka's client uses xerial's format, others use none."""

    XERIAL = 0
    RAW = 1


@dataclass(frozen=True, slots=True)
class MadeRecord:
    """A record with its offset and timestamp. Headers are in order, with keys as bytes."""

    offset: int
    timestamp: int = 1_700_000_000_000
    key: bytes | None = None
    value: bytes | None = b"value"
    headers: tuple[tuple[bytes, bytes | None], ...] = ()

    def encoded(self, base_offset: int, base_timestamp: int) -> bytes:
        body = b"\0" + zigzag(self.timestamp - base_timestamp) + zigzag(self.offset - base_offset)
        body += _sized(self.key) + _sized(self.value) + zigzag(len(self.headers))
        body += b"".join(_sized(key) + _sized(value) for key, value in self.headers)
        return zigzag(len(body)) + body


@dataclass(frozen=True, slots=True)
class MadeBatch:
    """A batch. Fields that are None follow from its records."""

    records: tuple[MadeRecord, ...]
    codec: Compression = Compression.NONE
    framing: Framing = Framing.XERIAL
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    is_transactional: bool = False
    is_control: bool = False
    leader_epoch: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_offset: int | None = None
    last_offset: int | None = None
    base_timestamp: int | None = None
    max_timestamp: int | None = None

    @property
    def first(self) -> int:
        return self.records[0].offset if self.base_offset is None else self.base_offset

    @property
    def last(self) -> int:
        return self.records[-1].offset if self.last_offset is None else self.last_offset

    @property
    def highest_timestamp(self) -> int:
        timestamps = [record.timestamp for record in self.records]
        return max(timestamps, default=-1) if self.max_timestamp is None else self.max_timestamp

    @property
    def payload(self) -> bytes:
        base = self.records[0].timestamp if self.records else -1
        base = base if self.base_timestamp is None else self.base_timestamp
        return b"".join(record.encoded(self.first, base) for record in self.records)

    def encoded(self, payload: bytes | None = None, count: int | None = None) -> bytes:
        """Encode the batch, optionally with another payload or another record count."""
        attributes = self.codec.value | self.timestamp_type.value << 3
        attributes |= self.is_transactional << 4 | self.is_control << 5
        base = self.records[0].timestamp if self.records else -1
        raw = self.payload if payload is None else payload
        body = compress(self.codec, raw, self.framing)
        batch = bytearray(
            _HEADER.pack(
                self.first,
                _HEADER.size - 12 + len(body),
                self.leader_epoch,
                2,
                0,
                attributes,
                self.last - self.first,
                base if self.base_timestamp is None else self.base_timestamp,
                self.highest_timestamp,
                self.producer_id,
                self.producer_epoch,
                -1,
                len(self.records) if count is None else count,
            )
        )
        return with_crc(batch + body)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows that the decoder must produce."""
        by_broker = self.timestamp_type is TimestampType.LOG_APPEND_TIME
        return [
            {
                "offset": record.offset,
                "timestamp": self.highest_timestamp if by_broker else record.timestamp,
                "timestamp_type": self.timestamp_type.value,
                "key": record.key,
                "value": record.value,
                "headers": [
                    {"key": key.decode(errors="replace"), "value": value}
                    for key, value in record.headers
                ],
                "leader_epoch": self.leader_epoch,
                "producer_id": self.producer_id,
                "producer_epoch": self.producer_epoch,
                "is_control": self.is_control,
            }
            for record in self.records
        ]


@dataclass(slots=True)
class TransactionalLog:
    """A log of several producers that write alternately, inside and outside transactions."""

    batches: list[MadeBatch] = field(default_factory=list)
    next_offset: int = 0

    def write(
        self, producer: int, count: int = 1, *, transactional: bool = True, epoch: int = -1
    ) -> MadeBatch:
        records = tuple(MadeRecord(self.next_offset + row) for row in range(count))
        return self._add(
            MadeBatch(
                records,
                producer_id=producer,
                producer_epoch=epoch,
                is_transactional=transactional,
            )
        )

    def mark(
        self, producer: int, *, commit: bool, epoch: int = -1, timestamp: int | None = None
    ) -> MadeBatch:
        key = struct.pack(">hh", 0, int(commit))
        record = MadeRecord(self.next_offset, key=key, value=b"\0\0\0\0\0\0")
        return self._add(
            MadeBatch(
                (record,),
                producer_id=producer,
                producer_epoch=epoch,
                is_transactional=True,
                is_control=True,
                max_timestamp=timestamp,
            )
        )

    def _add(self, batch: MadeBatch) -> MadeBatch:
        self.batches.append(batch)
        self.next_offset = batch.last + 1
        return batch

    @property
    def encoded(self) -> bytes:
        return b"".join(batch.encoded() for batch in self.batches)


def _sized(data: bytes | None) -> bytes:
    return zigzag(-1) if data is None else zigzag(len(data)) + data


def compress(codec: Compression, data: bytes, framing: Framing = Framing.XERIAL) -> bytes:
    """Compress a batch's records as the codec stores them."""
    if codec is Compression.SNAPPY and framing is Framing.XERIAL:
        return xerial(data)
    return _CODECS[codec](data)


def xerial(data: bytes, block_bytes: int = 300) -> bytes:
    """Compress with snappy as Kafka's client frames it, in blocks of 32 KiB."""
    blocks = (data[at : at + block_bytes] for at in range(0, len(data), block_bytes))
    compressed = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
    head = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    return head + b"".join(struct.pack(">i", len(block)) + block for block in compressed)


_CODECS: dict[Compression, Callable[[bytes], bytes]] = {
    Compression.NONE: bytes,
    Compression.GZIP: lambda data: bytes(cramjam.gzip.compress(data)),
    Compression.SNAPPY: lambda data: bytes(cramjam.snappy.compress_raw(data)),
    Compression.LZ4: lambda data: bytes(cramjam.lz4.compress(data)),
    Compression.ZSTD: lambda data: bytes(cramjam.zstd.compress(data)),
}
