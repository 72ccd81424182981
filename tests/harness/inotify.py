"""Hosts where inotify fails: too few watches, or an overflowing queue."""

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
    """Yield a command prefix that limits a program to `count` inotify watches.

    If user namespaces are not allowed, all inotify instances of this user are occupied meanwhile.
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
    """Cause more events than a stopped process's queue can hold, and remove the files again."""
    path = directory / "no-segment"
    for _ in range(int(_QUEUE.read_text()) // 2 + 100):
        path.touch()
        path.unlink()
