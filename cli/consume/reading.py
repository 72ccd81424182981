"""Read loop of `sidetier consume`, and the port for its sources of records.

One source reads the store alone (`store_source`), the other one reads Kafka with it
(`tiered_source`).
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Protocol

import click
import numpy as np
import pyarrow as pa

from sidetier.archive.errors import DamagedArchiveError
from sidetier.archive.positions import Bounded, PartitionRange
from sidetier.archive.reader.results import Failed, Gap, ReachedEnd, Records, Taken
from sidetier.cli.consume.filters import filtered
from sidetier.cli.consume.formats import Writer
from sidetier.cli.consume.request import Request
from sidetier.cli.output import Table, range_text
from sidetier.cli.progress import Update
from sidetier.pipeline.export.errors import RecordCountError
from sidetier.segments.errors import ArchiveError
from sidetier.segments.offsets import TopicPartition


class Source(Bounded, Protocol):
    """Reads partitions of one topic."""

    def assign(self, starts: dict[TopicPartition, int]) -> None:
        """Start reading these partitions, each at the given offset."""
        ...

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue a partition at another offset."""
        ...

    def finish(self, tp: TopicPartition) -> None:
        """Stop reading a partition; `take` may still return a few of its records."""
        ...

    def take(self, most: int, timeout: float) -> list[Taken]:
        """Return at most `most` records; wait up to `timeout` seconds for the first."""
        ...

    @property
    def skipped(self) -> int:
        """Number of offsets that the source skipped without reporting them in `take`."""
        ...


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
        columns = ("PARTITION", "OFFSETS", "RECORDS", "MISSING")
        rows = [
            (
                partition.partition,
                range_text(partition.from_offset, partition.next_offset),
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


_AT_ONCE: Final = 10_000
_WAIT_SECONDS: Final = 1.0

Tell = Callable[[str], None]


@dataclass(slots=True)
class PartitionReading:
    """Range and position of one partition.

    Attributes:
        first: First offset to read.
        end: End offset, exclusive; None to read without an end.
        position: Next offset to read.
        records: Records that were written.
        missing: Offsets that were skipped because their records are lost.
    """

    tp: TopicPartition
    first: int
    end: int | None
    position: int
    records: int = 0
    missing: int = 0

    @property
    def is_done(self) -> bool:
        """Whether the partition is at its end."""
        return self.end is not None and self.position >= self.end


def say(text: str) -> None:
    """Print a message to standard error."""
    click.echo(f"sidetier: {text}", err=True)


class Reading:
    """Reads all ranges to their ends; `tell` receives warnings."""

    def __init__(
        self,
        source: Source,
        request: Request,
        ranges: Sequence[PartitionRange],
        writer: Writer,
        tell: Tell = say,
    ) -> None:
        self.partitions = {
            planned.tp: PartitionReading(planned.tp, planned.start, planned.end, planned.start)
            for planned in ranges
        }
        self._source = source
        self._request = request
        self._writer = writer
        self._tell = tell
        self._left = request.limit
        self._open: set[TopicPartition] = set()

    @property
    def total(self) -> int | None:
        """Number of offsets to read; None if there is no end."""
        if self._request.follow:
            return None
        return sum((partition.end or 0) - partition.first for partition in self.partitions.values())

    @property
    def records(self) -> int:
        """Number of records that were written."""
        return sum(partition.records for partition in self.partitions.values())

    @property
    def has_gaps(self) -> bool:
        """Whether offsets were skipped that should have records."""
        return (
            any(partition.missing for partition in self.partitions.values())
            or self._source.skipped > 0
        )

    def result(self, topic: str) -> CountResult:
        """Return the counts of each partition."""
        rows = sorted(self.partitions.values(), key=lambda partition: partition.tp)
        return CountResult(
            topic,
            [
                PartitionCount(c.tp.partition, c.first, c.position, c.records, c.missing)
                for c in rows
            ],
        )

    def run(self, update: Update) -> None:
        """Read until every partition is at its end, or the record limit is reached.

        `update` is called with the progress after each batch.

        Raises:
            SidetierError: Reading cannot continue; for a gap, the text says how to continue.
            BrokenPipeError: The program that reads the output has closed it.
        """
        starts = {c.tp: c.first for c in self.partitions.values() if not c.is_done}
        if not starts or self._left == 0:
            return
        self._open = set(starts)
        self._source.assign(starts)
        while self._open and self._left != 0:
            is_filtered = self._left is None or bool(self._request.filters)
            most = _AT_ONCE if is_filtered else min(_AT_ONCE, self._left or 0)
            for taken in self._source.take(most, _WAIT_SECONDS):
                self._taken(taken)
            update(sum(c.position - c.first for c in self.partitions.values()), self.records)
            if self._request.follow:
                sys.stdout.flush()

    def _taken(self, taken: Taken) -> None:
        if taken.tp not in self._open:
            return
        read = self.partitions[taken.tp]
        if isinstance(taken, Records):
            self._records(read, taken)
        elif isinstance(taken, ReachedEnd):
            self._ended(read, taken.next_offset)
        elif isinstance(taken, Gap):
            self._gap(read, *taken.offsets, taken.detail)
        else:
            self._failed(read, taken)

    def _records(self, read: PartitionReading, taken: Records) -> None:
        rows, next_offset = taken.records, int(taken.next_offset)
        if read.end is not None and next_offset > read.end:
            offsets = rows.column("offset").to_numpy()
            rows = rows.slice(0, int(np.searchsorted(offsets, read.end)))
            next_offset = read.end
        if self._request.filters:
            rows = filtered(rows, self._request.filters)
        if self._left is not None and rows.num_rows >= self._left:
            rows = rows.slice(0, self._left)
            next_offset = rows.column("offset")[-1].as_py() + 1 if self._left else read.position
        if rows.num_rows:
            self._write(read, rows)
        read.records += rows.num_rows
        read.position = next_offset
        if self._left is not None:
            self._left -= rows.num_rows
        self._close_if_done(read)

    def _write(self, read: PartitionReading, rows: pa.RecordBatch) -> None:
        written = self._writer.write(read.tp, rows)
        if written != rows.num_rows:
            fact = f"{rows.num_rows} records were read, and {written} were written"
            raise RecordCountError(str(read.tp), fact)

    def _ended(self, read: PartitionReading, next_offset: int) -> None:
        if self._request.follow:
            read.position = max(read.position, next_offset)
            return
        if read.end is not None and next_offset < read.end:
            self._tell(
                f"{read.tp}: offsets [{next_offset}, {read.end}) are left out: a transaction "
                f"that begins at {next_offset} is not decided yet; --isolation read_uncommitted "
                "shows them"
            )
        read.position = max(read.position, min(next_offset, read.end or next_offset))
        self._finish(read)

    def _gap(self, read: PartitionReading, first: int, end: int, detail: str) -> None:
        last = end if read.end is None else min(end, read.end)
        if not self._request.skip_gaps:
            raise ArchiveError(
                f"{detail}\n--from {end} continues after them, --on-gap skip skips every gap"
            )
        self._tell(f"skipped: {detail}")
        read.missing += max(last - max(first, read.position), 0)
        read.position = last
        if not self._close_if_done(read):
            self._source.seek(read.tp, end)

    def _failed(self, read: PartitionReading, failed: Failed) -> None:
        error = failed.error
        if isinstance(error, DamagedArchiveError):
            self._gap(read, *error.offsets, str(error))
        elif error.retry and self._request.follow:
            self._tell(f"{error}; tried again")
        else:
            raise error

    def _close_if_done(self, read: PartitionReading) -> bool:
        if read.is_done:
            self._finish(read)
        return read.is_done

    def _finish(self, read: PartitionReading) -> None:
        self._open.discard(read.tp)
        self._source.finish(read.tp)
