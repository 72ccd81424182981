"""Output of `sidetier mirror`: the plan, the result of a copy, and offsets of consumer groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sidetier.cli import exits
from sidetier.cli.arguments import size_text
from sidetier.cli.output import Columns, Table, range_text, table_of
from sidetier.mirror.copy.run import CopyReport
from sidetier.mirror.mirroring import MirrorPlan
from sidetier.mirror.offsets.translate import Outcome, TranslatedGroup, TranslatedOffset
from sidetier.mirror.topics.planning import PlannedCopy


@dataclass(frozen=True, slots=True)
class CopyResult:
    """View of the report of a copy."""

    report: CopyReport
    is_stopped: bool = False
    """Whether a signal has ended the copy before its end."""

    def as_json(self) -> dict[str, object]:
        """Return all counts and gaps."""
        counts = self.report.counts
        return {
            "records": counts.records,
            "bytes": counts.bytes,
            "seconds": round(self.report.seconds, 3),
            "transactions": counts.transactions,
            "aborts": counts.aborts,
            "dropped_records": counts.dropped_records,
            "reencoded_batches": counts.reencoded_batches,
            "lag_records": counts.lag_records,
            "gaps": [
                {**gap.tp._asdict(), "start": gap.start, "end": gap.end, "detail": gap.detail}
                for gap in counts.gaps
            ],
            "refused_topics": dict(self.report.refused),
            "left_out_partitions": {
                str(tp): reason for tp, reason in sorted(counts.left_out.items())
            },
            "groups_problem": self.report.groups_problem,
        }

    def as_tables(self) -> Sequence[Table]:
        """Return refused topics, partitions that were left out, and gaps, if there are any, and the
        totals.
        """
        counts = self.report.counts
        rows = [(str(gap.tp), range_text(gap.start, gap.end), gap.detail) for gap in counts.gaps]
        footer = (
            f"{counts.records} records, {size_text(counts.bytes)}, in {self.report.seconds:.1f} s; "
            f"{counts.transactions} transactions, {counts.aborts} aborted; "
            f"{counts.dropped_records} records of aborted source transactions left out"
        )
        columns = ("PARTITION", "GAP", "REASON") if rows else ()
        refused = Table(("TOPIC", "NOT COPIED BECAUSE"), tuple(self.report.refused.items()))
        left_out = tuple((str(tp), reason) for tp, reason in sorted(counts.left_out.items()))
        groups = Table(
            (),
            footer="the consumer groups could not be set at the end: "
            f"{self.report.groups_problem}\n"
            "Run the same command again, or `sidetier mirror translate-offsets`",
        )
        return (
            *((refused,) if self.report.refused else ()),
            *((Table(("PARTITION", "NOT COPIED FURTHER BECAUSE"), left_out),) if left_out else ()),
            *((groups,) if self.report.groups_problem is not None else ()),
            Table(columns, rows, footer=footer),
        )

    @property
    def exit_code(self) -> int:
        """INTERRUPTED after a stop; FINDINGS if records or groups are missing on the target."""
        if self.is_stopped:
            return exits.INTERRUPTED
        return exits.OK if self.report.is_complete else exits.FINDINGS


@dataclass(frozen=True, slots=True)
class PlanResult:
    """View of the plan of a mirror."""

    plan: MirrorPlan

    def as_json(self) -> object:
        """Return all topics."""
        return {
            "dry_run": True,
            "topics": [
                {
                    "source": topic.source,
                    "target": topic.target,
                    "partitions": topic.partitions,
                    "exists": topic.exists,
                    "deleted_first": topic.replaces is not None,
                    "settings": dict(topic.settings),
                    "offsets_to_copy": self.plan.offsets_left.get(topic.source),
                    "problem": topic.problem,
                }
                for topic in self.plan.topics
            ],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each topic."""
        columns: Columns[PlannedCopy] = {
            "SOURCE": lambda topic: topic.source,
            "TARGET": lambda topic: topic.target,
            "PARTITIONS": lambda topic: topic.partitions,
            "OFFSETS TO COPY": lambda topic: self.plan.offsets_left.get(topic.source),
            "TARGET TOPIC": lambda topic: topic.problem or _target_topic(topic),
        }
        footer = None if self.plan.topics else "no topic matches"
        return (table_of(self.plan.topics, columns, footer),)

    @property
    def exit_code(self) -> int:
        """MISCONFIGURED if a topic cannot be copied."""
        return exits.MISCONFIGURED if any(topic.problem for topic in self.plan.topics) else exits.OK


def _target_topic(planned: PlannedCopy) -> str:
    if planned.replaces is not None:
        return "would be deleted and created again, as the source topic was"
    return "exists" if planned.exists else "would be created"


@dataclass(frozen=True, slots=True)
class TranslateResult:
    """Offsets of consumer groups on both clusters."""

    groups: Sequence[TranslatedGroup]
    dry_run: bool

    def as_json(self) -> object:
        """Return all groups."""
        return {
            "dry_run": self.dry_run,
            "groups": [
                {
                    "group": group.group,
                    "has_members": group.has_members,
                    "partitions": [
                        {
                            "source_topic": row.source.topic,
                            "target_topic": row.target.topic,
                            "partition": row.source.partition,
                            "source_offset": row.source_offset,
                            "target_offset": row.target_offset,
                            "former_target_offset": row.former_offset,
                            "outcome": row.outcome.name.lower(),
                            "offsets_read_again": row.repeated,
                            "read_again_start": row.source_offset - row.repeated,
                            "read_again_end": row.source_offset,
                        }
                        for row in group.partitions
                    ],
                }
                for group in self.groups
            ],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition of each group."""
        rows = [(group, row) for group in self.groups for row in group.partitions]
        note = "nothing was set: this is a dry run" if self.dry_run else None
        footer = note if rows else "no such group has committed offsets of mirrored topics"
        return (table_of(rows, _OFFSET_COLUMNS, footer),)

    @property
    def exit_code(self) -> int:
        """FINDINGS if records are read again, or a group differs from its position on the
        source.
        """
        is_exact = all(
            row.repeated == 0 and row.outcome is not Outcome.AHEAD
            for group in self.groups
            for row in group.partitions
        )
        has_members = any(group.has_members for group in self.groups)
        return exits.OK if is_exact and not has_members else exits.FINDINGS


_OFFSET_COLUMNS: Final[Columns[tuple[TranslatedGroup, TranslatedOffset]]] = {
    "GROUP": lambda row: row[0].group,
    "SOURCE": lambda row: str(row[1].source),
    "TARGET": lambda row: str(row[1].target),
    "SOURCE OFFSET": lambda row: row[1].source_offset,
    "TARGET OFFSET": lambda row: row[1].target_offset,
    "SOURCE OFFSETS READ AGAIN": lambda row: _read_again(row[1]),
    "ON THE TARGET": lambda row: _LEFT_ALONE if row[0].has_members else row[1].outcome.value,
}
_LEFT_ALONE: Final = "left alone: the group has members"


def _read_again(row: TranslatedOffset) -> str | None:
    if row.repeated == 0:
        return None
    again = range_text(row.source_offset - row.repeated, row.source_offset)
    return f"up to {row.repeated}, in {again}"
