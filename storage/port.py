"""The remote storage port: the guarantees of every adapter, which callers may rely on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import BinaryIO, Final, Protocol, runtime_checkable

LISTED_AT_ONCE: Final = 1000
"""Maximum number of objects that one list request returns, as in S3."""


class ChecksumAlgorithm(StrEnum):
    """Checksum algorithms over a whole object. The values are the names that S3 uses."""

    CRC64NVME = "CRC64NVME"
    CRC32C = "CRC32C"


@dataclass(frozen=True, slots=True)
class Checksum:
    """Checksum over a whole object: big-endian bytes, 8 for CRC64NVME, 4 for CRC32C."""

    algorithm: ChecksumAlgorithm
    value: bytes


@dataclass(frozen=True, slots=True)
class StorageCapabilities:
    """Optional features of a store."""

    conditional_writes: bool
    """Whether the store evaluates If-None-Match and If-Match atomically with the write. A store
    that does not is asked for the current version just before the write, so another writer can
    still write in between."""
    checksum: ChecksumAlgorithm | None
    """Checksum that the store verifies when it receives an object; None if it verifies none."""


@dataclass(frozen=True, slots=True)
class IfAbsent:
    """Write only if no object has the key (If-None-Match: *)."""


@dataclass(frozen=True, slots=True)
class IfMatch:
    """Write only if the stored version has this etag (If-Match)."""

    etag: str


Condition = IfAbsent | IfMatch


def unchanged(etag: str | None) -> Condition:
    """Return the condition for replacing the version that was read.

    Every store accepts it: a store without conditional writes checks it just before the write.

    Args:
        etag: Etag of the version that was read; None if there was no object.
    """
    return IfAbsent() if etag is None else IfMatch(etag)


@dataclass(frozen=True, slots=True)
class PutOptions:
    """How an object is stored.

    Attributes:
        metadata: The metadata of the writer.
        checksum: Checksum of the body, which the store verifies where it can; if it is None, the
            adapter computes it.
        condition: Condition on the object that has the key.
    """

    metadata: Mapping[str, str] = field(default_factory=dict)
    checksum: Checksum | None = None
    condition: Condition | None = None


NO_OPTIONS: Final = PutOptions()
"""No metadata, no checksum and no condition."""


class Body(Protocol):
    """Content to store. `open` may be called several times, also from other threads."""

    @property
    def size(self) -> int:
        """Length in bytes; constant."""
        ...

    def open(self) -> BinaryIO:
        """Open a new stream at the first byte. The caller closes it.

        The stream has `read(n)`, `seek`, `tell` and `close`. It may raise OSError or a
        SegmentError, which the adapter passes on unchanged. It may block to keep to a bandwidth
        limit; this time does not count against the deadline of an attempt. Adapters open it once
        per attempt, and once before the first attempt, with `bodies.open_for_checksum`, if they
        have to compute the checksum. A stream that ends before `size` bytes is reported as an
        OSError; adapters do not read bytes after `size`.
        """
        ...


@dataclass(frozen=True, slots=True)
class ObjectSummary:
    """Entry of a listing: key, size in bytes, etag, last modification in ms since 1970."""

    key: str
    size: int
    etag: str
    modified_ms: int


@dataclass(frozen=True, slots=True)
class ObjectPart(ObjectSummary):
    """A range of a stored object, which is read as if it were an object. `key` names it in words.

    Attributes:
        object_key: Key of the object.
        position: Byte position of the range in it.
    """

    object_key: str
    position: int


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """Properties of an object without its bytes.

    Attributes:
        key: Key of the object.
        size: Size in bytes.
        etag: Etag of the version.
        modified_ms: Last modification, in ms since 1970.
        metadata: The metadata of the writer. Keys are lower case.
        checksum: Checksum that the adapter recorded with the object when it wrote it; None if
            another program wrote the object. A program that replaces the bytes may keep it, so it
            proves nothing about the present bytes.
        own_checksum: Checksum that the store has computed or verified itself for the present bytes;
            None if it has none, or was not asked for it.
    """

    key: str
    size: int
    etag: str
    modified_ms: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    checksum: Checksum | None = None
    own_checksum: Checksum | None = None


@dataclass(frozen=True, slots=True)
class StoredObject:
    """Head and all bytes of an object."""

    head: ObjectHead
    data: bytes


@runtime_checkable
class RemoteStorage(Protocol):
    """Object store below one root (bucket and prefix, or directory).

    Keys are relative to the root, use `/` as separator, and never begin with it. All methods may
    be called from many threads at the same time. They raise only subclasses of `StorageError` (and
    the errors of a `Body`); the error's `retry` is True if the same call can succeed later.

    Keys are restricted to names that every store can hold: components between `/`, none of them
    empty, `.` or `..`, no control characters, at most 1,024 bytes of UTF-8 including the prefix.
    Metadata names consist of a-z, 0-9 and `-`, metadata values of printable ASCII, 2 KiB in total.
    Everything else raises InvalidRequestError before a request is made.

    A write is atomic: a reader sees the whole new object or the previous state, and a failed put
    leaves nothing visible. A listing includes a write as soon as the write has returned. After a
    transient error the write may have happened. An etag identifies at least the content of a
    version: S3 gives equal bytes the same etag, so an object that is replaced with IfMatch has to
    contain a nonce.

    When a conditional put is retried after a transient error, its own earlier success can cause
    the condition to fail. The retry layer then raises PreconditionFailedError with `ambiguous` set
    to True, and the caller compares the stored object with the bytes it wanted to write.
    """

    @property
    def capabilities(self) -> StorageCapabilities:
        """Features of this store; constant, no request."""
        ...

    def put_object(self, key: str, body: Body, options: PutOptions = NO_OPTIONS) -> str:
        """Store the body and return its etag.

        Raises:
            PreconditionFailedError: The condition does not hold (IfMatch never holds if there is
                no object). This attempt wrote nothing; an earlier attempt may have: see
                `ambiguous`.
            ChecksumMismatchError: The body's bytes do not match the given checksum.
        """
        ...

    def get_object(self, key: str) -> StoredObject:
        """Return the whole object. For small objects only.

        Raises:
            ObjectNotFoundError: There is no object.
        """
        ...

    def get_object_input_stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        *,
        condition: IfMatch | None = None,
    ) -> BinaryIO:
        """Return a stream over the bytes of the range. The caller closes the stream.

        The range is clipped to the object as a Python slice is: a range that begins at or after
        the object's end is empty. This call makes the first request, so it raises
        ObjectNotFoundError itself. A later read may raise a transient error, also when the
        response ends too early; the caller then opens a new stream at the position it reached.

        Args:
            key: Key of the object.
            start: First byte, inclusive.
            end: End of the range, exclusive; None for the end of the object.
            condition: Read only the version with this etag.

        Raises:
            ObjectNotFoundError: There is no object.
            PreconditionFailedError: The object has another etag than the condition.
        """
        ...

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        """Yield all objects whose key begins with `prefix` and is greater than `start_after`.

        Keys are in ascending order of their UTF-8 bytes. Requests are made as the iterator is
        read.
        """
        ...

    def list_directories(self, prefix: str) -> list[str]:
        """Return the directories directly below the prefix.

        A directory is a key's part from its beginning up to and including the first `/` after
        `prefix`. Each is returned once, in ascending order of UTF-8 bytes. The objects below it
        are not listed, so the cost is one request per 1,000 directories. A store that has
        directories may include empty ones.
        """
        ...

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        """Return the properties of an object without its bytes.

        `with_checksum` also asks for `own_checksum`, which only S3 has (it is a more expensive
        request there).

        Raises:
            ObjectNotFoundError: There is no object.
        """
        ...

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        """Delete the object. Idempotent: a missing key is not an error, even with `condition`.

        A store without conditional deletes is asked for the current etag just before the delete.

        Raises:
            PreconditionFailedError: The object has another etag than the condition.
        """
        ...

    def delete_objects(self, keys: Sequence[str]) -> None:
        """Delete objects, without a condition. Idempotent: missing keys are not an error.

        Not atomic: if it raises, or the process is killed, any of the objects may be deleted. On S3
        it is one request for up to `LISTED_AT_ONCE` keys.

        Args:
            keys: At most `LISTED_AT_ONCE` keys.
        """
        ...

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        """Copy an object within the store with its metadata and checksum; return the new etag.

        Args:
            source: Key of the object to copy.
            target: Key of the copy.
            condition: Condition on the object at `target`.

        Raises:
            ObjectNotFoundError: There is no object at `source`.
            PreconditionFailedError: The condition does not hold.
        """
        ...

    def close(self) -> None:
        """Close the connections. May be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """A multipart upload that was begun, and neither completed nor aborted.

    Attributes:
        key: Key of the object that it would create.
        upload_id: The store's id of the upload.
        started_ms: When it was begun, in ms since 1970.
    """

    key: str
    upload_id: str
    started_ms: int


@runtime_checkable
class MultipartUploads(Protocol):
    """A store that keeps, and bills, the parts of unfinished uploads until they are aborted."""

    def unfinished_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """Yield the unfinished uploads of keys that begin with `prefix`, in no order."""
        ...

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Abort an upload and delete its parts. Idempotent: a missing upload is not an error."""
        ...


@runtime_checkable
class FileBackedStorage(Protocol):
    """A store whose objects are files of this host, which the kernel can send to a socket."""

    def open_file(self, key: str, *, condition: IfMatch | None = None) -> int | None:
        """Open an object's file for reading, and return its descriptor. The caller closes it.

        The descriptor keeps the version that was current when it was opened.

        Returns:
            None if the file is not the object's bytes: the object is encrypted.

        Raises:
            ObjectNotFoundError: There is no object.
            PreconditionFailedError: The object has another etag than the condition.
        """
        ...
