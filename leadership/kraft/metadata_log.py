"""Follows the broker's own copy of the metadata log, and keeps the image that it describes.

What is on disk may not be committed, and can vanish again. After each read the last batch that was
taken in is compared with what lies at its place now: truncation cuts a suffix before anything is
written anew, so as long as that batch is unchanged all before it is too. Otherwise everything is
read again from the newest snapshot.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sidetier.leadership.kraft.batches import Batch, read_batches
from sidetier.leadership.kraft.directory import (
    MetadataFiles,
    SnapshotId,
    log_file_name,
    parse_files,
)
from sidetier.leadership.kraft.image import MetadataImage
from sidetier.leadership.kraft.records import decode_record
from sidetier.segments.errors import (
    LeadershipError,
    LeadershipUnavailableError,
    SegmentError,
    UnsupportedFormatError,
)
from sidetier.segments.headers import HEADER_BYTES
from sidetier.segments.offsets import BaseOffset, Offset

_CHUNK_BYTES = 1 << 20
_TRIES = 3
_BEGINNING = Offset(0)


class _LostTrackError(Exception):
    """What was read no longer fits what is there."""


@dataclass(frozen=True, slots=True)
class _Anchor:
    """The last batch that was taken in: where it lies, and its header with the checksum."""

    segment: BaseOffset
    start: int
    header: bytes


@dataclass(slots=True)
class _Progress:
    """How far the log has been read."""

    next_offset: Offset = _BEGINNING
    segment: BaseOffset | None = None
    position: int = 0
    anchor: _Anchor | None = None
    image: MetadataImage = field(default_factory=MetadataImage)
    changed: bool = False


class MetadataLog:
    """The metadata log in one directory; not for use by several threads at once."""

    def __init__(self, directory: Path, *, chunk_bytes: int = _CHUNK_BYTES) -> None:
        self._directory = directory
        self._chunk_bytes = chunk_bytes
        self._progress: _Progress | None = None
        self.reloads = 0
        """How often everything was read from the newest snapshot, the first time included."""

    @property
    def image(self) -> MetadataImage:
        """What the log described at the last `poll`."""
        return self._progress.image if self._progress else MetadataImage()

    def poll(self) -> bool:
        """Read what is new; True where the image may have changed.

        Raises:
            LeadershipUnavailableError: the files are missing or do not fit together now.
            LeadershipError: they are of a version that is not known here.
        """
        if self._progress is not None:
            try:
                self._progress.changed = False
                self._read_forward(self._progress)
            except (_LostTrackError, SegmentError, OSError):
                self._progress = None
            except Exception:
                self._progress = None  # a part may have been taken in: the next poll reads it anew
                raise
            else:
                return self._progress.changed
        self._progress = self._reload()
        return True

    def _reload(self) -> _Progress:
        """Read from the newest snapshot on; tries again, as files may be cleaned away meanwhile."""
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
        if progress.segment is None and (files.logs or not files.snapshots):
            raise _LostTrackError(f"no segment holds offset {progress.next_offset}")
        self._read_forward(progress)
        return progress

    def _load_snapshot(self, progress: _Progress, snapshot: SnapshotId) -> None:
        position = 0
        with (self._directory / snapshot.file_name).open("rb") as file:
            for batch in self._batches(file.fileno(), 0):
                _apply(progress, batch.values)
                position = batch.end
            if position != os.fstat(file.fileno()).st_size:
                raise _LostTrackError(
                    f"snapshot {snapshot.file_name} is cut off at byte {position}"
                )
        progress.next_offset = snapshot.end_offset

    def _read_forward(self, progress: _Progress) -> None:
        while True:
            files = self._list()  # first: a segment that has a successor is whole when it is read
            if progress.segment is None:
                progress.segment = files.segment_holding(progress.next_offset)
                if progress.segment is None:
                    return
            anchor = progress.anchor
            self._read_segment(progress, progress.segment)
            self._check_anchor(anchor)  # last: while it stands, what was read followed it
            following = files.segment_after(progress.segment)
            if following is None:
                return
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
        """The whole batches from `position` to the end of the file, a chunk in memory at a time."""
        chunk_bytes = self._chunk_bytes
        while data := os.pread(file, chunk_bytes, position):
            begun_at = position
            for batch in read_batches(data, position):
                yield batch
                position = batch.end
            if position == begun_at:  # one batch fills more than the chunk, or the tail is cut off
                if len(data) < chunk_bytes:
                    return
                chunk_bytes *= 2

    def _list(self) -> MetadataFiles:
        return parse_files(entry.name for entry in self._directory.iterdir())


def _take(progress: _Progress, batch: Batch) -> None:
    """Take one batch of the log in, or the part of it that lies above what is known already."""
    if batch.base_offset > progress.next_offset:
        raise _LostTrackError(
            f"offset {progress.next_offset} is missing before {batch.base_offset}"
        )
    if batch.next_offset > progress.next_offset:
        _apply(progress, batch.values[progress.next_offset - batch.base_offset :])
        progress.next_offset = batch.next_offset


def _apply(progress: _Progress, values: Sequence[bytes]) -> None:
    for value in values:
        record = decode_record(value)
        if record is not None and progress.image.apply(record):
            progress.changed = True
