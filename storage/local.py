"""The file-system store: objects are plain files under a root that any program can read.

::

    <root>/<key>                              bytes of the object
    <root>/.sidetier/meta/<xx>/<hash>.json    etag, metadata, checksum (see `file_records`)
    <root>/.sidetier/locks/<xx>               lock files
    <root>/.sidetier/tmp/<nonce>              file that is being written

Steps of a put, and what a kill right after each step leaves behind:

1. Write the bytes to a temporary file and sync it. Left: a temporary file, which a later start
   removes.
2. Check the condition under the key's lock. Left: the same.
3. Replace the record file; it then describes the new and the present version. Left: the present
   version with its own metadata.
4. Rename the temporary file to the key and sync the directory. Left: the complete new version.

A delete removes the object, then its record. A kill in between leaves a record without an object,
which the next put replaces.
"""

import errno
import io
import math
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TypeVar
from uuid import uuid4

from sidetier.segments.errors import (
    AccessDeniedError,
    InvalidRequestError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
    StoreFullError,
    StoreUnavailableError,
)
from sidetier.storage.attempt import AttemptStream, BodyFailedError
from sidetier.storage.checks import check_condition, check_key, check_options, check_range
from sidetier.storage.checksums import PIECE, RunningChecksum, expect_checksum
from sidetier.storage.file_records import (
    Identity,
    Record,
    decode,
    encode,
    etag_in,
    pick,
    undescribed,
)
from sidetier.storage.local_files import (
    RESERVED,
    exclusive,
    list_directories,
    list_keys,
    move_into_place,
    remove_empty_directories,
    sweep,
    sync_directory,
    temporary_file,
    write_all,
    write_durably,
)
from sidetier.storage.port import (
    NO_OPTIONS,
    Body,
    Checksum,
    ChecksumAlgorithm,
    Condition,
    IfMatch,
    ObjectHead,
    ObjectSummary,
    PutOptions,
    StorageCapabilities,
    StoredObject,
)
from sidetier.storage.settings import LocalSettings

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


_MAX_TRIES: Final = 100
"""Maximum tries to read a version that other writers replace meanwhile."""
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

    def check_mounted(self, operation: str, key: str) -> None:
        """Raise StoreUnavailableError if the store's own directory is gone, and the objects with
        it: after an unmount, the mount point is an empty directory.
        """
        if not os.access(self.temporary, os.F_OK):
            raise StoreUnavailableError(
                f"{operation} {key}: {self.temporary.parent} is gone: is the file system of the "
                "store mounted?"
            )

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
            raise InvalidRequestError(f"key {key!r}: {RESERVED} is reserved for the store")
        if self._may_lead_out(parts) and not Path(name).parent.resolve().is_relative_to(self.root):
            raise InvalidRequestError(
                f"key {key!r} is outside {self.root} because of a symbolic link"
            )
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
            summary = self._read_summary(key, f"{root}/{key}")
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
            # A kill before the rename leaves the present version, so its record must stay readable.
            kept = (record,) if present is None else (record, present)
            write_durably(self._record(key), encode(key, kept), self.temporary, self.root)
            move_into_place(path, target, self.root)

    def remove(self, key: str, condition: Condition | None = None) -> None:
        """Remove the object, then its record, if the condition holds. Missing: no error."""
        path = self.path(key)
        with self.locked(key):
            # A key that is a directory of other keys is no
            # object: deleting a missing key is not an error.
            if path.is_dir():
                return
            if condition is not None and (present := self.version(key)) is not None:
                check_condition(key, condition, present.etag)
            # The object first: its record without it is harmless, an object without its record
            # would lose its metadata.
            with suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()
                sync_directory(path.parent)
            self._record(key).unlink(missing_ok=True)
            remove_empty_directories(path.parent, self.root)

    def _read_summary(self, key: str, path: str) -> ObjectSummary | None:
        """Return the row of the current file without opening it; None if it vanished."""
        try:
            for _ in range(_MAX_TRIES):
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
        for _ in range(_MAX_TRIES):
            handle = os.open(path, os.O_RDONLY)
            try:
                # The open descriptor fixes the version. The record is read after
                # it, and describes both the present version and the one before.
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
        raise FileNotFoundError(f"{path} is not a regular file")
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
        # Two versions of one size within one tick of the file system's
        # clock: readers could not know which of them the record describes.
        os.utime(handle, ns=(later, later))
        # The identity is in the record, so the time must be as durable as the bytes.
        os.fsync(handle)
        identity = Identity.of(os.fstat(handle))
    return identity


_BY_ERRNO: Final[dict[int, type[StorageError]]] = {
    errno.ENOENT: ObjectNotFoundError,
    errno.ENOSPC: StoreFullError,
    errno.EDQUOT: StoreFullError,
    errno.EFBIG: StoreFullError,
    errno.EACCES: AccessDeniedError,
    errno.EPERM: AccessDeniedError,
    errno.EROFS: AccessDeniedError,
    errno.ENAMETOOLONG: InvalidRequestError,
    # The key needs a directory where a file exists, or the reverse.
    errno.ENOTDIR: InvalidRequestError,
    errno.EISDIR: InvalidRequestError,
    errno.EEXIST: InvalidRequestError,
    errno.EINVAL: InvalidRequestError,
    errno.ELOOP: InvalidRequestError,
    errno.EXDEV: InvalidRequestError,
    errno.ENOTSUP: InvalidRequestError,
    errno.ENOLCK: InvalidRequestError,
}


@contextmanager
def translated(operation: str, key: str) -> Iterator[None]:
    """Raise OSError as our own error. Unlisted errno values are transient (EIO, ESTALE, EMFILE)."""
    try:
        yield
    except OSError as error:
        raise _kind(error)(f"{operation} {key}: {error}") from error


def _kind(error: OSError) -> type[StorageError]:
    if error.errno is None and isinstance(error, FileNotFoundError | NotADirectoryError):
        return ObjectNotFoundError  # raised by our own code: not a regular file
    return _BY_ERRNO.get(error.errno or 0, StoreUnavailableError)


_BUFFER: Final = 256 * 1024
_SMALL: Final = 16 * 1024


class _Range(io.RawIOBase):
    """Bytes `start` (inclusive) to `end` (exclusive) of a descriptor. Closes the descriptor."""

    def __init__(self, handle: int, key: str, start: int, end: int) -> None:
        super().__init__()
        self._handle = handle
        self._key = key
        self._next = start
        self._end = end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        view = memoryview(buffer)
        wanted = max(0, min(len(view), self._end - self._next))
        with translated("get", self._key):
            count = os.preadv(self._handle, [view[:wanted]], self._next)
        self._next += count
        return count

    def close(self) -> None:
        if not self.closed:
            os.close(self._handle)
        super().close()


def file_stream(handle: int, key: str, start: int, end: int) -> BinaryIO:
    """Return a buffered stream over a range of an open file; the stream closes the descriptor.

    A range of up to 16 KiB, such as an index, is read at once.
    """
    if end - start > _SMALL:
        return io.BufferedReader(_Range(handle, key, start, end), _BUFFER)
    try:
        with translated("get", key):
            return io.BytesIO(_read(handle, start, end))
    finally:
        os.close(handle)


def _read(handle: int, start: int, end: int) -> bytes:
    data = b""
    while start + len(data) < end:
        more = os.pread(handle, end - start - len(data), start + len(data))
        if not more:
            break
        data += more
    return data


_CHECKSUM: Final = ChecksumAlgorithm.CRC64NVME


class LocalStorage:
    """Directory as a store. Conditional writes hold across processes (flock), also over NFS 4.

    A key cannot be both a file and a directory (`a` and `a/b`), and a key component has at most
    255 bytes. If the disk is full, a put raises StoreFullError and leaves nothing behind.
    """

    def __init__(
        self,
        root: Path,
        settings: LocalSettings | None = None,
        *,
        now_ns: int | None = None,
    ) -> None:
        """Create the root, and remove stale temporary files of killed processes.

        Args:
            root: Directory of the store.
            settings: Options of the store.
            now_ns: Current time in ns since 1970; None for the system's clock.
        """
        settings = settings or LocalSettings()
        with translated("open", str(root)):
            root.mkdir(parents=True, exist_ok=True)
            self._tree = Tree(root.resolve())
            now = time.time_ns() if now_ns is None else now_ns
            sweep(self._tree.temporary, now - round(settings.stale_after * 1e9))

    @property
    def capabilities(self) -> StorageCapabilities:
        """Conditional writes, and CRC64NVME computed over the bytes written."""
        return StorageCapabilities(conditional_writes=True, checksum=_CHECKSUM)

    def put_object(self, key: str, body: Body, options: PutOptions = NO_OPTIONS) -> str:
        """See `RemoteStorage`."""
        check_key(key)
        options = check_options(key, options)
        with body.open() as raw:
            stream = AttemptStream(raw, body.size, math.inf)
            try:
                return self._put(key, stream, options)
            except BodyFailedError as error:
                raise stream.failure or error from None

    def get_object(self, key: str) -> StoredObject:
        """Read file and record of one version."""
        handle, record = self._open(key, self._tree.open_version)
        with file_stream(handle, key, 0, record.identity.size) as stream:
            return StoredObject(record.head(key), stream.read())

    def get_object_input_stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        *,
        condition: IfMatch | None = None,
    ) -> BinaryIO:
        """The stream keeps the version that was current when it was opened."""
        check_range(key, start, end)
        handle, size = self._open_if(key, condition)
        return file_stream(handle, key, start, size if end is None else min(end, size))

    def open_file(self, key: str, *, condition: IfMatch | None = None) -> int:
        """Also open a file whose object is encrypted."""
        return self._open_if(key, condition)[0]

    def _open_if(self, key: str, condition: IfMatch | None) -> tuple[int, int]:
        """Open the version that the condition names; return its descriptor and its size."""
        handle, summary = self._open(key, self._tree.open_summary)
        try:
            check_condition(key, condition, summary.etag)
        except PreconditionFailedError:
            os.close(handle)
            raise
        return handle, summary.size

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        """Walk the directories below the prefix."""
        with translated("list", prefix):
            yield from self._tree.summaries(list_keys(self._tree.root, prefix, start_after))
        self._tree.check_mounted("list", prefix)

    def list_directories(self, prefix: str) -> list[str]:
        """List one directory."""
        with translated("list", prefix):
            directories = [
                self._tree.checked(directory)
                for directory in list_directories(self._tree.root, prefix)
            ]
        self._tree.check_mounted("list", prefix)
        return directories

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        """A file has no checksum of its own."""
        del with_checksum  # a file has no checksum of its own
        handle, record = self._open(key, self._tree.open_version)
        os.close(handle)
        return record.head(key)

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        """Directories that become empty are removed as well."""
        check_key(key)
        with self._translated("delete", key):
            self._tree.remove(key, condition)

    def delete_objects(self, keys: Sequence[str]) -> None:
        """Delete one object after the other."""
        for key in keys:
            self.delete_object(key)

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        """Read the file and write a new one."""
        check_key(target)
        handle, record = self._open(source, self._tree.open_version)
        with file_stream(handle, source, 0, record.identity.size) as stream:
            window = AttemptStream(stream, record.identity.size, math.inf)
            try:
                options = PutOptions(record.metadata, record.checksum, condition)
                return self._put(target, window, options)
            except BodyFailedError as error:
                raise window.failure or error from None

    def close(self) -> None:
        """Nothing to close."""

    def _put(self, key: str, stream: AttemptStream, options: PutOptions) -> str:
        checksum, condition = options.checksum, options.condition
        with self._translated("put", key):
            if condition is not None:
                # Refuse before the bytes are written; `commit` checks again under the lock.
                present = self._tree.version(key)
                check_condition(key, condition, present.etag if present else None)
            with temporary_file(self._tree.temporary) as (path, handle):
                actual = _fill(handle, stream, checksum.algorithm if checksum else _CHECKSUM)
                expect_checksum(key, checksum, actual)
                record = Record(
                    Identity.of(os.fstat(handle)), uuid4().hex, options.metadata, actual
                )
                self._tree.commit(key, (path, handle), record, condition)
                return record.etag

    @contextmanager
    def _translated(self, operation: str, key: str) -> Iterator[None]:
        """Translate errors. An object is missing only while its store is there."""
        try:
            with translated(operation, key):
                yield
        except ObjectNotFoundError:
            self._tree.check_mounted(operation, key)
            raise

    def _open(self, key: str, how: Callable[[str], tuple[int, _T]]) -> tuple[int, _T]:
        check_key(key)
        with self._translated("get", key):
            try:
                return how(key)
            except NotADirectoryError as error:
                raise ObjectNotFoundError(f"get {key}: {error}") from error


def _fill(handle: int, stream: AttemptStream, algorithm: ChecksumAlgorithm) -> Checksum:
    running = RunningChecksum(algorithm)
    while piece := stream.read(PIECE):
        running.update(piece)
        write_all(handle, piece)
    # Before the rename: a file system may make the name durable before the bytes.
    os.fsync(handle)
    return running.result()
