"""The directories of the partitions, kept up to date by hints and rescans."""

import os
import stat
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import structlog

from sidetier.segments.errors import SegmentError
from sidetier.segments.offsets import TopicPartition
from sidetier.uploader.watching.disk import (
    LogDirPartitions,
    live_partition,
    read_log_dir,
    unreadable,
    why_refused,
)

if TYPE_CHECKING:
    from sidetier.segments.properties import MetaProperties

log: Final = structlog.get_logger()


class LogDirs:
    """Maps partitions to their directories, over several log dirs.

    The last successful reading of a log dir stays valid until the next one: while a log dir cannot
    be read, its partitions do not count as deleted.

    Args:
        log_dirs: Paths of the log dirs.
        wanted: Returns whether to archive a topic.
        identity: The broker that each log dir must belong to; None skips the check.
    """

    def __init__(
        self,
        log_dirs: Iterable[str],
        wanted: Callable[[str], bool],
        identity: "MetaProperties | None" = None,
    ) -> None:
        self.paths = tuple(log_dirs)
        self.wanted = wanted
        self._identity = identity
        self._by_log_dir = {path: LogDirPartitions() for path in self.paths}
        self._unreadable: dict[str, str] = {}
        self._directories: dict[TopicPartition, str] = {}
        self._refused: dict[TopicPartition, str] = {}
        self._forbidden: dict[TopicPartition, str] = {}

    @property
    def problems(self) -> tuple[str, ...]:
        """Log dirs and partitions that cannot be read, and links that are not followed, one line
        each.
        """
        return (*self._unreadable.values(), *self._refused.values(), *self._forbidden.values())

    def rescan(self) -> None:
        """Read all log dirs."""
        for path in self.paths:
            try:
                partitions = read_log_dir(path, self.wanted, self._identity)
            except (OSError, SegmentError) as error:
                self._note_unreadable(path, unreadable(path, error))
                continue
            self._by_log_dir[path] = partitions
            if self._unreadable.pop(path, None) is not None:
                log.warning("log_dir.readable", path=path)
        self._combine()

    def _note_unreadable(self, path: str, reason: str) -> None:
        if path not in self._unreadable:
            log.warning("log_dir.unreadable", path=path, reason=reason)
        self._unreadable[path] = reason

    def _combine(self) -> None:
        """Combine all log dirs. A readable log dir wins over an earlier reading of another.

        The broker may have created the replica again in a readable log dir.
        """
        directories: dict[TopicPartition, str] = {}
        refused: dict[TopicPartition, str] = {}
        forbidden: dict[TopicPartition, str] = {}
        # Unreadable log dirs first, so that `update` lets the readable ones win.
        for path in sorted(self.paths, key=lambda path: path not in self._unreadable):
            directories.update(self._by_log_dir[path].directories)
            refused.update(self._by_log_dir[path].refused)
            forbidden.update(self._by_log_dir[path].forbidden)
        refused = {tp: why for tp, why in refused.items() if tp not in directories}
        for tp, why in refused.items():
            if self._refused.get(tp) != why:
                log.error("partition.refused", topic=tp.topic, partition=tp.partition, reason=why)
        for tp, why in forbidden.items():
            if tp not in self._forbidden:
                values = {"topic": tp.topic, "partition": tp.partition, "reason": why}
                log.error("partition.unreadable", **values)
        for tp in self._forbidden.keys() - forbidden.keys():
            log.info("partition.readable", topic=tp.topic, partition=tp.partition)
        self._directories, self._refused, self._forbidden = directories, refused, forbidden

    def directory(self, tp: TopicPartition) -> str | None:
        """Return the directory of the partition, or None."""
        return self._directories.get(tp)

    def refusal(self, tp: TopicPartition) -> str | None:
        """Return why the partition's directory is not read; None where it is read or missing."""
        return self._refused.get(tp)

    def partitions(self) -> Iterable[TopicPartition]:
        """Return every partition on the disk, led or not."""
        return self._directories.keys()

    def resolve(self, directory: str) -> TopicPartition | None:
        """Return the partition in the directory of a hint, and note whether it is new or gone."""
        log_dir, name = os.path.split(directory)
        tp, partitions = live_partition(name), self._by_log_dir.get(log_dir)
        if tp is None or partitions is None or not self.wanted(tp.topic):
            return None
        if log_dir in self._unreadable:
            return tp  # a missing directory proves nothing: the disk may be offline
        try:
            is_there, refused = _examine(directory)
        except OSError:
            return tp  # not known now: the next rescan reads it again
        partitions.directories.pop(tp, None)
        partitions.refused.pop(tp, None)
        if is_there:
            partitions.directories[tp] = self._directories[tp] = directory
            self._refused.pop(tp, None)
            return tp
        if refused is not None:
            partitions.refused[tp] = refused
        if refused is not None or self._directories.get(tp) == directory:
            self._combine()
        return tp


def _examine(directory: str) -> tuple[bool, str | None]:
    """Return whether to read the partition's directory, and why not if it is a symbolic link
    that is not followed.

    Raises:
        OSError: the directory or its log dir cannot be examined now.
    """
    try:
        status = os.lstat(directory)
    except (FileNotFoundError, NotADirectoryError):
        os.stat(os.path.dirname(directory))  # raises if the log dir is gone, not only the partition
        return False, None
    if not stat.S_ISLNK(status.st_mode):
        return stat.S_ISDIR(status.st_mode), None
    refused = why_refused(directory, os.stat(os.path.dirname(directory)).st_dev)
    return refused is None, refused
