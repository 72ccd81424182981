"""The segments of a broker's log, from the names, sizes and time indexes in its directory."""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from sidetier.segments.errors import SegmentError
from sidetier.segments.headers import HEADER_BYTES
from sidetier.segments.listing import read_listing
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.segments.producer_snapshot import open_transactions
from sidetier.segments.transactions import StableEnd, TransactionTracker
from sidetier.uploader.pinning.pins import read_largest_timestamp
from sidetier.uploader.trim.decision import LocalSegment
from sidetier.uploader.watching.checkpoints import read_offset_checkpoint
from sidetier.uploader.watching.disk import list_names

_CHECKPOINT_NAME: Final = "log-start-offset-checkpoint"


def log_start_offsets(log_dirs: Iterable[str]) -> dict[TopicPartition, Offset]:
    """Return the log start offsets in the brokers' checkpoints, as far as they can be read.

    A checkpoint has only log starts within a segment. It is up to a minute old, so an entry may be
    too low.
    """
    starts: dict[TopicPartition, Offset] = {}
    for log_dir in log_dirs:
        with suppress(OSError, SegmentError):
            starts.update(read_offset_checkpoint(os.path.join(log_dir, _CHECKPOINT_NAME)))
    return starts


def local_segments(directory: str, log_start: Offset | None = None) -> tuple[LocalSegment, ...]:
    """Return the segments of a log by ascending base offset, the active one last.

    Segments that are marked for deletion, or end at or below the log start offset, are not part of
    the log: the broker deletes the latter within `log.retention.check.interval.ms`.

    Raises:
        OSError: A file cannot be read, for example because the broker has just deleted it.
    """
    listing = read_listing(list_names(directory))
    if listing.active is None:
        return ()
    segments = [
        _segment(directory, closed.base_offset, Offset(closed.next_base))
        for closed in listing.closed
        if not closed.marked_for_deletion
        and closed.next_base is not None
        and closed.next_base > (log_start or 0)
    ]
    return (*segments, _segment(directory, listing.active, None))


def stable_end(
    directory: str, segments: Sequence[LocalSegment], archived_to: Offset
) -> StableEnd | None:
    """Return the last stable offset of an archive of this log.

    Below the archive end offset, log and archive have the same records. The broker writes a
    producer snapshot when it begins a segment, with the transactions that are open at its base
    offset. So usually the snapshot at the archive end offset has the answer. If it is missing, an
    earlier one gives a lower bound. Snapshots are the broker's own record, and cost no request.

    Args:
        directory: The directory of the log.
        segments: Its segments.
        archived_to: The archive end offset.

    Returns:
        None if no snapshot at or below the archive end offset can be read.
    """
    for segment in reversed(segments):
        base = segment.base_offset
        if base > archived_to:
            continue
        path = os.path.join(directory, segment_file_name(base, FileKind.SNAPSHOT))
        with suppress(OSError, SegmentError):
            still_open = open_transactions(Path(path).read_bytes(), path)
            return TransactionTracker(base, still_open).stable_end
    return None


def first_header(directory: str, base: BaseOffset) -> bytes:
    """Return the header of a segment's first batch; fewer bytes if the segment is shorter.

    Raises:
        OSError: The file cannot be read.
    """
    path = os.path.join(directory, segment_file_name(base, FileKind.LOG))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, HEADER_BYTES, 0)
    finally:
        os.close(descriptor)


def _segment(directory: str, base: BaseOffset, end: Offset | None) -> LocalSegment:
    status = os.stat(os.path.join(directory, segment_file_name(base, FileKind.LOG)))
    # The active segment always stays, so its age does not matter.
    largest = status.st_mtime if end is None else _largest_timestamp(directory, base)
    return LocalSegment(base, end, status.st_size, status.st_mtime if largest is None else largest)


def _largest_timestamp(directory: str, base: BaseOffset) -> float | None:
    """Return the largest timestamp, as the broker uses it for retention.ms; None if the index has
    no entry. Then the broker uses the file's modification time.
    """
    path = os.path.join(directory, segment_file_name(base, FileKind.TIMEINDEX))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_largest_timestamp(descriptor)
    finally:
        os.close(descriptor)
