"""Measure the unarchived end of a led partition's log, for the status.

It costs a few stat calls for each partition, at intervals. Archiving does not depend on it.
"""

import os
from dataclasses import dataclass, field
from typing import Final

from sidetier.segments.errors import SegmentError
from sidetier.segments.headers import HEADER_BYTES, TimestampType, parse_batch_header
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.uploader.gates.high_watermark import CommittedGate
from sidetier.uploader.state.partition import Partition

_PARTITION_METADATA: Final = "partition.metadata"


@dataclass(frozen=True, slots=True)
class LogTail:
    """The end of a partition's log on this broker.

    Attributes:
        log_end: High watermark, as in the column LOG-END-OFFSET of Kafka's own tools; None where it
            is not known.
        active_bytes: Size of the active segment, in bytes.
        unarchived_since: When the first record was appended to the oldest segment that is not
            archived, in seconds since 1970; None where that segment is empty.
    """

    log_end: Offset | None
    active_bytes: int
    unarchived_since: float | None


@dataclass(slots=True)
class LogTails:
    """Measures the logs of partitions.

    Remembers when the oldest unarchived segment of each partition got its first record, which never
    changes, so that the file is read only once.
    """

    gate: CommittedGate
    _began: dict[TopicPartition, tuple[BaseOffset, float]] = field(default_factory=dict)

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
        oldest, last_append = active, status.st_mtime
        if partition.log.tracked:
            oldest = min(partition.log.tracked)
            last_append = partition.log.tracked[oldest].modified_ns / 1e9
        elif status.st_size == 0:
            return LogTail(log_end, 0, None)
        began = self._began.get(tp)
        if began is None or began[0] != oldest:
            began = self._began[tp] = oldest, first_append(directory, oldest, last_append)
        return LogTail(log_end, status.st_size, began[1])

    def forget(self, tp: TopicPartition) -> None:
        """Forget a partition that this broker no longer leads."""
        self._began.pop(tp, None)


def first_append(directory: str, base: BaseOffset, last_append: float) -> float:
    """Return when the first record of a segment was appended, in seconds since 1970.

    This is the timestamp of its first batch, limited to the time between the segment's begin and
    its last append, because records may carry timestamps of the past. A segment begins when the
    broker writes its producer snapshot; the first segment of a log, when the broker writes
    `partition.metadata`.
    """
    began = 0.0
    for name in (segment_file_name(base, FileKind.SNAPSHOT), _PARTITION_METADATA):
        try:
            began = os.stat(os.path.join(directory, name)).st_mtime
        except OSError:
            continue
        break
    timestamp = _first_timestamp(os.path.join(directory, segment_file_name(base, FileKind.LOG)))
    return min(max(began, last_append if timestamp is None else timestamp), last_append)


def _first_timestamp(path: str) -> float | None:
    try:
        with open(path, "rb", buffering=0) as log:
            header = parse_batch_header(log.read(HEADER_BYTES))
    except (OSError, SegmentError):
        return None
    by_broker = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    timestamp = header.max_timestamp if by_broker else header.base_timestamp
    return None if timestamp < 0 else timestamp / 1000
