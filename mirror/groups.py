"""Consumer groups of a cluster: their committed offsets, read and set."""

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
"""Protocol types of groups that commit offsets; "" where a group has never had a member."""
_HAS_MEMBERS: Final = frozenset(
    {
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.rebalance_in_progress,
        ErrorCode.stale_member_epoch,
    }
)


class CommittedGroups(Protocol):
    """What consumer groups have committed. Every method may raise a BrokerError."""

    def names(self) -> dict[str, bool]:
        """The groups that exist, and whether each is known to have members now."""
        ...

    def committed(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """What a group has committed, of some partitions or of all.

        What an open transaction commits does not count yet.
        """
        ...


class Groups(CommittedGroups, Protocol):
    """The consumer groups of a running cluster."""

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> bool:
        """Set offsets of a group that has no members; False where it has some, and none is set."""
        ...

    def log_starts(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        """Log start offsets of partitions that exist."""
        ...

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """Kafka's ids of those topics that exist; "" where brokers have none."""
        ...


class SnapshotGroups:
    """The groups in a cluster snapshot, for a cluster that is lost."""

    def __init__(self, snapshot: GroupOffsets) -> None:
        self._groups = snapshot.groups

    def names(self) -> dict[str, bool]:
        """See the port; no group of a lost cluster has members."""
        return dict.fromkeys(self._groups, False)

    def committed(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """See the port."""
        found = {
            TopicPartition(topic, number): CommittedOffset(
                Offset(committed.offset), metadata=committed.metadata
            )
            for topic, numbers in self._groups.get(group, {}).items()
            for number, committed in numbers.items()
        }
        return {tp: one for tp, one in found.items() if partitions is None or tp in partitions}


class ClusterGroups:
    """The groups of a running cluster; for one thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def names(self) -> dict[str, bool]:
        """See the port."""
        return {
            name: group.has_members
            for name, group in list_groups(self._cluster).items()
            if group.protocol_type in _CONSUMERS
        }

    def committed(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """See the port."""
        return committed_offsets(self._cluster, group, partitions, require_stable=False)

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> bool:
        """See the port: a broker refuses a commit without a member id where there are members."""
        try:
            commit_offsets(self._cluster, group, offsets)
        except KafkaApiError as error:
            if error.code in _HAS_MEMBERS:
                return False
            raise
        return True

    def log_starts(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        """See the port."""
        listed = list_offsets(self._cluster, dict.fromkeys(partitions, EARLIEST))
        return {tp: one.offset for tp, one in listed.items()}

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        """See the port."""
        described = self._cluster.metadata(sorted(topics)).topics
        return {name: str(topic.topic_id or "") for name, topic in described.items()}
