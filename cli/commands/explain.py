"""`sidetier explain`: where a record is now, and what it waits for."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import click

from sidetier.cli import kernel
from sidetier.cli.arguments import (
    BOOTSTRAP,
    PARTITION,
    sidecar_url,
    size_text,
    topic_name,
)
from sidetier.cli.inspect.archive import ArchivedOffset
from sidetier.cli.inspect.explain import Answer, decide
from sidetier.cli.inspect.facts import RecordFacts, RecordQuestion, gather_record
from sidetier.cli.inspect.local_log import LocalSegment, Place
from sidetier.cli.inspect.local_retention import trim_json
from sidetier.cli.inspect.sidecar import Fields
from sidetier.cli.options import CommandOptions, argument, options
from sidetier.cli.output import Table, cell_text, range_text
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.telemetry.status_json import partition_row

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, slots=True)
class ExplainResult:
    """The answer, and the facts behind it."""

    facts: RecordFacts
    answer: Answer

    @property
    def exit_code(self) -> int:
        """Exit code of the answer."""
        return self.answer.code

    def as_json(self) -> object:
        """Return answer and facts. Names of answers and gates are stable; an unavailable
        source is null.
        """
        facts = self.facts
        return {
            **facts.topic_partition._asdict(),
            "offset": facts.offset,
            "answer": self.answer.kind.value,
            "gate": None if self.answer.gate is None else self.answer.gate.value,
            "text": self.answer.text,
            "exit_code": self.answer.code,
            "disk": _local_json(facts),
            "sidecar": _sidecar_json(facts),
            "archive": _fields(facts.archive),
            "cluster": _cluster_json(facts),
            "local_retention": _retention_json(facts),
            "problems": dict(facts.problems),
        }

    def as_tables(self) -> Sequence[Table]:
        """Return the verdict on the first line, then a row for each source."""
        facts = self.facts
        verdict = f"{facts.topic_partition} offset {facts.offset}: {self.answer.text}"
        rows = [
            ("disk", _or_problem(facts, "disk", _disk_text(facts))),
            ("sidecar", _or_problem(facts, "sidecar", _sidecar_text(facts))),
            ("archive", _or_problem(facts, "archive", _archive_text(facts))),
            ("cluster", _or_problem(facts, "cluster", _cluster_text(facts))),
        ]
        if facts.local_retention is not None or _RETENTION in facts.problems:
            rows.append((_RETENTION, _or_problem(facts, _RETENTION, _retention_text(facts))))
        return (Table((), footer=verdict), Table(("SOURCE", "SAYS"), rows))


def _or_problem(facts: RecordFacts, source: str, text: str | None) -> str:
    problem = facts.problems.get(source)
    if problem is None:
        return text or "nothing"
    return f"no answer: {problem}" if text is None else f"{text}; but {problem}"


def _disk_text(facts: RecordFacts) -> str | None:
    log = facts.local
    if log is None:
        return None if "disk" in facts.problems else "the partition has no replica on this host"
    segment = facts.on_disk
    reach = f"offsets {range_text(facts.log_start, log.end)} are here"
    if segment is None:
        return f"not in {log.directory} ({reach})"
    place = _place(segment, facts.log_start)
    return f"{segment.path} ({place}, {size_text(segment.size_bytes)}); {reach}"


def _place(segment: LocalSegment, log_start: Offset | None) -> str:
    end = segment.next_offset
    is_closed = segment.place is Place.CLOSED
    if is_closed and None not in {end, log_start} and (end or 0) <= (log_start or 0):
        return (
            f"below the log start offset {log_start}, deleted by the broker at its next check: "
            "log.retention.check.interval.ms"
        )
    if segment.place is Place.MARKED_FOR_DELETION:
        return "marked for deletion, the broker unlinks it soon"
    return "closed" if is_closed else "active"


def _sidecar_text(facts: RecordFacts) -> str | None:
    sidecar = facts.sidecar
    if sidecar is None:
        return None
    prefix = "" if sidecar.broker_id is None else f"of broker {sidecar.broker_id}: "
    return prefix + "; ".join(_sidecar_parts(facts))


def _sidecar_parts(facts: RecordFacts) -> Iterator[str]:
    row, pin = facts.row, facts.pin
    if row is None:
        yield "does not lead the partition"
    else:
        yield f"{row.state}, archived up to {cell_text(row.next_offset)}"
        yield f"{row.unstored_segments} closed segments are not archived"
        if row.waiting_for:
            yield f"waits for {row.waiting_for}"
    if pin is None:
        yield "does not hold the record open"
    else:
        yield f"holds offsets {range_text(pin.start_offset, pin.end_offset)} open"


def _archive_text(facts: RecordFacts) -> str | None:
    return None if facts.archive is None else "; ".join(_archive_parts(facts.archive))


def _archive_parts(archive: ArchivedOffset) -> Iterator[str]:
    mark = archive.watermark
    archived = range_text(archive.begins_at, mark.next_offset)
    yield mark.problem or f"offsets {archived} are archived"
    if mark.watermark is not None and mark.watermark.pending is not None:
        yield f"a part of it is being moved to {mark.watermark.pending}"
    if archive.holder is not None:
        held = archive.holder
        yield f"{held.key} ({size_text(held.size_bytes)})"
    if archive.gap is not None:
        yield f"recorded gap {archive.gap.key}"
    # `sidetier gc` may have moved the start since it was recorded.
    if archive.start_offset is not None and archive.start_offset == archive.begins_at:
        yield f"the archive begins at offset {archive.start_offset} (uploader.offset_reset: latest)"
    yield from (f"quarantined or retired: {key}" for key in archive.moved_away)


def _cluster_text(facts: RecordFacts) -> str | None:
    held = facts.replicas
    if held is None:
        return None
    leader = "no leader" if held.leader is None else f"led by broker {held.leader}"
    replicas = f"replicas {_numbers(held.replicas)}, in sync {_numbers(held.in_sync)}"
    bounds = facts.log_offsets
    if bounds.high_watermark is None:
        return f"{leader}; {replicas}"
    reach = f"log starts at {bounds.start}, high watermark {bounds.high_watermark}"
    return f"{leader}; {replicas}; {reach}"


_RETENTION: Final = "local retention"


def _retention_text(facts: RecordFacts) -> str | None:
    retention = facts.local_retention
    if retention is None:
        return None
    if not facts.leads_here:
        return "on; the sidecar of the partition's leader deletes archived records"
    trim = retention.trim
    if trim is None:
        return "on; no closed segment of the log is beyond it"
    parts = ["on"]
    if trim.end > trim.first_deleted:
        parts.append(
            f"the next pass deletes offsets {range_text(trim.first_deleted, trim.end)} "
            f"({size_text(trim.size)}) here if the store proves to have them"
        )
    if trim.held is not None:
        below = range_text(max(trim.end, trim.first_deleted), trim.retained_from)
        parts.append(
            f"offsets {below} ({size_text(trim.excess)}) stay: {trim.held.text} "
            f"({trim.held.hindrance})"
        )
    return "; ".join(parts)


def _retention_json(facts: RecordFacts) -> Fields | None:
    """Return the decision; its partition fields repeat the answer's."""
    retention = facts.local_retention
    if retention is None:
        return None
    return {"decision": None if retention.trim is None else trim_json(retention.trim)}


def _numbers(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids)) or "none"


def _fields(value: "DataclassInstance | None") -> Fields | None:
    return None if value is None else asdict(value)


def _local_json(facts: RecordFacts) -> Fields | None:
    log = facts.local
    if log is None:
        return None
    return {
        "directory": log.directory,
        "log_start_offset": facts.log_start,
        "log_end_offset": log.end,
        "checkpointed_high_watermark": log.checkpointed,
        "segment": _fields(facts.on_disk),
    }


def _sidecar_json(facts: RecordFacts) -> Fields | None:
    if facts.sidecar is None:
        return None
    return {
        "broker_id": facts.sidecar.broker_id,
        "partition": None if facts.row is None else partition_row(facts.row),
        "pin": _fields(facts.pin),
    }


def _cluster_json(facts: RecordFacts) -> Fields | None:
    held = facts.replicas
    if held is None:
        return None
    return {
        "leader": held.leader,
        "replicas": list(held.replicas),
        "in_sync": list(held.in_sync),
        "log_start_offset": facts.log_offsets.start,
        "high_watermark": facts.log_offsets.high_watermark,
    }


@options
class ExplainOptions(CommandOptions):
    """Options of `sidetier explain`."""

    topic: str = argument(parse=topic_name)
    partition: int = argument(type=PARTITION)
    offset: int = argument(type=click.IntRange(0, 2**63 - 2))
    sidecar: str | None = sidecar_url()
    bootstrap: str | None = BOOTSTRAP


@kernel.command("explain")
def command(options: ExplainOptions) -> ExplainResult:
    """Show where a record is now, and what its upload waits for.

    Reads this host's log dirs and queries the running sidecar, the store and the cluster in
    parallel. It changes nothing. If a source does not answer, the command says so and shows the
    others. For a record that is not archived it names the reason: the active segment, the high
    watermark, a failure, an earlier segment, another broker. For a topic with local retention it
    also shows up to which offset the next pass deletes archived records, and why others stay. It
    sends about twenty requests to the store.

    \b
    Example:
      sidetier explain orders 3 1234567 --config /etc/sidetier/sidetier.yaml

    Exit codes: 0 archived; 3 not archived (yet), but its bytes exist; 4 lost, or not written yet; 2
    neither the cluster nor the archive has the partition; 1 unknown, because a source does not
    answer.
    """  # noqa: D301 -- \b is click's marker and must be one character
    question = RecordQuestion(
        options.call.load().config,
        TopicPartition(options.topic, options.partition),
        Offset(options.offset),
        options.sidecar,
        options.bootstrap,
    )
    facts = gather_record(question)
    return ExplainResult(facts, decide(facts))
