"""The record on the store of where an archive that has no watermark yet begins.

It is written in two cases: with `offset_reset: latest`, before anything is stored, because older
records stay left out; with `offset_reset: earliest`, when the first records are gone before the
first watermark, because a restart would begin with the oldest segment that is left.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from sidetier.segments.errors import (
    ArchiveConflictError,
    MalformedObjectError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfAbsent, IfMatch, RemoteStorage

_EARLIEST = "earliest"
_LIST_AFTER: Final = 64
_LISTING_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Record:
    start: Offset
    earliest: bool
    topic_id: str | None

    def is_of(self, topic_id: str | None) -> bool:
        """Whether it may be of this topic, and not of a deleted one of the same name. Records of
        earlier versions and of brokers without topic ids do not tell.
        """
        return None in {self.topic_id, topic_id} or self.topic_id == topic_id

    def tells_earliest_of(self, topic_id: str | None) -> bool:
        """Whether it says where the archive of this topic begins with `offset_reset: earliest`."""
        return self.earliest and self.is_of(topic_id)


def settle_start(
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    here: Offset,
    topic_id: str | None,
) -> Offset:
    """With `offset_reset: latest`: record `here` once; a start that is recorded already holds.

    A record of a deleted topic of the same name is replaced: below its start the new topic has
    records of its own.

    Raises:
        ArchiveConflictError: another sidecar has recorded its own meanwhile.
        MalformedObjectError: what is recorded does not parse.
    """
    key = layout.start_key(tp)
    record = {"version": 1, "start_offset": here, "topic_id": topic_id}
    try:
        store.put_object(key, _body(record), condition=IfAbsent())
    except PreconditionFailedError:
        found = store.get_object(key)
        there = _decode(found.data, key)
        if there.is_of(topic_id):
            return there.start
        _replace(store, key, record, found.head.etag)
    return here


def keep_earliest_start(
    store: RemoteStorage,
    layout: ArchiveLayout,
    tp: TopicPartition,
    start: Offset,
    topic_id: str | None,
) -> Offset:
    """With `offset_reset: earliest`: record `start`, unless a lower one is recorded, which holds.

    A kill after it finds the record at the next start, and the same records missing behind it.

    Raises:
        ArchiveConflictError: another sidecar has recorded its own meanwhile.
        MalformedObjectError: what is recorded does not parse.
    """
    key = layout.start_key(tp)
    record = {"version": 1, "start_offset": start, "offset_reset": _EARLIEST, "topic_id": topic_id}
    try:
        store.put_object(key, _body(record), condition=IfAbsent())
    except PreconditionFailedError:
        found = store.get_object(key)
        there = _decode(found.data, key)
        if there.tells_earliest_of(topic_id) and there.start <= start:
            return there.start
        _replace(store, key, record, found.head.etag)
    return start


def read_earliest_start(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, topic_id: str | None
) -> Offset | None:
    """What `keep_earliest_start` has recorded of this topic; None where there is nothing.

    Raises:
        MalformedObjectError: what is recorded does not parse.
    """
    key = layout.start_key(tp)
    try:
        found = store.get_object(key)
    except ObjectNotFoundError:
        return None
    record = _decode(found.data, key)
    return record.start if record.tells_earliest_of(topic_id) else None


class StartRecords:
    """The records of all partitions of a cluster, read by many threads.

    When a sidecar starts, each of its partitions without a watermark asks. After 64 questions
    within 30 s, one listing answers the rest of that time for all partitions without a record. It
    may miss a record that another leader writes meanwhile: the first watermark is not written
    before that partition's record has been looked for once more.
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
        """As `read_earliest_start`, with at most one request, and as a rule with none.

        Raises:
            MalformedObjectError: what is recorded does not parse.
        """
        listed = self._listing()
        if listed is not None and self._layout.start_key(tp) not in listed:
            return None
        return read_earliest_start(self._store, self._layout, tp, topic_id)

    def _listing(self) -> frozenset[str] | None:
        with self._lock:
            if self._clock() - self._since > _LISTING_SECONDS:
                self._since, self._questions, self._listed = self._clock(), 0, None
            self._questions += 1
            if self._questions != _LIST_AFTER:
                return self._listed
            since = self._since
        rows = self._store.list_objects(self._layout.starts_prefix())
        listed = frozenset(row.key for row in rows)
        with self._lock:
            if self._since == since:
                self._listed = listed
        return listed


def _replace(store: RemoteStorage, key: str, record: dict[str, Any], etag: str) -> None:
    try:
        store.put_object(key, _body(record), condition=IfMatch(etag))
    except PreconditionFailedError:
        raise ArchiveConflictError(
            f"{key} was written by another sidecar while we wanted to record "
            f"{record['start_offset']}"
        ) from None


def _body(record: dict[str, Any]) -> BytesBody:
    return BytesBody(json.dumps(record, sort_keys=True).encode())


def _decode(data: bytes, key: str) -> _Record:
    try:
        fields = json.loads(data)
        earliest = fields.get("offset_reset") == _EARLIEST
        return _Record(Offset(int(fields["start_offset"])), earliest, fields.get("topic_id"))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise MalformedObjectError(f"{key} is no start record: {data[:80]!r}") from None
