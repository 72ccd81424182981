"""Early archiving: store committed records of an active segment before the broker closes it.

An early segment is an ordinary segment of the archive: it begins at the archive end offset, and
ends at a batch below the high watermark. When the broker closes its segment, the rest of it is
stored as after a change of leaders, from the batch at the archive end offset on.

A kill before the `.log` leaves indexes above `offset.wm`. The next early segment begins at the same
offset, and may end elsewhere: it empties them, and replaces the other files. A kill after the
`.log` leaves a whole segment of committed records: the next PREPARE commits it (see `adoption`).
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from sidetier.config.uploader import EarlyConfig
from sidetier.leadership.port import LedLog, LedLogSource
from sidetier.segments.errors import (
    BrokerError,
    DamagedSegmentError,
    LeadershipError,
    SegmentError,
    SidetierError,
)
from sidetier.segments.headers import BatchHeader, walk_headers
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import UNKNOWN_EPOCH, BaseOffset, LeaderEpoch, Offset, TopicPartition
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.clock import Clock
from sidetier.uploader.gates.committed_range import CommittedRange, NotCommittedError, choose
from sidetier.uploader.log_tail import LogTail
from sidetier.uploader.periodic import PeriodicTask
from sidetier.uploader.state.events import EarlyFailed, EarlyFound
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.unexpected import UnexpectedErrors
from sidetier.uploader.watching.disk import LogFile, topic_id_in
from sidetier.uploader.workers import WorkerPool

log: Final = structlog.get_logger()
_PAUSE_AFTER_FAILURE: Final = 5.0


@dataclass(frozen=True, slots=True)
class EarlyWanted:
    """An active segment of which a part is to be stored.

    Attributes:
        topic_partition: Its partition.
        directory: The partition's directory.
        segment: Base offset of the segment.
        start: The archive end offset.
        leader_epoch: Leader epoch in which this broker leads.
        topic_id: The topic id; None if the broker has none.
        generation: The partition's generation.
        stored: The part that this process has stored last; None if there is none.
        least: Fewer bytes are not worth an early segment.
    """

    topic_partition: TopicPartition
    directory: str
    segment: BaseOffset
    start: Offset
    leader_epoch: LeaderEpoch
    topic_id: str | None
    generation: int
    stored: CommittedRange | None
    least: int


@dataclass(frozen=True, slots=True)
class EarlyRangesFound:
    """The result for each partition; None if nothing is to be stored now."""

    found: Sequence[tuple[EarlyWanted, "CommittedRange | SidetierError | OSError | None"]]


@dataclass(frozen=True, slots=True)
class EarlyUnavailable:
    """The broker has not answered."""

    error: Exception


EarlyEvent = EarlyRangesFound | EarlyUnavailable


def is_due(tail: LogTail, last_upload: float | None, wall: float, rules: EarlyConfig) -> int | None:
    """Return the least bytes of the early segment that is due; None if none is. Pure.

    Args:
        tail: The unarchived end of the log.
        last_upload: When this process has stored a segment of the partition last, in seconds since
            1970: records may carry timestamps of the past, and count from then on.
        wall: Seconds since 1970.
        rules: The configuration.
    """
    # Not by `written_bytes`: a file system that compresses has fewer blocks than there are bytes.
    if tail.unarchived_since is None or not tail.has_batch:
        return None
    if wall - max(tail.unarchived_since, last_upload or 0.0) >= rules.age:
        return 0
    return rules.bytes if tail.written_bytes >= rules.bytes else None


def find_range(wanted: EarlyWanted, led: LedLog, max_bytes: int) -> CommittedRange | None:
    """Find the batches that may be stored, by their headers; None if there are too few.

    Raises:
        NotCommittedError: The log contradicts the broker's answer.
        UnsupportedFormatError: Message format v0 or v1.
        OSError: The segment cannot be read.
    """
    name = segment_file_name(wanted.segment, FileKind.LOG)
    descriptor = os.open(os.path.join(wanted.directory, name), os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        file = LogFile(status.st_dev, status.st_ino, topic_id_in(wanted.directory))
        if file.topic_id != wanted.topic_id:
            raise NotCommittedError(
                f"{wanted.directory} has topic id {file.topic_id}, and {wanted.topic_id} is wanted"
            )
        batches = _written(
            walk_headers(
                lambda at, length: os.pread(descriptor, length, at),
                status.st_size,
                start=_known_position(wanted, file),
            )
        )
        chosen = choose(batches, wanted.segment, wanted.start, led, file, max_bytes)
    finally:
        os.close(descriptor)
    return None if chosen is None or chosen.size < wanted.least else chosen


def _known_position(wanted: EarlyWanted, file: LogFile) -> int:
    """Return where the batch at the archive end offset begins, or 0, from where it is searched.

    Not from the offset index: Kafka truncates it without writing over its last entries, so an entry
    may lead into a batch. The end of the last part is certain in the same leader epoch, in which
    the broker does not truncate.
    """
    last = wanted.stored
    if last is None or (last.file, last.leader_epoch) != (file, wanted.leader_epoch):
        return 0
    is_behind = (last.segment, last.end) == (wanted.segment, wanted.start)
    return last.position + last.size if is_behind else 0


def _written(batches: Iterator[tuple[int, BatchHeader]]) -> Iterator[tuple[int, BatchHeader]]:
    """Yield batches up to the first that is not whole.

    While a broker rolls a preallocated segment, zeros may be read below the high watermark. Real
    damage shows when the segment closes.
    """
    with suppress(DamagedSegmentError):
        yield from batches


class EarlySegments:
    """Finds early segments. Only the daemon's thread uses it; one worker asks and reads.

    Args:
        rules: The configuration.
        source: Asks the own broker.
        pool: Runs the asking, one run at a time.
        clock: The time.
        metrics: Counts failures.
        errors: Delays the next run after an unexpected error.
    """

    def __init__(
        self,
        rules: EarlyConfig,
        source: LedLogSource,
        pool: WorkerPool[EarlyEvent],
        clock: Clock,
        metrics: Metrics,
        errors: UnexpectedErrors,
    ) -> None:
        self._rules = rules
        self._source = source
        self._clock = clock
        self._metrics = metrics
        self._task = PeriodicTask(
            "asking the broker for committed records",
            pool,
            clock.monotonic,
            metrics,
            errors,
            expected=(BrokerError, LeadershipError),
            pause=_PAUSE_AFTER_FAILURE,
        )
        self._waiting: dict[TopicPartition, EarlyWanted] = {}

    def consider(self, partition: Partition, tail: LogTail | None) -> bool:
        """Note whether an early segment of the partition is due, and return whether its archive
        must be read first.
        """
        tp = partition.topic_partition
        self._waiting.pop(tp, None)
        least = None
        if tail is not None and self._may_store(partition):
            last_ms = partition.uploads.last_ms
            last = None if last_ms is None else last_ms / 1000
            least = is_due(tail, last, self._clock.wall(), self._rules)
        partition.note_early(due=least is not None, now=self._clock.monotonic())
        if least is None:
            return False
        archive, directory, active = partition.archive, partition.directory, partition.log.active
        if archive is None or archive.next_offset is None:
            return True
        if directory is not None and active is not None and archive.next_offset >= active:
            self._waiting[tp] = EarlyWanted(
                tp,
                directory,
                active,
                archive.next_offset,
                partition.leader_epoch,
                partition.topic_id,
                partition.generation,
                partition.early_stored,
                least,
            )
        return False

    def _may_store(self, partition: Partition) -> bool:
        """Whether nothing but time and bytes decides. Closed segments are stored first."""
        return (
            self._rules.selects(partition.topic_partition.topic)
            and partition.leader_epoch != UNKNOWN_EPOCH
            and partition.may_archive_early()
            and partition.early_hold.until <= self._clock.monotonic()
        )

    def ask(self) -> None:
        """Ask for the partitions that are due, unless a run is under way."""
        wanted, source, max_bytes = list(self._waiting.values()), self._source, self._rules.bytes
        if not wanted or not self._task.is_due:
            return
        self._waiting.clear()
        self._task.begin(
            lambda: EarlyRangesFound(_find_all(source, wanted, max_bytes)), EarlyUnavailable
        )

    def handle(
        self, event: EarlyEvent
    ) -> Iterator[tuple[TopicPartition, EarlyFound | EarlyFailed]]:
        """Take the result of `ask`, and return an event for each partition that has one."""
        if isinstance(event, EarlyUnavailable):
            if self._task.failed(event.error):
                log.warning("early.unavailable", error=str(event.error))
            return
        self._task.succeeded()
        refused: list[str] = []
        for wanted, result in event.found:
            if isinstance(result, CommittedRange):
                yield wanted.topic_partition, EarlyFound(result, wanted.generation)
            elif result is not None:
                refused.append(f"{wanted.topic_partition}: {result}")
                self._metrics.error(type(result).__name__)
                yield wanted.topic_partition, EarlyFailed(result, wanted.generation)
        if refused:  # one line for each run: a lasting reason is often that of many partitions
            log.warning("early.refused", partitions=len(refused), first=refused[0])


def _find_all(
    source: LedLogSource, wanted: Sequence[EarlyWanted], max_bytes: int
) -> list[tuple[EarlyWanted, "CommittedRange | SidetierError | OSError | None"]]:
    # Before any file is opened: the rule reads only after it has asked.
    answers = source.led_logs({one.topic_partition: one.leader_epoch for one in wanted})
    return [(one, _found(one, answers.get(one.topic_partition), max_bytes)) for one in wanted]


def _found(
    wanted: EarlyWanted, answer: LedLog | SidetierError | None, max_bytes: int
) -> "CommittedRange | SidetierError | OSError | None":
    if not isinstance(answer, LedLog):
        return answer
    try:
        return find_range(wanted, answer, max_bytes)
    except (SegmentError, OSError) as error:
        return error
