"""Work of one task: read a split's records from the store."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.errors import DamagedArchiveError, TailMovedError
from sidetier.archive.objects.log_check import is_full
from sidetier.archive.objects.notes import noted_next_offset, noted_records
from sidetier.archive.objects.segment import PackedLog, StoredLog, Version
from sidetier.archive.reader.reader import ArchiveReader
from sidetier.archive.reader.results import Failed, Gap, ReachedEnd, Records
from sidetier.archive.reader.settings import ReaderSettings
from sidetier.archive.segment_bytes import BufferPool
from sidetier.archive.view import Extract
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.pipeline.errors import MissingRecordsError, TailPackGoneError, UndecidedRecordsError
from sidetier.pipeline.planning.request_pool import RequestPool
from sidetier.pipeline.planning.split import Missing, Piece, Split
from sidetier.segments.arrow import schema_of
from sidetier.segments.errors import ObjectNotFoundError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import Offset, OffsetRange
from sidetier.storage.port import ObjectPart, ObjectSummary, RemoteStorage

MIB = 1024**2


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of one task.

    Attributes:
        columns: columns of `RECORD_SCHEMA`, in the order of the result; None for all.
        isolation: isolation level.
        fail_on_data_loss: whether offsets that are not stored are an error.
        memory_budget: maximum bytes of stored segments in memory, fetched or being fetched.
        most_records: maximum records of one batch.
        max_batch_bytes: maximum size of one stored record batch, decompressed.
        with_tail: whether the plan has tail packs.
    """

    columns: tuple[str, ...] | None = None
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    fail_on_data_loss: bool = True
    memory_budget: int = 64 * MIB
    most_records: int = 1 << 20
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
    with_tail: bool = False


ONLY_OFFSETS = ("offset",)
_THREADS = 4


def holds_all(store: RemoteStorage, split: Split) -> bool:
    """Whether every offset of the split is a record that readers of any isolation level see.

    True only if no record was compacted away and none belongs to a transaction. Costs a request for
    each segment, or one if the first segment's metadata does not have it. False if this is unknown,
    or if a segment is gone or not in the planned version: the reader handles these cases.
    """
    if split.origin.is_pinterest:
        return False
    # Offsets are dense in each segment, so a split without gaps between its segments has every
    # offset.
    first, *others = split.pieces
    end = _end_of_full(store, first)
    if end is None or first.base_offset > split.range.start:
        return False
    pool = RequestPool(_THREADS)
    try:
        ends = pool.each(lambda piece: _end_of_full(store, piece), others)
        for piece, next_end in zip(others, ends, strict=True):
            if next_end is None or end != Offset(piece.base_offset):
                return False
            end = next_end
    finally:
        pool.shutdown(cancel_futures=True)
    return end >= split.range.end


def offsets_of(span: OffsetRange, most: int) -> Iterator[pa.RecordBatch]:
    """Yield every offset of the range as a record, at most `most` in a batch."""
    schema = schema_of(ONLY_OFFSETS)
    for first in range(span.start, span.end, most):
        offsets = np.arange(first, min(first + most, span.end), dtype=np.int64)
        yield pa.RecordBatch.from_arrays([pa.array(offsets)], schema=schema)


def _end_of_full(store: RemoteStorage, piece: Piece) -> Offset | None:
    """Return the next offset of a segment in which every offset is a record; None for any other."""
    if piece.pack is not None:
        return None
    try:
        head = store.head_object(piece.key)
    except ObjectNotFoundError:
        return None
    end, records = noted_next_offset(head), noted_records(head)
    if head.etag != piece.etag or end is None or records != end - piece.base_offset:
        return None
    # The count is of the archived bytes: all of them must still be stored.
    return end if is_full(head) else None


_UNKNOWN_TIME = 0
"""A split does not carry the objects' modification times; the reader does not use them."""


def extract_of(split: Split) -> Extract:
    """Return the part of the archive's listing that the planner has recorded in the split."""
    origin = split.origin
    pieces = (*split.pieces, *origin.behind)
    return Extract(
        topic_id=origin.topic_id,
        is_pinterest=origin.is_pinterest,
        logs=tuple(_stored_log(piece) for piece in pieces),
        end=origin.until,
        begins=(split.range.start, split.pieces[0].start),
        ends=dict(_ends(split.pieces)),
    )


def _stored_log(piece: Piece) -> StoredLog:
    pack = piece.pack
    if pack is not None:
        row = ObjectPart(piece.key, piece.size, piece.etag, _UNKNOWN_TIME, pack.key, pack.position)
        return PackedLog(
            piece.base_offset, row, end=pack.until, reaches=pack.reaches, max_timestamp=-1
        )
    index = None
    if piece.index is not None:
        key = piece.key.removesuffix(FileKind.LOG.value) + FileKind.INDEX.value
        index = ObjectSummary(key, piece.index.size, piece.index.etag, _UNKNOWN_TIME)
    log_object = ObjectSummary(piece.key, piece.size, piece.etag, _UNKNOWN_TIME)
    return StoredLog(piece.base_offset, log_object, index)


def _ends(pieces: tuple[Piece, ...]) -> Iterator[tuple[Version, int]]:
    for piece in pieces:
        if piece.end < piece.size:
            yield (piece.key, piece.etag, piece.size), piece.end


OnMissing = Callable[[Missing], None]
"""Called with ranges of offsets that are not stored: once for each, in offset order."""

_WAIT_SECONDS: Final = 1.0
_BUFFERS: Final = BufferPool()
"""Buffers shared by all splits that this process reads; at most one memory budget is kept."""


def read_split(
    access: ArchiveAccess, split: Split, options: ReadOptions, on_missing: OnMissing
) -> Generator[pa.RecordBatch]:
    """Yield the records of a split in offset order, in batches that are never empty.

    A caller that stops before the end must close the generator. If only the column `offset` is
    requested, object metadata may give all offsets without reading a segment.

    Raises:
        MissingRecordsError: offsets are not stored, or a stored batch cannot be read, and
            `options.fail_on_data_loss` is set. Otherwise `on_missing` is called, and reading
            continues after them.
        BatchTooLargeError: a stored batch is larger, decompressed, than `options.max_batch_bytes`.
            It is never skipped.
        UnsupportedFormatError: a stored batch has an unknown message format or compression codec.
            It is never skipped.
        UndecidedRecordsError: at read_committed, nothing stored shows whether a transaction was
            committed. `Planner.ends` avoids such offsets as far as it can know.
        TailPackGoneError: the plan has a range of a tail pack that cannot be found any more.
        ArchiveReplacedError: the archive's history is no longer the planned one.
        StorageError: as the port says. The storage layer has retried transient errors.
    """
    if options.columns == ONLY_OFFSETS and holds_all(access.store(split.tp.topic), split):
        yield from offsets_of(split.range, options.most_records)
        return
    settings = ReaderSettings(
        isolation=options.isolation,
        memory_budget=options.memory_budget,
        max_batch_bytes=options.max_batch_bytes,
        columns=options.columns,
        # Nothing is listed, unless the plan does not have what is needed: a pack was deleted, or a
        # marker is further on.
        with_tail=options.with_tail,
    )
    with closing(ArchiveReader(access, settings, buffers=_BUFFERS)) as reader:
        yield from _SplitReader(reader, split, options, on_missing).read()


class _SplitReader:
    def __init__(
        self, reader: ArchiveReader, split: Split, options: ReadOptions, on_missing: OnMissing
    ) -> None:
        self._reader = reader
        self._split = split
        self._options = options
        self._on_missing = on_missing

    def read(self) -> Iterator[pa.RecordBatch]:
        span = self._split.range
        # The reader uses the listing of the planner: a new one could show other segments, and two
        # splits would overlap or leave a gap.
        extract = extract_of(self._split)
        self._reader.assign(self._split.tp, span.start, until=span.end, extract=extract)
        reading = True
        while reading:
            for result in self._reader.take(self._options.most_records, _WAIT_SECONDS):
                if isinstance(result, Records):
                    yield self._chosen(result.records)
                elif isinstance(result, ReachedEnd):
                    self._ended(result.next_offset)
                    reading = False
                else:
                    self._step_over(result)

    def _ended(self, offset: Offset) -> None:
        """Check that the end of the split was reached; report offsets that the archive has lost.

        The archive can have lost offsets at its end if Pinterest's uploader has filled it.
        """
        tp, until = self._split.tp, self._split.range.end
        if offset >= until:
            return
        bounds = self._reader.bounds(tp)
        end = Offset(0) if bounds is None else bounds.next_offset
        if offset < end:
            raise UndecidedRecordsError(tp, OffsetRange(offset, until))
        self._report_missing(offset, until, f"the archive of {tp} ends at {end} now")

    def _step_over(self, result: Gap | Failed) -> None:
        if isinstance(result, Gap):
            (start, end), detail = result.offsets, result.detail
        elif isinstance(result.error, DamagedArchiveError):
            (start, end), detail = result.error.offsets, str(result.error)
        elif isinstance(result.error, TailMovedError):
            span = OffsetRange(result.next_offset, self._split.range.end)
            raise TailPackGoneError(self._split.tp, span) from result.error
        else:
            raise result.error
        self._report_missing(start, end, detail)
        self._reader.seek(self._split.tp, end)

    def _report_missing(self, first: Offset, until: Offset, detail: str) -> None:
        span = OffsetRange(first, min(until, self._split.range.end))
        missing = Missing(self._split.tp, span, detail)
        if span.start >= span.end:
            return
        if self._options.fail_on_data_loss:
            raise MissingRecordsError([missing])
        self._on_missing(missing)

    def _chosen(self, records: pa.RecordBatch) -> pa.RecordBatch:
        columns = self._options.columns
        return records if columns is None else records.select(list(columns))
