"""The file-system store: objects are plain files under a root that any program can read.

Steps of a put, and what a kill right after each step leaves behind:

1. Write the bytes to a temporary file and sync it. Left: a temporary file, which a later start
   removes.
2. Check the condition under the key's lock. Left: the same.
3. Replace the record file; it then describes the new and the present version. Left: the present
   version with its own metadata.
4. Rename the temporary file to the key and sync the directory. Left: the complete new version.

A delete removes the object, then its record. A kill in between leaves a record of no object, which
the next put replaces.
"""

import errno
import io
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
from sidetier.storage.checks import check_condition, check_key, check_metadata, check_range
from sidetier.storage.checksums import PIECE, RunningChecksum, expect_checksum
from sidetier.storage.local_files import (
    list_directories,
    list_keys,
    sweep,
    temporary_file,
    write_all,
)
from sidetier.storage.local_records import Identity, Record
from sidetier.storage.local_tree import Tree
from sidetier.storage.port import (
    Body,
    Checksum,
    ChecksumAlgorithm,
    Condition,
    IfMatch,
    ObjectHead,
    ObjectSummary,
    StorageCapabilities,
    StoredObject,
)
from sidetier.storage.settings import LocalSettings

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


_BY_ERRNO: Final[dict[int, type[StorageError]]] = {
    errno.ENOENT: ObjectNotFoundError,
    errno.ENOSPC: StoreFullError,
    errno.EDQUOT: StoreFullError,
    errno.EFBIG: StoreFullError,
    errno.EACCES: AccessDeniedError,
    errno.EPERM: AccessDeniedError,
    errno.EROFS: AccessDeniedError,
    errno.ENAMETOOLONG: InvalidRequestError,
    # A file where the key needs a directory, or the reverse.
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


_T = TypeVar("_T")
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

    def put_object(
        self,
        key: str,
        body: Body,
        *,
        metadata: Mapping[str, str] | None = None,
        checksum: Checksum | None = None,
        condition: Condition | None = None,
    ) -> str:
        """See `RemoteStorage`."""
        check_key(key)
        checked = check_metadata(key, metadata)
        with body.open() as raw:
            stream = AttemptStream(raw, body.size, math.inf)
            try:
                return self._put(key, stream, checked, checksum, condition)
            except BodyFailedError as error:
                raise stream.failure or error from None

    def get_object(self, key: str) -> StoredObject:
        """See `RemoteStorage`."""
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
        """See `RemoteStorage`. The stream keeps the version that was current when it was opened."""
        check_range(key, start, end)
        handle, summary = self._open(key, self._tree.open_summary)
        try:
            check_condition(key, condition, summary.etag)
        except PreconditionFailedError:
            os.close(handle)
            raise
        size = summary.size
        return file_stream(handle, key, start, size if end is None else min(end, size))

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        """See `RemoteStorage`."""
        with translated("list", prefix):
            yield from self._tree.summaries(list_keys(self._tree.root, prefix, start_after))

    def list_directories(self, prefix: str) -> list[str]:
        """See `RemoteStorage`."""
        with translated("list", prefix):
            return [
                self._tree.checked(directory)
                for directory in list_directories(self._tree.root, prefix)
            ]

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        """See `RemoteStorage`."""
        del with_checksum  # the checksum is always in the record
        handle, record = self._open(key, self._tree.open_version)
        os.close(handle)
        return record.head(key)

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        """See `RemoteStorage`. Directories that become empty are removed as well."""
        check_key(key)
        with translated("delete", key):
            self._tree.remove(key, condition)

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        """See `RemoteStorage`."""
        check_key(target)
        handle, record = self._open(source, self._tree.open_version)
        with file_stream(handle, source, 0, record.identity.size) as stream:
            window = AttemptStream(stream, record.identity.size, math.inf)
            try:
                return self._put(target, window, record.metadata, record.checksum, condition)
            except BodyFailedError as error:
                raise window.failure or error from None

    def close(self) -> None:
        """See `RemoteStorage`. There is nothing to close."""

    def _put(
        self,
        key: str,
        stream: AttemptStream,
        metadata: Mapping[str, str],
        checksum: Checksum | None,
        condition: Condition | None,
    ) -> str:
        with translated("put", key):
            if condition is not None:
                # Refuse before the bytes are written; `commit` checks again under the lock.
                present = self._tree.version(key)
                check_condition(key, condition, present.etag if present else None)
            with temporary_file(self._tree.temporary) as (path, handle):
                actual = _fill(handle, stream, checksum.algorithm if checksum else _CHECKSUM)
                expect_checksum(key, checksum, actual)
                record = Record(Identity.of(os.fstat(handle)), uuid4().hex, metadata, actual)
                self._tree.commit(key, (path, handle), record, condition)
                return record.etag

    def _open(self, key: str, how: Callable[[str], tuple[int, _T]]) -> tuple[int, _T]:
        check_key(key)
        with translated("get", key):
            try:
                return how(key)
            except NotADirectoryError as error:
                raise ObjectNotFoundError(f"get {key}: {error}") from error


def _fill(handle: int, stream: AttemptStream, algorithm: ChecksumAlgorithm) -> Checksum:
    running = RunningChecksum(algorithm)
    while piece := stream.read(PIECE):
        running.update(piece)
        write_all(handle, piece)
    os.fsync(handle)
    return running.result()
