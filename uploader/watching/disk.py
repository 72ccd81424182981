"""Read the broker's log dirs. No function writes to them."""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sidetier.config.startup import META_PROPERTIES
from sidetier.segments.errors import DamagedSegmentError, SegmentError, UnsupportedFormatError
from sidetier.segments.headers import HEADER_BYTES, BatchHeader, check_beginning, walk_headers
from sidetier.segments.listing import read_listing
from sidetier.segments.names import (
    DirectoryState,
    FileKind,
    parse_partition_directory,
    segment_file_name,
)
from sidetier.segments.offsets import BaseOffset, LeaderEpoch, Offset, TopicPartition
from sidetier.segments.properties import (
    MetaProperties,
    parse_meta_properties,
    parse_partition_metadata,
)

EPOCH_CHECKPOINT_NAME: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
METADATA_TOPIC: Final = "__cluster_metadata"
_BROKEN_LINK: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES})


@dataclass(frozen=True, slots=True)
class LogDirPartitions:
    """The live partitions of one or several log dirs.

    Attributes:
        directories: The directory of each partition.
        refused: Why a partition's directory, a symbolic link, is not followed.
        forbidden: Why one of `directories` cannot be listed. It stays there: once its permissions
            are corrected, it is archived.
        unreadable: Why a log dir could not be read. Its partitions are not known.
    """

    directories: dict[TopicPartition, str] = field(default_factory=dict)
    refused: dict[TopicPartition, str] = field(default_factory=dict)
    forbidden: dict[TopicPartition, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """The problems that keep partitions from being archived, each as a line of text."""
        return [*self.unreadable.values(), *self.refused.values(), *self.forbidden.values()]


def find_partitions(
    log_dirs: Iterable[str],
    wanted: Callable[[str], bool],
    identity: MetaProperties | None = None,
) -> LogDirPartitions:
    """Find the live partitions of wanted topics in all log dirs; see `read_log_dir`."""
    combined = LogDirPartitions()
    for log_dir in log_dirs:
        try:
            partitions = read_log_dir(log_dir, wanted, identity)
        except (OSError, SegmentError) as error:
            combined.unreadable[log_dir] = unreadable(log_dir, error)
            continue
        combined.directories.update(partitions.directories)
        combined.refused.update(partitions.refused)
        combined.forbidden.update(partitions.forbidden)
    # A refused link does not matter if another log dir has the partition.
    for tp in combined.directories.keys() & combined.refused.keys():
        del combined.refused[tp]
    return combined


def read_log_dir(
    log_dir: str, wanted: Callable[[str], bool], identity: MetaProperties | None = None
) -> LogDirPartitions:
    """Find the live partitions of wanted topics in one log dir.

    `-delete`, `-future` and `-stray` directories are not live partitions. KRaft's metadata log is
    left out. Symbolic links are followed, as by the broker, if they stay on the log dir's own file
    system.

    Args:
        log_dir: Its path.
        wanted: Returns whether to archive a topic.
        identity: The broker that the log dir must belong to; None skips the check.

    Raises:
        OSError: the log dir cannot be read, or not completely.
        SegmentError: it belongs to another broker, or its meta.properties is damaged.
    """
    if identity is not None:
        _check_identity(log_dir, identity)
    partitions = LogDirPartitions()
    device = os.stat(log_dir).st_dev
    with os.scandir(log_dir) as entries:
        for entry in entries:
            # The name first: most entries need no further system call.
            tp = live_partition(entry.name)
            if tp is None or not wanted(tp.topic):
                continue
            if entry.is_symlink():
                reason = why_refused(entry.path, device)
                if reason is not None:
                    partitions.refused[tp] = reason
                    continue
            elif not entry.is_dir(follow_symlinks=False):
                continue
            partitions.directories[tp] = entry.path
            if not os.access(entry.path, os.R_OK | os.X_OK, effective_ids=True):
                partitions.forbidden[tp] = (
                    f"{entry.path} cannot be read, and nothing in it is archived: run as the "
                    "broker's user or in its group"
                )
    return partitions


def live_partition(name: str) -> TopicPartition | None:
    """Return the partition in a directory of this name; None where there is none to archive."""
    parsed = parse_partition_directory(name)
    if parsed is None or parsed.state is not DirectoryState.LIVE:
        return None
    return None if parsed.topic_partition.topic == METADATA_TOPIC else parsed.topic_partition


def why_refused(link: str, device: int) -> str | None:
    """Return why a symbolic link in a log dir on this device is not followed; None where it is.

    The spool and the limits on free disk space work on the log dir's file system only.

    Raises:
        OSError: the target cannot be examined now.
    """
    target = f"{link} is a symbolic link to {os.path.realpath(link)}"
    try:
        status = os.stat(link)
    except OSError as error:
        if error.errno not in _BROKEN_LINK:
            raise
        return f"{target}, which cannot be reached: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return f"{target}, which is not a directory"
    if status.st_dev != device:
        return (
            f"{target}, on another file system than its log dir, and is not archived: make that "
            "file system a log dir of the broker, and move the partition there"
        )
    return None


def unreadable(log_dir: str, error: Exception) -> str:
    """Return the message about a log dir that cannot be read."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"log dir {log_dir} cannot be read, and nothing in it is archived: {reason}"


def _check_identity(log_dir: str, expected: MetaProperties) -> None:
    """Check that the directory is not an empty mount point or the disk of another broker."""
    path = os.path.join(log_dir, META_PROPERTIES)
    actual = parse_meta_properties(read_text(path), path)
    # An unmounted disk leaves an empty directory. Without this check, all of
    # its partitions would count as deleted, and their pins would be released.
    if (actual.broker_id, actual.cluster_id) != (expected.broker_id, expected.cluster_id):
        raise SegmentError(
            f"{path} is that of broker {actual.broker_id} of cluster {actual.cluster_id}, not of "
            f"broker {expected.broker_id} of cluster {expected.cluster_id}"
        )


def list_names(directory: str) -> list[str]:
    """Return the names in a partition's directory; empty if the directory is gone."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_text(path: str) -> str:
    """Read a small UTF-8 file of the broker, a checkpoint. Raises OSError or SegmentError."""
    with open(path, encoding="utf-8") as file:
        try:
            return file.read()
        except UnicodeDecodeError as error:
            raise SegmentError(f"{path}: byte {error.start} is not UTF-8: {error.reason}") from None


class LogFile(NamedTuple):
    """A `.log` on the disk, and the topic that its directory belongs to.

    Attributes:
        device: Device of the file.
        inode: Its inode.
        topic_id: Topic id in `partition.metadata`; None if there is none.
    """

    device: int
    inode: int
    topic_id: str | None


class BatchPosition(NamedTuple):
    """Where a batch of a log begins.

    Attributes:
        segment: Base offset of the segment.
        file: Its `.log`.
        leader_epoch: The leader epoch in which the batches before it were read. The broker does not
            truncate while it leads in it, so the position is certain. UNKNOWN_EPOCH if the broker
            perhaps did not lead yet: then it is good enough for measuring.
        offset: End of the batch before it, exclusive.
        position: Its position, in bytes.
    """

    segment: BaseOffset
    file: LogFile
    leader_epoch: LeaderEpoch
    offset: Offset
    position: int


class WholeBatches:
    """Iterates over the batches of an open `.log` up to the first that is not whole: position and
    header. Raises UnsupportedFormatError for message format v0 or v1.

    The broker may be appending that batch, or rolling a preallocated segment, in which zeros follow
    for a moment. Real damage shows when the segment closes.

    Args:
        descriptor: The file.
        size: Its size in bytes.
        start: Position of the first batch.

    Attributes:
        whole: False if the iteration has ended at a batch that is not whole.
        end: End of the last batch so far, exclusive.
    """

    def __init__(self, descriptor: int, size: int, start: int = 0) -> None:
        self._descriptor, self._size, self._start = descriptor, size, start
        self.whole = True
        self.end = Offset(0)

    def __iter__(self) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of each batch."""
        descriptor = self._descriptor
        try:
            for at, header in walk_headers(
                lambda at, length: os.pread(descriptor, length, at), self._size, start=self._start
            ):
                self.end = header.next_offset
                yield at, header
        except DamagedSegmentError:
            self.whole = False


class OpenLog(NamedTuple):
    """A `.log` that is open for reading, as it was when it was opened.

    Attributes:
        segment: Base offset of the segment.
        descriptor: The open file.
        size: Its size in bytes.
        file: Which file it is.
    """

    segment: BaseOffset
    descriptor: int
    size: int
    file: LogFile

    def batches(self, start: int = 0) -> WholeBatches:
        """Return the batches from the one at position `start` on."""
        return WholeBatches(self.descriptor, self.size, start)


@contextmanager
def open_log(directory: str, segment: BaseOffset, topic_id: str | None = None) -> Iterator[OpenLog]:
    """Open the `.log` of a live segment. `topic_id` is taken over as given. Raises OSError."""
    path = os.path.join(directory, segment_file_name(segment, FileKind.LOG))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        file = LogFile(status.st_dev, status.st_ino, topic_id)
        yield OpenLog(segment, descriptor, status.st_size, file)
    finally:
        os.close(descriptor)


def segment_bases(directory: str) -> list[BaseOffset]:
    """Return the base offsets of the live segments, ascending; none if the directory is gone."""
    listing = read_listing(list_names(directory))
    live = [each.base_offset for each in listing.closed if not each.marked_for_deletion]
    return live if listing.active is None else [*live, listing.active]


def log_file(directory: str, base: BaseOffset) -> LogFile | None:
    """Return where the name of a live segment leads now; None if it is gone."""
    try:
        status = os.stat(os.path.join(directory, segment_file_name(base, FileKind.LOG)))
    except OSError:
        return None
    return LogFile(status.st_dev, status.st_ino, topic_id_in(directory))


def topic_id_in(directory: str) -> str | None:
    """Return the topic id in a partition's directory; None if it cannot be read."""
    try:
        return read_topic_id(directory)
    except SegmentError:
        return None


def read_topic_id(directory: str) -> str | None:
    """Return the topic id in a partition's directory; None if the broker has not written it.
    Raises SegmentError for a damaged `partition.metadata`.
    """
    path = os.path.join(directory, PARTITION_METADATA)
    try:
        return parse_partition_metadata(read_text(path), path)
    except OSError:
        return None


def device_of(path: str) -> int | None:
    """Return the file system of a path (`st_dev`); None where it cannot be read."""
    try:
        return os.stat(path).st_dev
    except OSError:
        return None


def free_bytes(path: str) -> tuple[int, int]:
    """Return the free bytes for users other than root, and all bytes, of a path's file system."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize


def old_format_of(path: str) -> str | None:
    """Return why a `.log` cannot be archived: it begins with message format v0 or v1.

    None for format v2, and for an empty, damaged or deleted file.
    """
    try:
        with open(path, "rb") as file:
            check_beginning(file.read(HEADER_BYTES))
    except UnsupportedFormatError as error:
        return str(error)
    except (OSError, DamagedSegmentError):
        return None
    return None
