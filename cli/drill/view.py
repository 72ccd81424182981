"""Output of `sidetier drill`."""

from collections.abc import Sequence
from dataclasses import dataclass

from sidetier.cli.arguments import size_text
from sidetier.cli.drill.run import DrilledPartition
from sidetier.cli.output import Table, range_text
from sidetier.mirror.hydrate.plan import PlannedPartition


@dataclass(frozen=True, slots=True)
class SampleResult:
    """The sample that `--dry-run` selects."""

    sample: Sequence[PlannedPartition]
    seed: int

    def as_json(self) -> object:
        """Return the sample."""
        return {
            "dry_run": True,
            "seed": self.seed,
            "partitions": [
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "start": partition.start,
                    "end": partition.end,
                    "segments": [segment.key for segment in partition.segments],
                    "bytes": partition.size,
                }
                for partition in self.sample
            ],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition."""
        rows = [
            (
                str(partition.topic_partition),
                range_text(partition.start, partition.end),
                len(partition.segments),
                size_text(partition.size),
            )
            for partition in self.sample
        ]
        footer = f"would be restored, with --seed {self.seed} again (--dry-run)"
        return (Table(("PARTITION", "OFFSETS", "SEGMENTS", "SIZE"), rows, footer=footer),)


@dataclass(frozen=True, slots=True)
class DrillResult:
    """Result of a drill. `recorded` is the key of the stored result; None if it is not stored."""

    partitions: Sequence[DrilledPartition]
    seed: int
    recorded: str | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """All differences."""
        return tuple(problem for partition in self.partitions for problem in partition.problems)

    @property
    def records(self) -> int:
        """Number of archived records in the sample."""
        return sum(partition.records for partition in self.partitions)

    @property
    def size(self) -> int:
        """Size of the sampled segments, in bytes."""
        return sum(partition.plan.size for partition in self.partitions)

    def as_json(self) -> object:
        """Return the result of each partition."""
        return {
            "equal": not self.problems,
            "seed": self.seed,
            "records": self.records,
            "bytes": self.size,
            "recorded": self.recorded,
            "partitions": [
                {
                    "topic": partition.plan.topic,
                    "partition": partition.plan.partition,
                    "start": partition.plan.start,
                    "end": partition.plan.end,
                    "segments": [segment.key for segment in partition.plan.segments],
                    "bytes": partition.plan.size,
                    "records": partition.records,
                    "live": partition.live,
                    "problems": list(partition.problems),
                }
                for partition in self.partitions
            ],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition, and every difference."""
        rows = [
            (
                str(partition.plan.topic_partition),
                range_text(partition.plan.start, partition.plan.end),
                len(partition.plan.segments),
                size_text(partition.plan.size),
                partition.records,
                partition.live,
                "differs" if partition.problems else "equal",
            )
            for partition in self.partitions
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
