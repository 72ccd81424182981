"""Read the input of a plan from an archive: listings, ends, gaps, and the offsets of a cut."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from operator import methodcaller
from typing import Final

from sidetier.archive.access import ArchiveAccess, range_reader
from sidetier.archive.locate import Locator
from sidetier.archive.objects.notes import noted_records
from sidetier.archive.objects.segment import StoredLog
from sidetier.archive.partition_archive import PartitionArchive
from sidetier.archive.reader.time_search import SegmentTimes
from sidetier.archive.settings_check import SettingsCheck
from sidetier.archive.topics import archived_partitions, count_partitions, numbers_by_topic
from sidetier.archive.view import ArchiveView
from sidetier.mirror.hydrate.batch_scan import check_end, read_chunk, scan_batches
from sidetier.mirror.hydrate.consistent_cut import (
    CLOCK_DIFFERENCE_MS,
    LONGEST_TRANSACTION_MS,
    ConsistentCut,
    PartitionTransactions,
    TransactionalBatch,
    consistent_cut,
    latest_marker_ms,
    time_needed,
    transactional_batches,
)
from sidetier.mirror.hydrate.plan import (
    HydratePlan,
    PlannedPartition,
    PlannedSegment,
    PlannedTopic,
    end_at,
    new_plan_id,
    plan_partition,
)
from sidetier.segments.errors import ConfigurationError, ObjectNotFoundError
from sidetier.segments.headers import BatchHeader
from sidetier.segments.names import is_internal_topic
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.transactions import Marker
from sidetier.storage.attempt import monotonic

_AT_ONCE: Final = 32
_RANGE_BYTES: Final = 4 << 20
_INDEX_CACHE_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Cut:
    """The end of a plan. If neither is given, it is the archive's end.

    Attributes:
        until_ms: The first record with this timestamp or a later one, in ms since 1970, and all
            records after it are left out.
        offsets: The end by partition, exclusive; other partitions are planned whole.
    """

    until_ms: int | None = None
    offsets: Mapping[TopicPartition, Offset] | None = None


def make_plan(
    archive: ArchiveAccess,
    wanted: Callable[[str], bool],
    cut: Cut,
    definitions: Mapping[str, PlannedTopic],
    *,
    is_transaction_consistent: bool = False,
) -> HydratePlan:
    """Plan every wanted topic of an archive.

    Args:
        archive: The archive.
        wanted: Returns whether to restore a topic.
        cut: The end of the plan.
        definitions: The topics of the lost cluster, from its snapshot; empty if there is none. A
            topic without a definition gets as many partitions as the archive shows.
        is_transaction_consistent: Whether to lower the ends until no transaction is half restored.

    Raises:
        DamagedSegmentError, UnsupportedFormatError: A segment that is read is not a sequence of
            batches.
        ConfigurationError: The layout is another one, an offset was given for a partition that is
            not archived, or a partition has a number that is too high.
        StorageError: As `RemoteStorage` documents.
    """
    stored = [tp for tp in archived_partitions(archive) if wanted(tp.topic)]
    topics = _planned_topics(stored, definitions, wanted)
    _check_offsets(cut, stored)
    plan_stored = _stored_planner(archive, cut)
    every = [
        TopicPartition(topic, number)
        for topic, planned in sorted(topics.items())
        for number in range(planned.partitions)
    ]
    known = set(stored)

    def plan(tp: TopicPartition) -> tuple[PlannedPartition, Offset]:
        return plan_stored(tp) if tp in known else (plan_partition(tp, None), Offset(0))

    report = None
    with ThreadPoolExecutor(_AT_ONCE, "hydrate-plan") as pool:
        planned_whole = list(pool.map(plan, every))
        ends = {whole.topic_partition: end for whole, end in planned_whole}
        if is_transaction_consistent:
            consistent = find_consistent_cut(
                archive, [whole for whole, _ in planned_whole], ends, pool
            )
            ends.update(consistent.ends)
            report = consistent.report
    partitions = tuple(end_at(whole, ends[whole.topic_partition]) for whole, _ in planned_whole)
    return HydratePlan(
        new_plan_id(),
        archive.layout.cluster,
        topics,
        partitions,
        until_ms=cut.until_ms,
        transactions=report,
    )


def partition_planner(
    archive: ArchiveAccess, cut: Cut
) -> Callable[[TopicPartition], PlannedPartition]:
    """Return a function that plans one stored partition; several threads may call it.

    The function raises StorageError as `RemoteStorage` documents.
    """
    plan = _stored_planner(archive, cut)
    return lambda tp: end_at(*plan(tp))


def _stored_planner(
    archive: ArchiveAccess, cut: Cut
) -> Callable[[TopicPartition], tuple[PlannedPartition, Offset]]:
    """Return a function that plans a stored partition whole and returns where it is cut."""
    settings_check = SettingsCheck(archive)
    return lambda tp: _plan_stored(
        PartitionArchive(tp, archive, settings_check, monotonic), archive, cut
    )


def _planned_topics(
    stored: Iterable[TopicPartition],
    definitions: Mapping[str, PlannedTopic],
    wanted: Callable[[str], bool],
) -> dict[str, PlannedTopic]:
    """Return the archived topics, and those of the snapshot that never had a closed segment."""
    topics = {
        name: known
        for name, known in definitions.items()
        if wanted(name) and not is_internal_topic(name)
    }
    for name, numbers in numbers_by_topic(stored).items():
        known = topics.get(name, PlannedTopic(0))
        count = count_partitions(name, numbers, known.partitions)
        topics[name] = PlannedTopic(count, known.replication_factor, known.configs)
    return topics


def _check_offsets(cut: Cut, stored: Iterable[TopicPartition]) -> None:
    unknown = set(cut.offsets or ()) - set(stored)
    if unknown:
        raise ConfigurationError(
            f"an offset is given for {min(unknown)}, which is not archived or not selected"
        )


def _plan_stored(
    stored: PartitionArchive, archive: ArchiveAccess, cut: Cut
) -> tuple[PlannedPartition, Offset]:
    view = stored.snapshot().view
    if view is None:
        return plan_partition(stored.tp, None), Offset(0)
    last_ms = None
    if view.logs:
        last_ms = stored.noted_largest(view.logs[-1])
    whole = plan_partition(
        stored.tp,
        view,
        stored.gaps(),
        last_timestamp_ms=last_ms,
        above_end=(log.base_offset for log in stored.above_end()),
    )
    end = _end_of(stored, archive, view, cut)
    return whole, view.end if end is None else end


def _end_of(
    stored: PartitionArchive, archive: ArchiveAccess, view: ArchiveView, cut: Cut
) -> Offset | None:
    """Return where the partition is cut; None for its archive's end."""
    if cut.until_ms is not None:
        return first_batch_at(stored, archive, view, cut.until_ms)
    wanted = None if cut.offsets is None else cut.offsets.get(stored.tp)
    return None if wanted is None else batch_border(archive, stored.tp, view, wanted)


def first_batch_at(
    stored: PartitionArchive, archive: ArchiveAccess, view: ArchiveView, timestamp_ms: int
) -> Offset | None:
    """Return the base offset of the first batch with a record of this time or later, or None."""
    tp = stored.tp
    locator = Locator(_INDEX_CACHE_BYTES, _no_index)
    times = SegmentTimes(locator, range_reader(archive, tp.topic), stored.noted_largest, {})
    for log in times.not_below(view, timestamp_ms):
        for header in headers_of(archive, tp, view, log):
            # Batches below the log start are in the first segment, but were deleted.
            if header.max_timestamp >= timestamp_ms and header.next_offset > view.start:
                return header.base_offset
    return None


def batch_border(
    archive: ArchiveAccess, tp: TopicPartition, view: ArchiveView, offset: Offset
) -> Offset:
    """Return the offset, or the base offset of the batch if the offset is inside one."""
    holder = view.holder(offset)
    if holder is not None:
        for header in headers_of(archive, tp, view, holder):
            if header.base_offset < offset < header.next_offset:
                return header.base_offset
            if header.base_offset >= offset:
                break
    return offset


def headers_of(
    archive: ArchiveAccess, tp: TopicPartition, view: ArchiveView, log: StoredLog
) -> Iterator[BatchHeader]:
    """Yield the batch headers of a stored segment, in order.

    Raises:
        DamagedSegmentError, UnsupportedFormatError: The segment is not a sequence of batches, or
            has lost the last ones.
        StorageError: As `RemoteStorage` documents.
    """
    segment = PlannedSegment(log.base_offset, log.key, log.row.etag, log.size)
    for header, _ in _whole(archive, tp, segment, view.until(log.base_offset)):
        yield header


def _whole(
    archive: ArchiveAccess, tp: TopicPartition, segment: PlannedSegment, until: int
) -> Iterator[tuple[BatchHeader, Marker]]:
    """Yield the header and marker of each batch; check the end."""
    reached = Offset(segment.base_offset)
    for _, header, marker in scan_batches(chunks_of(archive, tp, segment), segment.key):
        yield header, marker
        reached = header.next_offset
    check_end(archive.store(tp.topic), segment, reached, until)


def chunks_of(
    archive: ArchiveAccess, tp: TopicPartition, segment: PlannedSegment
) -> Iterator[bytearray]:
    """Yield the bytes of an archived `.log` in the planned version, one range after the other."""
    store = archive.store(tp.topic)
    deadline = archive.provider.endpoint(tp.topic).deadline
    for start in range(0, segment.size, _RANGE_BYTES):
        buffer = bytearray(min(_RANGE_BYTES, segment.size - start))
        read_chunk(store, segment, start, buffer, deadline)
        yield buffer


def may_have_transactions(
    archive: ArchiveAccess, tp: TopicPartition, segment: PlannedSegment
) -> bool:
    """Whether the segment may have transactional batches, according to its metadata.

    Raises:
        StorageError: As `RemoteStorage` documents.
    """
    try:
        return noted_records(archive.store(tp.topic).head_object(segment.key)) is None
    except ObjectNotFoundError:
        return True  # reading the segment reports the error


@dataclass(slots=True)
class _TransactionReader:
    """Reads the transactional batches around the end of a partition, segment by segment.

    Args:
        archive: The archive.
        plan: The partition as it is archived, without a cut.
        end: The requested end of the partition, exclusive.
    """

    archive: ArchiveAccess
    plan: PlannedPartition
    end: Offset
    batches: list[TransactionalBatch] = field(default_factory=list)
    _first: int = field(init=False)
    _next: int = field(init=False)

    def __post_init__(self) -> None:
        """Start at the end of the partition."""
        below = sum(segment.base_offset < self.end for segment in self.plan.segments)
        self._first = self._next = below

    @property
    def is_from_start(self) -> bool:
        """Whether the archive has nothing below the batches that were read."""
        return self._first == 0

    def read_back(self, until_ms: int | None) -> bool:
        """Read back to a marker that was written before this time, or by one segment if None.

        Returns:
            Whether anything was read.
        """
        did_read = False
        while self._first > 0 and not (did_read and until_ms is None):
            first = self._markers_ms(self.batches)
            if until_ms is not None and first is not None and first < until_ms:
                break
            self._first -= 1
            self.batches[:0] = self._read(self._first)
            did_read = True
        return did_read

    def read_on(self, latest_ms: int) -> bool:
        """Read forward to a marker that was written `CLOCK_DIFFERENCE_MS` after this time.

        Returns:
            Whether anything was read.
        """
        did_read = False
        while self._next < len(self.plan.segments):
            last = self._markers_ms(reversed(self.batches))
            if last is not None and last >= latest_ms + CLOCK_DIFFERENCE_MS:
                break
            self.batches += self._read(self._next)
            self._next += 1
            did_read = True
        return did_read

    def _read(self, index: int) -> list[TransactionalBatch]:
        tp = self.plan.topic_partition
        segment, until = next(islice(self.plan.segments_with_ends, index, None))
        if not may_have_transactions(self.archive, tp, segment):
            return []
        headers = _whole(self.archive, tp, segment, until)
        return [
            batch for batch in transactional_batches(headers) if batch.offset >= self.plan.start
        ]

    @staticmethod
    def _markers_ms(batches: Iterable[TransactionalBatch]) -> int | None:
        return next((batch.timestamp_ms for batch in batches if batch.is_marker), None)


def find_consistent_cut(
    archive: ArchiveAccess,
    partitions: Iterable[PlannedPartition],
    ends: Mapping[TopicPartition, Offset],
    pool: ThreadPoolExecutor,
) -> ConsistentCut:
    """Read as much of the archive as is needed to know that no transaction is half restored.

    Headers are read backwards from the ends, to the last decided marker of the partition where that
    marker is oldest (`time_needed`), and forwards for a minute of markers. Segments without
    transactions according to their metadata are not read. For each transaction in a partition
    within that time, one entry and its marker are kept in memory.

    Args:
        archive: The archive.
        partitions: The partitions as they are archived, without a cut.
        ends: The requested end of each partition, exclusive.
        pool: Reads several partitions at the same time.

    Raises:
        DamagedSegmentError, UnsupportedFormatError: A segment is not a sequence of batches.
        StorageError: As `RemoteStorage` documents.
    """
    readers = {
        plan.topic_partition: _TransactionReader(archive, plan, ends[plan.topic_partition])
        for plan in partitions
        if plan.segments
    }
    # Each round reads more of the archive, until the cut needs no part that was not read. It ends,
    # because each segment is read at most once.
    _read(pool, readers.values(), methodcaller("read_back", None))
    while True:
        known = {
            tp: PartitionTransactions(reader.batches, reader.is_from_start)
            for tp, reader in readers.items()
        }
        latest_ms = latest_marker_ms(known, ends)
        if latest_ms is not None and _read(
            pool, readers.values(), methodcaller("read_on", latest_ms)
        ):
            continue
        cut = consistent_cut(known, ends)
        needed = {
            tp: time_needed(transactions, tp, cut.ends[tp])
            for tp, transactions in known.items()
            if transactions.batches
        }
        unknown = [readers[tp] for tp, time in needed.items() if time is None]
        if _read(pool, unknown, methodcaller("read_back", None)):
            continue
        # A partition that was read to its start without a
        # marker sets no limit: the others are read whole.
        until_ms = min((time or 0 for time in needed.values()), default=0)
        until_ms -= CLOCK_DIFFERENCE_MS + LONGEST_TRANSACTION_MS
        if not _read(pool, readers.values(), methodcaller("read_back", until_ms)):
            return cut


def _read(
    pool: ThreadPoolExecutor,
    readers: Iterable[_TransactionReader],
    read: Callable[[_TransactionReader], bool],
) -> bool:
    """Call `read` for all readers; return whether any of them has read something."""
    # A list first: `any` alone would return while other readers still change.
    return any(list(pool.map(read, readers)))


def _no_index(_key: str, _reason: str) -> None:
    """Ignore the event: without a usable index, a segment is read from its start, only slower."""
