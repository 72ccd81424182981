"""The two sides of a read on Spark: the plan on the driver, and one split on an executor.

Independent of Spark.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from sidetier.pipeline.errors import describe_missing
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import Filters
from sidetier.pipeline.planning.split import Missing, Plan, Split
from sidetier.pipeline.reading.split_reader import read_split
from sidetier.pipeline.spark.columns import Shape
from sidetier.pipeline.spark.settings import ReadSettings, opened
from sidetier.pipeline.spark.worker_reuse import reduced_overhead

log = logging.getLogger("sidetier.pipeline")


@dataclass(slots=True)
class Counts:
    """Records and missing offsets of a task so far."""

    records: int = 0
    missing: tuple[Missing, ...] = ()


def read_task(
    settings: ReadSettings, split: Split, done: Callable[[Split, Counts], None] | None = None
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

    log.info("reading %s", describe_split(split))
    shape = Shape(split.tp, settings.columns, settings.raw_timestamps)
    with reduced_overhead():
        access = opened(settings.place)
        for records in read_split(access, split, settings.reading(), on_missing):
            counts.records += records.num_rows
            yield shape.of(records)
    log.info("read %d records of %s", counts.records, describe_split(split))
    if done is not None:
        done(split, counts)


def describe_split(split: Split) -> str:
    """Return, for example, `orders-3, offsets [100, 200), 1234 bytes`."""
    tp, span = split.tp, split.range
    return f"{tp.topic}-{tp.partition}, offsets {span}, {split.size} bytes"


log = logging.getLogger("sidetier.pipeline")


def plan_batch(settings: ReadSettings, filters: Filters | None = None) -> Plan:
    """Plan a batch read. Missing offsets are logged where they are not an error.

    Raises:
        MissingRecordsError, NoSuchTopicError, ConfigurationError, ArchiveError, StorageError: as
            `Planner.plan`.
    """
    request = settings.request
    if filters is not None:
        request = replace(request, filters=filters)
    access, most = opened(settings.place), settings.max_batch_bytes
    with Planner(access, max_batch_bytes=most, with_tail=settings.with_tail) as planner:
        plan = planner.plan(request)
    warn_of_missing(plan.missing)
    return plan


def warn_of_missing(missing: Sequence[Missing]) -> None:
    """Log offsets that are skipped."""
    for gap in missing:
        log.warning("not stored, and left out: %s", describe_missing(gap))
