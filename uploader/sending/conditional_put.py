"""Store one file of a segment safely while several sidecars believe that they lead.

Three rules hold for any order of requests, also if a request takes effect late:

- Every file is created with If-None-Match.
- A sidecar's `.log` is never replaced: a sidecar that finds another one continues behind it.
- Another sidecar's index is never replaced by ours, only emptied: an empty index fits any log.
  It is not even emptied if that sidecar's `.log` is stored, which may be committed by now. If such
  a `.log` has lost an index, an empty one is stored (see `adoption`).

Before it stores its `.log`, a writer has seen that both indexes are its own or empty. Afterwards
they can only become empty. So a `.log` and the indexes beside it always belong together. The other
files beside it (`.txnindex`, `.snapshot`) are replaced before there is a `.log`. The metadata of
the `.log` has their checksums, and readers ignore a file with another checksum.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import structlog

from sidetier.archive.objects.notes import noted_checksum, noted_epoch
from sidetier.segments.crc import crc64nvme
from sidetier.segments.errors import (
    ArchiveConflictError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sidetier.segments.names import FileKind
from sidetier.segments.notes import CHECKSUM_KEY, TOPIC_ID_KEY
from sidetier.segments.offsets import LeaderEpoch
from sidetier.storage.bodies import BytesBody
from sidetier.storage.checksums import is_replaced
from sidetier.storage.port import (
    Body,
    Checksum,
    ChecksumAlgorithm,
    Condition,
    IfAbsent,
    IfMatch,
    ObjectHead,
    PutOptions,
    RemoteStorage,
)
from sidetier.uploader.errors import StoredByAnotherError

log: Final = structlog.get_logger()
WRITER_EPOCH_KEY: Final = "sidetier-writer-epoch"

_ATTEMPTS: Final = 3
"""Attempts: an index changes at most from a foreign one to a sidecar's to an empty one."""


class Existing(Enum):
    """The result of comparing a stored object with a file that is to get the same key."""

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
        """Whether an empty file is valid. Only indexes may be empty, and then fit any `.log`."""
        return self.key.endswith((FileKind.INDEX.value, FileKind.TIMEINDEX.value))

    @property
    def is_log(self) -> bool:
        """Whether this is the `.log`."""
        return self.key.endswith(FileKind.LOG.value)

    @property
    def log_key(self) -> str:
        """Key of the `.log` of the same segment."""
        return self.key.rpartition(".")[0] + FileKind.LOG.value

    def emptied(self) -> "FileToStore":
        """Return the same index without entries."""
        return replace(self, body=BytesBody(b""), crc64nvme=crc64nvme(b""))

    def all_metadata(self) -> dict[str, str]:
        """Return the user metadata with the checksum and the writer's leader epoch."""
        return {
            **self.metadata,
            CHECKSUM_KEY: f"{self.crc64nvme:016x}",
            WRITER_EPOCH_KEY: str(self.writer_epoch),
        }


def compare(head: ObjectHead, ours: FileToStore) -> Existing:
    """Compare a stored object with the file to be written. Both are above `offset.wm`."""
    # Size first: the checksum may be missing, and equal checksums of different sizes mean nothing.
    if head.size == ours.body.size and _crc64nvme(head) == ours.crc64nvme:
        # Another program has replaced the bytes, and kept the metadata: it gets them back.
        return Existing.REPLACEABLE if _is_altered(head, ours) else Existing.GOOD
    if WRITER_EPOCH_KEY not in head.metadata:
        return Existing.REPLACEABLE
    # After the comparison of bytes: equal bytes are good, whichever leader wrote them.
    if _writer_epoch(head) > ours.writer_epoch and not _is_of_another_topic(head, ours):
        return Existing.STAND_DOWN
    if ours.may_be_empty:
        return Existing.GOOD if head.size == 0 else Existing.TO_EMPTY
    return Existing.TO_FOLLOW if ours.is_log else Existing.REPLACEABLE


def _crc64nvme(head: ObjectHead) -> int | None:
    checksum = head.checksum
    if checksum is not None and checksum.algorithm is ChecksumAlgorithm.CRC64NVME:
        return int.from_bytes(checksum.value)
    return noted_checksum(head)


def _is_altered(head: ObjectHead, ours: FileToStore) -> bool:
    """Return whether the store's own checksum shows other bytes than the metadata does."""
    own = head.own_checksum
    if own is not None and own.algorithm is ChecksumAlgorithm.CRC64NVME:
        return int.from_bytes(own.value) != ours.crc64nvme
    return is_replaced(head)


def _is_of_another_topic(head: ObjectHead, ours: FileToStore) -> bool:
    """Return whether a sidecar wrote it for a deleted topic. Each topic has its own epochs."""
    ids = {head.metadata.get(TOPIC_ID_KEY), ours.metadata.get(TOPIC_ID_KEY)}
    return None not in ids and len(ids) > 1


def _writer_epoch(head: ObjectHead) -> LeaderEpoch:
    return noted_epoch(head, WRITER_EPOCH_KEY)


def store_file(
    store: RemoteStorage, ours: FileToStore, *, may_exist: bool, may_replace: bool = False
) -> int:
    """Store one file above `offset.wm`.

    A kill after the write leaves the whole object, which the next start finds in place.

    Args:
        store: The store.
        ours: The file.
        may_exist: Read the head of the stored object first, and send nothing if it has the same
            bytes.
        may_replace: Replace an object of another sidecar. Only for quarantined objects: the rules
            above do not hold then, and the caller must make sure that no upload is under way.

    Returns:
        The number of bytes that were sent.

    Raises:
        StoredByAnotherError: another sidecar's `.log` is stored; it stays.
        ArchiveConflictError: a later leader has written the object, or another process writes it
            at the same time.
    """
    head = _head(store, ours.key) if may_exist else None
    if head is None:
        try:
            put_file(store, ours, IfAbsent())
        except PreconditionFailedError:
            # The object may be our own: the store has written it, but its answer was lost, and the
            # retry was refused. `_settle` then finds the same bytes.
            head = store.head_object(ours.key, with_checksum=True)
        else:
            return ours.body.size
    return _settle(store, ours, head, may_replace=may_replace)


def _settle(
    store: RemoteStorage, ours: FileToStore, stored: ObjectHead, *, may_replace: bool
) -> int:
    for _ in range(_ATTEMPTS):
        verdict = compare(stored, ours)
        if verdict is Existing.GOOD:
            return 0
        if may_replace and verdict is not Existing.STAND_DOWN:
            verdict = Existing.REPLACEABLE
        elif verdict is not Existing.STAND_DOWN:
            _check_undecided(store, ours, stored)
        wanted = _instead(ours, stored, verdict)
        try:
            # Never unconditional: the version that was judged is the one that is replaced.
            put_file(store, wanted, IfMatch(stored.etag))
        except PreconditionFailedError:
            stored = store.head_object(ours.key, with_checksum=True)
        else:
            return wanted.body.size
    raise ArchiveConflictError(f"{ours.key} is being written by another process at the same time")


def _check_undecided(store: RemoteStorage, ours: FileToStore, stored: ObjectHead) -> None:
    """Raise StoredByAnotherError if another sidecar's file belongs to a stored `.log`.

    That `.log` may be committed by now, and then the files beside it must not change.
    """
    if ours.is_log or WRITER_EPOCH_KEY not in stored.metadata:
        return
    decided = _head(store, ours.log_key)
    if decided is not None and WRITER_EPOCH_KEY in decided.metadata:
        raise StoredByAnotherError(
            f"{ours.key} belongs to {ours.log_key} of leader epoch {_writer_epoch(decided)}: the "
            "archive continues where that ends"
        )


def _instead(ours: FileToStore, stored: ObjectHead, verdict: Existing) -> FileToStore:
    """Return the file that may replace the stored object; raises where none may."""
    if verdict is Existing.STAND_DOWN:
        raise ArchiveConflictError(
            f"{ours.key} was written in leader epoch {_writer_epoch(stored)}, but this broker "
            f"leads in {ours.writer_epoch}: another broker leads now"
        )
    if verdict is Existing.TO_FOLLOW:
        raise StoredByAnotherError(
            f"{ours.key} was written in leader epoch {_writer_epoch(stored)} with other bytes than "
            f"ours of epoch {ours.writer_epoch}: the archive continues where it ends"
        )
    if verdict is Existing.TO_EMPTY:
        log.warning("index.emptied", key=ours.key, writer_epoch=_writer_epoch(stored))
        return ours.emptied()
    return ours


def store_empty_index(store: RemoteStorage, decided: ObjectHead, kind: FileKind) -> None:
    """Store an empty index beside a sidecar's `.log` that has none, in the name of its writer."""
    key = decided.key.removesuffix(FileKind.LOG.value) + kind.value
    topic_id = decided.metadata.get(TOPIC_ID_KEY)
    note = {} if topic_id is None else {TOPIC_ID_KEY: topic_id}
    epoch = _writer_epoch(decided)
    empty = FileToStore(key, BytesBody(b""), crc64nvme(b""), note, epoch)
    with suppress(PreconditionFailedError):  # another sidecar has just done it
        put_file(store, empty, IfAbsent())
    log.warning("index.emptied", key=key, writer_epoch=epoch)


def put_file(store: RemoteStorage, ours: FileToStore, condition: Condition | None) -> None:
    """Write the file with its metadata and checksum, if the condition holds."""
    checksum = Checksum(ChecksumAlgorithm.CRC64NVME, ours.crc64nvme.to_bytes(8))
    is_supported = store.capabilities.checksum in {None, ChecksumAlgorithm.CRC64NVME}
    store.put_object(
        ours.key,
        ours.body,
        PutOptions(
            metadata=ours.all_metadata(),
            checksum=checksum if is_supported else None,
            condition=condition,
        ),
    )


def _head(store: RemoteStorage, key: str) -> ObjectHead | None:
    try:
        return store.head_object(key, with_checksum=True)
    except ObjectNotFoundError:
        return None
