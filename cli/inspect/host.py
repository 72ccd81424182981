"""Facts about this host: limits, log dirs, spools, permissions and the page cache. Read-only."""

import os
import resource
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sidetier.config.model import Config
from sidetier.segments.properties import MetaProperties
from sidetier.uploader.sending.reading import count_cached
from sidetier.uploader.watching.disk import free_bytes

_INOTIFY: Final = Path("/proc/sys/fs/inotify")
_PROTECTED_LINKS: Final = Path("/proc/sys/fs/protected_hardlinks")


@dataclass(frozen=True, slots=True)
class LogDirFacts:
    """File system of one log dir; sizes are in bytes.

    Attributes:
        unreadable: A directory or file that this process may not read.
        cache_problem: Why the kernel does not report which pages of its files are cached.
        device: Id of the file system's device.
    """

    path: str
    free: int
    total: int
    unreadable: str | None = None
    cache_problem: str | None = None
    device: int | None = None
    may_link: bool = True
    """Whether this process may hard-link the broker's files (link(2), fs.protected_hardlinks)."""


@dataclass(frozen=True, slots=True)
class SpoolFacts:
    """A directory of `uploader.pins.spool`; `device` is None if it does not exist."""

    path: str
    device: int | None
    writable: bool = True


@dataclass(frozen=True, slots=True)
class HostFacts:
    """This host, as this process sees it; a limit is None if it is unlimited or not known."""

    max_open_files: int | None = None
    max_watches: int | None = None
    max_instances: int | None = None
    partition_directories: int = 0
    log_dirs: tuple[LogDirFacts, ...] = ()
    spools: tuple[SpoolFacts, ...] = ()
    problems: tuple[str, ...] = ()
    """Problems of the log dirs that `sidetier config check` finds."""
    kafka_cluster_id: str | None = None


def host_facts(
    config: Config, identity: MetaProperties | None, problems: Iterable[str]
) -> HostFacts:
    """Read the limits of this host, and the file systems of its log dirs and spools.

    Args:
        config: The log dirs and spools to check.
        identity: Broker and cluster of the log dirs; None if no log dir has `meta.properties`.
        problems: Problems of the log dirs that are already known.
    """
    # `sidetier run` raises its soft limit to the hard one, so only the hard one counts.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    present = [path for path in config.log_dirs if _device(path) is not None and path.is_dir()]
    return HostFacts(
        max_open_files=None if hard == resource.RLIM_INFINITY else hard,
        max_watches=_kernel_number(_INOTIFY / "max_user_watches"),
        max_instances=_kernel_number(_INOTIFY / "max_user_instances"),
        partition_directories=sum(len(_directories(path)) for path in present),
        log_dirs=tuple(_log_dir(path) for path in present),
        spools=tuple(_spool(path) for path in config.uploader.pins.spool),
        problems=tuple(problems),
        kafka_cluster_id=None if identity is None else identity.cluster_id,
    )


def _kernel_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _directories(log_dir: Path) -> list[Path]:
    try:
        return sorted(path for path in log_dir.iterdir() if path.is_dir())
    except OSError:
        return []


def _log_dir(path: Path) -> LogDirFacts:
    free, total = free_bytes(str(path))
    directories = _directories(path)
    logs = [log for directory in directories if (log := _any_log(directory)) is not None]
    unreadable = [
        directory
        for directory in directories
        if not os.access(directory, os.R_OK | os.X_OK, effective_ids=True)
    ]
    unreadable += [log for log in logs if not os.access(log, os.R_OK, effective_ids=True)]
    name = str(unreadable[0]) if unreadable else None
    return LogDirFacts(
        str(path),
        free,
        total,
        name,
        _cache_problem(logs),
        _device(path),
        may_link=not _kernel_number(_PROTECTED_LINKS) or all(_may_link(log) for log in logs[:1]),
    )


def _spool(path: Path) -> SpoolFacts:
    return SpoolFacts(str(path), _device(path), os.access(path, os.W_OK | os.X_OK))


def _device(path: Path) -> int | None:
    try:
        return path.stat().st_dev
    except OSError:
        return None


def _may_link(log: Path) -> bool:
    """Return whether link(2) is allowed: to the owner, and with read and write access.

    See proc_sys_fs(5), protected_hardlinks.
    """
    try:
        owner = log.stat().st_uid
    except OSError:
        return True  # the broker has deleted it meanwhile
    return owner == os.geteuid() or os.access(log, os.R_OK | os.W_OK)


def _any_log(directory: Path) -> Path | None:
    try:
        return next(directory.glob("*.log"), None)
    except OSError:
        return None


def _cache_problem(logs: Iterable[Path]) -> str | None:
    """Return why the kernel does not report cached pages of a broker's file; read no data."""
    for log in logs:
        try:
            descriptor = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            count_cached(descriptor, range(1))
        except OSError as error:
            return str(error.strerror)
        finally:
            os.close(descriptor)
        return None
    return None
