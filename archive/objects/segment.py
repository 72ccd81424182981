"""Read the contents of a stored segment, also if Pinterest's uploader stored it without
metadata.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from sidetier.archive.objects.notes import noted_epoch, noted_next_offset
from sidetier.segments.errors import (
    DamagedSegmentError,
    MalformedObjectError,
    ObjectNotFoundError,
    UnsupportedFormatError,
)
from sidetier.segments.headers import BatchHeader, walk_headers
from sidetier.segments.index_builder import RebuiltIndexes
from sidetier.segments.indexes import INDEX_ENTRY, parse_offset_index, tail_of
from sidetier.segments.keys import ArchiveLayout, parse_object_key
from sidetier.segments.names import REQUIRED_KINDS, FileKind
from sidetier.segments.notes import LEADER_EPOCH_KEY
from sidetier.segments.offsets import (
    UNKNOWN_EPOCH,
    BaseOffset,
    LeaderEpoch,
    Offset,
    TopicPartition,
)
from sidetier.segments.producer_snapshot import OpenTransaction
from sidetier.segments.txn_index import AbortedTxn
from sidetier.segments.walker import BatchWalker
from sidetier.storage.port import ObjectSummary, RemoteStorage

Version = tuple[str, str, int]
"""Identifies the bytes of an object: key, etag and size."""


@dataclass(frozen=True, slots=True)
class StoredLog:
    """A stored `.log` and its indexes; an index is None if it is not stored."""

    base_offset: BaseOffset
    row: ObjectSummary
    index: ObjectSummary | None = None
    timeindex: ObjectSummary | None = None

    @property
    def key(self) -> str:
        """Key of the `.log`."""
        return self.row.key

    @property
    def size(self) -> int:
        """Size of the `.log`, in bytes."""
        return self.row.size

    @property
    def version(self) -> Version:
        """Key, etag and size of the `.log`."""
        return self.row.key, self.row.etag, self.row.size


@dataclass(frozen=True, slots=True)
class RowTransactions:
    """The transactions of a range in a tail pack, as its row has them.

    Attributes:
        aborted: The transactions that markers in the range abort.
        still_open: The transactions that are open at the end of the range.
        is_settled: Whether it is certain that none is open there.

    The other two are exact if none is open where the range begins.
    """

    aborted: tuple[AbortedTxn, ...]
    still_open: tuple[OpenTransaction, ...]
    is_settled: bool


@dataclass(frozen=True, slots=True)
class PackedLog(StoredLog):
    """A range of a tail pack, in the form of a segment. It has no metadata and no indexes.

    Attributes:
        end: End, exclusive. Up to here no record is missing, except compacted ones.
        reaches: End of its last batch, exclusive: above `end` if the rest is not valid.
        max_timestamp: Largest timestamp, in ms; -1 if there is none.
        transactions: Its transactions; None if they are not known.
    """

    end: Offset = field(kw_only=True)
    reaches: Offset = field(kw_only=True)
    max_timestamp: int = field(kw_only=True)
    transactions: RowTransactions | None = field(default=None, kw_only=True)


def is_settled(log: StoredLog) -> bool:
    """Whether the row of a range in a tail pack shows that no transaction is open at its end."""
    if not isinstance(log, PackedLog) or log.transactions is None:
        return False
    return log.transactions.is_settled


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """The stored files of one segment, from a listing."""

    base_offset: BaseOffset
    files: dict[FileKind, ObjectSummary]

    @property
    def log(self) -> ObjectSummary:
        """The `.log`. Raises KeyError if it is not stored."""
        return self.files[FileKind.LOG]

    @property
    def stored_log(self) -> StoredLog:
        """The `.log` with its indexes. Raises KeyError if the `.log` is not stored."""
        return StoredLog(
            self.base_offset,
            self.log,
            self.files.get(FileKind.INDEX),
            self.files.get(FileKind.TIMEINDEX),
        )

    @property
    def missing(self) -> tuple[FileKind, ...]:
        """The files that every segment has, but that are not stored."""
        return tuple(kind for kind in REQUIRED_KINDS if kind not in self.files)


def segment_files(rows: Iterable[ObjectSummary], prefix: str) -> Iterator[SegmentFiles]:
    """Yield the segments in a listing of a partition's prefix, by ascending base offset.

    Other objects in the listing are ignored. Only one segment is held in memory at a time.
    """
    # A listing is in the order of the keys, in which base offsets have a fixed number of digits. So
    # the files of a segment follow each other, and the segments are sorted.
    segment: SegmentFiles | None = None
    for row in rows:
        name = parse_object_key(row.key, prefix)
        if name is None:
            continue
        base, kind = name
        if segment is None or segment.base_offset != base:
            if segment is not None:
                yield segment
            segment = SegmentFiles(base, {})
        segment.files[kind] = row
    if segment is not None:
        yield segment


def stored_logs(rows: Iterable[ObjectSummary], prefix: str) -> tuple[StoredLog, ...]:
    """Return the `.log`s among the rows of a listing, by ascending base offset."""
    return tuple(
        segment.stored_log
        for segment in segment_files(rows, prefix)
        if FileKind.LOG in segment.files
    )


_WINDOW_BYTES: Final = 256 * 1024
_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Tail:
    """The last batch of a segment, and its byte position in the `.log`."""

    position: int
    batch: BatchHeader


def read_tail(
    store: RemoteStorage, base: BaseOffset, log: ObjectSummary, index: ObjectSummary | None
) -> Tail:
    """Read the header of the last batch of a stored `.log`.

    Without an index, or with one that does not belong to the log, all batch headers are read.

    Raises:
        DamagedSegmentError: The log is empty, cut, or not a segment of this base offset.
        UnsupportedFormatError: The log has message format v0 or v1.
    """
    read = _windowed(store, log)
    entry = _last_entry(store, base, index) if index is not None else None
    # An index can belong to a longer version of the
    # log: Pinterest's uploader stores segments again.
    if entry is not None and entry[1] < log.size:
        try:
            tail = _walk(read, log, base, entry[1])
        except (DamagedSegmentError, UnsupportedFormatError):
            return _walk(read, log, base, 0)
        # The walk ended below the entry's offset: the index is another log's.
        if tail.batch.last_offset >= entry[0]:
            return tail
    return _walk(read, log, base, 0)


def rebuilt_indexes(store: RemoteStorage, log: ObjectSummary) -> RebuiltIndexes:
    """Build both indexes of a stored `.log`. The `.log` is read once, from first byte to last.

    Raises:
        DamagedSegmentError: The log has a batch that no broker would serve.
        UnsupportedFormatError: The log has message format v0 or v1.
    """
    walker = BatchWalker(log.key, rebuild_indexes=True)
    with store.get_object_input_stream(log.key) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            walker.feed(memoryview(chunk))
    facts = walker.finish()
    # A stream that ends early looks like the end of the object.
    if facts.indexes is None or facts.size != log.size:
        raise DamagedSegmentError(f"{log.key}: {facts.size} of {log.size} bytes could be read")
    return facts.indexes


def _last_entry(
    store: RemoteStorage, base: BaseOffset, index: ObjectSummary
) -> tuple[int, int] | None:
    """Read offset and position of the last index entry; None if there is none, or if it is
    damaged.
    """
    if index.size < INDEX_ENTRY.size or index.size % INDEX_ENTRY.size:
        return None
    with store.get_object_input_stream(index.key, index.size - INDEX_ENTRY.size) as stream:
        last = stream.read()
    if len(last) != INDEX_ENTRY.size:
        return None  # the object ends before its listed size
    relative, position = INDEX_ENTRY.unpack(last)
    if position:
        return base + relative, position
    try:  # zeros: the index was uploaded before the broker trimmed it
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
    """Return a function that reads from a `.log`, and reads ahead to save requests."""
    window, start = b"", 0

    def read(position: int, length: int) -> bytes:
        nonlocal window, start
        if not start <= position <= position + length <= start + len(window):
            end = position + max(length, _WINDOW_BYTES)
            with store.get_object_input_stream(log.key, position, end) as stream:
                window, start = stream.read(), position
        return window[position - start : position - start + length]

    return read


def derive_next_offset(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, base: BaseOffset
) -> Offset:
    """Return the next offset of a stored segment: from its metadata, or else from its index and
    tail.

    Raises:
        MalformedObjectError: `offset.wm` names a segment that is not stored.
        DamagedSegmentError: Its tail does not consist of whole record batches.
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


def last_stored_epoch(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, base: BaseOffset
) -> LeaderEpoch:
    """Return the leader epoch of the last record of a stored segment; UNKNOWN_EPOCH if not
    known.
    """
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
