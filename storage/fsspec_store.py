"""Other stores, by way of fsspec: Google Cloud Storage, Azure, HDFS, and memory.

::

    <root>/<key>                             the object
    <root>/_sidetier-store/meta/<key>.json   its companion: etag, metadata, checksum
    <root>/_sidetier-store/new/<nonce>       what is being written

A body is written under a temporary name, and moved: on object stores a copy within the store, on
file systems a rename. So a body that fails leaves nothing to be seen. On HDFS a rename refuses an
existing target: there an overwritten object (`offset.wm`, `_metadata`) is away for a moment.

fsspec has no conditional writes. Within this process they hold under a lock; another process is not
fenced, which `capabilities` says. The memory file system is seen by this process alone.
"""

import io
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast
from uuid import uuid4

from sidetier.segments.errors import (
    ObjectNotFoundError,
    StorageError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.storage import local_errors
from sidetier.storage.async_put import PutsAsync
from sidetier.storage.attempt import AttemptStream, BodyFailedError, DeadlinePassedError
from sidetier.storage.checks import check_key, check_metadata, check_range
from sidetier.storage.checksums import PIECE, RunningChecksum, expect_checksum
from sidetier.storage.conditions import check_condition
from sidetier.storage.fsspec_records import Companion, decode, encode, fingerprint
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
from sidetier.storage.settings import AttemptDeadline

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem  # type: ignore[import-untyped]  # it ships no types

RESERVED: Final = "_sidetier-store"
_WRITERS: Final = tuple(threading.Lock() for _ in range(64))
"""Of this process, whatever the number of stores in it: by a hash of the object's path."""


class FsspecStorage(PutsAsync):
    """A path on a file system of fsspec. No checksum is verified by the store."""

    def __init__(
        self,
        filesystem: "AbstractFileSystem",
        root: str,
        *,
        process_local: bool = False,
        deadline: AttemptDeadline | None = None,
        async_puts: int = 4,
    ) -> None:
        """`process_local`: nobody outside this process can write there."""
        self._fs = filesystem
        self._root = root.rstrip("/")
        self._process_local = process_local
        self._deadline = deadline or AttemptDeadline()
        super().__init__(async_puts)

    @property
    def capabilities(self) -> StorageCapabilities:
        """Fencing where nobody else can write; no checksum."""
        return StorageCapabilities(conditional_writes=self._process_local, checksum=None)

    def put_object(
        self,
        key: str,
        body: Body,
        *,
        metadata: Mapping[str, str] | None = None,
        checksum: Checksum | None = None,
        condition: Condition | None = None,
    ) -> str:
        """See the port; the bytes sent are compared with the given checksum here."""
        path = self._path(key)
        checked = check_metadata(key, metadata)
        if condition is not None:
            check_condition(key, condition, self._etag(key))
        with body.open() as raw:
            stream = AttemptStream(raw, body.size, self._deadline.seconds(body.size))
            with self._temporary(key, stream, checksum) as (temporary, actual), _lock(path):
                check_condition(key, condition, self._etag(key))
                return self._publish(key, temporary, checked, actual)

    def get_object(self, key: str) -> StoredObject:
        """See the port."""
        head = self.head_object(key)
        with _translated("get", key):
            return StoredObject(head, self._fs.cat_file(self._path(key)))

    def get_object_input_stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        *,
        condition: IfMatch | None = None,
    ) -> BinaryIO:
        """See the port."""
        check_range(key, start, end)
        head = self.head_object(key)
        check_condition(key, condition, head.etag)
        size = head.size
        stop = size if end is None else min(end, size)
        if start >= stop:
            return io.BytesIO()
        with _translated("get", key):
            opened = self._fs.open(self._path(key), "rb")
            opened.seek(start)
        return io.BufferedReader(_Range(opened, key, stop - start), PIECE)

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        """See the port; the driver lists all below the prefix's last `/` at once."""
        folder = prefix.rpartition("/")[0]
        with _translated("list", prefix):
            found = self._fs.find(f"{self._root}/{folder}".rstrip("/"), withdirs=False)
        keys = [path.removeprefix(self._prefix()) for path in found]
        for key in sorted(keys, key=str.encode):
            hidden = key.startswith(f"{RESERVED}/") or not key.startswith(prefix)
            if hidden or key.encode() <= start_after.encode():
                continue
            with suppress(ObjectNotFoundError):
                head = self.head_object(key)
                yield ObjectSummary(key, head.size, head.etag, head.modified_ms)

    def list_directories(self, prefix: str) -> list[str]:
        """See the port; one call of the driver."""
        folder = prefix.rpartition("/")[0]
        if not {".", ".."}.isdisjoint(folder.split("/")):
            return []  # no key has them
        with _translated("list", prefix):
            try:
                rows = self._fs.ls(f"{self._root}/{folder}".rstrip("/"), detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return []
        names = (row["name"].rstrip("/") for row in rows if row["type"] == "directory")
        found = (f"{name.removeprefix(self._prefix())}/" for name in names)
        hidden = f"{RESERVED}/"
        wanted = (one for one in found if one.startswith(prefix) and not one.startswith(hidden))
        return sorted(wanted, key=str.encode)

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        """See the port."""
        del with_checksum  # is always there
        path = self._path(key)
        with _translated("head", key):
            info = self._info(path)
            modified = self._modified(path)
            companion = self._companion(key)
        mark = fingerprint(info, modified)
        milliseconds = round(modified.timestamp() * 1000) if modified else 0
        if companion is None or companion.fingerprint != mark:
            return ObjectHead(key, int(info["size"]), mark, milliseconds)
        return ObjectHead(
            key,
            int(info["size"]),
            companion.etag,
            milliseconds,
            companion.metadata,
            companion.checksum,
        )

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        """See the port."""
        path = self._path(key)
        with _lock(path):
            if condition is not None and (etag := self._etag(key)) is not None:
                check_condition(key, condition, etag)
            for each in (path, self._meta(key)):
                with suppress(ObjectNotFoundError), _translated("delete", key):
                    self._info(each)
                    self._fs.rm_file(each)

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        """See the port."""
        head = self.head_object(source)
        path, temporary = self._path(target), self._new_temporary()
        with _lock(path):
            check_condition(target, condition, self._etag(target))
            with self._cleared(temporary):
                with _translated("copy", source):
                    self._make_parents(temporary)
                    self._fs.cp_file(self._path(source), temporary)
                return self._publish(target, temporary, head.metadata, head.checksum)

    def close(self) -> None:
        """See the port."""
        self._async.close()

    @contextmanager
    def _temporary(
        self, key: str, stream: AttemptStream, checksum: Checksum | None
    ) -> Iterator[tuple[str, Checksum]]:
        """The body under a temporary name, checked; gone afterwards unless it has been moved."""
        algorithm = checksum.algorithm if checksum else ChecksumAlgorithm.CRC64NVME
        temporary = self._new_temporary()
        with self._cleared(temporary):
            try:
                with _translated("put", key):
                    actual = self._send(temporary, stream, algorithm)
            except BodyFailedError as error:
                raise stream.failure or error from None
            except DeadlinePassedError:
                raise StoreTimeoutError(f"put {key}: past the attempt's deadline") from None
            expect_checksum(key, checksum, actual)
            yield temporary, actual

    def _send(self, path: str, stream: AttemptStream, algorithm: ChecksumAlgorithm) -> Checksum:
        running = RunningChecksum(algorithm)
        self._make_parents(path)
        with self._fs.open(path, "wb") as opened:
            while piece := stream.read(PIECE):
                running.update(piece)
                opened.write(piece)
        return running.result()

    def _publish(
        self, key: str, temporary: str, metadata: Mapping[str, str], checksum: Checksum | None
    ) -> str:
        path, etag = self._path(key), uuid4().hex
        with _translated("put", key):
            self._make_parents(path)
            self._move(temporary, path)
            mark = fingerprint(self._fs.info(path), self._modified(path))
            self._make_parents(self._meta(key))
            self._fs.pipe_file(self._meta(key), encode(Companion(mark, etag, metadata, checksum)))
        return etag

    def _move(self, source: str, target: str) -> None:
        if "hdfs" in _protocols(self._fs) and self._fs.exists(target):
            self._fs.rm_file(target)
        self._fs.mv(source, target)

    @contextmanager
    def _cleared(self, temporary: str) -> Iterator[None]:
        try:
            yield
        finally:
            with suppress(Exception):
                if self._fs.exists(temporary):
                    self._fs.rm_file(temporary)

    def _etag(self, key: str) -> str | None:
        try:
            return self.head_object(key).etag
        except ObjectNotFoundError:
            return None

    def _info(self, path: str) -> Mapping[str, Any]:
        """Raises FileNotFoundError, also where the path leads to a directory or below a file."""
        try:
            info = cast("Mapping[str, Any]", self._fs.info(path))
        except NotADirectoryError as error:
            raise FileNotFoundError(path) from error
        if info.get("type") != "file":
            raise FileNotFoundError(f"{path} is a directory")
        return info

    def _companion(self, key: str) -> Companion | None:
        try:
            return decode(self._fs.cat_file(self._meta(key)))
        except FileNotFoundError:
            return None

    def _modified(self, path: str) -> datetime | None:
        try:
            return cast("datetime", self._fs.modified(path))
        except NotImplementedError:
            return None

    def _make_parents(self, path: str) -> None:
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)

    def _new_temporary(self) -> str:
        return f"{self._root}/{RESERVED}/new/{uuid4().hex}"

    def _path(self, key: str) -> str:
        check_key(key)
        return f"{self._root}/{key}"

    def _meta(self, key: str) -> str:
        name = sha256(key.encode()).hexdigest()
        return f"{self._root}/{RESERVED}/meta/{name[:2]}/{name}.json"

    def _prefix(self) -> str:
        return f"{self._fs._strip_protocol(self._root)}/"  # noqa: SLF001 - fsspec's own name for it


class _Range(io.RawIOBase):
    """So many bytes of an open file; closes it."""

    def __init__(self, opened: Any, key: str, size: int) -> None:  # noqa: ANN401 - any driver's
        super().__init__()
        self._opened = opened
        self._key = key
        self._left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401
        view = memoryview(buffer)
        with _translated("get", self._key):
            data = self._opened.read(min(len(view), self._left))
        view[: len(data)] = data
        self._left -= len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._opened.close()
        super().close()


@contextmanager
def _translated(operation: str, key: str) -> Iterator[None]:
    """Drivers raise OSError where they can, and their library's own errors where they do not."""
    passing = (StorageError, BodyFailedError, DeadlinePassedError)
    try:
        with local_errors.translated(operation, key):
            yield
    except passing:
        raise
    except Exception as error:
        text = f"{operation} {key}: {type(error).__name__}: {error}"
        raise StoreUnavailableError(text) from error


def _protocols(filesystem: "AbstractFileSystem") -> tuple[str, ...]:
    protocol = filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


@contextmanager
def _lock(path: str) -> Iterator[None]:
    with _WRITERS[int(sha256(path.encode()).hexdigest()[:8], 16) % len(_WRITERS)]:
        yield
