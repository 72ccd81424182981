"""The partitions' directories, kept up to date by hints and rescans."""

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
    """Which directory holds which partition, over several log dirs.

    What was last read of a log dir counts until it is read again: while it cannot be read, nothing
    in it counts as gone.

    Args:
        log_dirs: Their paths.
        wanted: Whether a topic is to be archived.
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
        self._found = {path: LogDirPartitions() for path in self.paths}
        self._unreadable: dict[str, str] = {}
        self._directories: dict[TopicPartition, str] = {}
        self._refused: dict[TopicPartition, str] = {}

    @property
    def problems(self) -> tuple[str, ...]:
        """Log dirs that cannot be read, and links that are not followed, a line each."""
        return (*self._unreadable.values(), *self._refused.values())

    def rescan(self) -> None:
        """Read all log dirs."""
        for path in self.paths:
            try:
                found = read_log_dir(path, self.wanted, self._identity)
            except (OSError, SegmentError) as error:
                self._is_unreadable(path, unreadable(path, error))
                continue
            self._found[path] = found
            if self._unreadable.pop(path, None) is not None:
                log.warning("log_dir.readable", path=path)
        self._combine()

    def _is_unreadable(self, path: str, reason: str) -> None:
        if path not in self._unreadable:
            log.warning("log_dir.unreadable", path=path, reason=reason)
        self._unreadable[path] = reason

    def _combine(self) -> None:
        """A log dir that can be read knows better than one that was read a while ago."""
        directories: dict[TopicPartition, str] = {}
        refused: dict[TopicPartition, str] = {}
        for path in sorted(self.paths, key=lambda path: path not in self._unreadable):
            directories.update(self._found[path].directories)
            refused.update(self._found[path].refused)
        refused = {tp: why for tp, why in refused.items() if tp not in directories}
        for tp, why in refused.items():
            if self._refused.get(tp) != why:
                log.error("partition.refused", topic=tp.topic, partition=tp.partition, reason=why)
        self._directories, self._refused = directories, refused

    def directory(self, tp: TopicPartition) -> str | None:
        """The directory of the partition, or None."""
        return self._directories.get(tp)

    def refusal(self, tp: TopicPartition) -> str | None:
        """Why the partition's directory is not read, None where it is, or where there is none."""
        return self._refused.get(tp)

    def partitions(self) -> Iterable[TopicPartition]:
        """Every partition found, led or not."""
        return self._directories.keys()

    def resolve(self, directory: str) -> TopicPartition | None:
        """The partition in a directory that a hint names; takes note of a new or vanished one."""
        log_dir, name = os.path.split(directory)
        tp, found = live_partition(name), self._found.get(log_dir)
        if tp is None or found is None or not self.wanted(tp.topic):
            return None
        if log_dir in self._unreadable:
            return tp
        try:
            is_there, refused = _look(directory)
        except OSError:
            return tp  # not known: the next rescan tells
        found.directories.pop(tp, None)
        found.refused.pop(tp, None)
        if is_there:
            found.directories[tp] = self._directories[tp] = directory
            self._refused.pop(tp, None)
            return tp
        if refused is not None:
            found.refused[tp] = refused
        if refused is not None or self._directories.get(tp) == directory:
            self._combine()
        return tp


def _look(directory: str) -> tuple[bool, str | None]:
    """Whether there is a partition's directory to read, and why not where it is a symbolic link
    that is not followed; raises OSError.
    """
    try:
        status = os.lstat(directory)
    except (FileNotFoundError, NotADirectoryError):
        os.stat(os.path.dirname(directory))  # gone is the partition, and not the log dir
        return False, None
    if not stat.S_ISLNK(status.st_mode):
        return stat.S_ISDIR(status.st_mode), None
    refused = why_refused(directory, os.stat(os.path.dirname(directory)).st_dev)
    return refused is None, refused
