"""What `sidetier drill` shows."""

from collections.abc import Sequence
from dataclasses import dataclass

from sidetier.cli.arguments import size_text
from sidetier.cli.drill.run import DrilledPartition
from sidetier.cli.output import Table
from sidetier.mirror.hydrate.plan import PlannedPartition


@dataclass(frozen=True, slots=True)
class SampleResult:
    """What `--dry-run` would restore."""

    sample: Sequence[PlannedPartition]
    seed: int

    def as_json(self) -> object:
        """All of it."""
        return {
            "dry_run": True,
            "seed": self.seed,
            "partitions": [
                {
                    "topic": one.topic,
                    "partition": one.partition,
                    "start": one.start,
                    "end": one.end,
                    "segments": [segment.key for segment in one.segments],
                    "bytes": one.size,
                }
                for one in self.sample
            ],
        }

    def as_tables(self) -> Sequence[Table]:
        """A row for each partition."""
        rows = [
            (
                str(one.topic_partition),
                f"{one.start}-{one.end}",
                len(one.segments),
                size_text(one.size),
            )
            for one in self.sample
        ]
        footer = f"would be restored, with --seed {self.seed} again (--dry-run)"
        return (Table(("PARTITION", "OFFSETS", "SEGMENTS", "SIZE"), rows, footer=footer),)


@dataclass(frozen=True, slots=True)
class DrillResult:
    """What was restored and compared. `recorded` is the key of the stored outcome, None without."""

    partitions: Sequence[DrilledPartition]
    seed: int
    recorded: str | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """Every difference."""
        return tuple(problem for one in self.partitions for problem in one.problems)

    @property
    def records(self) -> int:
        """Records that the archive holds of the sample."""
        return sum(one.records for one in self.partitions)

    @property
    def size(self) -> int:
        """Bytes of the sampled segments."""
        return sum(one.plan.size for one in self.partitions)

    def as_json(self) -> object:
        """All of it."""
        return {
            "equal": not self.problems,
            "seed": self.seed,
            "records": self.records,
            "bytes": self.size,
            "recorded": self.recorded,
            "partitions": [
                {
                    "topic": one.plan.topic,
                    "partition": one.plan.partition,
                    "start": one.plan.start,
                    "end": one.plan.end,
                    "segments": [segment.key for segment in one.plan.segments],
                    "bytes": one.plan.size,
                    "records": one.records,
                    "live": one.live,
                    "problems": list(one.problems),
                }
                for one in self.partitions
            ],
        }

    def as_tables(self) -> Sequence[Table]:
        """A row for each partition, and every difference."""
        rows = [
            (
                str(one.plan.topic_partition),
                f"{one.plan.start}-{one.plan.end}",
                len(one.plan.segments),
                size_text(one.plan.size),
                one.records,
                one.live,
                "differs" if one.problems else "equal",
            )
            for one in self.partitions
        ]
        columns = (
            "PARTITION",
            "OFFSETS",
            "SEGMENTS",
            "SIZE",
            "RECORDS",
            "LIVE BROKERS",
            "OUTCOME",
        )
        total = (
            f"{len(rows)} partitions, {size_text(self.size)}, {self.records:,} records; "
            f"the same sample again: --seed {self.seed}"
        )
        footer = "\n".join([*self.problems, total])
        return (Table(columns, rows, footer=footer),)
