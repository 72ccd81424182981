"""What `sidetier consume --count` shows."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sidetier.cli.output import Table


@dataclass(frozen=True, slots=True)
class PartitionCount:
    """What was read of one partition: from an offset up to, not including, another.

    Offsets without a record (transaction markers, aborted and compacted records) lie among them;
    `missing_offsets` are those that are lost.
    """

    partition: int
    from_offset: int
    next_offset: int
    records: int
    missing_offsets: int


@dataclass(frozen=True, slots=True)
class CountResult:
    """All partitions, rising."""

    topic: str
    partitions: Sequence[PartitionCount]

    @property
    def records(self) -> int:
        """Over all of them."""
        return sum(one.records for one in self.partitions)

    def as_json(self) -> object:
        """All of it."""
        return {
            "topic": self.topic,
            "records": self.records,
            "partitions": [asdict(one) for one in self.partitions],
        }

    def as_tables(self) -> Sequence[Table]:
        """A row each; a last column where something is missing."""
        columns = ("PARTITION", "FROM", "NEXT OFFSET", "RECORDS", "MISSING")
        rows = [
            (one.partition, one.from_offset, one.next_offset, one.records, one.missing_offsets)
            for one in self.partitions
        ]
        width = len(columns) - (0 if any(one.missing_offsets for one in self.partitions) else 1)
        footer = f"{self.records} records of {self.topic}"
        return (Table(columns[:width], [row[:width] for row in rows], footer=footer),)
