"""Move segments between pins and the spool: link pinned segments into the spool, and pin segments
that an earlier process has left there.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

import structlog

from sidetier.config.startup import META_PROPERTIES
from sidetier.segments.errors import SegmentError, SegmentGoneError
from sidetier.segments.names import DirectoryState, FileKind, parse_partition_directory
from sidetier.segments.offsets import UNKNOWN_EPOCH, TopicPartition
from sidetier.uploader.pinning.pins import SpooledFiles, pin
from sidetier.uploader.pinning.spool import Spool, SpooledSegment, spooled_in, sweep
from sidetier.uploader.pinning.table import PinTable
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.segment import Timeline, TrackedSegment
from sidetier.uploader.watching.disk import topic_id_in

log: Final = structlog.get_logger()

_OF_THE_BROKER: Final = frozenset({DirectoryState.LIVE, DirectoryState.FUTURE})
"""Directories whose partition the broker has, or is copying to another log dir."""


def take_spooled(
    spool: Spool, partition: Partition, pins: PinTable, timeline: Timeline, retention: float
) -> None:
    """Pin the segments of a partition that an earlier process has left in the spool.

    This happens once, before the first listing of the partition's directory is applied: the listing
    then drops segments that truncation has removed in the meantime. A spool that cannot be read is
    read again before the next listing.
    """
    if partition.spool is not None or not partition.directory_state.identified:
        return
    if partition.directory is None or partition.topic_id is None:
        return
    for place in spool.places(partition.directory, partition.topic_id):
        try:
            for spooled in spooled_in(place):
                _take(spooled, partition, pins, replace(timeline), retention)
            # A damaged file loses only the remembered epochs. Segments with a mark still count as
            # committed.
            with suppress(SegmentError):
                partition.epochs.recall(place)
        except OSError as error:
            log.warning("spool.unreadable", path=place, error=str(error))
            return
        spool.untaken.pop(place, None)
    partition.spool_taken(spool.place(partition.directory, partition.topic_id))


def _take(
    spooled: SpooledSegment,
    partition: Partition,
    pins: PinTable,
    timeline: Timeline,
    retention: float,
) -> None:
    base = spooled.segment.base_offset
    known = partition.log.tracked.get(base)
    if known is None:
        tracked = pins.track_spooled(partition.directory or "", spooled, timeline, retention)
        if tracked is not None:
            partition.track(tracked)
    elif known.spooled is None:
        known.keep_in(spooled)
    elif known.spooled != spooled:
        spooled.remove()  # the same records, from a log dir that the partition has left


def keep_unstored(spool: Spool, partition: Partition) -> None:
    """Link every segment that is not stored into the spool, whether or not it is pinned.

    Segments of a followed partition are linked only while some of them are at risk.
    """
    if partition.spool is None or partition.follows_safely:
        return
    if partition.log.tracked:
        try:
            # Before the links: after a kill in between, the saved epochs must cover all linked
            # segments.
            partition.epochs.save(partition.spool)
        except OSError as error:
            log.warning("spool.failed", path=partition.spool, error=str(error))
    for tracked in partition.log.tracked.values():
        if tracked.spooled is None:
            tracked.take_spooled(_keep(spool, partition.spool, partition, tracked))
        if tracked.spooled is not None and tracked.committed:
            _mark_committed(tracked.spooled)


def _mark_committed(spooled: SpooledFiles) -> None:
    """Mark a segment as committed.

    If this fails, only the broker's checkpoint can prove it after a restart.
    """
    try:
        if not spooled.is_committed():
            spooled.mark_committed()
    except OSError as error:
        log.warning("spool.failed", path=spooled.directory, error=str(error))


def _keep(
    spool: Spool, place: str, partition: Partition, tracked: TrackedSegment
) -> SpooledSegment | None:
    if tracked.pinned is not None:
        return spool.keep(place, tracked.pinned)
    try:  # too many files are open to keep this one open
        briefly = pin(partition.directory or "", tracked.segment)
    except (SegmentGoneError, OSError):
        return None
    try:
        return spool.keep(place, briefly)
    finally:
        briefly.close()


def begin(spool: Spool, log_dirs: Iterable[str]) -> None:
    """Find the segments that an earlier process has left in the spool. Call it first at a start.

    The segments become `Spool.untaken`. Those of partitions that this broker no longer has are
    removed, but only if every log dir can be read: log dirs can share a spool, and a partition can
    move between them.
    """
    on_disk = _topic_ids(log_dirs)
    for home in spool.homes:
        for tp, place, topic_id in _places(home):
            # In doubt the links stay: they are what a restart is meant to save.
            wanted = on_disk is None or bool(on_disk.get(str(tp), set()) & {None, topic_id})
            try:
                if wanted:
                    sweep(place)
                    spool.untaken[place] = _left_in(place, tp, topic_id)
                else:
                    _remove_all(place)
            except OSError as error:
                log.warning("spool.unreadable", path=place, error=str(error))
    _log_left(spool.untaken.values())


def _topic_ids(log_dirs: Iterable[str]) -> dict[str, set[str | None]] | None:
    """Return the topic ids of each partition in the log dirs.

    Returns:
        Topic ids by partition; an id is None if `partition.metadata` does not give it. None if a
        log dir cannot be read, or is an empty mount point: a missing partition proves nothing then.
    """
    topic_ids: dict[str, set[str | None]] = {}
    for log_dir in log_dirs:
        try:
            names = os.listdir(log_dir)
        except OSError:
            return None
        if META_PROPERTIES not in names:
            return None
        for name in names:
            parsed = parse_partition_directory(name)
            if parsed is not None and parsed.state in _OF_THE_BROKER:
                topic_id = topic_id_in(os.path.join(log_dir, name))
                topic_ids.setdefault(str(parsed.topic_partition), set()).add(topic_id)
    return topic_ids


def _places(home: str) -> Iterator[tuple[TopicPartition, str, str]]:
    """Yield each partition's directory in the spool, with its topic id. Ignore other names."""
    for name in _names(home):
        parsed = parse_partition_directory(name)
        if parsed is None or parsed.state is not DirectoryState.LIVE:
            continue
        for topic_id in _names(os.path.join(home, name)):
            yield parsed.topic_partition, os.path.join(home, name, topic_id), topic_id


def _left_in(place: str, tp: TopicPartition, topic_id: str) -> Partition:
    """Return the segments of a partition that an earlier process has left, without pins."""
    left = Partition(tp, UNKNOWN_EPOCH, topic_id)
    for spooled in spooled_in(place):
        status = os.stat(spooled.path(FileKind.LOG))
        left.track(
            TrackedSegment(
                spooled.segment, status.st_size, status.st_mtime_ns, Timeline(0.0), spooled=spooled
            )
        )
    return left


def _remove_all(place: str) -> None:
    """Remove the segments of a deleted topic, or of a replica that has left this broker.

    Raises OSError.
    """
    left = list(spooled_in(place))
    for spooled in left:
        spooled.remove()
    sweep(place)
    log.warning("spool.dropped", path=place, segments=len(left))


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        log.warning("spool.unreadable", path=directory, error=str(error))
        return []


def _log_left(untaken: Iterable[Partition]) -> None:
    tracked = [segment for partition in untaken for segment in partition.log.tracked.values()]
    if tracked:
        size = sum(segment.size for segment in tracked)
        log.info("spool.found", segments=len(tracked), bytes=size)
