"""A partition's log as an export reads it: first the archive, then the broker. Pure.

The border between both is fixed once, by one snapshot of each. The archive's is taken first, since
the archive has only records that the broker has committed. Borders are offsets, not records:
transaction markers, aborted records and compacted records leave gaps between records.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sidetier.pipeline.export.errors import BrokerBehindError, OtherTopicError
from sidetier.pipeline.planning.log_offsets import LogOffsets
from sidetier.pipeline.planning.split import Missing, in_words
from sidetier.segments.offsets import LeaderEpoch, Offset, OffsetRange, TopicPartition

GONE: Final = (
    "the broker has deleted them, and they are not archived; a sidecar that still holds them will "
    "archive them: run the export again then"
)


@dataclass(frozen=True, slots=True)
class BrokerLog:
    """The offsets of one partition on its broker.

    Attributes:
        start: the log start offset.
        last_stable_offset: end of the readable records, exclusive; with read_uncommitted, the high
            watermark.
        high_watermark: the high watermark: end of the committed records, exclusive.
        epoch: newest leader epoch of the log. No record is of a later one.
    """

    start: Offset
    last_stable_offset: Offset
    high_watermark: Offset
    epoch: LeaderEpoch | None = None


@dataclass(frozen=True, slots=True)
class BrokerTopic:
    """A topic as the brokers have it. The ids of topic and cluster are None if brokers
    give none.
    """

    topic_id: str | None
    logs: Mapping[int, BrokerLog]
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True)
class Divided:
    """A range of offsets, divided by where they are read. Each part may be empty.

    Attributes:
        archived: offsets to read from the archive.
        gone: offsets that are neither archived nor on the broker.
        on_broker: offsets to read from the broker.
    """

    archived: OffsetRange
    gone: OffsetRange
    on_broker: OffsetRange


@dataclass(frozen=True, slots=True)
class Log:
    """One partition's log over archive and broker.

    Attributes:
        earliest: the first offset that archive or broker have.
        cut: end of the offsets that are read from the archive, exclusive: those that are stored and
            decided.
        stored: end of the archived offsets, exclusive, decided or not.
        begins: start of the offsets that are read from the broker: `cut`, or the broker's log start
            if it is higher.
        latest: end of the readable offsets, exclusive.
        epoch: see `BrokerLog`.
        high_watermark: see `BrokerLog`; None if the brokers do not have the partition.
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
        """Whether offsets between archive and broker are in neither."""
        return 0 < self.stored < self.begins

    @property
    def undecided(self) -> OffsetRange:
        """Offsets of the archive that only deleted records of the broker would decide; usually
        empty.

        They are never skipped. The archive decides them once it has stored the end of the
        transaction.
        """
        return OffsetRange(self.cut, max(self.cut, min(self.stored, self.begins)))

    def waits(self, first: Offset) -> bool:
        """Return whether an export that starts at `first` must wait for the archive."""
        return first < self.undecided.end and self.undecided.start < self.undecided.end

    def reach(self, first: Offset) -> Offset:
        """Return the offset, exclusive, up to which an export can read from `first`."""
        return self.cut if self.waits(first) else self.latest

    def divided(self, wanted: OffsetRange) -> Divided:
        """Divide a range by where its offsets are read."""
        cut = _within(self.cut, wanted)
        begins = _within(max(self.cut, self.begins), wanted)
        return Divided(
            OffsetRange(wanted.start, cut),
            OffsetRange(cut, begins),
            OffsetRange(begins, wanted.end),
        )


def joined(tp: TopicPartition, archived: LogOffsets | None, broker: BrokerLog | None) -> Log:
    """Return the log of a partition that archive or broker have, or both.

    Raises:
        BrokerBehindError: the broker's log ends below the archive's.
        ValueError: neither has the partition.
    """
    if archived is None:
        if broker is None:
            raise ValueError(f"nobody has {tp}")
        return Log(
            broker.start,
            Offset(0),
            Offset(0),
            broker.start,
            broker.last_stable_offset,
            broker.epoch,
            broker.high_watermark,
        )
    cut = archived.last_stable_offset
    if broker is None:
        return Log(archived.start, cut, archived.end, cut, cut)
    if broker.high_watermark < archived.end:
        raise BrokerBehindError(
            tp,
            f"{in_words(tp)}: the archive ends at offset {archived.end}, and the broker's log at "
            f"{broker.high_watermark}",
            "the topic was deleted and created again, or its log was truncated. --tail stop "
            "exports the archived records",
        )
    latest = max(cut, broker.last_stable_offset)
    begins = max(cut, broker.start)
    high_watermark = broker.high_watermark
    return Log(archived.start, cut, archived.end, begins, latest, broker.epoch, high_watermark)


def require_same_topic(topic: str, known: str | None, present: str | None, owner: str) -> None:
    """Check that the next records belong to the same topic as those that were exported.

    Raises:
        OtherTopicError: both topic ids are known, and they differ.
    """
    if None not in {known, present} and known != present:
        raise OtherTopicError(
            f"topic {topic}: {owner} has the topic id {known}, but the next records have "
            f"{present}: the topic was deleted and created again. Export the new one into another "
            "place; where the archive still has the old one, --tail stop exports that"
        )


def missing_of(tp: TopicPartition, span: OffsetRange) -> tuple[Missing, ...]:
    """Return a range that neither archive nor broker have; nothing if it is empty."""
    return (Missing(tp, span, GONE),) if span.start < span.end else ()


def _within(offset: Offset, wanted: OffsetRange) -> Offset:
    return min(max(offset, wanted.start), wanted.end)
