"""Translate a group's source offsets to target offsets by the map that the mirror keeps."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sidetier.mirror.copy.offset_map import (
    MapChunk,
    MapRecord,
    OffsetMap,
    decode_map_record,
    most_chunks,
    shorter_map,
)
from sidetier.mirror.offsets.groups import CommittedGroups, Groups
from sidetier.mirror.offsets.stored_map import StoredMap
from sidetier.mirror.partition_log import ClusterLog, PartitionLog
from sidetier.mirror.topics.rules import decode_lineage
from sidetier.segments.errors import MirrorError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.records import Record
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import CommittedOffset

COMMAND_RUNS: Final = 1 << 17
"""Runs of each partition that the command keeps in memory, about 20 MB."""
_ADD_AT_ONCE: Final = 4096
_OWN_GROUPS: Final = re.compile(r"sidetier-(drill|mirror|restore)-.*")


class Outcome(StrEnum):
    """What happens to a partition of a group on the target."""

    SET = "set"
    UNCHANGED = "unchanged"
    AHEAD = "kept: the group is further on the target"
    NOTHING_COPIED = "nothing was copied"


@dataclass(frozen=True, slots=True)
class TranslatedOffset:
    """The translated offset of one partition of a group.

    Attributes:
        source: The source partition.
        target: Its copy.
        source_offset: The group's committed offset on the source.
        target_offset: The matching offset on the target; None if nothing was copied.
        repeated: Number of source offsets right below `source_offset` that the group may read again
            on the target, because they were not copied yet or their part of the map was thinned.
        former_offset: The group's committed offset on the target before; None if there was none.
        outcome: What happens to the partition.
        metadata: The metadata of the group's committed offset.
    """

    source: TopicPartition
    target: TopicPartition
    source_offset: Offset
    target_offset: Offset | None
    repeated: int
    former_offset: Offset | None
    outcome: Outcome
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class TranslatedGroup:
    """A group with its translated offsets. If it has members on the target, none is set."""

    group: str
    partitions: tuple[TranslatedOffset, ...]
    has_members: bool = False


@dataclass(frozen=True, slots=True)
class MirroredPartition:
    """A target partition with the data to translate offsets.

    Attributes:
        source: The source partition.
        target: Its copy.
        mirrored_to: The map is complete up to this source offset, exclusive.
        map: The offset map of the partition.
        log_start: Log start offset of the target partition.
        topic_id: Kafka's id of the target topic; "" if the brokers have none.
    """

    source: TopicPartition
    target: TopicPartition
    mirrored_to: Offset
    map: OffsetMap
    log_start: Offset
    topic_id: str = ""


class OffsetMapReader:
    """Reads a mirror's map from the target's topic, each time from where it ended before.

    Args:
        log: Reads the target.
        topic: `MirrorNames.offsets_topic`.
        max_runs: Maximum number of runs to keep per partition.
    """

    def __init__(self, log: PartitionLog, topic: str, max_runs: int = COMMAND_RUNS) -> None:
        self._log = log
        self._partition = TopicPartition(topic, 0)
        self._max_runs = max_runs
        self._position = 0
        self._maps: dict[TopicPartition, OffsetMap] = {}
        self._chunks: dict[TopicPartition, dict[bytes, MapChunk]] = {}
        """The chunks that are in the topic, by key, each with only its first run."""
        self._topic_ids: Mapping[str, str] = {}

    def read(
        self,
        topic_ids: Mapping[str, str],
        wants: Callable[[TopicPartition], bool] = lambda _tp: True,
    ) -> Mapping[TopicPartition, OffsetMap] | None:
        """Return the map of each wanted target partition; None if the topic does not exist.

        The map includes everything that was committed before the call, even if another worker has
        an open transaction.

        Args:
            topic_ids: Kafka's ids of the target topics, "" if the brokers have none. Chunks of
                other topics, and of a former topic with the same name, are skipped.
            wants: Whether a partition's map is wanted.

        Raises:
            MirrorError: A transaction stays open for too long.
            MalformedObjectError: The topic has a record that is not a chunk of the map.
            BrokerError: A broker refuses, or none answers.
        """
        offsets = self._log.offsets(self._partition)
        if offsets is None:
            self.restart()
            return None
        if offsets.end < self._position or topic_ids.items() - self._topic_ids.items():
            self.restart()  # this topic or a target topic was created again, or a topic was added
        self._topic_ids = dict(topic_ids)
        start = max(self._position, offsets.start)
        chunks: dict[bytes, MapChunk] = {}
        for record in self._log.read(self._partition, start, offsets.end):
            chunk = self._noted(record, wants)
            if chunk is not None and record.key is not None:
                chunks[record.key] = chunk
            # In portions: a map that is rebuilt for each chunk would take quadratic time, and all
            # chunks of a large topic at once too much memory.
            if len(chunks) >= _ADD_AT_ONCE:
                self._add(chunks)
                chunks.clear()
        self._add(chunks)
        self._position = offsets.end
        return self._maps

    def restart(self) -> None:
        """Read the topic from its beginning at the next `read`, for example for new partitions."""
        self._position = 0
        self._maps = {}
        self._chunks = {}

    def _noted(self, record: Record, wants: Callable[[TopicPartition], bool]) -> MapChunk | None:
        """Return the record's chunk; None if it is not of a wanted partition that exists."""
        if record.key is None:
            return None
        if record.value is None:
            # A tombstone does not name its partition.
            for known in self._chunks.values():
                known.pop(record.key, None)
            return None
        chunk = decode_map_record(record.key, record.value)
        topic_id = self._topic_ids.get(chunk.partition.topic)
        if topic_id is None or not wants(chunk.partition):
            return None
        known = self._chunks.setdefault(chunk.partition, {})
        # One run is enough to sort the chunks; all runs are in the map.
        # A chunk of a former topic is recorded, too, so that `shortened` deletes it.
        known[record.key] = chunk._replace(runs=chunk.runs[:1])
        return chunk if chunk.is_of(topic_id) else None

    def shortened(self) -> list[MapRecord]:
        """Return records that shorten the maps with too many chunks, as of the last `read`."""
        records: list[MapRecord] = []
        for tp, chunks in self._chunks.items():
            topic_id = self._topic_ids[tp.topic]
            has_former = not all(chunk.is_of(topic_id) for chunk in chunks.values())
            if has_former or len(chunks) > most_chunks(self._max_runs):
                records += shorter_map(chunks, self._maps.get(tp, OffsetMap(())), topic_id)
        return records

    def _add(self, chunks: Mapping[bytes, MapChunk]) -> None:
        added: dict[TopicPartition, list[MapChunk]] = {}
        for chunk in chunks.values():
            added.setdefault(chunk.partition, []).append(chunk)
        for tp, new in added.items():
            before = self._maps.get(tp, OffsetMap(()))
            runs = [*before.runs, *(run for chunk in new for run in chunk.runs)]
            exact_from = max(before.exact_from, *(chunk.exact_from for chunk in new))
            self._maps[tp] = OffsetMap(runs, exact_from).thinned(self._max_runs)


def read_offset_map(
    cluster: Cluster, topic: str, max_runs: int = COMMAND_RUNS
) -> Mapping[TopicPartition, OffsetMap]:
    """Return the map of each target partition that exists, from the target's topic.

    Args:
        cluster: The target.
        topic: `MirrorNames.offsets_topic`.
        max_runs: Maximum number of runs to keep per partition.

    Raises:
        MirrorError: The topic does not exist, or a transaction stays open for too long.
        MalformedObjectError: The topic has a record that is not a chunk of the map.
        BrokerError: A broker refuses, or none answers.
    """
    described = cluster.metadata().topics
    ids = {name: str(metadata.topic_id or "") for name, metadata in described.items()}
    maps = OffsetMapReader(ClusterLog(cluster), topic, max_runs).read(ids)
    if maps is None:
        raise MirrorError(f"topic {topic}, which has the offset map, does not exist on the target")
    return maps


def with_stored_map(partition: MirroredPartition, stored: StoredMap | None) -> MirroredPartition:
    """Add the runs that only the store has to a partition's map.

    Args:
        partition: The partition with the map of the target's topic; empty if that topic was lost.
        stored: The map in the store. It is ignored if its target topic has another id.
    """
    if stored is None or not stored.map.runs:
        return partition
    ids = {partition.topic_id, stored.target_topic_id} - {""}
    if len(ids) > 1:
        return partition
    runs = partition.map.runs
    if not runs:
        mirrored_to = min(partition.mirrored_to, stored.mirrored_to)
        return replace(partition, mirrored_to=mirrored_to, map=stored.map)
    # The topic's map reaches as far back.
    if runs[0].source <= stored.map.runs[0].source:
        return partition
    # Runs between the two maps may be missing if the topic was lost before they were stored.
    gap_end = runs[0].source if runs[0].source > stored.mirrored_to else 0
    exact_from = max(stored.map.exact_from, partition.map.exact_from, gap_end)
    return replace(partition, map=OffsetMap([*stored.map.runs, *runs], exact_from))


def mirrored_partitions(
    target: Groups,
    sources: Mapping[TopicPartition, TopicPartition],
    progress: Mapping[TopicPartition, CommittedOffset],
    maps: Mapping[TopicPartition, OffsetMap],
    stored: Mapping[TopicPartition, StoredMap],
    ids: Mapping[str, str],
) -> list[MirroredPartition]:
    """Return the target partitions that exist and to which something was mirrored.

    Args:
        target: The target cluster.
        sources: The source partition of each target partition.
        progress: The progress of the mirror. It was read before the maps, so the maps reach up to
            it.
        maps: The maps of the target's topic, read with these ids.
        stored: The maps of the store.
        ids: Kafka's ids of the target topics that exist; "" if the brokers have none.

    Raises:
        BrokerError: A broker refuses, or none answers.
    """
    existing = [
        tp for tp in sorted(sources) if tp.topic in ids and (tp in progress or tp in stored)
    ]
    starts = target.log_starts(existing)
    return [
        with_stored_map(
            MirroredPartition(
                sources[tp],
                tp,
                progress[tp].offset if tp in progress else stored[tp].mirrored_to,
                maps.get(tp, OffsetMap(())),
                starts[tp],
                ids[tp.topic],
            ),
            stored.get(tp),
        )
        for tp in existing
    ]


def copied_partitions(
    progress: Mapping[TopicPartition, CommittedOffset],
) -> dict[TopicPartition, TopicPartition]:
    """Return the source partition of each target partition, from the metadata of the progress."""
    sources = {}
    for target, reached in sorted(progress.items()):
        lineage = decode_lineage(reached.metadata)
        if lineage is not None:
            sources[target] = TopicPartition(lineage.topic, target.partition)
    return sources


def selected_groups(names: Collection[str], patterns: Collection[re.Pattern[str]]) -> list[str]:
    """Return the groups whose whole name matches a pattern; never groups that hold progress."""
    return sorted(
        name
        for name in names
        if not _OWN_GROUPS.fullmatch(name) and any(pattern.fullmatch(name) for pattern in patterns)
    )


def translate_offsets(
    committed: Mapping[TopicPartition, CommittedOffset],
    partitions: Collection[MirroredPartition],
    former: Mapping[TopicPartition, CommittedOffset],
    *,
    may_rewind: bool = False,
) -> tuple[TranslatedOffset, ...]:
    """Translate the offsets of every partition that the group has committed and the mirror copies.

    Args:
        committed: The group's committed offsets on the source.
        partitions: The copies.
        former: The group's committed offsets on the target.
        may_rewind: Whether an offset on the target may become lower.
    """
    translated = []
    for partition in partitions:
        if partition.source not in committed:
            continue
        at = committed[partition.source]
        translation = partition.map.translate(at.offset, partition.mirrored_to, partition.log_start)
        before = former[partition.target].offset if partition.target in former else None
        if translation is None:
            outcome = Outcome.NOTHING_COPIED
        elif translation.offset == before:
            outcome = Outcome.UNCHANGED
        elif before is not None and translation.offset < before and not may_rewind:
            outcome = Outcome.AHEAD
        else:
            outcome = Outcome.SET
        translated.append(
            TranslatedOffset(
                partition.source,
                partition.target,
                at.offset,
                None if translation is None else Offset(translation.offset),
                0 if translation is None else translation.repeated,
                before,
                outcome,
                at.metadata,
            )
        )
    return tuple(translated)


class GroupTranslator:
    """Sets groups on the target to their translated source offsets.

    Args:
        source: The groups on the source, to read.
        target: The groups on the target, to set.
        may_rewind: Whether an offset on the target may become lower.
        dry_run: Whether to set nothing.
    """

    def __init__(
        self,
        source: CommittedGroups,
        target: Groups,
        *,
        may_rewind: bool = False,
        dry_run: bool = False,
    ) -> None:
        self._source = source
        self._target = target
        self._may_rewind = may_rewind
        self._dry_run = dry_run

    def translate(
        self, groups: Collection[str], partitions: Collection[MirroredPartition]
    ) -> list[TranslatedGroup]:
        """Translate each group, and set it unless this is a dry run or the group has members.

        Groups without a committed offset of these partitions are left out. Each group is set in one
        request. A kill leaves the groups before it set; setting them again changes nothing.

        Raises:
            BrokerError: A broker refuses, or none answers.
        """
        # A member can join after this call. The broker then refuses the commit.
        members = self._target.names()
        targets = [partition.target for partition in partitions]
        done = []
        for group in groups:
            committed = self._source.committed(group)
            if not any(partition.source in committed for partition in partitions):
                continue
            former = self._target.committed(group, targets)
            translated = translate_offsets(
                committed, partitions, former, may_rewind=self._may_rewind
            )
            has_members = members.get(group, False)
            offsets = {
                partition.target: CommittedOffset(
                    partition.target_offset, metadata=partition.metadata
                )
                for partition in translated
                if partition.outcome is Outcome.SET and partition.target_offset is not None
            }
            if offsets and not has_members and not self._dry_run:
                has_members = not self._target.commit(group, offsets)
            done.append(TranslatedGroup(group, translated, has_members))
        return done
