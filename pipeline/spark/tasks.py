"""Work of an executor: read one split for Spark."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from sidetier.pipeline.errors import describe_missing
from sidetier.pipeline.planning.split import Missing, Split
from sidetier.pipeline.reading.split_reader import read_split
from sidetier.pipeline.spark.columns import Shape
from sidetier.pipeline.spark.settings import ReadSettings, opened
from sidetier.pipeline.spark.worker_reuse import cheap_upkeep

log = logging.getLogger("sidetier.pipeline")


@dataclass(slots=True)
class Counts:
    """Records and missing offsets of a task so far."""

    records: int = 0
    missing: tuple[Missing, ...] = ()


def read_task(
    settings: ReadSettings, split: Split, done: Callable[[Counts], None] = lambda _counts: None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one split; call `done` with the counts at the end.

    Raises:
        MissingRecordsError, ArchiveReplacedError, StorageError: as `read_split`.
        TimestampRangeError: a timestamp does not fit into its column.
        ConfigurationError: the store cannot be opened here.
    """
    counts = Counts()

    def on_missing(missing: Missing) -> None:
        log.warning("not stored, and left out: %s", describe_missing(missing))
        counts.missing = (*counts.missing, missing)

    log.info("reads %s", describe_split(split))
    shape = Shape(split.tp, settings.columns, settings.raw_timestamps)
    with cheap_upkeep():
        access = opened(settings.place)
        for records in read_split(access, split, settings.reading(), on_missing):
            counts.records += records.num_rows
            yield shape.of(records)
    log.info("has read %d records of %s", counts.records, describe_split(split))
    done(counts)


def describe_split(split: Split) -> str:
    """Return, for example, `orders-3, offsets [100, 200), 1234 bytes`."""
    tp, span = split.tp, split.range
    return f"{tp.topic}-{tp.partition}, offsets {span}, {split.size} bytes"
