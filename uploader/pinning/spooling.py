"""The spool beside the pins: what is pinned is kept there, what an earlier life kept is pinned."""

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
from sidetier.uploader.led_partitions import topic_id_in
from sidetier.uploader.pinning.pins import SpooledFiles, pin
from sidetier.uploader.pinning.spool import Spool, SpooledSegment, spooled_in, sweep
from sidetier.uploader.pinning.table import PinTable
from sidetier.uploader.state.partition import Partition
from sidetier.uploader.state.segment import Timeline, TrackedSegment

log: Final = structlog.get_logger()

_OF_THE_BROKER: Final = frozenset({DirectoryState.LIVE, DirectoryState.FUTURE})
"""Directories whose partition the broker has, or is copying to another log dir."""


def take_spooled(
    spool: Spool, partition: Partition, pins: PinTable, timeline: Timeline, retention: float
) -> None:
    """Pin, once, what an earlier life kept of a partition; before its directory is observed, which
    drops what truncation has thrown away since. A spool that cannot be read is read again at the
    next look.
    """
    if partition.spool is not None or not partition.identified:
        return
    if partition.directory is None or partition.topic_id is None:
        return
    for place in spool.places(partition.directory, partition.topic_id):
        try:
            for spooled in spooled_in(place):
                _take(spooled, partition, pins, replace(timeline), retention)
            with suppress(SegmentError):  # damaged: each segment's own mark tells, or nothing
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
    known = partition.tracked.get(base)
    if known is None:
        tracked = pins.track_spooled(partition.directory or "", spooled, timeline, retention)
        if tracked is not None:
            partition.track(tracked)
    elif known.spooled is None:
        known.keep_in(spooled)
    elif known.spooled != spooled:
        spooled.remove()  # of the same records: a log dir that the partition has left


def keep_unstored(spool: Spool, partition: Partition) -> None:
    """Give every segment that is not stored its names in the spool, pinned or not; of a followed
    partition while a part of it is at risk.
    """
    if partition.spool is None or (partition.follows and not partition.at_risk):
        return
    if partition.tracked:
        try:
            # First: the epochs of what is linked are those of this listing or of an earlier one.
            partition.epochs.save(partition.spool)
        except OSError as error:
            log.warning("spool.failed", path=partition.spool, error=str(error))
    for tracked in partition.tracked.values():
        if tracked.spooled is None:
            tracked.take_spooled(_keep(spool, partition.spool, partition, tracked))
        if tracked.spooled is not None and tracked.committed:
            _mark_committed(tracked.spooled)


def _mark_committed(spooled: SpooledFiles) -> None:
    """Without the mark the segment is only as good as what the broker's checkpoint tells later."""
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
    try:  # there was no room to hold it open
        briefly = pin(partition.directory or "", tracked.segment)
    except (SegmentGoneError, OSError):
        return None
    try:
        return spool.keep(place, briefly)
    finally:
        briefly.close()


def begin(spool: Spool, log_dirs: Iterable[str]) -> None:
    """At a start, before anything else: find what an earlier life has left in the spool, as
    `Spool.untaken`, and remove what belongs to no partition of this broker.

    Names are removed only if every log dir can be read, and none of them holds a partition of that
    topic id: log dirs share a spool, and a partition can move between them.
    """
    on_disk = _topic_ids(log_dirs)
    for home in spool.homes:
        for tp, place, topic_id in _places(home):
            wanted = on_disk is None or bool(on_disk.get(str(tp), set()) & {None, topic_id})
            try:
                if wanted:
                    sweep(place)
                    spool.untaken[place] = _left_in(place, tp, topic_id)
                else:
                    _remove_all(place)
            except OSError as error:
                log.warning("spool.unreadable", path=place, error=str(error))
    _tell(spool.untaken.values())


def _topic_ids(log_dirs: Iterable[str]) -> dict[str, set[str | None]] | None:
    """The topic ids of each partition in the log dirs, None where a file does not tell. None as a
    whole where a log dir cannot be read, or is an empty mount point.
    """
    found: dict[str, set[str | None]] = {}
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
                found.setdefault(str(parsed.topic_partition), set()).add(topic_id)
    return found


def _places(home: str) -> Iterator[tuple[TopicPartition, str, str]]:
    """Each partition's directory in the spool, with the topic id; what is not ours is left out."""
    for name in _names(home):
        parsed = parse_partition_directory(name)
        if parsed is None or parsed.state is not DirectoryState.LIVE:
            continue
        for topic_id in _names(os.path.join(home, name)):
            yield parsed.topic_partition, os.path.join(home, name, topic_id), topic_id


def _left_in(place: str, tp: TopicPartition, topic_id: str) -> Partition:
    """What an earlier life has left of a partition."""
    left = Partition(tp, UNKNOWN_EPOCH, topic_id)
    for spooled in spooled_in(place):
        found = os.stat(spooled.path(FileKind.LOG))
        left.track(
            TrackedSegment(
                spooled.segment, found.st_size, found.st_mtime_ns, Timeline(0.0), spooled=spooled
            )
        )
    return left


def _remove_all(place: str) -> None:
    """Of a topic that was deleted, or of a replica that has left this broker; raises OSError."""
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


def _tell(untaken: Iterable[Partition]) -> None:
    tracked = [one for partition in untaken for one in partition.tracked.values()]
    if tracked:
        size = sum(one.size for one in tracked)
        log.info("spool.found", segments=len(tracked), bytes=size)
