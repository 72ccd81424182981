"""Decide which segments of an archive are past their retention. Pure functions."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sidetier.archive.objects.segment import StoredLog
from sidetier.config.times import time_text
from sidetier.config.units import format_duration, format_size
from sidetier.segments.offsets import Offset

_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention of a partition's archive. A segment past either limit is deleted, as in Kafka.

    Attributes:
        age: Maximum age of a segment's newest record, in seconds; None for no limit.
        size: Size of the `.log` objects that are kept at least, in bytes; None for no limit.
    """

    age: float | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What the retention of one segment depends on.

    Attributes:
        next_offset: The offset after its last.
        timestamp_ms: Its largest record timestamp, in ms since 1970. If no record has a timestamp,
            or Pinterest's uploader stored it, the time at which it was stored.
    """

    next_offset: Offset
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Need:
    """The lowest offset of a partition that a consumer has not read yet.

    Attributes:
        offset: That offset.
        consumer: The consumer, such as `consumer group billing`.
        topic_id: Id of the topic that the offset is of, as Kafka writes ids; None if the consumer
            does not know it.
    """

    offset: Offset
    consumer: str
    topic_id: str | None


def other_topic(need: Need, archived_id: str | None) -> str | None:
    """Tell why the offset of a need may be of another topic than the archive's; None if it is not.

    An offset of a deleted topic has no meaning in a topic of the same name that was created later.
    Both sides lack an id if the archive is of Pinterest's uploader, or of brokers before 2.8.
    """
    if need.topic_id == archived_id:
        return None
    if need.topic_id is None:
        return (
            f"{need.consumer}: it has no topic id with its offset, and the archive has "
            f"{archived_id}: the offset may be of a deleted topic of the same name, until it "
            "continues and stores the id"
        )
    if archived_id is None:
        return (
            f"{need.consumer}: its offset is of topic id {need.topic_id}, and the archive "
            "has no topic id: the offset may be of a deleted topic of the same name"
        )
    return (
        f"{need.consumer}: its offset is of another topic of the same name: topic id "
        f"{need.topic_id}, and the archive has {archived_id}"
    )


@dataclass(frozen=True, slots=True)
class Expired:
    """The oldest segments, which are past their retention.

    Attributes:
        segments: Their number; 0 if nothing is past its retention.
        start: The start of the archive without them.
        reason: Why the segment at `start` is kept.
    """

    segments: int
    start: Offset
    reason: str


def expired_segments(
    logs: Sequence[StoredLog],
    start: Offset,
    retention: Retention,
    facts: Callable[[StoredLog], SegmentFacts],
    needs: Iterable[Need],
    now_ms: int,
) -> Expired:
    """Return the oldest segments that can be deleted. The newest segment is always kept.

    The archive stays contiguous: only segments at its start are deleted, oldest first, and the new
    start is the base offset of a segment. If segments overlap, no offset at or above the new start
    is deleted with a segment below it.

    Args:
        logs: The segments of the archive, by ascending base offset; at least one.
        start: The start of the archive.
        retention: The limits.
        facts: Reads a segment. It is called for deleted segments, and for at most one more.
        needs: What the consumers still need.
        now_ms: The present time in ms since 1970.
    """
    need = min(needs, key=lambda need: need.offset, default=None)
    kept = sum(log.size for log in logs)
    count, reached = 0, Offset(0)
    reason = "the newest segment is always kept"
    for index, log in enumerate(logs[:-1]):
        following = logs[index + 1].base_offset
        is_past_size = retention.size is not None and kept - log.size >= retention.size
        if retention.age is None and not is_past_size:
            reason = _kept_bytes(retention)
            break
        known = facts(log)
        is_past_age = (
            retention.age is not None and now_ms - known.timestamp_ms > retention.age * _MS
        )
        if not is_past_age and not is_past_size:
            reason = _within(log, known, retention, now_ms)
            break
        if need is not None and following > need.offset:
            reason = f"{need.consumer} still needs offset {need.offset}"
            break
        reached = max(reached, known.next_offset)
        kept -= log.size
        # If this segment reaches beyond the base offset of the next one, both are deleted or none.
        if reached <= following:
            count = index + 1
    else:
        if count < len(logs) - 1:
            reason = f"an older segment overlaps the segment {logs[count + 1].base_offset}"
    return Expired(count, Offset(logs[count].base_offset) if count else start, reason)


def _kept_bytes(retention: Retention) -> str:
    return f"less than bytes: {format_size(retention.size or 0)} would be left"


def _within(log: StoredLog, facts: SegmentFacts, retention: Retention, now_ms: int) -> str:
    if retention.age is None:
        return _kept_bytes(retention)
    moment = time_text(facts.timestamp_ms)
    if facts.timestamp_ms > now_ms:
        return f"segment {log.base_offset} has a record with a timestamp in the future, {moment}"
    return (
        f"segment {log.base_offset} has a record of {moment}, which is within "
        f"age: {format_duration(retention.age)}"
    )
