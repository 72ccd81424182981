"""Check every byte of a segment in one pass, and collect its facts."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, NoReturn

from sidetier.segments.crc import crc32c, crc64nvme
from sidetier.segments.errors import DamagedSegmentError, UnsupportedFormatError
from sidetier.segments.headers import (
    CONTROL,
    CRC_START,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    MIN_LENGTH,
    TRANSACTIONAL,
    check_beginning,
    check_magic,
    header_struct,
)
from sidetier.segments.index_builder import (
    NEVER,
    NO_TIME,
    IndexBuilder,
    IndexCheck,
    RebuiltIndexes,
    TimeIndexCheck,
)
from sidetier.segments.names import parse_segment_file_name
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset

DEFAULT_INDEX_INTERVAL_BYTES: Final = 4096
"""Kafka's default of `index.interval.bytes`."""

# One call unpacks all needed fields of a batch.
_FIELDS = header_struct(
    "base_offset",
    "length",
    "leader_epoch",
    "magic",
    "crc",
    "attributes",
    "last_offset_delta",
    "max_timestamp",
    "record_count",
)


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """The contents of a whole segment.

    Attributes:
        size: In bytes.
        batches: Number of batches.
        records: Sum of the batches' record counts.
        attributes: All attribute bits that any batch has.
        first_offset: Base offset of the first batch; None if the segment is empty.
        next_offset: One past the last offset; None if the segment is empty.
        max_timestamp: Largest timestamp, in ms; -1 if there is none.
        max_timestamp_offset: Last offset of the first batch that has `max_timestamp`.
        last_leader_epoch: Leader epoch of the last batch; None if the segment is empty.
        epochs: Each run of batches of one leader epoch, with the offset of its first batch, in
            order of appearance.
        crc64nvme: CRC64NVME of all bytes; 0 if it was not computed.
        indexes: The rebuilt indexes, if asked for.
        index_fits: Whether the given offset index fits the batches; None if none was given.
        time_index_fits: Whether the given time index fits the batches; None if none was given.
    """

    size: int
    batches: int
    records: int
    attributes: int
    first_offset: Offset | None
    next_offset: Offset | None
    max_timestamp: int
    max_timestamp_offset: Offset | None
    last_leader_epoch: LeaderEpoch | None
    epochs: tuple[tuple[LeaderEpoch, Offset], ...]
    crc64nvme: int
    indexes: RebuiltIndexes | None = None
    index_fits: bool | None = None
    time_index_fits: bool | None = None

    @property
    def plain_records(self) -> int | None:
        """Number of records; None if a batch belongs to a transaction."""
        return None if self.attributes & (TRANSACTIONAL | CONTROL) else self.records


class BatchWalker:
    """Checks a segment that comes in chunks, and collects its facts.

    Checks the magic, length and CRC32C of every batch, and that offsets strictly ascend. Memory
    does not grow with the segment, except for the rebuilt indexes (about 20 bytes per interval). Do
    not use a walker after it has raised.

    Args:
        name: The file's name or path, for errors. A segment's name also gives the base offset. No
            batch may begin below it, and the entries of indexes are relative to it.
        index_interval_bytes: Minimum number of bytes between two entries of a rebuilt index.
        rebuild_indexes: Also build the offset index and the time index.
        index: The bytes of the segment's offset index in pieces, to compare with the batches
            (`IndexCheck`). Ignored while indexes are rebuilt.
        time_index: The same for its time index (`TimeIndexCheck`).
        checksum: Also compute the CRC64NVME of the whole file. Without it `SegmentFacts.crc64nvme`
            is 0.

    Raises:
        ValueError: `rebuild_indexes` is set, and `name` is not a segment's.
    """

    def __init__(
        self,
        name: str,
        *,
        index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
        rebuild_indexes: bool = False,
        index: Iterable[bytes] | None = None,
        time_index: Iterable[bytes] | None = None,
        checksum: bool = True,
    ) -> None:
        parsed = parse_segment_file_name(PurePath(name).name)
        if rebuild_indexes and parsed is None:
            raise ValueError(f"{name}: indexes need a segment's name, 20 digits and .log")
        self._name = name
        self._base = parsed.base_offset if parsed else BaseOffset(0)
        self._floor: int = self._base
        """No batch may begin below this offset: the next offset of the batch before."""
        self._size = self._batches = self._records = self._attributes = 0
        self._first: int | None = None
        self._max_timestamp, self._max_timestamp_offset = -1, -1
        self._epoch: int | None = None
        self._epochs: list[tuple[LeaderEpoch, Offset]] = []
        self._checksum = checksum
        self._crc64 = 0
        # The batch that the end of the chunk cuts: its header so far, or what is left of its body.
        self._carry = bytearray()
        self._left = self._crc = self._expected_crc = self._open_at = self._open_base = 0
        self._indexes: IndexBuilder | None = None
        self._check: IndexCheck | None = None
        # One comparison in the hot loop serves all three cases:
        # build entries, compare entries, and neither (`NEVER`).
        self._index_behind = NEVER
        self._time_check = None if time_index is None else TimeIndexCheck(time_index, self._base)
        self._next_time = self._time_check.next_timestamp if self._time_check else NO_TIME
        if rebuild_indexes:
            self._indexes = IndexBuilder(name, self._base, index_interval_bytes)
            self._index_behind = index_interval_bytes
        elif index is not None:
            self._check = IndexCheck(index, self._base)
            # The hot loop asks for "above", and the entry's
            # batch must begin at that position or later.
            self._index_behind = self._check.next_position - 1

    def feed(self, chunk: memoryview) -> None:
        """Process the next bytes of the segment. Chunks may have any size.

        The walker keeps no reference to the chunk: the caller may refill its buffer after the call.

        Raises:
            DamagedSegmentError: Names file, byte position, base offset, and the problem.
            UnsupportedFormatError: Message format v0 or v1.
        """
        if self._checksum:
            self._crc64 = crc64nvme(chunk, self._crc64)
        # Order: the rest of a cut batch, then whole
        # batches, then the beginning of the next cut one.
        at = self._resume(chunk)
        if at < len(chunk):
            at = self._whole_batches(chunk, at)
            self._begin(chunk, at)
        self._size += len(chunk)

    def finish(self) -> SegmentFacts:
        """Return the facts of the segment, after its last chunk.

        Raises:
            DamagedSegmentError: The segment ends within a batch.
            UnsupportedFormatError: Message format v0 or v1.
        """
        if self._carry:
            self._check_cut_header()
        if self._left:
            self._refuse(
                f"the file ends {self._left} bytes before the batch does",
                self._open_at,
                self._open_base,
            )
        empty = self._batches == 0
        return SegmentFacts(
            size=self._size,
            batches=self._batches,
            records=self._records,
            attributes=self._attributes,
            first_offset=None if self._first is None else Offset(self._first),
            next_offset=None if empty else Offset(self._floor),
            max_timestamp=self._max_timestamp,
            max_timestamp_offset=(
                None if self._max_timestamp < 0 else Offset(self._max_timestamp_offset)
            ),
            last_leader_epoch=None if self._epoch is None else LeaderEpoch(self._epoch),
            epochs=tuple(self._epochs),
            crc64nvme=self._crc64,
            indexes=(
                self._indexes.finish(self._max_timestamp, self._max_timestamp_offset)
                if self._indexes
                else None
            ),
            index_fits=self._check.finish(self._floor) if self._check else None,
            time_index_fits=self._time_check.finish() if self._time_check else None,
        )

    def _whole_batches(self, chunk: memoryview, at: int) -> int:  # noqa: C901 - calls would cost more
        """Check the batches that are wholly within the chunk. Return where the first other one
        begins.

        The hot loop: one unpacking and one checksum per batch, everything else in locals.
        """
        unpack, size, start = _FIELDS.unpack_from, len(chunk), self._size
        floor, epoch, index_behind = self._floor, self._epoch, self._index_behind
        max_timestamp, batches, records = self._max_timestamp, self._batches, self._records
        attributes, next_time = self._attributes, self._next_time
        last_header = size - HEADER_BYTES
        while at <= last_header:
            base, length, new_epoch, magic, crc, flags, delta, timestamp, count = unpack(chunk, at)
            # The CRC does not cover base offset, length and magic: brokers set them after the
            # producer.
            if magic != MAGIC or length < MIN_LENGTH or base < floor or delta < 0:
                # The locals are not written back before an error,
                # except for the offset that the message names.
                self._floor = floor
                self._refuse_header(magic, length, base, delta, start + at)
            end = at + LENGTH_PREFIX_BYTES + length
            # The next chunk has the rest. `_begin` keeps the header, `_consume` the CRC so far.
            if end > size:
                break
            if crc32c(chunk[at + CRC_START : end]) != crc:
                self._refuse("its CRC32C does not match its bytes", start + at, base)
            if new_epoch != epoch:
                self._enter_epoch(new_epoch, base)
                epoch = new_epoch
            last = base + delta
            # Strictly above, as `LogSegment.append`: the time index names the first batch that has
            # the maximum, by its last offset, because a header does not show which record has it.
            if timestamp > max_timestamp:
                max_timestamp = self._max_timestamp = timestamp
                self._max_timestamp_offset = last
                if timestamp >= next_time:
                    next_time = self._at_time(base, last, timestamp)
            # More than, not at least: `bytesSinceLastIndexEntry > indexIntervalBytes` in
            # `LogSegment`.
            if start + at > index_behind:
                index_behind = self._at_entry(base, last, start + at)
            floor = last + 1
            batches += 1
            records += count
            # The bits of all batches, so that one bit shows whether any was transactional.
            attributes |= flags
            at = end
        self._floor, self._batches, self._records = floor, batches, records
        self._attributes = attributes
        return at

    def _resume(self, chunk: memoryview) -> int:
        """Continue the batch that the end of the last chunk cut. Return where it ends in this
        chunk.
        """
        at = 0
        if self._carry:
            at = min(HEADER_BYTES - len(self._carry), len(chunk))
            self._carry += chunk[:at]
            if len(self._carry) < HEADER_BYTES:
                return at
            header = bytes(self._carry)
            self._carry.clear()
            self._open(header, 0, self._size + at - HEADER_BYTES)
            self._consume(memoryview(header)[CRC_START:])
        if self._left:
            part = chunk[at : at + self._left]
            self._consume(part)
            at += len(part)
        return at

    def _begin(self, chunk: memoryview, at: int) -> None:
        """Process the beginning of a batch that the end of the chunk cuts."""
        if len(chunk) - at < HEADER_BYTES:
            self._carry += chunk[at:]
            return
        self._open(chunk, at, self._size + at)
        self._consume(chunk[at + CRC_START :])

    def _open(self, buffer: bytes | memoryview, at: int, position: int) -> None:
        """Process the header of a batch whose bytes are not all there yet, as the hot loop does."""
        fields = _FIELDS.unpack_from(buffer, at)
        base, length, epoch, magic, crc, flags, delta, timestamp, count = fields
        if magic != MAGIC or length < MIN_LENGTH or base < self._floor or delta < 0:
            self._refuse_header(magic, length, base, delta, position)
        last = base + delta
        if epoch != self._epoch:
            self._enter_epoch(epoch, base)
        if timestamp > self._max_timestamp:
            self._max_timestamp, self._max_timestamp_offset = timestamp, last
            if timestamp >= self._next_time:
                self._at_time(base, last, timestamp)
        if position > self._index_behind:
            self._at_entry(base, last, position)
        self._floor = last + 1
        self._batches += 1
        self._records += count
        self._attributes |= flags
        self._open_at, self._open_base = position, base
        # What is left for the CRC: everything from the attributes on.
        self._left = length + LENGTH_PREFIX_BYTES - CRC_START
        self._crc, self._expected_crc = 0, crc

    def _consume(self, part: memoryview) -> None:
        self._crc = crc32c(part, self._crc)
        self._left -= len(part)
        if self._left == 0 and self._crc != self._expected_crc:
            self._refuse("its CRC32C does not match its bytes", self._open_at, self._open_base)

    def _enter_epoch(self, epoch: int, base: int) -> None:
        if self._first is None:
            self._first = base
        self._epoch = epoch
        self._epochs.append((LeaderEpoch(epoch), Offset(base)))

    def _at_entry(self, base: int, last: int, position: int) -> int:
        """Check or add an index entry for this batch. Return the position after which the next is
        due.
        """
        if self._check:
            self._index_behind = self._check.at_batch(base, position) - 1
        elif self._indexes:
            self._index_behind = self._indexes.add(
                last, position, self._max_timestamp, self._max_timestamp_offset
            )
        return self._index_behind

    def _at_time(self, base: int, last: int, timestamp: int) -> int:
        """Check the time index entry for this new maximum. Return the timestamp of the next
        entry.
        """
        if self._time_check:
            self._next_time = self._time_check.at_maximum(base, last, timestamp)
        return self._next_time

    def _refuse_header(
        self, magic: int, length: int, base: int, delta: int, position: int
    ) -> NoReturn:
        with self._told_where(position):
            # The magic first: with another format, the other fields mean nothing.
            check_magic(magic, length)
        if length < MIN_LENGTH:
            self._refuse(f"its length field {length} is less than a header's", position, base)
        if delta < 0:
            self._refuse(f"its last offset delta is {delta}", position, base)
        before = "the segment's base" if self._first is None else "the next offset"
        self._refuse(f"its base offset is below {before}, {self._floor}", position, base)

    def _check_cut_header(self) -> None:
        position = self._size - len(self._carry)
        with self._told_where(position):
            check_beginning(self._carry)
        raise DamagedSegmentError(
            f"{self._name}: byte {position}: the file ends within a batch header, after "
            f"{len(self._carry)} of {HEADER_BYTES} bytes, where offset {self._floor} would follow"
        )

    @contextmanager
    def _told_where(self, position: int) -> Iterator[None]:
        try:
            yield
        except (DamagedSegmentError, UnsupportedFormatError) as error:
            raise type(error)(f"{self._name}: byte {position}: {error}") from None

    def _refuse(self, reason: str, position: int, base: int) -> NoReturn:
        raise DamagedSegmentError(
            f"{self._name}: byte {position}: batch with base offset {base}: {reason}"
        )
