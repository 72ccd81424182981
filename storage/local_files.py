"""Durable file-system operations: each has reached the disk when its function returns."""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

RESERVED: Final = ".sidetier"
"""The store's own directory. Excluded at every depth, because roots can be nested."""
_RESERVED: Final = RESERVED.encode()


def list_keys(root: Path, prefix: str, start_after: str) -> Iterator[str]:
    """Yield the keys of all files below the root, in ascending order of UTF-8 bytes.

    Directories that cannot contain a matching key are not opened. Files that vanish meanwhile are
    left out, and so are names that are not UTF-8: this store cannot have written them.
    """
    yield from _walk(os.fsencode(root), b"", prefix.encode(), start_after.encode())


def list_directories(root: Path, prefix: str) -> Iterator[str]:
    """Yield the directories of `RemoteStorage.list_directories`, in ascending order.

    A directory is yielded only if there is a file below it: a kill can leave empty directories.
    """
    yield from _directories(os.fsencode(root), b"", prefix.encode())


def _directories(directory: bytes, base: bytes, prefix: bytes) -> Iterator[str]:
    for name in _entries(directory):
        path, below = base + name, directory + b"/" + name[:-1]
        if not name.endswith(b"/"):
            continue
        text = _text(path)
        if prefix.startswith(path):
            yield from _directories(below, path, prefix)
        elif path.startswith(prefix) and text is not None and _holds_a_file(below):
            yield text


def _holds_a_file(directory: bytes) -> bool:
    """Return whether there is a file below the directory; stop at the first.

    A directory without read permission, such as a mount point's `lost+found`, counts as one that
    contains a file.
    """
    try:
        with os.scandir(directory) as entries:
            ours = (entry for entry in entries if entry.name != _RESERVED)
            return any(not entry.is_dir() or _holds_a_file(entry.path) for entry in ours)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        return True


def _walk(directory: bytes, base: bytes, prefix: bytes, after: bytes) -> Iterator[str]:
    for name in _entries(directory):
        path = base + name
        # A directory sorts as its name with the slash, like all keys below it.
        if name.endswith(b"/"):
            if _may_hold(path, prefix, after):
                yield from _walk(directory + b"/" + name[:-1], path, prefix, after)
        elif path.startswith(prefix) and path > after:
            key = _text(path)
            if key is not None:
                yield key


def _entries(directory: bytes) -> list[bytes]:
    """Return the sorted names in a directory, directories with a slash; empty if it is missing."""
    try:
        with os.scandir(directory) as entries:
            return sorted(
                entry.name + b"/" if entry.is_dir() else entry.name
                for entry in entries
                if entry.name != _RESERVED
            )
    except (FileNotFoundError, NotADirectoryError):
        return []


def _text(path: bytes) -> str | None:
    try:
        return path.decode()
    except UnicodeDecodeError:
        return None


def _may_hold(path: bytes, prefix: bytes, after: bytes) -> bool:
    shared = min(len(path), len(prefix))
    return path[:shared] == prefix[:shared] and (path > after or after.startswith(path))


_TRIES: Final = 10
"""Maximum times that a concurrent delete may remove a directory between creation and use."""


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_making_directories: dict[Path, threading.Lock] = {}
"""Locks by the root of a store: a file system that hangs must not delay other stores."""


def make_directories(directory: Path, root: Path) -> None:
    """Create a directory below the root with its missing parents, durably."""
    # A thread that finds a directory must not go on before the thread that has created it has made
    # it durable: a power loss would take the file that was acknowledged in it.
    with _making_directories.setdefault(root, threading.Lock()):
        missing = []
        while directory != root and not directory.is_dir():
            missing.append(directory)
            directory = directory.parent
        for made in reversed(missing):
            # Another process may create it at the same time.
            made.mkdir(exist_ok=True)
            sync_directory(made.parent)


def remove_empty_directories(directory: Path, root: Path) -> None:
    """Remove a directory and its parents below the root, as long as they are empty."""
    with suppress(OSError):
        # `rmdir` refuses a directory with files, so a writer that uses it at
        # the same time loses nothing: `move_into_place` creates it again.
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
            # A concurrent delete removed the parent as an empty directory in between.
            if not left:
                raise
            continue
        break
    # The rename itself is durable only once the directory is synced.
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
        # The lock shows `sweep` of another process that this file is in use.
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
    # The age is checked before the lock: between its creation and its lock a file is young.
    if path.stat().st_mtime_ns >= older_than_ns:
        return False
    handle = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(handle)
    return True
