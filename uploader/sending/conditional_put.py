"""Writing one file of a segment so that sidecars that all believe they lead cannot hurt it.

Three rules, and no order of requests breaks them, however late one takes effect:

- every file is created where none is (If-None-Match);
- a sidecar's `.log` is never replaced: who finds another one follows on it;
- another sidecar's index is never replaced by ours, only emptied: an empty one belongs to any log.
  Where his `.log` is there too, not even that: it may be committed by now.

Before its `.log` a writer has seen that both indexes are its own or empty, and afterwards they can
become nothing but empty: so a `.log` and the indexes beside it always belong together. What else
lies beside it (`.txnindex`, `.snapshot`) is replaced before there is a `.log`: that notes their
checksums, and who finds another does not believe it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import structlog

from sidetier.segments.crc import crc64nvme
from sidetier.segments.errors import (
    ArchiveConflictError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sidetier.segments.names import FileKind
from sidetier.segments.notes import TOPIC_ID_KEY
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch
from sidetier.storage.bodies import BytesBody
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
from sidetier.uploader.errors import StoredByAnotherError

log: Final = structlog.get_logger()
CHECKSUM_KEY: Final = "sidetier-crc64nvme"
WRITER_EPOCH_KEY: Final = "sidetier-writer-epoch"

_LOOKS: Final = 3
"""An index goes from a foreign one to a sidecar's to an empty one, and no further."""


class Existing(Enum):
    """What an object that is there already means for the one to be written."""

    GOOD = "the same bytes, or an empty index"
    REPLACEABLE = "not a sidecar's, or not believed without its checksum"
    TO_EMPTY = "another sidecar's index"
    TO_FOLLOW = "another sidecar's log"
    STAND_DOWN = "a later leader's"


@dataclass(frozen=True, slots=True)
class FileToStore:
    """One object: its key, bytes, checksum, user metadata, and the epoch of its writer."""

    key: str
    body: Body
    crc64nvme: int
    metadata: Mapping[str, str]
    writer_epoch: LeaderEpoch

    @property
    def may_be_empty(self) -> bool:
        """An empty index says nothing, and so nothing wrong; of no other file is that true."""
        return self.key.endswith((FileKind.INDEX.value, FileKind.TIMEINDEX.value))

    @property
    def is_log(self) -> bool:
        """The `.log` decides what the segment is."""
        return self.key.endswith(FileKind.LOG.value)

    @property
    def log_key(self) -> str:
        """Where the `.log` of the same segment stands."""
        return self.key.rpartition(".")[0] + FileKind.LOG.value

    def emptied(self) -> "FileToStore":
        """The same index without an entry."""
        return replace(self, body=BytesBody(b""), crc64nvme=crc64nvme(b""))

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
        return Existing.GOOD
    if WRITER_EPOCH_KEY not in head.metadata:
        return Existing.REPLACEABLE
    if _writer_epoch(head) > ours.writer_epoch and not _is_of_another_topic(head, ours):
        return Existing.STAND_DOWN
    if ours.may_be_empty:
        return Existing.GOOD if head.size == 0 else Existing.TO_EMPTY
    return Existing.TO_FOLLOW if ours.is_log else Existing.REPLACEABLE


def _crc64nvme(head: ObjectHead) -> int | None:
    checksum = head.checksum
    if checksum is not None and checksum.algorithm is ChecksumAlgorithm.CRC64NVME:
        return int.from_bytes(checksum.value)
    return _number(head.metadata.get(CHECKSUM_KEY), 16)


def _is_of_another_topic(head: ObjectHead, ours: FileToStore) -> bool:
    """Whether a deleted topic's sidecar has written it late: each topic has its own epochs."""
    ids = {head.metadata.get(TOPIC_ID_KEY), ours.metadata.get(TOPIC_ID_KEY)}
    return None not in ids and len(ids) > 1


def _writer_epoch(head: ObjectHead) -> int:
    epoch = _number(head.metadata.get(WRITER_EPOCH_KEY), 10)
    return UNKNOWN_EPOCH if epoch is None else epoch


def _number(text: str | None, base: int) -> int | None:
    try:
        return None if text is None else int(text, base)
    except ValueError:
        return None


def store_file(
    store: RemoteStorage, ours: FileToStore, *, may_exist: bool, may_replace: bool = False
) -> int:
    """Store one file above the watermark; returns the bytes that were sent.

    `may_exist` asks first what is there, so that an object that has the right bytes already is not
    sent again. A kill after the write leaves exactly the object that the next start finds here.
    `may_replace` is for what has been set aside, and for nobody else: the rules above do not hold
    then, and the caller sees to it that no upload is under way.

    Raises:
        StoredByAnotherError: another sidecar's `.log` is there; it stays.
        ArchiveConflictError: a later leader has been here, or somebody writes at the same time.
        StorageError: as the port says.
    """
    there = _head(store, ours.key) if may_exist else None
    if there is None:
        try:
            put_file(store, ours, IfAbsent())
        except PreconditionFailedError:
            there = store.head_object(ours.key, with_checksum=True)
        else:
            return ours.body.size
    return _settle(store, ours, there, may_replace=may_replace)


def _settle(
    store: RemoteStorage, ours: FileToStore, there: ObjectHead, *, may_replace: bool
) -> int:
    for _ in range(_LOOKS):
        verdict = compare(there, ours)
        if verdict is Existing.GOOD:
            return 0
        if may_replace and verdict is not Existing.STAND_DOWN:
            verdict = Existing.REPLACEABLE
        elif verdict is not Existing.STAND_DOWN:
            _check_undecided(store, ours, there)
        wanted = _instead(ours, there, verdict)
        try:
            put_file(store, wanted, IfMatch(there.etag))
        except PreconditionFailedError:
            there = store.head_object(ours.key, with_checksum=True)
        else:
            return wanted.body.size
    raise ArchiveConflictError(f"{ours.key} is being written by somebody else at the same time")


def _check_undecided(store: RemoteStorage, ours: FileToStore, there: ObjectHead) -> None:
    """Raise StoredByAnotherError where the `.log` that another sidecar's file belongs to is stored:
    it may be committed by now, and then nothing beside it may change.
    """
    if ours.is_log or WRITER_EPOCH_KEY not in there.metadata:
        return
    decided = _head(store, ours.log_key)
    if decided is not None and WRITER_EPOCH_KEY in decided.metadata:
        raise StoredByAnotherError(
            f"{ours.key} belongs to {ours.log_key} of leader epoch {_writer_epoch(decided)}: the "
            "archive goes on where that ends"
        )


def _instead(ours: FileToStore, there: ObjectHead, verdict: Existing) -> FileToStore:
    """What may take the place of what is there."""
    if verdict is Existing.STAND_DOWN:
        raise ArchiveConflictError(
            f"{ours.key} was written in leader epoch {_writer_epoch(there)}, this broker leads in "
            f"{ours.writer_epoch}: another broker leads now"
        )
    if verdict is Existing.TO_FOLLOW:
        raise StoredByAnotherError(
            f"{ours.key} was written in leader epoch {_writer_epoch(there)} with other bytes than "
            f"ours of epoch {ours.writer_epoch}: the archive goes on where it ends"
        )
    if verdict is Existing.TO_EMPTY:
        log.warning("index.emptied", key=ours.key, writer_epoch=_writer_epoch(there))
        return ours.emptied()
    return ours


def put_file(store: RemoteStorage, ours: FileToStore, condition: Condition | None) -> None:
    """Write the file with its metadata and checksum, if the condition holds."""
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
        return store.head_object(key, with_checksum=True)
    except ObjectNotFoundError:
        return None
