"""Static leadership: named partitions, or all partitions in the log dirs."""

from collections.abc import Iterable
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog

from sidetier.leadership.port import LeadershipView, ViewListener
from sidetier.leadership.settings import StaticSettings
from sidetier.leadership.worker import ViewPublisher
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.names import DirectoryState, parse_partition_directory
from sidetier.segments.offsets import UNKNOWN_EPOCH, TopicPartition

log: Final = structlog.get_logger()

_METADATA_TOPIC = "__cluster_metadata"


class StaticLeadership:
    """A `LeadershipSource` whose view is fixed at `start`. It has no thread.

    Nothing confirms the leadership. If two sidecars are configured to lead the same partition, only
    the store's conditional writes keep them apart.
    """

    def __init__(self, settings: StaticSettings) -> None:
        self._settings = settings
        self._publisher = ViewPublisher()

    def start(self, listener: ViewListener) -> None:
        """Deliver the only view, on the caller's thread.

        A log dir that cannot be read is left out until the next start, as long as another one can
        be read.

        Raises:
            ConfigurationError: No log dir can be read, or neither partitions nor log dirs are
                given.
        """
        partitions = self._partitions()
        self._publisher.open(listener)
        self._publisher.publish(
            LeadershipView(
                leads=MappingProxyType(dict.fromkeys(sorted(partitions), UNKNOWN_EPOCH)), known=True
            )
        )

    def view(self) -> LeadershipView:
        """Return the latest view."""
        return self._publisher.view

    def failure(self) -> BaseException | None:
        """Return None: no thread runs that could die."""
        return None

    def stop(self) -> None:
        """Stop delivering views."""
        self._publisher.close()

    def _partitions(self) -> Iterable[TopicPartition]:
        if self._settings.partitions is not None:
            return self._settings.partitions
        if not self._settings.log_dirs:
            raise ConfigurationError(
                "static leadership needs partitions, or log dirs to find them in"
            )
        partitions: set[TopicPartition] = set()
        problems: list[str] = []
        for log_dir in self._settings.log_dirs:
            try:
                partitions.update(_found_in(log_dir))
            except OSError as error:
                problems.append(f"log dir {log_dir} cannot be read: {error.strerror}")
        # As a broker, which continues with the log dirs that work, and stops when none is left.
        if len(problems) == len(self._settings.log_dirs):
            raise ConfigurationError("; ".join(problems))
        for problem in problems:
            log.warning("leadership.log_dir_unreadable", reason=problem)
        return partitions


def _found_in(log_dir: Path) -> list[TopicPartition]:
    names = [entry.name for entry in log_dir.iterdir() if entry.is_dir()]
    parsed = [parse_partition_directory(name) for name in names]
    return [
        directory.topic_partition
        for directory in parsed
        if directory is not None
        and directory.state is DirectoryState.LIVE
        and directory.topic_partition.topic != _METADATA_TOPIC
    ]
