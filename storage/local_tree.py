"""The files of the file-system store: where they lie, and how a version comes and goes.

::

    <root>/<key>                              the object's bytes
    <root>/.sidetier/meta/<xx>/<hash>.json    etag, metadata, checksum (see `local_records`)
    <root>/.sidetier/locks/<xx>               lock files
    <root>/.sidetier/tmp/<nonce>              what is being written
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Final

from sidetier.segments.errors import InvalidRequestError, StoreUnavailableError
from sidetier.storage.conditions import check_condition
from sidetier.storage.local_files import (
    exclusive,
    move_into_place,
    remove_empty_directories,
    sync_directory,
    write_durably,
)
from sidetier.storage.local_listing import RESERVED
from sidetier.storage.local_records import Identity, Record, decode, encode, pick, undescribed
from sidetier.storage.port import Condition

_LOOKS: Final = 100
_STEPS_NS: Final = (1_000, 2_000_000_000)
"""Enough for a file system that keeps nanoseconds, or two seconds at a time."""


class Tree:
    """Raises OSError; the store above translates."""

    def __init__(self, root: Path) -> None:
        self.root = root
        own = root / RESERVED
        self.temporary: Final = own / "tmp"
        self._meta: Final = own / "meta"
        self._locks: Final = own / "locks"
        for directory in (self.temporary, self._meta, self._locks):
            directory.mkdir(parents=True, exist_ok=True)

    def path(self, key: str) -> Path:
        """Where the object lies.

        Raises:
            InvalidRequestError: it would lie outside the root, or in the store's own tree.
        """
        path = self.root / key
        if RESERVED in key.split("/"):
            raise InvalidRequestError(f"key {key!r}: {RESERVED} is the store's own")
        if not path.parent.resolve().is_relative_to(self.root):
            raise InvalidRequestError(f"key {key!r} leads out of {self.root} by a symbolic link")
        return path

    @contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """No other writer of the key, in this process or another, meanwhile."""
        with exclusive(self._locks / _hash(key)[:2]):
            yield

    def open_version(self, key: str) -> tuple[int, Record]:
        """The file that is there now, open for reading, and its record; no lock is needed.

        Raises:
            FileNotFoundError: there is none.
        """
        path = self.path(key)
        for _ in range(_LOOKS):
            handle = os.open(path, os.O_RDONLY)
            try:
                record = self._describe(key, path, handle)
            except BaseException:
                os.close(handle)
                raise
            if record is not None:
                return handle, record
            os.close(handle)
        raise StoreUnavailableError(f"get {key}: it is overwritten faster than it can be read")

    def version(self, key: str) -> Record | None:
        """The record of the file that is there now."""
        try:
            handle, record = self.open_version(key)
        except (FileNotFoundError, NotADirectoryError):
            return None
        os.close(handle)
        return record

    def commit(
        self, key: str, temporary: tuple[Path, int], record: Record, condition: Condition | None
    ) -> None:
        """Make the synced temporary file the key's object, if the condition holds now."""
        path, handle = temporary
        target = self.path(key)
        with self.locked(key):
            present = self.version(key)
            check_condition(key, condition, present.etag if present else None)
            record = replace(record, identity=_own_time(handle, present))
            kept = (record,) if present is None else (record, present)
            write_durably(self._record(key), encode(key, kept), self.temporary, self.root)
            move_into_place(path, target, self.root)

    def remove(self, key: str, condition: Condition | None = None) -> None:
        """Remove the object, then what is known of it, if the condition holds or there is none."""
        path = self.path(key)
        with self.locked(key):
            if path.is_dir():
                return
            if condition is not None and (present := self.version(key)) is not None:
                check_condition(key, condition, present.etag)
            with suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
                sync_directory(path.parent)
            self._record(key).unlink(missing_ok=True)
            remove_empty_directories(path.parent, self.root)

    def _describe(self, key: str, path: Path, handle: int) -> Record | None:
        """The record of an open file; None when it is no longer the key's file."""
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(f"{path} is no regular file")
        identity = Identity.of(status)
        found = pick(self._records(key), identity)
        if found is not None:
            return found
        return undescribed(identity) if Identity.of(path.stat()) == identity else None

    def _records(self, key: str) -> tuple[Record, ...]:
        try:
            return decode(self._record(key).read_bytes())
        except FileNotFoundError:
            return ()

    def _record(self, key: str) -> Path:
        name = _hash(key)
        return self._meta / name[:2] / f"{name}.json"


def _hash(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def _own_time(handle: int, present: Record | None) -> Identity:
    """The new file's identity, its time moved on where the present version has the same."""
    identity = Identity.of(os.fstat(handle))
    for step in _STEPS_NS:
        if present is None or identity != present.identity:
            break
        later = identity.modified_ns + step
        os.utime(handle, ns=(later, later))
        os.fsync(handle)
        identity = Identity.of(os.fstat(handle))
    return identity
