"""Positions in a topic, such as a time or an offset before the end, and the ranges between them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from sidetier.config.times import FORMS as TIMES
from sidetier.config.times import HIGHEST, is_before_now, parse_time
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import OffsetRange, TopicPartition

_OFFSET: Final = re.compile(r"-?\d{1,19}")
FORMS: Final = (
    f"an offset (1234), a number of records before the end (-100), {TIMES}, beginning or end"
)


class PositionKind(Enum):
    """Meaning of a position's number."""

    BEGINNING = auto()
    END = auto()
    OFFSET = auto()
    BEFORE_END = auto()
    """Number of offsets before the end."""
    TIME = auto()
    """Milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position in every partition; `kind` is the meaning of `number`."""

    kind: PositionKind
    number: int = 0


BEGINNING: Final = Position(PositionKind.BEGINNING)
END: Final = Position(PositionKind.END)


def parse_position(text: str, now_ms: int) -> Position:
    """Parse a position. Times before now are relative to `now_ms`, in ms since 1970.

    Raises:
        ValueError: The text has none of the `FORMS`.
    """
    word = text.strip()
    if word.lower() in ("beginning", "end"):
        return BEGINNING if word.lower() == "beginning" else END
    if _OFFSET.fullmatch(word):
        number = int(word)
        if abs(number) > HIGHEST:
            raise ValueError(f"{text!r} is beyond any offset")
        if word.startswith("-"):
            return Position(PositionKind.BEFORE_END, -number)
        return Position(PositionKind.OFFSET, number)
    try:
        return Position(PositionKind.TIME, parse_time(word, now_ms))
    except ValueError as error:
        if word.startswith("@") or is_before_now(word):
            raise
        raise ValueError(f"{text!r} is neither {FORMS}") from error


def offset_of(position: Position, bounds: OffsetRange, at_time: Callable[[int], int | None]) -> int:
    """Return the offset of a position in a partition with these bounds.

    `at_time` returns the offset of the first record with a timestamp (ms) or a later one. If it
    returns None, the position is the end of the partition.
    """
    if position.kind is PositionKind.BEGINNING:
        return bounds.start
    if position.kind is PositionKind.OFFSET:
        return position.number
    if position.kind is PositionKind.BEFORE_END:
        return max(bounds.start, bounds.end - position.number)
    offset = at_time(position.number) if position.kind is PositionKind.TIME else None
    return bounds.end if offset is None else offset


def is_above(begin: Position, end: Position) -> bool:
    """Return whether the range between the two positions is empty in every possible partition.

    False if that depends on the partition: for an offset and a time, for example.
    """
    if begin.kind is end.kind is PositionKind.BEFORE_END:
        return begin.number < end.number
    if begin.kind is end.kind:
        return begin.number > end.number
    return begin.kind is PositionKind.END and end.kind in {
        PositionKind.BEGINNING,
        PositionKind.BEFORE_END,
    }


class Bounded(Protocol):
    """Partitions of one topic, and their readable offsets. Every method raises SidetierError when
    the source refuses or does not answer.
    """

    def partitions(self) -> Sequence[int]:
        """Return the topic's partition numbers in rising order; raise if there are none."""
        ...

    def bounds(self, tp: TopicPartition) -> OffsetRange:
        """Return the offsets of a partition that are readable now; raise if there are none."""
        ...

    def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> int | None:
        """Return the offset of the first record with this timestamp or a later one, or None."""
        ...


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """A range of one partition.

    Attributes:
        tp: The partition.
        start: First offset.
        end: End offset, exclusive; None for a range without an end.
    """

    tp: TopicPartition
    start: int
    end: int | None


_MAX_LINES: Final = 10


def plan_ranges(  # noqa: PLR0913 -- the range, and three that have a default
    source: Bounded,
    topic: str,
    begin: Position,
    end: Position,
    now_ms: int,
    *,
    partitions: Sequence[int] = (),
    follow: bool = False,
    on_note: Callable[[str], None] = lambda _: None,
) -> list[PartitionRange]:
    """Return the range of each partition, with the positions resolved to offsets.

    Args:
        source: The topic's partitions.
        topic: Name of the topic.
        begin: First position, inclusive.
        end: Last position, exclusive.
        now_ms: The present time in ms since 1970.
        partitions: Numbers of the partitions; empty for all.
        follow: Return ranges without an end.
        on_note: Receives the reason why a partition has an empty range.

    Raises:
        ConfigurationError: The topic or a partition does not exist. Or the range begins in the
            future, or is beyond the end or empty in every partition.
    """
    if begin.kind is PositionKind.TIME and begin.number > now_ms:
        raise ConfigurationError("--from is in the future")
    planned = [
        _range(source, TopicPartition(topic, number), begin, end, follow=follow)
        for number in partitions or source.partitions()
    ]
    problems = [problem for _, problem in planned if problem is not None]
    if planned and len(problems) == len(planned):
        raise ConfigurationError("\n".join(problems[:_MAX_LINES]))
    for problem in problems:
        on_note(problem)
    return [range_ for range_, _ in planned]


def _range(
    source: Bounded, tp: TopicPartition, begin: Position, end: Position, *, follow: bool
) -> tuple[PartitionRange, str | None]:
    """Return the range, and a problem if it begins beyond the partition's end or above `--to`."""
    bounds: OffsetRange = source.bounds(tp)

    def at_time(timestamp: int) -> int | None:
        return source.offset_for_time(tp, timestamp)

    first = offset_of(begin, bounds, at_time)
    if follow:
        return PartitionRange(tp, first, None), None
    requested_end = offset_of(end, bounds, at_time)
    problem = None
    if first > bounds.end:
        problem = f"{tp}: --from is offset {first}, beyond the end, offset {bounds.end} (exclusive)"
    elif first > requested_end:
        problem = f"{tp}: --from is offset {first}, above --to, offset {requested_end}"
    return PartitionRange(tp, first, max(first, min(requested_end, bounds.end))), problem
