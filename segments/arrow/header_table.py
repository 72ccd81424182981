"""The headers of many record batches as a numpy table.

Source: Kafka's `DefaultRecordBatch`. `sidetier.segments.headers` describes the fields.
"""

from dataclasses import dataclass
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from sidetier.segments.arrow.arrays import UNNAMED, Buffer, Flags, Longs, Place, bytes_of
from sidetier.segments.errors import BatchTooLargeError, DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.headers import (
    CODEC_BITS,
    CONTROL,
    HEADER_BYTES,
    HEADER_FIELDS,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    MIN_LENGTH,
    TRANSACTIONAL,
    check_beginning,
    check_magic,
    header_struct,
)
from sidetier.segments.offsets import Offset, next_offset

_ON_DISK: Final = np.dtype([(name, f">{code}") for name, code in HEADER_FIELDS.items()])

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
"""One row per batch. `position` is the byte of the buffer where the batch begins, `length` the size
of the whole batch in bytes; the other fields are as in `BatchHeader`.
"""

_AS_ON_DISK: Final = tuple(
    name for name in HEADER_DTYPE.names or () if name in (_ON_DISK.names or ())
)
_LENGTH_AND_MAGIC = header_struct("length", "magic")
_BASE_OFFSET = header_struct("base_offset")
# Its next offset would not fit into 64 bits.
_LAST_OFFSET: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class HeaderTable:
    """The headers of the whole batches in a buffer, in order of offsets.

    `rows` has the fields of `HEADER_DTYPE`. `next_position` is the byte of the buffer after the
    last whole batch, where a cut tail begins.
    """

    rows: npt.NDArray[np.void]
    next_position: int

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return one field of all batches, contiguous."""
        return np.ascontiguousarray(self.rows[name])

    @property
    def codecs(self) -> npt.NDArray[np.int16]:
        """The values of `Compression`. Values above 4 are unknown codecs."""
        return self.column("attributes") & CODEC_BITS

    @property
    def timestamp_types(self) -> npt.NDArray[np.int16]:
        """The values of `TimestampType`."""
        return self._flag(LOG_APPEND_TIME).astype(np.int16)

    @property
    def is_transactional(self) -> Flags:
        """Whether the records are part of a transaction. True for markers, too."""
        return self._flag(TRANSACTIONAL)

    @property
    def is_control(self) -> Flags:
        """Whether a batch is a commit or abort marker, which no consumer returns."""
        return self._flag(CONTROL)

    def _flag(self, bit: int) -> Flags:
        flags: Flags = (self.column("attributes") & bit) != 0
        return flags

    @property
    def next_offset(self) -> Offset | None:
        """One past the last offset of the last batch; None without a batch."""
        return next_offset(int(self.rows["last_offset"][-1])) if len(self.rows) else None

    def where(self, chosen: Flags | slice) -> "HeaderTable":
        """Return the chosen batches. The rows of a slice are not copied."""
        return HeaderTable(self.rows[chosen], self.next_position)

    def damaged(self, place: Place, row: int, reason: str) -> DamagedSegmentError:
        """Return the error for one of the batches, with its position."""
        return DamagedSegmentError(self._error_text(place, row, reason))

    def too_large(self, place: Place, row: int, limit: int) -> BatchTooLargeError:
        """Return the error for a sound batch that is larger than the limit, in bytes."""
        batch = self.rows[row]
        first, end = int(batch["base_offset"]), int(batch["last_offset"]) + 1
        reason = (
            f"the records of offsets [{first}, {end}) are more than {limit} bytes, decompressed: "
            "the limit that protects the reader's memory. Raise it "
            "(tiered.storage.max.batch.bytes, --max-batch-bytes) to read them"
        )
        return BatchTooLargeError(self._error_text(place, row, reason))

    def unsupported(self, place: Place, row: int, reason: str) -> UnsupportedFormatError:
        """Return the error for a batch that may be sound but has an unknown format."""
        return UnsupportedFormatError(self._error_text(place, row, reason))

    def _error_text(self, place: Place, row: int, reason: str) -> str:
        batch = self.rows[row]
        return place.text(int(batch["position"]), int(batch["base_offset"]), reason)


def scan_headers(
    data: Buffer, *, at: int = 0, floor: int = 0, name: str = UNNAMED, position: int = 0
) -> HeaderTable:
    """Read the headers of the whole batches from byte `at` of the buffer on. CRCs are not checked.

    A batch that the end of the buffer cuts is omitted, but the available part of its header is
    checked.

    Args:
        data: The buffer.
        at: Where the first batch begins.
        floor: No batch may begin below this offset, nor below the end of the batch before it.
        name: File or key of the segment, for errors.
        position: Position of the buffer's first byte in the segment, for errors.

    Raises:
        DamagedSegmentError: Bytes cannot be a batch. The message names segment, byte position and
            base offset.
        UnsupportedFormatError: Message format v0 or v1.
    """
    place = Place(name, position)
    view = memoryview(data)
    positions, end = _follow(view, at, place)
    rows = _rows(view, positions)
    _check_offsets(rows, floor, place)
    headers = HeaderTable(rows, end)
    _check_tail(view, end, headers.next_offset or floor, place)
    return headers


def _follow(view: memoryview, at: int, place: Place) -> tuple[Longs, int]:
    """Return where the whole batches begin, and where the last of them ends."""
    unpack, size = _LENGTH_AND_MAGIC.unpack_from, len(view)
    last_header = size - HEADER_BYTES
    positions = []
    # The only loop over batches in Python. Everything that numpy
    # can do later for all headers together is left out of it.
    while at <= last_header:
        length, magic = unpack(view, at)
        # Without the check of the length, a length of -12 would never move `at`.
        if magic != MAGIC or length < MIN_LENGTH:
            _refuse(view, at, place)
        end = at + LENGTH_PREFIX_BYTES + length
        if end > size:
            break
        positions.append(at)
        at = end
    return np.array(positions, dtype=np.int64), at


def _refuse(view: memoryview, at: int, place: Place) -> NoReturn:
    length, magic = _LENGTH_AND_MAGIC.unpack_from(view, at)
    (base,) = _BASE_OFFSET.unpack_from(view, at)
    try:
        check_magic(magic, length)
    except UnsupportedFormatError as error:
        raise UnsupportedFormatError(place.text(at, base, str(error))) from None
    except DamagedSegmentError as error:
        raise DamagedSegmentError(place.text(at, base, str(error))) from None
    raise DamagedSegmentError(
        place.text(at, base, f"its length field {length} is less than a header's")
    )


def _rows(view: memoryview, positions: Longs) -> npt.NDArray[np.void]:
    """Return the table of the batches that begin at these bytes."""
    rows = np.zeros(len(positions), dtype=HEADER_DTYPE)
    if not len(positions):
        return rows
    # A view with a stride of one byte has a header at every position of the buffer.
    # Indexing it by the positions copies only the real headers, without a loop.
    anywhere = len(view) - HEADER_BYTES + 1
    on_disk = np.ndarray((anywhere,), _ON_DISK, bytes_of(view), strides=(1,))[positions]
    # Field by field: numpy converts byte order and width in the assignment.
    for field in _AS_ON_DISK:
        rows[field] = on_disk[field]
    rows["position"] = positions
    rows["length"] += LENGTH_PREFIX_BYTES
    rows["last_offset"] = rows["base_offset"] + on_disk["last_offset_delta"]
    return rows


def _check_offsets(rows: npt.NDArray[np.void], floor: int, place: Place) -> None:
    """Check that no batch ends before it begins, and that none begins below the end of the one
    before.
    """
    bases, lasts = rows["base_offset"], rows["last_offset"]
    floors = np.full(len(rows), max(floor, 0), dtype=np.int64)
    floors[1:] = lasts[:-1] + 1
    # `last_offset` was added in 64 bits and can have overflowed to a
    # negative number, which the comparison with the base offset detects.
    bad = np.flatnonzero((bases < floors) | (lasts < bases) | (lasts == _LAST_OFFSET))
    if len(bad):
        row = int(bad[0])
        base, last, lowest = int(bases[row]), int(lasts[row]), int(floors[row])
        reason = f"its last offset is {last}"
        if base < lowest:
            reason = f"its base offset is below the next offset, {lowest}"
        raise DamagedSegmentError(place.text(int(rows["position"][row]), base, reason))


def _check_tail(view: memoryview, at: int, floor: int, place: Place) -> None:
    """Check that the available bytes of a cut batch can be the beginning of a batch."""
    try:
        check_beginning(view, at)
    except (DamagedSegmentError, UnsupportedFormatError) as error:
        raise type(error)(f"{place.byte(at)}: where offset {floor} would follow: {error}") from None
    if len(view) - at >= _BASE_OFFSET.size:
        (base,) = _BASE_OFFSET.unpack_from(view, at)
        if base < floor:
            reason = f"its base offset is below the next offset, {floor}"
            raise DamagedSegmentError(place.text(at, base, reason))
