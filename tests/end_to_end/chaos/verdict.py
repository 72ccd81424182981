"""What must hold at the end, each promise a function that says what breaks it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from tests.end_to_end.chaos.archive import Archived, SetAside
from tests.end_to_end.chaos.ledger import Partition, Sums, ThrownAway
from tests.end_to_end.chaos.observer import KINDS

_MOST_RANGES = 5
_SKIPPED_MARKERS = re.compile(
    r"Couldn't find leader endpoint for partitions Set\((?P<partitions>[^)]*)\) "
    r"while trying to send transaction markers"
)
_NOTHING = Sums()


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known at the end, by partition.

    `acknowledged` and `fates` are what producers were told, `served` what a consumer was given
    while the run lasted, `tails` what the brokers hold now above the watermarks, `archives` what is
    stored, `ends` where the last closed segment ends.

    `unplaced` are checksums of acknowledged records whose offsets nobody told; `log_starts` where
    the log begins after records were deleted; `by_elections` and `by_deletions` what was thrown
    away on purpose; `quarantined` what is in quarantine, `retired` what is in retired archives by
    partition and topic id, checksums by offset. `markers_skipped` are partitions whose log lacks a
    transaction's marker.
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


def violations(evidence: Evidence) -> list[str]:
    """Everything that does not hold."""
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
        )
        found += [f"{tp[0]}-{tp[1]}: {problem}" for check in checks for problem in check]
    for gone in evidence.by_elections:
        aside = evidence.quarantined.get(gone.tp, {})
        found += [f"{gone.tp[0]}-{gone.tp[1]}: {problem}" for problem in not_set_aside(gone, aside)]
    for gone in evidence.by_deletions:
        aside = evidence.retired.get((gone.tp, gone.topic_id or ""), {})
        found += [f"{gone.tp[0]}-{gone.tp[1]}: {problem}" for problem in not_set_aside(gone, aside)]
    return found


def not_set_aside(gone: ThrownAway, aside: SetAside) -> Iterator[str]:
    """What was archived, and thrown away by the cluster, is kept in quarantine or retired."""
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
    """How many of the records that were thrown away are kept aside."""
    return sum(number in aside.get(offset, ()) for offset, number in gone.records.items())


def lost(acknowledged: Sums, archived: Archived, tail: Sums, log_start: int = 0) -> Iterator[str]:
    """The union of the store and the brokers holds each acknowledged record with its bytes, but for
    those that were deleted: below the log start, and above the watermark or in a recorded gap.
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
    """Whether a record below the log start may be nowhere."""
    in_gap = any(start <= offset < end for start, end in archived.gaps)
    return offset < log_start and (offset >= archived.mark.next or in_gap)


def not_stored(acknowledged: Sums, archived: Archived, log_start: int = 0) -> Iterator[str]:
    """The store alone holds each acknowledged record below the watermark. A gap excuses only what
    was deleted: it ends at the log start or below.
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
    """Nothing is stored that the cluster has thrown away: all of it was acknowledged or served."""
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
    """Offsets rise strictly, stored ranges neither overlap nor leave a gap."""
    yield from archived.disorder[:_MOST_RANGES]
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
    """Every base has its three files, and stands in `_metadata`, whose times do not fall."""
    for base in sorted(archived.extents):
        if archived.files.get(base, frozenset()) != KINDS:
            yield f"{base} has only {sorted(archived.files.get(base, ()))}"
    listed = [base for base, _ in archived.listed]
    if missing := sorted(archived.extents.keys() - set(listed)):
        yield f"_metadata leaves out {missing[:_MOST_RANGES]}"
    logs = {base for base, kinds in archived.files.items() if "log" in kinds}
    if invented := sorted(set(listed) - logs):
        yield f"_metadata names {invented[:_MOST_RANGES]}, which are not stored"
    times = [time for _, time in archived.listed]
    if listed != sorted(set(listed)) or times != sorted(times):
        yield "_metadata is not in order"


def behind(archived: Archived, end: int) -> Iterator[str]:
    """The watermark has reached the end of the last closed segment."""
    if archived.mark.next < end:
        yield f"stored up to {archived.mark.next}, though segments are closed up to {end}"


def wrong_fates(told: Sums, stored: Sums) -> Iterator[str]:
    """Where the store tells how a transaction ended, the producer was told the same."""
    wrong = [
        offset
        for offset, fate in told.items()
        if stored.get(offset) is not None and stored.get(offset) != fate
    ]
    if wrong:
        yield f"committed is stored as aborted, or aborted as committed: {ranges(wrong)}"


def skipped_markers(lines: Iterable[str]) -> set[Partition]:
    """Partitions for which a transaction coordinator has left out a marker, as its log tells.

    A coordinator of Kafka 4.3.1 takes a partition that has no leader for a deleted one when it
    sends the markers of a transaction that was decided before. In that partition's log the next
    marker of the producer then decides, whatever the producer was told.
    """
    return {
        (topic, int(number))
        for line in lines
        if (found := _SKIPPED_MARKERS.search(line)) is not None
        for topic, _, number in (name.rpartition("-") for name in found["partitions"].split(", "))
    }


def broker_errors(lines: Iterable[str], broken: Iterable[str] = ()) -> list[str]:
    """What brokers complain of that somebody has done to their files, but for the directories that
    were `broken` on purpose.
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
    """Whatever a sidecar says that it has lost or found to be another history, but for the two
    topics in which that is done on purpose.
    """
    for event in events:
        topic = event.get("topic")
        has_gap = event.get("event") == "gap.recorded" and topic != may_have_gaps
        if has_gap or (event.get("kind") == "DivergedError" and topic != may_diverge):
            yield f"the sidecar of broker {broker} says: {dict(event)}"


def ranges(offsets: Sequence[int]) -> str:
    """Rising offsets, shortened: `3 records (5-6, 9)`."""
    runs = [
        [offset for _, offset in run]
        for _, run in groupby(enumerate(offsets), lambda pair: pair[1] - pair[0])
    ]
    shown = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs[:_MOST_RANGES]]
    more = ", ..." if len(runs) > _MOST_RANGES else ""
    return f"{len(offsets)} records ({', '.join(shown)}{more})"
