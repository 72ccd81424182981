"""The remote storage port: what every adapter promises, and what its callers may assume."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import BinaryIO, Final, Protocol, runtime_checkable

LISTED_AT_ONCE: Final = 1000
"""How many objects one request of a listing brings at the most, as S3 has it."""


class ChecksumAlgorithm(StrEnum):
    """Whole-object checksums; the values are the names that S3 uses."""

    CRC64NVME = "CRC64NVME"
    CRC32C = "CRC32C"


@dataclass(frozen=True, slots=True)
class Checksum:
    """A checksum over a whole object: big-endian bytes, 8 for CRC64NVME, 4 for CRC32C."""

    algorithm: ChecksumAlgorithm
    value: bytes


@dataclass(frozen=True, slots=True)
class StorageCapabilities:
    """What a store can do."""

    conditional_writes: bool
    """If-None-Match and If-Match are honoured, so that two writers can be fenced. Where they are
    not, a condition is looked at just before the write, and another writer may slip in between."""
    checksum: ChecksumAlgorithm | None
    """The checksum that the store verifies on arrival; None where it verifies none."""


@dataclass(frozen=True, slots=True)
class IfAbsent:
    """Write only where no object has the key (If-None-Match: *)."""


@dataclass(frozen=True, slots=True)
class IfMatch:
    """Write only over the version with this etag (If-Match)."""

    etag: str


Condition = IfAbsent | IfMatch


def unchanged(etag: str | None) -> Condition:
    """The condition for replacing the version that was read. Every store takes it: one without
    conditional writes checks it just before the write.

    Args:
        etag: Of that version; None where there was no object.
    """
    return IfAbsent() if etag is None else IfMatch(etag)


class Body(Protocol):
    """What is to be stored. `open` may be called again, also from another thread."""

    @property
    def size(self) -> int:
        """Length in bytes; does not change."""
        ...

    def open(self) -> BinaryIO:
        """A fresh stream from the first byte; its reader closes it.

        The stream has `read(n)`, `seek`, `tell` and `close`. It may raise OSError or a
        SegmentError, which the adapter passes on unchanged, or block to hold a bandwidth cap (that
        time does not count against an attempt's deadline). It is opened once per attempt, and once
        before the first when the checksum is not known. A stream that ends before `size` bytes is
        an OSError; what follows them is not read.
        """
        ...


@dataclass(frozen=True, slots=True)
class ObjectSummary:
    """One row of a listing: key, size in bytes, etag, last modification in ms since 1970."""

    key: str
    size: int
    etag: str
    modified_ms: int


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """What is known of an object without its bytes; metadata keys are lower case."""

    key: str
    size: int
    etag: str
    modified_ms: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object's head and all of its bytes."""

    head: ObjectHead
    data: bytes


@runtime_checkable
class RemoteStorage(Protocol):
    """An object store under one root (bucket and prefix, or directory).

    Keys are relative to the root, use `/`, and never begin with it. Every method may be called from
    many threads at once. Every method raises only errors below `StorageError` (and what a `Body`
    raises); `retry` on the error says whether the same call can succeed later.

    A key is what every store can hold: components between `/`, none of them empty, `.` or `..`, no
    control characters, at most 1,024 bytes of UTF-8 with the prefix. Metadata names are of a-z, 0-9
    and `-`, values of printable ASCII, 2 KiB in all. Anything else is an InvalidRequestError before
    a request is made.

    A write is atomic: a reader sees all of the new object, or what was there before; a put that
    fails leaves nothing to be seen. A listing shows a write as soon as it has returned. After a
    transient error a write may have happened. An etag names a version by its content at the least:
    S3 gives equal bytes the same etag, so what is fenced by IfMatch needs a nonce inside.

    After a transient error a conditional put that is tried again can be refused by its own earlier
    success. The layer that retries raises PreconditionFailedError with `ambiguous` True then: the
    caller compares what is there with what it wanted to write.
    """

    @property
    def capabilities(self) -> StorageCapabilities:
        """What this store can do; constant, no request."""
        ...

    def put_object(
        self,
        key: str,
        body: Body,
        *,
        metadata: Mapping[str, str] | None = None,
        checksum: Checksum | None = None,
        condition: Condition | None = None,
    ) -> str:
        """Store the body and return its etag.

        The object's checksum, given or else computed here, is verified by the store where it can.

        Raises:
            PreconditionFailedError: the condition does not hold (IfMatch over nothing never
                does); nothing was written by this try. See `ambiguous`.
            ChecksumMismatchError: the body's bytes do not have the given checksum.
        """
        ...

    def get_object(self, key: str) -> StoredObject:
        """The whole object, for small ones; raises ObjectNotFoundError."""
        ...

    def get_object_input_stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        *,
        condition: IfMatch | None = None,
    ) -> BinaryIO:
        """A stream over the bytes from `start` up to, not including, `end`; the caller closes it.

        A range is cut to the object as a slice is: from its end on there is nothing. The first
        bytes are asked for here, so that ObjectNotFoundError comes from this call. A later read may
        raise a transient error, also when the answer ends too soon: open again from there.

        Raises:
            ObjectNotFoundError: there is no object.
            PreconditionFailedError: another version than that of the condition is there.
        """
        ...

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        """All objects whose key begins with the prefix and is greater than `start_after`, in
        ascending order of the key's UTF-8 bytes; requests are made as the iterator is read.
        """
        ...

    def list_directories(self, prefix: str) -> list[str]:
        """What the keys that begin with the prefix have in common up to the next `/` behind it,
        that slash included: each once, in ascending order of UTF-8 bytes. What lies below is not
        listed: a request for every 1,000. A directory that is empty may be shown where a store has
        such.
        """
        ...

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        """What is known of an object without its bytes.

        The checksum is known of what was written through this port. `with_checksum` asks for that
        of other objects, too, where the store has it (S3: with a second, dearer request).

        Raises:
            ObjectNotFoundError: there is no object.
        """
        ...

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        """Remove the object; that there is none is no error, under a condition neither.

        Where a store does not know conditional deletes, it is looked at just before.

        Raises:
            PreconditionFailedError: another version is there.
        """
        ...

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        """Copy within the store, metadata and checksum included; returns the new etag.

        Raises:
            ObjectNotFoundError: there is no source.
            PreconditionFailedError: the condition, which is about the target, does not hold.
        """
        ...

    def close(self) -> None:
        """Close the connections; may be called twice."""
        ...
