"""Assemble ranges of a `.log` to buffers of whole batches. Pure functions.

A batch that the end of a range cuts is put together from both ranges. Only such batches are copied,
once; the range exists beside the copy for a moment.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sidetier.segments.arrow import Buffer, HeaderTable, scan_headers
from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.headers import HEADER_BYTES, LENGTH_PREFIX_BYTES, parse_batch_header

_LENGTH_END: Final = LENGTH_PREFIX_BYTES
_MIN_MISSING: Final = HEADER_BYTES


@dataclass(frozen=True, slots=True)
class ScannedBatches:
    """Whole batches: the buffer, their headers, and the position of its first byte in the
    `.log`.
    """

    data: Buffer
    headers: HeaderTable
    position: int

    @property
    def size(self) -> int:
        """Size of the batches, in bytes."""
        return int(self.headers.rows["length"].sum())


class Assembler:
    """Takes the bytes of one `.log` in order, from byte `position` on, in ranges of any size.

    `name` is the key, for errors. `size` is the size of the whole `.log`: no batch ends behind it.
    """

    def __init__(self, name: str, size: int, position: int) -> None:
        self._name = name
        self._size = size
        self._position = position
        self._carry = bytearray()
        self._floor = 0

    @property
    def carried(self) -> int:
        """Bytes of the batch that the end of the last range cut; 0 if none was cut."""
        return len(self._carry)

    @property
    def position(self) -> int:
        """Byte position of the batch that is not whole yet, or of the next one."""
        return self._position

    @property
    def missing(self) -> int:
        """Missing bytes of that batch: at least its header if its length is not known yet."""
        if len(self._carry) < _LENGTH_END:
            return _MIN_MISSING
        return self._length() - len(self._carry)

    def feed(self, data: Buffer) -> Iterator[ScannedBatches]:
        """Yield the whole batches that end in this range.

        Raises:
            DamagedSegmentError: The bytes after the yielded batches cannot be a batch.
            UnsupportedFormatError: They have message format v0 or v1.
        """
        at = 0
        if self._carry:
            at = self._complete(data)
            self._check_carried()
            # The range was too short for the batch: all of it is in `_carry`.
            if self.missing > 0:
                return
            # A new `bytearray` for the next batch: Python cannot
            # resize this one while the view refers to it.
            whole, self._carry = memoryview(self._carry).toreadonly(), bytearray()
            yield from self._scan(whole, 0)
            if self._carry:
                raise DamagedSegmentError(f"{self._name}: byte {self._position}: half a batch")
        if at < len(data):
            yield from self._scan(data, at)

    def _complete(self, data: Buffer) -> int:
        """Add bytes to the cut batch. Return how many bytes of `data` that took."""
        at = 0
        while at < len(data) and (missing := self._wanted()) > 0:
            self._carry += data[at : at + missing]
            at += min(missing, len(data) - at)
        return at

    def _wanted(self) -> int:
        """Return the number of missing bytes that certainly belong to this batch."""
        if len(self._carry) < _LENGTH_END:
            # Only up to the length field: more bytes could belong to the next batch.
            return _LENGTH_END - len(self._carry)
        return self._length() - len(self._carry)

    def _length(self) -> int:
        # A negative length is refused by the scan. Until then it must not make `missing` negative.
        return max(int.from_bytes(self._carry[8:12], signed=True), 0) + LENGTH_PREFIX_BYTES

    def _scan(self, data: Buffer, at: int) -> Iterator[ScannedBatches]:
        start = self._position - at
        error: DamagedSegmentError | UnsupportedFormatError | None = None
        try:
            headers = self._headers(data, at, start)
        except (DamagedSegmentError, UnsupportedFormatError) as damage:
            error = damage
            # Records before the damage are sound and are returned first,
            # so that the caller learns exactly which offsets are lost.
            data = data[: _sound_end(data, at, self._floor)]
            headers = self._headers(data, at, start)
        end = headers.next_position
        self._position = start + end
        self._floor = headers.next_offset or self._floor
        if len(headers):
            yield ScannedBatches(data, headers, start)
        if error is not None:
            raise error
        # Copied, because a batch is checked and decoded from contiguous bytes.
        self._carry += memoryview(data)[end:]
        self._check_carried()

    def _check_carried(self) -> None:
        # A damaged length would otherwise have the reader fetch and hold the rest of the object.
        if len(self._carry) < _LENGTH_END or self._position + self._length() <= self._size:
            return
        base = int.from_bytes(self._carry[:8])
        raise DamagedSegmentError(
            f"{self._name}: byte {self._position}: the batch at offset {base} is {self._length()} "
            f"bytes long, but only {self._size - self._position} are stored"
        )

    def _headers(self, data: Buffer, at: int, start: int) -> HeaderTable:
        return scan_headers(data, at=at, floor=self._floor, name=self._name, position=start)


def _sound_end(data: Buffer, at: int, floor: int) -> int:
    """Return where the whole batches before the damaged one end."""
    while True:
        try:
            header = parse_batch_header(data, at)
        except (DamagedSegmentError, UnsupportedFormatError):
            return at
        if header.base_offset < floor or at + header.length > len(data):
            return at
        at, floor = at + header.length, header.next_offset
