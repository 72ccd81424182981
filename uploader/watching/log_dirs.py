"""The partitions' directories, kept up to date by hints and rescans."""

import os
from collections.abc import Callable, Iterable

from sidetier.segments.names import DirectoryState, parse_partition_directory
from sidetier.segments.offsets import TopicPartition
from sidetier.uploader.watching.disk import find_partitions


class LogDirs:
    """Which directory holds which partition, over several log dirs."""

    def __init__(self, log_dirs: Iterable[str], wanted: Callable[[str], bool]) -> None:
        self.paths = tuple(log_dirs)
        self.wanted = wanted
        self._directories: dict[TopicPartition, str] = {}

    def rescan(self) -> None:
        """Read all log dirs."""
        self._directories = find_partitions(self.paths, self.wanted)

    def directory(self, tp: TopicPartition) -> str | None:
        """Where the partition lies, or None."""
        return self._directories.get(tp)

    def partitions(self) -> Iterable[TopicPartition]:
        """Every partition found, led or not."""
        return self._directories.keys()

    def resolve(self, directory: str) -> TopicPartition | None:
        """The partition in a directory that a hint names; takes note of a new or vanished one."""
        parsed = parse_partition_directory(os.path.basename(directory))
        if parsed is None or parsed.state is not DirectoryState.LIVE:
            return None
        tp = parsed.topic_partition
        if not self.wanted(tp.topic):
            return None
        if os.path.isdir(directory):
            self._directories[tp] = directory
        elif self._directories.get(tp) == directory:
            del self._directories[tp]
        return tp
