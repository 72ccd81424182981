"""What lies in the broker's log dirs; every function only reads."""

import os
from collections.abc import Callable, Iterable
from typing import Final

from sidetier.segments.errors import SegmentError
from sidetier.segments.names import DirectoryState, parse_partition_directory
from sidetier.segments.offsets import TopicPartition

METADATA_TOPIC: Final = "__cluster_metadata"


def find_partitions(
    log_dirs: Iterable[str], wanted: Callable[[str], bool]
) -> dict[TopicPartition, str]:
    """The directory of each live partition whose topic is wanted, over all log dirs.

    `-delete`, `-future` and `-stray` directories are no partitions; KRaft's metadata log is none
    that anybody would archive. A log dir that went offline holds nothing now.
    """
    found: dict[TopicPartition, str] = {}
    for log_dir in log_dirs:
        for name in _subdirectories(log_dir):
            parsed = parse_partition_directory(name)
            if parsed is None or parsed.state is not DirectoryState.LIVE:
                continue
            tp = parsed.topic_partition
            if tp.topic != METADATA_TOPIC and wanted(tp.topic):
                found[tp] = os.path.join(log_dir, name)
    return found


def _subdirectories(log_dir: str) -> list[str]:
    try:
        with os.scandir(log_dir) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


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
