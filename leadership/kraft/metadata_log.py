"""Follow the broker's own copy of the metadata log, and keep the image that it describes.

Batches on disk may be uncommitted, and can be truncated again. After each read, the last applied
batch is compared with the bytes now at its position. Truncation cuts a suffix before anything new
is appended, so while that batch is unchanged, everything before it is unchanged too. Otherwise
everything is read again from the newest snapshot.

Sources: Kafka's `UnifiedLog` (segments) and KIP-630 (snapshots, `<end offset>-<epoch>.checkpoint`).
A snapshot gets this name only when it is complete (`.checkpoint.part` before).
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sidetier.leadership.kraft.image import MetadataImage, decode_record
from sidetier.segments.batches import check_crc, split_batches
from sidetier.segments.errors import (
    DamagedSegmentError,
    LeadershipError,
    LeadershipUnavailableError,
    SegmentError,
    UnsupportedFormatError,
)
from sidetier.segments.headers import HEADER_BYTES, BatchHeader
from sidetier.segments.offsets import BaseOffset, Offset
from sidetier.segments.records import decode_records

METADATA_DIRECTORY = "__cluster_metadata-0"

_LOG = re.compile(r"([0-9]{20})\.log")
_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")


class SnapshotId(NamedTuple):
    """Snapshot of all records below `end_offset` (exclusive); sorts by age."""

    end_offset: Offset
    epoch: int

    @property
    def file_name(self) -> str:
        """File name of the snapshot in Kafka."""
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"


@dataclass(frozen=True, slots=True)
class MetadataFiles:
    """Files of one directory listing, in ascending order."""

    logs: tuple[BaseOffset, ...]
    snapshots: tuple[SnapshotId, ...]

    def segment_holding(self, offset: Offset) -> BaseOffset | None:
        """Return the segment that contains `offset`; None if all segments begin above it."""
        return max((base for base in self.logs if base <= offset), default=None)

    def segment_after(self, base: BaseOffset) -> BaseOffset | None:
        """Return the next segment; None if `base` is the active one."""
        return min((other for other in self.logs if other > base), default=None)


def parse_files(names: Iterable[str]) -> MetadataFiles:
    """Parse a listing; ignore other names (indexes, `.deleted`, `.part`, checkpoints)."""
    logs, snapshots = [], []
    for name in names:
        if log := _LOG.fullmatch(name):
            logs.append(BaseOffset(int(log[1])))
        elif snapshot := _SNAPSHOT.fullmatch(name):
            snapshots.append(SnapshotId(Offset(int(snapshot[1])), int(snapshot[2])))
    return MetadataFiles(tuple(sorted(logs)), tuple(sorted(snapshots)))


def log_file_name(base: BaseOffset) -> str:
    """Return the name of a segment's `.log` file."""
    return f"{base:020d}.log"


@dataclass(frozen=True, slots=True)
class Batch:
    """One whole batch; `start` (inclusive) and `end` (exclusive) are byte positions in the file."""

    start: int
    end: int
    raw_header: bytes
    base_offset: Offset
    next_offset: Offset
    values: tuple[bytes, ...]
    """One value per offset; empty for a control batch (leader change, snapshot header, footer)."""


def read_batches(data: bytes, origin: int = 0) -> Iterator[Batch]:
    """Yield the whole batches of `data`; stop without an error at one that is cut off.

    A batch at the very end with a wrong CRC counts as cut off: the broker may still be writing it.

    Args:
        data: Bytes that begin at a batch.
        origin: Byte position of `data` in its file.

    Raises:
        DamagedSegmentError: A batch that is followed by others has a wrong CRC.
        UnsupportedFormatError: A batch has another message format, or an unknown compression codec
            (metadata logs are never compressed).
    """
    start, whole = origin, origin + len(data)
    for batch, header in split_batches(memoryview(data)):
        end = start + len(batch)
        try:
            check_crc(batch)
        except DamagedSegmentError:
            # Half written, or half visible. The next read finds it whole, or it was truncated.
            if end == whole:
                return
            raise
        yield Batch(
            start=start,
            end=end,
            raw_header=bytes(batch[:HEADER_BYTES]),
            base_offset=header.base_offset,
            next_offset=header.next_offset,
            values=() if header.is_control else _values(bytes(batch[HEADER_BYTES:]), header),
        )
        start = end


def _values(body: bytes, header: BatchHeader) -> tuple[bytes, ...]:
    return tuple(record.value or b"" for record in decode_records(header, body))


_CHUNK_BYTES = 1 << 20
_TRIES = 3
_BEGINNING = Offset(0)


class _LostTrackError(Exception):
    """The data read so far no longer matches the files."""


@dataclass(frozen=True, slots=True)
class _Anchor:
    """The last applied batch: its segment and byte position, and its header with the CRC."""

    segment: BaseOffset
    start: int
    header: bytes


@dataclass(slots=True)
class _Progress:
    """How far the log was read, and the resulting image."""

    next_offset: Offset = _BEGINNING
    segment: BaseOffset | None = None
    position: int = 0
    anchor: _Anchor | None = None
    image: MetadataImage = field(default_factory=MetadataImage)
    changed: bool = False


class MetadataLog:
    """The metadata log in one directory. For one thread at a time."""

    def __init__(self, directory: Path, *, chunk_bytes: int = _CHUNK_BYTES) -> None:
        self._directory = directory
        self._chunk_bytes = chunk_bytes
        self._progress: _Progress | None = None
        self.reloads = 0
        """Number of full reads from the newest snapshot, including the first one."""

    @property
    def image(self) -> MetadataImage:
        """Image that the log described at the last `poll`."""
        return self._progress.image if self._progress else MetadataImage()

    def poll(self) -> bool:
        """Read new batches; return True if the image may have changed.

        Raises:
            LeadershipUnavailableError: The files are missing, or do not fit together at the moment.
            LeadershipError: The files are of an unknown version.
        """
        if self._progress is not None:
            try:
                self._progress.changed = False
                self._read_forward(self._progress)
            # Not an error yet: the files may have been truncated,
            # or deleted behind a snapshot. A full read shows.
            except (_LostTrackError, SegmentError, OSError):
                self._progress = None
            except Exception:
                self._progress = None  # may be half applied: the next poll reads everything again
                raise
            else:
                return self._progress.changed
        self._progress = self._reload()
        return True

    def _reload(self) -> _Progress:
        """Read from the newest snapshot; retry, because the broker may delete files meanwhile."""
        reason: Exception | None = None
        for _ in range(_TRIES):
            try:
                return self._load()
            except (_LostTrackError, SegmentError, OSError) as error:
                reason = error
        text = f"the metadata log in {self._directory} cannot be read: {reason}"
        if isinstance(reason, UnsupportedFormatError):
            raise LeadershipError(text) from reason
        raise LeadershipUnavailableError(text) from reason

    def _load(self) -> _Progress:
        self.reloads += 1
        files = self._list()
        progress = _Progress()
        if files.snapshots:
            self._load_snapshot(progress, files.snapshots[-1])
        progress.segment = files.segment_holding(progress.next_offset)
        # With a snapshot, the log may have no segment yet.
        if progress.segment is None and (files.logs or not files.snapshots):
            raise _LostTrackError(f"no segment contains offset {progress.next_offset}")
        self._read_forward(progress)
        return progress

    def _load_snapshot(self, progress: _Progress, snapshot: SnapshotId) -> None:
        position = 0
        with (self._directory / snapshot.file_name).open("rb") as file:
            for batch in self._batches(file.fileno(), 0):
                _apply(progress, batch.values)
                position = batch.end
            # A snapshot gets its name when it is complete, so bytes that are left over mean damage.
            if position != os.fstat(file.fileno()).st_size:
                raise _LostTrackError(
                    f"snapshot {snapshot.file_name} is cut off at byte {position}"
                )
        # From the name: the batches of a snapshot have offsets of their own.
        progress.next_offset = snapshot.end_offset

    def _read_forward(self, progress: _Progress) -> None:
        while True:
            files = self._list()  # before reading: a segment with a successor is then complete
            if progress.segment is None:
                progress.segment = files.segment_holding(progress.next_offset)
                if progress.segment is None:
                    return
            anchor = progress.anchor
            self._read_segment(progress, progress.segment)
            self._check_anchor(anchor)  # after reading: if unchanged, the batches read follow it
            following = files.segment_after(progress.segment)
            if following is None:
                return
            # A closed segment ends at the base of the next one.
            # Otherwise it was truncated or replaced while it was read.
            if int(following) != progress.next_offset:
                raise _LostTrackError(
                    f"segment {following} does not follow offset {progress.next_offset}"
                )
            progress.segment, progress.position = following, 0

    def _read_segment(self, progress: _Progress, segment: BaseOffset) -> None:
        with (self._directory / log_file_name(segment)).open("rb") as file:
            if os.fstat(file.fileno()).st_size < progress.position:
                raise _LostTrackError(f"segment {segment} became shorter")
            for batch in self._batches(file.fileno(), progress.position):
                _take(progress, batch)
                progress.anchor = _Anchor(segment, batch.start, batch.raw_header)
                progress.position = batch.end

    def _check_anchor(self, anchor: _Anchor | None) -> None:
        if anchor is None:
            return
        with (self._directory / log_file_name(anchor.segment)).open("rb") as file:
            if os.pread(file.fileno(), HEADER_BYTES, anchor.start) != anchor.header:
                raise _LostTrackError(
                    f"segment {anchor.segment} was rewritten at byte {anchor.start}"
                )

    def _batches(self, file: int, position: int) -> Iterator[Batch]:
        """Yield the whole batches from `position` to the end of the file, one chunk in memory."""
        chunk_bytes = self._chunk_bytes
        while data := os.pread(file, chunk_bytes, position):
            begun_at = position
            for batch in read_batches(data, position):
                yield batch
                position = batch.end
            if position == begun_at:  # the batch is larger than the chunk, or the tail is cut off
                if len(data) < chunk_bytes:
                    return
                chunk_bytes *= 2

    def _list(self) -> MetadataFiles:
        return parse_files(entry.name for entry in self._directory.iterdir())


def _take(progress: _Progress, batch: Batch) -> None:
    """Apply one batch, or the part of it that is above the next offset."""
    if batch.base_offset > progress.next_offset:
        raise _LostTrackError(
            f"offset {progress.next_offset} is missing before {batch.base_offset}"
        )
    if batch.next_offset > progress.next_offset:
        # The next offset can be within a batch, after a snapshot. Metadata
        # logs are not compacted, so values and offsets correspond.
        _apply(progress, batch.values[progress.next_offset - batch.base_offset :])
        progress.next_offset = batch.next_offset


def _apply(progress: _Progress, values: Sequence[bytes]) -> None:
    for value in values:
        record = decode_record(value)
        if record is not None and progress.image.apply(record):
            progress.changed = True
