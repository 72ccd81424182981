"""What the daemon and the tail's writer know of each other: the led partitions, and what is safe.

The daemon notes a partition when something about it changes, so that idle partitions cost nothing.
"""

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import structlog

from sidetier.config.uploader import TailConfig
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch, Offset, TopicPartition
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.state.partition import Partition

log: Final = structlog.get_logger()


class TailPartition(NamedTuple):
    """A led partition.

    Attributes:
        tp: The partition.
        directory: Its directory.
        leader_epoch: Leader epoch in which this broker leads.
        topic_id: The topic id.
        archive_end: The archive end offset.
        archived_epochs: The stored epoch history of the archive, as far as it was read.
        archive_start: The first archived offset, as far as it is known.
    """

    tp: TopicPartition
    directory: str
    leader_epoch: LeaderEpoch
    topic_id: str
    archive_end: Offset
    archived_epochs: EpochHistory = NO_EPOCHS
    archive_start: Offset = Offset(0)


class SafePartition(NamedTuple):
    """What is safe of a led partition.

    Attributes:
        safe_up_to: End of what readers get from archive and packs, exclusive, as far as this
            process knows; None until the packs were read.
        newest_ms: Largest timestamp of what this process has stored, in ms since 1970; -1 if none.
        waiting_since_ms: Since when committed records wait or do not reach readers, or since when
            it is not known whether some do, in ms since 1970; None if none do.
        error: Why the last range was refused; None if none was.
        high_watermark: The broker's last answer. Nothing waits once the archive has reached it.
            None if the broker has not answered for so long that more records may wait.
    """

    safe_up_to: Offset | None
    newest_ms: int
    waiting_since_ms: int | None
    error: str | None = None
    high_watermark: Offset | None = None


def tail_partition(partition: Partition) -> TailPartition | None:
    """Return what the tail's writer needs of a partition; None if its tail is not stored now.

    It is not stored before the archive was read: the tail begins at the archive end offset. A
    compacted topic has no tail: compaction between two readings of a range changes its bytes.
    """
    archive = partition.archive
    if (
        not partition.stores_tail
        or partition.following is not None
        or partition.lost
        or partition.unsure
        or partition.refused is not None
        or partition.config is None  # whether it is compacted is not known yet
        or partition.is_sparse
        or partition.leader_epoch == UNKNOWN_EPOCH
        or partition.topic_id is None
        or partition.directory is None
        or archive is None
        or archive.next_offset is None
    ):
        return None
    stored = archive.epoch_history
    start = None if archive.watermark is None else archive.watermark.start_offset
    return TailPartition(
        partition.topic_partition,
        partition.directory,
        partition.leader_epoch,
        partition.topic_id,
        archive.next_offset,
        NO_EPOCHS if stored is None else stored.epoch_history,
        start or Offset(0),
    )


def is_tail_halted(partition: Partition) -> bool:
    """Whether the tail of a led partition without an entry should be stored: its archive cannot be
    read, is halted, or has diverged, or it is not known whether this broker leads.
    """
    archive = partition.archive
    begins_later = archive is not None and archive.next_offset is None and partition.halt is None
    return (
        partition.stores_tail
        and partition.following is None
        and not partition.lost
        and partition.refused is None
        and not partition.is_sparse
        and partition.leader_epoch != UNKNOWN_EPOCH
        and partition.topic_id is not None
        and not begins_later
    )


class TailBoard:
    """Passes the led partitions from the daemon's thread to the writer's thread.

    A partition whose archive is read again keeps its last entry as long as nothing else about it
    has changed: otherwise the tail would stop with each doubt about the archive.
    """

    def __init__(self, rules: TailConfig, wall: Callable[[], float] = SYSTEM_CLOCK.wall) -> None:
        self._rules = rules
        self._wall = wall
        self._lock = threading.Lock()
        self._partitions: dict[TopicPartition, TailPartition] = {}
        self._snapshot: Mapping[TopicPartition, TailPartition] = MappingProxyType({})
        self._changed = False
        self._halted: dict[TopicPartition, SafePartition] = {}
        self._warned = False

    def selects(self, topic: str) -> bool:
        """Whether the tail of a topic is stored, by its name alone."""
        return self._rules.selects(topic)

    def note(self, partition: Partition) -> None:
        """Note the present state of a partition."""
        tp = partition.topic_partition
        entry = tail_partition(partition)
        if entry is None and not self._warned and _lacks_topic_id(partition):
            self._warned = True
            log.warning("tail.no_topic_id", topic=tp.topic, partition=tp.partition)
        known = self._partitions.get(tp)
        if entry is None and known is not None and _only_archive_unknown(partition, known):
            return
        self._note_halted(tp, halted=entry is None and is_tail_halted(partition))
        if entry == known:
            return
        with self._lock:
            self._changed = True
            if entry is None:
                del self._partitions[tp]
            else:
                self._partitions[tp] = entry

    def forget(self, tp: TopicPartition) -> None:
        """Note that this broker no longer leads a partition."""
        with self._lock:
            self._changed = self._partitions.pop(tp, None) is not None or self._changed
        self._note_halted(tp, halted=False)

    @property
    def halted(self) -> Mapping[TopicPartition, SafePartition]:
        """Partitions whose tail is not stored, although it should be. Any thread may read it."""
        with self._lock:
            return dict(self._halted)

    def _note_halted(self, tp: TopicPartition, *, halted: bool) -> None:
        if halted == (tp in self._halted):
            return
        with self._lock:
            if halted:
                self._halted[tp] = SafePartition(None, -1, int(self._wall() * 1000))
            else:
                del self._halted[tp]

    def snapshot(self) -> Mapping[TopicPartition, TailPartition]:
        """Return all partitions. The same object as long as nothing has changed."""
        with self._lock:
            if self._changed:
                self._snapshot = MappingProxyType(dict(self._partitions))
                self._changed = False
            return self._snapshot


def _lacks_topic_id(partition: Partition) -> bool:
    """Whether the partition's tail is not stored because its broker, before Kafka 2.8, has given it
    no topic id. A newer broker writes one before the archive is read.
    """
    archive = partition.archive
    return (
        partition.stores_tail
        and partition.topic_id is None
        and partition.following is None
        and partition.directory is not None
        and archive is not None
        and archive.next_offset is not None
    )


def _only_archive_unknown(partition: Partition, known: TailPartition) -> bool:
    archive = partition.archive
    return (
        (archive is None or archive.next_offset is None)
        and not (partition.lost or partition.unsure or partition.follows)
        and partition.refused is None
        and (partition.directory, partition.leader_epoch, partition.topic_id)
        == (known.directory, known.leader_epoch, known.topic_id)
    )
