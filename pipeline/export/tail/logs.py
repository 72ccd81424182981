"""A partition's log as an export sees it: what is archived, and then what the broker has. Pure.

Where one ends and the other begins is fixed once, by one look at each: the archive's first, since
nothing is archived that the broker has not committed. Both are told by offsets, never by records:
transaction markers, aborted and compacted records leave gaps between those.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sidetier.pipeline.export.errors import OtherTopicError
from sidetier.pipeline.export.tail.errors import BrokerBehindError
from sidetier.pipeline.planning.log_offsets import LogOffsets
from sidetier.pipeline.planning.names import in_words
from sidetier.pipeline.planning.split import Missing
from sidetier.segments.offsets import LeaderEpoch, Offset, OffsetRange, TopicPartition

GONE: Final = (
    "the broker has deleted them, and they are not archived; a sidecar that still holds them will "
    "archive them: run the export again then"
)


@dataclass(frozen=True, slots=True)
class BrokerLog:
    """What a broker says of one partition.

    Attributes:
        start: the log start offset.
        stable: one past the last record that may be shown: the last stable offset, or the high
            watermark.
        high_watermark: one past the last record that is committed.
        epoch: the newest leader epoch of its log: nothing below is of a later one.
    """

    start: Offset
    stable: Offset
    high_watermark: Offset
    epoch: LeaderEpoch | None = None


@dataclass(frozen=True, slots=True)
class BrokerTopic:
    """A topic as the brokers have it. Ids, its own and the cluster's, may not be given."""

    topic_id: str | None
    logs: Mapping[int, BrokerLog]
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True)
class Divided:
    """A range of offsets by where they are read; each part may be empty."""

    archived: OffsetRange
    gone: OffsetRange
    on_broker: OffsetRange


@dataclass(frozen=True, slots=True)
class Log:
    """One partition's.

    Attributes:
        earliest: the first offset that anybody has.
        cut: up to here the archive is read: what it has stored, and decided.
        stored: one past the last offset that is archived, decided or not.
        begins: from here on the broker is read: the cut, or above it the broker's log start.
        latest: one past the last offset that may be shown.
        epoch: as the broker's.
        high_watermark: as the broker's; None where the brokers do not have the partition.
    """

    earliest: Offset
    cut: Offset
    stored: Offset
    begins: Offset
    latest: Offset
    epoch: LeaderEpoch | None = None
    high_watermark: Offset | None = None

    @property
    def has_gap(self) -> bool:
        """Whether there are offsets between the archive and the broker that neither has."""
        return 0 < self.stored < self.begins

    @property
    def undecided(self) -> OffsetRange:
        """What the archive has, but the broker alone could decide, and has deleted; mostly empty.

        It is never stepped over: the archive decides it, once it has stored the transaction's end.
        """
        return OffsetRange(self.cut, max(self.cut, min(self.stored, self.begins)))

    def waits(self, first: Offset) -> bool:
        """Whether one who begins at `first` has to wait for the archive."""
        return first < self.undecided.end and self.undecided.start < self.undecided.end

    def reach(self, first: Offset) -> Offset:
        """Up to where one comes who begins at `first`."""
        return self.cut if self.waits(first) else self.latest

    def divided(self, wanted: OffsetRange) -> Divided:
        """Where the offsets of a range are read, or that nobody has them."""
        cut = _within(self.cut, wanted)
        begins = _within(max(self.cut, self.begins), wanted)
        return Divided(
            OffsetRange(wanted.start, cut),
            OffsetRange(cut, begins),
            OffsetRange(begins, wanted.end),
        )


def joined(tp: TopicPartition, archived: LogOffsets | None, broker: BrokerLog | None) -> Log:
    """The log of a partition that one of the two has, at least.

    Raises:
        BrokerBehindError: the broker's log ends below the archive's.
    """
    if archived is None:
        if broker is None:
            raise ValueError(f"nobody has {tp}")
        return Log(
            broker.start,
            Offset(0),
            Offset(0),
            broker.start,
            broker.stable,
            broker.epoch,
            broker.high_watermark,
        )
    cut = archived.stable
    if broker is None:
        return Log(archived.start, cut, archived.end, cut, cut)
    if broker.high_watermark < archived.end:
        raise BrokerBehindError(
            tp,
            f"{in_words(tp)}: the archive ends at offset {archived.end}, and the broker's log at "
            f"{broker.high_watermark}",
            "the topic was created anew, or its log was truncated. --tail stop exports what is "
            "archived",
        )
    latest = max(cut, broker.stable)
    begins = max(cut, broker.start)
    high_watermark = broker.high_watermark
    return Log(archived.start, cut, archived.end, begins, latest, broker.epoch, high_watermark)


def require_same_topic(topic: str, known: str | None, found: str | None, whose: str) -> None:
    """Refuse the records of a topic that only has the name of the one that was exported before.

    Raises:
        OtherTopicError: both ids are known, and differ.
    """
    if None not in {known, found} and known != found:
        raise OtherTopicError(
            f"topic {topic}: {whose} has the topic id {known}, and what comes next is of {found}: "
            "the topic was deleted and created again. Export the new one into another place; where "
            "the archive still has the old one, --tail stop exports that"
        )


def missing_of(tp: TopicPartition, span: OffsetRange) -> tuple[Missing, ...]:
    """What nobody has of a range."""
    return (Missing(tp, span, GONE),) if span.start < span.end else ()


def _within(offset: Offset, wanted: OffsetRange) -> Offset:
    return min(max(offset, wanted.start), wanted.end)
