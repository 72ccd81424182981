"""Decide where a record is, from all available facts. Pure functions."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidetier.cli import exits
from sidetier.cli.arguments import age_text, size_text
from sidetier.cli.inspect.facts import RecordFacts
from sidetier.cli.inspect.local_log import LocalSegment, Place
from sidetier.cli.output import range_text
from sidetier.config.times import time_text
from sidetier.telemetry.status import PartitionState, PartitionStatus, SegmentStatus


class Gate(StrEnum):
    """The condition that a record waits for; scripts use these values."""

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


def gate_of(facts: RecordFacts) -> Waiting:
    """Return the gate of a record that is not stored, and whose bytes exist."""
    results = (gate(facts) for gate in _GATES)
    return next((waiting for waiting in results if waiting is not None), _unclear(facts))


def _excluded(facts: RecordFacts) -> Waiting | None:
    return None if facts.exclusion is None else Waiting(Gate.EXCLUDED, facts.exclusion.text)


def _leader(facts: RecordFacts) -> Waiting | None:
    if facts.replicas is None or facts.leads_here:
        return None
    leader = facts.replicas.leader
    if leader is None:
        text = f"the partition has no leader; its replicas are on brokers {_ids(facts)}"
        return Waiting(Gate.NO_LEADER, text)
    not_here = "" if facts.broker_id is None else f", not by broker {facts.broker_id} of this host"
    text = f"the partition is led by broker {leader}{not_here}: ask the sidecar there"
    return Waiting(Gate.OTHER_BROKER, text)


def _ids(facts: RecordFacts) -> str:
    return ", ".join(map(str, facts.replicas.replicas if facts.replicas else ()))


def _halted(facts: RecordFacts) -> Waiting | None:
    row = facts.row
    if row is None or row.state is not PartitionState.HALTED:
        return None
    reason = row.waiting_for or row.last_error
    return Waiting(Gate.HALTED, f"the partition is halted until an operator acts: {reason}")


def _moving(facts: RecordFacts) -> Waiting | None:
    row = facts.row
    if row is None or row.state is not PartitionState.QUARANTINING:
        return None
    text = f"the sidecar moves a part of the archive to quarantine first: {row.waiting_for}"
    return Waiting(Gate.QUARANTINING, text)


def _active(facts: RecordFacts) -> Waiting | None:
    holder = facts.on_disk
    if holder is None or holder.place is not Place.ACTIVE:
        return None
    closes, early = when_it_closes(facts, holder), _when_early(facts)
    when = closes if early is None else f"{early}; {closes}"
    return Waiting(Gate.ACTIVE_SEGMENT, f"segment {holder.base_offset} is still active: {when}")


def _when_early(facts: RecordFacts) -> str | None:
    """Return when the sidecar stores the active segment's committed records; None if it closes
    first.
    """
    early, row = facts.early, facts.row
    if early is None:
        return None
    if row is None:
        why = facts.problems.get("sidecar", "it does not know the partition")
        return f"its sidecar would archive it early (uploader.early), and does not answer: {why}"
    size = row.unarchived_bytes
    by_size = f"{size_text(early.bytes)}{'' if size is None else f' ({size_text(size)} now)'}"
    age = row.unarchived_age_seconds
    left = None if age is None else max(0.0, early.age - age)
    by_age = f"{age_text(early.age)}{'' if left is None else f' (in {age_text(left)})'}"
    text = f"its committed records are archived early, at {by_size} or an age of {by_age}"
    mark = facts.log_offsets.high_watermark
    if mark is not None and facts.offset >= mark:
        text += f"; this one is not committed yet: the high watermark is at {mark}"
    return text if row.last_error is None else f"{text}; the last error: {row.last_error}"


def when_it_closes(facts: RecordFacts, active: LocalSegment) -> str:
    """Return when `segment.bytes` or `segment.ms` closes the segment; both need an append."""
    reasons = []
    if facts.roll.segment_bytes is not None:
        full = f"{size_text(active.size_bytes)} of {size_text(facts.roll.segment_bytes)}"
        reasons.append(f"when full ({full})")
    first = facts.local.first_timestamp_ms if facts.local is not None else None
    if facts.roll.segment_ms is not None and first is not None:
        reasons.append(_by_time(first + facts.roll.segment_ms, facts.now_ms))
    if not reasons:
        return "it closes by segment.bytes or segment.ms, which the broker did not return"
    return f"it closes {' or '.join(reasons)}"


def _by_time(due_ms: int, now_ms: int) -> str:
    if due_ms <= now_ms:
        return "with the next append (segment.ms has passed)"
    when = time_text(due_ms)
    return f"with the first append after {when}, in {age_text((due_ms - now_ms) / 1000)}"


def _no_sidecar(facts: RecordFacts) -> Waiting | None:
    if facts.sidecar is not None:
        return None
    why = facts.problems.get("sidecar", "it was not asked")
    return Waiting(Gate.NO_SIDECAR, f"no sidecar answers: {why}")


def _not_followed(facts: RecordFacts) -> Waiting | None:
    if facts.row is not None:
        return None
    text = "the sidecar does not know (yet) that this broker leads the partition"
    return Waiting(Gate.NOT_FOLLOWED, text)


def _partition_held(facts: RecordFacts) -> Waiting | None:
    row = facts.row
    if row is None or row.retry_at_ms is None:
        return None
    return _held("the partition", row.last_error or row.waiting_for, row, facts)


def _held(
    what: str, error: str | None, waiting: PartitionStatus | SegmentStatus, facts: RecordFacts
) -> Waiting:
    text = f"{what} waits after an error, {_next_try(waiting, facts.now_ms)}: {error}"
    return Waiting(Gate.HELD, text)


def _next_try(waiting: PartitionStatus | SegmentStatus, now_ms: int) -> str:
    left = ((waiting.retry_at_ms or 0) - now_ms) / 1000
    return f"next attempt in {age_text(left)}" if left > 0 else "next attempt now"


def _segment(facts: RecordFacts) -> Waiting | None:
    """Return the gate by the stage of the closed segment that holds the record."""
    segment = facts.sidecar.segment_of(facts.offset) if facts.sidecar is not None else None
    if segment is None:
        return None
    base = segment.base_offset
    if segment.error is not None:
        return _held(f"segment {base}", segment.error, segment, facts)
    if segment.stage == "uploading":
        return Waiting(Gate.UPLOADING, f"segment {base} is being uploaded")
    if segment.stage == "queued":
        return Waiting(Gate.QUEUED, f"segment {base} is queued for a free upload thread")
    if segment.stage == "stored":
        return _uploaded(facts, segment)
    return _not_begun(facts, segment)


def _uploaded(facts: RecordFacts, segment: SegmentStatus) -> Waiting:
    base, before = segment.base_offset, _first_open(facts, segment)
    if before is None:
        return Waiting(Gate.WATERMARK, f"segment {base} is uploaded, and its commit is next")
    text = f"segment {base} is uploaded; its commit waits for {_state_of(before, facts)}"
    return Waiting(Gate.EARLIER_SEGMENT, text)


def _not_begun(facts: RecordFacts, segment: SegmentStatus) -> Waiting | None:
    end, mark = segment.next_offset, facts.log_offsets.high_watermark
    if end is not None and mark is not None and mark < end:
        text = (
            f"segment {segment.base_offset} is not committed yet: the high watermark is at "
            f"{mark}, and must reach {end}"
        )
        return Waiting(Gate.HIGH_WATERMARK, text)
    return _behind(facts, segment)


def _behind(facts: RecordFacts, segment: SegmentStatus) -> Waiting | None:
    before = _first_open(facts, segment)
    if before is None:
        return None
    text = f"segment {segment.base_offset} waits for {_state_of(before, facts)}"
    return Waiting(Gate.EARLIER_SEGMENT, text)


def _first_open(facts: RecordFacts, segment: SegmentStatus) -> SegmentStatus | None:
    """Return the oldest segment before this one that is not uploaded."""
    segments = facts.sidecar.segments if facts.sidecar is not None else ()
    earlier = (candidate for candidate in segments if candidate.base_offset < segment.base_offset)
    return next((candidate for candidate in earlier if candidate.stage != "stored"), None)


_STAGES: Final = {
    "uploading": "is being uploaded",
    "queued": "is queued",
    "closed": "has not been started",
    "stored": "is uploaded",
}


def _state_of(segment: SegmentStatus, facts: RecordFacts) -> str:
    name = f"segment {segment.base_offset}, which"
    if segment.error is not None:
        return f"{name} waits after an error ({_next_try(segment, facts.now_ms)}): {segment.error}"
    state = f"{name} {_STAGES.get(segment.stage, segment.stage)}"
    waiting_for = None if facts.row is None else facts.row.waiting_for
    return state if segment.stage != "closed" or waiting_for is None else f"{state}: {waiting_for}"


def _too_far_behind(facts: RecordFacts) -> Waiting | None:
    """Return the gate of a segment that the sidecar does not list: it lists only the oldest."""
    segments = facts.sidecar.segments if facts.sidecar is not None else ()
    row, sidecar = facts.row, facts.sidecar
    if row is None or sidecar is None or sidecar.segment_of(facts.offset) is not None:
        return None
    if not segments or segments[-1].base_offset > facts.offset:
        return None
    text = (
        f"its segment waits for {_state_of(segments[0], facts)}; "
        f"{row.unstored_segments} closed segments are not archived"
    )
    return Waiting(Gate.EARLIER_SEGMENT, text)


def _unclear(facts: RecordFacts) -> Waiting:
    waiting_for = None if facts.row is None else facts.row.waiting_for
    if waiting_for is None:
        return Waiting(Gate.OTHER, "its upload is due: ask again in a few seconds")
    return Waiting(Gate.OTHER, f"the sidecar waits for {waiting_for}")


_GATES: Final[tuple[Callable[[RecordFacts], Waiting | None], ...]] = (
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


class Kind(StrEnum):
    """Where a record is; scripts use these values."""

    STORED = "stored"
    WAITS = "waits"
    """Its bytes exist, but it is not part of the archive (yet); `gate` says why."""
    NEVER_STORED = "never_stored"
    """It is below the start of the archive."""
    MISSING = "missing"
    """It is below the archive end, but no stored segment holds it."""
    MOVED_AWAY = "moved_away"
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


def decide(facts: RecordFacts) -> Answer:
    """Return the answer.

    A stored record comes first, then a recorded gap, then a place that still has the bytes.
    """
    answers = (answer(facts) for answer in _ANSWERS)
    return next((result for result in answers if result is not None), _unknown(facts))


def _archive_away(facts: RecordFacts) -> Answer | None:
    """Answer if the store cannot be read.

    At or above the archive end that the sidecar reports, the other answers apply.
    """
    if facts.archive is not None:
        return None
    why = facts.problems.get("archive", "it was not asked")
    done = None if facts.row is None else facts.row.next_offset
    if done is None:
        more = f"; if it is not archived, {gate_of(facts).text}" if _bytes_here(facts) else ""
        text = f"unknown whether it is archived: {why}{more}"
        return Answer(Kind.UNKNOWN, text, exits.FAILED)
    if facts.offset >= done:
        return None
    text = (
        f"the archive cannot be read ({why}); according to the sidecar, every offset below {done} "
        "is archived, or in a recorded gap"
    )
    return Answer(Kind.UNKNOWN, text, exits.FAILED)


def _stored(facts: RecordFacts) -> Answer | None:
    archive, done = facts.archive, facts.archived_up_to
    if archive is None or archive.holder is None or done is None or facts.offset >= done:
        return None
    if facts.offset < (archive.begins_at or 0):
        return None
    held = archive.holder
    text = (
        f"archived in segment {held.base_offset} (offsets "
        f"{range_text(held.base_offset, held.next_offset)}); the partition is archived up to {done}"
    )
    return Answer(Kind.STORED, text, exits.OK)


def _gap(facts: RecordFacts) -> Answer | None:
    gap = facts.archive.gap if facts.archive is not None else None
    if gap is None:
        return None
    by = "" if gap.broker_id is None else f" by broker {gap.broker_id}'s sidecar"
    text = (
        f"deleted before it was archived: the gap {range_text(gap.start_offset, gap.end_offset)} "
        f"was recorded on {time_text(gap.recorded_ms)}{by}"
    )
    accepted = gap.acknowledgement
    if accepted is not None:
        text += f"; acknowledged{'' if accepted.user is None else f' by {accepted.user}'}"
        text += "" if accepted.reason is None else f": {accepted.reason}"
    if gap.archive_below == "unverified":
        text += (
            f". The archive below offset {gap.start_offset} may have another history than the log, "
            "because the sidecar did not see an election in time to compare them"
        )
    return Answer(Kind.GAP, text, exits.GONE)


def _not_written(facts: RecordFacts) -> Answer | None:
    end = facts.log_offsets.high_watermark
    if facts.leads_here and facts.local is not None and facts.local.end is not None:
        end = facts.local.end
        if facts.offset >= end:
            text = f"not written yet: the log ends at offset {end}"
            return Answer(Kind.NOT_WRITTEN, text, exits.GONE)
    if end is None or facts.offset < end or _bytes_here(facts):
        return None
    text = f"not written, or not committed yet: the high watermark is at offset {end}"
    return Answer(Kind.NOT_WRITTEN, text, exits.GONE)


def _below_the_archive_end(facts: RecordFacts) -> Answer | None:
    """Answer if the record is not stored although it is below the archive's end or start."""
    archive, done = facts.archive, facts.archived_up_to
    if archive is None:
        return None
    begin = archive.begins_at
    begins_above = begin is not None and facts.offset < begin
    if begins_above and (done is not None or archive.start_offset is not None):
        text = (
            f"never archived, or deleted by `sidetier gc`: the archive begins at offset {begin}"
            f"{_where_else(facts)}"
        )
        return Answer(Kind.NEVER_STORED, text, _code_by_bytes(facts))
    if done is None or facts.offset >= done:
        return None
    text = (
        f"missing: the partition is archived up to {done}, but no stored segment and no recorded "
        f"gap has the offset{_where_else(facts)}"
    )
    return Answer(Kind.MISSING, text, _code_by_bytes(facts))


def _waits(facts: RecordFacts) -> Answer | None:
    if not (_bytes_here(facts) or _on_the_leader(facts) or _above_the_archive_end(facts)):
        return None
    waiting = gate_of(facts)
    stored = "uploaded, but not committed" if _above_the_archive_end(facts) else "not archived yet"
    if waiting.gate is Gate.EXCLUDED:
        stored = "never archived"
    return Answer(Kind.WAITS, f"{stored}: {waiting.text}", exits.FINDINGS, waiting.gate)


def _above_the_archive_end(facts: RecordFacts) -> bool:
    return facts.archive is not None and facts.archive.holder is not None


def _bytes_here(facts: RecordFacts) -> bool:
    """Return whether this host's disk, or a pin of the sidecar that was asked, has the record."""
    return facts.on_disk is not None or facts.pin is not None


def _on_the_leader(facts: RecordFacts) -> bool:
    start, end = facts.log_offsets.start, facts.log_offsets.high_watermark
    return start is not None and end is not None and start <= facts.offset < end


def _moved_away(facts: RecordFacts) -> Answer | None:
    if facts.archive is None or not facts.archive.moved_away:
        return None
    text = f"not in the archive, but in quarantine or retired: {facts.archive.moved_away[0]}"
    return Answer(Kind.MOVED_AWAY, text, exits.FINDINGS)


def _gone(facts: RecordFacts) -> Answer | None:
    """Answer only if the archive and the log's start are both known; a guess would mislead."""
    start = facts.log_offsets.start
    if start is None and facts.leads_here and facts.local is not None:
        start = facts.local.start
    if start is None or facts.archive is None or facts.offset >= start:
        return None
    text = (
        f"deleted, and not archived: the log now begins at offset {start}, and no gap is recorded"
    )
    if facts.sidecar is None:
        text += "; a sidecar that was not asked may still hold it open"
    return Answer(Kind.GONE, text, exits.GONE)


def _no_such_partition(facts: RecordFacts) -> Answer | None:
    if facts.known_to_cluster is not False or facts.local is not None:
        return None
    if facts.archive is None or facts.archive.first_base is not None:
        text = "the cluster does not have this partition, or no longer has it"
        return Answer(Kind.GONE, text, exits.GONE)
    text = (
        f"there is no partition {facts.topic_partition}: neither the cluster nor the archive has it"
    )
    return Answer(Kind.NO_SUCH_PARTITION, text, exits.MISCONFIGURED)


def _unknown(facts: RecordFacts) -> Answer:
    problems = "; ".join(f"{name}: {why}" for name, why in facts.problems.items())
    text = f"unknown: {problems or 'no source has the record'}"
    return Answer(Kind.UNKNOWN, text, exits.FAILED)


def _where_else(facts: RecordFacts) -> str:
    if _bytes_here(facts):
        return "; this host still has its bytes"
    leader = facts.replicas.leader if facts.replicas is not None else None
    if _on_the_leader(facts) and leader is not None:
        return f"; broker {leader} still has it"
    return ""


def _code_by_bytes(facts: RecordFacts) -> int:
    return exits.FINDINGS if _bytes_here(facts) or _on_the_leader(facts) else exits.GONE


_ANSWERS: Final[tuple[Callable[[RecordFacts], Answer | None], ...]] = (
    _archive_away,
    _stored,
    _gap,
    _below_the_archive_end,
    _not_written,
    _waits,
    _moved_away,
    _gone,
    _no_such_partition,
)
