"""What a stored segment holds, also where Pinterest's uploader wrote it and left no note of it."""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from sidetier.segments.errors import (
    DamagedSegmentError,
    MalformedObjectError,
    ObjectNotFoundError,
    UnsupportedFormatError,
)
from sidetier.segments.headers import BatchHeader, walk_headers
from sidetier.segments.index_builder import RebuiltIndexes
from sidetier.segments.indexes import parse_offset_index, tail_of
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
from sidetier.segments.walker import BatchWalker
from sidetier.storage.port import ObjectHead, ObjectSummary, RemoteStorage

Version = tuple[str, str, int]
"""What names the bytes of an object: key, etag and size."""


@dataclass(frozen=True, slots=True)
class StoredLog:
    """A stored `.log` and the indexes beside it, None where they are not."""

    base_offset: BaseOffset
    row: ObjectSummary
    index: ObjectSummary | None = None
    timeindex: ObjectSummary | None = None

    @property
    def key(self) -> str:
        """The `.log`'s own."""
        return self.row.key

    @property
    def size(self) -> int:
        """The `.log`'s, in bytes."""
        return self.row.size

    @property
    def version(self) -> Version:
        """What names these bytes."""
        return self.row.key, self.row.etag, self.row.size


def stored_logs(rows: Iterable[ObjectSummary], prefix: str) -> tuple[StoredLog, ...]:
    """The `.log`s among the rows of a listing, by rising base offset."""
    return tuple(
        StoredLog(
            base, files[FileKind.LOG], files.get(FileKind.INDEX), files.get(FileKind.TIMEINDEX)
        )
        for base, files in files_by_base(rows, prefix)
        if FileKind.LOG in files
    )


_ENTRY = struct.Struct(">II")
_WINDOW_BYTES: Final = 256 * 1024
_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Tail:
    """The last batch of a segment, and the byte at which it begins in the `.log`."""

    position: int
    batch: BatchHeader


def read_tail(
    store: RemoteStorage, base: BaseOffset, log: ObjectSummary, index: ObjectSummary | None
) -> Tail:
    """The last batch of a stored `.log`.

    Without an index, or with one that does not belong to the log, all headers are read.

    Raises:
        DamagedSegmentError: the log is empty, cut, or not a segment of this base.
        UnsupportedFormatError: message format v0 or v1.
    """
    read = _windowed(store, log)
    entry = _last_entry(store, base, index) if index is not None else None
    if entry is not None and entry[1] < log.size:
        try:
            tail = _walk(read, log, base, entry[1])
        except (DamagedSegmentError, UnsupportedFormatError):
            return _walk(read, log, base, 0)
        if tail.batch.last_offset >= entry[0]:
            return tail
    return _walk(read, log, base, 0)


def rebuilt_indexes(store: RemoteStorage, log: ObjectSummary) -> RebuiltIndexes:
    """Both indexes of a stored `.log`, which is read once, from its first byte to its last.

    Raises:
        DamagedSegmentError: a batch that no broker would serve.
        UnsupportedFormatError: message format v0 or v1.
    """
    walker = BatchWalker(log.key, rebuild_indexes=True)
    with store.get_object_input_stream(log.key) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            walker.feed(memoryview(chunk))
    facts = walker.finish()
    if facts.indexes is None or facts.size != log.size:
        raise DamagedSegmentError(f"{log.key}: {facts.size} of {log.size} bytes could be read")
    return facts.indexes


def _last_entry(
    store: RemoteStorage, base: BaseOffset, index: ObjectSummary
) -> tuple[int, int] | None:
    """Offset and position of the last entry; None for an index without one, or a damaged one."""
    if index.size < _ENTRY.size or index.size % _ENTRY.size:
        return None
    with store.get_object_input_stream(index.key, index.size - _ENTRY.size) as stream:
        relative, position = _ENTRY.unpack(stream.read())
    if position:
        return base + relative, position
    try:  # zeros: it was sent before the broker had trimmed it
        entries = parse_offset_index(store.get_object(index.key).data, base, index.key).entries
    except DamagedSegmentError:
        return None
    return entries[-1] if entries else None


def _walk(
    read: Callable[[int, int], bytes], log: ObjectSummary, base: BaseOffset, start: int
) -> Tail:
    tail: Tail | None = None
    lowest: int | None = None
    try:
        for position, header in walk_headers(read, log.size, start=start):
            tail = Tail(position, header)
            lowest = header.base_offset if lowest is None else lowest
    except (DamagedSegmentError, UnsupportedFormatError) as error:
        raise type(error)(f"{log.key}: {error}") from None
    if tail is None or lowest is None or lowest < base:
        raise DamagedSegmentError(f"{log.key}: holds no record batch of offset {base} or higher")
    return tail


def _windowed(store: RemoteStorage, log: ObjectSummary) -> Callable[[int, int], bytes]:
    """Reads pieces of a `.log`, and asks the store for more than is wanted at once."""
    window, start = b"", 0

    def read(position: int, length: int) -> bytes:
        nonlocal window, start
        if not start <= position <= position + length <= start + len(window):
            end = position + max(length, _WINDOW_BYTES)
            with store.get_object_input_stream(log.key, position, end) as stream:
                window, start = stream.read(), position
        return window[position - start : position - start + length]

    return read


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
    """What the metadata of a `.log` of ours says of its end; None on Pinterest's."""
    noted = noted_number(head, NEXT_OFFSET_KEY)
    return None if noted is None else Offset(noted)


def noted_records(head: ObjectHead) -> int | None:
    """How many records the metadata of a `.log` of ours says it has; None where some belong to a
    transaction, and on Pinterest's.
    """
    return noted_number(head, RECORDS_KEY)


def noted_number(head: ObjectHead, name: str) -> int | None:
    """A number in the metadata of an object; None where there is none, or something else."""
    noted = head.metadata.get(name)
    return int(noted) if noted is not None and noted.isascii() and noted.isdecimal() else None


def noted_epoch(head: ObjectHead, name: str) -> LeaderEpoch:
    """A leader epoch in the metadata of an object of ours; UNKNOWN_EPOCH on Pinterest's."""
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
