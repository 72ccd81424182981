"""The leadership port: a stream of frozen views, and the difference between two."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

from sidetier.segments.cluster_state import SnapshotContent, SnapshotKind
from sidetier.segments.offsets import LeaderEpoch, Offset, TopicPartition

_NOTHING: Mapping[TopicPartition, LeaderEpoch] = MappingProxyType({})
_NO_IDS: Mapping[str, str] = MappingProxyType({})


class Unreadable(NamedTuple):
    """Why a part of a source, such as one node of ZooKeeper, could not be read, and how often in a
    row. It is read again after a growing pause; meanwhile its last known state counts.
    """

    kind: str
    error: str
    failures: int


_ALL_READABLE: Mapping[str, Unreadable] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LeadershipView:
    """What this broker leads at one moment.

    `leads` maps each partition to the leader epoch in which this broker leads it, UNKNOWN_EPOCH
    where the source does not tell. `topic_ids` holds the topic ids that the source knows, as Kafka
    prints them (22 characters). `known` is False until the source has answered once, and again when
    it has been unreachable for too long to be believed: then `leads` is empty. `unreadable` names
    the parts of the source that could not be read: each concerns its own topic or partition.
    """

    leads: Mapping[TopicPartition, LeaderEpoch] = field(default_factory=lambda: _NOTHING)
    topic_ids: Mapping[str, str] = field(default_factory=lambda: _NO_IDS)
    known: bool = False
    unreadable: Mapping[str, Unreadable] = field(default_factory=lambda: _ALL_READABLE)


@dataclass(frozen=True, slots=True)
class LeadershipChange:
    """The difference between two views: sorted partitions. One that was led already is in `renewed`
    when its epoch or its topic id is another; it was in other hands in between, or may have been.
    """

    gained: tuple[TopicPartition, ...]
    lost: tuple[TopicPartition, ...]
    renewed: tuple[TopicPartition, ...]

    def __bool__(self) -> bool:
        return bool(self.gained or self.lost or self.renewed)


def diff(before: LeadershipView, after: LeadershipView) -> LeadershipChange:
    """What changed from one view to the next."""
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
    """Both views know the topic's id, and it is another: deleted and created again in between."""
    old, new = before.topic_ids.get(topic), after.topic_ids.get(topic)
    return old is not None and new is not None and old != new


class HighWatermark(NamedTuple):
    """A partition's high watermark, and the leader epoch of the leader that told it."""

    offset: Offset
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What of a topic's configuration matters to archiving; durations in seconds, sizes in bytes of
    `.log` files. `retention` is infinity where the broker deletes nothing by time, None where it is
    not known; `retention_bytes` is None in both cases.
    """

    compacted: bool = False
    native_tiering: bool = False
    retention: float | None = None
    retention_bytes: int | None = None
    delete_delay: float | None = None


class TopicConfigSource(Protocol):
    """Asks the brokers how topics are configured."""

    def topic_configs(self, topics: Iterable[str]) -> Mapping[str, TopicConfig | None]:
        """The configuration of each topic; None where the broker refuses to tell.

        Raises:
            LeadershipUnavailableError: no answer came in time.
        """
        ...

    def close(self) -> None:
        """Let connections go; may be called twice."""
        ...


class ReadState(NamedTuple):
    """One kind of a cluster's state, and what is missing of it; `problem` is None where nothing is
    known to be missing.
    """

    content: SnapshotContent
    problem: str | None = None


class ClusterStateSource(Protocol):
    """Reads the state of the whole cluster from its brokers, slowly, to leave them alone."""

    @property
    def kinds(self) -> Collection[SnapshotKind]:
        """What it can read; constant."""
        ...

    def read(self, kind: SnapshotKind, before: SnapshotContent | None, seconds: float) -> ReadState:
        """One kind of state.

        Args:
            kind: One of `kinds`.
            before: What was read last. What a broker does not tell now is taken from it.
            seconds: Over how long the requests are spread where there are many.

        Raises:
            LeadershipUnavailableError: the brokers do not answer, or refuse; the text says which
                permission is missing.
        """
        ...

    def close(self) -> None:
        """Let connections go; may be called twice."""
        ...


ViewListener = Callable[[LeadershipView], None]
"""Called on the source's own thread with each new view; must return quickly and not raise."""


class LeadershipSource(Protocol):
    """Where leadership comes from.

    A view shows a partition as led only when that has been confirmed by a source that shows
    committed metadata; it drops a partition as soon as anything says that the lead is lost.
    """

    def start(self, listener: ViewListener) -> None:
        """Begin to deliver views; the first comes without a change, as soon as one is known.

        Raises:
            ConfigurationError: the source can never work as it is configured.
        """
        ...

    def view(self) -> LeadershipView:
        """The latest view."""
        ...

    def failure(self) -> BaseException | None:
        """Why the source's own thread died, or None while it lives (also before `start`)."""
        ...

    def stop(self) -> None:
        """Stop delivering; returns when no further call of the listener can come; may be called
        twice, also before `start`.
        """
        ...
