"""From where a partition is read next: pure decisions over what Kafka and the store hold.

A partition has one source at a time. It changes at the moments named here, and only there: when it
is assigned or sought, when Kafka refuses an offset (out of range, or none committed), when the
store has come to its end, to a gap or to a failure, and, with `KAFKA_PREFERRED`, when the store
has reached what Kafka still has.
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
    """`auto.offset.reset`, under the first of each value's names."""

    EARLIEST = "earliest"
    LATEST = "latest"
    ERROR = "error"


class Logical(IntEnum):
    """Offsets that are no place yet; the values are those of librdkafka."""

    END = -1
    BEGINNING = -2
    STORED = -1000
    INVALID = -1001


TAIL_BASE: Final = -2000
"""librdkafka's `OFFSET_TAIL(n)` is this minus n: n before the end."""


@dataclass(frozen=True, slots=True)
class Archive:
    """What the store was found to hold.

    Attributes:
        span: None where nothing is stored.
        away: the store did not answer: `span` says nothing then.
        gap: offsets within the span that are known not to be there.
    """

    span: OffsetRange | None = None
    away: bool = False
    gap: OffsetRange | None = None

    def holds(self, offset: int) -> bool:
        """Whether the store can be read from the offset on."""
        if self.away or self.span is None or offset not in self.span:
            return False
        return self.gap is None or offset not in self.gap

    def next_start(self, offset: int) -> int | None:
        """The first offset above that the store can be read from; None where there is none."""
        if self.span is None:
            return None
        if self.span.start > offset:
            return self.span.start
        if self.gap is not None and offset in self.gap and self.gap.end < self.span.end:
            return self.gap.end
        return None


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known when a source is to be found.

    Attributes:
        wanted: the next offset to hand out; `Logical.BEGINNING` or `END`; a tail offset; None
            where the group has committed none.
        kafka: what Kafka holds; None where it was not asked.
        archive: what the store holds; None where it was not asked.
        refused: Kafka has said of `wanted` that it is out of range.
    """

    wanted: int | None
    kafka: OffsetRange | None = None
    archive: Archive | None = None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """It cannot be told yet: ask these sides, Kafka first, and decide again."""

    kafka: bool = False
    store: bool = False


@dataclass(frozen=True, slots=True)
class FromKafka:
    """Read from Kafka. `reset`: the offset that was wanted is given up, by auto.offset.reset."""

    offset: int
    reset: str = ""


@dataclass(frozen=True, slots=True)
class FromStore:
    """Read from the store, up to its end, or to `until` where Kafka has the rest."""

    offset: int
    until: int | None = None
    reset: str = ""


@dataclass(frozen=True, slots=True)
class Again:
    """Nothing can be read now; ask both sides again after a while."""

    why: str


@dataclass(frozen=True, slots=True)
class Missing:
    """Neither side has the offsets from `first` up to, not including, `end`.

    `settled` is False where the sidecar may still be storing them: Kafka has deleted what the
    archive has not reached yet.
    """

    first: int
    end: int
    settled: bool


@dataclass(frozen=True, slots=True)
class NoReset:
    """auto.offset.reset is `error`, and there is no offset to read from."""

    why: str


Decision = Ask | FromKafka | FromStore | Again | Missing | NoReset


def decide(mode: Mode, reset: Reset, facts: Facts, *, broker: bool = True) -> Decision:
    """Where to read on.

    Args:
        mode: not KAFKA_ONLY, where nothing is to be decided.
        reset: what becomes of an offset that lies outside of the union of both sides.
        facts: what is known.
        broker: False where there is no Kafka to ask: TIERED_STORAGE_ONLY by hand.
    """
    wanted = facts.wanted
    if wanted is None or wanted < 0:
        return _of_no_place(mode, reset, facts)
    if mode is Mode.TIERED_STORAGE_ONLY:
        return _store_only(reset, facts, wanted, broker=broker)
    if mode is Mode.KAFKA_PREFERRED:
        return _kafka_preferred(reset, facts, wanted)
    return _store_preferred(reset, facts, wanted)


def _of_no_place(mode: Mode, reset: Reset, facts: Facts) -> Decision:
    """Where nothing is committed, and for offsets that have first to become a place."""
    if facts.wanted is None:
        found = _by_reset(mode, reset, facts, "no offset is committed")
        return replace(found, reset="") if isinstance(found, FromKafka | FromStore) else found
    if facts.wanted <= TAIL_BASE:
        return _tail(mode, reset, facts)
    return (
        _beginning(mode, facts, "") if facts.wanted == Logical.BEGINNING else _end(mode, facts, "")
    )


def _kafka_preferred(reset: Reset, facts: Facts, wanted: int) -> Decision:
    kafka, archive = facts.kafka, facts.archive
    if not facts.refused and (kafka is None or wanted >= kafka.start):
        return FromKafka(wanted)
    if kafka is None or archive is None:
        return Ask(kafka=kafka is None, store=archive is None)
    if archive.holds(wanted):
        return FromStore(wanted, until=kafka.start if kafka.start > wanted else None)
    return _nowhere(Mode.KAFKA_PREFERRED, reset, facts, wanted)


def _store_preferred(reset: Reset, facts: Facts, wanted: int) -> Decision:
    kafka, archive = facts.kafka, facts.archive
    if archive is None:
        return Ask(store=True)
    if archive.holds(wanted):
        return FromStore(wanted)
    if not facts.refused and not archive.away and (kafka is None or wanted >= kafka.start):
        return FromKafka(wanted)
    if kafka is None:
        return Ask(kafka=True)
    if archive.away and not facts.refused and kafka.start <= wanted:
        return FromKafka(wanted)
    return _nowhere(Mode.TIERED_STORAGE_PREFERRED, reset, facts, wanted)


def _store_only(reset: Reset, facts: Facts, wanted: int, *, broker: bool) -> Decision:
    archive = facts.archive
    if archive is None:
        return Ask(store=True)
    if archive.away or archive.span is None:
        return Again("the store does not answer, or has nothing of the partition")
    if archive.holds(wanted) or wanted == archive.span.end:
        return FromStore(wanted)
    if wanted < archive.span.start:
        why = f"offset {wanted} lies below the archive's start, {archive.span.start}"
        return _by_reset(Mode.TIERED_STORAGE_ONLY, reset, facts, why)
    if wanted < archive.span.end:
        return _missing(facts, wanted)
    return _beyond_the_archive(reset, facts, wanted, broker=broker)


def _beyond_the_archive(reset: Reset, facts: Facts, wanted: int, *, broker: bool) -> Decision:
    """The archive lags behind the log, and will come to it; unless the log is shorter, too."""
    kafka = facts.kafka
    if broker and kafka is None:
        return Ask(kafka=True)
    if kafka is not None and wanted > kafka.end:
        why = f"offset {wanted} lies beyond Kafka's end, {kafka.end}"
        return _by_reset(Mode.TIERED_STORAGE_ONLY, reset, facts, why)
    return FromStore(wanted)


def _nowhere(mode: Mode, reset: Reset, facts: Facts, wanted: int) -> Decision:
    """Both sides were asked, and neither can be read at `wanted`."""
    kafka, archive = facts.kafka, facts.archive
    if kafka is None or archive is None:
        return Ask(kafka=kafka is None, store=archive is None)
    if archive.away:
        return Again("the store does not answer, and Kafka does not have the offset")
    if kafka.start <= wanted <= kafka.end:
        return Again("Kafka has refused an offset that lies within its bounds")
    stored = archive.span
    if wanted < kafka.start and (stored is None or wanted < stored.start):
        return _by_reset(mode, reset, facts, f"offset {wanted} is older than all that is kept")
    if wanted > kafka.end and (stored is None or wanted >= stored.end):
        return _by_reset(mode, reset, facts, f"offset {wanted} is newer than all that there is")
    return _missing(facts, wanted)


def _missing(facts: Facts, wanted: int) -> Missing | Again:
    archive = facts.archive or Archive()
    starts = [archive.next_start(wanted)]
    if facts.kafka is not None and facts.kafka.start > wanted:
        starts.append(facts.kafka.start)
    ends = [start for start in starts if start is not None]
    if not ends:
        return Again("the archive ends in a gap, and Kafka has not reached it")
    behind = archive.span is not None and wanted >= archive.span.end
    return Missing(wanted, min(ends), settled=not behind)


def _by_reset(mode: Mode, reset: Reset, facts: Facts, why: str) -> Decision:
    if reset is Reset.ERROR:
        return NoReset(why)
    if reset is Reset.EARLIEST:
        return _beginning(mode, facts, why)
    return _end(mode, facts, why)


def _beginning(mode: Mode, facts: Facts, why: str) -> Decision:
    """The oldest offset of what the mode reads."""
    kafka, archive = facts.kafka, facts.archive
    asks_kafka = kafka is None and mode is not Mode.TIERED_STORAGE_ONLY
    if asks_kafka or archive is None:
        return Ask(kafka=asks_kafka, store=archive is None)
    if archive.away:
        return Again("the store does not answer, and may have the oldest records")
    if kafka is None or mode is Mode.TIERED_STORAGE_ONLY:
        if archive.span is None:
            return Again("nothing is stored of the partition")
        return FromStore(archive.span.start, reset=why)
    return _older(mode, kafka, archive.span, why)


def _older(mode: Mode, kafka: OffsetRange, stored: OffsetRange | None, why: str) -> Decision:
    """Of both sides the one that begins earlier; of equals the one that the mode prefers."""
    if stored is None or kafka.start < stored.start:
        return FromKafka(kafka.start, reset=why)
    if mode is Mode.TIERED_STORAGE_PREFERRED:
        return FromStore(stored.start, reset=why)
    if stored.start < kafka.start:
        return FromStore(stored.start, until=kafka.start, reset=why)
    return FromKafka(kafka.start, reset=why)


def _end(mode: Mode, facts: Facts, why: str) -> Decision:
    """The next offset that will be written to what the mode reads."""
    if mode is not Mode.TIERED_STORAGE_ONLY:
        if facts.kafka is None:
            return Ask(kafka=True)
        return FromKafka(facts.kafka.end, reset=why)
    if facts.archive is None:
        return Ask(store=True)
    if facts.archive.away or facts.archive.span is None:
        return Again("the store does not answer, or has nothing of the partition")
    return FromStore(facts.archive.span.end, reset=why)


def _tail(mode: Mode, reset: Reset, facts: Facts) -> Decision:
    """So many before the end, or from the beginning where there are fewer."""
    store_only = mode is Mode.TIERED_STORAGE_ONLY
    if facts.archive is None or (facts.kafka is None and not store_only):
        return Ask(kafka=not store_only and facts.kafka is None, store=facts.archive is None)
    if facts.archive.away:
        return Again("the store does not answer")
    spans = [span for span in (facts.kafka, facts.archive.span) if span is not None]
    if store_only:
        spans = spans[-1:] if facts.archive.span is not None else []
    if not spans:
        return Again("nothing is stored of the partition")
    back = TAIL_BASE - (facts.wanted or TAIL_BASE)
    wanted = max(min(span.start for span in spans), max(span.end for span in spans) - back)
    return decide(mode, reset, Facts(wanted, facts.kafka, facts.archive))
