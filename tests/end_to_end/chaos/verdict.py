"""What must hold at the end, each promise a function that says what breaks it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from tests.end_to_end.chaos.archive import Archived
from tests.end_to_end.chaos.ledger import Partition, Sums
from tests.end_to_end.chaos.observer import KINDS

_MOST_RANGES = 5
_NOTHING = Sums()


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known at the end, by partition.

    `acknowledged` and `fates` are what producers were told, `served` what a consumer was given
    while the run lasted, `tails` what the brokers hold now above the watermarks, `archives` what is
    stored, `ends` where the last closed segment ends.
    """

    acknowledged: Mapping[Partition, Sums] = field(default_factory=dict)
    fates: Mapping[Partition, Sums] = field(default_factory=dict)
    served: Mapping[Partition, Sums] = field(default_factory=dict)
    tails: Mapping[Partition, Sums] = field(default_factory=dict)
    archives: Mapping[Partition, Archived] = field(default_factory=dict)
    ends: Mapping[Partition, int] = field(default_factory=dict)


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
        checks: Iterable[Iterable[str]] = (
            lost(told, archived.records, evidence.tails.get(tp, _NOTHING)),
            not_stored(told, archived),
            never_served(archived, told, served),
            out_of_order(archived),
            incomplete(archived),
            behind(archived, evidence.ends.get(tp, 0)),
            wrong_fates(evidence.fates.get(tp, _NOTHING), archived.fates),
        )
        found += [f"{tp[0]}-{tp[1]}: {problem}" for check in checks for problem in check]
    return found


def lost(acknowledged: Sums, stored: Sums, tail: Sums) -> Iterator[str]:
    """The union of the store and the brokers holds each acknowledged record with its bytes."""
    missing, other = [], []
    for offset, number in acknowledged.items():
        held = {stored.get(offset), tail.get(offset)} - {None}
        if not held:
            missing.append(offset)
        elif held != {number}:
            other.append(offset)
    if missing:
        yield f"acknowledged, and neither stored nor served: {ranges(missing)}"
    if other:
        yield f"acknowledged with other bytes than are held: {ranges(other)}"


def not_stored(acknowledged: Sums, archived: Archived) -> Iterator[str]:
    """The store alone holds each acknowledged record below the watermark; no gap excuses it."""
    below = [
        offset
        for offset, number in acknowledged.items()
        if offset < archived.mark.next and archived.records.get(offset) != number
    ]
    if below:
        yield f"below the watermark {archived.mark.next}, and not stored: {ranges(below)}"
    for start, end in archived.gaps:
        yield f"a gap was recorded from {start} to {end}"


def never_served(archived: Archived, acknowledged: Sums, served: Sums) -> Iterator[str]:
    """Nothing is stored that the cluster has thrown away: all of it was acknowledged or served."""
    strangers = [
        offset
        for offset, number in archived.records.items()
        if {acknowledged.get(offset), served.get(offset)} - {None} != {number}
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
    """Offsets rise strictly, stored ranges neither overlap nor leave a hole."""
    yield from archived.disorder[:_MOST_RANGES]
    expected = 0
    for base, (start, end) in sorted(
        [*archived.extents.items(), *((g[0], g) for g in archived.gaps)]
    ):
        if start != expected:
            kind = "a hole" if start > expected else "an overlap"
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


def broker_errors(lines: Iterable[str]) -> list[str]:
    """What brokers complain of that somebody has done to their files."""
    causes = ("NoSuchFile", "FileNotFound", "KafkaStorage", "log dir", "Failed to", "IOException")
    return [
        line.strip()
        for line in lines
        if (" ERROR " in line or " FATAL " in line)
        and any(cause in line for cause in causes)
        and any(part in line for part in ("LogManager", "UnifiedLog", "LocalLog", "LogDir"))
    ]


def sidecar_gaps(broker: int, events: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Whatever a sidecar says that it has lost or found to be another history."""
    for event in events:
        if event.get("event") == "gap.recorded" or event.get("kind") == "DivergedError":
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
