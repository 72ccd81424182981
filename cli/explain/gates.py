"""What an unstored record waits for: the first gate on its way that is shut. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from sidetier.cli.arguments import age_text, size_text
from sidetier.cli.explain.facts import Facts, Fields
from sidetier.cli.local_facts import LocalSegment, Place


class Gate(StrEnum):
    """What a record waits for; scripts use these values."""

    EXCLUDED = "excluded"
    OTHER_BROKER = "other_broker"
    NO_LEADER = "no_leader"
    HALTED = "halted"
    QUARANTINING = "quarantining"
    ACTIVE_SEGMENT = "active_segment"
    NO_SIDECAR = "no_sidecar"
    NOT_FOLLOWED = "not_followed"
    HELD = "held"
    UPLOADING = "uploading"
    QUEUED = "queued"
    WATERMARK = "watermark"
    HIGH_WATERMARK = "high_watermark"
    EARLIER_SEGMENT = "earlier_segment"
    OTHER = "other"
    """Another condition that the sidecar reports, such as a source of leadership that must
    answer.
    """


@dataclass(frozen=True, slots=True)
class Waiting:
    """A gate, and the text that completes "it waits: ..."."""

    gate: Gate
    text: str


def gate_of(facts: Facts) -> Waiting:
    """Return the gate of a record that is not stored, and whose bytes exist."""
    results = (gate(facts) for gate in _GATES)
    return next((waiting for waiting in results if waiting is not None), _unclear(facts))


def _excluded(facts: Facts) -> Waiting | None:
    return None if facts.excluded is None else Waiting(Gate.EXCLUDED, facts.excluded)


def _leader(facts: Facts) -> Waiting | None:
    if facts.replicas is None or facts.leads_here:
        return None
    leader = facts.replicas.leader
    if leader is None:
        text = f"nobody leads the partition; its replicas are on brokers {_ids(facts)}"
        return Waiting(Gate.NO_LEADER, text)
    not_here = "" if facts.broker_id is None else f", not by broker {facts.broker_id} of this host"
    text = f"the partition is led by broker {leader}{not_here}: ask the sidecar there"
    return Waiting(Gate.OTHER_BROKER, text)


def _ids(facts: Facts) -> str:
    return ", ".join(map(str, facts.replicas.replicas if facts.replicas else ()))


def _halted(facts: Facts) -> Waiting | None:
    row = _row(facts)
    if row is None or row["state"] != "halted":
        return None
    reason = row["waiting_for"] or row["last_error"]
    return Waiting(Gate.HALTED, f"the partition is halted until somebody acts: {reason}")


def _moving(facts: Facts) -> Waiting | None:
    row = _row(facts)
    if row is None or row["state"] != "quarantining":
        return None
    text = f"a part of its archive is being set aside first: {row['waiting_for']}"
    return Waiting(Gate.QUARANTINING, text)


def _active(facts: Facts) -> Waiting | None:
    holder = facts.local.holder(facts.offset) if facts.local is not None else None
    if holder is None or holder.place is not Place.ACTIVE:
        return None
    text = f"segment {holder.base_offset} is active still: {when_it_closes(facts, holder)}"
    return Waiting(Gate.ACTIVE_SEGMENT, text)


def when_it_closes(facts: Facts, active: LocalSegment) -> str:
    """Return when `segment.bytes` or `segment.ms` closes the segment; both need an append."""
    reasons = []
    if facts.roll.segment_bytes is not None:
        full = f"{size_text(active.size_bytes)} of {size_text(facts.roll.segment_bytes)}"
        reasons.append(f"when full ({full})")
    first = facts.local.first_timestamp_ms if facts.local is not None else None
    if facts.roll.segment_ms is not None and first is not None:
        reasons.append(_by_time(first + facts.roll.segment_ms, facts.now_ms))
    if not reasons:
        return "it closes by segment.bytes or segment.ms, which the broker has not told"
    return f"it closes {' or '.join(reasons)}"


def _by_time(due_ms: int, now_ms: int) -> str:
    if due_ms <= now_ms:
        return "with the next append (segment.ms has passed)"
    when = time_text(due_ms)
    return f"with the first append after {when}, in {age_text((due_ms - now_ms) / 1000)}"


def _no_sidecar(facts: Facts) -> Waiting | None:
    if facts.sidecar is not None:
        return None
    why = facts.problems.get("sidecar", "it was not asked")
    return Waiting(Gate.NO_SIDECAR, f"no sidecar tells of it: {why}")


def _not_followed(facts: Facts) -> Waiting | None:
    if _row(facts) is not None:
        return None
    text = "the sidecar does not follow the partition (yet): it has not learned that it is led here"
    return Waiting(Gate.NOT_FOLLOWED, text)


def _partition_held(facts: Facts) -> Waiting | None:
    row = _row(facts)
    if row is None or row.get("retry_at_ms") is None:
        return None
    return _held("the partition is", row["last_error"] or row["waiting_for"], row, facts)


def _held(what: str, error: str, fields: Fields, facts: Facts) -> Waiting:
    text = f"{what} held by a failure, {_next_try(fields, facts.now_ms)}: {error}"
    return Waiting(Gate.HELD, text)


def _next_try(fields: Fields, now_ms: int) -> str:
    left = (fields["retry_at_ms"] - now_ms) / 1000
    return f"tried again in {age_text(left)}" if left > 0 else "tried again now"


def _segment(facts: Facts) -> Waiting | None:
    """Return the gate by the stage of the closed segment that holds the record."""
    segment = facts.sidecar.segment_of(facts.offset) if facts.sidecar is not None else None
    if segment is None:
        return None
    base = segment["base_offset"]
    if segment.get("error") is not None:
        return _held(f"segment {base} is", segment["error"], segment, facts)
    if segment["stage"] == "uploading":
        return Waiting(Gate.UPLOADING, f"segment {base} is being uploaded")
    if segment["stage"] == "queued":
        return Waiting(Gate.QUEUED, f"segment {base} is queued for a free upload thread")
    if segment["stage"] == "stored":
        return _watermark(facts, segment)
    return _not_begun(facts, segment)


def _watermark(facts: Facts, segment: Fields) -> Waiting:
    base, before = segment["base_offset"], _first_open(facts, segment)
    if before is None:
        return Waiting(Gate.WATERMARK, f"segment {base} is uploaded, and is committed next")
    text = f"segment {base} is uploaded; its commit waits for {_state_of(before, facts)}"
    return Waiting(Gate.EARLIER_SEGMENT, text)


def _not_begun(facts: Facts, segment: Fields) -> Waiting | None:
    end, mark = segment["next_offset"], facts.bounds.high_watermark
    if end is not None and mark is not None and mark < end:
        text = (
            f"segment {segment['base_offset']} is not committed yet: the high watermark is at "
            f"{mark}, and must reach {end}"
        )
        return Waiting(Gate.HIGH_WATERMARK, text)
    return _behind(facts, segment)


def _behind(facts: Facts, segment: Fields) -> Waiting | None:
    before = _first_open(facts, segment)
    if before is None:
        return None
    text = f"segment {segment['base_offset']} stands behind {_state_of(before, facts)}"
    return Waiting(Gate.EARLIER_SEGMENT, text)


def _first_open(facts: Facts, segment: Fields) -> Fields | None:
    """Return the oldest segment before this one that is not uploaded."""
    segments = facts.sidecar.segments if facts.sidecar is not None else ()
    earlier = (
        candidate for candidate in segments if candidate["base_offset"] < segment["base_offset"]
    )
    return next((candidate for candidate in earlier if candidate["stage"] != "stored"), None)


_STAGES: Final = {
    "uploading": "is being uploaded",
    "queued": "is queued",
    "closed": "has not begun",
    "stored": "is uploaded",
}


def _state_of(segment: Fields, facts: Facts) -> str:
    name = f"segment {segment['base_offset']}, which"
    if segment.get("error") is not None:
        return f"{name} is held ({_next_try(segment, facts.now_ms)}): {segment['error']}"
    state = f"{name} {_STAGES.get(segment['stage'], segment['stage'])}"
    row = _row(facts)
    waiting_for = None if row is None else row["waiting_for"]
    return (
        state if segment["stage"] != "closed" or waiting_for is None else f"{state}: {waiting_for}"
    )


def _too_far_behind(facts: Facts) -> Waiting | None:
    """Return the gate of a segment that the sidecar does not list: it lists only the oldest."""
    segments = facts.sidecar.segments if facts.sidecar is not None else ()
    row, sidecar = _row(facts), facts.sidecar
    if row is None or sidecar is None or sidecar.segment_of(facts.offset) is not None:
        return None
    if not segments or segments[-1]["base_offset"] > facts.offset:
        return None
    text = (
        f"its segment stands behind {_state_of(segments[0], facts)}; "
        f"{row['unstored_segments']} closed segments are not stored"
    )
    return Waiting(Gate.EARLIER_SEGMENT, text)


def _unclear(facts: Facts) -> Waiting:
    row = _row(facts)
    waiting_for = None if row is None else row["waiting_for"]
    if waiting_for is None:
        return Waiting(Gate.OTHER, "it is due: look again in a moment")
    return Waiting(Gate.OTHER, f"the sidecar waits for {waiting_for}")


def _row(facts: Facts) -> Fields | None:
    return None if facts.sidecar is None else facts.sidecar.row


_GATES: Final[tuple[Callable[[Facts], Waiting | None], ...]] = (
    _excluded,
    _leader,
    _halted,
    _moving,
    _active,
    _no_sidecar,
    _not_followed,
    _partition_held,
    _segment,
    _too_far_behind,
)


def time_text(milliseconds: int) -> str:
    """Format ms since 1970 in UTC; return the number itself if it is beyond the calendar."""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError):
        return str(milliseconds)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
