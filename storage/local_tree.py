"""The files of the file-system store: where they lie, and how a version comes and goes.

::

    <root>/<key>                              the object's bytes
    <root>/.sidetier/meta/<xx>/<hash>.json    etag, metadata, checksum (see `local_records`)
    <root>/.sidetier/locks/<xx>               lock files
    <root>/.sidetier/tmp/<nonce>              what is being written
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
from sidetier.storage.conditions import check_condition
from sidetier.storage.local_files import (
    exclusive,
    move_into_place,
    remove_empty_directories,
    sync_directory,
    write_durably,
)
from sidetier.storage.local_listing import RESERVED
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
"""No record has more, as a rule."""
_STEPS_NS: Final = (1_000, 2_000_000_000)
"""Enough for a file system that keeps nanoseconds, or two seconds at a time."""

_T = TypeVar("_T")


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
        return Path(self._name(key))

    def checked(self, directory: str) -> str:
        """The same directory, which ends in a slash; raises as `path`, of what lies in it."""
        self._name(f"{directory}.")
        return directory

    def _name(self, key: str) -> str:
        """The same as text: a Path costs more than to open the file."""
        name = f"{self.root}/{key}"
        parts = key.split("/")
        if RESERVED in parts:
            raise InvalidRequestError(f"key {key!r}: {RESERVED} is the store's own")
        if self._may_lead_out(parts) and not Path(name).parent.resolve().is_relative_to(self.root):
            raise InvalidRequestError(f"key {key!r} leads out of {self.root} by a symbolic link")
        return name

    def _may_lead_out(self, parts: list[str]) -> bool:
        """Whether a directory of the key is a symbolic link: else there is nothing to resolve."""
        directory = os.fspath(self.root)
        for part in parts[:-1]:
            directory = f"{directory}/{part}"
            if part == ".." or os.path.islink(directory):  # noqa: PTH114  see `_name`
                return True
        return False

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
        return self._open(key, self._described)

    def open_summary(self, key: str) -> tuple[int, ObjectSummary]:
        """The same, with no more than a listing shows."""
        return self._open(key, self._summary)

    def version(self, key: str) -> Record | None:
        """The record of the file that is there now."""
        try:
            handle, record = self.open_version(key)
        except (FileNotFoundError, NotADirectoryError):
            return None
        os.close(handle)
        return record

    def summaries(self, keys: Iterable[str]) -> Iterator[ObjectSummary]:
        """What a listing shows of keys that a walk has found; what has gone since is left out.
        Neighbours are in one directory, which is looked at once.

        Raises:
            InvalidRequestError: a key lies outside the root, or in the store's own tree.
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

    def _look(self, key: str, path: str) -> ObjectSummary | None:
        """The file that is there now, without opening it; None where it has gone."""
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
                found = describe(key, path, _identity(path, handle))
            except BaseException:
                os.close(handle)
                raise
            if found is not None:
                return handle, found
            os.close(handle)
        raise StoreUnavailableError(f"get {key}: it is overwritten faster than it can be read")

    def _described(self, key: str, path: str, identity: Identity) -> Record | None:
        """The record of a file; None when it is no longer the key's file."""
        found = pick(decode(self._record_bytes(key)), identity)
        return self._undescribed(path, identity) if found is None else found

    def _summary(self, key: str, path: str, identity: Identity) -> ObjectSummary | None:
        """The same, of the record no more than its etag."""
        etag = etag_in(self._record_bytes(key), identity)
        if etag is None and (record := self._undescribed(path, identity)) is not None:
            etag = record.etag
        if etag is None:
            return None
        return ObjectSummary(key, identity.size, etag, identity.modified_ms)

    def _undescribed(self, path: str, identity: Identity) -> Record | None:
        """The record of a file that none describes; None when it is no longer the key's file."""
        now = Identity.of(os.stat(path))  # noqa: PTH116
        return undescribed(identity) if now == identity else None

    def _record_bytes(self, key: str) -> bytes:
        """Its record file; nothing where there is none."""
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
    """A small file, in a call or two."""
    data = os.read(handle, _RECORD_BYTES)
    while len(data) >= _RECORD_BYTES and (more := os.read(handle, _RECORD_BYTES)):
        data += more
    return data


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
