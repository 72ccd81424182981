"""A value that is loaded from files, and loaded again when the files change."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from sidetier.segments.errors import ConfigurationError
from sidetier.storage.attempt import Clock, monotonic
from sidetier.telemetry.logs import logger

log = logger()

Value = TypeVar("Value")
_Stamp = tuple[tuple[int, int, int] | None, ...]
CHECK_SECONDS: Final = 5.0
"""Least time between two checks of the files."""


class Reloaded(Generic[Value]):
    """The latest value that could be loaded. Thread-safe.

    Kubernetes and cert-manager replace mounted files in place, one file at a time: for a moment the
    new certificate is beside the old key. A version that cannot be loaded changes nothing
    and is tried again at the next check.

    Args:
        paths: Returns the files. A change of one of them causes a load. Called before each load,
            because the files may name each other; it raises as `load`.
        load: Loads the value.
        failed: Called after each load that failed, except the first one.
        clock: Returns monotonic seconds.
        interval: Least time between two checks of the files, in seconds.

    Raises:
        ConfigurationError: The first load failed.
    """

    def __init__(
        self,
        paths: Callable[[], Sequence[Path]],
        load: Callable[[], Value],
        failed: Callable[[], object] = lambda: None,
        clock: Clock = monotonic,
        interval: float = CHECK_SECONDS,
    ) -> None:
        self._find_paths = paths
        self._load = load
        self._failed = failed
        self._clock = clock
        self._interval = interval
        self._guard = threading.Lock()
        self._paths = paths()
        self._loaded = _stamps(self._paths)
        self._value = load()
        self._next_check = clock() + interval
        self._logged: tuple[_Stamp, str] | None = None

    def current(self) -> Value:
        """Return the value; before, check the files if the last check is `interval` ago."""
        # One thread checks; the others do not wait for it.
        if self._clock() >= self._next_check and self._guard.acquire(blocking=False):
            try:
                self._check()
            finally:
                self._next_check = self._clock() + self._interval
                self._guard.release()
        return self._value

    def _check(self) -> None:
        stamp = _stamps(self._paths)
        if stamp == self._loaded:
            return
        try:
            paths = self._find_paths()
            loaded = _stamps(paths)  # before the load: a change during the load is noticed later
            self._value = self._load()
        except ConfigurationError as error:
            self._failed()
            if self._logged != (stamp, str(error)):
                self._logged = (stamp, str(error))
                log.error(  # noqa: TRY400 - the message names the file; a traceback does not help
                    "endpoint.reload_failed", files=_names(self._paths), error=str(error)
                )
            return
        self._paths, self._loaded = paths, loaded
        log.info("endpoint.reloaded", files=_names(paths))


def _names(paths: Sequence[Path]) -> list[str]:
    return [str(path) for path in paths]


def _stamps(paths: Sequence[Path]) -> _Stamp:
    return tuple(_stamp(path) for path in paths)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
