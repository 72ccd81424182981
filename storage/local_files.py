"""Durable file-system operations: each has reached the disk when its function returns."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

_TRIES: Final = 10
"""Maximum times that a concurrent delete may remove a directory between creation and use."""


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directories(directory: Path, root: Path) -> None:
    """Create a directory below the root with its missing parents, durably."""
    missing = []
    while directory != root and not directory.is_dir():
        missing.append(directory)
        directory = directory.parent
    for made in reversed(missing):
        made.mkdir(exist_ok=True)
        sync_directory(made.parent)


def remove_empty_directories(directory: Path, root: Path) -> None:
    """Remove a directory and its parents below the root, as long as they are empty."""
    with suppress(OSError):
        while directory != root:
            directory.rmdir()
            directory = directory.parent


def move_into_place(temporary: Path, target: Path, root: Path) -> None:
    """Rename over the target, durably. A reader sees the old file or the new one."""
    for left in reversed(range(_TRIES)):
        make_directories(target.parent, root)
        try:
            temporary.replace(target)
        except FileNotFoundError:
            if not left:
                raise
            continue
        break
    sync_directory(target.parent)


@contextmanager
def temporary_file(directory: Path) -> Iterator[tuple[Path, int]]:
    """Create a file that is open for writing and locked; yield its path and descriptor.

    The block's end removes the file, unless it was renamed. A kill leaves the file without its
    lock, until `sweep` finds it.
    """
    path = directory / uuid4().hex
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield path, handle
    finally:
        os.close(handle)
        path.unlink(missing_ok=True)


def write_durably(target: Path, data: bytes, temporary: Path, root: Path) -> None:
    """Replace a small file atomically and durably."""
    with temporary_file(temporary) as (path, handle):
        write_all(handle, data)
        os.fsync(handle)
        move_into_place(path, target, root)


def write_all(handle: int, data: bytes) -> None:
    """Write all bytes; one call of `os.write` may write only some of them."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock of a lock file against other threads and other processes.

    The kernel releases the lock when the process dies. Lock files are never removed: two processes
    could then hold the lock of one name.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def sweep(directory: Path, older_than_ns: int) -> int:
    """Remove temporary files that no process holds and that are older than the given time.

    Args:
        directory: Directory with the temporary files.
        older_than_ns: Remove files last written before this time, in ns since 1970.

    Returns:
        Number of files removed.
    """
    removed = 0
    for path in directory.iterdir():
        with suppress(OSError):
            removed += _sweep_one(path, older_than_ns)
    return removed


def _sweep_one(path: Path, older_than_ns: int) -> bool:
    if path.stat().st_mtime_ns >= older_than_ns:
        return False
    handle = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(handle)
    return True
