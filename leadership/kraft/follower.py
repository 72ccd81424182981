"""Keeps up with the metadata log: when to look, and what to say when it cannot be read."""

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
    """Seconds between two looks: while all is well, and after a failed one."""

    regular: float
    after_failure: float


class LogFollower:
    """Looks at the metadata log after each hint, and from time to time without one."""

    def __init__(
        self, metadata_log_dir: Path, intervals: LogIntervals, on_hint: Callable[[], None]
    ) -> None:
        """`on_hint` is called on another thread when it is worth to `look`.

        Raises:
            ConfigurationError: there is no such directory.
        """
        if not metadata_log_dir.is_dir():
            raise ConfigurationError(f"the metadata log dir {metadata_log_dir} is no directory")
        directory = metadata_log_dir / METADATA_DIRECTORY
        self._log_file = MetadataLog(directory)
        self._watch = DirectoryWatch(directory, on_hint)
        self._intervals = intervals
        self._failing = False
        self.due = 0.0
        """When to look even without a hint; seconds of the caller's clock."""

    @property
    def image(self) -> MetadataImage:
        """What the log described at the last successful look."""
        return self._log_file.image

    def wants_look(self, now: float, *, hinted: bool) -> bool:
        """Whether to look now; a log that could not be read is left alone for a while."""
        return now >= self.due or (hinted and not self._failing)

    def look(self, now: float) -> bool:
        """Read what is new; True where the image may have changed.

        Raises:
            LeadershipError: the log cannot be read; `retry` says whether it may be later.
        """
        self._watch.ensure()  # before the look: what comes after it gives a hint
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
        """A look has ended in a way that nobody expects: the next one comes after a pause."""
        self.due = now + self._intervals.after_failure
        self._failing = True

    def stop(self) -> None:
        """Give no more hints."""
        self._watch.stop()
