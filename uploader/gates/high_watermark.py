"""The gate before every upload: is all of a closed segment committed?

Closed does not mean committed: with a stopped follower and acks=1 a leader closes segments far
above its high watermark, and drops them when it comes back as a follower.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from sidetier.leadership.port import HighWatermark
from sidetier.segments.checkpoints import parse_offset_checkpoint
from sidetier.segments.errors import SegmentError
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch, Offset, TopicPartition
from sidetier.uploader.watching.disk import read_text

CHECKPOINT_NAME: Final = "replication-offset-checkpoint"
_LOOK_AGAIN_SECONDS: Final = 0.05


class HighWatermarkSource(Protocol):
    """Asks the brokers (ListOffsets, latest, read-uncommitted: that is the high watermark)."""

    def high_watermarks(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, HighWatermark]:
        """What could be learned, in one call; partitions that nobody answers for are left out.

        Raises:
            LeadershipUnavailableError: no broker answers.
        """
        ...

    def close(self) -> None:
        """Let connections go; may be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class Closed:
    """What the gate needs of a closed segment: its next offset, and its file's last write in ns."""

    topic_partition: TopicPartition
    log_dir: str
    next_offset: Offset
    modified_ns: int
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    written_ns: int = -1
    offsets: Mapping[TopicPartition, Offset] | None = None
    looked_at: float = float("-inf")


class CommittedGate:
    """Remembers what is known of high watermarks, from the checkpoint file and from the brokers.

    The checkpoint counts only when it was written after the segment's last byte: an older one may
    speak of an epoch history that was truncated since. An answer of a broker counts only in the
    leader epoch in which we lead: another leader's high watermark says nothing about our bytes.
    """

    def __init__(
        self,
        now: Callable[[], float],
        *,
        use_checkpoint: bool = True,
        brokers_tell: bool = False,
        on_checkpoint: Callable[[str, SegmentError | None], None] = lambda _, __: None,
    ) -> None:
        """`on_checkpoint` is told of each checkpoint that is read, and why it cannot be used."""
        self._now = now
        self._on_checkpoint = on_checkpoint
        self._use_checkpoint = use_checkpoint
        self._brokers_tell = brokers_tell
        self._checkpoints: dict[str, _Checkpoint] = {}
        self._answers: dict[TopicPartition, HighWatermark] = {}
        self._asked_at: dict[TopicPartition, float] = {}

    def is_committed(self, segment: Closed) -> bool:
        """The high watermark is known to have reached the segment's next offset."""
        answer = self._answers.get(segment.topic_partition)
        if answer is not None and _counts(answer, segment):
            return True
        return self._use_checkpoint and self._checkpoint_covers(segment)

    def high_watermark(self, tp: TopicPartition, log_dir: str) -> Offset | None:
        """The latest that is known, for reports: it may be some seconds old. None: not known."""
        known = [self._checkpoint(log_dir).offsets or {}]
        known.append({tp: answer.offset for tp, answer in self._answers.items()})
        return max((offsets[tp] for offsets in known if tp in offsets), default=None)

    def learn(self, answers: Mapping[TopicPartition, HighWatermark], asked_at: float) -> None:
        """Take over what brokers said.

        Args:
            answers: One per partition.
            asked_at: When the brokers were asked, in monotonic seconds. An answer may be on its way
                for long: it says what was true at some moment after the question, no more.
        """
        self._answers.update(answers)
        self._asked_at.update(dict.fromkeys(answers, asked_at))

    def confirms_lead(self, tp: TopicPartition, epoch: LeaderEpoch, since: float) -> bool:
        """A broker that was asked at that moment or later has named this epoch as that of the
        partition's leader; or there is no broker to ask, or no epoch to compare.
        """
        return self.named_at(tp, epoch) >= since

    def named_at(self, tp: TopicPartition, epoch: LeaderEpoch) -> float:
        """When the broker was asked that named this epoch last as that of the partition's leader.

        In monotonic seconds: minus infinity where none has, infinity where there is no broker to
        ask, or no epoch to compare.
        """
        if not self._brokers_tell or epoch == UNKNOWN_EPOCH:
            return float("inf")
        answer = self._answers.get(tp)
        if answer is None or answer.leader_epoch != epoch:
            return float("-inf")
        return self._asked_at[tp]

    def forget(self, tp: TopicPartition) -> None:
        """The lead was lost, or changed hands."""
        self._answers.pop(tp, None)
        self._asked_at.pop(tp, None)

    def _checkpoint_covers(self, segment: Closed) -> bool:
        checkpoint = self._checkpoint(segment.log_dir)
        if checkpoint.offsets is None or checkpoint.written_ns <= segment.modified_ns:
            return False
        return checkpoint.offsets.get(segment.topic_partition, -1) >= segment.next_offset

    def _checkpoint(self, log_dir: str) -> _Checkpoint:
        known = self._checkpoints.get(log_dir, _Checkpoint())
        if self._now() - known.looked_at < _LOOK_AGAIN_SECONDS:
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
        except OSError:  # not written yet, or a failing disk: it is read again
            return _Checkpoint(looked_at=self._now())
        except SegmentError as error:
            self._on_checkpoint(path, error)
            return _Checkpoint(looked_at=self._now())
        self._on_checkpoint(path, None)
        # The stat came first: a newer file read under an older time only waits once more.
        return _Checkpoint(written, offsets, self._now())


def _counts(answer: HighWatermark, segment: Closed) -> bool:
    return (
        segment.leader_epoch != UNKNOWN_EPOCH
        and answer.leader_epoch == segment.leader_epoch
        and answer.offset >= segment.next_offset
    )
