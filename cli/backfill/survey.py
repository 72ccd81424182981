"""Plan a backfill from the log dirs and the store, without writing anything."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Final

from sidetier.cli.backfill.plan import BackfillPlan, Due, PartitionPlan, plan_all
from sidetier.config.model import Config
from sidetier.leadership.port import TopicConfig
from sidetier.segments.errors import ArchiveError, LeadershipError, SegmentError
from sidetier.segments.keys import ArchiveLayout, parse_object_key
from sidetier.segments.listing import ClosedSegment, PartitionListing, read_listing
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.archive.archive_state import ArchiveState, Leader
from sidetier.uploader.archive.archive_writer import ArchiveWriter
from sidetier.uploader.archive.metadata_cache import MetadataCache
from sidetier.uploader.gates.cleaner import CleanerCheckpoints
from sidetier.uploader.gates.high_watermark import Closed, CommittedGate, HighWatermarkSource
from sidetier.uploader.gates.topic_rules import refusal_of
from sidetier.uploader.led_partitions import latest_epoch, topic_id_in
from sidetier.uploader.state.plan import PlannedSegment, available
from sidetier.uploader.watching.disk import LogDirPartitions, list_names

_AT_ONCE: Final = 16
"""Number of archives that are read in parallel."""

StoreOf = Callable[[str], RemoteStorage | None]
"""Returns the store of a topic; None if it does not exist yet, so nothing is stored in it."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What is surveyed: the partitions of the log dirs, and the sources to ask about them."""

    config: Config
    layout: ArchiveLayout
    broker_id: BrokerId
    found: LogDirPartitions
    store_of: StoreOf
    topic_configs: Mapping[str, TopicConfig | None] = field(default_factory=dict)
    high_watermarks: HighWatermarkSource | None = None


@dataclass(frozen=True, slots=True)
class _OnDisk:
    """Listing of one partition's directory."""

    tp: TopicPartition
    directory: str
    epoch: LeaderEpoch
    listing: PartitionListing
    segments: tuple[ClosedSegment, ...]


def survey(ground: Ground) -> BackfillPlan:
    """Plan each partition.

    The store gets one request for each partition with a closed segment, and a listing above the
    archive end for each partition with due segments.

    Raises:
        StorageError: The store refuses, or does not answer.
    """
    listed = [_look(tp, directory) for tp, directory in ground.found.directories.items()]
    on_disk = [entry for entry in listed if isinstance(entry, _OnDisk)]
    unread = [entry for entry in listed if isinstance(entry, PartitionPlan)]
    unread += [PartitionPlan(tp, problem=why) for tp, why in ground.found.refused.items()]
    gate = _gate(ground, on_disk)
    with ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="survey") as pool:
        read = list(pool.map(lambda partition: _read_archive(ground, partition), on_disk))
        cleaner = CleanerCheckpoints(monotonic)
        planned = [
            _plan(ground, partition, archive, gate, cleaner)
            if isinstance(archive, ArchiveState)
            else archive
            for partition, archive in zip(on_disk, read, strict=True)
        ]
        plans = [*pool.map(lambda entry: _with_present(ground, entry), planned), *unread]
    plans.sort(key=lambda plan: plan.topic_partition)
    return BackfillPlan(tuple(plans), tuple(ground.found.unreadable.values()))


def _look(tp: TopicPartition, directory: str) -> _OnDisk | PartitionPlan:
    """List the directory; return a finished plan if it cannot be read."""
    try:
        listing = read_listing(list_names(directory))
    except OSError as error:
        return PartitionPlan(tp, problem=f"{directory} cannot be read: {error.strerror}")
    return _OnDisk(tp, directory, latest_epoch(directory), listing, available(listing, ()))


def _gate(ground: Ground, on_disk: Sequence[_OnDisk]) -> CommittedGate:
    config = ground.config.uploader.high_watermark
    gate = CommittedGate(monotonic, use_checkpoint=config.checkpoint)
    partitions = [partition.tp for partition in on_disk if partition.segments]
    if ground.high_watermarks is not None and partitions:
        try:
            asked_at = monotonic()
            gate.learn(ground.high_watermarks.high_watermarks(partitions), asked_at)
        except LeadershipError:
            # the broker's checkpoint may suffice; segments above it show as not committed
            return gate
    return gate


def _read_archive(ground: Ground, found: _OnDisk) -> ArchiveState | PartitionPlan:
    """Return the state of the archive; a finished plan if it cannot be read.

    The state is empty if there is no store yet, or no closed segment to compare with.
    """
    store = ground.store_of(found.tp.topic)
    if store is None or not found.segments:
        return ArchiveState()
    archive_writer = ArchiveWriter(store, ground.layout, MetadataCache(0))
    leader = Leader(ground.broker_id, found.epoch, topic_id_in(found.directory))
    try:
        return archive_writer.load(found.tp, leader)
    except (ArchiveError, SegmentError) as error:
        start = Offset(found.segments[0].base_offset)
        return PartitionPlan(found.tp, start, _closed_end(found), problem=str(error))


def _plan(
    ground: Ground,
    found: _OnDisk,
    archive: ArchiveState,
    gate: CommittedGate,
    cleaner: CleanerCheckpoints,
) -> PartitionPlan:
    segments = found.segments
    if not segments:
        return PartitionPlan(found.tp, closed_end=_closed_end(found))
    start = Offset(segments[0].base_offset)
    after = start if archive.next_offset is None else archive.next_offset
    planned, gaps = plan_all(after, segments, found.listing.active)
    if gaps and ground.config.uploader.on_gap == "halt":
        planned = [segment for segment in planned if segment.start < gaps[0].start]
    due = [_due(found, segment, gate) for segment in planned]
    config = ground.topic_configs.get(found.tp.topic) or TopicConfig(
        compacted=cleaner.has_cleaned(str(Path(found.directory).parent), found.tp, start)
    )
    refuse_compacted = ground.config.topics.compacted == "refuse"
    return PartitionPlan(
        topic_partition=found.tp,
        log_start=start,
        closed_end=_closed_end(found),
        next_offset=archive.next_offset,
        due=tuple(segment for segment in due if segment is not None),
        gaps=tuple(gaps),
        stored_segments=len(segments) - len(planned),
        refused=refusal_of(found.tp.topic, config, refuse_compacted=refuse_compacted),
    )


def _closed_end(found: _OnDisk) -> Offset | None:
    active = found.listing.active
    return None if active is None else Offset(active)


def _due(found: _OnDisk, planned: PlannedSegment, gate: CommittedGate) -> Due | None:
    segment = planned.segment
    name = segment_file_name(segment.base_offset, FileKind.LOG, deleted=segment.marked_for_deletion)
    try:
        status = Path(found.directory, name).stat()
    except OSError:
        return None  # the broker has deleted it since the listing
    end = Offset(segment.next_base or planned.start)
    closed = Closed(
        found.tp,
        str(Path(found.directory).parent),
        end,
        status.st_mtime_ns,
        found.epoch,
    )
    return Due(segment.base_offset, end, status.st_size, gate.is_committed(closed))


def _with_present(ground: Ground, one: PartitionPlan) -> PartitionPlan:
    store = ground.store_of(one.topic_partition.topic)
    if store is None or not one.has_work:
        return one
    stored = _logs_above(store, ground.layout, one)
    return replace(one, present=sum(due.base_offset in stored for due in one.due))


def _logs_above(store: RemoteStorage, layout: ArchiveLayout, one: PartitionPlan) -> set[BaseOffset]:
    """Return the base offsets of stored `.log`s from the first due segment on."""
    prefix = layout.partition_prefix(one.topic_partition)
    first = one.due[0].base_offset if one.due else BaseOffset(0)
    start = f"{prefix}{first:020d}"  # sorts before every file of that segment
    parsed = (
        parse_object_key(r.key, prefix) for r in store.list_objects(prefix, start_after=start)
    )
    return {parts[0] for parts in parsed if parts is not None and parts[1] is FileKind.LOG}
