"""The headers of many record batches at once, as a numpy table.

Source: Kafka's `DefaultRecordBatch`; the fields are those of `sidetier.segments.headers`.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.headers import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    BatchHeader,
    parse_batch_header,
)
from sidetier.segments.offsets import Offset, next_offset

Buffer = bytes | bytearray | memoryview
"""What holds the bytes of a log: contiguous, and unchanged while anything made of it is used."""

Flags = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]

_ON_DISK: Final = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)

HEADER_DTYPE: Final = np.dtype(
    [
        ("position", "i8"),
        ("length", "i8"),
        ("base_offset", "i8"),
        ("last_offset", "i8"),
        ("base_timestamp", "i8"),
        ("max_timestamp", "i8"),
        ("producer_id", "i8"),
        ("crc", "u4"),
        ("leader_epoch", "i4"),
        ("base_sequence", "i4"),
        ("record_count", "i4"),
        ("attributes", "i2"),
        ("producer_epoch", "i2"),
    ]
)
"""A row per batch: `position` is the byte of the buffer where it begins, `length` that of the whole
batch in bytes, the rest as in `BatchHeader`."""

_LENGTH = struct.Struct(">8xi")


@dataclass(frozen=True, slots=True)
class HeaderTable:
    """The headers of the whole batches in a buffer, in order of offsets.

    `rows` has the fields of `HEADER_DTYPE`; `next_position` is the byte of the buffer behind the
    last whole batch: a cut tail begins there.
    """

    rows: npt.NDArray[np.void]
    next_position: int

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> npt.NDArray[Any]:
        """One field of all batches, contiguous."""
        return np.ascontiguousarray(self.rows[name])

    @property
    def codecs(self) -> npt.NDArray[np.int16]:
        """The values of `Compression`; those above 4 are not known."""
        return self.column("attributes") & 0x07

    @property
    def timestamp_types(self) -> npt.NDArray[np.int16]:
        """The values of `TimestampType`."""
        return (self.column("attributes") >> 3) & 1

    @property
    def is_transactional(self) -> Flags:
        """Whether the records are part of a transaction; true of markers too."""
        return (self.column("attributes") & 0x10) != 0

    @property
    def is_control(self) -> Flags:
        """Whether a batch is a commit or abort marker, which no consumer shows."""
        return (self.column("attributes") & 0x20) != 0

    @property
    def next_offset(self) -> Offset | None:
        """One past the last offset of the last batch; None without a batch."""
        return next_offset(int(self.rows["last_offset"][-1])) if len(self.rows) else None

    def where(self, chosen: Flags | slice) -> "HeaderTable":
        """Some of the batches; the rows of a slice are not copied."""
        return HeaderTable(self.rows[chosen], self.next_position)

    def header(self, data: Buffer, index: int) -> BatchHeader:
        """The header of one batch, as the pure reader has it; `data` is the buffer scanned."""
        return parse_batch_header(memoryview(data), int(self.rows["position"][index]))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer comes from, for errors: a file or key, and its first byte's position there."""

    name: str = "record batches"
    position: int = 0

    def damaged(self, at: int, base_offset: int, reason: str) -> DamagedSegmentError:
        """The error for the batch that begins at byte `at` of the buffer."""
        return DamagedSegmentError(self._text(at, base_offset, reason))

    def unsupported(self, at: int, base_offset: int, reason: str) -> UnsupportedFormatError:
        """The same, for what is sound but not known here."""
        return UnsupportedFormatError(self._text(at, base_offset, reason))

    def _text(self, at: int, base_offset: int, reason: str) -> str:
        return (
            f"{self.name}: byte {self.position + at}: batch with base offset {base_offset}: "
            f"{reason}"
        )


def scan_headers(
    data: Buffer, *, at: int = 0, floor: int = 0, name: str = "record batches", position: int = 0
) -> HeaderTable:
    """The headers of the whole batches from byte `at` of the buffer on; CRCs are not checked here.

    A batch that the buffer's end cuts is left out, but what is there of its header is checked. No
    batch may begin below offset `floor`, nor below the end of the one before it. `name` and
    `position`, the place of the buffer's first byte in the segment, are for errors.

    Raises:
        DamagedSegmentError: what cannot be a batch; names segment, byte position and base offset.
        UnsupportedFormatError: message format v0 or v1.
    """
    raise NotImplementedError


def batch_positions(data: Buffer, at: int) -> Iterator[int]:
    """Where the batches begin, following their lengths, and last where the next would."""
    raise NotImplementedError


_ = (HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC, _LENGTH, _ON_DISK)
