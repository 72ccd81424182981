"""Measure the unarchived end of a led partition's log, for the status and for early archiving.

It costs a few stat calls for each partition, at intervals. Whether a record is archived does not
depend on it, only when the active segment is read for an early segment.
"""

import os
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sidetier.segments.errors import SegmentError
from sidetier.segments.headers import HEADER_BYTES, BatchHeader, TimestampType, parse_batch_header
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.uploader.gates.high_watermark import CommittedGate
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.watching.disk import PARTITION_METADATA, BatchPosition

_BLOCK_BYTES: Final = 512
"""The unit of `st_blocks`, whatever the file system's block size is."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """The end of a partition's log on this broker.

    Attributes:
        log_end: High watermark, as in the column LOG-END-OFFSET of Kafka's own tools; None where it
            is not known.
        active_bytes: Bytes of the active segment that are not archived.
        unarchived_since: When the oldest record that is not archived was appended, in seconds since
            1970; None where there is none.
        written_bytes: At most `active_bytes`: without the bytes of a preallocated segment that the
            broker has not written yet. Too few where the file system compresses.
        has_batch: Whether a record batch begins where the unarchived end does.
    """

    log_end: Offset | None
    active_bytes: int
    unarchived_since: float | None
    written_bytes: int = 0
    has_batch: bool = False


class _Unarchived(NamedTuple):
    """The beginning of a log's unarchived end. The first three identify it."""

    segment: BaseOffset
    archived_to: Offset | None
    known: BatchPosition | None
    position: int
    """In bytes of the segment."""
    since: float
    has_batch: bool


@dataclass(slots=True)
class LogTails:
    """Measures the logs of partitions.

    Remembers where the unarchived end of each log begins and since when, which changes only with
    the archive, so that a file is read only once.
    """

    gate: CommittedGate
    _began: dict[TopicPartition, _Unarchived] = field(default_factory=dict)

    def measure(self, partition: Partition) -> LogTail | None:
        """Measure a partition from its files and the known high watermark; None if not possible."""
        directory, active = partition.directory, partition.log.active
        if directory is None or partition.log_dir is None or active is None:
            return None
        tp = partition.topic_partition
        path = os.path.join(directory, segment_file_name(active, FileKind.LOG))
        try:
            status = os.stat(path)
        except OSError:
            return None
        log_end = self.gate.high_watermark(tp, partition.log_dir)
        oldest, last_append = _oldest(partition, active, status.st_mtime)
        archived_to = partition.stored_below()
        if archived_to is not None and archived_to <= oldest:
            archived_to = None
        known = None if archived_to is None else partition.position_in(oldest)
        if oldest == active and status.st_size <= (0 if known is None else known.position):
            return LogTail(log_end, 0, None)
        began = self._began.get(tp)
        if began is None or began[:3] != (oldest, archived_to, known) or not began.has_batch:
            began = _unarchived(directory, oldest, archived_to, known, last_append)
            self._began[tp] = began
        if known is not None and oldest == active and not began.has_batch:
            return LogTail(log_end, 0, None)
        position = began.position if oldest == active else 0
        size = max(0, status.st_size - position)
        written = size if not status.st_blocks else status.st_blocks * _BLOCK_BYTES - position
        return LogTail(log_end, size, began.since, max(0, min(size, written)), began.has_batch)

    def forget(self, tp: TopicPartition) -> None:
        """Forget a partition that this broker no longer leads."""
        self._began.pop(tp, None)


def _oldest(partition: Partition, active: BaseOffset, modified: float) -> tuple[BaseOffset, float]:
    """Return the first segment that is not stored as a whole, and the time of its last append."""
    tracked = partition.log.tracked
    if not tracked:
        return active, modified
    oldest = min(tracked)
    return oldest, tracked[oldest].modified_ns / 1e9


def _unarchived(
    directory: str,
    base: BaseOffset,
    archived_to: Offset | None,
    known: BatchPosition | None,
    last_append: float,
) -> _Unarchived:
    """Return where the unarchived end begins: at the known position, or with the segment."""
    path = os.path.join(directory, segment_file_name(base, FileKind.LOG))
    position = 0 if known is None else known.position
    has_batch = _batch_at(path, position) is not None
    since = first_append(directory, base, last_append, position)
    return _Unarchived(base, archived_to, known, position, since, has_batch)


def first_append(directory: str, base: BaseOffset, last_append: float, position: int = 0) -> float:
    """Return when the first record of a segment was appended, in seconds since 1970; with
    `position`, the first record of the batch at this byte.

    This is the timestamp of the batch, limited to the time between the segment's begin and
    its last append, because records may carry timestamps of the past. A segment begins when the
    broker writes its producer snapshot; the first segment of a log, when the broker writes
    `partition.metadata`.
    """
    began = 0.0
    for name in (segment_file_name(base, FileKind.SNAPSHOT), PARTITION_METADATA):
        try:
            began = os.stat(os.path.join(directory, name)).st_mtime
        except OSError:
            continue
        break
    path = os.path.join(directory, segment_file_name(base, FileKind.LOG))
    timestamp = _first_timestamp(path, position)
    return min(max(began, last_append if timestamp is None else timestamp), last_append)


def _batch_at(path: str, position: int) -> BatchHeader | None:
    try:
        with open(path, "rb", buffering=0) as log:
            log.seek(position)
            return parse_batch_header(log.read(HEADER_BYTES))
    except (OSError, SegmentError):
        return None


def _first_timestamp(path: str, position: int) -> float | None:
    header = _batch_at(path, position)
    if header is None:
        return None
    by_broker = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    timestamp = header.max_timestamp if by_broker else header.base_timestamp
    return None if timestamp < 0 else timestamp / 1000
