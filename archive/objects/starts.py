"""The stored record of the start of an archive that has no `offset.wm` yet.

The sidecar writes it in two cases. With `offset_reset: latest`, it writes the record before it
stores anything, because older records stay out of the archive. With `offset_reset: earliest`, it
writes the record when the broker has deleted the first records before the first `offset.wm`,
because a restart would begin with the oldest segment that is left. Another sidecar may write the
first `offset.wm` at the same time, above this start. So the record is pending until it has been
compared with the start of the archive. If that is higher, the offsets in between are a gap.

Earlier versions stored the records of the longest topic names at another key, which file systems
refuse (`ArchiveLayout.start_keys`). Such a record is moved before a record is written. A kill after
the copy leaves both: the current key counts, and the next call deletes the former one.
"""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Final

from sidetier.archive.objects.codec import JsonCodec, check_numbers
from sidetier.segments.errors import (
    ArchiveConflictError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfAbsent, IfMatch, PutOptions, RemoteStorage, StoredObject

_EARLIEST = "earliest"
_LIST_AFTER: Final = 64
_LISTING_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Record:
    start_offset: Offset
    topic_id: str | None = None
    offset_reset: str | None = None
    """`earliest`; None with `offset_reset: latest`."""
    pending: bool = False
    """Whether the start of the archive is still to be compared with this one. False with
    `offset_reset: latest`, and in records of earlier versions.
    """

    def __post_init__(self) -> None:
        """Refuse numbers of more than 64 bits."""
        check_numbers(self)

    def is_of(self, topic_id: str | None) -> bool:
        """Return whether the record may belong to this topic, and not to a deleted one of the same
        name. Records of earlier versions and of brokers without topic ids have no topic id.
        """
        return None in {self.topic_id, topic_id} or self.topic_id == topic_id

    def is_earliest_of(self, topic_id: str | None) -> bool:
        """Return whether this is the start of this topic's archive with `offset_reset:
        earliest`.
        """
        return self.offset_reset == _EARLIEST and self.is_of(topic_id)


# An unknown version holds the one partition: its segments stay pinned, and a later read tries
# again. With a wrong start, the sidecar would leave records out of the archive.
_CODEC: Final = JsonCodec(_Record, "a start record")


def settle_start(
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    here: Offset,
    topic_id: str | None,
) -> Offset:
    """With `offset_reset: latest`: record `here`, unless a start is recorded, and return the start.

    A record of a deleted topic of the same name is replaced: the new topic has its own records
    below that start.

    Raises:
        ArchiveConflictError: Another sidecar has written the record meanwhile.
        MalformedObjectError: The stored record does not parse.
    """
    key = _moved(store, layout, tp)
    record = _Record(here, topic_id)
    try:
        store.put_object(key, _body(record), PutOptions(condition=IfAbsent()))
    except PreconditionFailedError:
        stored = store.get_object(key)
        recorded = _CODEC.decode(stored.data, key)
        if recorded.is_of(topic_id):
            return recorded.start_offset
        _replace(store, key, record, stored.head.etag)
    return here


def keep_earliest_start(
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    start: Offset,
    topic_id: str | None,
) -> Offset:
    """With `offset_reset: earliest`: record `start`, unless a lower one is recorded, and return the
    start.

    After a kill right behind the write, the next start finds the record, and the same gap above it.

    Raises:
        ArchiveConflictError: Another sidecar has written the record meanwhile.
        MalformedObjectError: The stored record does not parse.
    """
    key = _moved(store, layout, tp)
    record = _Record(start, topic_id, _EARLIEST, pending=True)
    try:
        store.put_object(key, _body(record), PutOptions(condition=IfAbsent()))
    except PreconditionFailedError:
        stored = store.get_object(key)
        recorded = _CODEC.decode(stored.data, key)
        # Anything else is replaced: a higher start, and a
        # record of `offset_reset: latest` or of another topic.
        if recorded.is_earliest_of(topic_id) and recorded.start_offset <= start:
            return recorded.start_offset
        _replace(store, key, record, stored.head.etag)
    return start


def compare_start(
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    start: Offset,
    topic_id: str | None,
    missed: Callable[[OffsetRange], None],
) -> None:
    """Compare a pending record with the start of the archive. One request if no record is pending.

    Args:
        store: The partition's store.
        layout: How keys are made.
        tp: The partition.
        start: The first offset of the archive, whose `offset.wm` exists.
        topic_id: The topic's id; None if brokers have none.
        missed: Called with the offsets from the recorded start up to `start`, if that is higher.

    Raises:
        ArchiveConflictError: Another sidecar has written the record meanwhile: compare again.
        MalformedObjectError: The record does not parse.
    """
    stored = read_first(store, layout.start_keys(tp))
    record = None if stored is None else _CODEC.decode(stored.data, stored.head.key)
    if stored is None or record is None:
        return
    if not record.pending or not record.is_earliest_of(topic_id):
        return
    if record.start_offset < start:
        missed(OffsetRange(record.start_offset, start))
    _replace(store, stored.head.key, replace(record, pending=False), stored.head.etag)


def read_earliest_start(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, topic_id: str | None
) -> Offset | None:
    """Return the start that `keep_earliest_start` recorded for this topic; None if there is none.

    Raises:
        MalformedObjectError: The stored record does not parse.
    """
    record = _read(store, layout, tp)
    return record.start_offset if record and record.is_earliest_of(topic_id) else None


def recorded_start(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition
) -> Offset | None:
    """Return the recorded start, of whichever topic and reset; None if there is none.

    Raises:
        MalformedObjectError: The stored record does not parse.
    """
    record = _read(store, layout, tp)
    return None if record is None else record.start_offset


def _read(store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition) -> _Record | None:
    stored = read_first(store, layout.start_keys(tp))
    return None if stored is None else _CODEC.decode(stored.data, stored.head.key)


def read_first(store: RemoteStorage, keys: Iterable[str]) -> StoredObject | None:
    """Return the object at the first of these keys that has one; None if none has.

    Args:
        store: The store.
        keys: The current key, then the keys at which earlier versions stored the object.

    Raises:
        StorageError: As `RemoteStorage` documents.
    """
    key, *former = keys
    with suppress(ObjectNotFoundError):
        return store.get_object(key)
    return next(filter(None, (_read_former(store, old) for old in former)), None)


def _read_former(store: RemoteStorage, key: str) -> StoredObject | None:
    # Listed first: a file system refuses to open a name of this length. The same type of error may
    # also be a wrong setting, which does not mean that there is no object.
    if all(row.key != key for row in store.list_objects(key)):
        return None
    with suppress(ObjectNotFoundError):
        return store.get_object(key)
    return None


class StartRecords:
    """The start records of all partitions of a cluster. Thread-safe.

    When a sidecar starts, it reads the record of each of its partitions without `offset.wm`. After
    64 reads within 30 s, one listing answers for all partitions without a record during the rest of
    that time. The listing may miss a record that another sidecar writes meanwhile: before and after
    a sidecar writes the first `offset.wm` of a partition, it reads that partition's record itself.
    """

    def __init__(
        self,
        store: RemoteStorage,
        layout: ArchiveLayout,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._layout = layout
        self._clock = clock
        self._lock = threading.Lock()
        self._since = clock()
        self._questions = 0
        self._listed: frozenset[str] | None = None

    def read_earliest(self, tp: TopicPartition, topic_id: str | None) -> Offset | None:
        """As `read_earliest_start`, with at most one request for the record, and usually none.

        Raises:
            MalformedObjectError: The stored record does not parse.
        """
        if not self.may_have(tp):
            return None
        return read_earliest_start(self._store, self._layout, tp, topic_id)

    def may_have(self, tp: TopicPartition) -> bool:
        """Return False if a listing has shown that a partition has no record."""
        listed = self._listing()
        return listed is None or not listed.isdisjoint(self._layout.start_keys(tp))

    def _listing(self) -> frozenset[str] | None:
        with self._lock:
            if self._clock() - self._since > _LISTING_SECONDS:
                self._since, self._questions, self._listed = self._clock(), 0, None
            self._questions += 1
            # Exactly at the 64th question: the threads
            # that ask in the meantime read single records.
            if self._questions != _LIST_AFTER:
                return self._listed
            since = self._since
        rows = self._store.list_objects(self._layout.starts_prefix())
        listed = frozenset(row.key for row in rows)
        with self._lock:
            # Another thread may have begun a new period while the
            # listing ran. An outdated listing must not answer for it.
            if self._since == since:
                self._listed = listed
        return listed


def _moved(store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition) -> str:
    """Return the key of the record, after a record of an earlier version was moved to it."""
    key, *former = layout.start_keys(tp)
    for old in former:
        stored = _read_former(store, old)
        if stored is None:
            continue
        with suppress(PreconditionFailedError):  # there is a current one
            store.put_object(key, BytesBody(stored.data), PutOptions(condition=IfAbsent()))
        store.delete_object(old)
    return key


def _replace(store: RemoteStorage, key: str, record: _Record, etag: str) -> None:
    try:
        store.put_object(key, _body(record), PutOptions(condition=IfMatch(etag)))
    except PreconditionFailedError:
        raise ArchiveConflictError(
            f"{key} was written by another sidecar while this one was recording "
            f"{record.start_offset}"
        ) from None


def _body(record: _Record) -> BytesBody:
    fields = asdict(record)
    if record.offset_reset is None:
        del fields["offset_reset"]
    if not record.pending:
        del fields["pending"]
    return BytesBody(_CODEC.encode(fields))
