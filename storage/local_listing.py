"""Listing a directory tree as an object store would: by the UTF-8 bytes of whole keys."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

RESERVED: Final = ".sidetier"
"""The store's own tree; at any depth, for roots may lie inside each other."""


def list_keys(root: Path, prefix: str, start_after: str) -> Iterator[str]:
    """Keys of all files below the root, in ascending order of UTF-8 bytes.

    Directories that cannot hold a matching key are not opened. What vanishes meanwhile is left out.
    """
    yield from _walk(root, "", prefix.encode(), start_after.encode())


def _walk(directory: Path, base: str, prefix: bytes, after: bytes) -> Iterator[str]:
    for name, is_directory in _entries(directory):
        path = (base + name).encode()
        # A directory sorts as its name with the slash, as all keys below it do.
        if is_directory:
            if _may_hold(path, prefix, after):
                yield from _walk(directory / name.rstrip("/"), base + name, prefix, after)
        elif path.startswith(prefix) and path > after:
            yield base + name


def _entries(directory: Path) -> list[tuple[str, bool]]:
    """Names in the order of their bytes, directories with a slash; nothing where none is there."""
    try:
        with os.scandir(directory) as found:
            rows = [
                (f"{entry.name}/", True) if entry.is_dir() else (entry.name, False)
                for entry in found
                if entry.name != RESERVED and _is_text(entry.name)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(rows, key=lambda row: row[0].encode())


def _is_text(name: str) -> bool:
    """Whether the name is UTF-8; others cannot have been written by this store."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _may_hold(path: bytes, prefix: bytes, after: bytes) -> bool:
    shared = min(len(path), len(prefix))
    return path[:shared] == prefix[:shared] and (path > after or after.startswith(path))
