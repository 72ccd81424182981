"""The check before every upload that all records of a closed segment are committed.

A closed segment may be uncommitted: with a stopped follower and acks=1, a leader closes segments
far above the high watermark, and truncates them when it comes back as a follower.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from sidetier.leadership.port import HighWatermark
from sidetier.segments.checkpoints import parse_offset_checkpoint
from sidetier.segments.errors import LeadershipError, SegmentError
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch, Offset, TopicPartition
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.state.decisions import HighWatermarks
from sidetier.uploader.unexpected import Subject, UnexpectedErrors
from sidetier.uploader.watching.disk import read_text
from sidetier.uploader.workers import Task, WorkerPool

if TYPE_CHECKING:
    from sidetier.uploader.state.partition import Partition


CHECKPOINT_NAME: Final = "replication-offset-checkpoint"
_READ_AGAIN_SECONDS: Final = 0.05


class HighWatermarkSource(Protocol):
    """Asks the brokers for high watermarks: ListOffsets with latest and read_uncommitted."""

    def high_watermarks(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, HighWatermark]:
        """Return the high watermarks that brokers have answered; other partitions are left out.

        Raises:
            LeadershipUnavailableError: no broker answers.
        """
        ...

    def close(self) -> None:
        """Close the connections. May be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    written_ns: int = -1
    offsets: Mapping[TopicPartition, Offset] | None = None
    read_at: float = float("-inf")


class CommittedGate:
    """Remembers high watermarks from `replication-offset-checkpoint` and from the brokers.

    A broker's answer counts only if its leader epoch is
    that in which this broker leads: another leader's high watermark proves nothing about this log.

    Args:
        now: Monotonic seconds.
        use_checkpoint: Whether the checkpoint counts.
        asks_brokers: Whether brokers are asked for high watermarks.
        on_checkpoint: Called with the path of each checkpoint that is read, and with the reason
            where it cannot be used.
    """

    def __init__(
        self,
        now: Callable[[], float],
        *,
        use_checkpoint: bool = True,
        asks_brokers: bool = False,
        on_checkpoint: Callable[[str, SegmentError | None], None] = lambda _, __: None,
    ) -> None:
        self._now = now
        self._on_checkpoint = on_checkpoint
        self._use_checkpoint = use_checkpoint
        self._asks_brokers = asks_brokers
        self._checkpoints: dict[str, _Checkpoint] = {}
        self._answers: dict[TopicPartition, HighWatermark] = {}
        self._asked_at: dict[TopicPartition, float] = {}

    def known(self, tp: TopicPartition, log_dir: str, epoch: LeaderEpoch) -> HighWatermarks:
        """Return what is known of a partition's high watermark.

        Args:
            tp: The partition.
            log_dir: The log dir that holds it.
            epoch: Leader epoch in which this broker leads.
        """
        answer, answered = self._answers.get(tp), -1
        if answer is not None and epoch != UNKNOWN_EPOCH and answer.leader_epoch == epoch:
            answered = answer.offset
        if not self._use_checkpoint:
            return HighWatermarks(answered)
        checkpoint = self._checkpoint(log_dir)
        offset = -1 if checkpoint.offsets is None else checkpoint.offsets.get(tp, -1)
        return HighWatermarks(answered, offset, checkpoint.written_ns)

    def high_watermark(self, tp: TopicPartition, log_dir: str) -> Offset | None:
        """Return the last known high watermark, for reports; it may be some seconds old.

        Unlike in `known`, the leader epoch does not matter here.
        """
        known = [self._checkpoint(log_dir).offsets or {}]
        known.append({tp: answer.offset for tp, answer in self._answers.items()})
        return max((offsets[tp] for offsets in known if tp in offsets), default=None)

    def learn(self, answers: Mapping[TopicPartition, HighWatermark], asked_at: float) -> None:
        """Remember answers of brokers.

        Args:
            answers: The answer for each partition.
            asked_at: When the brokers were asked, in monotonic seconds. An answer was true at some
                time after it; the answer's own time is not known.
        """
        self._answers.update(answers)
        self._asked_at.update(dict.fromkeys(answers, asked_at))

    def named_at(self, tp: TopicPartition, epoch: LeaderEpoch) -> float:
        """Return when a broker was last asked that named this epoch as that of the leader.

        In monotonic seconds: minus infinity where none has, infinity where there is no broker to
        ask, or no epoch to compare.
        """
        if not self._asks_brokers or epoch == UNKNOWN_EPOCH:
            return float("inf")
        # The time of the question counts, not that of the answer: an answer may arrive long after
        # the broker has sent it.
        answer = self._answers.get(tp)
        if answer is None or answer.leader_epoch != epoch:
            return float("-inf")
        return self._asked_at[tp]

    def forget(self, tp: TopicPartition) -> None:
        """Forget the answers: the leadership of the partition was lost, or changed."""
        self._answers.pop(tp, None)
        self._asked_at.pop(tp, None)

    def _checkpoint(self, log_dir: str) -> _Checkpoint:
        known = self._checkpoints.get(log_dir, _Checkpoint())
        # One stat per 50 ms and log dir, however many partitions ask.
        if self._now() - known.read_at < _READ_AGAIN_SECONDS:
            return known
        path = os.path.join(log_dir, CHECKPOINT_NAME)
        self._checkpoints[log_dir] = fresh = self._read(path, known)
        return fresh

    def _read(self, path: str, known: _Checkpoint) -> _Checkpoint:
        try:
            written = os.stat(path).st_mtime_ns
            if written == known.written_ns:
                return _Checkpoint(written, known.offsets, self._now())
            offsets = parse_offset_checkpoint(read_text(path), path)
        except OSError:  # not written yet, or a disk error: the next call reads it again
            return _Checkpoint(read_at=self._now())
        except SegmentError as error:
            self._on_checkpoint(path, error)
            return _Checkpoint(read_at=self._now())
        self._on_checkpoint(path, None)
        # The stat came before the read. If the broker replaced the file in between, new offsets get
        # an old time, which only delays uploads. After the other order, old offsets could get a new
        # time, and count for segments that were written after them.
        return _Checkpoint(written, offsets, self._now())


log: Final = structlog.get_logger()
_PAUSE_AFTER_FAILURE: Final = 1.0
_SUBJECT: Final = Subject("asking the brokers for high watermarks")


@dataclass(frozen=True, slots=True)
class HighWatermarksReceived:
    """Brokers have answered a request that was sent at `asked_at`, in monotonic seconds."""

    answers: Mapping[TopicPartition, HighWatermark]
    asked_at: float


@dataclass(frozen=True, slots=True)
class HighWatermarksUnavailable:
    """No broker has answered."""

    error: Exception


HighWatermarkEvent = HighWatermarksReceived | HighWatermarksUnavailable


class HighWatermarkAsker:
    """Asks the brokers for the high watermarks of all waiting partitions, in one call at a time."""

    def __init__(
        self,
        source: HighWatermarkSource | None,
        pool: WorkerPool[HighWatermarkEvent],
        gate: CommittedGate,
        now: Callable[[], float],
        metrics: Metrics,
        errors: UnexpectedErrors,
    ) -> None:
        self._source = source
        self._pool = pool
        self._gate = gate
        self._now = now
        self._metrics = metrics
        self._errors = errors
        self._not_before = float("-inf")
        self.waiting: dict[TopicPartition, Partition] = {}
        """Partitions with a closed segment that is not known to be committed."""

    def ask(self) -> None:
        """Ask for the partitions in `waiting` if there is a source and no request is under way."""
        source, wanted = self._source, list(self.waiting)
        if source is None or not wanted or not self._pool.free or self._now() < self._not_before:
            return
        if self._errors.holds(_SUBJECT):
            return
        asked_at = self._now()
        self._pool.submit(
            Task(
                lambda: HighWatermarksReceived(source.high_watermarks(wanted), asked_at),
                HighWatermarksUnavailable,
            )
        )

    def handle(self, event: HighWatermarkEvent) -> Iterable[TopicPartition]:
        """Take a result of `ask`, and return the partitions for which a broker has answered."""
        if isinstance(event, HighWatermarksUnavailable):
            self._failed(event.error)
            return ()
        self._gate.learn(event.answers, event.asked_at)
        self._errors.clear(_SUBJECT)
        return event.answers

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, LeadershipError):
            self._errors.hold(_SUBJECT, error)
            return
        self._errors.clear(_SUBJECT)
        self._metrics.error(type(error).__name__)
        self._not_before = self._now() + _PAUSE_AFTER_FAILURE
        log.warning("high_watermark.unavailable", error=str(error))

    def close(self) -> None:
        """Close the connections."""
        if self._source is not None:
            self._source.close()
