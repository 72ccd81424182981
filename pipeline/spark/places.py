"""Location of an archive, as sent to executors, and the archives that a process keeps open."""

import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from sidetier.archive.access import ArchiveAccess, open_archive
from sidetier.config.storage import StorageConfig

_MOST_OPEN: Final = 4
"""Maximum archives that one process keeps open. Consecutive tasks mostly read the same one."""


@dataclass(frozen=True, slots=True)
class ArchivePlace:
    """Location of a cluster's archive.

    It contains references to secrets, which each process resolves: an environment variable, a file,
    or AWS's credential chain.
    """

    cluster: str
    storage: StorageConfig

    def key(self) -> str:
        """Return a text that is equal for equal locations."""
        return f"{self.cluster} {self.storage.model_dump_json()}"


@dataclass(slots=True)
class _Open:
    pid: int = field(default_factory=os.getpid)
    archives: dict[str, tuple[ArchiveAccess, ExitStack]] = field(default_factory=dict)


_open = _Open()


def opened(place: ArchivePlace) -> ArchiveAccess:
    """Return the archive. The first call in a process opens it; later calls return the same one.

    Connections do not survive a fork, so a child process opens its own.

    Raises:
        ConfigurationError: a secret cannot be read here, or a driver is missing.
    """
    global _open  # noqa: PLW0603 -- one for each process
    if _open.pid != os.getpid():
        _open = _Open()
    key = place.key()
    if key not in _open.archives:
        stack = ExitStack()
        access = stack.enter_context(open_archive(place.cluster, place.storage))
        _open.archives[key] = (access, stack)
        while len(_open.archives) > _MOST_OPEN:
            _open.archives.pop(next(iter(_open.archives)))[1].close()
    return _open.archives[key][0]


def close_all() -> None:
    """Close all archives of this process; they can be opened again."""
    while _open.archives:
        _open.archives.popitem()[1][1].close()
