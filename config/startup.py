"""Checks of this machine, before `sidetier config check` or a start changes anything."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Final, Literal, Protocol

from sidetier.config.model import Config
from sidetier.config.problems import Problem, SettingPath
from sidetier.config.storage_urls import file_root
from sidetier.segments.errors import SegmentError
from sidetier.segments.properties import MetaProperties, parse_meta_properties

META_PROPERTIES: Final = "meta.properties"
Kind = Literal["directory", "file", "missing"]


class Machine(Protocol):
    """Access to the file system for the checks."""

    def kind(self, path: Path) -> Kind:
        """Return the kind of file at the path; links are followed."""
        ...

    def readable(self, path: Path) -> bool:
        """Whether this process may read the file, or list and enter the directory."""
        ...

    def read_text(self, path: Path) -> str:
        """Return the file's text; raises OSError or UnicodeDecodeError."""
        ...

    def real(self, path: Path) -> Path:
        """Return the path with every link resolved, as far as it exists."""
        ...

    def device(self, path: Path) -> int | None:
        """Return the id of the path's file system; None if it is unknown."""
        ...


class LocalMachine:
    """The machine that this process runs on."""

    def kind(self, path: Path) -> Kind:
        """A path below a directory that cannot be entered is missing."""
        try:
            return "directory" if path.is_dir() else "file" if path.exists() else "missing"
        except OSError:  # a directory above it cannot be entered
            return "missing"

    def readable(self, path: Path) -> bool:
        """Check with the effective ids and capabilities."""
        mode = os.R_OK | os.X_OK if path.is_dir() else os.R_OK
        # With the effective ids: `access` alone ignores capabilities such as CAP_DAC_READ_SEARCH.
        return os.access(path, mode, effective_ids=True)

    def read_text(self, path: Path) -> str:
        """Read the whole file as UTF-8."""
        return path.read_text(encoding="utf-8")

    def real(self, path: Path) -> Path:
        """Resolve all links; a missing path is not an error."""
        return Path(os.path.realpath(path))

    def device(self, path: Path) -> int | None:
        """Return `st_dev`; None if `stat` fails."""
        try:
            return path.stat().st_dev
        except OSError:
            return None


@dataclass(frozen=True, slots=True)
class LogDirs:
    """Result of the checks.

    Attributes:
        identity: the broker of the log dirs; None if no log dir names it.
        problems: problems that prevent the sidecar's start.
        warnings: log dirs that cannot be read now while others can. The broker continues without
            them, and so does the sidecar.
    """

    identity: MetaProperties | None
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...] = ()


def check_machine(config: Config, machine: Machine) -> LogDirs:
    """Check that the log dirs exist, are readable, and belong to one broker of one cluster.

    The store's directory and the spool are checked, too.
    """
    unread: list[Problem] = []
    readable: list[tuple[SettingPath, Path, MetaProperties]] = []
    for i, log_dir in enumerate(config.log_dirs):
        path: SettingPath = ("log_dirs", i)
        result = _check_log_dir(path, log_dir, machine)
        if isinstance(result, Problem):
            unread.append(result)
        else:
            readable.append((path, log_dir, result))
    # With JBOD, a broker continues without a failed log dir, so the sidecar does, too.
    problems = [] if readable else unread
    problems += _disagreements(readable)
    problems += _same_directory(config, machine)
    problems += _store_through_links(config, machine)
    problems += _spool(config, machine, [log_dir for _, log_dir, _ in readable])
    identity = readable[0][2] if readable else None
    if identity is not None:
        problems += _against_config(config, identity)
    return LogDirs(identity, tuple(problems), tuple(unread) if readable else ())


def _check_log_dir(path: SettingPath, log_dir: Path, machine: Machine) -> Problem | MetaProperties:
    kind = machine.kind(log_dir)
    if kind == "missing":
        closed = closed_directories(log_dir, machine)
        return Problem(path, _closed_text(log_dir, closed) or f"{log_dir} does not exist")
    if kind == "file":
        return Problem(path, f"{log_dir} is not a directory")
    if not machine.readable(log_dir):
        return Problem(path, f"{log_dir} cannot be read: run as the broker's user or group")
    return _identity(path, log_dir / META_PROPERTIES, machine)


def _identity(path: SettingPath, meta: Path, machine: Machine) -> Problem | MetaProperties:
    if machine.kind(meta) == "missing":
        return Problem(
            path, f"{meta} is missing: this is not a log dir, or its broker has not started yet"
        )
    try:
        return parse_meta_properties(machine.read_text(meta), str(meta))
    except UnicodeDecodeError:
        return Problem(path, f"{meta} is not UTF-8")
    except OSError as error:
        return Problem(path, f"{meta} cannot be read: {error.strerror}")
    except SegmentError as error:
        return Problem(path, str(error))


def _disagreements(log_dirs: list[tuple[SettingPath, Path, MetaProperties]]) -> Iterator[Problem]:
    for path, log_dir, meta in log_dirs[1:]:
        _, first_dir, first = log_dirs[0]
        if meta.cluster_id != first.cluster_id:
            message = (
                f"{log_dir} belongs to cluster {meta.cluster_id}, "
                f"{first_dir} to cluster {first.cluster_id}"
            )
            yield Problem(path, message)
        elif meta.broker_id != first.broker_id:
            message = (
                f"{log_dir} belongs to broker {meta.broker_id}, "
                f"{first_dir} to broker {first.broker_id}"
            )
            yield Problem(path, message)


def _same_directory(config: Config, machine: Machine) -> Iterator[Problem]:
    """Find log dirs that are the same directory. Every segment would be archived twice."""
    first: dict[Path, Path] = {}
    for i, log_dir in enumerate(config.log_dirs):
        real = machine.real(log_dir)
        if real in first:
            message = f"{log_dir} is the same directory as {first[real]}, through a link"
            yield Problem(("log_dirs", i), message)
        first.setdefault(real, log_dir)


def _store_through_links(config: Config, machine: Machine) -> Iterator[Problem]:
    root = file_root(config.storage.url)
    if root is None or machine.real(root) == root:
        return  # contradictions() compares paths without links
    real = machine.real(root)
    for log_dir in config.log_dirs:
        if real.is_relative_to(machine.real(log_dir)):
            message = f"{root} is a link to {real}, which is inside the log dir {log_dir}"
            yield Problem(("storage", "url"), message)


def _spool(config: Config, machine: Machine, readable: list[Path]) -> Iterator[Problem]:
    """Check that each log dir has a spool on its file system, which hard links need.

    Whether hard links are permitted is tried at the start. A missing spool is not reported while a
    log dir cannot be read: it may be on the same failed disk.
    """
    setting: SettingPath = ("uploader", "pins", "spool")
    spools = config.uploader.pins.spool
    for i, spool in enumerate(spools):
        if machine.kind(spool) != "directory":
            if 0 < len(readable) < len(config.log_dirs):
                continue
            yield Problem(
                (*setting, i), f"{spool} is not a directory: create it, writable for the sidecar"
            )
        elif any(machine.real(spool).is_relative_to(machine.real(d)) for d in config.log_dirs):
            message = (
                f"{spool} is inside a log dir: with a directory there that is not a partition, the "
                "broker does not start"
            )
            yield Problem((*setting, i), message)
    devices = {machine.device(spool) for spool in spools}
    for log_dir in (readable or config.log_dirs) if spools else ():
        if machine.device(log_dir) not in devices:
            yield Problem(setting, f"none is on the file system of the log dir {log_dir}")


def _against_config(config: Config, meta: MetaProperties) -> Iterator[Problem]:
    if config.broker.id is not None and config.broker.id != meta.broker_id:
        message = f"is {config.broker.id}, but the log dirs belong to broker {meta.broker_id}"
        yield Problem(("broker", "id"), message)
    leadership = config.leadership
    if leadership.source in ("kraft", "zookeeper") and leadership.source != meta.mode:
        message = f"is {leadership.source}, but the broker of the log dirs uses {meta.mode}"
        yield Problem(("leadership", "source"), message)
    on_zookeeper = leadership.source == "auto" and meta.mode == "zookeeper"
    if on_zookeeper and leadership.zookeeper.connect is None:
        message = "is required: by meta.properties, the broker uses ZooKeeper"
        yield Problem(("leadership", "zookeeper", "connect"), message)


def with_found_log_dirs(config: Config, find: Callable[[str], Iterable[str]] = glob) -> Config:
    """Replace every pattern (`*`, `?`, `[...]`) in `log_dirs` with the log dirs that it matches
    now.

    A log dir is a directory with a meta.properties. A pattern without a match is kept, so that it
    is reported as missing.
    """
    if not any(has_magic(str(path)) for path in config.log_dirs):
        return config
    log_dirs = tuple(log_dir for path in config.log_dirs for log_dir in _matching(path, find))
    return config.model_copy(update={"log_dirs": log_dirs})


def _matching(path: Path, find: Callable[[str], Iterable[str]]) -> Iterator[Path]:
    matches = find(str(path / META_PROPERTIES)) if has_magic(str(path)) else ()
    yield from [Path(match).parent for match in sorted(matches)] or [path]


def closed_directories(
    log_dir: Path, machine: Machine, find: Callable[[str], Iterable[str]] = glob
) -> tuple[Path, ...]:
    """Return the directories above a log dir, or above those that match a pattern, that this
    process may not list and enter. Log dirs in them are not found.
    """
    above = [
        Path(match)
        for parent in reversed(log_dir.parents)
        for match in (sorted(find(str(parent))) if has_magic(str(parent)) else [str(parent)])
    ]
    return tuple(
        path for path in above if machine.kind(path) == "directory" and not machine.readable(path)
    )


def _closed_text(log_dir: Path, closed: Sequence[Path]) -> str | None:
    """Return the problem with a log dir below directories that cannot be read; None without any."""
    if not closed:
        return None
    more = f" and {len(closed) - 1} more" if len(closed) > 1 else ""
    return (
        f"{closed[0]}{more} cannot be read, so {log_dir} is not found: run as a user or with a "
        "group that may list and enter every directory above the log dir"
    )


def missing_reason(log_dirs: Iterable[Path], machine: Machine) -> str:
    """Return why log dirs are missing: directories above them cannot be read, or the broker has not
    started yet.
    """
    waiting = []
    reasons = []
    for log_dir in log_dirs:
        text = _closed_text(log_dir, closed_directories(log_dir, machine))
        if text is None:
            waiting.append(str(log_dir))
        else:
            reasons.append(text)
    if waiting:
        reasons.append(f"waiting for the broker to create {', '.join(waiting)}")
    return "; ".join(reasons)


def missing_log_dirs(config: Config, machine: Machine) -> tuple[Path, ...]:
    """Return the log dirs in which the broker has not started yet. The start reports other
    problems.
    """
    return tuple(path for path in config.log_dirs if _is_missing(path, machine))


def _is_missing(path: Path, machine: Machine) -> bool:
    if machine.kind(path) == "directory" and not machine.readable(path):
        return False
    return machine.kind(path / META_PROPERTIES) == "missing"
