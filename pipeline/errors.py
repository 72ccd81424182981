"""Errors of reads by the pipeline, in addition to those of the archive reader.

::

    ConfigurationError
    └── NoSuchTopicError        a named topic or partition is not stored
    ArchiveError
    ├── MissingRecordsError     requested offsets are not stored, and failOnDataLoss is true
    ├── UndecidedRecordsError   nothing stored shows whether a transaction was committed
    ├── TailPackGoneError       records of the plan are in no tail pack any more
    ├── TimestampRangeError     a record's timestamp does not fit into a timestamp column
    ├── StreamBehindError       the archive ends below the stream's next offset
    ├── StreamTruncatedError    brokers have discarded records that a stream has read
    └── StreamTopicReplacedError    a stream's topic was deleted and created again
"""

from collections.abc import Sequence
from typing import Final

from sidetier.pipeline.export.epoch_history import Truncated
from sidetier.pipeline.planning.split import UNDECIDED, Missing, in_words
from sidetier.pipeline.reading.timestamps import reason
from sidetier.segments.errors import ArchiveError, ConfigurationError
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

_MAX_LISTED: Final = 5


class NoSuchTopicError(ConfigurationError):
    """A named topic or partition is not stored. The text says where it was searched."""


class MissingRecordsError(ArchiveError):
    """Requested offsets are not stored.

    The text names topic, partition and offsets of the first few ranges.

    Attributes:
        missing: all missing ranges.
    """

    def __init__(self, missing: Sequence[Missing]) -> None:
        listed = "; ".join(describe_missing(gap) for gap in missing[:_MAX_LISTED])
        more = len(missing) - _MAX_LISTED
        rest = f"; and {more} more" if more > 0 else ""
        super().__init__(
            f"requested records are not stored: {listed}{rest}. To skip and count them, set "
            "failOnDataLoss to false (exports: --on-data-loss skip)"
        )
        self.missing = tuple(missing)

    def __reduce__(self) -> tuple[type["MissingRecordsError"], tuple[tuple[Missing, ...]]]:
        """Make the error picklable, so that executors can send it."""
        return MissingRecordsError, (self.missing,)


class UndecidedRecordsError(ArchiveError):
    """Nothing stored shows yet whether these records were committed or aborted.

    They are never skipped: they may be committed later, and a reader that had skipped them would
    have lost them.

    Attributes:
        range: the undecided offsets.
    """

    def __init__(self, tp: TopicPartition, span: OffsetRange) -> None:
        super().__init__(
            f"{in_words(tp)}, offsets {span}: {UNDECIDED}. Read again when later segments are "
            f"stored, or read only up to offset {span.start} (endingOffsets)"
        )
        self.tp, self.range = tp, span

    def __reduce__(
        self,
    ) -> tuple[type["UndecidedRecordsError"], tuple[TopicPartition, OffsetRange]]:
        """Make the error picklable, so that executors can send it."""
        return UndecidedRecordsError, (self.tp, self.range)


class TailPackGoneError(ArchiveError):
    """Records were in a tail pack when the read was planned, and are neither in the archive nor in
    another pack now. They are never skipped.

    Attributes:
        range: the offsets.
    """

    retry = True

    def __init__(self, tp: TopicPartition, span: OffsetRange) -> None:
        super().__init__(
            f"{in_words(tp)}, offsets {span}: the tail pack that had these records when the read "
            "was planned cannot be read, and neither the archive nor another pack has them now. "
            "Run the query again, so that it is planned with the packs that exist; `sidetier tail "
            "status` shows what they have"
        )
        self.tp, self.range = tp, span

    def __reduce__(self) -> tuple[type["TailPackGoneError"], tuple[TopicPartition, OffsetRange]]:
        """Make the error picklable, so that executors can send it."""
        return TailPackGoneError, (self.tp, self.range)


class TimestampRangeError(ArchiveError):
    """A record's timestamp, in ms since 1970, does not fit into a timestamp column."""

    def __init__(self, tp: TopicPartition, offset: Offset, timestamp_ms: int) -> None:
        super().__init__(
            f"{in_words(tp)}, offset {offset}: {reason(timestamp_ms)}. Read without the column "
            "timestamp, or only other offsets"
        )
        self.tp, self.offset, self.timestamp_ms = tp, offset, timestamp_ms

    def __reduce__(self) -> tuple[type["TimestampRangeError"], tuple[TopicPartition, Offset, int]]:
        """Make the error picklable, so that executors can send it."""
        return TimestampRangeError, (self.tp, self.offset, self.timestamp_ms)


class StreamBehindError(ArchiveError):
    """The archive ends below a stream's next offset: it belongs to another topic now, or was
    truncated.

    Attributes:
        position: the stream's next offset.
        end: the end (exclusive) of what is read.
        where: what is read: the archive, perhaps with its tail.
    """

    def __init__(
        self, tp: TopicPartition, position: Offset, end: Offset, where: str = "the archive"
    ) -> None:
        super().__init__(
            f"{in_words(tp)}: the stream is at offset {position}, and {where} ends at {end}: "
            "the topic was created again, or the brokers have discarded records and the records "
            "that replace them are not archived yet. Begin with another checkpoint, or set "
            "failOnDataLoss to false to wait until the archive has reached that offset"
        )
        self.tp, self.position, self.end, self.where = tp, position, end, where

    def __reduce__(
        self,
    ) -> tuple[type["StreamBehindError"], tuple[TopicPartition, Offset, Offset, str]]:
        """Make the error picklable, so that executors can send it."""
        return StreamBehindError, (self.tp, self.position, self.end, self.where)


class StreamTruncatedError(ArchiveError):
    """An unclean election has discarded records that a stream has read.

    Attributes:
        truncated: the discarded offsets of each partition.
    """

    def __init__(self, truncated: Sequence[Truncated]) -> None:
        text = "; ".join(str(divergence) for divergence in truncated[:_MAX_LISTED])
        more = len(truncated) - _MAX_LISTED
        rest = f"; and {more} more" if more > 0 else ""
        super().__init__(
            "the brokers have discarded records that the stream has read (an unclean leader "
            f"election), and have other records at these offsets: {text}{rest}. Set onTruncation "
            "to reread to read the new records, or begin with another checkpoint"
        )
        self.truncated = tuple(truncated)

    def __reduce__(self) -> tuple[type["StreamTruncatedError"], tuple[tuple[Truncated, ...]]]:
        """Make the error picklable, so that it can be sent between processes."""
        return StreamTruncatedError, (self.truncated,)


class StreamTopicReplacedError(ArchiveError):
    """The archived topic has the same name as the topic that a stream has read, but another id.

    Attributes:
        known: id of the topic that the stream has read.
        now: id of the archived topic.
    """

    def __init__(self, topic: str, known: str, now: str) -> None:
        super().__init__(
            f"topic {topic}: the stream has read the topic with the id {known}, and the archive "
            f"has the topic with the id {now}: it was deleted and created again. Begin with "
            "another checkpoint, or set failOnDataLoss to false to read the new topic from its "
            "start"
        )
        self.topic, self.known, self.now = topic, known, now

    def __reduce__(self) -> tuple[type["StreamTopicReplacedError"], tuple[str, str, str]]:
        """Make the error picklable, so that it can be sent between processes."""
        return StreamTopicReplacedError, (self.topic, self.known, self.now)


def describe_missing(missing: Missing) -> str:
    """Return topic, partition, offsets and reason as text."""
    span = missing.range
    return f"{in_words(missing.tp)}, offsets {span} ({missing.detail})"
