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
from sidetier.archive.reader.results import Failed, Gap, ReachedEnd, Records, Taken
from sidetier.cli.consume.filters import filtered
from sidetier.cli.consume.formats import Writer
from sidetier.cli.consume.request import PlaceKind, Request, offset_of
from sidetier.cli.output import Table, range_text
from sidetier.cli.progress import Update
from sidetier.pipeline.export.errors import RecordCountError
from sidetier.segments.errors import ArchiveError, ConfigurationError
from sidetier.segments.offsets import OffsetRange, TopicPartition


class Bounded(Protocol):
    """Partitions of one topic, and their readable offsets. Every method raises SidetierError when
    the source refuses or does not answer.
    """

    def partitions(self) -> Sequence[int]:
        """Return the topic's partition numbers in rising order; raise if there are none."""
        ...

    def bounds(self, tp: TopicPartition) -> OffsetRange:
        """Return the offsets of a partition that are readable now; raise if there are none."""
        ...

    def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> int | None:
        """Return the offset of the first record with this timestamp or a later one, or None."""
        ...


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
_MOST_LINES: Final = 10

Tell = Callable[[str], None]


@dataclass(slots=True)
class Course:
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


def plan(source: Bounded, request: Request, now_ms: int) -> list[Course]:
    """Return the range of each partition, with the requested places resolved to offsets.

    Raises:
        ConfigurationError: The topic or a partition does not exist. Or the requested range begins
            in the future, or is beyond the end or empty in every partition.
    """
    begin = request.begin
    if begin.kind is PlaceKind.TIME and begin.number > now_ms:
        raise ConfigurationError("--from is in the future")
    numbers = request.partitions or source.partitions()
    planned = [
        _course(source, request, TopicPartition(request.topic, number)) for number in numbers
    ]
    problems = [problem for _, problem in planned if problem is not None]
    if planned and len(problems) == len(planned):
        raise ConfigurationError("\n".join(problems[:_MOST_LINES]))
    for problem in problems:
        say(problem)
    return [course for course, _ in planned]


def _course(source: Bounded, request: Request, tp: TopicPartition) -> tuple[Course, str | None]:
    """Return the course, and a problem if it begins beyond the partition's end or above `--to`."""
    bounds: OffsetRange = source.bounds(tp)

    def at_time(timestamp: int) -> int | None:
        return source.offset_for_time(tp, timestamp)

    first = offset_of(request.begin, bounds, at_time)
    if request.follow:
        return Course(tp, first, None, first), None
    requested_end = offset_of(request.end, bounds, at_time)
    end = min(requested_end, bounds.end)
    problem = None
    if first > bounds.end:
        problem = f"{tp}: --from is offset {first}, beyond the end, offset {bounds.end} (exclusive)"
    elif first > requested_end:
        problem = f"{tp}: --from is offset {first}, above --to, offset {requested_end}"
    return Course(tp, first, max(first, end), first), problem


def say(text: str) -> None:
    """Print a message to standard error."""
    click.echo(f"sidetier: {text}", err=True)


class Reading:
    """Reads all courses to their ends; `tell` receives warnings."""

    def __init__(
        self,
        source: Source,
        request: Request,
        courses: list[Course],
        writer: Writer,
        tell: Tell = say,
    ) -> None:
        self.courses = {course.tp: course for course in courses}
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
        return sum((course.end or 0) - course.first for course in self.courses.values())

    @property
    def records(self) -> int:
        """Number of records that were written."""
        return sum(course.records for course in self.courses.values())

    @property
    def has_gaps(self) -> bool:
        """Whether offsets were skipped that should have records."""
        return any(course.missing for course in self.courses.values()) or self._source.skipped > 0

    def result(self, topic: str) -> CountResult:
        """Return the counts of each partition."""
        rows = sorted(self.courses.values(), key=lambda course: course.tp)
        return CountResult(
            topic,
            [
                PartitionCount(c.tp.partition, c.first, c.position, c.records, c.missing)
                for c in rows
            ],
        )

    def run(self, update: Update) -> None:
        """Read until every course is at its end, or the record limit is reached.

        `update` is called with the progress after each batch.

        Raises:
            SidetierError: Reading cannot continue; for a gap, the text says how to continue.
            BrokenPipeError: The program that reads the output has closed it.
        """
        starts = {c.tp: c.first for c in self.courses.values() if not c.is_done}
        if not starts or self._left == 0:
            return
        self._open = set(starts)
        self._source.assign(starts)
        while self._open and self._left != 0:
            is_filtered = self._left is None or bool(self._request.filters)
            most = _AT_ONCE if is_filtered else min(_AT_ONCE, self._left or 0)
            for taken in self._source.take(most, _WAIT_SECONDS):
                self._taken(taken)
            update(sum(c.position - c.first for c in self.courses.values()), self.records)
            if self._request.follow:
                sys.stdout.flush()

    def _taken(self, taken: Taken) -> None:
        if taken.tp not in self._open:
            return
        course = self.courses[taken.tp]
        if isinstance(taken, Records):
            self._records(course, taken)
        elif isinstance(taken, ReachedEnd):
            self._ended(course, taken.next_offset)
        elif isinstance(taken, Gap):
            self._gap(course, *taken.offsets, taken.detail)
        else:
            self._failed(course, taken)

    def _records(self, course: Course, taken: Records) -> None:
        rows, next_offset = taken.records, int(taken.next_offset)
        if course.end is not None and next_offset > course.end:
            offsets = rows.column("offset").to_numpy()
            rows = rows.slice(0, int(np.searchsorted(offsets, course.end)))
            next_offset = course.end
        if self._request.filters:
            rows = filtered(rows, self._request.filters)
        if self._left is not None and rows.num_rows >= self._left:
            rows = rows.slice(0, self._left)
            next_offset = rows.column("offset")[-1].as_py() + 1 if self._left else course.position
        if rows.num_rows:
            self._write(course, rows)
        course.records += rows.num_rows
        course.position = next_offset
        if self._left is not None:
            self._left -= rows.num_rows
        self._close_if_done(course)

    def _write(self, course: Course, rows: pa.RecordBatch) -> None:
        written = self._writer.write(course.tp, rows)
        if written != rows.num_rows:
            fact = f"{rows.num_rows} records were read, and {written} were written"
            raise RecordCountError(str(course.tp), fact)

    def _ended(self, course: Course, next_offset: int) -> None:
        if self._request.follow:
            course.position = max(course.position, next_offset)
            return
        if course.end is not None and next_offset < course.end:
            self._tell(
                f"{course.tp}: offsets [{next_offset}, {course.end}) are left out: a transaction "
                f"that begins at {next_offset} is not decided yet; --isolation read_uncommitted "
                "shows them"
            )
        course.position = max(course.position, min(next_offset, course.end or next_offset))
        self._finish(course)

    def _gap(self, course: Course, first: int, end: int, detail: str) -> None:
        last = end if course.end is None else min(end, course.end)
        if not self._request.skip_gaps:
            raise ArchiveError(
                f"{detail}\n--from {end} continues after them, --on-gap skip skips every gap"
            )
        self._tell(f"skipped: {detail}")
        course.missing += max(last - max(first, course.position), 0)
        course.position = last
        if not self._close_if_done(course):
            self._source.seek(course.tp, end)

    def _failed(self, course: Course, failed: Failed) -> None:
        error = failed.error
        if isinstance(error, DamagedArchiveError):
            self._gap(course, *error.offsets, str(error))
        elif error.retry and self._request.follow:
            self._tell(f"{error}; tried again")
        else:
            raise error

    def _close_if_done(self, course: Course) -> bool:
        if course.is_done:
            self._finish(course)
        return course.is_done

    def _finish(self, course: Course) -> None:
        self._open.discard(course.tp)
        self._source.finish(course.tp)
