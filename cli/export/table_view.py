"""What an export into a table shows of what it did."""

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
    """What a call did, over all of its runs."""

    table: str
    ranges: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    commits: int = 0
    skipped: int = 0
    missing: int = 0
    """Offsets that are not stored, and were exported over."""
    dead_letters: int = 0
    held_back: tuple[HeldBack, ...] = ()

    def add_chunk(self, chunk: Chunk) -> None:
        """Count a commit in."""
        self.commits += 1
        for tp, span in chunk.ranges.items():
            known = self.ranges.get(tp, span)
            self.ranges[tp] = OffsetRange(known.start, span.end)

    @property
    def has_findings(self) -> bool:
        """Whether not all is in the table that was meant to be."""
        lost = bool(self.missing or self.dead_letters)
        return lost or any(one.is_finding for one in self.held_back)

    def add_run(self, done: Committed) -> None:
        """Count what a run has left without a commit, and take over what it has held back."""
        self.skipped += done.skipped
        self.held_back = done.held_back

    def as_json(self) -> object:
        """By the names that stay."""
        return {
            "table": self.table,
            "commits": self.commits,
            "offsets_without_records": self.skipped,
            "missing_offsets": self.missing,
            "dead_letters": self.dead_letters,
            "held_back": [one.as_json() for one in self.held_back],
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
        """A row per Kafka partition with news."""
        rows = [
            (str(tp), span.start, span.end, span.end - span.start)
            for tp, span in sorted(self.ranges.items())
        ]
        footer = f"{self.commits} commits to {self.table}" if rows else "nothing is new"
        footer += f"; {self.missing} offsets are missing" if self.missing else ""
        footer += f"; {self.dead_letters} dead letters" if self.dead_letters else ""
        footer += held_back_text({one.tp for one in self.held_back})
        footer = "\n".join([*waiting_texts(self.held_back), footer])
        return (
            Table(("PARTITION", "FROM", "NEXT", "OFFSETS") if rows else (), rows, footer=footer),
        )
