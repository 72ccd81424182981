"""One partition's log on this host, from file names and batch headers. Read-only."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sidetier.segments.errors import DamagedSegmentError, SegmentError
from sidetier.segments.headers import walk_headers
from sidetier.segments.listing import PartitionListing, read_listing
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.uploader.gates.divergence import log_end_offset
from sidetier.uploader.gates.high_watermark import CHECKPOINT_NAME
from sidetier.uploader.trim.local_log import log_start_offsets
from sidetier.uploader.watching.checkpoints import read_offset_checkpoint
from sidetier.uploader.watching.disk import find_partitions, list_names


class Place(StrEnum):
    """State of a segment on the broker."""

    CLOSED = "closed"
    MARKED_FOR_DELETION = "staged"
    """Renamed to `.deleted`; the broker unlinks it after `file.delete.delay.ms`."""
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """A `.log` file on the disk.

    Attributes:
        next_offset: One past the last offset. None for a segment that is marked for deletion and
            whose end could only be found by reading it.
        path: Path of the file.
        modified_ms: Time of the last write, in ms since 1970.
    """

    base_offset: BaseOffset
    next_offset: Offset | None
    place: Place
    path: str
    size_bytes: int
    modified_ms: int

    def holds(self, offset: int) -> bool:
        """Return whether the segment holds the offset. Without an end, it may hold any above it."""
        end = self.next_offset
        return self.base_offset <= offset and (end is None or offset < end)


@dataclass(frozen=True, slots=True)
class LocalLog:
    """One partition's segments by ascending base offset, ending with the active segment.

    Attributes:
        first_timestamp_ms: Largest timestamp of the active segment's first batch, from which the
            broker counts `segment.ms`; in ms since 1970.
        checkpointed: High watermark in `replication-offset-checkpoint`.
        deleted_below: Offset below which records were deleted, from `log-start-offset-checkpoint`;
            None if it has none. The broker deletes the segments below it at its next check.
    """

    directory: str
    segments: tuple[LocalSegment, ...] = ()
    first_timestamp_ms: int | None = None
    checkpointed: Offset | None = None
    deleted_below: Offset | None = None

    @property
    def active(self) -> LocalSegment | None:
        """Segment that the broker appends to."""
        return next((segment for segment in self.segments if segment.place is Place.ACTIVE), None)

    @property
    def start(self) -> Offset | None:
        """Lowest base offset of a segment that is not marked for deletion."""
        live = (
            segment for segment in self.segments if segment.place is not Place.MARKED_FOR_DELETION
        )
        return next((Offset(segment.base_offset) for segment in live), None)

    @property
    def end(self) -> Offset | None:
        """Log end offset."""
        return None if self.active is None else self.active.next_offset

    def holder(self, offset: int) -> LocalSegment | None:
        """Return the segment that holds the offset, preferably one not marked for deletion."""
        holders = [segment for segment in self.segments if segment.holds(offset)]
        return max(
            holders,
            key=lambda segment: (
                segment.place is not Place.MARKED_FOR_DELETION,
                segment.base_offset,
            ),
            default=None,
        )

    def bytes_between(self, start: int, end: int) -> int:
        """Return the size of all segments with offsets in [start, end): an upper bound in bytes."""
        return sum(
            segment.size_bytes
            for segment in self.segments
            if segment.base_offset < end
            and (segment.next_offset is None or segment.next_offset > start)
        )


def local_log(log_dirs: Iterable[str], tp: TopicPartition) -> LocalLog | None:
    """Read the partition's log on this host; None if no log dir holds the partition.

    Raises:
        OSError: A log dir that may hold the partition cannot be read, or the partition's directory
            is refused.
    """
    partitions = find_partitions(log_dirs, lambda topic: topic == tp.topic)
    directory = partitions.directories.get(tp)
    if directory is not None:
        return read_log(directory, tp)
    why = partitions.refused.get(tp) or "; ".join(partitions.unreadable.values())
    if why:
        raise OSError(why)
    return None


def read_log(directory: str, tp: TopicPartition) -> LocalLog:
    """Read the log in a partition's directory."""
    listing = read_listing(list_names(directory))
    rows = []
    for closed in listing.closed:
        place = Place.MARKED_FOR_DELETION if closed.marked_for_deletion else Place.CLOSED
        rows.append(_segment(directory, closed.base_offset, closed.next_base, place))
    if listing.active is not None:
        end = _end(directory, listing.active)
        rows.append(_segment(directory, listing.active, end, Place.ACTIVE))
    return LocalLog(
        directory,
        tuple(row for row in rows if row is not None),
        _first_timestamp(directory, listing),
        _checkpointed(Path(directory).parent, tp),
        log_start_offsets([str(Path(directory).parent)]).get(tp),
    )


def _segment(
    directory: str, base: BaseOffset, end: int | None, place: Place
) -> LocalSegment | None:
    """Return the segment; None if the broker has deleted or renamed the file meanwhile."""
    name = segment_file_name(base, FileKind.LOG, deleted=place is Place.MARKED_FOR_DELETION)
    path = Path(directory, name)
    try:
        status = path.stat()
    except OSError:
        return None
    until = None if end is None else Offset(end)
    return LocalSegment(
        base, until, place, str(path), status.st_size, status.st_mtime_ns // 1_000_000
    )


def _end(directory: str, active: BaseOffset) -> Offset:
    try:
        return log_end_offset(directory, active)
    except OSError:
        return Offset(active)


def _first_timestamp(directory: str, listing: PartitionListing) -> int | None:
    if listing.active is None:
        return None
    path = Path(directory, segment_file_name(listing.active, FileKind.LOG))
    try:
        with path.open("rb") as log:
            size = os.fstat(log.fileno()).st_size
            headers = walk_headers(lambda at, length: os.pread(log.fileno(), length, at), size)
            _, first = next(headers)
    except (OSError, StopIteration, DamagedSegmentError):
        return None  # the segment is empty
    return first.max_timestamp if first.max_timestamp >= 0 else None


def _checkpointed(log_dir: Path, tp: TopicPartition) -> Offset | None:
    try:
        return read_offset_checkpoint(str(log_dir / CHECKPOINT_NAME)).get(tp)
    except (OSError, SegmentError):
        return None
