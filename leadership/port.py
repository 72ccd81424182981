"""The leadership port: a stream of frozen views, and the difference between two views."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

from sidetier.segments.cluster_state import GroupMember, SnapshotContent, SnapshotKind
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import LeaderEpoch, Offset, TopicPartition
from sidetier.wire.log_offsets import AnsweredOffset, OffsetKind

_NOTHING: Mapping[TopicPartition, LeaderEpoch] = MappingProxyType({})
_NO_IDS: Mapping[str, str] = MappingProxyType({})


class Unreadable(NamedTuple):
    """Why a part of a source, such as one ZooKeeper node, could not be read.

    The source reads it again after a growing pause. Until then it uses the last known state.

    Attributes:
        kind: Class name of the error.
        error: Text of the error.
        failures: Number of consecutive failures.
    """

    kind: str
    error: str
    failures: int


_ALL_READABLE: Mapping[str, Unreadable] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LeadershipView:
    """The partitions that this broker leads at one moment.

    Attributes:
        leads: Led partitions, with the leader epoch of this broker's leadership; UNKNOWN_EPOCH if
            the source does not provide it.
        topic_ids: Topic ids that the source knows, by topic name, in Kafka's text form (22
            characters).
        known: False until the source has responded once, and again when it has been unreachable
            for too long; `leads` is then empty.
        unreadable: Parts of the source that could not be read. Each affects only its own topic or
            partition.
    """

    leads: Mapping[TopicPartition, LeaderEpoch] = field(default_factory=lambda: _NOTHING)
    topic_ids: Mapping[str, str] = field(default_factory=lambda: _NO_IDS)
    known: bool = False
    unreadable: Mapping[str, Unreadable] = field(default_factory=lambda: _ALL_READABLE)


@dataclass(frozen=True, slots=True)
class LeadershipChange:
    """Difference between two views, as sorted partitions.

    Attributes:
        gained: Partitions that are led only in the later view.
        lost: Partitions that are led only in the earlier view.
        renewed: Partitions that are led in both views, with another leader epoch or topic id:
            another broker led them in between, or may have.
    """

    gained: tuple[TopicPartition, ...]
    lost: tuple[TopicPartition, ...]
    renewed: tuple[TopicPartition, ...]

    def __bool__(self) -> bool:
        return bool(self.gained or self.lost or self.renewed)


def diff(before: LeadershipView, after: LeadershipView) -> LeadershipChange:
    """Return the difference between two consecutive views."""
    old, new = before.leads, after.leads
    return LeadershipChange(
        gained=tuple(sorted(new.keys() - old.keys())),
        lost=tuple(sorted(old.keys() - new.keys())),
        renewed=tuple(
            sorted(
                tp
                for tp in new.keys() & old.keys()
                if new[tp] != old[tp] or _is_another_topic(tp.topic, before, after)
            )
        ),
    )


def _is_another_topic(topic: str, before: LeadershipView, after: LeadershipView) -> bool:
    """Return whether both views know the topic's id and it differs: the topic was recreated."""
    old, new = before.topic_ids.get(topic), after.topic_ids.get(topic)
    return old is not None and new is not None and old != new


class HighWatermark(NamedTuple):
    """High watermark of a partition, and the leader epoch of the leader that reported it."""

    offset: Offset
    leader_epoch: LeaderEpoch


class LogOffsetSource(Protocol):
    """Asks the broker that the sidecar runs beside for one offset of many logs. One thread uses it,
    unless it is a `SharedLogOffsets`; any thread may close it.
    """

    def offsets(
        self, kind: OffsetKind, partitions: Sequence[tuple[TopicPartition, LeaderEpoch]]
    ) -> Sequence[AnsweredOffset | SidetierError]:
        """Return the broker's answer for each partition that it leads in this leader epoch, or why
        it does not answer: it does not lead in this epoch, for example. One request.

        Raises:
            BrokerError: The broker does not respond.
            LeadershipError: The broker belongs to another cluster than the log dirs.
        """
        ...

    def close(self) -> None:
        """Close the connection, and make a request in flight fail. May be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Configuration of a topic that matters for archiving.

    Attributes:
        compacted: Whether `cleanup.policy` contains `compact`.
        native_tiering: Whether Kafka's own tiered storage is enabled (`remote.storage.enable`).
        retention: `retention.ms` in seconds; infinity if the broker deletes nothing by time, None
            if unknown.
        retention_bytes: `retention.bytes`, for the `.log` files; None if unlimited or unknown.
        delete_delay: `file.delete.delay.ms` in seconds; None if unknown.
        only_deleted: Whether `cleanup.policy` is known to be `delete`, and nothing else.
    """

    compacted: bool = False
    native_tiering: bool = False
    retention: float | None = None
    retention_bytes: int | None = None
    delete_delay: float | None = None
    only_deleted: bool = False


class TopicConfigSource(Protocol):
    """Reads topic configurations from the brokers."""

    def topic_configs(self, topics: Iterable[str]) -> Mapping[str, TopicConfig | None]:
        """Return the configuration of each topic; None if the broker refuses it.

        Raises:
            LeadershipUnavailableError: No response arrived in time.
        """
        ...

    def close(self) -> None:
        """Close the connections. May be called twice."""
        ...


class RecordDeletion(NamedTuple):
    """Deletion of the records at the start of a log.

    Attributes:
        end: The new log start offset: records below it are deleted.
        leader_epoch: Leader epoch in which this broker must lead the partition. In any other epoch
            nothing is deleted.
        topic_id: Id of the topic, as Kafka prints it. A topic with another id is not touched.
    """

    end: Offset
    leader_epoch: LeaderEpoch
    topic_id: str | None


CommittedOffsets = Mapping[str, Mapping[TopicPartition, Offset]]
"""Committed offsets of consumer groups, by the name of the group."""


class ReadGroups(NamedTuple):
    """Committed offsets of consumer groups.

    Attributes:
        offsets: By group. Groups that were deleted meanwhile are left out.
        unread: Groups whose offsets cannot be read, and why.
        incomplete: Why the brokers may have more groups; None if they have listed all, or if only
            some groups were wanted.
    """

    offsets: CommittedOffsets
    unread: Mapping[str, str] = MappingProxyType({})
    incomplete: str | None = None


class ConsumerGroupSource(Protocol):
    """Reads consumer groups of the cluster, for one thread at a time."""

    def committed_offsets(
        self, names: Collection[str], wanted: Callable[[str], bool] | None
    ) -> ReadGroups:
        """Return the committed offsets of consumer groups.

        Args:
            names: Groups that must be known even if the brokers do not list them.
            wanted: Returns whether a group that the brokers list should be read; None for all.

        Raises:
            BrokerError: The groups cannot be listed.
        """
        ...

    def members(self, groups: Collection[str]) -> Mapping[str, tuple[GroupMember, ...]]:
        """Return the members that each group has now.

        Groups whose members cannot be read are left out.
        """
        ...


class RecordDeleter(ConsumerGroupSource, Protocol):
    """Deletes records on the broker that the sidecar runs beside, for one thread at a time."""

    def delete_records(
        self, deletions: Mapping[TopicPartition, RecordDeletion]
    ) -> Mapping[TopicPartition, Offset | SidetierError]:
        """Delete records of partitions that the broker leads, all partitions in one request.

        Right before, the brokers must confirm that they belong to the cluster of the log dirs and
        have the topic, and the broker that it leads each partition in the given leader epoch and
        that its high watermark has reached the end of the deletion.

        Returns:
            For each partition its new log start offset, or why nothing is known to be deleted.

        Raises:
            BrokerError: The broker does not answer. It may have deleted the records.
        """
        ...


class ReadState(NamedTuple):
    """State of one kind that was read from the cluster.

    Attributes:
        content: The state.
        problem: Which part is missing, and why; None if nothing is known to be missing.
    """

    content: SnapshotContent
    problem: str | None = None


class ClusterStateSource(Protocol):
    """Reads the state of the whole cluster from its brokers, slowly to limit their load."""

    @property
    def kinds(self) -> Collection[SnapshotKind]:
        """Kinds of state that it can read; constant."""
        ...

    def read(self, kind: SnapshotKind, before: SnapshotContent | None, seconds: float) -> ReadState:
        """Read one kind of state.

        Args:
            kind: One of `kinds`.
            before: Result of the previous read. Parts that a broker does not return are taken from
                it.
            seconds: Duration over which many requests are spread.

        Raises:
            LeadershipUnavailableError: The brokers do not respond, or refuse; the text names the
                missing permission.
        """
        ...

    def close(self) -> None:
        """Close the connections. May be called twice."""
        ...


ViewListener = Callable[[LeadershipView], None]
"""Called on the source's own thread with each new view. Must return quickly and must not raise."""


class LeadershipSource(Protocol):
    """Source of leadership views.

    A view includes a partition only after a source that reads committed metadata has confirmed the
    leadership. It drops a partition as soon as any source reports the leadership as lost.
    """

    def start(self, listener: ViewListener) -> None:
        """Start to deliver views. The first one is delivered as soon as it is known.

        Raises:
            ConfigurationError: The source can never work with its configuration.
        """
        ...

    def view(self) -> LeadershipView:
        """Return the latest view."""
        ...

    def failure(self) -> BaseException | None:
        """Return why the source's own thread died; None while it lives or before `start`."""
        ...

    def stop(self) -> None:
        """Stop delivering views. The listener is not called after this returns.

        May be called twice, also before `start`.
        """
        ...
