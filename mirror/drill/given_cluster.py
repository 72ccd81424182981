"""Name the topics of drills in a given cluster, and delete topics that killed drills have left.

A drill creates the topics `sidetier-drill-<run>-topic-<number>` and `sidetier-drill-<run>-offsets`,
where `<run>` is its start time and a random number, and deletes them when it ends. A kill leaves
them, and the group `sidetier-drill-<run>` with the progress of their copy. A later drill deletes
them.
"""

import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from sidetier.mirror.restore.plan import decode_note
from sidetier.mirror.topics.rules import MirrorNames
from sidetier.segments.offsets import TopicPartition
from sidetier.wire.cluster import Cluster, TopicMetadata
from sidetier.wire.requests import (
    LATEST,
    CommittedOffset,
    committed_offsets,
    delete_group,
    delete_topics,
    list_offsets,
)

_KIND: Final = "drill"
_TIME: Final = "%Y%m%dT%H%M%SZ"
_TOPIC: Final = re.compile(
    r"(?P<group>sidetier-drill-(?P<time>\d{8}T\d{6}Z)-[0-9a-f]{8})-(topic-\d+|offsets)"
)


def new_run(now: float) -> MirrorNames:
    """Return the names of a drill that starts now; `now` is in seconds since 1970."""
    started = datetime.fromtimestamp(now, UTC).strftime(_TIME)
    return MirrorNames(f"{started}-{secrets.token_hex(4)}", _KIND)


def topic_of(names: MirrorNames, number: int) -> str:
    """Return the topic that receives the records of the sample's topic with this number."""
    return f"{names.group}-topic-{number}"


@dataclass(frozen=True, slots=True)
class DrillTopic:
    """A topic whose name is that of a drill's topic.

    Attributes:
        name: The topic's name.
        topic_id: The topic's id.
        group: The progress group of the drill.
        started: The start of the drill, in seconds since 1970.
        partitions: Number of partitions of the topic.
    """

    name: str
    topic_id: UUID
    group: str
    started: float
    partitions: int

    @property
    def is_offset_map(self) -> bool:
        """Whether the topic has the offset map of the drill's topics."""
        return self.name == f"{self.group}-offsets"


def drill_topic(topic: TopicMetadata) -> DrillTopic | None:
    """Return the drill topic; None if the name does not match or the id is unknown."""
    match = _TOPIC.fullmatch(topic.name)
    if match is None or topic.topic_id is None:
        return None
    try:
        started = datetime.strptime(match["time"], _TIME).replace(tzinfo=UTC)
    except ValueError:
        return None
    return DrillTopic(
        topic.name, topic.topic_id, match["group"], started.timestamp(), len(topic.partitions)
    )


def is_of_drill(
    topic: DrillTopic,
    end_offsets: Collection[int],
    progress: Mapping[TopicPartition, CommittedOffset],
) -> bool:
    """Whether it is certain that a drill has created the topic and nothing else has written to it.

    The progress of a copy names the topic's id, and is committed before its first record.

    Args:
        topic: The topic.
        end_offsets: Log end offset of each partition.
        progress: The committed offsets of the topic's group.
    """
    # Nothing was ever written to it, so nothing can be lost.
    if not any(end_offsets):
        return True
    notes = {tp.topic: decode_note(committed.metadata) for tp, committed in progress.items()}
    if topic.is_offset_map:
        return any(notes.values())
    note = notes.get(topic.name)
    return note is not None and note.lineage.target_id == str(topic.topic_id)


@dataclass(frozen=True, slots=True)
class LeftOver:
    """Topics of earlier drills.

    Attributes:
        deleted: The topics that were deleted.
        unproven: The topics that were kept, because nothing proves that a drill has created them.
    """

    deleted: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()


def delete_left_over(cluster: Cluster, now: float, age: float) -> LeftOver:
    """Delete the topics of drills that started more than `age` seconds ago.

    A kill in between leaves topics that the next call recognises.

    Raises:
        BrokerError: A broker refuses, or none answers.
    """
    described = cluster.metadata().topics.values()
    old = [
        topic
        for topic in map(drill_topic, described)
        if topic is not None and topic.started < now - age
    ]
    by_group: dict[str, list[DrillTopic]] = {}
    for topic in sorted(old, key=lambda topic: topic.name):
        by_group.setdefault(topic.group, []).append(topic)
    deleted: list[str] = []
    unproven: list[str] = []
    for group, topics in by_group.items():
        # Without waiting for open transactions: the drill that was killed may have left one.
        progress = committed_offsets(cluster, group, require_stable=False)
        ours = [topic for topic in topics if is_of_drill(topic, _ends(cluster, topic), progress)]
        delete_drill(cluster, group, ours)
        deleted += [topic.name for topic in ours]
        unproven += [topic.name for topic in topics if topic not in ours]
    return LeftOver(tuple(deleted), tuple(unproven))


def delete_drill(cluster: Cluster, group: str, topics: Collection[DrillTopic]) -> None:
    """Delete topics of one drill, and its group.

    The progress proves which topics are the drill's, and brokers delete it together with the last
    copied topic. Therefore the offset map is deleted before the copied topics.

    Raises:
        BrokerError: A broker refuses, or none answers.
    """
    for is_offset_map in (True, False):
        ids = [topic.topic_id for topic in topics if topic.is_offset_map is is_offset_map]
        if ids:
            delete_topics(cluster, ids)
    if topics:
        delete_group(cluster, group)


def topics_of_run(cluster: Cluster, names: MirrorNames) -> list[DrillTopic]:
    """Return the topics of one drill that exist now.

    Raises:
        BrokerError: No broker answers.
    """
    topics = map(drill_topic, cluster.metadata().topics.values())
    return [topic for topic in topics if topic is not None and topic.group == names.group]


def _ends(cluster: Cluster, topic: DrillTopic) -> list[int]:
    partitions = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
    listed = list_offsets(cluster, dict.fromkeys(partitions, LATEST))
    return [end.offset for end in listed.values()]
