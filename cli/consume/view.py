"""Output of `sidetier consume --count`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sidetier.cli.output import Table


@dataclass(frozen=True, slots=True)
class PartitionCount:
    """What was read of one partition.

    Attributes:
        from_offset: First offset that was read.
        next_offset: End of the range that was read, exclusive.
        records: Less than the number of offsets if some have no record: transaction markers,
            aborted and compacted records.
        missing_offsets: Offsets whose records are lost.
    """

    partition: int
    from_offset: int
    next_offset: int
    records: int
    missing_offsets: int


@dataclass(frozen=True, slots=True)
class CountResult:
    """Counts of all partitions, in rising order."""

    topic: str
    partitions: Sequence[PartitionCount]

    @property
    def records(self) -> int:
        """Number of records in all partitions."""
        return sum(partition.records for partition in self.partitions)

    def as_json(self) -> object:
        """Return all counts."""
        return {
            "topic": self.topic,
            "records": self.records,
            "partitions": [asdict(partition) for partition in self.partitions],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition, with a last column if offsets are missing."""
        columns = ("PARTITION", "FROM", "NEXT OFFSET", "RECORDS", "MISSING")
        rows = [
            (
                partition.partition,
                partition.from_offset,
                partition.next_offset,
                partition.records,
                partition.missing_offsets,
            )
            for partition in self.partitions
        ]
        width = len(columns) - (
            0 if any(partition.missing_offsets for partition in self.partitions) else 1
        )
        footer = f"{self.records} records of {self.topic}"
        return (Table(columns[:width], [row[:width] for row in rows], footer=footer),)
