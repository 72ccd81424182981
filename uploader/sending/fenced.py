"""Writing one file of a segment so that two sidecars that both believe they lead cannot hurt it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sidetier.segments.errors import (
    ArchiveConflictError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch
from sidetier.storage.port import (
    Body,
    Checksum,
    ChecksumAlgorithm,
    Condition,
    IfAbsent,
    IfMatch,
    ObjectHead,
    RemoteStorage,
)

CHECKSUM_KEY: Final = "sidetier-crc64nvme"
WRITER_EPOCH_KEY: Final = "sidetier-writer-epoch"


class UnclaimedError(ArchiveConflictError):
    """An earlier leader's object stands where ours belongs, and he may still move the watermark
    over it: claim the watermark first.
    """


class Existing(Enum):
    """What an object that is there already means for the one to be written."""

    SAME = "the same bytes"
    REPLACE = "an earlier try, or an earlier leader's"
    STAND_DOWN = "a later leader's"


@dataclass(frozen=True, slots=True)
class FileToStore:
    """One object: its key, bytes, checksum, user metadata, and the epoch of its writer."""

    key: str
    body: Body
    crc64nvme: int
    metadata: Mapping[str, str]
    writer_epoch: LeaderEpoch

    def all_metadata(self) -> dict[str, str]:
        """The user metadata with what tells us later whose object it is."""
        return {
            **self.metadata,
            CHECKSUM_KEY: f"{self.crc64nvme:016x}",
            WRITER_EPOCH_KEY: str(self.writer_epoch),
        }


def compare(head: ObjectHead, ours: FileToStore) -> Existing:
    """What is there already, seen from what we want to write. Both lie above the watermark."""
    if head.size == ours.body.size and _crc64nvme(head) == ours.crc64nvme:
        return Existing.SAME
    if _writer_epoch(head) > ours.writer_epoch:
        return Existing.STAND_DOWN
    return Existing.REPLACE


def _crc64nvme(head: ObjectHead) -> int | None:
    checksum = head.checksum
    if checksum is not None and checksum.algorithm is ChecksumAlgorithm.CRC64NVME:
        return int.from_bytes(checksum.value)
    return _number(head.metadata.get(CHECKSUM_KEY), 16)


def _writer_epoch(head: ObjectHead) -> int:
    epoch = _number(head.metadata.get(WRITER_EPOCH_KEY), 10)
    return UNKNOWN_EPOCH if epoch is None else epoch


def _number(text: str | None, base: int) -> int | None:
    try:
        return None if text is None else int(text, base)
    except ValueError:
        return None


def store_file(
    store: RemoteStorage, ours: FileToStore, *, may_exist: bool, may_replace: bool
) -> int:
    """Store one file above the watermark; returns the bytes that were sent.

    `may_exist` asks first what is there, so that an object that has the right bytes already is not
    sent again. A kill after the write leaves exactly the object that the next start finds here.
    `may_replace` says that nobody else can move the watermark over what we replace.

    Raises:
        UnclaimedError: something else is there, and `may_replace` does not allow to replace it.
        ArchiveConflictError: a later leader has been here, or somebody writes at the same time.
        StorageError: as the port says.
    """
    there = _head(store, ours.key) if may_exist else None
    if there is None:
        try:
            _put(store, ours, IfAbsent())
        except PreconditionFailedError:
            there = store.head_object(ours.key)
        else:
            return ours.body.size
    return _settle(store, ours, there, may_replace=may_replace)


def _settle(
    store: RemoteStorage, ours: FileToStore, there: ObjectHead, *, may_replace: bool
) -> int:
    verdict = compare(there, ours)
    if verdict is Existing.SAME:
        return 0
    if verdict is Existing.STAND_DOWN:
        raise ArchiveConflictError(
            f"{ours.key} was written in leader epoch {_writer_epoch(there)}, this broker leads in "
            f"{ours.writer_epoch}: another broker leads now"
        )
    if not may_replace:
        raise UnclaimedError(
            f"{ours.key} was written in leader epoch {_writer_epoch(there)} with other bytes than "
            f"ours of epoch {ours.writer_epoch}: the watermark must be claimed first"
        )
    try:
        _put(store, ours, IfMatch(there.etag))
    except PreconditionFailedError:
        raise ArchiveConflictError(
            f"{ours.key} is being written by somebody else at the same time"
        ) from None
    return ours.body.size


def _put(store: RemoteStorage, ours: FileToStore, condition: Condition | None) -> None:
    checksum = Checksum(ChecksumAlgorithm.CRC64NVME, ours.crc64nvme.to_bytes(8))
    known = store.capabilities.checksum in {None, ChecksumAlgorithm.CRC64NVME}
    store.put_object(
        ours.key,
        ours.body,
        metadata=ours.all_metadata(),
        checksum=checksum if known else None,
        condition=condition,
    )


def _head(store: RemoteStorage, key: str) -> ObjectHead | None:
    try:
        return store.head_object(key)
    except ObjectNotFoundError:
        return None
