"""Output of an export to a table."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sidetier.cli.export.view import held_back_text, waiting_texts
from sidetier.cli.output import Table
from sidetier.pipeline.export.held_back import HeldBack
from sidetier.pipeline.export.tables.chunks import Chunk
from sidetier.pipeline.export.tables.run import Committed
from sidetier.segments.offsets import OffsetRange, TopicPartition


@dataclass(slots=True)
class TableResult:
    """Result of a call, over all of its runs."""

    table: str
    ranges: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    commits: int = 0
    skipped: int = 0
    missing: int = 0
    """Offsets that are not stored; the export went on behind them."""
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
        """Whether something is not in the table that should be."""
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
