"""Keep a watch alive: restart a failed one, and poll where inotify does not suffice."""

from collections.abc import Callable, Iterable
from typing import Final, Literal

import structlog

from sidetier.segments.errors import ConfigurationError
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.watching.hints import HintBoard
from sidetier.uploader.watching.watch import InotifyWatch, Watch, limit_reached

log: Final = structlog.get_logger()
Mode = Literal["auto", "inotify", "polling"]

MakeWatch = Callable[[Iterable[str], HintBoard, Callable[[], None]], Watch]

_MORE_EVENTS: Final = "raise fs.inotify.max_queued_events (sysctl) where this comes again and again"
_HOW_TO_RAISE: Final = (
    "raise fs.inotify.max_user_watches and fs.inotify.max_user_instances (sysctl), or set "
    "uploader.watch: polling"
)


class Watcher:
    """A watch that is restarted when it fails. The rescans find events that it misses."""

    def __init__(
        self,
        log_dirs: Iterable[str],
        board: HintBoard,
        mode: Mode,
        metrics: Metrics,
        make: MakeWatch = InotifyWatch,
    ) -> None:
        self._log_dirs = tuple(log_dirs)
        self._board = board
        self._mode = mode
        self._metrics = metrics
        self._make = make
        self._watch: Watch | None = None

    @property
    def polling(self) -> bool:
        """Whether there is no watch, so that the log dirs must be listed often."""
        return self._watch is None

    def start(self) -> None:
        """Begin to watch, before the first listing.

        Raises:
            ConfigurationError: the configuration demands inotify, and its limits do not allow it.
        """
        if self._mode == "polling":
            return
        watch = self._make(self._log_dirs, self._board, self._overflowed)
        try:
            watch.start()
        except OSError as error:
            self._refused(error)
        else:
            self._watch = watch

    def _refused(self, error: OSError) -> None:
        if self._mode == "inotify" and limit_reached(error):
            raise ConfigurationError(
                f"uploader.watch: inotify: this machine allows no more watches ({error}); "
                f"{_HOW_TO_RAISE}"
            ) from error
        log.warning("watch.polling", reason=str(error), hint=_HOW_TO_RAISE)

    def _overflowed(self) -> None:
        """Request a listing of everything after lost events. Called on the watch's thread."""
        self._board.touch_everything()
        self._metrics.watcher_overflowed()
        log.warning("watch.overflowed", hint=_MORE_EVENTS)

    def keep_alive(self) -> bool:
        """Restart a failed watch, and watch log dirs that are readable again.

        Returns:
            Whether everything must be listed.
        """
        if self._watch is None:
            return False
        if self._watch.is_alive():
            return self._watch.add_unwatched()
        log.warning("watch.restarted")
        self._metrics.watcher_restarted()
        self._watch.stop()
        self._watch = None
        self.start()
        return True

    def stop(self) -> None:
        """End the watch. May be called twice."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()
