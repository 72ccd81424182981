"""Decide how far a log may be trimmed. Pure functions.

Local retention works as in Kafka's own tiered storage: a closed segment may go as soon as its age
or the size of the log allows it (`local.retention.ms`, `local.retention.bytes`), and only as a
whole, because only whole segments free disk. On top of that, a log is never trimmed beyond its
archive end offset, nor beyond the committed offset of a protected consumer group.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sidetier.config.model import INTERNAL_TOPICS
from sidetier.config.retention import INTERNAL_PREFIX, LocalRetentionConfig
from sidetier.leadership.port import TopicConfig
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.segments.transactions import StableEnd


class Hindrance(StrEnum):
    """Why records beyond local retention stay on the broker. The values are labels of metrics."""

    ARCHIVE_BEHIND = "archive_behind"
    """They are not archived yet."""
    ARCHIVE_CHANGED = "archive_changed"
    """Another sidecar has written the archive, or a part of it is being moved to quarantine."""
    ARCHIVE_UNKNOWN = "archive_unknown"
    """The archive has not been read yet, or must be read again."""
    EPOCHS_DIFFER = "epochs_differ"
    """The archive is not known to have the leader epochs of the log."""
    GROUP_BEHIND = "group_behind"
    """A protected consumer group has not committed them."""
    GROUPS_UNKNOWN = "groups_unknown"
    """The committed offsets of protected consumer groups cannot be read."""
    LEADERSHIP_UNCONFIRMED = "leadership_unconfirmed"
    """The broker does not confirm that it leads in the known leader epoch."""
    OBJECT_MISSING = "object_missing"
    """The store does not have a segment that `offset.wm` covers, or not all of its files."""
    OBJECT_UNVERIFIED = "object_unverified"
    """The checksum, size or metadata of a stored segment does not prove that it is the log's."""
    PARTITION_HELD = "partition_held"
    """The partition is halted, or an error holds it back."""
    RATE_LIMIT = "rate_limit"
    """`retention.local.max_bytes_per_second` leaves them to a later pass."""
    REQUEST_FAILED = "request_failed"
    """A request to the store or the broker has failed."""
    TOPIC_CONFIG_UNKNOWN = "topic_config_unknown"
    """The broker has not reported the topic's configuration."""
    TOPIC_ID_UNKNOWN = "topic_id_unknown"
    """The log has no topic id, so the archive could be that of an earlier topic of this name."""
    TOPIC_REFUSED = "topic_refused"
    """The topic is internal, compacted, or tiered by the broker itself."""
    TRANSACTION_OPEN = "transaction_open"
    """The end of a transaction that has begun among them is not archived yet."""
    TRANSACTIONS_UNKNOWN = "transactions_unknown"
    """The log has no producer snapshot that shows which transactions are open."""


EXPECTED_HINDRANCES: Final = frozenset(
    {
        Hindrance.ARCHIVE_BEHIND,
        Hindrance.GROUP_BEHIND,
        Hindrance.RATE_LIMIT,
        Hindrance.TRANSACTION_OPEN,
    }
)
"""Hindrances that pass by themselves, or that the operator has configured."""
_START_OF_LOG: Final = Offset(0)


@dataclass(frozen=True, slots=True)
class Held:
    """Why records beyond local retention stay: the kind, and a sentence for people."""

    hindrance: Hindrance
    text: str


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """A segment in the broker's log.

    Attributes:
        base_offset: Its base offset.
        end: Its next offset; None for the active segment.
        size: Size of its `.log` in bytes.
        largest_timestamp: Largest timestamp of its records, in seconds since 1970.
    """

    base_offset: BaseOffset
    end: Offset | None
    size: int
    largest_timestamp: float


@dataclass(frozen=True, slots=True)
class Trim:
    """The decision about one partition.

    Attributes:
        topic_partition: The partition.
        segments: The segments of its log, by ascending base offset.
        retained_from: Where local retention begins: the base offset of the oldest segment that it
            keeps.
        end: The new log start offset: the base offset of a segment. Equal to `start` if nothing is
            trimmed.
        held: Why `end` is below `retained_from`; None if it is not.
        log_start: The log start offset, as far as it is known; it may be within a segment.
    """

    topic_partition: TopicPartition
    segments: tuple[LocalSegment, ...]
    retained_from: Offset
    end: Offset
    held: Held | None = None
    log_start: Offset = _START_OF_LOG

    @property
    def start(self) -> Offset:
        """Base offset of the log's first segment."""
        return Offset(self.segments[0].base_offset) if self.segments else self.end

    @property
    def first_deleted(self) -> Offset:
        """The first offset whose record the trim deletes."""
        return max(self.start, self.log_start)

    @property
    def size(self) -> int:
        """Bytes that the trim frees."""
        return self._bytes_below(self.end)

    @property
    def excess(self) -> int:
        """Bytes beyond local retention that stay."""
        return self._bytes_below(self.retained_from) - self.size

    def _bytes_below(self, end: Offset) -> int:
        return sum(
            segment.size
            for segment in self.segments
            if segment.end is not None and segment.end <= end
        )

    def up_to(self, limit: Offset, held: Held) -> "Trim":
        """Return the trim that goes no further than `limit`, to the boundary of a segment.

        It is the same trim if it does not go further anyway. `held` is the reason otherwise.
        """
        if limit >= self.end:
            return self
        boundaries = [s.base_offset for s in self.segments if s.base_offset <= limit]
        end = Offset(boundaries[-1]) if boundaries else self.start
        return replace(self, end=min(end, self.end), held=held)

    def none(self, held: Held) -> "Trim":
        """Return the decision to trim nothing."""
        return replace(self, end=self.start, held=held)


def retained_from(
    segments: Sequence[LocalSegment], age: float | None, size: int | None, now: float
) -> Offset | None:
    """Return the base offset of the oldest segment that local retention keeps.

    Args:
        segments: The log's segments, by ascending base offset.
        age: Age in seconds beyond which a segment may go; None for no limit.
        size: Bytes of the log that must stay; None for no limit.
        now: Seconds since 1970.

    Returns:
        None for a log without segments.
    """
    surplus = sum(segment.size for segment in segments) - (0 if size is None else size)
    by_age, by_size = age is not None, size is not None
    for segment in segments:
        # As in Kafka, from the oldest on: by age and by size, each up to the first segment that
        # has to stay.
        by_age = by_age and age is not None and segment.largest_timestamp + age < now
        surplus -= segment.size
        by_size = by_size and surplus >= 0
        if segment.end is None or not (by_age or by_size):
            return Offset(segment.base_offset)
    # Without an active segment the log is being created or deleted: nothing goes.
    return Offset(segments[0].base_offset) if segments else None


def topic_hindrance(topic: str, config: TopicConfig | None) -> Held | None:
    """Return why the records of a topic must not be deleted; None where they may.

    Args:
        topic: Its name.
        config: Its configuration; None if the brokers have not reported it.
    """
    if topic in INTERNAL_TOPICS or topic.startswith(INTERNAL_PREFIX):
        return Held(Hindrance.TOPIC_REFUSED, "the topic is internal")
    if config is None:
        return Held(
            Hindrance.TOPIC_CONFIG_UNKNOWN,
            "the broker has not reported the topic's configuration",
        )
    if config.native_tiering:
        return Held(Hindrance.TOPIC_REFUSED, "the topic has remote.storage.enable=true")
    if not config.only_deleted:
        return Held(Hindrance.TOPIC_REFUSED, "the topic's cleanup.policy is not delete alone")
    return None


def topic_id_hindrance(topic_id: str | None) -> Held | None:
    """Return why a log without a topic id must not be trimmed; None where it has one."""
    if topic_id is not None:
        return None
    return Held(
        Hindrance.TOPIC_ID_UNKNOWN,
        "the log has no topic id (partition.metadata), and without one it is never trimmed: the "
        "archive could be that of a deleted topic of this name. Kafka gives topics ids from 2.8 on "
        "(inter.broker.protocol.version)",
    )


def decide(
    topic_partition: TopicPartition,
    segments: Sequence[LocalSegment],
    archived_to: Offset | None,
    held: Held | None,
    local: LocalRetentionConfig,
    now: float,
) -> Trim | None:
    """Decide how far to trim a log, as far as the sidecar knows without a request.

    Args:
        topic_partition: The partition.
        segments: The segments of its log, by ascending base offset.
        archived_to: Its archive end offset, exclusive; None if it is not known.
        held: Why nothing of the partition may be trimmed; None if it may.
        local: The settings.
        now: Seconds since 1970.

    Returns:
        None if all of the log is within local retention.
    """
    kept = retained_from(segments, local.age, local.bytes, now)
    if kept is None or kept <= segments[0].base_offset:
        return None
    trim = Trim(topic_partition, tuple(segments), kept, kept)
    if held is not None:
        return trim.none(held)
    if archived_to is None:
        return trim.none(Held(Hindrance.ARCHIVE_UNKNOWN, "the archive has not been read"))
    return bounded_by_archive(trim, archived_to)


def bounded_by_archive(trim: Trim, archived_to: Offset) -> Trim:
    """Return the trim that does not pass the archive end offset."""
    behind = Held(Hindrance.ARCHIVE_BEHIND, f"the log is archived up to {archived_to}")
    return trim.up_to(archived_to, behind)


def bounded_by_transactions(trim: Trim, stable: StableEnd | None) -> Trim:
    """Return the trim that does not pass the last stable offset of the archive.

    Otherwise a transaction would have its beginning in the archive alone, and its end on the broker
    alone: a reader of committed records could read it in neither.

    Args:
        trim: The decision so far.
        stable: The end of the decided part; None if it is not known.
    """
    if stable is None:
        return trim.up_to(
            trim.start,
            Held(
                Hindrance.TRANSACTIONS_UNKNOWN,
                "the log has no readable producer snapshot (<base offset>.snapshot) at or below "
                "the archive end offset, so it is not known which transactions are open",
            ),
        )
    if stable.producer_id is None:
        text = f"the log has no readable producer snapshot between offset {stable.offset} and "
        text += "the archive end offset, so it is not known which transactions are open"
        return trim.up_to(stable.offset, Held(Hindrance.TRANSACTIONS_UNKNOWN, text))
    text = (
        f"a transaction of producer {stable.producer_id} began at offset {stable.offset}, and its "
        "end is not archived yet"
    )
    return trim.up_to(stable.offset, Held(Hindrance.TRANSACTION_OPEN, text))


def bounded_by_groups(trim: Trim, committed: Iterable[tuple[str, Offset]]) -> Trim:
    """Return the trim that passes no committed offset of these protected groups."""
    for group, offset in committed:
        behind = f"group {group} has committed offset {offset}, and is protected"
        trim = trim.up_to(offset, Held(Hindrance.GROUP_BEHIND, behind))
    return trim


_LATER: Final = Held(
    Hindrance.RATE_LIMIT, "retention.local.max_bytes_per_second leaves them to a later pass"
)


def within_rate(trims: Sequence[Trim], budget: int | None) -> list[Trim]:
    """Return the trims that fit into a number of bytes; the partitions with most to free go first.

    At least one segment is trimmed, however large it is: otherwise a large segment would never be.
    """
    if budget is None:
        return list(trims)
    left, limited = budget, dict[TopicPartition, Trim]()
    began = False
    for trim in sorted(trims, key=lambda candidate: candidate.size, reverse=True):
        end = trim.start
        for segment in trim.segments:
            if segment.end is None or segment.end > trim.end:
                break
            if segment.size > left and began:
                break
            left, end, began = left - segment.size, segment.end, True
        limited[trim.topic_partition] = trim.up_to(end, _LATER)
    return [limited[trim.topic_partition] for trim in trims]
