"""Schedule reads of the metadata log, and report when it cannot be read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from sidetier.leadership.kraft.directory import METADATA_DIRECTORY
from sidetier.leadership.kraft.image import MetadataImage
from sidetier.leadership.kraft.metadata_log import MetadataLog
from sidetier.leadership.kraft.watch import DirectoryWatch
from sidetier.segments.errors import ConfigurationError, LeadershipError

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LogIntervals:
    """Seconds between two reads: after a successful one, and after a failed one."""

    regular: float
    after_failure: float


class LogFollower:
    """Reads the metadata log after each hint, and at intervals without hints."""

    def __init__(
        self, metadata_log_dir: Path, intervals: LogIntervals, on_hint: Callable[[], None]
    ) -> None:
        """Create the follower; no file is read.

        Args:
            metadata_log_dir: Log dir that contains `__cluster_metadata-0`.
            intervals: Seconds between two reads.
            on_hint: Called on another thread when the directory changed.

        Raises:
            ConfigurationError: The directory does not exist.
        """
        if not metadata_log_dir.is_dir():
            raise ConfigurationError(f"the metadata log dir {metadata_log_dir} is no directory")
        directory = metadata_log_dir / METADATA_DIRECTORY
        self._log_file = MetadataLog(directory)
        self._watch = DirectoryWatch(directory, on_hint)
        self._intervals = intervals
        self._failing = False
        self.due = 0.0
        """Time of the next read without a hint, in seconds of the caller's clock."""

    @property
    def image(self) -> MetadataImage:
        """Image that the log described at the last successful read."""
        return self._log_file.image

    def wants_look(self, now: float, *, hinted: bool) -> bool:
        """Return whether to read now. After a failure, hints are ignored until `due`."""
        return now >= self.due or (hinted and not self._failing)

    def look(self, now: float) -> bool:
        """Read new batches; return True if the image may have changed.

        Raises:
            LeadershipError: The log cannot be read; `retry` tells whether a later read can succeed.
        """
        self._watch.ensure()  # before the read: later changes then give a hint
        try:
            changed = self._log_file.poll()
        except LeadershipError as error:
            self.due = now + self._intervals.after_failure
            if not self._failing:
                _log.warning("leadership.metadata_log_unreadable", reason=str(error))
            self._failing = True
            raise
        self.due = now + self._intervals.regular
        recovered, self._failing = self._failing, False
        return changed or recovered

    def failed(self, now: float) -> None:
        """Record that a read failed unexpectedly; the next one follows after a pause."""
        self.due = now + self._intervals.after_failure
        self._failing = True

    def stop(self) -> None:
        """Stop giving hints."""
        self._watch.stop()
