"""Choice of the source that a partition is read from next: pure functions of the offsets of each
side.

A partition has one source at a time. The source changes only at these events:

- the partition is assigned, or the application seeks;
- Kafka refuses an offset (out of range, or none committed);
- the archive reader comes to the archive's end, to a gap, or to a failure;
- with `KAFKA_PREFERRED`, the archive reader reaches the offset that Kafka's log starts at.
"""

from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Final

from sidetier.segments.offsets import OffsetRange


class Mode(StrEnum):
    """`tiered.storage.mode`."""

    KAFKA_ONLY = "KAFKA_ONLY"
    KAFKA_PREFERRED = "KAFKA_PREFERRED"
    TIERED_STORAGE_PREFERRED = "TIERED_STORAGE_PREFERRED"
    TIERED_STORAGE_ONLY = "TIERED_STORAGE_ONLY"


class Reset(StrEnum):
    """`auto.offset.reset`. Each value has aliases in librdkafka; see `kafka_settings`."""

    EARLIEST = "earliest"
    LATEST = "latest"
    ERROR = "error"


class Logical(IntEnum):
    """Offsets without a position in the log; the values are librdkafka's."""

    END = -1
    BEGINNING = -2
    STORED = -1000
    INVALID = -1001


TAIL_BASE: Final = -2000
"""librdkafka's `OFFSET_TAIL(n)`, n records before the end, is `TAIL_BASE - n`."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings for decisions.

    Attributes:
        mode: `tiered.storage.mode`.
        reset: `auto.offset.reset`, applied to both sources as one log.
        skip_gaps: skip offsets that neither source has, instead of an error.
        patience: seconds to wait for the sidecar's upload of offsets that Kafka has deleted and the
            archive does not have yet. After that they count as a gap.
        report_end: return an event at the end of the archive (`enable.partition.eof`).
        has_file: the archive's settings are in the sidecar's file (`tiered.storage.config`). Errors
            then name the file's settings.
    """

    mode: Mode
    reset: Reset = Reset.LATEST
    skip_gaps: bool = False
    patience: float = 60.0
    report_end: bool = False
    has_file: bool = False


@dataclass(frozen=True, slots=True)
class Identity:
    """Kafka's ids of a topic and of its cluster; None where an id is not known.

    A name and an offset identify nothing: a topic may be deleted and created again.
    """

    topic_id: str | None = None
    cluster_id: str | None = None

    def differs(self, other: "Identity") -> bool:
        """Whether the two are certainly not the same topic."""
        return _differ(self.topic_id, other.topic_id) or _differ(self.cluster_id, other.cluster_id)

    def __str__(self) -> str:
        return f"topic id {self.topic_id or 'unknown'} of cluster {self.cluster_id or 'unknown'}"


UNKNOWN: Final = Identity()


def _differ(one: str | None, other: str | None) -> bool:
    return None not in {one, other} and one != other


@dataclass(frozen=True, slots=True)
class Archive:
    """What the store holds of a partition.

    Attributes:
        span: readable offsets; None where nothing of the cluster's topic is stored.
        unavailable: the store did not answer. `span` is None then, which does not mean that the
            archive is empty.
        gap: offsets within the span that cannot be read from the store.
        identity: the topic that was archived.
        verified: the cluster has this topic, by its id. False if an id is not known.
        foreign: another topic was archived here than the cluster has. `span` is None then.
    """

    span: OffsetRange | None = None
    unavailable: bool = False
    gap: OffsetRange | None = None
    identity: Identity = UNKNOWN
    verified: bool = False
    foreign: bool = False

    def holds(self, offset: int) -> bool:
        """Whether the store can be read from this offset on."""
        if self.unavailable or self.span is None or offset not in self.span:
            return False
        return self.gap is None or offset not in self.gap

    def next_start(self, offset: int) -> int | None:
        """Return the first readable offset above `offset`; None if there is none."""
        if self.span is None:
            return None
        if self.span.start > offset:
            return self.span.start
        if self.gap is not None and offset in self.gap and self.gap.end < self.span.end:
            return self.gap.end
        return None


@dataclass(frozen=True, slots=True)
class Facts:
    """Input of `decide`.

    Attributes:
        wanted: the next offset to return; `Logical.BEGINNING` or `END`; a tail offset; or None if
            the group has no committed offset.
        kafka: offsets in Kafka; None before Kafka was asked.
        archive: offsets in the store; None before the store was asked.
        refused: Kafka has refused `wanted` as out of range.
        recreated: `wanted` is an offset of a topic that was deleted. The facts are about the topic
            that has its name now.
    """

    wanted: int | None
    kafka: OffsetRange | None = None
    archive: Archive | None = None
    refused: bool = False
    recreated: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """More facts are needed: ask these sides, Kafka first, and decide again."""

    kafka: bool = False
    store: bool = False


@dataclass(frozen=True, slots=True)
class FromKafka:
    """Read from Kafka, from `offset` on.

    Attributes:
        reset: why `auto.offset.reset` replaced the wanted offset; empty if it did not.
    """

    offset: int
    reset: str = ""


@dataclass(frozen=True, slots=True)
class FromStore:
    """Read from the store, from `offset` on.

    Attributes:
        until: offset from which Kafka has the rest; None to read to the archive's end.
        reset: as in `FromKafka`.
    """

    offset: int
    until: int | None = None
    reset: str = ""


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Nothing can be read now. Ask both sides again after a backoff."""

    why: str


@dataclass(frozen=True, slots=True)
class Missing:
    """Neither side has the offsets from `first` (inclusive) to `end` (exclusive).

    Attributes:
        settled: False if the sidecar may still upload them: Kafka has deleted offsets that the
            archive has not reached yet.
    """

    first: int
    end: int
    settled: bool


@dataclass(frozen=True, slots=True)
class NoReset:
    """`auto.offset.reset` is `error`, and there is no valid offset to read from."""

    why: str


Decision = Ask | FromKafka | FromStore | RetryLater | Missing | NoReset


def decide(mode: Mode, reset: Reset, facts: Facts, *, broker: bool = True) -> Decision:
    """Return where to continue reading.

    Args:
        mode: any mode but `KAFKA_ONLY`, in which there is nothing to decide.
        reset: replacement for an offset that neither side has, below or above both.
        facts: the known facts about the partition.
        broker: False without brokers, which only `TIERED_STORAGE_ONLY` allows.
    """
    wanted = facts.wanted
    if wanted is None or wanted < 0:
        return _without_position(mode, reset, facts)
    if facts.recreated:
        why = f"offset {wanted} is of a topic that was deleted and created again"
        return _by_reset(mode, reset, facts, why)
    if mode is Mode.TIERED_STORAGE_ONLY:
        return _store_only(reset, facts, wanted, broker=broker)
    if mode is Mode.KAFKA_PREFERRED:
        return _kafka_preferred(reset, facts, wanted)
    return _store_preferred(reset, facts, wanted)


def _without_position(mode: Mode, reset: Reset, facts: Facts) -> Decision:
    """Decide for logical and tail offsets, and for a group without a committed offset."""
    if facts.wanted is None:
        decision = _by_reset(mode, reset, facts, "no offset is committed")
        # A group's first read is not a reset to warn about: no offset was lost.
        return (
            replace(decision, reset="") if isinstance(decision, FromKafka | FromStore) else decision
        )
    if facts.wanted <= TAIL_BASE:
        return _tail(mode, reset, facts)
    return (
        _beginning(mode, facts, "") if facts.wanted == Logical.BEGINNING else _end(mode, facts, "")
    )


def _kafka_preferred(reset: Reset, facts: Facts, wanted: int) -> Decision:
    kafka, archive = facts.kafka, facts.archive
    # No lookup first: Kafka's answer to the fetch shows whether it has the offset.
    if not facts.refused and (kafka is None or wanted >= kafka.start):
        return FromKafka(wanted)
    if kafka is None or archive is None:
        return Ask(kafka=kafka is None, store=archive is None)
    if archive.holds(wanted):
        return FromStore(wanted, until=kafka.start if kafka.start > wanted else None)
    return _on_neither_side(Mode.KAFKA_PREFERRED, reset, facts, wanted)


def _store_preferred(reset: Reset, facts: Facts, wanted: int) -> Decision:
    kafka, archive = facts.kafka, facts.archive
    if archive is None:
        return Ask(store=True)
    if archive.holds(wanted):
        return FromStore(wanted)
    if not facts.refused and not archive.unavailable and (kafka is None or wanted >= kafka.start):
        return FromKafka(wanted)
    # The store does not answer, or Kafka has refused: only Kafka's bounds help.
    if kafka is None:
        return Ask(kafka=True)
    if archive.unavailable and not facts.refused and kafka.start <= wanted:
        return FromKafka(wanted)
    return _on_neither_side(Mode.TIERED_STORAGE_PREFERRED, reset, facts, wanted)


def _store_only(reset: Reset, facts: Facts, wanted: int, *, broker: bool) -> Decision:
    archive = facts.archive
    if archive is None:
        return Ask(store=True)
    if archive.unavailable or archive.span is None:
        return RetryLater("the store does not answer, or has nothing of the partition")
    # At the archive's end the reader waits for more.
    if archive.holds(wanted) or wanted == archive.span.end:
        return FromStore(wanted)
    if wanted < archive.span.start:
        why = f"offset {wanted} is below the archive's start, {archive.span.start}"
        return _by_reset(Mode.TIERED_STORAGE_ONLY, reset, facts, why)
    if wanted < archive.span.end:
        return _missing(facts, wanted)
    return _above_the_archive(reset, facts, wanted, broker=broker)


def _above_the_archive(reset: Reset, facts: Facts, wanted: int, *, broker: bool) -> Decision:
    """Decide for an offset above the archive's end: the archive lags behind the log and will reach
    it.

    If the offset is also above the end of Kafka's log, `auto.offset.reset` applies.
    """
    kafka = facts.kafka
    if broker and kafka is None:
        return Ask(kafka=True)
    if kafka is not None and wanted > kafka.end:
        why = f"offset {wanted} is above Kafka's end, {kafka.end}"
        return _by_reset(Mode.TIERED_STORAGE_ONLY, reset, facts, why)
    return FromStore(wanted)


def _on_neither_side(mode: Mode, reset: Reset, facts: Facts, wanted: int) -> Decision:
    """Decide when both sides were asked and neither can be read at `wanted`."""
    kafka, archive = facts.kafka, facts.archive
    if kafka is None or archive is None:
        return Ask(kafka=kafka is None, store=archive is None)
    if archive.unavailable:
        return RetryLater("the store does not answer, and Kafka does not have the offset")
    if kafka.start <= wanted <= kafka.end:
        return RetryLater("Kafka has refused an offset within its bounds")
    stored = archive.span
    if wanted < kafka.start and (stored is None or wanted < stored.start):
        return _by_reset(
            mode, reset, facts, f"offset {wanted} is below the oldest offset of both sides"
        )
    if wanted > kafka.end and (stored is None or wanted >= stored.end):
        why = f"offset {wanted} is above the newest offset of both sides"
        return _by_reset(mode, reset, _continued_by_kafka(facts, kafka), why)
    return _missing(facts, wanted)


def _continued_by_kafka(facts: Facts, kafka: OffsetRange) -> Facts:
    """Return the facts with the archive only if it is certainly the beginning of Kafka's log.

    Otherwise a reset could go back to the archive of a deleted topic; or Kafka would refuse the
    archive's end again, and the reader would read the archive again and again.
    """
    archive = facts.archive or Archive()
    if archive.span is None or (archive.verified and archive.span.end <= kafka.end):
        return facts
    return replace(facts, archive=Archive())


def _missing(facts: Facts, wanted: int) -> Missing | RetryLater:
    archive = facts.archive or Archive()
    starts = [archive.next_start(wanted)]
    if facts.kafka is not None and facts.kafka.start > wanted:
        starts.append(facts.kafka.start)
    ends = [start for start in starts if start is not None]
    if not ends:
        return RetryLater("the archive ends in a gap, and Kafka has not reached it")
    # Kafka may delete a segment that the sidecar still holds and uploads: the archive then reaches
    # these offsets later.
    behind = archive.span is not None and wanted >= archive.span.end
    return Missing(wanted, min(ends), settled=not behind)


def _by_reset(mode: Mode, reset: Reset, facts: Facts, why: str) -> Decision:
    if reset is Reset.ERROR:
        return NoReset(why)
    if reset is Reset.EARLIEST:
        return _beginning(mode, facts, why)
    return _end(mode, facts, why)


def _beginning(mode: Mode, facts: Facts, why: str) -> Decision:
    """Decide for the oldest offset of the sides that the mode reads."""
    kafka, archive = facts.kafka, facts.archive
    asks_kafka = kafka is None and mode is not Mode.TIERED_STORAGE_ONLY
    if asks_kafka or archive is None:
        return Ask(kafka=asks_kafka, store=archive is None)
    if archive.unavailable:
        return RetryLater("the store does not answer, and may have the oldest records")
    if kafka is None or mode is Mode.TIERED_STORAGE_ONLY:
        if archive.span is None:
            return RetryLater("nothing is stored of the partition")
        return FromStore(archive.span.start, reset=why)
    return _older_side(mode, kafka, archive.span, why)


def _older_side(mode: Mode, kafka: OffsetRange, stored: OffsetRange | None, why: str) -> Decision:
    """Choose the side that starts earlier; if both start at the same offset, the preferred one."""
    if stored is None or kafka.start < stored.start:
        return FromKafka(kafka.start, reset=why)
    if mode is Mode.TIERED_STORAGE_PREFERRED:
        return FromStore(stored.start, reset=why)
    if stored.start < kafka.start:
        return FromStore(stored.start, until=kafka.start, reset=why)
    return FromKafka(kafka.start, reset=why)


def _end(mode: Mode, facts: Facts, why: str) -> Decision:
    """Decide for the next offset that will be written to the sides that the mode reads."""
    if mode is not Mode.TIERED_STORAGE_ONLY:
        if facts.kafka is None:
            return Ask(kafka=True)
        return FromKafka(facts.kafka.end, reset=why)
    if facts.archive is None:
        return Ask(store=True)
    if facts.archive.unavailable or facts.archive.span is None:
        return RetryLater("the store does not answer, or has nothing of the partition")
    return FromStore(facts.archive.span.end, reset=why)


def _tail(mode: Mode, reset: Reset, facts: Facts) -> Decision:
    """Decide for the n-th offset before the end, or for the beginning if the log is shorter."""
    store_only = mode is Mode.TIERED_STORAGE_ONLY
    if facts.archive is None or (facts.kafka is None and not store_only):
        return Ask(kafka=not store_only and facts.kafka is None, store=facts.archive is None)
    if facts.archive.unavailable:
        return RetryLater("the store does not answer")
    # Kafka may have been asked before, also with `TIERED_STORAGE_ONLY`.
    log = joined(None if store_only else facts.kafka, facts.archive.span)
    if log is None:
        return RetryLater("nothing is stored of the partition")
    back = TAIL_BASE - (facts.wanted or TAIL_BASE)
    wanted = max(log.start, log.end - back)
    return decide(mode, reset, Facts(wanted, facts.kafka, facts.archive))


def joined(kafka: OffsetRange | None, stored: OffsetRange | None) -> OffsetRange | None:
    """Return the range of the log that both sides are parts of; None if there is none.

    Kafka alone knows the end of the log.
    """
    if kafka is None or stored is None:
        return kafka or stored
    return OffsetRange(min(kafka.start, stored.start), kafka.end)
