"""What an export did, or would do."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

from sidetier.pipeline.export.held_back import HeldBack
from sidetier.pipeline.export.run import Chunk
from sidetier.pipeline.export.sinks.files.run import RunResult
from sidetier.pipeline.export.sinks.tables.run import Committed
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.offsets import OffsetRange, TopicPartition


@dataclass(slots=True, kw_only=True)
class ExportOutcome(ABC):
    """What decides whether an export was complete.

    Attributes:
        topics: Number of exported topics.
        failed: Error by topic; only with several topics.
        waits: Whether the export has stopped before records that the brokers have deleted and that
            the archive will only show later.
        is_missing: Whether `tail="wait"` ended before the archive had all records.
    """

    topics: int = 0
    failed: dict[str, Exception] = field(default_factory=dict)
    waits: bool = False
    is_missing: bool = False

    @property
    @abstractmethod
    def has_findings(self) -> bool:
        """Whether records are missing in the output that should be in it."""


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
class FilesReport(ExportOutcome):
    """Result of a call, over all of its runs."""

    into: str
    rows: dict[TopicPartition, PartitionDone] = field(default_factory=dict)
    runs: int = 0
    swept: int = 0
    held_back: dict[TopicPartition, HeldBack] = field(default_factory=dict)

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
        lost = any(row.missing or row.dead_letters for row in self.rows.values())
        held_back = any(entry.is_finding for entry in self.held_back.values())
        return self.is_missing or lost or held_back


@dataclass(slots=True)
class TableReport(ExportOutcome):
    """Result of a call, over all of its runs."""

    table: str
    ranges: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    commits: int = 0
    skipped: int = 0
    missing: int = 0
    """Offsets that are not stored; the export continued after them."""
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
        lost = bool(self.is_missing or self.missing or self.dead_letters)
        return lost or any(entry.is_finding for entry in self.held_back)

    def add_run(self, done: Committed) -> None:
        """Add the uncommitted offsets without records, and take over the held-back partitions."""
        self.skipped += done.skipped
        self.held_back = done.held_back


@dataclass(slots=True)
class ExportPlan(ExportOutcome):
    """What a run would do."""

    into: str
    plans: tuple[Plan, ...]
    resumed: bool = False
    held_back: tuple[HeldBack, ...] = ()

    @property
    def has_findings(self) -> bool:
        """Whether records are missing in the output after such a run."""
        missing = any(plan.missing for plan in self.plans)
        return missing or any(entry.is_finding for entry in self.held_back)


def _is_below(key: str, directory: str | None) -> bool:
    return directory is not None and key.startswith(f"{directory}/")
