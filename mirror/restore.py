"""What a restore copies out of an archive, and which targets may take it.

The progress is the target's consumer group, as a mirror's. Beside each offset it keeps a note:
which archive is restored, and where the restore began. A restore that goes on compares itself with
it.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sidetier.mirror.catalog import Planned, SourceTopic
from sidetier.mirror.topics import Lineage, decode_lineage
from sidetier.segments.cluster_state import TopicDefinition
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
"""Settings of a created topic. With the archived ones the broker could delete restored records by
their old timestamps, compact them away, or replace the timestamps."""


@dataclass(frozen=True, slots=True)
class RestoreNote:
    """What a restore keeps beside its progress of a partition.

    Attributes:
        lineage: The source topic and its cluster.
        start: The source offset at which the restore began.
        folder: The prefix of a quarantined or retired archive; empty for the live one.
    """

    lineage: Lineage
    start: Offset
    folder: str = ""

    def encoded(self) -> str:
        """As text, which `decode_lineage` reads, too."""
        lineage = json.loads(self.lineage.encoded())
        value = {**lineage, "start": self.start, "folder": self.folder}
        return json.dumps(value, separators=(",", ":"))


def decode_note(metadata: str) -> RestoreNote | None:
    """What `RestoreNote.encoded` has made; None for any other text."""
    lineage = decode_lineage(metadata)
    try:
        value = json.loads(metadata)
        start, folder = Offset(int(value["start"])), str(value["folder"])
    except (KeyError, TypeError, ValueError):
        return None
    return None if lineage is None else RestoreNote(lineage, start, folder)


@dataclass(frozen=True, slots=True)
class PartitionRestore:
    """One partition: which source offsets go where.

    Attributes:
        source: The archived partition.
        target: The partition that takes its records.
        start: The first offset, inclusive.
        end: The offset after the last.
        archive_end: Up to where the partition is archived, exclusive.
        stable_end: The first offset of a transaction that is open at the archive's end, else
            `archive_end`.
        note: What is kept beside the progress.
        restored_to: The progress: the next source offset. None before the first run.
    """

    source: TopicPartition
    target: TopicPartition
    start: Offset
    end: Offset
    archive_end: Offset
    stable_end: Offset
    note: RestoreNote
    restored_to: Offset | None = None

    @property
    def offsets_left(self) -> int:
        """Offsets that this run has to restore, those of markers and aborted records included."""
        return max(self.end - max(self.start, self.restored_to or 0), 0)

    @property
    def undecided(self) -> int:
        """Archived offsets that are left out because a transaction is open below them."""
        return self.archive_end - self.stable_end if self.end == self.stable_end else 0


class ArchivedTopics:
    """The topics of an archive, as the source of a `Catalog`.

    Args:
        cluster_id: Kafka's id of the archived cluster, or another name of it.
        topics: Each topic's number of partitions, and the settings that its copy is created with.
    """

    def __init__(self, cluster_id: str, topics: Mapping[str, SourceTopic]) -> None:
        self._cluster_id = cluster_id
        self._topics = topics

    def cluster_id(self) -> str:
        """See `SourceTopics`."""
        return self._cluster_id

    def topics(self, selects: Callable[[str], bool]) -> dict[str, SourceTopic]:
        """See `SourceTopics`."""
        return {name: topic for name, topic in self._topics.items() if selects(name)}

    def lineages(self) -> dict[str, Lineage]:
        """See `SourceTopics`: an archive does not tell which of its topics are copies."""
        return {}


def archived_topic(partitions: Iterable[int], known: TopicDefinition | None) -> SourceTopic:
    """How the copy of an archived topic is created.

    Args:
        partitions: The archived partitions, at least one.
        known: The topic in the lost cluster, as far as a snapshot tells it.
    """
    count = max(partitions) + 1
    if known is None:
        return SourceTopic(count, KEEPS_RECORDS)
    return SourceTopic(max(count, known.partitions), {**known.configs, **KEEPS_RECORDS})


def settings_left(archived: Mapping[str, str], created: Mapping[str, str]) -> dict[str, str]:
    """The archived settings that the copy was not created with: the operator sets them at last."""
    return {name: value for name, value in archived.items() if created.get(name) != value}


def progress_problem(wanted: PartitionRestore, there: RestoreNote | None) -> str | None:
    """Why a restore cannot go on from the progress that is on the target; None where it can.

    Args:
        wanted: The partition.
        there: The note of the progress; None where it is not that of a restore.
    """
    if there is None:
        return f"{wanted.target}: the progress group of this restore is used by something else"
    if _source_of(there) != _source_of(wanted.note):
        source = f"{there.lineage.topic}-{wanted.target.partition}"
        return (
            f"{wanted.target}: a restore of this name has put {source} there"
            f"{f' from {there.folder}' if there.folder else ''}; give another --name and --rename"
        )
    if there.start != wanted.start:
        return (
            f"{wanted.target}: this restore began at offset {there.start}, and --from is offset "
            f"{wanted.start} now; leave --from out to go on, or give another --name and --rename"
        )
    return None


def _source_of(note: RestoreNote) -> tuple[str, tuple[str, ...], str]:
    """What is restored. The ids of the topics are left to the catalog."""
    return note.lineage.topic, note.lineage.clusters, note.folder


def same_topic_problem(planned: Planned, target_cluster: str | None) -> str | None:
    """Why a restore would write into the topic that it reads; None where it would not."""
    if planned.lineage.clusters != (target_cluster,) or planned.source != planned.target:
        return None
    return (
        f"topic {planned.source} is archived from the target cluster {target_cluster}: its "
        "sidecars would archive the restored records again; give a --rename rule. If the topic was "
        "deleted, move its archive with `sidetier retire`, and restore it with --from-retired"
    )


def offset_map_problem(topic: str, restored: Collection[TopicPartition]) -> str:
    """Why a restore cannot begin: its offset map has partitions of which there is no progress.

    Args:
        topic: The target's topic that keeps the offset map.
        restored: These partitions.
    """
    return (
        f"topic {topic} on the target has the offset map of an earlier restore of "
        f"{min(restored)}, whose progress is gone: the offsets of both would mix. Delete that "
        "topic, or give another --name"
    )


def target_problems(
    planned: Collection[Planned],
    progress: Mapping[TopicPartition, CommittedOffset],
    settings: Mapping[str, Mapping[str, str]],
    sizes: Mapping[TopicPartition, int],
    *,
    accept_cleanup: bool,
) -> dict[str, str]:
    """Why target topics that exist cannot take a restore, by their names.

    Args:
        planned: The topics; those that do not exist, or have a problem, are passed over.
        progress: Of this restore, by target partition.
        settings: Effective settings of the topics that exist.
        sizes: How many offsets the log of each target partition has, by those that are restored.
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
    """Why brokers could delete restored records of a topic; None where they do not."""
    policy = settings.get(CLEANUP_POLICY, "delete")
    limits = [
        f"{name}={settings[name]}"
        for name in _RETENTION
        if "delete" in policy and settings.get(name, _UNLIMITED) != _UNLIMITED
    ]
    found = [f"{CLEANUP_POLICY}={policy}"] * ("compact" in policy) + limits
    if not found:
        return None
    return (
        f"topic {topic} on the target has {' and '.join(found)}: the broker may delete restored "
        "records, which keep their old timestamps. Set retention.ms=-1, retention.bytes=-1 and "
        "cleanup.policy=delete until they are read, or accept that with --accept-cleanup"
    )
