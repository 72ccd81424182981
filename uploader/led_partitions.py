"""The partitions that this broker leads or follows, each with its state and its directory."""

import os
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from sidetier.leadership.port import LeadershipView, diff
from sidetier.segments.errors import SegmentError
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch, TopicPartition
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.gates.remembered_epochs import read_local_epochs
from sidetier.uploader.state.decisions import PARK_SECONDS
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.segment import release
from sidetier.uploader.unexpected import Subject, UnexpectedErrors
from sidetier.uploader.watching.disk import PARTITION_METADATA, read_topic_id
from sidetier.uploader.watching.log_dirs import LogDirs

log: Final = structlog.get_logger()


class LedPartitions:
    """The partitions of the last leadership view.

    If this broker loses the lead of a partition, the partition is followed, and its pins stay. It
    is parked for a while instead if followed partitions are not pinned, or if its replica has left
    this broker: the segments that only a pin keeps must survive a lost session, a restart of the
    broker, and a reassignment that is cancelled. The pins of a deleted topic are released.

    Args:
        dropped: Called with each partition that is no longer led or followed.
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
        """Keep partitions that other brokers lead, too. Call it before the first view."""
        self._follows = True

    @property
    def known(self) -> bool:
        """Whether the source of leadership has answered, and its answer is not too old."""
        return self._known

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    @property
    def followed_count(self) -> int:
        """Number of followed partitions."""
        return len(self._followed)

    def all(self) -> Iterator[Partition]:
        """Yield the led partitions and the followed ones."""
        yield from self._partitions.values()
        yield from self._followed.values()

    def with_parked(self) -> Iterator[Partition]:
        """Yield all partitions that may have pins."""
        yield from self.all()
        yield from (partition for _, partition in self._parked.values())

    def followed(self) -> Iterator[Partition]:
        """Return an iterator over the followed partitions."""
        return iter(self._followed.values())

    def get(self, tp: TopicPartition | None) -> Partition | None:
        """Return the partition if it is led or followed."""
        return None if tp is None else self._partitions.get(tp) or self._followed.get(tp)

    def follow(self, view: LeadershipView) -> list[Partition]:
        """Take a view. Returns the partitions that are newly led, or led in a new epoch."""
        self._known = view.known
        if not view.known:
            for partition in self.all():
                partition.doubt(unsure=True)
            return []  # no lead is known to be lost: pins stay, and nothing is sent
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
        # A view can be ahead of the last listing of the log
        # dirs: a new leader's directory may be younger than it.
        self._log_dirs.rescan()
        for tp in change.lost:
            self._park(tp)
        return [
            self._take_over(tp, view.leads[tp], view.topic_ids.get(tp.topic))
            for tp in (*change.gained, *change.renewed)
            if self._log_dirs.wanted(tp.topic)
        ]

    def _is_of_doubtful_topic(self, partition: Partition) -> bool:
        return partition.directory_state.replaced or self._is_of_another_topic(partition)

    def _is_of_another_topic(self, partition: Partition) -> bool:
        """Whether view and directory are of different topics of the same name, as after a topic was
        deleted and created again: one of them is late, and the view's leader epochs do not count.
        """
        topic_id = self._view.topic_ids.get(partition.topic_partition.topic)
        return topic_id is not None and partition.topic_id not in {None, topic_id}

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
        """Stop work on a partition, and keep its pins for `PARK_SECONDS`.

        The pins are released at once if the topic is known to be deleted, or if the partition was
        followed and no segment was at risk.
        """
        partition.lose()
        tp, topic_ids = partition.topic_partition, self._view.topic_ids
        is_here = self._log_dirs.directory(tp) is not None
        # A view without topic ids proves no deletion.
        is_deleted = bool(topic_ids) and tp.topic not in topic_ids
        is_safe = partition.follows_safely
        if is_here or not (is_deleted or is_safe):
            self._parked[tp] = (self._now() + PARK_SECONDS, partition)
        else:
            partition.close()

    def find_followed(self) -> list[Partition]:
        """Drop followed partitions whose directory is gone; follow new ones, and return them."""
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
        """Follow the partition of a new directory; None if it is not to be followed."""
        if tp is None or not (self._follows and self._known and self._is_new(tp)):
            return None
        return None if self._log_dirs.directory(tp) is None else self._follow_one(tp)

    def is_gone(self, partition: Partition) -> bool:
        """Whether the replica of a followed partition has left this broker. Stops following it."""
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
        """Release the pins of partitions that have been parked for `PARK_SECONDS`."""
        now = self._now()
        for tp in [tp for tp, (until, _) in self._parked.items() if until <= now]:
            _, partition = self._parked.pop(tp)
            if partition.log.pins():
                log.warning(
                    "partition.released",
                    topic=tp.topic,
                    partition=tp.partition,
                    segments=partition.log.pins(),
                    reason=f"this broker has neither led nor followed it for {PARK_SECONDS:.0f} s",
                )
            partition.close()

    def _take_over(self, tp: TopicPartition, epoch: LeaderEpoch, topic_id: str | None) -> Partition:
        """Lead a partition. The archive is read again: another sidecar may have written it."""
        _, parked = self._parked.pop(tp, (0.0, None))
        partition = self._partitions.get(tp) or self._followed.pop(tp, None) or parked
        # Another topic of the same name: nothing that is
        # known of the old one applies, its pins included.
        if partition is not None and topic_id not in {None, partition.topic_id}:
            partition.lose()
            self._dropped(partition)
            partition.close()
            partition = None
        if partition is None:
            partition = Partition(tp, epoch, topic_id, epoch_from_cluster=epoch != UNKNOWN_EPOCH)
        else:
            partition.resume(epoch)
        self._partitions[tp] = partition
        return partition

    def locate(self, partition: Partition) -> None:
        """Find the partition's directory.

        It may be created late, move to another log dir, or belong to another topic of this name.
        """
        tp = partition.topic_partition
        directory, refusal = self._log_dirs.directory(tp), self._log_dirs.refusal(tp)
        partition.refuse_directory(refusal)
        if directory is None:
            return
        # A Metadata request of librdkafka has no leader
        # epochs, so the epoch comes from the broker's own checkpoint.
        if self._view.leads.get(tp) == UNKNOWN_EPOCH:
            partition.take_epoch(latest_epoch(directory))
        # A recreated topic can have the same path. Its directory is another inode.
        inode = _inode(directory)
        moved = directory != partition.directory or inode != partition.directory_state.inode
        if not moved and partition.directory_state.identified:
            return
        had_directory = partition.directory is not None
        if moved:
            partition.move_to(directory, inode)
        topic_id = self._topic_id(partition, directory)  # a broker writes it after the directory
        is_new = partition.directory_state.replaced or (moved and had_directory)
        release(partition.identify(topic_id, is_new=is_new))
        partition.doubt(unsure=not self._known or self._is_of_doubtful_topic(partition))

    def _topic_id(self, partition: Partition, directory: str) -> str | None:
        """Return the topic id; None also if the file is damaged, which does not stop archiving."""
        found: list[str | None] = []
        subject = Subject(PARTITION_METADATA, partition.topic_partition)
        self._errors.attempt(subject, lambda: found.append(read_topic_id(directory)))
        return found[0] if found else None


def _inode(directory: str) -> int | None:
    try:
        return os.stat(directory).st_ino
    except OSError:
        return None


def latest_epoch(directory: str) -> LeaderEpoch:
    """Return the last epoch of the log's checkpoint; -1 if there is none.

    A new leader writes its epoch there before it appends.
    """
    try:
        entries = read_local_epochs(directory).entries
    except (OSError, SegmentError):
        return UNKNOWN_EPOCH
    return entries[-1][0] if entries else UNKNOWN_EPOCH
