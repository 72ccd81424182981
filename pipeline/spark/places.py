"""Where an archive is, as it is sent to executors, and what a process keeps open of it."""

import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from sidetier.archive.access import ArchiveAccess, open_archive
from sidetier.config.storage import StorageConfig

_MOST_OPEN: Final = 4
"""Archives that one process keeps open; tasks that follow one another mostly read the same."""


@dataclass(frozen=True, slots=True)
class ArchivePlace:
    """The archive of a cluster. It has references to secrets, which each process resolves: an
    environment variable, a file, or what AWS's own chain finds there.
    """

    cluster: str
    storage: StorageConfig

    def key(self) -> str:
        """Equal for equal places."""
        return f"{self.cluster} {self.storage.model_dump_json()}"


@dataclass(slots=True)
class _Open:
    pid: int = field(default_factory=os.getpid)
    archives: dict[str, tuple[ArchiveAccess, ExitStack]] = field(default_factory=dict)


_open = _Open()


def opened(place: ArchivePlace) -> ArchiveAccess:
    """The archive, opened by the first who asks in this process, and kept for those who follow.

    Connections do not survive a fork: a child opens its own.

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
    """Close what this process has open; it can be opened again."""
    while _open.archives:
        _open.archives.popitem()[1][1].close()
