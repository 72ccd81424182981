"""Decide where a record is, from all facts that are available. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidetier.cli import exits
from sidetier.cli.explain.facts import Facts
from sidetier.cli.explain.gates import Gate, gate_of, time_text


class Kind(StrEnum):
    """Where a record is; scripts use these values."""

    STORED = "stored"
    WAITS = "waits"
    """Its bytes exist, but it is not part of the archive (yet); `gate` says why."""
    NEVER_STORED = "never_stored"
    """It is below the start of the archive."""
    MISSING = "missing"
    """It is below the archive end, but no stored segment holds it."""
    SET_ASIDE = "set_aside"
    GAP = "gap"
    GONE = "gone"
    NOT_WRITTEN = "not_written"
    NO_SUCH_PARTITION = "no_such_partition"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Answer:
    """One line for people, and an exit code for scripts."""

    kind: Kind
    text: str
    code: int
    gate: Gate | None = None


def decide(facts: Facts) -> Answer:
    """Return the answer.

    A stored record comes first, then a recorded gap, then a place that still has the bytes.
    """
    answers = (answer(facts) for answer in _ANSWERS)
    return next((result for result in answers if result is not None), _unknown(facts))


def _archive_away(facts: Facts) -> Answer | None:
    """Answer if the store cannot be read.

    At or above the archive end that the sidecar reports, the other answers apply.
    """
    if facts.archive is not None:
        return None
    why = facts.problems.get("archive", "it was not asked")
    row = facts.sidecar.row if facts.sidecar is not None else None
    done = None if row is None else row["next_offset"]
    if done is None:
        more = f"; if it is not, {gate_of(facts).text}" if _bytes_here(facts) else ""
        text = f"whether it is stored cannot be told: {why}{more}"
        return Answer(Kind.UNKNOWN, text, exits.FAILED)
    if facts.offset >= done:
        return None
    text = (
        f"cannot be looked up ({why}), but the sidecar says that all below offset {done} is "
        "stored, or a recorded gap"
    )
    return Answer(Kind.UNKNOWN, text, exits.FAILED)


def _stored(facts: Facts) -> Answer | None:
    archive, done = facts.archive, facts.archived_to
    if archive is None or archive.holder is None or done is None or facts.offset >= done:
        return None
    if facts.offset < (archive.begins_at or 0):
        return None
    held = archive.holder
    text = (
        f"stored in segment {held.base_offset} (offsets to {held.next_offset - 1}), below the "
        f"archive's next offset {done}"
    )
    return Answer(Kind.STORED, text, exits.OK)


def _gap(facts: Facts) -> Answer | None:
    gap = facts.archive.gap if facts.archive is not None else None
    if gap is None:
        return None
    by = "" if gap.broker_id is None else f" by broker {gap.broker_id}'s sidecar"
    text = (
        f"gone before it was stored: the gap [{gap.start_offset}, "
        f"{gap.end_offset}) was recorded on {time_text(gap.recorded_ms)}{by}"
    )
    if gap.archive_below == "unverified":
        text += (
            f". What is archived below offset {gap.start_offset} may be of another history than "
            "the log: an election was not seen in time to compare them"
        )
    return Answer(Kind.GAP, text, exits.GONE)


def _not_written(facts: Facts) -> Answer | None:
    end = facts.bounds.high_watermark
    if facts.leads_here and facts.local is not None and facts.local.end is not None:
        end = facts.local.end
        if facts.offset >= end:
            text = f"not written yet: the log ends at offset {end}"
            return Answer(Kind.NOT_WRITTEN, text, exits.GONE)
    if end is None or facts.offset < end or _bytes_here(facts):
        return None
    text = f"not written, or not committed yet: the high watermark is at offset {end}"
    return Answer(Kind.NOT_WRITTEN, text, exits.GONE)


def _below_the_watermark(facts: Facts) -> Answer | None:
    """Answer if the record is not stored although it is below the archive's end or start."""
    archive, done = facts.archive, facts.archived_to
    if archive is None:
        return None
    begin = archive.begins_at
    begins_above = begin is not None and facts.offset < begin
    if begins_above and (done is not None or archive.start_offset is not None):
        text = f"never stored: the archive begins at offset {begin}{_where_else(facts)}"
        return Answer(Kind.NEVER_STORED, text, _code_by_bytes(facts))
    if done is None or facts.offset >= done:
        return None
    text = (
        f"missing: it lies below the archive's next offset {done}, but no stored segment and no "
        f"recorded gap holds it{_where_else(facts)}"
    )
    return Answer(Kind.MISSING, text, _code_by_bytes(facts))


def _waits(facts: Facts) -> Answer | None:
    if not (_bytes_here(facts) or _on_the_leader(facts) or _above_the_watermark(facts)):
        return None
    waiting = gate_of(facts)
    stored = "uploaded, but not committed" if _above_the_watermark(facts) else "not stored yet"
    if waiting.gate is Gate.EXCLUDED:
        stored = "not stored, and never will be"
    return Answer(Kind.WAITS, f"{stored}: {waiting.text}", exits.FINDINGS, waiting.gate)


def _above_the_watermark(facts: Facts) -> bool:
    return facts.archive is not None and facts.archive.holder is not None


def _bytes_here(facts: Facts) -> bool:
    """Return whether this host's disk, or a pin of the sidecar that was asked, has the record."""
    if facts.local is not None and facts.local.holder(facts.offset) is not None:
        return True
    sidecar = facts.sidecar
    return sidecar is not None and sidecar.pin_of(facts.offset) is not None


def _on_the_leader(facts: Facts) -> bool:
    start, end = facts.bounds.start, facts.bounds.high_watermark
    return start is not None and end is not None and start <= facts.offset < end


def _set_aside(facts: Facts) -> Answer | None:
    if facts.archive is None or not facts.archive.set_aside:
        return None
    text = f"set aside, out of the archive: look at {facts.archive.set_aside[0]}"
    return Answer(Kind.SET_ASIDE, text, exits.FINDINGS)


def _gone(facts: Facts) -> Answer | None:
    """Answer only if the archive and the log's start are both known; a guess would mislead."""
    start = facts.bounds.start
    if start is None and facts.leads_here and facts.local is not None:
        start = facts.local.start
    if start is None or facts.archive is None or facts.offset >= start:
        return None
    text = f"gone, and not stored: the log begins at offset {start} now, and no gap is recorded"
    if facts.sidecar is None:
        text += "; a sidecar that was not asked may hold it open still"
    return Answer(Kind.GONE, text, exits.GONE)


def _no_such_partition(facts: Facts) -> Answer | None:
    if facts.known_to_cluster is not False or facts.local is not None:
        return None
    if facts.archive is None or facts.archive.first_base is not None:
        text = "the cluster has no such partition (any more)"
        return Answer(Kind.GONE, text, exits.GONE)
    text = (
        f"there is no partition {facts.topic_partition}: neither the cluster nor the archive has it"
    )
    return Answer(Kind.NO_SUCH_PARTITION, text, exits.MISCONFIGURED)


def _unknown(facts: Facts) -> Answer:
    problems = "; ".join(f"{name}: {why}" for name, why in facts.problems.items())
    text = f"cannot be told: {problems or 'no source knows of it'}"
    return Answer(Kind.UNKNOWN, text, exits.FAILED)


def _where_else(facts: Facts) -> str:
    if _bytes_here(facts):
        return "; its bytes are on this host still"
    leader = facts.replicas.leader if facts.replicas is not None else None
    if _on_the_leader(facts) and leader is not None:
        return f"; broker {leader} has it still"
    return ""


def _code_by_bytes(facts: Facts) -> int:
    return exits.FINDINGS if _bytes_here(facts) or _on_the_leader(facts) else exits.GONE


_ANSWERS: Final[tuple[Callable[[Facts], Answer | None], ...]] = (
    _archive_away,
    _stored,
    _gap,
    _below_the_watermark,
    _not_written,
    _waits,
    _set_aside,
    _gone,
    _no_such_partition,
)
