"""Conditions at the end of a run; each promise is a function that returns its violations."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from tests.end_to_end.chaos.archive import Archived, SetAside
from tests.end_to_end.chaos.ledger import (
    Fate,
    LogStart,
    OpenTransaction,
    Partition,
    Sums,
    ThrownAway,
)
from tests.end_to_end.chaos.observer import KINDS

_MAX_RANGES = 5
_SKIPPED_MARKERS = re.compile(
    r"Couldn't find leader endpoint for partitions Set\((?P<partitions>[^)]*)\) "
    r"while trying to send transaction markers"
)
_NOTHING = Sums()


@dataclass(frozen=True, slots=True)
class Evidence:
    """All evidence at the end of a run, by partition.

    `acknowledged` and `fates` are what producers were told, `served` is what a consumer received
    during the run, `tails` what the brokers now have above the watermarks, `archives` what is
    stored, `ends` the end offset of the last closed segment, or of the log if it is archived
    early.

    `unplaced` are checksums of acknowledged records whose offsets are unknown; `log_starts` is
    the log start offset after records were deleted; `by_elections` and `by_deletions` are records
    that were discarded on purpose; `quarantined` are the records in quarantine, `retired` those in
    retired archives by partition and topic id, as checksums by offset. `markers_skipped` are
    partitions whose log lacks the marker of a transaction.

    `log_starts_seen` are the log start offsets of partitions with local retention during the run,
    `transactions` those that were open there, and `committed` what a reader with read_committed
    gets from the brokers at the end.
    """

    acknowledged: Mapping[Partition, Sums] = field(default_factory=dict)
    fates: Mapping[Partition, Sums] = field(default_factory=dict)
    served: Mapping[Partition, Sums] = field(default_factory=dict)
    tails: Mapping[Partition, Sums] = field(default_factory=dict)
    archives: Mapping[Partition, Archived] = field(default_factory=dict)
    ends: Mapping[Partition, int] = field(default_factory=dict)
    unplaced: Mapping[Partition, AbstractSet[int]] = field(default_factory=dict)
    log_starts: Mapping[Partition, int] = field(default_factory=dict)
    by_elections: Sequence[ThrownAway] = ()
    by_deletions: Sequence[ThrownAway] = ()
    quarantined: Mapping[Partition, SetAside] = field(default_factory=dict)
    retired: Mapping[tuple[Partition, str], SetAside] = field(default_factory=dict)
    markers_skipped: AbstractSet[Partition] = frozenset()
    log_starts_seen: Sequence[LogStart] = ()
    transactions: Sequence[OpenTransaction] = ()
    committed: Mapping[Partition, Sums] = field(default_factory=dict)


def violations(evidence: Evidence) -> list[str]:
    """All violations."""
    found = []
    for tp in sorted(evidence.acknowledged.keys() | evidence.archives.keys()):
        archived = evidence.archives.get(tp)
        if archived is None:
            found.append(f"{tp[0]}-{tp[1]}: records were acknowledged, nothing is stored")
            continue
        told = evidence.acknowledged.get(tp, _NOTHING)
        served = evidence.served.get(tp, _NOTHING)
        unplaced = evidence.unplaced.get(tp, frozenset())
        log_start = evidence.log_starts.get(tp, 0)
        fates = _NOTHING if tp in evidence.markers_skipped else evidence.fates.get(tp, _NOTHING)
        checks: Iterable[Iterable[str]] = (
            lost(told, archived, evidence.tails.get(tp, _NOTHING), log_start),
            not_stored(told, archived, log_start),
            never_served(archived, told, served, unplaced),
            out_of_order(archived),
            incomplete(archived),
            behind(archived, evidence.ends.get(tp, 0)),
            wrong_fates(fates, archived.fates),
            wrongly_committed(fates, evidence.committed.get(tp)),
        )
        found += [f"{tp[0]}-{tp[1]}: {problem}" for check in checks for problem in check]
    for gone in evidence.by_elections:
        aside = evidence.quarantined.get(gone.tp, {})
        found += [f"{gone.tp[0]}-{gone.tp[1]}: {problem}" for problem in not_set_aside(gone, aside)]
    for gone in evidence.by_deletions:
        aside = evidence.retired.get((gone.tp, gone.topic_id or ""), {})
        found += [f"{gone.tp[0]}-{gone.tp[1]}: {problem}" for problem in not_set_aside(gone, aside)]
    found += split_by_trim(evidence.transactions, evidence.log_starts_seen)
    return found


def split_by_trim(
    transactions: Iterable[OpenTransaction], log_starts: Iterable[LogStart]
) -> Iterator[str]:
    """Violations of: local retention deletes no record at or above the first one of an open
    transaction.
    """
    firsts: dict[Partition, list[OpenTransaction]] = {}
    for one in transactions:
        firsts.setdefault(one.tp, []).append(one)
    for start in log_starts:
        for one in firsts.get(start.tp, ()):
            if one.first < start.offset and start.at < one.open_until:
                yield (
                    f"{start.tp[0]}-{start.tp[1]}: the log began at {start.offset}, while a "
                    f"transaction was open from {one.first} on"
                )


def wrongly_committed(fates: Sums, seen: Sums | None) -> Iterator[str]:
    """Violations of: a reader with read_committed gets no record of an aborted transaction from
    the brokers. None if it has read nothing.
    """
    aborted = [
        offset
        for offset, fate in fates.items()
        if fate == Fate.ABORTED and seen is not None and seen.get(offset) is not None
    ]
    if aborted:
        yield f"aborted, and served as committed: {ranges(aborted)}"


def not_set_aside(gone: ThrownAway, aside: SetAside) -> Iterator[str]:
    """Violations of: archived records that the cluster lost are kept in quarantine or retired
    archives.
    """
    missing = [
        offset
        for offset, number in gone.records.items()
        if offset < gone.archived_to and number not in aside.get(offset, ())
    ]
    if missing:
        place = "in quarantine" if gone.topic_id is None else f"retired with {gone.topic_id}"
        yield (
            f"thrown away from {gone.start} on, archived up to {gone.archived_to}, and not "
            f"{place}: {ranges(missing)}"
        )


def found_in(gone: ThrownAway, aside: SetAside) -> int:
    """Number of lost records found in quarantine."""
    return sum(number in aside.get(offset, ()) for offset, number in gone.records.items())


def lost(acknowledged: Sums, archived: Archived, tail: Sums, log_start: int = 0) -> Iterator[str]:
    """Violations of: store and brokers together hold each acknowledged record with its bytes,
    except deleted ones: those below the log start and above the watermark or in a recorded gap.
    """
    missing, other = [], []
    for offset, number in acknowledged.items():
        held = {archived.records.get(offset), tail.get(offset)} - {None}
        if not held:
            if not _is_excused(offset, archived, log_start):
                missing.append(offset)
        elif held != {number}:
            other.append(offset)
    if missing:
        yield f"acknowledged, and neither stored nor served: {ranges(missing)}"
    if other:
        yield f"acknowledged with other bytes than are held: {ranges(other)}"


def _is_excused(offset: int, archived: Archived, log_start: int) -> bool:
    """Return whether a record below the log start may be missing everywhere."""
    in_gap = any(start <= offset < end for start, end in archived.gaps)
    return offset < log_start and (offset >= archived.mark.next or in_gap)


def not_stored(acknowledged: Sums, archived: Archived, log_start: int = 0) -> Iterator[str]:
    """Violations of: the store holds each acknowledged record below the watermark. A gap excuses
    only deleted records: it ends at or below the log start.
    """
    below = [
        offset
        for offset, number in acknowledged.items()
        if offset < archived.mark.next
        and archived.records.get(offset) != number
        and not (archived.records.get(offset) is None and _is_excused(offset, archived, log_start))
    ]
    if below:
        yield f"below the watermark {archived.mark.next}, and not stored: {ranges(below)}"
    for start, end in archived.gaps:
        if end > log_start:
            yield f"a gap was recorded from {start} to {end}, the log begins at {log_start}"


def never_served(
    archived: Archived, acknowledged: Sums, served: Sums, unplaced: AbstractSet[int] = frozenset()
) -> Iterator[str]:
    """Violations of: no stored record was lost by the cluster; each was acknowledged or served."""
    strangers = [
        offset
        for offset, number in archived.records.items()
        if ({acknowledged.get(offset), served.get(offset)} - {None} or unplaced & {number})
        != {number}
    ]
    if strangers:
        yield f"stored, but never acknowledged nor served like that: {ranges(strangers)}"
    taken = [
        offset
        for offset in sorted(archived.controls)
        if acknowledged.get(offset) is not None or served.get(offset) is not None
    ]
    if taken:
        yield f"transactions' markers are stored where records were served: {ranges(taken)}"


def out_of_order(archived: Archived) -> Iterator[str]:
    """Violations of: offsets increase strictly, and stored ranges have neither overlaps nor
    gaps.
    """
    yield from archived.disorder[:_MAX_RANGES]
    expected = 0
    for base, (start, end) in sorted(
        [*archived.extents.items(), *((g[0], g) for g in archived.gaps)]
    ):
        if start != expected:
            kind = "a gap" if start > expected else "an overlap"
            yield f"{kind} in the archive: {expected} was expected, {base} holds {start} to {end}"
        expected = max(expected, end)
    if expected != archived.mark.next:
        yield f"the archive ends at {expected}, its watermark says {archived.mark.next}"


def incomplete(archived: Archived) -> Iterator[str]:
    """Violations of: every base offset has its three files and an entry in `_metadata`, whose
    timestamps never decrease.
    """
    for base in sorted(archived.extents):
        if archived.files.get(base, frozenset()) != KINDS:
            yield f"{base} has only {sorted(archived.files.get(base, ()))}"
    listed = [base for base, _ in archived.listed]
    if missing := sorted(archived.extents.keys() - set(listed)):
        yield f"_metadata leaves out {missing[:_MAX_RANGES]}"
    logs = {base for base, kinds in archived.files.items() if "log" in kinds}
    if invented := sorted(set(listed) - logs):
        yield f"_metadata names {invented[:_MAX_RANGES]}, which are not stored"
    times = [time for _, time in archived.listed]
    if listed != sorted(set(listed)) or times != sorted(times):
        yield "_metadata is not in order"


def behind(archived: Archived, end: int) -> Iterator[str]:
    """Violations of: the watermark has reached the end of the last closed segment, or of the log if
    it is archived early.
    """
    if archived.mark.next < end:
        yield f"stored up to {archived.mark.next}, and not up to {end}"


def wrong_fates(told: Sums, stored: Sums) -> Iterator[str]:
    """Violations of: a transaction outcome in the store equals the outcome the producer
    received.
    """
    wrong = [
        offset
        for offset, fate in told.items()
        if stored.get(offset) is not None and stored.get(offset) != fate
    ]
    if wrong:
        yield f"committed is stored as aborted, or aborted as committed: {ranges(wrong)}"


def skipped_markers(lines: Iterable[str]) -> set[Partition]:
    """Partitions whose log says that a transaction coordinator has left out a marker.

    A coordinator of Kafka 4.3.1 takes a partition without a leader for a deleted one when it sends
    the markers of a transaction that was decided before. In that partition's log, the producer's
    next marker then decides, whatever the producer was told.
    """
    return {
        (topic, int(number))
        for line in lines
        if (found := _SKIPPED_MARKERS.search(line)) is not None
        for topic, _, number in (name.rpartition("-") for name in found["partitions"].split(", "))
    }


def broker_errors(lines: Iterable[str], broken: Iterable[str] = ()) -> list[str]:
    """Broker log messages about damage to their files, except in the deliberately broken
    directories.
    """
    causes = ("NoSuchFile", "FileNotFound", "KafkaStorage", "log dir", "Failed to", "IOException")
    return [
        line.strip()
        for line in lines
        if (" ERROR " in line or " FATAL " in line)
        and any(cause in line for cause in causes)
        and any(part in line for part in ("LogManager", "UnifiedLog", "LocalLog", "LogDir"))
        and not any(directory in line for directory in broken)
    ]


def sidecar_gaps(
    broker: int, events: Iterable[Mapping[str, Any]], *, may_diverge: str, may_have_gaps: str
) -> Iterator[str]:
    """Losses and diverged histories that a sidecar reports, except for the two topics where they
    are deliberate.
    """
    for event in events:
        topic = event.get("topic")
        has_gap = event.get("event") == "gap.recorded" and topic != may_have_gaps
        if has_gap or (event.get("kind") == "DivergedError" and topic != may_diverge):
            yield f"the sidecar of broker {broker} says: {dict(event)}"


def ranges(offsets: Sequence[int]) -> str:
    """Ascending offsets, shortened: `3 records (5-6, 9)`."""
    runs = [
        [offset for _, offset in run]
        for _, run in groupby(enumerate(offsets), lambda pair: pair[1] - pair[0])
    ]
    shown = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs[:_MAX_RANGES]]
    more = ", ..." if len(runs) > _MAX_RANGES else ""
    return f"{len(offsets)} records ({', '.join(shown)}{more})"
