"""Facts about consumer groups that skip records if they read from the brokers."""

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sidetier.cli.stores import open_every_store
from sidetier.config.model import Config
from sidetier.leadership.cluster_map import Cluster
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.trim.decision import retained_from
from sidetier.uploader.trim.groups_behind import (
    GroupInTopic,
    groups_behind,
    in_topics,
    with_archive,
)
from sidetier.uploader.trim.local_log import local_segments

_AT_ONCE: Final = 16
"""Maximum number of concurrent requests to the stores."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """Consumer groups with committed offsets in partitions that this host's broker leads.

    Attributes:
        below_log_start: Groups below a log start offset of the brokers, where the archive has some
            of the records in between.
        within_reach: Groups, without protected ones, that have not committed records which local
            retention deletes as soon as they are archived.
        problems: Why groups may be missing here.
    """

    below_log_start: tuple[GroupInTopic, ...] = ()
    within_reach: tuple[GroupInTopic, ...] = ()
    problems: tuple[str, ...] = ()


def gather_groups(
    config: Config, led: Mapping[TopicPartition, str], trimmed: Collection[str], cluster: Cluster
) -> GroupFacts:
    """Read the groups, if a log has lost records at its start, or loses some by local retention.

    Args:
        config: The sidecar's configuration, with `broker.bootstrap_servers`.
        led: The directories of the partitions that this host's broker leads.
        trimmed: Topics whose records local retention may delete.
        cluster: The brokers.
    """
    try:
        log_starts = {
            tp: log.start for tp, log in cluster.log_offsets(sorted(led)).items() if log.start
        }
        reach = {
            tp: end
            for tp, directory in led.items()
            if tp.topic in trimmed and (end := _reach(config, directory)) > log_starts.get(tp, 0)
        }
        return _gather(config, log_starts, reach) if log_starts or reach else GroupFacts()
    except SidetierError as error:
        return GroupFacts(problems=(str(error),))


def _reach(config: Config, directory: str) -> Offset:
    """Return the offset below which local retention deletes records; 0 if it is not known."""
    local = config.retention.local
    with suppress(OSError):  # the broker rolls or deletes segments
        segments = local_segments(directory)
        return retained_from(segments, local.age, local.bytes, SYSTEM_CLOCK.wall()) or Offset(0)
    return Offset(0)


def _gather(
    config: Config,
    log_starts: Mapping[TopicPartition, Offset],
    reach: Mapping[TopicPartition, Offset],
) -> GroupFacts:
    # Loads the client that reads groups: only where a log does not have all records.
    from sidetier.uploader.wiring import consumer_groups  # noqa: PLC0415

    source = consumer_groups(config)
    read = source.committed_offsets((), None)
    problems = [f"group {group}: {why}" for group, why in sorted(read.unread.items())]
    problems += [] if read.incomplete is None else [read.incomplete]
    below = list(groups_behind(log_starts, read.offsets))
    protects = config.retention.local.protects
    coming = [
        entry
        for entry in groups_behind(reach, read.offsets, lambda group: not protects(group))
        if entry.committed >= log_starts.get(entry.topic_partition, 0)
    ]
    try:
        below = with_archive(below, _archived(config, {entry.topic_partition for entry in below}))
    except SidetierError as error:
        problems.append(f"groups below a log start are not listed: {error}")
        below = []
    members = source.members({entry.group for entry in (*below, *coming)})
    return GroupFacts(
        tuple(in_topics(below, members)), tuple(in_topics(coming, members)), tuple(problems)
    )


def _archived(
    config: Config, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, OffsetRange]:
    """Return the archived ranges of these partitions. Raises SidetierError."""
    if not partitions:
        return {}
    with (
        open_every_store(config.with_short_timeouts()) as stores,
        ThreadPoolExecutor(_AT_ONCE, "doctor") as helpers,
    ):
        names = sorted(partitions)
        marks = helpers.map(lambda tp: stores.partition(tp).watermark(), names)
        return {
            tp: OffsetRange(mark.watermark.start_offset or Offset(0), mark.watermark.next_offset)
            for tp, mark in zip(names, marks, strict=True)
            if mark is not None and mark.watermark.next_offset is not None
        }
