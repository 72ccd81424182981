"""One call of `sidetier consume`, from the configuration to the exit code.

Needs the packages of the extra `consumer`.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sidetier.cli import exits
from sidetier.cli.consume.formats import Decode, Writer, writer_of
from sidetier.cli.consume.request import Formats, RecordFormat, RecordOutput
from sidetier.cli.extras import needs_extra
from sidetier.cli.output import Columns, OutputFormat, Table, emit, range_text, say, table_of
from sidetier.cli.progress import Update, records_shown
from sidetier.config.model import Config
from sidetier.consumer.topic_reading.reading import PartitionReading, TopicReading, open_reading
from sidetier.consumer.topic_reading.request import TopicReadRequest
from sidetier.pipeline.export.errors import RecordCountError

_DECODING: Final = ("babel", "fastavro", "google")
"""Packages that the extra `export` installs."""


_COLUMNS: Final[Columns[PartitionReading]] = {
    "PARTITION": lambda read: read.tp.partition,
    "OFFSETS": lambda read: range_text(read.first, read.position),
    "RECORDS": lambda read: read.records,
    "MISSING": lambda read: read.missing,
}


@dataclass(frozen=True, slots=True)
class CountResult:
    """What was read of each partition, in rising order."""

    topic: str
    partitions: Sequence[PartitionReading]

    @property
    def records(self) -> int:
        """Number of records in all partitions."""
        return sum(partition.records for partition in self.partitions)

    def as_json(self) -> object:
        """Return all counts."""
        return {
            "topic": self.topic,
            "records": self.records,
            "partitions": [
                {
                    "partition": read.tp.partition,
                    "from_offset": read.first,
                    "next_offset": read.position,
                    "records": read.records,
                    "missing_offsets": read.missing,
                }
                for read in self.partitions
            ],
        }

    def as_tables(self) -> Sequence[Table]:
        """Return a row for each partition, with a last column if offsets are missing."""
        footer = f"{self.records} records of {self.topic}"
        return (table_of(self.partitions, _COLUMNS, footer, optional=("MISSING",)),)


def consume(
    config: Config, request: TopicReadRequest, written: RecordOutput, output: OutputFormat
) -> int:
    """Write the requested records to standard output, and return the exit code.

    Raises:
        SidetierError: Some or all of the records cannot be read.
        BrokenPipeError: The program that reads the output has closed it.
    """
    patient = config if request.follow else config.with_few_retries()
    with open_reading(patient, request, say) as reading:
        writer = writer_of(written, sys.stdout.buffer, *_decoders(written.formats))
        code = exits.OK
        # On a terminal the records themselves show the progress; a bar would break their lines.
        wanted = written.form is RecordFormat.COUNT or not sys.stdout.isatty()
        try:
            with records_shown(reading.total, wanted=wanted) as update:
                write_all(reading, writer, _flushing(update) if request.follow else update)
        except KeyboardInterrupt:
            if not request.follow:
                raise
            code = exits.INTERRUPTED
        sys.stdout.flush()
        if written.form is RecordFormat.COUNT:
            partitions = [read for _, read in sorted(reading.partitions.items())]
            emit(CountResult(request.topic, partitions), output)
        return exits.FINDINGS if reading.has_gaps and code == exits.OK else code


def write_all(reading: TopicReading, writer: Writer, on_progress: Update) -> None:
    """Write all records that are read. Raises RecordCountError if a count differs."""
    for tp, rows in reading.batches(on_progress):
        written = writer(tp, rows)
        if written != rows.num_rows:
            fact = f"{rows.num_rows} records were read, and {written} were written"
            raise RecordCountError(str(tp), fact)


def _flushing(update: Update) -> Update:
    def passed(done: int, records: int) -> None:
        update(done, records)
        sys.stdout.flush()

    return passed


def _decoders(formats: Formats) -> tuple[Decode | None, Decode | None]:
    if formats == Formats():
        return None, None
    with needs_extra("--key-format and --value-format", _DECODING, "export"):
        from sidetier.cli.consume.decoding import decoders  # noqa: PLC0415 -- needs the extra `export`
    return decoders(formats, say)
