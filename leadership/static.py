"""Leadership by decree: named partitions, or all that lie in the log dirs."""

from collections.abc import Iterable
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog

from sidetier.leadership.port import LeadershipView, ViewListener
from sidetier.leadership.publisher import ViewPublisher
from sidetier.leadership.settings import StaticSettings
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.names import DirectoryState, parse_partition_directory
from sidetier.segments.offsets import UNKNOWN_EPOCH, TopicPartition

log: Final = structlog.get_logger()

_METADATA_TOPIC = "__cluster_metadata"


class StaticLeadership:
    """A `LeadershipSource` whose view is fixed at `start`; it has no thread that could die.

    Nothing confirms it: two sidecars that are told to lead the same partition are kept apart by the
    conditional writes of the store alone.
    """

    def __init__(self, settings: StaticSettings) -> None:
        self._settings = settings
        self._publisher = ViewPublisher()

    def start(self, listener: ViewListener) -> None:
        """Deliver the one view, on the caller's thread.

        Raises:
            ConfigurationError: no log dir can be read, or neither partitions nor log dirs are
                given. Of several log dirs, those that cannot be read are left out until the next
                start.
        """
        partitions = self._partitions()
        self._publisher.open(listener)
        self._publisher.publish(
            LeadershipView(
                leads=MappingProxyType(dict.fromkeys(sorted(partitions), UNKNOWN_EPOCH)), known=True
            )
        )

    def view(self) -> LeadershipView:
        """The latest view."""
        return self._publisher.view

    def failure(self) -> BaseException | None:
        """Always None."""
        return None

    def stop(self) -> None:
        """Deliver nothing more."""
        self._publisher.close()

    def _partitions(self) -> Iterable[TopicPartition]:
        if self._settings.partitions is not None:
            return self._settings.partitions
        if not self._settings.log_dirs:
            raise ConfigurationError(
                "static leadership needs partitions, or log dirs to find them in"
            )
        found: set[TopicPartition] = set()
        problems: list[str] = []
        for log_dir in self._settings.log_dirs:
            try:
                found.update(_found_in(log_dir))
            except OSError as error:
                problems.append(f"log dir {log_dir} cannot be read: {error.strerror}")
        if len(problems) == len(self._settings.log_dirs):
            raise ConfigurationError("; ".join(problems))
        for problem in problems:
            log.warning("leadership.log_dir_unreadable", reason=problem)
        return found


def _found_in(log_dir: Path) -> list[TopicPartition]:
    names = [entry.name for entry in log_dir.iterdir() if entry.is_dir()]
    parsed = [parse_partition_directory(name) for name in names]
    return [
        found.topic_partition
        for found in parsed
        if found is not None
        and found.state is DirectoryState.LIVE
        and found.topic_partition.topic != _METADATA_TOPIC
    ]
