"""Compare a copy with the archive that it was made from, by consuming both."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from sidetier.archive.access import ArchiveAccess, range_reader
from sidetier.archive.errors import DamagedArchiveError
from sidetier.archive.objects.log_check import mismatch
from sidetier.archive.objects.notes import noted_next_offset, noted_records
from sidetier.archive.objects.segment import PackedLog, StoredLog
from sidetier.archive.reader import ArchiveReader, IsolationLevel, ReaderSettings
from sidetier.archive.view import ArchiveView
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.mirror.copy.offset_map import OffsetMap
from sidetier.mirror.hydrate.digest import (
    COLUMNS,
    Digest,
    HiddenOffsets,
    LogBytes,
    archived_records,
    hidden_ranges,
)
from sidetier.segments.errors import ObjectNotFoundError
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

_AT_ONCE: Final = 16
_RANGE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class CheckedCopy:
    """Result for one partition: the number of archived records compared, and the differences."""

    target: TopicPartition
    records: int
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CopiedRange:
    """A range of source offsets that was copied.

    Attributes:
        source: The source partition.
        target: Its copy.
        start: The first source offset, inclusive.
        end: The end of the source offsets, exclusive.
        last_stable_offset: The first offset of a transaction that is open at the archive's end;
            otherwise the archive's end. Records from there on were copied only if open transactions
            count as aborted.
    """

    source: TopicPartition
    target: TopicPartition
    start: Offset
    end: Offset
    last_stable_offset: Offset


@dataclass(frozen=True, slots=True)
class _NotedCount:
    """The number of records that was noted when a segment was archived."""

    key: str
    size: int
    offsets: OffsetRange
    records: int


class ArchivedRecords:
    """Reads the archived records that the copy must have. Not thread-safe.

    The stored segments are compared with what was recorded when they were archived: the copy was
    made from the same objects, so it cannot be a witness for them.

    Args:
        archive: The archive.
        max_batch_bytes: Maximum decompressed bytes of a batch.
        with_tail: Whether the tail packs are read, too.
    """

    def __init__(
        self,
        archive: ArchiveAccess,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
        *,
        with_tail: bool = False,
    ) -> None:
        self._archive = archive
        settings = ReaderSettings(
            columns=COLUMNS, max_batch_bytes=max_batch_bytes, with_tail=with_tail
        )
        self._readers = {
            level: ArchiveReader(archive, replace(settings, isolation=level))
            for level in IsolationLevel
        }

    @property
    def committed(self) -> ArchiveReader:
        """The reader that returns what a read-committed consumer sees."""
        return self._readers[IsolationLevel.READ_COMMITTED]

    def close(self) -> None:
        """Stop all reading."""
        for reader in self._readers.values():
            reader.close()

    def records(self, copied: CopiedRange, view: ArchiveView | None) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range without those of aborted transactions; skip gaps.

        Args:
            copied: The range.
            view: The archive's segments; None if they are not known.

        Raises:
            DamagedArchiveError: A segment is not as it was recorded.
            SidetierError: The archive cannot be read.
        """
        tp, end = copied.source, copied.end
        decided = min(end, copied.last_stable_offset)
        noted = [] if view is None else self._noted(tp, view, OffsetRange(copied.start, decided))
        yield from _counted(archived_records(self.committed, tp, copied.start, decided), noted)
        if view is None or end <= decided:
            return
        # A committed reader ends at the first open transaction. The segments from there on are
        # enough to find the hidden records: a transaction with records there has its marker there
        # too, or none.
        hidden = HiddenOffsets(self._hidden(view, copied, decided))
        reader = self._readers[IsolationLevel.READ_UNCOMMITTED]
        for records in archived_records(reader, tp, max(copied.start, decided), end):
            shown = [not hidden.has(offset) for offset in records.column("offset").to_pylist()]
            yield records.filter(pa.array(shown, type=pa.bool_()))

    def _noted(
        self, tp: TopicPartition, view: ArchiveView, wanted: OffsetRange
    ) -> list[_NotedCount]:
        """Check the heads of the segments with wanted offsets, one request each.

        Returns:
            The recorded numbers of records of the segments whose offsets are all wanted.
        """
        store = self._archive.store(tp.topic)

        def check(log: StoredLog) -> _NotedCount | None:
            until = view.until(log.base_offset)
            if until <= wanted.start or log.base_offset >= wanted.end:
                return None
            if isinstance(log, PackedLog):
                return None  # nothing notes the number of its records
            try:
                head = store.head_object(log.key)
            except ObjectNotFoundError:
                return None  # reading shows what has happened
            if head.etag != log.row.etag:
                return None  # as above
            offsets = OffsetRange(Offset(log.base_offset), until)
            problem = mismatch(head)
            if problem is not None:
                raise DamagedArchiveError(problem, log.key, head.size, offsets)
            records = noted_records(head)
            is_inside = wanted.start <= log.base_offset and until <= wanted.end
            # With an overlapping segment behind it, the reader takes some records from that.
            if records is None or not is_inside or noted_next_offset(head) != until:
                return None
            return _NotedCount(log.key, head.size, offsets, records)

        with ThreadPoolExecutor(_AT_ONCE, "restore-heads") as pool:
            return [count for count in pool.map(check, view.logs) if count is not None]

    def _hidden(self, view: ArchiveView, copied: CopiedRange, decided: Offset) -> list[OffsetRange]:
        """Return the offsets of aborted and undecided transactions from `decided` on."""
        first = view.holder(decided)
        logs = [log for log in view.logs if first is None or log.base_offset >= first.base_offset]
        read = range_reader(self._archive, copied.source.topic)

        def chunks(log: StoredLog) -> Iterator[bytes]:
            for start in range(0, log.size, _RANGE_BYTES):
                yield read(log.row, start, min(start + _RANGE_BYTES, log.size))

        def counting(log: StoredLog) -> OffsetRange:
            # A range of a pack can begin within another one, and its rest may be stale.
            end = log.end if isinstance(log, PackedLog) else view.end
            return OffsetRange(Offset(log.base_offset), end)

        return hidden_ranges(LogBytes(log.key, chunks(log), counting(log)) for log in logs)


def _counted(
    every: Iterable[pa.RecordBatch], noted: Sequence[_NotedCount]
) -> Iterator[pa.RecordBatch]:
    """Yield the records; at the end, compare their number in each segment with the noted one."""
    starts = np.array([int(count.offsets.start) for count in noted], dtype=np.int64)
    ends = np.array([int(count.offsets.end) for count in noted], dtype=np.int64)
    found = np.zeros(len(noted), dtype=np.int64)
    for records in every:
        offsets = records.column("offset").to_numpy()
        found += np.searchsorted(offsets, ends) - np.searchsorted(offsets, starts)
        yield records
    for count, actual in zip(noted, found.tolist(), strict=True):
        if actual != count.records:
            message = (
                f"{count.key} has {actual} records, but {count.records} were archived, in the "
                f"offsets {count.offsets}"
            )
            raise DamagedArchiveError(message, count.key, count.size, count.offsets)


class TargetRecords(Protocol):
    """Consumes the target."""

    def records(
        self, tp: TopicPartition, start: int, end: int, isolation: IsolationLevel
    ) -> Iterator[pa.RecordBatch]:
        """Yield what a consumer gets in [`start`, `end`), or up to the end of the partition."""
        ...


def check_copy(  # noqa: PLR0913 -- both sides, and how to compare them
    copied: CopiedRange,
    offsets: OffsetMap,
    log_start: Offset,
    archived: Iterator[pa.RecordBatch],
    brokers: TargetRecords,
    *,
    with_timestamps: bool = True,
    progress: Callable[[int], None] = lambda _: None,
) -> CheckedCopy:
    """Compare what read-committed consumers get from an archive and from its copy.

    The offset map gives the source offset of each target record. Number of records, first and last
    source offset, and a checksum over source offset, timestamp, key, value and headers must be
    equal, and source offsets must rise.

    Args:
        copied: The range that was copied.
        offsets: The copy's offset map.
        log_start: Log start offset of the target partition.
        archived: The records that the copy must have.
        brokers: Consumes the target.
        with_timestamps: False if the target was allowed to replace timestamps.
        progress: Called with the number of records read since the last call, on either side.

    Raises:
        SidetierError: The archive or the target cannot be read.
    """
    expected, actual = Digest(), Digest()
    for records in archived:
        ours = records.column("offset").to_pylist()
        expected.add(_comparable(records, ours, with_timestamps=with_timestamps))
        progress(records.num_rows)
    problems = []
    for records, sources in _consumed(copied, offsets, log_start, brokers):
        problem = _order_problem(copied.target, records, sources, actual.last_offset)
        if problem is not None:
            problems.append(problem)
            break
        actual.add(_comparable(records, sources, with_timestamps=with_timestamps))
        progress(records.num_rows)
    difference = expected.difference(actual)
    if not problems and difference is not None:
        problems.append(f"{copied.target}: {difference} (source offsets)")
    return CheckedCopy(copied.target, expected.records, tuple(problems))


def _consumed(
    copied: CopiedRange, offsets: OffsetMap, log_start: Offset, brokers: TargetRecords
) -> Iterator[tuple[pa.RecordBatch, list[Offset | None]]]:
    """Yield the target's records, with the source offset of each; None if it has none."""
    target_range = offsets.target_range(copied.start, copied.end)
    if target_range is None:
        return
    first, end = target_range
    # Retention on the target may have deleted the first records; the digests then differ.
    for records in brokers.records(
        copied.target, max(first, log_start), end, IsolationLevel.READ_COMMITTED
    ):
        targets = records.column("offset").to_pylist()
        yield records, [offsets.source_of(target) for target in targets]


def _order_problem(
    tp: TopicPartition,
    records: pa.RecordBatch,
    sources: list[Offset | None],
    last: int | None,
) -> str | None:
    """Return why these are not the copied records in source order; None if they are."""
    before = -1 if last is None else last
    for target, source in zip(records.column("offset").to_pylist(), sources, strict=True):
        if source is None:
            return f"{tp}: the record at offset {target} is not one that was copied"
        if source <= before:
            return (
                f"{tp}: the record at offset {target} is the copy of source offset {source}, and "
                f"comes after that of {before}"
            )
        before = source
    return None


def _comparable(
    records: pa.RecordBatch, sources: list[Offset | None], *, with_timestamps: bool
) -> pa.RecordBatch:
    """Return the records with source offsets, without the columns that a copy may change."""
    columns = {name: records.column(name) for name in COLUMNS}
    columns["offset"] = pa.array(sources, type=columns["offset"].type)
    # LogAppendTime on the source becomes CreateTime on the copy.
    same = ("timestamp_type",) if with_timestamps else ("timestamp_type", "timestamp")
    for name in same:
        columns[name] = pa.array([0] * records.num_rows, type=columns[name].type)
    return pa.RecordBatch.from_pydict(columns)
