"""Decide which offsets a restore copies out of an archive, and which targets it accepts.

As for a mirror, the progress is kept in the target's consumer group. Each offset has a note as
metadata: which archive is restored, and where the restore began. A restore that continues compares
itself with the note.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sidetier.archive.topics import count_partitions
from sidetier.mirror.topics.planning import PlannedCopy, SourceTopic
from sidetier.mirror.topics.rules import Lineage, decode_lineage, was_recreated
from sidetier.segments.cluster_state import TopicDefinition
from sidetier.segments.json_text import parse_json
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.requests import CommittedOffset

CLEANUP_POLICY: Final = "cleanup.policy"
_RETENTION: Final = ("retention.ms", "retention.bytes")
_UNLIMITED: Final = "-1"
KEEPS_RECORDS: Final[Mapping[str, str]] = {
    "retention.ms": _UNLIMITED,
    "retention.bytes": _UNLIMITED,
    CLEANUP_POLICY: "delete",
    "message.timestamp.type": "CreateTime",
}
"""Settings of a created topic. They replace the archived ones, with which the broker could delete
restored records by their old timestamps, compact them away, or replace the timestamps.
"""


@dataclass(frozen=True, slots=True)
class RestoreNote:
    """The note that a restore stores with its progress of a partition.

    Attributes:
        lineage: The source topic and its cluster.
        start: The source offset at which the restore began.
        folder: The prefix of a quarantined or retired archive; empty for the live one.
    """

    lineage: Lineage
    start: Offset
    folder: str = ""

    def encoded(self) -> str:
        """Encode the note as JSON text, which `decode_lineage` can also read."""
        lineage = parse_json(self.lineage.encoded())
        value = {**lineage, "start": self.start, "folder": self.folder}
        return json.dumps(value, separators=(",", ":"))


def decode_note(metadata: str) -> RestoreNote | None:
    """Decode what `RestoreNote.encoded` has made; None for any other text."""
    lineage = decode_lineage(metadata)
    try:
        value = parse_json(metadata)
        start, folder = Offset(int(value["start"])), str(value["folder"])
    except (KeyError, TypeError, ValueError):
        return None
    return None if lineage is None else RestoreNote(lineage, start, folder)


@dataclass(frozen=True, slots=True)
class PartitionRestore:
    """The restore of one partition: source, target and offsets.

    Attributes:
        source: The archived partition.
        target: The partition that receives the records.
        start: The first offset, inclusive.
        end: The end of the offsets, exclusive.
        archive_end: The partition is archived up to this offset, exclusive.
        last_stable_offset: The first offset of a transaction that is open at the readable end;
            otherwise the readable end.
        note: The note to store with the progress.
        restored_to: The progress: the next source offset. None before the first run.
        above_end: Base offsets of stored segments above `archive_end`, which are not committed.
        tail_end: End of the tail, exclusive; None if tail packs are not read.
    """

    source: TopicPartition
    target: TopicPartition
    start: Offset
    end: Offset
    archive_end: Offset
    last_stable_offset: Offset
    note: RestoreNote
    restored_to: Offset | None = None
    above_end: tuple[int, ...] = ()
    tail_end: Offset | None = None

    @property
    def readable_end(self) -> Offset:
        """End of the records that could be restored, exclusive."""
        return self.archive_end if self.tail_end is None else self.tail_end

    @property
    def offsets_left(self) -> int:
        """Offsets left for this run, including markers and aborted records."""
        return max(self.end - max(self.start, self.restored_to or 0), 0)

    @property
    def undecided(self) -> int:
        """Number of stored offsets that are left out because a transaction is open below them."""
        is_cut = self.end == self.last_stable_offset
        return self.readable_end - self.last_stable_offset if is_cut else 0


class ArchivedTopics:
    """The topics of an archive, as the source of a `Catalog`.

    Args:
        cluster_id: Kafka's id of the archived cluster, or another name of it.
        topics: For each topic, its number of partitions and the settings of its copy.
    """

    def __init__(self, cluster_id: str, topics: Mapping[str, SourceTopic]) -> None:
        self._cluster_id = cluster_id
        self._topics = topics

    def cluster_id(self) -> str:
        """Return the given id; no request is sent."""
        return self._cluster_id

    def topics(self, selects: Callable[[str], bool]) -> dict[str, SourceTopic]:
        """Select from the topics of the plan; no request is sent."""
        return {name: topic for name, topic in self._topics.items() if selects(name)}

    def lineages(self) -> dict[str, Lineage]:
        """Return nothing: an archive does not record which of its topics are copies."""
        return {}


def archived_topic(
    topic: str, partitions: Iterable[int], known: TopicDefinition | None
) -> SourceTopic:
    """Return how the copy of an archived topic is created.

    Args:
        topic: The topic.
        partitions: The archived partitions, at least one.
        known: The topic in a snapshot of the lost cluster; None if no snapshot has it.

    Raises:
        ConfigurationError: A partition has a number that is too high.
    """
    count = count_partitions(topic, partitions, 0 if known is None else known.partitions)
    return SourceTopic(count, {**({} if known is None else known.configs), **KEEPS_RECORDS})


def settings_left(archived: Mapping[str, str], created: Mapping[str, str]) -> dict[str, str]:
    """Return the archived settings that the copy lacks. The operator sets them last."""
    return {name: value for name, value in archived.items() if created.get(name) != value}


def progress_problem(wanted: PartitionRestore, stored: RestoreNote | None) -> str | None:
    """Return why a restore cannot continue from the target's progress; None if it can.

    Args:
        wanted: The partition to restore.
        stored: The note of the progress; None if the progress is not that of a restore.
    """
    if stored is None:
        return f"{wanted.target}: another program uses the progress group of this restore"
    if _source_of(stored) != _source_of(wanted.note):
        source = f"{stored.lineage.topic}-{wanted.target.partition}"
        return (
            f"{wanted.target}: a restore of this name has copied {source} into this partition"
            f"{f' from {stored.folder}' if stored.folder else ''}; give another --name and --rename"
        )
    if was_recreated(wanted.note.lineage, stored.lineage):
        return (
            f"{wanted.target}: this restore has copied records of the topic with id "
            f"{stored.lineage.source_id}. The topic was created again under the same name, and the "
            f"archive of {wanted.source} has the id {wanted.note.lineage.source_id} now: give "
            "another --name and --rename. The archive of the former topic is a retired one "
            "(--from-retired)"
        )
    if stored.start != wanted.start:
        return (
            f"{wanted.target}: this restore began at offset {stored.start}, and --from is offset "
            f"{wanted.start} now; leave out --from to continue, or give another --name and --rename"
        )
    if wanted.restored_to is not None and wanted.restored_to > wanted.readable_end:
        where = "the archive" if wanted.tail_end is None else "the archive with its tail"
        hint = " or, for records that are in tail packs, --with-tail" * (wanted.tail_end is None)
        return (
            f"{wanted.target}: this restore has copied {wanted.source} up to offset "
            f"{wanted.restored_to}, and {where} ends at {wanted.readable_end} now: the cluster may "
            "have discarded the records in between (an unclean election). Give another --name and "
            f"--rename{hint}"
        )
    return None


def _source_of(note: RestoreNote) -> tuple[str, tuple[str, ...], str]:
    """Return what identifies the source, besides the topic ids."""
    return note.lineage.topic, note.lineage.clusters, note.folder


def same_topic_problem(planned: PlannedCopy, target_cluster: str | None) -> str | None:
    """Return why a restore would write into the topic that it reads; None if it would not."""
    if planned.lineage.clusters != (target_cluster,) or planned.source != planned.target:
        return None
    return (
        f"topic {planned.source} is archived from the target cluster {target_cluster}: its "
        "sidecars would archive the restored records again; give a --rename rule. If the topic was "
        "deleted, move its archive with `sidetier retire`, and restore it with --from-retired"
    )


def offset_map_problem(topic: str, restored: Collection[TopicPartition]) -> str:
    """Return why a restore cannot begin if its offset map has partitions without progress.

    Args:
        topic: The target's topic that keeps the offset map.
        restored: The partitions in the map that have no progress.
    """
    return (
        f"topic {topic} on the target has the offset map of an earlier restore of "
        f"{min(restored)}, whose progress is gone: the offsets of both would mix. Delete that "
        "topic, or give another --name"
    )


def target_problems(
    planned: Collection[PlannedCopy],
    progress: Mapping[TopicPartition, CommittedOffset],
    settings: Mapping[str, Mapping[str, str]],
    sizes: Mapping[TopicPartition, int],
    *,
    accept_cleanup: bool,
) -> dict[str, str]:
    """Return why existing target topics cannot take a restore, by topic name.

    Args:
        planned: The topics. Topics that do not exist or have a problem are skipped.
        progress: The progress of this restore, by target partition.
        settings: Effective settings of the topics that exist.
        sizes: Number of offsets in the log of each target partition that is restored.
        accept_cleanup: Whether brokers may delete restored records.
    """
    problems: dict[str, str] = {}
    for topic in planned:
        if not topic.exists or topic.problem is not None:
            continue
        filled = [
            tp
            for tp, size in sorted(sizes.items())
            if tp.topic == topic.target and tp not in progress and size > 0
        ]
        if filled:
            problems[topic.target] = (
                f"{filled[0]} on the target has {sizes[filled[0]]} offsets that are not of this "
                "restore, and records would mix; give a --rename rule, or the --name of the "
                "restore that wrote them"
            )
            continue
        reason = cleanup_problem(topic.target, settings.get(topic.target, {}))
        if reason is not None and not accept_cleanup:
            problems[topic.target] = reason
    return problems


def cleanup_problem(topic: str, settings: Mapping[str, str]) -> str | None:
    """Return why brokers could delete restored records of a topic; None if they do not."""
    policy = settings.get(CLEANUP_POLICY, "delete")
    limits = [
        f"{name}={settings[name]}"
        for name in _RETENTION
        if "delete" in policy and settings.get(name, _UNLIMITED) != _UNLIMITED
    ]
    reasons = [f"{CLEANUP_POLICY}={policy}"] * ("compact" in policy) + limits
    if not reasons:
        return None
    return (
        f"topic {topic} on the target has {' and '.join(reasons)}: the broker may delete restored "
        "records, which keep their old timestamps. Set retention.ms=-1, retention.bytes=-1 and "
        "cleanup.policy=delete until they are read, or accept that with --accept-cleanup"
    )
