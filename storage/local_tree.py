"""The files of the file-system store: their layout, and how versions are replaced and removed.

::

    <root>/<key>                              bytes of the object
    <root>/.sidetier/meta/<xx>/<hash>.json    etag, metadata, checksum (see `local_records`)
    <root>/.sidetier/locks/<xx>               lock files
    <root>/.sidetier/tmp/<nonce>              file that is being written
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeVar

from sidetier.segments.errors import InvalidRequestError, StoreUnavailableError
from sidetier.storage.checks import check_condition
from sidetier.storage.local_files import (
    RESERVED,
    exclusive,
    move_into_place,
    remove_empty_directories,
    sync_directory,
    write_durably,
)
from sidetier.storage.local_records import (
    Identity,
    Record,
    decode,
    encode,
    etag_in,
    pick,
    undescribed,
)
from sidetier.storage.port import Condition, ObjectSummary

_LOOKS: Final = 100
_RECORD_BYTES: Final = 16 * 1024
"""Read size for record files: almost all records are smaller."""
_STEPS_NS: Final = (1_000, 2_000_000_000)
"""Steps by which a modification time is moved on: for file systems that keep nanoseconds, and for
those that keep two seconds."""

_T = TypeVar("_T")


class Tree:
    """Files below a root. Methods raise OSError, which the store translates."""

    def __init__(self, root: Path) -> None:
        self.root = root
        own = root / RESERVED
        self.temporary: Final = own / "tmp"
        self._meta: Final = own / "meta"
        self._locks: Final = own / "locks"
        for directory in (self.temporary, self._meta, self._locks):
            directory.mkdir(parents=True, exist_ok=True)

    def path(self, key: str) -> Path:
        """Return the path of the object's file.

        Raises:
            InvalidRequestError: The path is outside the root or in the store's own directory.
        """
        return Path(self._name(key))

    def checked(self, directory: str) -> str:
        """Return the directory unchanged; raises as `path` for keys in it. It ends in a slash."""
        self._name(f"{directory}.")
        return directory

    def _name(self, key: str) -> str:
        """Return `path` as a string: creating a Path costs more than opening the file."""
        name = f"{self.root}/{key}"
        parts = key.split("/")
        if RESERVED in parts:
            raise InvalidRequestError(f"key {key!r}: {RESERVED} is the store's own")
        if self._may_lead_out(parts) and not Path(name).parent.resolve().is_relative_to(self.root):
            raise InvalidRequestError(f"key {key!r} leads out of {self.root} by a symbolic link")
        return name

    def _may_lead_out(self, parts: list[str]) -> bool:
        """Return whether a directory of the key is a symbolic link or `..`."""
        directory = os.fspath(self.root)
        for part in parts[:-1]:
            directory = f"{directory}/{part}"
            if part == ".." or os.path.islink(directory):  # noqa: PTH114  see `_name`
                return True
        return False

    @contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Exclude other writers of the key, in this process and in others."""
        with exclusive(self._locks / _hash(key)[:2]):
            yield

    def open_version(self, key: str) -> tuple[int, Record]:
        """Open the current version for reading; return its descriptor and record. Needs no lock.

        Raises:
            FileNotFoundError: There is no object.
        """
        return self._open(key, self._described)

    def open_summary(self, key: str) -> tuple[int, ObjectSummary]:
        """Open the current version; return its descriptor and the data of a listing row."""
        return self._open(key, self._summary)

    def version(self, key: str) -> Record | None:
        """Return the record of the current version; None if there is no object."""
        try:
            handle, record = self.open_version(key)
        except (FileNotFoundError, NotADirectoryError):
            return None
        os.close(handle)
        return record

    def summaries(self, keys: Iterable[str]) -> Iterator[ObjectSummary]:
        """Yield the listing rows of keys that a walk returned; skip files that vanished since.

        Consecutive keys usually share a directory, so each directory is checked once.

        Raises:
            InvalidRequestError: A key is outside the root or in the store's own directory.
        """
        root, checked = os.fspath(self.root), None
        for key in keys:
            directory = key.rpartition("/")[0]
            if directory != checked:
                self._name(key)
                checked = directory
            summary = self._look(key, f"{root}/{key}")
            if summary is not None:
                yield summary

    def commit(
        self, key: str, temporary: tuple[Path, int], record: Record, condition: Condition | None
    ) -> None:
        """Make the synced temporary file the key's object if the condition holds now."""
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
        """Remove the object, then its record, if the condition holds. Missing: no error."""
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

    def _look(self, key: str, path: str) -> ObjectSummary | None:
        """Return the row of the current file without opening it; None if it vanished."""
        try:
            for _ in range(_LOOKS):
                status = os.stat(path)  # noqa: PTH116  see `_name`
                if not stat.S_ISREG(status.st_mode):
                    return None
                summary = self._summary(key, path, Identity.of(status))
                if summary is not None:
                    return summary
        except (FileNotFoundError, NotADirectoryError):
            return None
        raise StoreUnavailableError(f"list {key}: it is overwritten faster than it can be read")

    def _open(
        self, key: str, describe: Callable[[str, str, Identity], _T | None]
    ) -> tuple[int, _T]:
        path = self._name(key)
        for _ in range(_LOOKS):
            handle = os.open(path, os.O_RDONLY)
            try:
                description = describe(key, path, _identity(path, handle))
            except BaseException:
                os.close(handle)
                raise
            if description is not None:
                return handle, description
            os.close(handle)
        raise StoreUnavailableError(f"get {key}: it is overwritten faster than it can be read")

    def _described(self, key: str, path: str, identity: Identity) -> Record | None:
        """Return the record of a file; None if the key has another file by now."""
        record = pick(decode(self._record_bytes(key)), identity)
        return self._undescribed(path, identity) if record is None else record

    def _summary(self, key: str, path: str, identity: Identity) -> ObjectSummary | None:
        """Return the listing row of a file, which needs only the etag from its record."""
        etag = etag_in(self._record_bytes(key), identity)
        if etag is None and (record := self._undescribed(path, identity)) is not None:
            etag = record.etag
        if etag is None:
            return None
        return ObjectSummary(key, identity.size, etag, identity.modified_ms)

    def _undescribed(self, path: str, identity: Identity) -> Record | None:
        """Return the record of a file that no record describes; None if the file was replaced."""
        now = Identity.of(os.stat(path))  # noqa: PTH116
        return undescribed(identity) if now == identity else None

    def _record_bytes(self, key: str) -> bytes:
        """Return the bytes of the record file; empty if there is none."""
        try:
            handle = os.open(self._record_name(key), os.O_RDONLY)
        except FileNotFoundError:
            return b""
        try:
            return _read_all(handle)
        finally:
            os.close(handle)

    def _record(self, key: str) -> Path:
        return Path(self._record_name(key))

    def _record_name(self, key: str) -> str:
        name = _hash(key)
        return f"{self._meta}/{name[:2]}/{name}.json"


def _identity(path: str, handle: int) -> Identity:
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError(f"{path} is no regular file")
    return Identity.of(status)


def _read_all(handle: int) -> bytes:
    """Read a small file in one or two calls."""
    data = os.read(handle, _RECORD_BYTES)
    while len(data) >= _RECORD_BYTES and (more := os.read(handle, _RECORD_BYTES)):
        data += more
    return data


def _hash(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def _own_time(handle: int, present: Record | None) -> Identity:
    """Return the new file's identity; change its time if the present version has the same."""
    identity = Identity.of(os.fstat(handle))
    for step in _STEPS_NS:
        if present is None or identity != present.identity:
            break
        later = identity.modified_ns + step
        os.utime(handle, ns=(later, later))
        os.fsync(handle)
        identity = Identity.of(os.fstat(handle))
    return identity
