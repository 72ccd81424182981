"""What lies on this host's disks of one partition, as far as names and headers tell; only reads."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sidetier.segments.checkpoints import parse_offset_checkpoint
from sidetier.segments.errors import DamagedSegmentError, SegmentError
from sidetier.segments.headers import walk_headers
from sidetier.segments.listing import PartitionListing, read_listing
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.uploader.gates.divergence import log_end_offset
from sidetier.uploader.gates.high_watermark import CHECKPOINT_NAME
from sidetier.uploader.watching.disk import find_partitions, list_names, read_text


class Place(StrEnum):
    """What a segment is to the broker."""

    CLOSED = "closed"
    STAGED = "staged"
    """Renamed to `.deleted`, and unlinked soon."""
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """A `.log` on the disk. `next_offset` is one past its last offset, None where only reading a
    staged segment could tell; `modified_ms` is its last write, in ms since 1970.
    """

    base_offset: BaseOffset
    next_offset: Offset | None
    place: Place
    path: str
    size_bytes: int
    modified_ms: int

    def holds(self, offset: int) -> bool:
        """Whether this offset lies in it; a staged one without a known end may hold all above."""
        end = self.next_offset
        return self.base_offset <= offset and (end is None or offset < end)


@dataclass(frozen=True, slots=True)
class LocalLog:
    """One partition's segments by rising base offset, the active one with its records' end.

    `first_timestamp_ms` is that of the active segment's first batch, from which the broker counts
    `segment.ms`; `checkpointed` is the high watermark in `replication-offset-checkpoint`.
    """

    directory: str
    segments: tuple[LocalSegment, ...] = ()
    first_timestamp_ms: int | None = None
    checkpointed: Offset | None = None

    @property
    def active(self) -> LocalSegment | None:
        """The segment that the broker appends to."""
        return next((one for one in self.segments if one.place is Place.ACTIVE), None)

    @property
    def start(self) -> Offset | None:
        """The lowest base offset that is not staged."""
        live = (one for one in self.segments if one.place is not Place.STAGED)
        return next((Offset(one.base_offset) for one in live), None)

    @property
    def end(self) -> Offset | None:
        """The log end offset."""
        return None if self.active is None else self.active.next_offset

    def holder(self, offset: int) -> LocalSegment | None:
        """The segment that holds this offset, a live one before a staged one."""
        found = [one for one in self.segments if one.holds(offset)]
        return max(
            found, key=lambda one: (one.place is not Place.STAGED, one.base_offset), default=None
        )

    def bytes_between(self, start: int, end: int) -> int:
        """The size of all segments that hold any of these offsets: at most so many bytes."""
        return sum(
            one.size_bytes
            for one in self.segments
            if one.base_offset < end and (one.next_offset is None or one.next_offset > start)
        )


def local_log(log_dirs: Iterable[str], tp: TopicPartition) -> LocalLog | None:
    """The partition's log on this host; None where no log dir holds it.

    Raises:
        OSError: the log dir that may hold it cannot be read, or its directory is not.
    """
    found = find_partitions(log_dirs, lambda topic: topic == tp.topic)
    directory = found.directories.get(tp)
    if directory is not None:
        return read_log(directory, tp)
    why = found.refused.get(tp) or "; ".join(found.unreadable.values())
    if why:
        raise OSError(why)
    return None


def read_log(directory: str, tp: TopicPartition) -> LocalLog:
    """The log in a partition's directory."""
    listing = read_listing(list_names(directory))
    rows = [
        _segment(
            directory,
            one.base_offset,
            one.next_base,
            _closed_place(marked_for_deletion=one.marked_for_deletion),
        )
        for one in listing.closed
    ]
    if listing.active is not None:
        end = _end(directory, listing.active)
        rows.append(_segment(directory, listing.active, end, Place.ACTIVE))
    return LocalLog(
        directory,
        tuple(row for row in rows if row is not None),
        _first_timestamp(directory, listing),
        _checkpointed(Path(directory).parent, tp),
    )


def _closed_place(*, marked_for_deletion: bool) -> Place:
    return Place.STAGED if marked_for_deletion else Place.CLOSED


def _segment(
    directory: str, base: BaseOffset, end: int | None, place: Place
) -> LocalSegment | None:
    """None where the broker was quicker."""
    name = segment_file_name(base, FileKind.LOG, deleted=place is Place.STAGED)
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
        return None  # nothing is in it yet
    return first.max_timestamp if first.max_timestamp >= 0 else None


def _checkpointed(log_dir: Path, tp: TopicPartition) -> Offset | None:
    path = str(log_dir / CHECKPOINT_NAME)
    try:
        return parse_offset_checkpoint(read_text(path), path).get(tp)
    except (OSError, SegmentError):
        return None
