"""The record on the store of where an archive that leaves out older records begins."""

import json

from sidetier.segments.errors import MalformedObjectError, PreconditionFailedError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfAbsent, RemoteStorage


def settle_start(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, here: Offset
) -> Offset:
    """Record `here` once; where a start is recorded already, that one holds.

    Raises:
        MalformedObjectError: what is recorded does not parse.
    """
    key = layout.start_key(tp)
    record = json.dumps({"version": 1, "start_offset": here}).encode()
    try:
        store.put_object(key, BytesBody(record), condition=IfAbsent())
    except PreconditionFailedError:
        return _read_start(store.get_object(key).data, key)
    return here


def _read_start(data: bytes, key: str) -> Offset:
    try:
        record = json.loads(data)
        return Offset(int(record["start_offset"]))
    except (ValueError, KeyError, TypeError):
        raise MalformedObjectError(f"{key} is no start record: {data[:80]!r}") from None
