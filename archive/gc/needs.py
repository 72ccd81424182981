"""What consumers have not read yet, so that `gc` keeps it.

Each need has the topic id of its offset, which must be the one of the archive. `PartitionCollector`
compares them once more: the topic may be recreated meanwhile.

Committed offsets of a group are the brokers' at the time of the request. If an open
transaction commits later ones, they do not count yet. Brokers store no topic id with a committed
offset, so they are asked for the topic's id and for the cluster's before and after they are asked
for the offsets.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.gc.retention import Need, other_topic
from sidetier.archive.objects.layout import other_cluster, read_note
from sidetier.leadership.topic_identity import TopicIdentity, ask_identity
from sidetier.segments.errors import BrokerError, ConfigurationError, SidetierError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import CommittedOffset, committed_offsets
from sidetier.wire.settings import ClientSettings

_TIMEOUT_SECONDS: Final = 15.0
_BOOTSTRAP: Final = "bootstrap.servers"


class NextOffset(NamedTuple):
    """The first offset that a consumer has not read, and the id of the topic that it has read.

    Attributes:
        offset: The offset.
        topic_id: Id of the topic, as Kafka writes ids; None if the consumer does not know it.
    """

    offset: Offset
    topic_id: str | None


class UnknownProgressError(SidetierError):
    """The progress of a consumer is not known, so nothing of the topic may be deleted."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer that must not lose records.

    Attributes:
        name: Kind and name, such as `consumer group billing`; for messages.
        next_offsets: Returns its next offsets in the partitions of one topic. Raises
            UnknownProgressError.
    """

    name: str
    next_offsets: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, NextOffset]]


def read_needs(
    archive: ArchiveAccess, consumers: Iterable[Consumer], partitions: Collection[TopicPartition]
) -> Mapping[TopicPartition, list[Need]]:
    """Return what the consumers still need of all archived partitions of one topic.

    Raises:
        UnknownProgressError: The progress of a consumer is unknown for one of the partitions.
    """
    needs: dict[TopicPartition, list[Need]] = defaultdict(list)
    consumers = list(consumers)
    if not consumers:
        return needs
    # Read before the offsets: of an archive that has begun anew since, nothing is deleted.
    archived_ids = _archived_ids(archive, partitions)
    for consumer in consumers:
        next_offsets = consumer.next_offsets(partitions)
        for tp in partitions:
            if tp not in next_offsets:
                raise UnknownProgressError(f"{consumer.name}: its progress in {tp} is unknown")
            offset, topic_id = next_offsets[tp]
            needs[tp].append(Need(offset, consumer.name, topic_id))
    _require_same_topics(needs, archived_ids)
    return needs


def _archived_ids(
    archive: ArchiveAccess, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, str | None]:
    """Return the topic id in `offset.wm` of each partition; None if it has none."""
    ids: dict[TopicPartition, str | None] = {}
    for tp in partitions:
        try:
            mark = archive.partition(tp).watermark()
        except SidetierError as error:
            raise UnknownProgressError(
                f"{tp}: its topic id in the archive is unknown: {error}"
            ) from error
        ids[tp] = None if mark is None else mark.watermark.topic_id
    return ids


def _require_same_topics(
    needs: Mapping[TopicPartition, list[Need]], archived_ids: Mapping[TopicPartition, str | None]
) -> None:
    """Check all partitions: a topic is recreated as a whole.

    Raises:
        UnknownProgressError: The ids of an offset and of its archive differ, or one is missing.
    """
    for tp, consumers in needs.items():
        for need in consumers:
            reason = other_topic(need, archived_ids[tp])
            if reason is not None:
                raise UnknownProgressError(f"{tp}: {reason}")


def group_consumer(archive: ArchiveAccess, properties: Mapping[str, str], group: str) -> Consumer:
    """Return a consumer group on the archive's brokers.

    Args:
        archive: The archive.
        properties: Properties of a Kafka client, with `bootstrap.servers`.
        group: Name of the group.
    """
    name = f"consumer group {group}"

    def next_offsets(
        partitions: Collection[TopicPartition],
    ) -> Mapping[TopicPartition, NextOffset]:
        answer = ask_group(properties, group, partitions, name)
        topic_id = _archived_topic_id(archive, properties[_BOOTSTRAP], answer, name)
        return {
            tp: NextOffset(committed.offset, topic_id) for tp, committed in answer.committed.items()
        }

    return Consumer(name, next_offsets)


class GroupAnswer(NamedTuple):
    """The committed offsets of a group in a topic, and what the brokers report about the topic."""

    topic: str
    committed: Mapping[TopicPartition, CommittedOffset]
    identity: TopicIdentity


def ask_group(
    properties: Mapping[str, str],
    group: str,
    partitions: Collection[TopicPartition],
    consumer: str,
) -> GroupAnswer:
    """Return the committed offsets of a consumer group in the partitions of one topic. A missing
    group has none.
    """
    [topic] = {tp.topic for tp in partitions}
    servers = properties[_BOOTSTRAP]
    # Not librdkafka's client: it crashes the process if the coordinator has just started.
    try:
        with Cluster(ClientSettings.from_properties(properties)) as cluster:
            before = ask_identity(cluster, topic)
            committed = committed_offsets(
                cluster, group, partitions, require_stable=False, timeout=_TIMEOUT_SECONDS
            )
            after = ask_identity(cluster, topic)
    except (BrokerError, ConfigurationError) as error:
        raise UnknownProgressError(
            f"{consumer}: {servers} does not tell its committed offsets: {error}"
        ) from error
    if before != after:
        raise UnknownProgressError(
            f"{consumer}: the cluster id of {servers}, or the id or number of partitions of topic "
            f"{topic}, changed while its committed offsets were read; repeat the command"
        )
    return GroupAnswer(topic, committed, after)


def _archived_topic_id(
    archive: ArchiveAccess, servers: str, answer: GroupAnswer, consumer: str
) -> str:
    """Return the topic id of committed offsets, after a check that the brokers are the archive's.

    Raises:
        UnknownProgressError: The brokers belong to another cluster, or that or the id is not known.
    """
    topic, identity, layout = answer.topic, answer.identity, archive.layout
    try:
        note = read_note(archive.store(topic), layout)
    except SidetierError as error:
        raise UnknownProgressError(f"{consumer}: {error}") from error
    reason = other_cluster(note, layout, identity.cluster_id)
    if reason is not None:
        raise UnknownProgressError(f"{consumer}: {reason}")
    if not identity.partitions:
        raise UnknownProgressError(f"{consumer}: {servers} has no topic {topic}")
    if identity.topic_id is None:
        raise UnknownProgressError(
            f"{consumer}: {servers} reports no id of topic {topic}, so the committed offsets may "
            "be of another topic than the archive. Kafka has topic ids from 2.8 on "
            "(inter.broker.protocol.version): upgrade the brokers, or remove the group from "
            "keep_for"
        )
    return identity.topic_id
