"""The spool beside the pins: what is pinned is kept there, what an earlier life kept is pinned."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import structlog

from sidetier.config.uploader import PinsConfig
from sidetier.segments.errors import SegmentGoneError
from sidetier.segments.names import DirectoryState, FileKind, parse_partition_directory
from sidetier.segments.offsets import TopicPartition
from sidetier.uploader.leads import topic_id_in
from sidetier.uploader.partition import Partition
from sidetier.uploader.pinning.bounds import bytes_short
from sidetier.uploader.pinning.pins import pin
from sidetier.uploader.pinning.policy import HeldPin, Standing, Urgency, pins_to_release
from sidetier.uploader.pinning.spool import Spool, SpooledSegment, spooled_in, sweep
from sidetier.uploader.pinning.table import PinTable
from sidetier.uploader.tracked import Timeline, Tracked

log: Final = structlog.get_logger()


def take_spooled(
    spool: Spool, partition: Partition, pins: PinTable, timeline: Timeline, retention: float
) -> None:
    """Pin, once, what an earlier life kept of a partition; before its directory is observed, which
    drops what truncation has thrown away since.
    """
    if partition.spool is not None or not partition.identified:
        return
    if partition.directory is None or partition.topic_id is None:
        return
    partition.spool = spool.place(partition.directory, partition.topic_id)
    for spooled in spool.kept(partition.spool) if partition.spool is not None else ():
        base = spooled.segment.base_offset
        known = partition.tracked.get(base)
        if known is not None:
            known.spooled = spooled
            continue
        tracked = pins.track_spooled(partition.directory, spooled, replace(timeline), retention)
        if tracked is not None:
            tracked.followed = partition.follows
            partition.tracked[base] = tracked


def keep_unstored(spool: Spool, partition: Partition) -> None:
    """Give every segment that is not stored its names in the spool, pinned or not; of a followed
    partition while a part of it is at risk.
    """
    if partition.spool is None or (partition.follows and not partition.at_risk):
        return
    for tracked in partition.tracked.values():
        if tracked.spooled is None:
            tracked.spooled = _keep(spool, partition.spool, partition, tracked)


def _keep(
    spool: Spool, place: str, partition: Partition, tracked: Tracked
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


def begin(spool: Spool, config: PinsConfig) -> None:
    """Before anything else at a start: take away what is not wanted any more, or too much. The free
    disk of the broker wins, as it does over pins.
    """
    rows: dict[HeldPin, SpooledSegment] = {}
    released: list[HeldPin] = []
    for log_dir, home in spool.homes.items():
        held = dict(_held(log_dir, home))
        let_go = pins_to_release(list(held), bytes_short(log_dir, config))
        released += let_go
        for row in let_go:
            held.pop(row).remove()
        rows |= held
    excess = sum(row.size for row in rows) - config.max_deleted_bytes
    for row in pins_to_release(list(rows), excess):
        released.append(row)
        rows.pop(row).remove()
    _tell(released, rows)


def _held(log_dir: str, home: str) -> Iterable[tuple[HeldPin, SpooledSegment]]:
    """What only the spool keeps of the partitions of a log dir; what is of none is removed."""
    for name in _names(home):
        parsed = parse_partition_directory(name)
        if parsed is None or parsed.state is not DirectoryState.LIVE:
            continue  # not ours
        directory = os.path.join(log_dir, name)
        for topic_id in _names(os.path.join(home, name)):
            place = os.path.join(home, name, topic_id)
            if _is_wanted(log_dir, directory, topic_id):
                sweep(place)
                yield from _rows(parsed.topic_partition, place)
            else:
                _remove_all(place)


def _is_wanted(log_dir: str, directory: str, topic_id: str) -> bool:
    """Where the disk or the file that tells the topic's id cannot be read, nothing is removed."""
    if not os.path.isdir(directory):
        return not os.path.isdir(log_dir)
    found = topic_id_in(directory)
    return found is None or found == topic_id


def _rows(tp: TopicPartition, place: str) -> Iterable[tuple[HeldPin, SpooledSegment]]:
    for spooled in spooled_in(place):
        if spooled.is_last_name():
            found = os.stat(spooled.path(FileKind.LOG))
            standing = Standing(
                followed=False, urgency=Urgency(live=False, expires_ns=found.st_mtime_ns)
            )
            yield HeldPin(tp, spooled.segment.base_offset, found.st_size, standing), spooled


def _remove_all(place: str) -> None:
    """Of a topic that was deleted, or of a replica that has left this broker."""
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


def _tell(released: Iterable[HeldPin], rows: Mapping[HeldPin, SpooledSegment]) -> None:
    for row in released:
        tp = row.topic_partition
        log.error(
            "pin.released",
            topic=tp.topic,
            partition=tp.partition,
            base_offset=row.base_offset,
            bytes=row.size,
        )
    if rows:
        size = sum(row.size for row in rows)
        log.info("spool.found", segments=len(rows), bytes=size)
