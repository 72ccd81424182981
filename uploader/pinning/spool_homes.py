"""Which spool directory serves which log dir, and whether links can be made there: tried once."""

import errno
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

import structlog

from sidetier.config.startup import META_PROPERTIES
from sidetier.segments.errors import ConfigurationError

log: Final = structlog.get_logger()

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_FAILED: Final = frozenset({errno.EIO, errno.EROFS})
"""What a failed disk says; a file system may make itself read-only then."""
_PROBE: Final = ".probe-{}"
_REASONS: Final[Mapping[int, str]] = {
    errno.EXDEV: "it is on another mount: mount the volume once, above both, and give both as "
    "directories of that mount",
    errno.EPERM: "this process may not link the broker's files: run as the broker's user, or with "
    "read and write access to its files (fs.protected_hardlinks), on a file system that has links",
    errno.EACCES: "this process may not write there",
    errno.EROFS: "it is read-only",
}


def spool_homes(log_dirs: Iterable[str], spools: Iterable[str]) -> dict[str, str]:
    """For each log dir that can be read, the spool on its file system, where a link has just been
    made and removed. A log dir whose disk has failed is left out, and a warning logged, while there
    is another one.

    Raises:
        ConfigurationError: a log dir has no spool, or links are refused.
    """
    known = list(spools)
    homes: dict[str, str] = {}
    failed: list[ConfigurationError] = []
    for log_dir in filter(_is_readable, log_dirs):
        try:
            homes[log_dir] = _home_of(log_dir, known)
        except ConfigurationError as error:
            cause = error.__cause__
            if not (isinstance(cause, OSError) and cause.errno in _FAILED):
                raise
            log.warning("spool.refused", log_dir=log_dir, error=str(error))
            failed.append(error)
    if failed and not homes:
        raise failed[0]
    return homes


def late_home(log_dir: str, spools: Iterable[str]) -> str | None:
    """The spool of a log dir that could not be read at the start. None, and a warning in the log,
    where it has none: its segments are held open alone.
    """
    try:
        return _home_of(log_dir, list(spools))
    except ConfigurationError as error:
        log.warning("spool.refused", log_dir=log_dir, error=str(error))
        return None


def _is_readable(log_dir: str) -> bool:
    try:
        with open(os.path.join(log_dir, META_PROPERTIES), "rb") as file:
            return bool(file.read())
    except OSError:
        return False


def _home_of(log_dir: str, spools: list[str]) -> str:
    wanted, missing = _device(log_dir), []
    for spool in spools:
        device = _device(spool)
        if isinstance(device, OSError):  # a failed disk takes log dir and spool
            missing.append(f"; {spool}: {device.strerror}")
        elif device == wanted:
            _probe(log_dir, spool)
            return spool
    raise ConfigurationError(
        f"uploader.pins.spool: none of {', '.join(spools)} is on the file system of the log dir "
        f"{log_dir}: name one directory for each mount{''.join(missing)}"
    )


def _device(path: str) -> int | OSError:
    try:
        return os.stat(path).st_dev
    except OSError as error:
        return error


def _probe(log_dir: str, spool: str) -> None:
    """A second name for a small file of the broker's, for a moment."""
    source = os.path.join(log_dir, META_PROPERTIES)
    target = os.path.join(spool, _PROBE.format(os.getpid()))
    try:
        with suppress(FileNotFoundError):
            os.unlink(target)
        os.link(source, target)
        os.unlink(target)
    except OSError as error:
        if error.errno in _FULL:
            return  # links are allowed, and there will be room
        reason = _REASONS.get(error.errno or 0, error.strerror)
        raise ConfigurationError(
            f"uploader.pins.spool: {spool} cannot take links from the log dir {log_dir}: {reason}"
        ) from error
