"""Machines on which inotify is not enough."""

import ctypes
import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

_QUEUE = Path("/proc/sys/fs/inotify/max_queued_events")
_LIMIT = 'echo {count} > /proc/sys/user/max_inotify_watches && exec "$@"'


@contextmanager
def few_watches(count: int) -> Iterator[list[str]]:
    """What stands before a program's command line, so that it gets no more than `count` watches.

    Where no user namespace may be made, every inotify instance of this user is taken meanwhile.
    """
    namespace = ["unshare", "--user", "--map-root-user"]
    launcher = [*namespace, "sh", "-c", _LIMIT.format(count=count), "sh"]
    if subprocess.run([*launcher, "true"], check=False, capture_output=True).returncode == 0:
        yield launcher
        return
    with ExitStack() as stack:
        for descriptor in iter(_take_instance, None):
            stack.callback(os.close, descriptor)
        yield []


def _take_instance() -> int | None:
    library = ctypes.CDLL(None, use_errno=True)
    descriptor: int = library.inotify_init1(os.O_CLOEXEC)
    if descriptor >= 0:
        return descriptor
    assert ctypes.get_errno() == errno.EMFILE
    return None


def overflow(directory: Path) -> None:
    """More events than a stopped process's queue can hold; leaves nothing behind."""
    path = directory / "no-segment"
    for _ in range(int(_QUEUE.read_text()) // 2 + 100):
        path.touch()
        path.unlink()
