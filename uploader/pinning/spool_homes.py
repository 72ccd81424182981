"""Which spool directory serves which log dir, and whether links can be made there: tried once."""

import errno
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from sidetier.config.startup import META_PROPERTIES
from sidetier.segments.errors import ConfigurationError

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
    """For each log dir the spool on its file system, where a link has just been made and removed.

    Raises:
        ConfigurationError: a spool is missing, a log dir has none, or links are refused.
    """
    devices = {_device(spool): spool for spool in reversed(list(spools))}
    homes = {}
    for log_dir in log_dirs:
        spool = devices.get(_device(log_dir))
        if spool is None:
            raise ConfigurationError(
                f"uploader.pins.spool: none of {', '.join(devices.values())} is on the file "
                f"system of the log dir {log_dir}: name one directory for each mount"
            )
        _probe(log_dir, spool)
        homes[log_dir] = spool
    return homes


def _device(path: str) -> int:
    try:
        return os.stat(path).st_dev
    except OSError as error:
        raise ConfigurationError(f"uploader.pins.spool: {path}: {error.strerror}") from error


def _probe(log_dir: str, spool: str) -> None:
    """A second name for a small file of the broker's, for a moment."""
    source = os.path.join(log_dir, META_PROPERTIES)
    target = os.path.join(spool, _PROBE.format(os.getpid()))
    with suppress(FileNotFoundError):
        os.unlink(target)
    try:
        os.link(source, target)
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, error.strerror)
        raise ConfigurationError(
            f"uploader.pins.spool: {spool} cannot take links from the log dir {log_dir}: {reason}"
        ) from error
    os.unlink(target)
