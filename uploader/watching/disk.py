"""What the broker has in its log dirs; every function only reads."""

import errno
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from sidetier.config.startup import META_PROPERTIES
from sidetier.segments.errors import SegmentError
from sidetier.segments.names import DirectoryState, parse_partition_directory
from sidetier.segments.offsets import TopicPartition
from sidetier.segments.properties import MetaProperties, parse_meta_properties

EPOCH_CHECKPOINT_NAME: Final = "leader-epoch-checkpoint"
METADATA_TOPIC: Final = "__cluster_metadata"
_BROKEN_LINK: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES})


@dataclass(frozen=True, slots=True)
class LogDirPartitions:
    """The live partitions of a log dir, or of several.

    Attributes:
        directories: The directory of each partition.
        refused: Why a partition's directory is not read: a symbolic link that is not followed.
        unreadable: Why a log dir could not be read; its partitions are not known.
    """

    directories: dict[TopicPartition, str] = field(default_factory=dict)
    refused: dict[TopicPartition, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """Everything that keeps partitions from being archived, a line each."""
        return [*self.unreadable.values(), *self.refused.values()]


def find_partitions(
    log_dirs: Iterable[str],
    wanted: Callable[[str], bool],
    identity: MetaProperties | None = None,
) -> LogDirPartitions:
    """The live partitions of all log dirs whose topic is wanted; see `read_log_dir`."""
    every = LogDirPartitions()
    for log_dir in log_dirs:
        try:
            found = read_log_dir(log_dir, wanted, identity)
        except (OSError, SegmentError) as error:
            every.unreadable[log_dir] = unreadable(log_dir, error)
            continue
        every.directories.update(found.directories)
        every.refused.update(found.refused)
    for tp in every.directories.keys() & every.refused.keys():
        del every.refused[tp]
    return every


def read_log_dir(
    log_dir: str, wanted: Callable[[str], bool], identity: MetaProperties | None = None
) -> LogDirPartitions:
    """The live partitions of one log dir whose topic is wanted.

    `-delete`, `-future` and `-stray` directories are no partitions; KRaft's metadata log is none
    that anybody would archive. Symbolic links are followed, as by the broker, on the log dir's own
    file system.

    Args:
        log_dir: Its path.
        wanted: Whether a topic is to be archived.
        identity: The broker that the log dir must belong to; None skips the check.

    Raises:
        OSError: the log dir cannot be read, or not completely.
        SegmentError: it belongs to another broker, or its meta.properties is damaged.
    """
    if identity is not None:
        _check_identity(log_dir, identity)
    found = LogDirPartitions()
    device = os.stat(log_dir).st_dev
    with os.scandir(log_dir) as entries:
        for entry in entries:
            tp = live_partition(entry.name)
            if tp is None or not wanted(tp.topic):
                continue
            if entry.is_symlink():
                reason = why_refused(entry.path, device)
                if reason is not None:
                    found.refused[tp] = reason
                    continue
            elif not entry.is_dir(follow_symlinks=False):
                continue
            found.directories[tp] = os.path.join(log_dir, entry.name)
    return found


def live_partition(name: str) -> TopicPartition | None:
    """The partition that a directory of this name holds, None where there is none to archive."""
    parsed = parse_partition_directory(name)
    if parsed is None or parsed.state is not DirectoryState.LIVE:
        return None
    return None if parsed.topic_partition.topic == METADATA_TOPIC else parsed.topic_partition


def why_refused(link: str, device: int) -> str | None:
    """Why a symbolic link in a log dir on this device is not followed; None where it is.

    The bounds on free disk, and the spool, work on the file system of the log dir.

    Raises:
        OSError: the target cannot be looked at now.
    """
    target = f"{link} is a symbolic link to {os.path.realpath(link)}"
    try:
        found = os.stat(link)
    except OSError as error:
        if error.errno not in _BROKEN_LINK:
            raise
        return f"{target}, which cannot be reached: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return f"{target}, which is not a directory"
    if found.st_dev != device:
        return (
            f"{target}, on another file system than its log dir, and is not archived: make that "
            "file system a log dir of the broker, and move the partition there"
        )
    return None


def unreadable(log_dir: str, error: Exception) -> str:
    """What to say of a log dir that cannot be read."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"log dir {log_dir} cannot be read, and nothing in it is archived: {reason}"


def _check_identity(log_dir: str, expected: MetaProperties) -> None:
    """An empty mount point, or the disk of another broker, is not this log dir."""
    path = os.path.join(log_dir, META_PROPERTIES)
    found = parse_meta_properties(read_text(path), path)
    if (found.broker_id, found.cluster_id) != (expected.broker_id, expected.cluster_id):
        raise SegmentError(
            f"{path} is that of broker {found.broker_id} of cluster {found.cluster_id}, not of "
            f"broker {expected.broker_id} of cluster {expected.cluster_id}"
        )


def list_names(directory: str) -> list[str]:
    """The names in a partition's directory; empty when the directory is gone."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_text(path: str) -> str:
    """A small text file of the broker's, such as a checkpoint.

    Raises:
        OSError: It cannot be read.
        SegmentError: It is not UTF-8.
    """
    with open(path, encoding="utf-8") as file:
        try:
            return file.read()
        except UnicodeDecodeError as error:
            raise SegmentError(f"{path}: byte {error.start} is not UTF-8: {error.reason}") from None


def device_of(path: str) -> int | None:
    """The file system that holds the path (`st_dev`); None where it cannot be told."""
    try:
        return os.stat(path).st_dev
    except OSError:
        return None


def free_bytes(path: str) -> tuple[int, int]:
    """Free bytes that others than root may use, and all bytes, of the file system at the path."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
