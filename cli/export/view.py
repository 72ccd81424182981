"""Output of an export: its plan and its result."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from sidetier.cli.arguments import size_text
from sidetier.cli.output import Table
from sidetier.pipeline.export.held_back import HeldBack
from sidetier.pipeline.export.report import ExportPlan, FilesReport, TableReport
from sidetier.pipeline.planning.describe import plan_json, plan_text
from sidetier.segments.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class FilesResult:
    """View of an export to files."""

    report: FilesReport

    def as_json(self) -> object:
        """Return the partitions, the number of runs, and what is held back or failed."""
        report = self.report
        rows = [report.rows[tp].as_json() for tp in sorted(report.rows)]
        return {
            "into": report.into,
            "runs": report.runs,
            "removed": report.swept,
            "partitions": rows,
            "held_back": [report.held_back[tp].as_json() for tp in sorted(report.held_back)],
            "failed": {topic: str(error) for topic, error in sorted(report.failed.items())},
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each Kafka partition."""
        report = self.report
        rows = [
            (
                str(row.tp),
                row.first,
                row.until,
                row.records,
                row.files,
                size_text(row.size),
                row.missing,
                row.dead_letters,
            )
            for row in (report.rows[tp] for tp in sorted(report.rows))
        ]
        records = sum(row.records for row in report.rows.values())
        footer = f"{records} records exported to {report.into}" if rows else "nothing is new"
        footer += held_back_text(report.held_back)
        footer = "\n".join([*waiting_texts(report.held_back.values()), footer])
        footer += f"; failed: {', '.join(sorted(report.failed))}" if report.failed else ""
        columns = (
            ("PARTITION", "FROM", "NEXT", "RECORDS", "FILES", "SIZE", "MISSING", "DEAD LETTERS")
            if rows
            else ()
        )
        return (Table(columns, rows, footer=footer),)


@dataclass(frozen=True, slots=True)
class TableResult:
    """View of an export to a table."""

    report: TableReport

    def as_json(self) -> object:
        """Return the result; the names are stable."""
        report = self.report
        return {
            "table": report.table,
            "commits": report.commits,
            "offsets_without_records": report.skipped,
            "missing_offsets": report.missing,
            "dead_letters": report.dead_letters,
            "held_back": [entry.as_json() for entry in report.held_back],
            "partitions": [
                {**tp._asdict(), "first_offset": span.start, "next_offset": span.end}
                for tp, span in sorted(report.ranges.items())
            ],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each Kafka partition with new offsets."""
        report = self.report
        rows = [
            (str(tp), span.start, span.end, span.end - span.start)
            for tp, span in sorted(report.ranges.items())
        ]
        footer = f"{report.commits} commits to {report.table}" if rows else "nothing is new"
        footer += f"; {report.missing} offsets are missing" if report.missing else ""
        footer += f"; {report.dead_letters} dead letters" if report.dead_letters else ""
        footer += held_back_text({entry.tp for entry in report.held_back})
        footer = "\n".join([*waiting_texts(report.held_back), footer])
        return (
            Table(("PARTITION", "FROM", "NEXT", "OFFSETS") if rows else (), rows, footer=footer),
        )


def waiting_texts(held_back: Iterable[HeldBack]) -> list[str]:
    """Return why partitions are held back that need no attention."""
    return [entry.detail for entry in held_back if not entry.is_finding]


def held_back_text(held_back: Collection[TopicPartition]) -> str:
    """Return the number of held-back partitions, to append to a summary; empty for none."""
    count = len(held_back)
    return f"; {count} partition{'' if count == 1 else 's'} held back" if count else ""


@dataclass(frozen=True, slots=True)
class DryRun:
    """View of what a run would do."""

    report: ExportPlan

    def as_json(self) -> object:
        """Return a plan for each topic that has new records."""
        return {
            "into": self.report.into,
            "goes_on_with_an_earlier_run": self.report.resumed,
            "plans": [plan_json(plan) for plan in self.report.plans],
            "held_back": [entry.as_json() for entry in self.report.held_back],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return the plans as text."""
        suffix = held_back_text({entry.tp for entry in self.report.held_back})
        words = waiting_texts(self.report.held_back)
        if not self.report.plans:
            return (Table((), footer="\n".join([*words, f"nothing is new{suffix}"])),)
        words += [plan_text(plan) for plan in self.report.plans]
        written = f"into {self.report.into}; nothing was written{suffix}"
        return (Table((), footer="\n".join([*words, written])),)
