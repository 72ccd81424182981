"""Output of an export: its plan and its result."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from sidetier.cli.arguments import size_text
from sidetier.cli.output import Table
from sidetier.pipeline.export.held_back import HeldBack
from sidetier.pipeline.export.run import Chunk
from sidetier.pipeline.export.sinks.files.run import RunResult
from sidetier.pipeline.export.sinks.tables.run import Committed
from sidetier.pipeline.planning.describe import plan_json, plan_text
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.offsets import OffsetRange, TopicPartition


@dataclass(slots=True)
class PartitionDone:
    """What was exported of one Kafka partition: offsets from `first` up to `until`, exclusive."""

    tp: TopicPartition
    first: int
    until: int
    records: int = 0
    files: int = 0
    size: int = 0
    dead_letters: int = 0
    skipped: int = 0
    missing: int = 0

    def as_json(self) -> dict[str, object]:
        """Return the values; the names are stable."""
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "first_offset": self.first,
            "next_offset": self.until,
            "records": self.records,
            "files": self.files,
            "bytes": self.size,
            "dead_letters": self.dead_letters,
            "skipped": self.skipped,
            "missing_offsets": self.missing,
        }


@dataclass(slots=True)
class ExportResult:
    """Result of a call, over all of its runs."""

    into: str
    rows: dict[TopicPartition, PartitionDone] = field(default_factory=dict)
    runs: int = 0
    swept: int = 0
    held_back: dict[TopicPartition, HeldBack] = field(default_factory=dict)
    failed: dict[str, Exception] = field(default_factory=dict)
    """By topic; only with several topics."""

    def hold_back(self, topic: str, held_back: Iterable[HeldBack]) -> None:
        """Replace the held-back partitions of a topic."""
        others = {tp: entry for tp, entry in self.held_back.items() if tp.topic != topic}
        self.held_back = others | {entry.tp: entry for entry in held_back}

    def add(self, topic: str, result: RunResult) -> None:
        """Add a run that was carried out."""
        dead_letters = result.run.options.dead_letters
        self.runs += 1
        self.swept += result.swept
        for partition, span in result.run.spans.items():
            tp = TopicPartition(topic, partition)
            row = self.rows.setdefault(tp, PartitionDone(tp, span.first, span.until))
            row.until = span.until
        for done in result.done:
            row = self.rows[done.tp]
            kept = [entry for entry in done.written.files if not _is_below(entry.key, dead_letters)]
            row.records += sum(entry.records for entry in kept)
            row.files += len(kept)
            row.size += sum(entry.bytes for entry in kept)
            row.dead_letters += done.written.dead_letters
            row.skipped += done.written.skipped
        for entry in result.missing:
            self.rows[TopicPartition(topic, entry.partition)].missing += entry.until - entry.first

    @property
    def has_findings(self) -> bool:
        """Whether records were not exported that should be."""
        findings = any(row.missing or row.dead_letters for row in self.rows.values())
        return findings or any(entry.is_finding for entry in self.held_back.values())

    def as_json(self) -> object:
        """Return the partitions, the number of runs, and what is held back or failed."""
        rows = [self.rows[tp].as_json() for tp in sorted(self.rows)]
        return {
            "into": self.into,
            "runs": self.runs,
            "removed": self.swept,
            "partitions": rows,
            "held_back": [self.held_back[tp].as_json() for tp in sorted(self.held_back)],
            "failed": {topic: str(error) for topic, error in sorted(self.failed.items())},
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each Kafka partition."""
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
            for row in (self.rows[tp] for tp in sorted(self.rows))
        ]
        records = sum(row.records for row in self.rows.values())
        footer = f"{records} records exported to {self.into}" if rows else "nothing is new"
        footer += held_back_text(self.held_back)
        footer = "\n".join([*waiting_texts(self.held_back.values()), footer])
        footer += f"; failed: {', '.join(sorted(self.failed))}" if self.failed else ""
        columns = (
            ("PARTITION", "FROM", "NEXT", "RECORDS", "FILES", "SIZE", "MISSING", "DEAD LETTERS")
            if rows
            else ()
        )
        return (Table(columns, rows, footer=footer),)


@dataclass(slots=True)
class TableResult:
    """Result of a call, over all of its runs."""

    table: str
    ranges: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    commits: int = 0
    skipped: int = 0
    missing: int = 0
    """Offsets that are not stored; the export continued behind them."""
    dead_letters: int = 0
    held_back: tuple[HeldBack, ...] = ()

    def add_chunk(self, chunk: Chunk) -> None:
        """Count a commit."""
        self.commits += 1
        for tp, span in chunk.ranges.items():
            earlier = self.ranges.get(tp, span)
            self.ranges[tp] = OffsetRange(earlier.start, span.end)

    @property
    def has_findings(self) -> bool:
        """Whether records are missing in the table that should be in it."""
        lost = bool(self.missing or self.dead_letters)
        return lost or any(entry.is_finding for entry in self.held_back)

    def add_run(self, done: Committed) -> None:
        """Add the uncommitted offsets without records, and take over the held-back partitions."""
        self.skipped += done.skipped
        self.held_back = done.held_back

    def as_json(self) -> object:
        """Return the result; the names are stable."""
        return {
            "table": self.table,
            "commits": self.commits,
            "offsets_without_records": self.skipped,
            "missing_offsets": self.missing,
            "dead_letters": self.dead_letters,
            "held_back": [entry.as_json() for entry in self.held_back],
            "partitions": [
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "first_offset": span.start,
                    "next_offset": span.end,
                }
                for tp, span in sorted(self.ranges.items())
            ],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each Kafka partition with new offsets."""
        rows = [
            (str(tp), span.start, span.end, span.end - span.start)
            for tp, span in sorted(self.ranges.items())
        ]
        footer = f"{self.commits} commits to {self.table}" if rows else "nothing is new"
        footer += f"; {self.missing} offsets are missing" if self.missing else ""
        footer += f"; {self.dead_letters} dead letters" if self.dead_letters else ""
        footer += held_back_text({entry.tp for entry in self.held_back})
        footer = "\n".join([*waiting_texts(self.held_back), footer])
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


def _is_below(key: str, directory: str | None) -> bool:
    return directory is not None and key.startswith(f"{directory}/")


@dataclass(frozen=True, slots=True)
class DryRun:
    """The plan of a call."""

    into: str
    plans: tuple[Plan, ...]
    resumed: bool = False
    held_back: tuple[HeldBack, ...] = ()

    def as_json(self) -> object:
        """Return a plan for each topic that has new records."""
        return {
            "into": self.into,
            "goes_on_with_an_earlier_run": self.resumed,
            "plans": [plan_json(plan) for plan in self.plans],
            "held_back": [entry.as_json() for entry in self.held_back],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return the plans as text."""
        suffix = held_back_text({entry.tp for entry in self.held_back})
        words = waiting_texts(self.held_back)
        if not self.plans:
            return (Table((), footer="\n".join([*words, f"nothing is new{suffix}"])),)
        words += [plan_text(plan) for plan in self.plans]
        written = f"into {self.into}; nothing was written{suffix}"
        return (Table((), footer="\n".join([*words, written])),)
