"""Early archiving: store committed records of an active segment before the broker closes it.

An early segment is an ordinary segment of the archive: it begins at the archive end offset, and
ends at a batch below the high watermark. When the broker closes its segment, the rest of it is
stored as after a change of leaders, from the batch at the archive end offset on.

A kill before the `.log` leaves indexes above `offset.wm`. The next early segment begins at the same
offset, and may end elsewhere: it empties them, and replaces the other files. A kill after the
`.log` leaves a whole segment of committed records: the next PREPARE commits it (see `adoption`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Final, NamedTuple

import structlog

from sidetier.config.uploader import EarlyConfig, EarlyLimits
from sidetier.leadership.port import LogOffsetSource
from sidetier.segments.errors import (
    BrokerError,
    LeadershipError,
    SidetierError,
)
from sidetier.segments.offsets import UNKNOWN_EPOCH, BaseOffset, LeaderEpoch, Offset, TopicPartition
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.clock import Clock
from sidetier.uploader.gates.committed_range import (
    CommittedRange,
    LedLog,
    NotCommittedError,
    choose,
)
from sidetier.uploader.log_tail import LogTail
from sidetier.uploader.periodic import PeriodicTask
from sidetier.uploader.state.events import EarlyFailed, EarlyFound, EarlySearched
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.unexpected import Subject, UnexpectedErrors, describe
from sidetier.uploader.watching.disk import BatchPosition, open_log, topic_id_in
from sidetier.uploader.workers import WorkerPool
from sidetier.wire.log_offsets import AnsweredOffset, OffsetKind

log: Final = structlog.get_logger()
_PAUSE_AFTER_FAILURE: Final = 5.0
_AT_ONCE: Final = 100
"""Maximum number of partitions in one run: the others wait for less than a second."""
_MAX_SEARCHED: Final = 100_000
"""Maximum number of archived batches that a run reads in one partition: about half a second."""
_LONGEST_RUN: Final = 1.0
"""A run begins no further search after this time, in seconds: what it has found is stored first."""


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
        known: A batch at `start` or below; None if none is known.
        least: Fewer bytes are not worth an early segment.
        max_bytes: Size at which an early segment ends.
        refused: The last error of the partition; None if there is none.
    """

    topic_partition: TopicPartition
    directory: str
    segment: BaseOffset
    start: Offset
    leader_epoch: LeaderEpoch
    topic_id: str | None
    generation: int
    known: BatchPosition | None
    least: int
    max_bytes: int
    refused: str | None = None


class Searched(NamedTuple):
    """How far the search for a part has come.

    Attributes:
        position: A batch at `start` or below.
        goes_on: Whether the search goes on there; otherwise the part has too few bytes.
    """

    position: BatchPosition
    goes_on: bool


EarlyResult = CommittedRange | Searched | Exception | None
"""The part, how far its search has come, or why there is none; None if nothing is committed."""


@dataclass(frozen=True, slots=True)
class EarlyRangesFound:
    """The result for each partition, and those for which the run had no time."""

    found: Sequence[tuple[EarlyWanted, EarlyResult]]
    left: Sequence[EarlyWanted] = ()


@dataclass(frozen=True, slots=True)
class EarlyUnavailable:
    """The broker has not answered."""

    error: Exception


EarlyEvent = EarlyRangesFound | EarlyUnavailable


def is_due(
    tail: LogTail, last_upload: float | None, wall: float, limits: EarlyLimits
) -> int | None:
    """Return the least bytes of the early segment that is due; None if none is. Pure.

    Args:
        tail: The unarchived end of the log.
        last_upload: When this process has stored a segment of the partition last, in seconds since
            1970: records may carry timestamps of the past, and count from then on.
        wall: Seconds since 1970.
        limits: The limits of the topic.
    """
    # Not by `written_bytes`: a file system that compresses has fewer blocks than there are bytes.
    if tail.unarchived_since is None or not tail.has_batch:
        return None
    # A clock that was ahead has left times in the future, which would stop the limit until then.
    past = [since for since in (tail.unarchived_since, last_upload or 0.0) if since <= wall]
    if wall - max(past, default=0.0) >= limits.age:
        return 0
    return limits.bytes if tail.written_bytes >= limits.bytes else None


def find_part(wanted: EarlyWanted, led: LedLog) -> CommittedRange | Searched | None:
    """Find the batches that may be stored, by their headers; None if nothing is committed.

    The batch at the archive end offset is searched from `wanted.known`, or from the beginning of
    the segment, and not from the offset index: Kafka truncates it without writing over its last
    entries, so an entry may lead into a batch.

    Returns:
        How far the search has come, if it takes long or finds too few bytes.

    Raises:
        NotCommittedError: The log contradicts the broker's answer.
        UnsupportedFormatError: Message format v0 or v1.
        OSError: The segment cannot be read.
    """
    if wanted.start >= led.high_watermark:
        return None
    topic_id = topic_id_in(wanted.directory)
    if topic_id != wanted.topic_id:
        raise NotCommittedError(
            f"{wanted.directory} has topic id {topic_id}, and {wanted.topic_id} is wanted"
        )
    with open_log(wanted.directory, wanted.segment, topic_id) as opened:
        known = wanted.known
        if known is None or known.file != opened.file:
            begin = Offset(wanted.segment)
            known = BatchPosition(wanted.segment, opened.file, wanted.leader_epoch, begin, 0)
        batches = iter(opened.batches(known.position))
        for at, header in islice(batches, _MAX_SEARCHED):
            if header.next_offset > wanted.start:
                batches = chain([(at, header)], batches)
                chosen = choose(
                    batches, wanted.segment, wanted.start, led, opened.file, wanted.max_bytes
                )
                if chosen is None or chosen.size < wanted.least:
                    return Searched(known, goes_on=False)
                return chosen
            end, position = header.next_offset, at + header.length
            known = known._replace(offset=end, position=position)
        # If every batch is archived, the loop has ended with the file.
        return Searched(known, goes_on=next(batches, None) is not None)


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
        source: LogOffsetSource,
        pool: WorkerPool[EarlyEvent],
        clock: Clock,
        metrics: Metrics,
        errors: UnexpectedErrors,
    ) -> None:
        self._rules = rules
        self._source = source
        self._clock = clock
        self._metrics = metrics
        self._errors = errors
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
        """Each keeps its place until it is asked for, so that no partition is always the last."""
        self._asked: frozenset[TopicPartition] = frozenset()
        """The partitions of the run that is under way."""
        self._unavailable: str | None = None

    def consider(self, partition: Partition, tail: LogTail | None) -> bool:
        """Note whether an early segment of the partition is due, and return whether its archive
        must be read first.
        """
        least, limits = None, self._rules.limits(partition.topic_partition.topic)
        if tail is not None and limits is not None and self._may_store(partition):
            last_ms = partition.uploads.last_ms
            last = None if last_ms is None else last_ms / 1000
            least = is_due(tail, last, self._clock.wall(), limits)
        partition.note_early(due=least is not None, now=self._clock.monotonic())
        tp, archive = partition.topic_partition, partition.archive
        wanted = None
        if least is not None and limits is not None:
            wanted = self._wanted(partition, least, limits.bytes)
        if wanted is None:
            self._waiting.pop(tp, None)
        elif tp not in self._asked:
            self._waiting[tp] = wanted
        return least is not None and (archive is None or archive.next_offset is None)

    def _wanted(self, partition: Partition, least: int, max_bytes: int) -> EarlyWanted | None:
        """Return what to look for; None while the archive's end is not in the active segment."""
        archive, directory, active = partition.archive, partition.directory, partition.log.active
        start = None if archive is None else archive.next_offset
        if start is None or directory is None or active is None or start < active:
            return None
        epoch, known = partition.leader_epoch, partition.position_in(active)
        return EarlyWanted(
            partition.topic_partition,
            directory,
            active,
            start,
            epoch,
            partition.topic_id,
            partition.generation,
            None if known is None or known.leader_epoch != epoch else known,
            least,
            max_bytes,
            partition.early_hold.error,
        )

    def _may_store(self, partition: Partition) -> bool:
        """Whether nothing but time and bytes decides. Closed segments are stored first."""
        return (
            partition.leader_epoch != UNKNOWN_EPOCH
            and partition.may_archive_early()
            and partition.early_hold.until <= self._clock.monotonic()
        )

    def forget(self, tp: TopicPartition) -> None:
        """Forget a partition that this broker no longer leads."""
        self._waiting.pop(tp, None)

    def ask(self) -> None:
        """Ask for the partitions that wait longest, unless a run is under way."""
        if not self._waiting or not self._task.is_due:
            return
        wanted = list(islice(self._waiting.values(), _AT_ONCE))
        self._asked = frozenset(one.topic_partition for one in wanted)
        for tp in self._asked:
            del self._waiting[tp]
        source, now = self._source, self._clock.monotonic
        self._task.begin(lambda: _find_all(source, wanted, now), EarlyUnavailable)

    def handle(
        self, event: EarlyEvent
    ) -> Iterator[tuple[TopicPartition, EarlyFound | EarlySearched | EarlyFailed]]:
        """Take the result of `ask`, and return an event for each partition that has one.

        A lasting error is logged once. The caller asks for the partitions that still wait.
        """
        self._asked = frozenset()
        if isinstance(event, EarlyUnavailable):
            self._no_answer(event.error)
            return
        self._task.succeeded()
        self._unavailable = None
        self._waiting = {one.topic_partition: one for one in event.left} | self._waiting
        refused: list[str] = []
        for wanted, result in event.found:
            tp, generation = wanted.topic_partition, wanted.generation
            match result:
                case CommittedRange():
                    yield tp, EarlyFound(result, generation)
                case Searched(position, goes_on):
                    if goes_on:
                        self._waiting.setdefault(tp, replace(wanted, known=position))
                    yield tp, EarlySearched(position, generation)
                case Exception():
                    refused += self._refused(wanted, result)
                    yield tp, EarlyFailed(result, generation)
        if refused:  # one line for each run: a reason is often that of many partitions
            log.warning("early.refused", partitions=len(refused), first=refused[0])

    def _no_answer(self, error: Exception) -> None:
        if self._task.failed(error) and self._unavailable != describe(error):
            log.warning("early.unavailable", error=str(error))
        self._unavailable = describe(error)

    def _refused(self, wanted: EarlyWanted, error: Exception) -> list[str]:
        """Count an error. Returns the text to log, if the last error was another."""
        tp = wanted.topic_partition
        if isinstance(error, SidetierError | OSError):
            self._metrics.error(type(error).__name__)
            return [] if wanted.refused == str(error) else [f"{tp}: {error}"]
        self._errors.note(Subject("the search for an early segment", tp), error, wanted.refused)
        return []


def _find_all(
    source: LogOffsetSource,
    wanted: Sequence[EarlyWanted],
    now: Callable[[], float],
) -> EarlyRangesFound:
    asked = [(one.topic_partition, one.leader_epoch) for one in wanted]
    # Before any file is opened: the rule reads only after it has asked.
    ends = source.offsets(OffsetKind.HIGH_WATERMARK, asked)
    stable = source.offsets(OffsetKind.LAST_STABLE, asked)
    found: list[tuple[EarlyWanted, EarlyResult]] = []
    until = now() + _LONGEST_RUN
    for one, end, last_stable in zip(wanted, ends, stable, strict=True):
        found.append((one, _found(one, end, last_stable)))
        if now() >= until:
            break
    return EarlyRangesFound(found, wanted[len(found) :])


def _found(
    wanted: EarlyWanted,
    end: AnsweredOffset | SidetierError,
    last_stable: AnsweredOffset | SidetierError,
) -> EarlyResult:
    if not isinstance(end, AnsweredOffset):
        return end
    if not isinstance(last_stable, AnsweredOffset):
        return last_stable
    if end.leader_epoch != wanted.leader_epoch:
        return NotCommittedError(f"the broker answers in leader epoch {end.leader_epoch}")
    try:
        return find_part(wanted, LedLog(end.offset, last_stable.offset, end.leader_epoch))
    except Exception as error:  # noqa: BLE001 - the other partitions of the run get their results
        return error
