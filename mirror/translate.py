"""A group's offsets of the source as offsets of the target, by the map that the mirror keeps."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sidetier.mirror.groups import CommittedGroups, Groups
from sidetier.mirror.offset_map import (
    MapChunk,
    MapRecord,
    OffsetMap,
    decode_map_record,
    most_chunks,
    shorter_map,
)
from sidetier.mirror.partition_log import ClusterLog, PartitionLog
from sidetier.mirror.stored_map import StoredMap
from sidetier.mirror.topics import decode_lineage
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
    """One partition of a group.

    Attributes:
        source: The source partition.
        target: Its copy.
        source_offset: What the group has committed on the source.
        target_offset: What it is on the target; None where nothing was copied.
        repeated: Number of source offsets right below `source_offset` that the group may read again
            on the target: those that were not copied yet, or whose map was thinned out.
        former_offset: What the group had committed on the target; None where nothing.
        outcome: What happens.
        metadata: What the group has committed beside its offset.
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
    """A group; with members on the target nothing of it is set."""

    group: str
    partitions: tuple[TranslatedOffset, ...]
    has_members: bool = False


@dataclass(frozen=True, slots=True)
class MirroredPartition:
    """A copy as far as it can be translated.

    Attributes:
        source: The source partition.
        target: Its copy.
        mirrored_to: The map is complete up to this source offset, exclusive.
        map: Of the partition.
        log_start: Log start offset of the target partition.
        topic_id: Kafka's id of the target topic; "" where brokers have none.
    """

    source: TopicPartition
    target: TopicPartition
    mirrored_to: Offset
    map: OffsetMap
    log_start: Offset
    topic_id: str = ""


class OffsetMapReader:
    """Reads a mirror's map from the target's topic, each time from where it has ended before.

    Args:
        log: Reads the target.
        topic: `MirrorNames.offsets_topic`.
        max_runs: Most runs that are kept of a partition.
    """

    def __init__(self, log: PartitionLog, topic: str, max_runs: int = COMMAND_RUNS) -> None:
        self._log = log
        self._partition = TopicPartition(topic, 0)
        self._max_runs = max_runs
        self._position = 0
        self._maps: dict[TopicPartition, OffsetMap] = {}
        self._chunks: dict[TopicPartition, dict[bytes, MapChunk]] = {}
        """Those that are in the topic, by their keys, with their first run alone."""
        self._topic_ids: Mapping[str, str] = {}

    def read(
        self,
        topic_ids: Mapping[str, str],
        wants: Callable[[TopicPartition], bool] = lambda _tp: True,
    ) -> Mapping[TopicPartition, OffsetMap] | None:
        """The map of each wanted target partition; None where the topic does not exist.

        It has what was committed before the call, also where another worker's transaction is open.

        Args:
            topic_ids: Kafka's ids of the target topics, "" where brokers have none. Of a topic that
                is not there, and of an earlier one of the same name, nothing is read.
            wants: Whether a partition's map is wanted.

        Raises:
            MirrorError: a transaction stays open for too long.
            MalformedObjectError: something else is in the topic.
            BrokerError: a broker refuses, or none answers.
        """
        offsets = self._log.offsets(self._partition)
        if offsets is None:
            self.restart()
            return None
        if offsets.end < self._position or topic_ids.items() - self._topic_ids.items():
            self.restart()  # this topic, or a target topic, is another one now
        self._topic_ids = dict(topic_ids)
        start = max(self._position, offsets.start)
        chunks: dict[bytes, MapChunk] = {}
        for record in self._log.read(self._partition, start, offsets.end):
            chunk = self._noted(record, wants)
            if chunk is not None and record.key is not None:
                chunks[record.key] = chunk
            if len(chunks) >= _ADD_AT_ONCE:
                self._add(chunks)
                chunks.clear()
        self._add(chunks)
        self._position = offsets.end
        return self._maps

    def restart(self) -> None:
        """Read the topic from its beginning again, such as for partitions that are new."""
        self._position = 0
        self._maps = {}
        self._chunks = {}

    def _noted(self, record: Record, wants: Callable[[TopicPartition], bool]) -> MapChunk | None:
        """The chunk that a record has; None where it is of no wanted partition that exists."""
        if record.key is None:
            return None
        if record.value is None:
            for known in self._chunks.values():
                known.pop(record.key, None)
            return None
        chunk = decode_map_record(record.key, record.value)
        topic_id = self._topic_ids.get(chunk.partition.topic)
        if topic_id is None or not wants(chunk.partition):
            return None
        known = self._chunks.setdefault(chunk.partition, {})
        known[record.key] = chunk._replace(runs=chunk.runs[:1])
        return chunk if chunk.is_of(topic_id) else None

    def shortened(self) -> list[MapRecord]:
        """Records that shorten the maps which have too many chunks, as of the last `read`."""
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
    """The map of each target partition that exists, from the target's topic.

    Args:
        cluster: The target.
        topic: `MirrorNames.offsets_topic`.
        max_runs: Most runs that are kept of a partition.

    Raises:
        MirrorError: the topic does not exist, or a transaction stays open for too long.
        MalformedObjectError: something else is in it.
        BrokerError: a broker refuses, or none answers.
    """
    described = cluster.metadata().topics
    ids = {name: str(found.topic_id or "") for name, found in described.items()}
    maps = OffsetMapReader(ClusterLog(cluster), topic, max_runs).read(ids)
    if maps is None:
        raise MirrorError(f"topic {topic}, which has the offset map, does not exist on the target")
    return maps


def with_stored_map(partition: MirroredPartition, stored: StoredMap | None) -> MirroredPartition:
    """The partition with the runs that only the store has.

    Args:
        partition: By the target's topic; its map is empty where that topic was lost.
        stored: What the store has. That of a target topic with another id is ignored.
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
    if runs[0].source <= stored.map.runs[0].source:
        return partition
    # Between the two maps runs may be missing: the topic was lost before they were stored.
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
    """The target partitions that exist and of which something was mirrored.

    Args:
        target: The target cluster.
        sources: The source partition of each target partition.
        progress: Of the mirror. It was read before the maps, which therefore reach up to it.
        maps: What the target's topic has, read with these ids.
        stored: What the store has.
        ids: Kafka's ids of the target topics that exist; "" where brokers have none.

    Raises:
        BrokerError: a broker refuses, or none answers.
    """
    there = [tp for tp in sorted(sources) if tp.topic in ids and (tp in progress or tp in stored)]
    starts = target.log_starts(there)
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
        for tp in there
    ]


def copied_partitions(
    progress: Mapping[TopicPartition, CommittedOffset],
) -> dict[TopicPartition, TopicPartition]:
    """The source partition of each target partition, by what is noted beside the progress."""
    found = {}
    for target, reached in sorted(progress.items()):
        lineage = decode_lineage(reached.metadata)
        if lineage is not None:
            found[target] = TopicPartition(lineage.topic, target.partition)
    return found


def selected_groups(names: Collection[str], patterns: Collection[re.Pattern[str]]) -> list[str]:
    """The groups whose whole name one of the patterns matches; never those with progress."""
    return sorted(
        name
        for name in names
        if not _OWN_GROUPS.fullmatch(name) and any(one.fullmatch(name) for one in patterns)
    )


def translate_offsets(
    committed: Mapping[TopicPartition, CommittedOffset],
    partitions: Collection[MirroredPartition],
    former: Mapping[TopicPartition, CommittedOffset],
    *,
    may_rewind: bool = False,
) -> tuple[TranslatedOffset, ...]:
    """Every partition that the group has committed and the mirror copies.

    Args:
        committed: Of the group on the source.
        partitions: The copies.
        former: Of the group on the target.
        may_rewind: Whether an offset on the target may become lower.
    """
    found = []
    for one in partitions:
        if one.source not in committed:
            continue
        at = committed[one.source]
        translation = one.map.translate(at.offset, one.mirrored_to, one.log_start)
        before = former[one.target].offset if one.target in former else None
        if translation is None:
            outcome = Outcome.NOTHING_COPIED
        elif translation.offset == before:
            outcome = Outcome.UNCHANGED
        elif before is not None and translation.offset < before and not may_rewind:
            outcome = Outcome.AHEAD
        else:
            outcome = Outcome.SET
        found.append(
            TranslatedOffset(
                one.source,
                one.target,
                at.offset,
                None if translation is None else Offset(translation.offset),
                0 if translation is None else translation.repeated,
                before,
                outcome,
                at.metadata,
            )
        )
    return tuple(found)


class GroupTranslator:
    """Sets groups of the target to where they are on the source.

    Args:
        source: The groups that are followed.
        target: Those that are set.
        may_rewind: Whether an offset on the target may become lower.
        dry_run: Whether nothing is set.
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
        """What becomes of each group; those without an offset of these partitions are left out.

        Each group is set in one request. What a kill leaves: the groups before it are set; setting
        them again changes nothing.

        Raises:
            BrokerError: a broker refuses, or none answers.
        """
        members = self._target.names()
        targets = [one.target for one in partitions]
        done = []
        for group in groups:
            committed = self._source.committed(group)
            if not any(one.source in committed for one in partitions):
                continue
            former = self._target.committed(group, targets)
            translated = translate_offsets(
                committed, partitions, former, may_rewind=self._may_rewind
            )
            has_members = members.get(group, False)
            offsets = {
                one.target: CommittedOffset(one.target_offset, metadata=one.metadata)
                for one in translated
                if one.outcome is Outcome.SET and one.target_offset is not None
            }
            if offsets and not has_members and not self._dry_run:
                has_members = not self._target.commit(group, offsets)
            done.append(TranslatedGroup(group, translated, has_members))
        return done
