"""Log dirs given as a pattern, for names that differ from host to host.

Strimzi, for example, includes the broker's id in the name: `/var/lib/kafka/data-0/kafka-log3`.
"""

from collections.abc import Callable, Iterable, Iterator
from glob import glob, has_magic
from pathlib import Path

from sidetier.config.model import Config
from sidetier.config.startup import META_PROPERTIES, Machine


def with_found_log_dirs(config: Config, find: Callable[[str], Iterable[str]] = glob) -> Config:
    """Replace every pattern (`*`, `?`, `[...]`) in `log_dirs` with the log dirs that it matches
    now.

    A log dir is a directory with a meta.properties. A pattern without a match is kept, so that it
    is reported as missing.
    """
    if not any(has_magic(str(path)) for path in config.log_dirs):
        return config
    found = tuple(found for path in config.log_dirs for found in _found(path, find))
    return config.model_copy(update={"log_dirs": found})


def _found(path: Path, find: Callable[[str], Iterable[str]]) -> Iterator[Path]:
    matches = find(str(path / META_PROPERTIES)) if has_magic(str(path)) else ()
    yield from [Path(match).parent for match in sorted(matches)] or [path]


def missing_log_dirs(config: Config, machine: Machine) -> tuple[Path, ...]:
    """Return the log dirs in which the broker has not started yet. The start reports other
    problems.
    """
    return tuple(path for path in config.log_dirs if _is_missing(path, machine))


def _is_missing(path: Path, machine: Machine) -> bool:
    if machine.kind(path) == "directory" and not machine.readable(path):
        return False
    return machine.kind(path / META_PROPERTIES) == "missing"
