"""The partitions that this broker leads now, each with its state and its directory."""

import os
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from sidetier.leadership.port import LeadershipView, diff
from sidetier.segments.errors import SegmentError
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch, TopicPartition
from sidetier.segments.properties import parse_partition_metadata
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.disk import read_text
from sidetier.uploader.log_dirs import LogDirs
from sidetier.uploader.partition import Partition
from sidetier.uploader.verify import read_lineage

log: Final = structlog.get_logger()
_PARTITION_METADATA: Final = "partition.metadata"


class Leads:
    """Follows the leadership views; `dropped` is called for each partition that is led no more."""

    def __init__(
        self, log_dirs: LogDirs, metrics: Metrics, dropped: Callable[[Partition], None]
    ) -> None:
        self._log_dirs = log_dirs
        self._metrics = metrics
        self._dropped = dropped
        self._view = LeadershipView()
        self._partitions: dict[TopicPartition, Partition] = {}

    @property
    def known(self) -> bool:
        """The source of leadership has answered."""
        return self._view.known

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def get(self, tp: TopicPartition | None) -> Partition | None:
        """The partition, if it is led."""
        return None if tp is None else self._partitions.get(tp)

    def follow(self, view: LeadershipView) -> list[Partition]:
        """Take over a view; returns the partitions that are newly led, or led in a new epoch.

        A new epoch begins from nothing: the partition may have been in other hands in between.
        """
        change = diff(self._view, view)
        self._view = view
        if not change:
            return []
        counts = len(change.gained), len(change.lost), len(change.renewed)
        self._metrics.leadership_changed(*counts)
        gained, lost, renewed = counts
        log.info(
            "leadership.changed", gained=gained, lost=lost, renewed=renewed, leads=len(view.leads)
        )
        for tp in (*change.lost, *change.renewed):
            self._drop(tp)
        self._log_dirs.rescan()
        return [
            self._take_over(tp, view.leads[tp], view.topic_ids.get(tp.topic))
            for tp in (*change.gained, *change.renewed)
            if self._log_dirs.wanted(tp.topic)
        ]

    def _drop(self, tp: TopicPartition) -> None:
        partition = self._partitions.pop(tp, None)
        if partition is not None:
            partition.lost = True
            partition.close()
            self._dropped(partition)

    def _take_over(self, tp: TopicPartition, epoch: LeaderEpoch, topic_id: str | None) -> Partition:
        partition = self._partitions[tp] = Partition(tp, epoch, topic_id)
        self.locate(partition)
        return partition

    def locate(self, partition: Partition) -> None:
        """Where the partition lies now: a directory may come late, or move to another log dir."""
        directory = self._log_dirs.directory(partition.topic_partition)
        if directory is None or directory == partition.directory:
            return
        partition.directory = directory
        partition.log_dir = os.path.dirname(directory)
        partition.directory_ns = -1
        if partition.topic_id is None:
            partition.topic_id = _topic_id(directory)
        if partition.leader_epoch == UNKNOWN_EPOCH:
            partition.leader_epoch = _latest_epoch(directory)


def _topic_id(directory: str) -> str | None:
    path = os.path.join(directory, _PARTITION_METADATA)
    try:
        return parse_partition_metadata(read_text(path), path)
    except (OSError, SegmentError):
        return None


def _latest_epoch(directory: str) -> LeaderEpoch:
    """A leader writes its epoch into the checkpoint when it takes over."""
    try:
        entries = read_lineage(directory).entries
    except (OSError, SegmentError):
        return UNKNOWN_EPOCH
    return entries[-1][0] if entries else UNKNOWN_EPOCH
