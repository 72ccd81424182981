"""List a directory tree in the order of an object store: by the UTF-8 bytes of whole keys."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

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
