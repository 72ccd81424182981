"""The record on the store of where an archive that has no watermark yet begins.

It is written in two cases: with `offset_reset: latest`, before anything is stored, because older
records stay left out; with `offset_reset: earliest`, when the first records are gone before the
first watermark, because a restart would begin with the oldest segment that is left.
"""

import json
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, slots=True)
class _Record:
    start: Offset
    earliest: bool
    topic_id: str | None

    def tells_earliest_of(self, topic_id: str | None) -> bool:
        """A record of a deleted topic says nothing of the next one of the same name."""
        return self.earliest and (None in {self.topic_id, topic_id} or self.topic_id == topic_id)


def settle_start(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, here: Offset
) -> Offset:
    """With `offset_reset: latest`: record `here` once; a start that is recorded already holds.

    Raises:
        MalformedObjectError: what is recorded does not parse.
    """
    key = layout.start_key(tp)
    record = {"version": 1, "start_offset": here}
    try:
        store.put_object(key, _body(record), condition=IfAbsent())
    except PreconditionFailedError:
        return _decode(store.get_object(key).data, key).start
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
        try:
            store.put_object(key, _body(record), condition=IfMatch(found.head.etag))
        except PreconditionFailedError:
            raise ArchiveConflictError(
                f"{key} was written by another sidecar while we wanted to record {start}"
            ) from None
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


def _body(record: dict[str, Any]) -> BytesBody:
    return BytesBody(json.dumps(record, sort_keys=True).encode())


def _decode(data: bytes, key: str) -> _Record:
    try:
        fields = json.loads(data)
        earliest = fields.get("offset_reset") == _EARLIEST
        return _Record(Offset(int(fields["start_offset"])), earliest, fields.get("topic_id"))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise MalformedObjectError(f"{key} is no start record: {data[:80]!r}") from None
