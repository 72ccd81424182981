"""What a stored segment holds, also where the peer wrote it and left no note of it."""

from collections.abc import Callable, Iterable

from sidetier.segments.errors import MalformedObjectError, ObjectNotFoundError
from sidetier.segments.indexes import tail_of
from sidetier.segments.keys import ArchiveLayout, parse_object_key
from sidetier.segments.names import FileKind
from sidetier.segments.notes import LEADER_EPOCH_KEY, NEXT_OFFSET_KEY, RECORDS_KEY
from sidetier.segments.offsets import (
    UNKNOWN_EPOCH,
    BaseOffset,
    LeaderEpoch,
    Offset,
    TopicPartition,
)
from sidetier.storage.port import ObjectHead, ObjectSummary, RemoteStorage


def files_by_base(
    rows: Iterable[ObjectSummary], prefix: str
) -> list[tuple[BaseOffset, dict[FileKind, ObjectSummary]]]:
    """The files of segments in a listing of a partition's prefix, by rising base offset; whatever
    else lies there is left out.
    """
    found: dict[BaseOffset, dict[FileKind, ObjectSummary]] = {}
    for row in rows:
        parsed = parse_object_key(row.key, prefix)
        if parsed is not None:
            found.setdefault(parsed[0], {})[parsed[1]] = row
    return sorted(found.items())


def derive_next_offset(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, base: BaseOffset
) -> Offset:
    """The next offset of a stored segment: from its note, or else from its index and its tail.

    Raises:
        MalformedObjectError: the watermark names a segment that is not stored.
        DamagedSegmentError: its tail is not whole record batches.
    """
    key = layout.object_key(tp, base, FileKind.LOG)
    try:
        head = store.head_object(key)
    except ObjectNotFoundError:
        raise MalformedObjectError(
            f"{layout.watermark_key(tp)} names base offset {base}, but {key} is not stored"
        ) from None
    noted = noted_next_offset(head)
    if noted is not None:
        return noted
    index, timeindex = (
        _small_object(store, layout.object_key(tp, base, kind))
        for kind in (FileKind.INDEX, FileKind.TIMEINDEX)
    )
    return tail_of(_reader(store, key), head.size, index, timeindex, base).next_offset


def noted_next_offset(head: ObjectHead) -> Offset | None:
    """What the metadata of a `.log` of ours says of its end; None on the peer's."""
    noted = noted_number(head, NEXT_OFFSET_KEY)
    return None if noted is None else Offset(noted)


def noted_records(head: ObjectHead) -> int | None:
    """How many records the metadata of a `.log` of ours says it has; None where some belong to a
    transaction, and on the peer's.
    """
    return noted_number(head, RECORDS_KEY)


def noted_number(head: ObjectHead, name: str) -> int | None:
    """A number in the metadata of an object; None where there is none, or something else."""
    noted = head.metadata.get(name)
    return int(noted) if noted is not None and noted.isascii() and noted.isdecimal() else None


def noted_epoch(head: ObjectHead, name: str) -> LeaderEpoch:
    """A leader epoch in the metadata of an object of ours; UNKNOWN_EPOCH on the peer's."""
    try:
        return LeaderEpoch(int(head.metadata.get(name, UNKNOWN_EPOCH)))
    except ValueError:
        return UNKNOWN_EPOCH


def last_stored_epoch(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, base: BaseOffset
) -> LeaderEpoch:
    """The leader epoch of the last record of a stored segment; UNKNOWN_EPOCH where nothing says."""
    try:
        head = store.head_object(layout.object_key(tp, base, FileKind.LOG))
    except ObjectNotFoundError:
        return UNKNOWN_EPOCH
    return noted_epoch(head, LEADER_EPOCH_KEY)


def _small_object(store: RemoteStorage, key: str) -> bytes:
    try:
        return store.get_object(key).data
    except ObjectNotFoundError:
        return b""


def _reader(store: RemoteStorage, key: str) -> Callable[[int, int], bytes]:
    def read(position: int, length: int) -> bytes:
        with store.get_object_input_stream(key, position, position + length) as stream:
            return stream.read()

    return read
