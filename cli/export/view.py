"""What an export shows of a plan, and of what it did."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from sidetier.cli.arguments import size_text
from sidetier.cli.output import Table
from sidetier.pipeline.export.files.job import RunResult
from sidetier.pipeline.export.held_back import HeldBack
from sidetier.pipeline.planning.describe import plan_json, plan_text
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.offsets import TopicPartition


@dataclass(slots=True)
class PartitionDone:
    """One Kafka partition: what was exported of it, from `first` up to, not including, `until`."""

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
        """By the names that stay."""
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
    """What a call did, over all of its runs."""

    into: str
    rows: dict[TopicPartition, PartitionDone] = field(default_factory=dict)
    runs: int = 0
    swept: int = 0
    held_back: dict[TopicPartition, HeldBack] = field(default_factory=dict)
    failed: dict[str, Exception] = field(default_factory=dict)
    """By topic; only where several are exported."""

    def add(self, topic: str, result: RunResult, dead_letters: str | None) -> None:
        """Count a run in; where nothing was new, take over what is held back."""
        if result.run is None:
            others = {tp: one for tp, one in self.held_back.items() if tp.topic != topic}
            self.held_back = others | {one.tp: one for one in result.held_back}
            return
        self.runs += 1
        self.swept += result.swept
        for partition, span in result.run.spans.items():
            tp = TopicPartition(topic, partition)
            row = self.rows.setdefault(tp, PartitionDone(tp, span.first, span.until))
            row.until = span.until
        for done in result.done:
            row = self.rows[done.tp]
            kept = [one for one in done.written.files if not _is_below(one.key, dead_letters)]
            row.records += sum(one.records for one in kept)
            row.files += len(kept)
            row.size += sum(one.bytes for one in kept)
            row.dead_letters += done.written.dead_letters
            row.skipped += done.written.skipped
        for one in result.missing:
            self.rows[TopicPartition(topic, one.partition)].missing += one.until - one.first

    @property
    def has_findings(self) -> bool:
        """Whether not all was exported that was meant to be."""
        findings = any(row.missing or row.dead_letters for row in self.rows.values())
        return findings or any(one.is_finding for one in self.held_back.values())

    def as_json(self) -> object:
        """The rows and how many runs there were."""
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
        """A row per Kafka partition."""
        rows = [
            (
                str(one.tp),
                one.first,
                one.until,
                one.records,
                one.files,
                size_text(one.size),
                one.missing,
                one.dead_letters,
            )
            for one in (self.rows[tp] for tp in sorted(self.rows))
        ]
        records = sum(one.records for one in self.rows.values())
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


def waiting_texts(held_back: Iterable[HeldBack]) -> list[str]:
    """Why partitions are held back that need nobody's attention."""
    return [one.detail for one in held_back if not one.is_finding]


def held_back_text(held_back: Collection[TopicPartition]) -> str:
    """How many partitions are held back, behind what was done; empty for none."""
    count = len(held_back)
    return f"; {count} partition{'' if count == 1 else 's'} held back" if count else ""


def _is_below(key: str, directory: str | None) -> bool:
    return directory is not None and key.startswith(f"{directory}/")


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a call would do."""

    into: str
    plans: tuple[Plan, ...]
    resumed: bool = False
    held_back: tuple[HeldBack, ...] = ()

    def as_json(self) -> object:
        """A plan for each topic that has anything new."""
        return {
            "into": self.into,
            "goes_on_with_an_earlier_run": self.resumed,
            "plans": [plan_json(plan) for plan in self.plans],
            "held_back": [one.as_json() for one in self.held_back],
        }

    def as_tables(self) -> Sequence[Table]:
        """The same in words."""
        told = held_back_text({one.tp for one in self.held_back})
        words = waiting_texts(self.held_back)
        if not self.plans:
            return (Table((), footer="\n".join([*words, f"nothing is new{told}"])),)
        words += [plan_text(plan) for plan in self.plans]
        written = f"into {self.into}; nothing was written{told}"
        return (Table((), footer="\n".join([*words, written])),)
