"""Read from an archive what a plan needs: listings, ends, gaps, and where a time or offset cuts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from sidetier.archive.elsewhere import Elsewhere
from sidetier.archive.locate import IndexCache, Locator
from sidetier.archive.partition_archive import PartitionArchive
from sidetier.archive.ranged import range_reader
from sidetier.archive.stored_log import StoredLog
from sidetier.archive.times import SegmentTimes
from sidetier.archive.topics import cluster_prefixes, stored_partitions
from sidetier.archive.view import ArchiveView
from sidetier.mirror.hydrate.batch_scan import read_chunk, scan_batches
from sidetier.mirror.hydrate.plan import (
    HydratePlan,
    PlannedPartition,
    PlannedSegment,
    PlannedTopic,
    new_plan_id,
    plan_partition,
)
from sidetier.segments.errors import ConfigurationError, ObjectNotFoundError
from sidetier.segments.headers import BatchHeader
from sidetier.segments.names import is_internal_topic
from sidetier.segments.notes import MAX_TIMESTAMP_KEY
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.attempt import monotonic
from sidetier.storage.endpoints import ArchiveAccess
from sidetier.storage.layout_note import check_note, read_note

_AT_ONCE: Final = 32
_RANGE_BYTES: Final = 4 << 20
_INDEX_CACHE_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the plan ends; the archive's end where neither is given.

    Attributes:
        until_ms: records from the first one with this timestamp or a later one on are left out, in
            ms since 1970.
        offsets: the offset after the last, by partition; other partitions are planned whole.
    """

    until_ms: int | None = None
    offsets: Mapping[TopicPartition, Offset] | None = None


def archived_partitions(archive: ArchiveAccess) -> list[TopicPartition]:
    """Every partition that is stored, sorted.

    Raises:
        ConfigurationError: the archive has another layout than configured.
        StorageError: as the port says.
    """
    found = set()
    for endpoint in archive.provider.endpoints:
        store = archive.stores.at(endpoint)
        note = read_note(store, archive.layout)
        if note is not None:
            check_note(note, archive.layout, None)
        for prefix in cluster_prefixes(store, archive.layout):
            found |= {
                tp
                for tp in stored_partitions(store, archive.layout, prefix)
                if archive.store(tp.topic) is store
            }
    return sorted(found)


def make_plan(
    archive: ArchiveAccess,
    wanted: Callable[[str], bool],
    cut: Cut,
    definitions: Mapping[str, PlannedTopic],
) -> HydratePlan:
    """Plan every wanted topic of an archive.

    Args:
        archive: the archive.
        wanted: tells of a topic whether it is to be restored.
        cut: where to end.
        definitions: the topics of the lost cluster, from its snapshot; empty where there is none.
            Without it a topic has as many partitions as the archive shows.

    Raises:
        ConfigurationError: the layout is another one, or an offset was given for a partition that
            is not archived.
        StorageError: as the port says.
    """
    stored = [tp for tp in archived_partitions(archive) if wanted(tp.topic)]
    topics = _planned_topics(stored, definitions, wanted)
    _check_offsets(cut, stored)
    planned = partition_planner(archive, cut)
    every = [
        TopicPartition(topic, number)
        for topic, planned in sorted(topics.items())
        for number in range(planned.partitions)
    ]
    known = set(stored)

    def plan(tp: TopicPartition) -> PlannedPartition:
        if tp not in known:
            return plan_partition(tp, None)
        return planned(tp)

    with ThreadPoolExecutor(_AT_ONCE, "hydrate-plan") as pool:
        partitions = tuple(pool.map(plan, every))
    return HydratePlan(
        new_plan_id(), archive.layout.cluster, topics, partitions, until_ms=cut.until_ms
    )


def partition_planner(
    archive: ArchiveAccess, cut: Cut
) -> Callable[[TopicPartition], PlannedPartition]:
    """What plans one stored partition at a time; several threads may call it.

    It raises StorageError as the port says.
    """
    elsewhere = Elsewhere(archive)
    return lambda tp: _plan_stored(
        PartitionArchive(tp, archive, elsewhere, monotonic), archive, cut
    )


def _planned_topics(
    stored: Iterable[TopicPartition],
    definitions: Mapping[str, PlannedTopic],
    wanted: Callable[[str], bool],
) -> dict[str, PlannedTopic]:
    """The topics that are archived, and those of the snapshot that never had a closed segment."""
    topics = {
        name: known
        for name, known in definitions.items()
        if wanted(name) and not is_internal_topic(name)
    }
    for tp in stored:
        known = topics.get(tp.topic, PlannedTopic(0))
        if tp.partition >= known.partitions:
            topics[tp.topic] = PlannedTopic(
                tp.partition + 1, known.replication_factor, known.configs
            )
    return topics


def _check_offsets(cut: Cut, stored: Iterable[TopicPartition]) -> None:
    unknown = set(cut.offsets or ()) - set(stored)
    if unknown:
        raise ConfigurationError(
            f"an offset is given for {min(unknown)}, which is not archived or not selected"
        )


def _plan_stored(found: PartitionArchive, archive: ArchiveAccess, cut: Cut) -> PlannedPartition:
    view = found.look().view
    if view is None:
        return plan_partition(found.tp, None)
    last_ms = None
    if view.logs:
        last_ms = _largest_timestamp(found, view.logs[-1])
    return plan_partition(found.tp, view, found.gaps(), _end_of(found, archive, view, cut), last_ms)


def _largest_timestamp(found: PartitionArchive, log: StoredLog) -> int | None:
    """The largest timestamp of a segment as it was noted; None of Pinterest's."""
    try:
        noted = found.store.head_object(log.key).metadata.get(MAX_TIMESTAMP_KEY, "")
    except ObjectNotFoundError:
        return None
    return int(noted) if noted.isascii() and noted.isdecimal() else None


def _end_of(
    found: PartitionArchive, archive: ArchiveAccess, view: ArchiveView, cut: Cut
) -> Offset | None:
    """Where the partition is cut; None for its archive's end."""
    if cut.until_ms is not None:
        return first_batch_at(archive, found.tp, view, cut.until_ms)
    wanted = None if cut.offsets is None else cut.offsets.get(found.tp)
    return None if wanted is None else batch_border(archive, found.tp, view, wanted)


def first_batch_at(
    archive: ArchiveAccess, tp: TopicPartition, view: ArchiveView, timestamp_ms: int
) -> Offset | None:
    """The base offset of the first batch with a record of at least this time; None without any."""
    locator = Locator(IndexCache(_INDEX_CACHE_BYTES), _no_index)
    times = SegmentTimes(locator, range_reader(archive, tp.topic), {})
    for log in times.not_below(view, timestamp_ms):
        for header in headers_of(archive, tp, [log]):
            if header.max_timestamp >= timestamp_ms and header.next_offset > view.start:
                return header.base_offset
    return None


def batch_border(
    archive: ArchiveAccess, tp: TopicPartition, view: ArchiveView, offset: Offset
) -> Offset:
    """The offset, or where it lies inside a batch, that batch's base offset."""
    holder = view.holder(offset)
    if holder is not None:
        for header in headers_of(archive, tp, [holder]):
            if header.base_offset < offset < header.next_offset:
                return header.base_offset
            if header.base_offset >= offset:
                break
    return offset


def headers_of(
    archive: ArchiveAccess, tp: TopicPartition, logs: Sequence[StoredLog]
) -> Iterator[BatchHeader]:
    """The batch headers of stored segments, in order.

    Raises:
        DamagedSegmentError, UnsupportedFormatError: a segment is no sequence of batches.
        StorageError: as the port says.
    """
    for log in logs:
        segment = PlannedSegment(log.base_offset, log.key, log.row.etag, log.size)
        for _, header, _ in scan_batches(chunks_of(archive, tp, segment), log.key):
            yield header


def chunks_of(
    archive: ArchiveAccess, tp: TopicPartition, segment: PlannedSegment
) -> Iterator[bytearray]:
    """The bytes of an archived `.log`, in the planned version, one range after the other."""
    store = archive.store(tp.topic)
    deadline = archive.provider.endpoint(tp.topic).deadline
    for start in range(0, segment.size, _RANGE_BYTES):
        end = min(start + _RANGE_BYTES, segment.size)
        yield read_chunk(store, segment, start, end, deadline)


def _no_index(_key: str, _reason: str) -> None:
    """A segment without a usable index is read from its start, which costs only time."""
