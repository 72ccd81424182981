"""Calls of hdfs-native with a deadline, and its files as streams.

hdfs-native has no timeout for a NameNode or DataNode that keeps its connection open and is silent.
So each call runs on an event loop in a thread of its own, and is cancelled when its deadline passes
or a signal handler raises. hdfs-native retries a call only if the NameNode cannot have carried it
out: a write while no connection can be opened, a read also after a broken connection.
"""

import asyncio
import atexit
import io
import re
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, BinaryIO, Final, TypeVar

from hdfs_native import AsyncClient, WriteOptions

from sidetier.segments.errors import (
    AccessDeniedError,
    InvalidRequestError,
    ObjectNotFoundError,
    StorageError,
    StoreFullError,
    StoreThrottledError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.storage.attempt import AttemptStream
from sidetier.storage.checks import check_process
from sidetier.storage.checksums import RunningChecksum
from sidetier.storage.file_records import Identity
from sidetier.storage.port import Checksum, ChecksumAlgorithm
from sidetier.storage.settings import MIB, AttemptDeadline

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from hdfs_native import AsyncFileReader, AsyncFileWriter, FileStatus


# Translate hdfs-native's errors into StorageErrors.
#
# hdfs-native 0.14 raises FileNotFoundError and FileExistsError for paths, OSError without an errno
# for connections, and RuntimeError for the rest: `RPCError("<Java class>", "<message and
# stack>")`. So the Java class is parsed from the text. A test provokes each kind on a real
# NameNode.

_RPC: Final = re.compile(r'RPCError\("(?:[\w.]+[.$])?(\w+)", "(.*)"\)$', re.DOTALL)
_LOGIN: Final = re.compile(r"^(SASLError|GSSAPIError|NoSASLMechanism)")
_REFUSED: Final = re.compile(r"^(InvalidPath|InvalidArgument|UrlParseError|UnsupportedFeature)")
_STACK: Final = re.compile(r"(?:\\n|\n)\s*(?:\\t|\t)?at .*$", re.DOTALL)
_NOT_A_DIRECTORY: Final = "(is not a directory)"
_LONGEST: Final = 300

BY_CLASS: Final[dict[str, type[StorageError]]] = {
    "AccessControlException": AccessDeniedError,
    "AuthorizationException": AccessDeniedError,
    "InvalidToken": AccessDeniedError,
    "SaslException": AccessDeniedError,
    "FileNotFoundException": ObjectNotFoundError,
    "NSQuotaExceededException": StoreFullError,
    "DSQuotaExceededException": StoreFullError,
    "QuotaByStorageTypeExceededException": StoreFullError,
    "MaxDirectoryItemsExceededException": StoreFullError,
    "HadoopIllegalArgumentException": InvalidRequestError,
    "IllegalArgumentException": InvalidRequestError,
    "InvalidPathException": InvalidRequestError,
    "ParentNotDirectoryException": InvalidRequestError,
    "PathComponentTooLongException": InvalidRequestError,
    "RetriableException": StoreThrottledError,
}
"""Maps the simple class name of a NameNode's exception to our error. All others count as transient:
SafeModeException, StandbyException, an IOException that finds too few DataNodes."""


def translation(operation: str, place: str, error: BaseException) -> StorageError:
    """Return our error for one of hdfs-native's, without the server's stack trace."""
    text = str(error)
    rpc = _RPC.search(text)
    message = _STACK.sub("", rpc[2] if rpc else text)[:_LONGEST]
    name = rpc[1] if rpc else type(error).__name__
    return _kind(error, text, name)(f"{operation} {place}: {name}: {message}".rstrip(": "))


def _kind(error: BaseException, text: str, name: str) -> type[StorageError]:
    if isinstance(error, TimeoutError):
        return StoreTimeoutError
    if isinstance(error, FileNotFoundError):
        return ObjectNotFoundError
    if _NOT_A_DIRECTORY in text or "must both be directories" in text:
        return InvalidRequestError  # a file where the key needs a directory, or the reverse
    if isinstance(error, FileExistsError | ValueError) or _REFUSED.search(text):
        return InvalidRequestError
    if _LOGIN.search(text):
        return AccessDeniedError
    return BY_CLASS.get(name, StoreUnavailableError)


_T = TypeVar("_T")
_END_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.005
_PIECE: Final = MIB
"""Bytes per transfer between Python and hdfs-native."""
_ROWS: Final = 1000
"""Directory entries per deadline: as many as the NameNode returns per request."""
_RAISED_AS_THEY_ARE: Final = (FileNotFoundError, FileExistsError)


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry of a directory: its name, and the identity of a file; None for a directory."""

    name: str
    identity: Identity | None


class HdfsClient:
    """File operations of one name service. Paths are absolute.

    Methods raise FileNotFoundError and FileExistsError unchanged, and a StorageError for all other
    failures. They do not retry.
    """

    def __init__(
        self,
        url: str,
        properties: Mapping[str, str],
        config_dir: str | None,
        deadline: AttemptDeadline,
    ) -> None:
        """Create the client; no request is made.

        Args:
            url: `hdfs://host:port`, `hdfs://nameservice`, or `hdfs://` for `fs.defaultFS`.
            properties: Hadoop properties; they override the configuration directory's.
            config_dir: Directory with `core-site.xml` and `hdfs-site.xml`; None for the directory
                of HADOOP_CONF_DIR or HADOOP_HOME.
            deadline: Deadline of each call.

        Raises:
            RuntimeError: The settings do not determine the NameNodes.
        """
        self._client = AsyncClient(url, dict(properties), config_dir)
        self._deadline = deadline

    def identity(self, path: str) -> Identity | None:
        """Return the identity of a file; None for a directory or a missing path."""
        try:
            status = self._run("stat", path, self._client.get_file_info(path))
        except FileNotFoundError:
            return None
        return _identity(status)

    def exists(self, path: str) -> bool:
        """Return whether the path is a file or a directory."""
        with suppress(FileNotFoundError):
            self._run("stat", path, self._client.get_file_info(path))
            return True
        return False

    def entries(self, directory: str) -> list[Entry]:
        """Return the entries of a directory, unordered; an empty list if it does not exist."""
        try:
            listing = self._client.list_status(directory)
            rows: list[FileStatus] = []
            while page := self._run("list", directory, _take(listing, _ROWS)):
                rows += page
        except (FileNotFoundError, InvalidRequestError):
            return []  # InvalidRequestError: a path below a file, or characters that no key has
        prefix = f"{directory.rstrip('/')}/"
        return [
            Entry(row.path.removeprefix(prefix), _identity(row))
            for row in rows
            if row.path.startswith(prefix)  # list_status of a file returns the file itself
        ]

    def make_directory(self, path: str) -> None:
        """Create a directory and its missing parents. Idempotent."""
        self._run("mkdirs", path, self._client.mkdirs(path, create_parent=True))

    def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Move a file or a directory in one atomic step of the NameNode.

        Raises:
            FileNotFoundError: The source or the target's parent does not exist.
            FileExistsError: The target exists and `overwrite` is False.
        """
        self._run("rename", target, self._client.rename(source, target, overwrite))

    def rename_to_new_place(self, source: str, target: str) -> None:
        """Rename without overwriting; create the target's parent if it is missing."""
        try:
            self.rename(source, target)
        except FileNotFoundError as error:
            # HDFS reports a missing source and a missing parent by the same class.
            if "destination parent" not in str(error):
                raise
            self.make_directory(target.rpartition("/")[0])
            self.rename(source, target)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file or a directory in one atomic step. Idempotent.

        Raises:
            StorageError: A directory is not empty, and `recursive` is False.
        """
        self._run("delete", path, self._client.delete(path, recursive))

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Set the modification time, in ms since 1970."""

        async def change() -> None:
            status = await self._client.get_file_info(path)
            await self._client.set_times(path, modified_ms, status.access_time)

        self._run("set times", path, change())

    def send(
        self, path: str, stream: AttemptStream, algorithm: ChecksumAlgorithm
    ) -> "tuple[AsyncFileWriter, Checksum]":
        """Create a file and its parents from a stream.

        Returns:
            The file, still open for writing, and the checksum of its bytes.

        Raises:
            FileExistsError: The file exists.
            BodyFailedError: The stream failed.
            DeadlinePassedError: The stream's deadline has passed.
        """
        running = RunningChecksum(algorithm)
        options = WriteOptions(overwrite=False, create_parent=True)
        writer = self._run("create", path, self._client.create(path, options))
        while piece := stream.read(_PIECE):
            running.update(piece)
            self._run("write", path, writer.write(piece), len(piece))
        return writer, running.result()

    def close_and_write(
        self, path: str, writer: "AsyncFileWriter", other: str, data: bytes
    ) -> bool:
        """Close a file, and at the same time create another file with the given bytes.

        hdfs-native waits for half a second when the NameNode does not know of a replica yet. Both
        files wait together.

        Returns:
            Whether the other file was created; False if it already exists.
        """

        async def both() -> bool:
            _, created = await asyncio.gather(writer.close(), self._create_small(other, data))
            return created

        return self._run("close", path, both(), len(data))

    def write_small(self, path: str, data: bytes) -> None:
        """Create a file from bytes. Raises FileExistsError if it exists."""
        if not self._run("write", path, self._create_small(path, data), len(data)):
            raise FileExistsError(path)

    async def _create_small(self, path: str, data: bytes) -> bool:
        options = WriteOptions(overwrite=False, create_parent=True)
        try:
            writer = await self._client.create(path, options)
        except FileExistsError:
            return False
        await writer.write(data)
        await writer.close()
        return True

    def read_small(self, path: str) -> bytes:
        """Return the bytes of a whole file. Raises FileNotFoundError."""

        async def receive() -> bytes:
            reader = await self._client.read(path)
            return await reader.read(-1) if len(reader) else b""

        return self._run("read", path, receive())

    def open(self, path: str) -> "HdfsFile":
        """Open a file. The reader keeps this version when another file is renamed over it.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        return HdfsFile(self, path, self._run("open", path, self._client.read(path)))

    def _run(
        self, operation: str, path: str, awaitable: "Coroutine[object, object, _T]", size: int = 0
    ) -> _T:
        try:
            check_process()
        except BaseException:
            # A coroutine that is never awaited would warn when it is collected.
            awaitable.close()
            raise
        future = asyncio.run_coroutine_threadsafe(_awaited(awaitable), _loop())
        try:
            return future.result(self._deadline.seconds(size))
        except _RAISED_AS_THEY_ARE:
            raise
        except Exception as error:
            raise translation(operation, path, error) from error
        except BaseException as error:
            # A KeyboardInterrupt or SystemExit of a signal handler passes.
            if type(error).__module__ != "pyo3_runtime":
                raise
            # A panic in hdfs-native's Rust code: a defect there that affects only this call.
            raise StoreUnavailableError(f"{operation} {path}: {error}") from error
        finally:
            # Also after a timeout: it closes the request. After a result, it does nothing.
            future.cancel()

    def read_on(self, path: str, pieces: AsyncIterator[bytes]) -> bytes:
        """Return the next pieces of a file, about 1 MiB; empty at the end."""
        return self._run("read", path, _take_bytes(pieces), _PIECE)


class HdfsFile:
    """Open file that is read in ranges. It holds no connection between reads."""

    def __init__(self, client: HdfsClient, path: str, reader: "AsyncFileReader") -> None:
        self._client = client
        self._path = path
        self._reader = reader

    def stream(self, start: int, end: int) -> BinaryIO:
        """Return a stream over `start` (inclusive) to `end` (exclusive), within the file."""
        if start >= end:
            return io.BytesIO()
        pieces = self._reader.read_range_stream(start, end - start)
        return io.BufferedReader(_Range(self._client, self._path, pieces, end - start), _PIECE)


class _Range(io.RawIOBase):
    """Range of an open file as a raw, forward-only stream."""

    def __init__(
        self, client: HdfsClient, path: str, pieces: AsyncIterator[bytes], size: int
    ) -> None:
        super().__init__()
        self._client = client
        self._path = path
        self._pieces: AsyncIterator[bytes] | None = pieces
        self._size = size
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        view = memoryview(buffer)
        if not len(self._left) and self._size and self._pieces is not None:
            try:
                piece = self._client.read_on(self._path, self._pieces)
            except FileNotFoundError as error:
                raise StoreUnavailableError(f"read {self._path}: it was replaced") from error
            if not piece:
                raise StoreUnavailableError(
                    f"read {self._path}: the answer ended {self._size} bytes too soon"
                )
            self._size -= len(piece)
            self._left = memoryview(piece)
        count = min(len(view), len(self._left))
        view[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def close(self) -> None:
        self._pieces = None
        self._left = memoryview(b"")
        super().close()


def _identity(status: "FileStatus") -> Identity | None:
    if status.isdir:
        return None
    return Identity(status.length, status.modification_time * 1_000_000)


async def _awaited(awaitable: "Coroutine[object, object, _T]") -> _T:
    """Await one of hdfs-native's own awaitables, which need a running loop."""
    return await awaitable


async def _take(rows: "AsyncIterator[FileStatus]", most: int) -> "list[FileStatus]":
    entries: list[FileStatus] = []
    while len(entries) < most:
        try:
            entries.append(await anext(rows))
        except StopAsyncIteration:
            break
    return entries


async def _take_bytes(pieces: AsyncIterator[bytes]) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while size < _PIECE:
        try:
            chunks.append(await anext(pieces))
        except StopAsyncIteration:
            break
        size += len(chunks[-1])
    return b"".join(chunks)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    # A daemon thread: a call that hangs must not keep the process from ending.
    threading.Thread(target=loop.run_forever, name="sidetier-hdfs", daemon=True).start()
    atexit.register(_end, loop)
    return loop


def _end(loop: asyncio.AbstractEventLoop) -> None:
    """Let hdfs-native's threads leave Python before the interpreter ends.

    A thread that is still handing over a result at that point ends the process with SIGABRT. Such
    threads have Python frames but are unknown to `threading`.
    """

    async def cancel_all() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    end = monotonic() + _END_SECONDS
    with suppress(TimeoutError):
        asyncio.run_coroutine_threadsafe(cancel_all(), loop).result(_END_SECONDS)
    while monotonic() < end:
        known = {thread.ident for thread in threading.enumerate()}
        if sys._current_frames().keys() <= known:  # noqa: SLF001 -- documented despite its underscore
            return
        threading.Event().wait(_LOOK_SECONDS)
