"""The check before every upload that all records of a closed segment are committed.

A closed segment may be uncommitted: with a stopped follower and acks=1, a leader closes segments
far above the high watermark, and truncates them when it comes back as a follower.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from sidetier.leadership.port import HighWatermark
from sidetier.segments.errors import LeadershipError
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch, Offset, TopicPartition
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.periodic import PeriodicTask
from sidetier.uploader.state.decisions import HighWatermarks
from sidetier.uploader.unexpected import UnexpectedErrors
from sidetier.uploader.watching.checkpoints import OffsetCheckpoints, OnCheckpoint
from sidetier.uploader.workers import WorkerPool

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


class CommittedGate:
    """Remembers high watermarks from `replication-offset-checkpoint` and from the brokers.

    A broker's answer counts only if its leader epoch is
    that in which this broker leads: another leader's high watermark proves nothing about this log.

    Args:
        now: Monotonic seconds.
        use_checkpoint: Whether the checkpoint counts.
        asks_brokers: Whether brokers are asked for high watermarks.
        on_checkpoint: Notes what was read.
    """

    def __init__(
        self,
        now: Callable[[], float],
        *,
        use_checkpoint: bool = True,
        asks_brokers: bool = False,
        on_checkpoint: OnCheckpoint = lambda _, __: None,
    ) -> None:
        self._checkpoints = OffsetCheckpoints(
            CHECKPOINT_NAME, _READ_AGAIN_SECONDS, now, on_checkpoint
        )
        self._use_checkpoint = use_checkpoint
        self._asks_brokers = asks_brokers
        self._answers: dict[TopicPartition, HighWatermark] = {}
        self._asked_at: dict[TopicPartition, float] = {}

    def known(self, tp: TopicPartition, log_dir: str, epoch: LeaderEpoch) -> HighWatermarks:
        """Return what is known of the high watermark while this broker leads in `epoch`."""
        answer, answered = self._answers.get(tp), -1
        if answer is not None and epoch != UNKNOWN_EPOCH and answer.leader_epoch == epoch:
            answered = answer.offset
        if not self._use_checkpoint:
            return HighWatermarks(answered)
        checkpoint = self._checkpoints.of(log_dir)
        return HighWatermarks(answered, checkpoint.offsets.get(tp, -1), checkpoint.written_ns)

    def high_watermark(self, tp: TopicPartition, log_dir: str) -> Offset | None:
        """Return the last known high watermark of any leader epoch, for reports. It may be seconds
        old.
        """
        answer, stored = self._answers.get(tp), self._checkpoints.of(log_dir).offsets.get(tp)
        known = [stored, None if answer is None else answer.offset]
        return max((offset for offset in known if offset is not None), default=None)

    def learn(self, answers: Mapping[TopicPartition, HighWatermark], asked_at: float) -> None:
        """Remember answers of brokers. They were true at some time after `asked_at` (monotonic
        seconds).
        """
        self._answers.update(answers)
        self._asked_at.update(dict.fromkeys(answers, asked_at))

    def named_at(self, tp: TopicPartition, epoch: LeaderEpoch) -> float:
        """Return the time of the last request whose answer confirmed this leader epoch.

        In monotonic seconds: minus infinity without such an answer, infinity without a broker to
        ask or an epoch to compare.
        """
        if not self._asks_brokers or epoch == UNKNOWN_EPOCH:
            return float("inf")
        # The time of the request counts, not the answer's: an answer may arrive long after
        # the broker has sent it.
        answer = self._answers.get(tp)
        if answer is None or answer.leader_epoch != epoch:
            return float("-inf")
        return self._asked_at[tp]

    def forget(self, tp: TopicPartition) -> None:
        """Forget the answers: the leadership of the partition was lost, or changed."""
        self._answers.pop(tp, None)
        self._asked_at.pop(tp, None)


log: Final = structlog.get_logger()
_PAUSE_AFTER_FAILURE: Final = 1.0


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
        self._gate = gate
        self._now = now
        self._task = PeriodicTask(
            "asking the brokers for high watermarks",
            pool,
            now,
            metrics,
            errors,
            expected=(LeadershipError,),
            pause=_PAUSE_AFTER_FAILURE,
        )
        self.waiting: dict[TopicPartition, Partition] = {}
        """Partitions with a closed segment that is not known to be committed."""

    def ask(self) -> None:
        """Ask for the partitions in `waiting` if there is a source and no request is under way."""
        source, wanted = self._source, list(self.waiting)
        if source is None or not wanted or not self._task.is_due:
            return
        asked_at = self._now()
        self._task.begin(
            lambda: HighWatermarksReceived(source.high_watermarks(wanted), asked_at),
            HighWatermarksUnavailable,
        )

    def handle(self, event: HighWatermarkEvent) -> Iterable[TopicPartition]:
        """Take a result of `ask`, and return the partitions for which a broker has answered."""
        if isinstance(event, HighWatermarksUnavailable):
            if self._task.failed(event.error):
                log.warning("high_watermark.unavailable", error=str(event.error))
            return ()
        self._gate.learn(event.answers, event.asked_at)
        self._task.succeeded()
        return event.answers

    def close(self) -> None:
        """Close the connections."""
        if self._source is not None:
            self._source.close()
