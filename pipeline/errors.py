"""What a read of an archive can meet, besides what reading archives raises.

::

    ConfigurationError
    └── NoSuchTopicError        a topic or partition that was named is not stored
    ArchiveError
    ├── MissingRecordsError     offsets that were asked for are not stored, and that is an error
    ├── UndecidedRecordsError   a transaction that nothing stored decides is in the way
    ├── TimestampRangeError     a record's timestamp does not fit into a timestamp column
    ├── StreamBehindError       the archive ends before the place where a stream stands
    ├── StreamTruncatedError    brokers have thrown away records that a stream has read
    └── StreamTopicReplacedError    a stream's topic was deleted and created again
"""

from collections.abc import Sequence
from typing import Final

from sidetier.pipeline.export.epoch_history import Truncated
from sidetier.pipeline.planning.names import in_words
from sidetier.pipeline.planning.split import UNDECIDED, Missing
from sidetier.pipeline.reading.timestamps import reason
from sidetier.segments.errors import ArchiveError, ConfigurationError
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition

_MOST_TOLD: Final = 5


class NoSuchTopicError(ConfigurationError):
    """A topic or partition that was named is not stored; the text says where it was looked for."""


class MissingRecordsError(ArchiveError):
    """Offsets that were asked for are not stored: `missing`. The text names topic, partition and
    offsets of each, of the first few where there are many.
    """

    def __init__(self, missing: Sequence[Missing]) -> None:
        told = "; ".join(describe_missing(one) for one in missing[:_MOST_TOLD])
        more = len(missing) - _MOST_TOLD
        rest = f"; and {more} more" if more > 0 else ""
        super().__init__(
            f"records that were asked for are not stored: {told}{rest}. To read on without them, "
            "and have them counted, set failOnDataLoss to false (exports: --on-data-loss skip)"
        )
        self.missing = tuple(missing)

    def __reduce__(self) -> tuple[type["MissingRecordsError"], tuple[tuple[Missing, ...]]]:
        """So that it can be sent from executors."""
        return MissingRecordsError, (self.missing,)


class UndecidedRecordsError(ArchiveError):
    """Records that nothing stored shows to be committed or aborted yet. Never stepped over: once
    they are decided, whoever had gone on behind them would have lost them.
    """

    def __init__(self, tp: TopicPartition, span: OffsetRange) -> None:
        super().__init__(
            f"{in_words(tp)}, offsets {span}: {UNDECIDED}. Read again "
            f"once more is stored, or only up to offset {span.start} (endingOffsets)"
        )
        self.tp, self.range = tp, span

    def __reduce__(
        self,
    ) -> tuple[type["UndecidedRecordsError"], tuple[TopicPartition, OffsetRange]]:
        """So that it can be sent from executors."""
        return UndecidedRecordsError, (self.tp, self.range)


class TimestampRangeError(ArchiveError):
    """A record's timestamp, in ms since 1970, does not fit into a timestamp column."""

    def __init__(self, tp: TopicPartition, offset: Offset, timestamp_ms: int) -> None:
        super().__init__(
            f"{in_words(tp)}, offset {offset}: {reason(timestamp_ms)}. Read without the column "
            "timestamp, or only other offsets"
        )
        self.tp, self.offset, self.timestamp_ms = tp, offset, timestamp_ms

    def __reduce__(self) -> tuple[type["TimestampRangeError"], tuple[TopicPartition, Offset, int]]:
        """So that it can be sent from executors."""
        return TimestampRangeError, (self.tp, self.offset, self.timestamp_ms)


class StreamBehindError(ArchiveError):
    """The archive ends before the place where a stream stands: it is another topic's by now, or
    was cut.
    """

    def __init__(self, tp: TopicPartition, stands: Offset, end: Offset) -> None:
        super().__init__(
            f"{in_words(tp)}: the stream stands at offset {stands}, and the archive ends at {end}: "
            "the topic was created again, or brokers have thrown records away and what replaces "
            "them is not archived yet. Begin with another checkpoint, or set failOnDataLoss to "
            "false to wait until the archive has come that far"
        )
        self.tp, self.stands, self.end = tp, stands, end

    def __reduce__(self) -> tuple[type["StreamBehindError"], tuple[TopicPartition, Offset, Offset]]:
        """So that it can be sent from executors."""
        return StreamBehindError, (self.tp, self.stands, self.end)


class StreamTruncatedError(ArchiveError):
    """An unclean election has thrown away records that a stream has read already: `truncated`."""

    def __init__(self, truncated: Sequence[Truncated]) -> None:
        told = "; ".join(str(one) for one in truncated[:_MOST_TOLD])
        more = len(truncated) - _MOST_TOLD
        rest = f"; and {more} more" if more > 0 else ""
        super().__init__(
            "the brokers have thrown away records that the stream has read already (an unclean "
            f"leader election), and have others in their place: {told}{rest}. Set onTruncation to "
            "reread to read what replaces them, or begin with another checkpoint"
        )
        self.truncated = tuple(truncated)

    def __reduce__(self) -> tuple[type["StreamTruncatedError"], tuple[tuple[Truncated, ...]]]:
        """So that it can be sent between processes."""
        return StreamTruncatedError, (self.truncated,)


class StreamTopicReplacedError(ArchiveError):
    """The topic that is archived only has the name of the one that a stream has read."""

    def __init__(self, topic: str, known: str, now: str) -> None:
        super().__init__(
            f"topic {topic}: the stream has read the topic with the id {known}, and the archive is "
            f"that of {now}: the topic was deleted and created again. Begin with another "
            "checkpoint, or set failOnDataLoss to false to read the new topic from its start"
        )
        self.topic, self.known, self.now = topic, known, now

    def __reduce__(self) -> tuple[type["StreamTopicReplacedError"], tuple[str, str, str]]:
        """So that it can be sent between processes."""
        return StreamTopicReplacedError, (self.topic, self.known, self.now)


def describe_missing(missing: Missing) -> str:
    """Topic, partition, offsets, and why."""
    span = missing.range
    return f"{in_words(missing.tp)}, offsets {span} ({missing.detail})"
