"""Committed offsets of groups: one object of the archive's store for each group.

The key is `_sidetier/<cluster>/groups/<group>.json`. Every write is conditional on the version that
this process has written or read before, and a commit is answered after its write. Commits that
arrive while a write is in progress share the next one, so a group makes one request at a time,
whatever the rate of its commits.

One process owns a group: it takes the group by writing the object with its own id as `owner`. A
process that starts takes a group at its first JoinGroup or OffsetCommit. The next write of the
previous owner then fails, and that process gives the group up. No lease is renewed and no clocks
are compared.

What a kill leaves:

- Before a write: the previous object. The commit was not answered.
- After a write, before its answer: the new object. The client commits again, to the same effect.
- A dead owner's id in the object. The next process takes the group at once.
- A write whose answer was lost and that the store carries out later: its condition names the
  version before it, so it fails once any other write has succeeded. Until then no commit is
  answered without a write, and to take a group is always a write.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sidetier.segments.errors import (
    ArchiveConflictError,
    InvalidRequestError,
    MalformedObjectError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from sidetier.segments.keys import ArchiveLayout, parse_group_key
from sidetier.segments.offsets import LeaderEpoch, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfMatch, RemoteStorage, unchanged
from sidetier.wire.requests import CommittedOffset

VERSION: Final = 1
MAX_BYTES: Final = 8 << 20
"""Most bytes of the object of one group."""
_ATTEMPTS: Final = 3

Offsets = Mapping[TopicPartition, CommittedOffset]


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """The object of one group.

    Attributes:
        group: Name of the group.
        owner: Id of the process that keeps the group.
        host: Host name of this process, for operators.
        writes: Number of writes so far. It makes each version differ from the one before it, so
            that their etags differ too.
        offsets: Committed offsets.
    """

    group: str
    owner: str
    host: str
    writes: int = 0
    offsets: Offsets = field(default_factory=dict)


def encode_group(stored: StoredGroup) -> bytes:
    """Return the object's bytes."""
    topics: dict[str, dict[str, list[Any]]] = {}
    for tp, committed in sorted(stored.offsets.items()):
        row = [committed.offset, committed.leader_epoch, committed.metadata]
        topics.setdefault(tp.topic, {})[str(tp.partition)] = row
    document = {
        "version": VERSION,
        "group": stored.group,
        "owner": stored.owner,
        "host": stored.host,
        "writes": stored.writes,
        "offsets": topics,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def parse_group(data: bytes, key: str) -> StoredGroup:
    """Parse an object.

    Raises:
        MalformedObjectError: It is no group, or of a later version. The text names the key.
    """
    try:
        document = json.loads(data)
        if document["version"] != VERSION:
            raise MalformedObjectError(
                f"{key}: version {document['version']!r}; this version of Sidetier reads {VERSION}"
            )
        offsets = {
            TopicPartition(topic, int(number)): CommittedOffset(
                Offset(int(offset)), LeaderEpoch(int(epoch)), str(metadata)
            )
            for topic, rows in document["offsets"].items()
            for number, (offset, epoch, metadata) in rows.items()
        }
        return StoredGroup(
            str(document["group"]),
            str(document["owner"]),
            str(document["host"]),
            int(document["writes"]),
            offsets,
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MalformedObjectError(f"{key}: not the offsets of a group: {error!r}") from error


@dataclass(frozen=True, slots=True)
class GroupObjects:
    """The objects of all groups.

    Attributes:
        store: The store of objects that belong to no topic.
        layout: How keys are made.
        owner: Id of this process, different for each start.
        host: Host name of this process.
        executor: Makes the requests.
        on_write: Called after each write of offsets.
    """

    store: RemoteStorage
    layout: ArchiveLayout
    owner: str
    host: str
    executor: Executor
    on_write: Callable[[], object] = lambda: None

    def names(self) -> Iterator[str]:
        """Yield the names of all groups in the store."""
        prefix = self.layout.groups_prefix()
        for row in self.store.list_objects(prefix):
            name = parse_group_key(row.key, prefix)
            if name is not None:
                yield name

    def read(self, group: str) -> StoredGroup | None:
        """Return a group without taking it; None if there is no object.

        Raises:
            MalformedObjectError, StorageError: It cannot be read.
        """
        return self.read_key(self.key(group))[0]

    def take(self, group: str) -> "OwnedGroup":
        """Make this process the owner of a group.

        Raises:
            ArchiveConflictError: Other processes take it at the same time, again and again.
            MalformedObjectError, StorageError: It cannot be read or written.
        """
        key = self.key(group)
        for _ in range(_ATTEMPTS):
            # Also if this process owns the group already: the store may still carry out a write
            # whose answer it did not get.
            stored, etag = self.read_key(key)
            before = stored or StoredGroup(group, "", "")
            mine = replace(before, owner=self.owner, host=self.host, writes=before.writes + 1)
            try:
                etag = self.store.put_object(
                    key, BytesBody(encode_group(mine)), condition=unchanged(etag)
                )
            except PreconditionFailedError:
                continue  # another process was faster, or the answer to an earlier attempt was lost
            return OwnedGroup(self, key, mine, etag, previous_owner=before.owner)
        raise ArchiveConflictError(f"{key}: other processes take this group at the same time")

    def key(self, group: str) -> str:
        """Return the key of a group whose name is short enough.

        Raises:
            InvalidRequestError: It is too long.
        """
        key = self.layout.group_key(group)
        if key is None:
            raise InvalidRequestError(f"the name of the group is too long: {group[:100]!r}...")
        return key

    def read_key(self, key: str) -> tuple[StoredGroup | None, str | None]:
        """Return a group and its etag by its key; None and None if there is no object."""
        try:
            stored = self.store.get_object(key)
        except ObjectNotFoundError:
            return None, None
        return parse_group(stored.data, key), stored.head.etag


@dataclass(slots=True)
class _Write:
    """The commits that the next write of a group stores, and its result."""

    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    result: "Future[None]" = field(default_factory=Future)


class OwnedGroup:
    """The offsets of a group that this process owns. Thread-safe.

    Args:
        objects: The store.
        key: Key of the group's object.
        stored: Its contents.
        etag: Its etag.
        previous_owner: Owner before this process; empty if there was none.
    """

    def __init__(
        self,
        objects: GroupObjects,
        key: str,
        stored: StoredGroup,
        etag: str,
        previous_owner: str = "",
    ) -> None:
        self.previous_owner = previous_owner
        self._objects = objects
        self._key = key
        self._stored = stored
        self._etag: str | None = etag
        """None after a write that failed: the store may have carried it out."""
        self._unanswered: str | None = None
        """Etag that a failed write names as its condition: while the object has this etag, the
        store may still carry the write out."""
        self._guard = threading.Lock()
        self._next: _Write | None = None
        self._is_writing = False

    @property
    def offsets(self) -> Offsets:
        """Offsets that are stored."""
        return self._stored.offsets

    @property
    def is_writing(self) -> bool:
        """Whether commits are being stored."""
        return self._is_writing

    def commit(self, offsets: Offsets) -> "Future[None]":
        """Store offsets. The result fails with ArchiveConflictError once another process has the
        group, with InvalidRequestError if the object would be too large, else with a StorageError.

        After a failure the store may have the offsets all the same. Offsets that are stored
        already need no request, unless a failed write could still replace them.
        """
        with self._guard:
            if self._next is None:
                self._next = _Write()
            self._next.offsets.update(offsets)
            result = self._next.result
            if self._is_writing:
                return result
            self._is_writing = True
        try:
            self._objects.executor.submit(self._write_all)
        except RuntimeError as error:  # the executor is shut down
            with self._guard:
                self._next, self._is_writing = None, False
            result.set_exception(StoreUnavailableError(f"{self._key}: not stored: {error}"))
        return result

    def _write_all(self) -> None:
        while True:
            with self._guard:
                write, self._next = self._next, None
                if write is None:
                    self._is_writing = False
                    return
            try:
                self._write(write.offsets)
            except BaseException as error:  # noqa: BLE001 - the clients that wait report it
                write.result.set_exception(error)
            else:
                write.result.set_result(None)

    def _write(self, offsets: Offsets) -> None:
        for _ in range(_ATTEMPTS):
            if self._etag is None:
                self._read_again()
            wanted = {**self._stored.offsets, **offsets}
            if wanted == self._stored.offsets and self._etag != self._unanswered:
                return
            stored = replace(self._stored, writes=self._stored.writes + 1, offsets=wanted)
            data = encode_group(stored)
            if len(data) > MAX_BYTES:
                raise InvalidRequestError(f"{self._key}: {len(data)} bytes, above {MAX_BYTES}")
            assert self._etag is not None  # noqa: S101 - for mypy
            condition, self._unanswered, self._etag = IfMatch(self._etag), self._etag, None
            try:
                self._etag = self._objects.store.put_object(
                    self._key, BytesBody(data), condition=condition
                )
            except PreconditionFailedError:
                self._unanswered = None
                continue  # an earlier write whose answer was lost, or another owner
            self._unanswered, self._stored = None, stored
            self._objects.on_write()
            return
        raise StoreUnavailableError(f"{self._key}: changes with each attempt to write it")

    def _read_again(self) -> None:
        stored, etag = self._objects.read_key(self._key)
        if stored is None or stored.owner != self._objects.owner:
            by = "was deleted" if stored is None else f"was taken by a process on {stored.host}"
            raise ArchiveConflictError(f"{self._key}: this group {by}")
        self._stored, self._etag = stored, etag
