"""Read and set the committed offsets of a cluster's consumer groups."""

from collections.abc import Collection, Mapping
from typing import Final, Protocol

from kio.schema.errors import ErrorCode

from sidetier.segments.cluster_state import GroupOffsets
from sidetier.segments.errors import KafkaApiError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import (
    EARLIEST,
    CommittedOffset,
    commit_offsets,
    committed_offsets,
    list_groups,
    list_offsets,
)

_CONSUMERS: Final = frozenset({"consumer", ""})
"""Protocol types of groups that commit offsets; "" if a group has never had a member."""
_HAS_MEMBERS: Final = frozenset(
    {
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.rebalance_in_progress,
        ErrorCode.stale_member_epoch,
    }
)


class CommittedGroups(Protocol):
    """Committed offsets of consumer groups. Every method may raise a BrokerError."""

    def names(self) -> dict[str, bool]:
        """Return the existing groups, each with whether it is known to have members now."""
        ...

    def committed(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Return a group's committed offsets of the given partitions, or of all if None.

        Offsets that an open transaction commits are not included yet.
        """
        ...


class Groups(CommittedGroups, Protocol):
    """The consumer groups of a running cluster."""

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> bool:
        """Set a group's offsets. Return False, and set none, if the group has members."""
        ...

    def log_starts(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        """Return the log start offsets of partitions that exist."""
        ...

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Return Kafka's ids of the topics that exist; "" if the brokers have no topic ids."""
        ...


class SnapshotGroups:
    """The groups in a snapshot of a lost cluster. Implements `CommittedGroups`."""

    def __init__(self, snapshot: GroupOffsets) -> None:
        self._groups = snapshot.groups

    def names(self) -> dict[str, bool]:
        """No group of a lost cluster has members."""
        return dict.fromkeys(self._groups, False)

    def committed(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the offsets in the snapshot, without leader epochs."""
        offsets = {
            TopicPartition(topic, number): CommittedOffset(
                Offset(committed.offset), metadata=committed.metadata
            )
            for topic, numbers in self._groups.get(group, {}).items()
            for number, committed in numbers.items()
        }
        return {
            tp: offset for tp, offset in offsets.items() if partitions is None or tp in partitions
        }


class ClusterGroups:
    """The groups of a running cluster. Implements `Groups`; not thread-safe."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def names(self) -> dict[str, bool]:
        """Return the groups with the consumer protocols; one request to each broker."""
        return {
            name: group.has_members
            for name, group in list_groups(self._cluster).items()
            if group.protocol_type in _CONSUMERS
        }

    def committed(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Do not wait for open transactions that commit offsets of the group."""
        return committed_offsets(self._cluster, group, partitions, require_stable=False)

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> bool:
        """Commit without a member id, which brokers refuse if the group has members."""
        try:
            commit_offsets(self._cluster, group, offsets)
        except KafkaApiError as error:
            if error.code in _HAS_MEMBERS:
                return False
            raise
        return True

    def log_starts(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        """Send one ListOffsets request to each leader."""
        listed = list_offsets(self._cluster, dict.fromkeys(partitions, EARLIEST))
        return {tp: answer.offset for tp, answer in listed.items()}

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Read the ids from a Metadata response."""
        described = self._cluster.metadata(sorted(topics)).topics
        return {name: str(topic.topic_id or "") for name, topic in described.items()}
