"""The partitions that this broker leads or follows, each with its state and its directory."""

import os
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from sidetier.leadership.port import LeadershipView, diff
from sidetier.segments.errors import SegmentError
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch, TopicPartition
from sidetier.segments.properties import parse_partition_metadata
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.gates.remembered_epochs import read_local_epochs
from sidetier.uploader.state.decisions import PARK_SECONDS
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.segment import release
from sidetier.uploader.unexpected import Subject, UnexpectedErrors
from sidetier.uploader.watching.disk import read_text
from sidetier.uploader.watching.log_dirs import LogDirs

log: Final = structlog.get_logger()
_PARTITION_METADATA: Final = "partition.metadata"


class LedPartitions:
    """Follows the leadership views; `dropped` is called for each partition that is led no more.

    A partition whose lead is lost is followed from then on, with its pins. It is parked for a while
    instead where partitions of others are not followed, and where its replica has left this broker:
    a lost session, a restart of the broker, a reassignment that is taken back or a moment of doubt
    must not cost the segments that only a pin still holds. Nothing is kept of a deleted topic.
    """

    def __init__(
        self,
        log_dirs: LogDirs,
        metrics: Metrics,
        errors: UnexpectedErrors,
        dropped: Callable[[Partition], None],
        now: Callable[[], float],
    ) -> None:
        self._log_dirs = log_dirs
        self._metrics = metrics
        self._errors = errors
        self._dropped = dropped
        self._now = now
        self._view = LeadershipView()
        self._known = False
        self._partitions: dict[TopicPartition, Partition] = {}
        self._parked: dict[TopicPartition, tuple[float, Partition]] = {}
        self._followed: dict[TopicPartition, Partition] = {}
        self._follows = False

    def begin_to_follow(self) -> None:
        """Keep partitions that others lead, too; before the first view."""
        self._follows = True

    @property
    def known(self) -> bool:
        """The source of leadership has answered, and can still be believed."""
        return self._known

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    @property
    def followed_count(self) -> int:
        """How many there are of them."""
        return len(self._followed)

    def all(self) -> Iterator[Partition]:
        """Those that are led, and those that are followed."""
        yield from self._partitions.values()
        yield from self._followed.values()

    def with_parked(self) -> Iterator[Partition]:
        """All partitions that may hold pins."""
        yield from self.all()
        yield from (partition for _, partition in self._parked.values())

    def followed(self) -> Iterator[Partition]:
        """Those that other brokers lead."""
        return iter(self._followed.values())

    def get(self, tp: TopicPartition | None) -> Partition | None:
        """The partition, if it is led or followed."""
        return None if tp is None else self._partitions.get(tp) or self._followed.get(tp)

    def follow(self, view: LeadershipView) -> list[Partition]:
        """Take over a view; returns the partitions that are newly led, or led in a new epoch."""
        self._known = view.known
        if not view.known:
            for partition in self.all():
                partition.doubt(unsure=True)
            return []  # nothing says that a lead is lost: pins stay, and nothing is sent
        change = diff(self._view, view)
        self._view = view
        for partition in self.all():
            partition.doubt(unsure=self._is_of_doubtful_topic(partition))
        if not change:
            return []
        counts = len(change.gained), len(change.lost), len(change.renewed)
        self._metrics.leadership_changed(*counts)
        gained, lost, renewed = counts
        log.info(
            "leadership.changed", gained=gained, lost=lost, renewed=renewed, leads=len(view.leads)
        )
        self._log_dirs.rescan()
        for tp in change.lost:
            self._park(tp)
        return [
            self._take_over(tp, view.leads[tp], view.topic_ids.get(tp.topic))
            for tp in (*change.gained, *change.renewed)
            if self._log_dirs.wanted(tp.topic)
        ]

    def _is_of_doubtful_topic(self, partition: Partition) -> bool:
        return partition.replaced or self._is_of_another_topic(partition)

    def _is_of_another_topic(self, partition: Partition) -> bool:
        """The view tells of another topic of the same name than the one whose directory is here, so
        its leader epochs say nothing of it: one of them is late.
        """
        told = self._view.topic_ids.get(partition.topic_partition.topic)
        return told is not None and partition.topic_id not in {None, told}

    def _park(self, tp: TopicPartition) -> None:
        partition = self._partitions.pop(tp, None)
        if partition is None:
            return
        if self._follows and self._log_dirs.directory(tp) is not None:
            partition.follow()
            self._followed[tp] = partition
        else:
            self._keep_for_a_while(partition)
        self._dropped(partition)

    def _keep_for_a_while(self, partition: Partition) -> None:
        """Nobody works on it, and its pins stay; unless the topic is known to be deleted, or it was
        followed, and nothing of it was at risk.
        """
        partition.lose()
        tp, topic_ids = partition.topic_partition, self._view.topic_ids
        is_here = self._log_dirs.directory(tp) is not None
        is_deleted = bool(topic_ids) and tp.topic not in topic_ids
        is_safe = partition.follows and not partition.at_risk
        if is_here or not (is_deleted or is_safe):
            self._parked[tp] = (self._now() + PARK_SECONDS, partition)
        else:
            partition.close()

    def find_followed(self) -> list[Partition]:
        """Compare with the log dirs, which have been read: drops what is gone from there, and
        returns the partitions that are followed from now on.
        """
        if not (self._follows and self._known):
            return []
        for partition in list(self._followed.values()):
            self.is_gone(partition)
        return [self._follow_one(tp) for tp in self._log_dirs.partitions() if self._is_new(tp)]

    def _follow_one(self, tp: TopicPartition) -> Partition:
        _, parked = self._parked.pop(tp, (0.0, None))
        partition = self._followed[tp] = parked or Partition(tp, UNKNOWN_EPOCH)
        partition.follow()
        return partition

    def follow_if_new(self, tp: TopicPartition | None) -> Partition | None:
        """The partition of a directory that has just been seen, if it is to be followed."""
        if tp is None or not (self._follows and self._known and self._is_new(tp)):
            return None
        return None if self._log_dirs.directory(tp) is None else self._follow_one(tp)

    def is_gone(self, partition: Partition) -> bool:
        """The replica of a followed partition has left this broker: it is followed no longer."""
        tp = partition.topic_partition
        gone = partition.follows and self._log_dirs.directory(tp) is None
        if gone:
            del self._followed[tp]
            self._keep_for_a_while(partition)
            self._dropped(partition)
        return gone

    def _is_new(self, tp: TopicPartition) -> bool:
        return tp not in self._partitions and tp not in self._followed

    def release_parked(self) -> None:
        """Let go of what has been parked for long enough."""
        now = self._now()
        for tp in [tp for tp, (until, _) in self._parked.items() if until <= now]:
            _, partition = self._parked.pop(tp)
            if partition.pins():
                log.warning(
                    "partition.released",
                    topic=tp.topic,
                    partition=tp.partition,
                    segments=partition.pins(),
                    reason=f"this broker has neither led nor followed it for {PARK_SECONDS:.0f} s",
                )
            partition.close()

    def _take_over(self, tp: TopicPartition, epoch: LeaderEpoch, topic_id: str | None) -> Partition:
        """A new epoch reads the archive anew: it may have been in other hands in between."""
        _, parked = self._parked.pop(tp, (0.0, None))
        partition = self._partitions.get(tp) or self._followed.pop(tp, None) or parked
        if partition is not None and topic_id not in {None, partition.topic_id}:
            partition.lose()
            self._dropped(partition)
            partition.close()
            partition = None
        if partition is None:
            partition = Partition(tp, epoch, topic_id, told=epoch != UNKNOWN_EPOCH)
        else:
            partition.resume(epoch)
        self._partitions[tp] = partition
        return partition

    def locate(self, partition: Partition) -> None:
        """Where the partition lies now: a directory may come late, move to another log dir, or be
        that of another topic of the same name.
        """
        tp = partition.topic_partition
        directory, refusal = self._log_dirs.directory(tp), self._log_dirs.refusal(tp)
        partition.refuse_directory(refusal)
        if directory is None:
            return
        if self._view.leads.get(tp) == UNKNOWN_EPOCH:
            partition.take_epoch(latest_epoch(directory))
        inode = _inode(directory)
        moved = directory != partition.directory or inode != partition.directory_inode
        if not moved and partition.identified:
            return
        had_directory = partition.directory is not None
        if moved:
            partition.move_to(directory, inode)
        topic_id = self._topic_id(partition, directory)  # a broker writes it after the directory
        is_new = partition.replaced or (moved and had_directory)
        release(partition.identify(topic_id, is_new=is_new))
        partition.doubt(unsure=not self._known or self._is_of_doubtful_topic(partition))

    def _topic_id(self, partition: Partition, directory: str) -> str | None:
        """None too while `partition.metadata` is damaged: that is no reason to archive nothing."""
        found: list[str | None] = []
        subject = Subject(_PARTITION_METADATA, partition.topic_partition)
        self._errors.attempt(subject, lambda: found.append(_read_topic_id(directory)))
        return found[0] if found else None


def _inode(directory: str) -> int | None:
    try:
        return os.stat(directory).st_ino
    except OSError:
        return None


def topic_id_in(directory: str) -> str | None:
    """The topic id in a partition's directory; None where the broker has written none."""
    try:
        return _read_topic_id(directory)
    except SegmentError:
        return None


def _read_topic_id(directory: str) -> str | None:
    """The same.

    Raises:
        SegmentError: `partition.metadata` is damaged.
    """
    path = os.path.join(directory, _PARTITION_METADATA)
    try:
        return parse_partition_metadata(read_text(path), path)
    except OSError:
        return None


def latest_epoch(directory: str) -> LeaderEpoch:
    """A leader writes its epoch into the checkpoint when it takes over; -1 where none is told."""
    try:
        entries = read_local_epochs(directory).entries
    except (OSError, SegmentError):
        return UNKNOWN_EPOCH
    return entries[-1][0] if entries else UNKNOWN_EPOCH
