"""Committed offsets of groups: one object of the archive's store for each group.

The key is `_sidetier/<cluster>/groups/<group>.json`. Every write is conditional on the version that
this process has written or read before, and a commit is answered after its write. Commits that
arrive while a write is in progress share the next one, so a group makes one request at a time,
whatever the rate of its commits.

One process owns a group: it takes the group by writing the object with its own id as `owner`. A
process that starts takes a group at its first JoinGroup or OffsetCommit. The previous owner then
gives the group up at its next write, or when it checks the owner, which it does at an interval
while clients use the group. It takes the group back only after the object has not changed for some
time. For this, no lease is renewed and no clocks are compared.

Each committed offset has the id of its topic: a topic that is deleted and created again has another
id, and offsets of the deleted one have no meaning in it.

What a kill leaves:

- Before a write: the previous object. The commit was not answered.
- After a write, before its answer: the new object. The client commits again, to the same effect.
- A dead owner's id in the object. The next process takes the group at once.
- Before or after an old object is written again: the same offsets.
- Before or after an expired group is deleted: the whole group, or none.
- A write whose answer was lost and that the store carries out later: its condition names the
  version before it, so it fails once any other write has succeeded. Until then no commit is
  answered without a write, and to take a group is always a write.
"""

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from sidetier.archive.gc.needs import Consumer, NextOffset, UnknownProgressError
from sidetier.archive.objects.codec import JsonCodec
from sidetier.segments.errors import (
    ArchiveConflictError,
    InvalidRequestError,
    MalformedObjectError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SidetierError,
    StoreUnavailableError,
)
from sidetier.segments.keys import ArchiveLayout, parse_group_key
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.attempt import Clock, monotonic
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfMatch, ObjectSummary, PutOptions, RemoteStorage, unchanged

if TYPE_CHECKING:
    from sidetier.archive.access import ArchiveAccess

VERSION: Final = 1
MAX_BYTES: Final = 8 << 20
"""Most bytes of the offsets of one group, each counted with the name of its topic."""
_ROW_OVERHEAD: Final = 400
"""Bytes of the Python objects of one committed offset, besides its texts."""
_ATTEMPTS: Final = 3
_RENEWAL: Final = 3 * 3600.0
"""Seconds after which a group that is in use is written again, although its offsets are the same:
the age of its object shows endpoints that the group is in use.
"""


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """Committed offset of a partition: the offset of the next record to read.

    Attributes:
        offset: The offset.
        leader_epoch: Leader epoch of the last record that was read; -1 if the client sent none.
        metadata: Any text of the client.
        topic_id: Id of the topic at the commit, as Kafka writes ids. None if the archive has no
            id for the topic.
    """

    offset: Offset
    leader_epoch: LeaderEpoch = UNKNOWN_EPOCH
    metadata: str = ""
    topic_id: str | None = None

    @property
    def row(self) -> list[Any]:
        """The offset as the object has it. Without a topic id, as before topic ids were stored."""
        row = [self.offset, self.leader_epoch, self.metadata]
        return row if self.topic_id is None else [*row, self.topic_id]


Offsets = Mapping[TopicPartition, StoredOffset]


class GroupTakenError(ArchiveConflictError):
    """Another process owns the group, or the group's object was deleted.

    Attributes:
        etag: Version of the object that showed it; None if there is no object.
    """

    def __init__(self, key: str, stored: "StoredGroup | None", etag: str | None) -> None:
        by = "was deleted" if stored is None else f"was taken by a process on {stored.host}"
        super().__init__(f"{key}: this group {by}")
        self.etag = etag


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
        topics.setdefault(tp.topic, {})[str(tp.partition)] = committed.row
    values = {
        "group": stored.group,
        "owner": stored.owner,
        "host": stored.host,
        "writes": stored.writes,
        "offsets": topics,
    }
    return _CODEC.encode(values, separators=(",", ":"), sort_keys=False)


def parse_group(data: bytes, key: str) -> StoredGroup:
    """Parse an object.

    Raises:
        MalformedObjectError: It is not a group, or of a later version. The text names the key.
    """
    document = _CODEC.decode(data, key)
    offsets = {
        TopicPartition(topic, number): StoredOffset(*row)
        for topic, rows in document.offsets.items()
        for number, row in rows.items()
    }
    return StoredGroup(document.group, document.owner, document.host, document.writes, offsets)


class _Row(NamedTuple):
    offset: Offset
    leader_epoch: LeaderEpoch
    metadata: str
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Document:
    group: str
    owner: str
    host: str
    writes: int
    offsets: Mapping[str, Mapping[int, _Row]]


_CODEC: Final = JsonCodec(_Document, "the offsets of a group", VERSION)


def bytes_of(offsets: Offsets) -> int:
    """Return the bytes of offsets, as `MAX_BYTES` counts them."""
    rows = ([tp.topic, tp.partition, committed.row] for tp, committed in offsets.items())
    return sum(len(json.dumps(row)) for row in rows)


def memory_of(offsets: Offsets) -> int:
    """Return the bytes that offsets take in memory, roughly."""
    return bytes_of(offsets) + len(offsets) * _ROW_OVERHEAD


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
        clock: Returns monotonic seconds.
    """

    store: RemoteStorage
    layout: ArchiveLayout
    owner: str
    host: str
    executor: Executor
    on_write: Callable[[], object] = lambda: None
    clock: Clock = monotonic

    def names(self) -> Iterator[str]:
        """Yield the names of all groups in the store."""
        return (name for name, _ in self.rows())

    def rows(self, *, start_after: str = "") -> Iterator[tuple[str, ObjectSummary]]:
        """Yield name and object of all groups in the store whose key is greater than a key."""
        prefix = self.layout.groups_prefix()
        for row in self.store.list_objects(prefix, start_after=start_after):
            name = parse_group_key(row.key, prefix)
            if name is not None:
                yield name, row

    def store_time_ms(self) -> int:
        """Return the time of the store's clock, in ms since 1970, rounded down.

        Writes a small object and reads its modification time. A kill in between leaves the object.
        No other code reads it, and the next call replaces it.

        Raises:
            ArchiveConflictError: The store does not show this write.
            StorageError: The object cannot be written or read.
        """
        key = self.layout.groups_clock_key()
        etag = self.store.put_object(key, BytesBody(uuid4().hex.encode()))
        head = self.store.head_object(key)
        if head.etag != etag:
            raise ArchiveConflictError(f"{key}: another process has just written it")
        return head.modified_ms

    def delete(self, group: str, etag: str) -> bool:
        """Delete a group, unless its object has another etag. Return whether it was deleted.

        A kill leaves the object as it was, or no object.

        Raises:
            MalformedObjectError: It is not a group of this name, or of a later version. It stays.
            StorageError: It cannot be read or deleted. The store may still carry the delete out.
        """
        key = self.key(group)
        stored, present = self.read_key(key)
        if stored is None or present != etag:
            return False
        if stored.group != group:
            raise MalformedObjectError(f"{key}: it has the group {stored.group!r}")
        try:
            self.store.delete_object(key, condition=IfMatch(etag))
        except PreconditionFailedError:  # another process has just written it
            return False
        return True

    def read(self, group: str) -> StoredGroup | None:
        """Return a group without taking it; None if there is no object.

        Raises:
            MalformedObjectError, StorageError: It cannot be read.
        """
        return self.read_key(self.key(group))[0]

    def take(
        self,
        group: str,
        lost: GroupTakenError | None = None,
        may_create: Callable[[], bool] = lambda: True,
    ) -> "OwnedGroup":
        """Make this process the owner of a group.

        Args:
            group: Name of the group.
            lost: How this process has lost the group. The group is taken back only if its object
                has not changed since: an owner that commits keeps it.
            may_create: Returns whether an object may be created for a new group.

        Raises:
            InvalidRequestError: It may not.
            GroupTakenError: The object has changed since the group was lost.
            ArchiveConflictError: Other processes take it at the same time, again and again.
            MalformedObjectError, StorageError: It cannot be read or written.
        """
        key = self.key(group)
        for _ in range(_ATTEMPTS):
            # Also if this process owns the group already: the store may still carry out a write
            # whose answer it did not get.
            asked_at = self.clock()
            stored, etag = self.read_key(key)
            if stored is None and not may_create():
                raise InvalidRequestError(
                    f"{key}: not created, because too many groups were created today"
                )
            before = stored or StoredGroup(group, "", "")
            if lost is not None and before.owner not in {"", self.owner} and etag != lost.etag:
                raise GroupTakenError(key, stored, etag)
            mine = replace(before, owner=self.owner, host=self.host, writes=before.writes + 1)
            try:
                etag = self.store.put_object(
                    key, BytesBody(encode_group(mine)), PutOptions(condition=unchanged(etag))
                )
            except PreconditionFailedError:
                continue  # another process was faster, or the answer to an earlier attempt was lost
            return OwnedGroup(self, key, mine, etag, asked_at, previous_owner=before.owner)
        raise ArchiveConflictError(f"{key}: other processes take this group at the same time")

    def key(self, group: str) -> str:
        """Return the key of a group; raises InvalidRequestError if the name is too long."""
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
    """The commits that the next write of a group stores, and its result.

    Attributes:
        offsets: The offsets; empty if only the owner is checked.
        must_confirm: Whether to ask the store for the owner even if there is nothing to write.
        is_use: Whether the group is in use: an old object is written again.
        result: Done after the write.
    """

    offsets: dict[TopicPartition, StoredOffset] = field(default_factory=dict)
    must_confirm: bool = False
    is_use: bool = False
    result: "Future[None]" = field(default_factory=Future)


class OwnedGroup:
    """The offsets of a group that this process owns. Thread-safe.

    Args:
        objects: The store.
        key: Key of the group's object.
        stored: Its contents.
        etag: Its etag.
        confirmed_at: When the group was taken.
        previous_owner: Owner before this process; empty if there was none.

    Attributes:
        confirmed_at: Time of the last request whose answer showed that this process owns the
            group, in seconds of the clock.
    """

    def __init__(
        self,
        objects: GroupObjects,
        key: str,
        stored: StoredGroup,
        etag: str,
        confirmed_at: float,
        previous_owner: str = "",
    ) -> None:
        self.confirmed_at = confirmed_at
        self.previous_owner = previous_owner
        self._objects = objects
        self._written_at = confirmed_at
        """When this process has last written the object for certain."""
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
        self._accepted = dict(stored.offsets)
        """Offsets that are stored or being stored."""
        self._bytes = bytes_of(stored.offsets)

    @property
    def offsets(self) -> Offsets:
        """Offsets that are stored."""
        return self._stored.offsets

    @property
    def is_writing(self) -> bool:
        """Whether commits are being stored."""
        return self._is_writing

    @property
    def is_old(self) -> bool:
        """Whether `renew` would write the object."""
        return self._objects.clock() - self._written_at >= _RENEWAL

    @property
    def memory(self) -> int:
        """Bytes that the offsets take in memory, roughly."""
        return self._bytes + len(self._accepted) * _ROW_OVERHEAD

    def growth(self, offsets: Offsets) -> int:
        """Return by how many bytes `memory` grows with a commit."""
        new = sum(tp not in self._accepted for tp in offsets)
        return self._growth(offsets) + new * _ROW_OVERHEAD

    def commit(self, offsets: Offsets) -> "Future[None]":
        """Store offsets. The result fails with GroupTakenError once another process has the group,
        with InvalidRequestError if the object would be too large, else with a StorageError.

        After a failure the store may have the offsets all the same. Offsets that are stored
        already need no request, unless a failed write could still replace them, or the object is
        old. A commit that is too large fails alone: the others that share its write are stored.
        """
        with self._guard:
            growth = self._growth(offsets)
            size = self._bytes + growth
            if growth <= 0 or size <= MAX_BYTES:
                self._accepted.update(offsets)
                self._bytes = size
                result, is_first = self._add(offsets, is_use=True)
            else:
                result, is_first = Future(), False
                result.set_exception(
                    InvalidRequestError(f"{self._key}: {size} bytes of offsets, above {MAX_BYTES}")
                )
        if is_first:
            self._start(result)
        return result

    def confirm(self) -> "Future[None]":
        """Ask the store whether this process still owns the group. The result fails as `commit`."""
        with self._guard:
            result, is_first = self._add({}, must_confirm=True)
        if is_first:
            self._start(result)
        return result

    def renew(self) -> "Future[None]":
        """Write an old object again, with the same offsets. The result fails as `commit`."""
        with self._guard:
            result, is_first = self._add({}, is_use=True)
        if is_first:
            self._start(result)
        return result

    def _growth(self, offsets: Offsets) -> int:
        replaced = {tp: self._accepted[tp] for tp in offsets if tp in self._accepted}
        return bytes_of(offsets) - bytes_of(replaced)

    def _add(
        self, offsets: Offsets, *, must_confirm: bool = False, is_use: bool = False
    ) -> "tuple[Future[None], bool]":
        """Add offsets to the next write. Return its result, and whether the caller starts it."""
        if self._next is None:
            self._next = _Write()
        self._next.offsets.update(offsets)
        self._next.must_confirm |= must_confirm
        self._next.is_use |= is_use
        is_first, self._is_writing = not self._is_writing, True
        return self._next.result, is_first

    def _start(self, result: "Future[None]") -> None:
        try:
            self._objects.executor.submit(self._write_all)
        except RuntimeError as error:  # the executor is shut down
            with self._guard:
                self._next, self._is_writing = None, False
            result.set_exception(StoreUnavailableError(f"{self._key}: not stored: {error}"))

    def _write_all(self) -> None:
        while True:
            with self._guard:
                write, self._next = self._next, None
                if write is None:
                    self._is_writing = False
                    return
            try:
                self._write(write)
            except BaseException as error:  # noqa: BLE001 - the clients that wait report it
                self._forget_failed()
                write.result.set_exception(error)
            else:
                write.result.set_result(None)

    def _forget_failed(self) -> None:
        """Count only what is stored and what the next write stores."""
        with self._guard:
            self._accepted = dict(self._stored.offsets)
            if self._next is not None:
                self._accepted.update(self._next.offsets)
            self._bytes = bytes_of(self._accepted)

    def _write(self, write: _Write) -> None:
        for _ in range(_ATTEMPTS):
            if self._etag is None:
                self._read_again()
            wanted = {**self._stored.offsets, **write.offsets}
            is_stored = wanted == self._stored.offsets and self._etag != self._unanswered
            if is_stored and not (write.is_use and self.is_old):
                if write.must_confirm:
                    self._confirm()
                return
            stored = replace(self._stored, writes=self._stored.writes + 1, offsets=wanted)
            assert self._etag is not None  # noqa: S101 - for mypy
            condition, self._unanswered, self._etag = IfMatch(self._etag), self._etag, None
            asked_at = self._objects.clock()
            try:
                self._etag = self._objects.store.put_object(
                    self._key, BytesBody(encode_group(stored)), PutOptions(condition=condition)
                )
            except PreconditionFailedError:
                self._unanswered = None
                continue  # an earlier write whose answer was lost, or another owner
            self._unanswered, self._stored, self.confirmed_at = None, stored, asked_at
            self._written_at = asked_at
            self._objects.on_write()
            return
        raise StoreUnavailableError(f"{self._key}: changes with each attempt to write it")

    def _confirm(self) -> None:
        asked_at = self._objects.clock()
        try:
            etag = self._objects.store.head_object(self._key).etag
        except ObjectNotFoundError:
            raise GroupTakenError(self._key, None, None) from None
        if etag != self._etag:
            self._read_again()
        self.confirmed_at = asked_at

    def _read_again(self) -> None:
        asked_at = self._objects.clock()
        stored, etag = self._objects.read_key(self._key)
        if stored is None or stored.owner != self._objects.owner:
            raise GroupTakenError(self._key, stored, etag)
        self._stored, self._etag, self.confirmed_at = stored, etag, asked_at


def local_group_consumer(archive: "ArchiveAccess", group: str) -> Consumer:
    """Return a group whose committed offsets are on the archive's store, for `archive.gc`."""
    name = f"local group {group}"

    def next_offsets(
        _partitions: Collection[TopicPartition],
    ) -> Mapping[TopicPartition, NextOffset]:
        key = archive.layout.group_key(group)
        if key is None:
            raise UnknownProgressError(f"{name}: its name is too long for a group")
        try:
            committed = parse_group(archive.default_store.get_object(key).data, key).offsets
        except ObjectNotFoundError as error:
            raise UnknownProgressError(
                f"{name}: {key} does not exist, so it has committed no offset yet"
            ) from error
        except SidetierError as error:
            raise UnknownProgressError(f"{name}: {error}") from error
        return {tp: NextOffset(offset.offset, offset.topic_id) for tp, offset in committed.items()}

    return Consumer(name, next_offsets)
