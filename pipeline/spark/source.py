"""Data source `sidetier` for PySpark 4: batches and streams."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from sidetier.pipeline.planning.request import Filters
from sidetier.pipeline.planning.split import Split
from sidetier.pipeline.spark.columns import all_columns, columns_of, spark_schema
from sidetier.pipeline.spark.report import describe_plan
from sidetier.pipeline.spark.settings import ReadSettings, read_settings
from sidetier.pipeline.spark.stream import StreamPosition
from sidetier.pipeline.spark.stream_offset import OffsetJson
from sidetier.pipeline.spark.table_options import is_table, options_of, with_options
from sidetier.pipeline.spark.tasks import plan_batch, read_task
from sidetier.pipeline.spark.worker_reuse import reduced_overhead
from sidetier.segments.offsets import Offset

_MICROSECONDS: Final = 1_000_000


def pruning(query_filters: Iterable[Any]) -> Filters:
    """Return the filters that planning can use.

    Filter classes are recognised by name, because older versions of PySpark do not have them. A
    filter that is not recognised has no effect.
    """
    combined = Filters()
    for query_filter in query_filters:
        column, value = _column_and_value(query_filter)
        narrow = _NARROWED.get((type(query_filter).__name__, column))
        if narrow is not None and value is not None:
            combined = narrow(combined, value)
    return combined


def _column_and_value(query_filter: Any) -> tuple[str, Any]:  # noqa: ANN401 -- older PySpark has no class
    attribute = getattr(query_filter, "attribute", ())
    return ".".join(attribute), getattr(query_filter, "value", None)


def _partition_is(filters: Filters, value: int) -> Filters:
    return _partition_in(filters, (value,))


def _partition_in(filters: Filters, values: Iterable[int]) -> Filters:
    wanted = frozenset(values)
    before = filters.partitions
    return replace(filters, partitions=wanted if before is None else before & wanted)


def _from_offset(filters: Filters, value: int) -> Filters:
    return replace(filters, first=Offset(max(value, filters.first or 0)))


def _until_offset(filters: Filters, value: int) -> Filters:
    value = max(value, 0)
    return replace(
        filters, until=Offset(value if filters.until is None else min(value, filters.until))
    )


def _offset_is(filters: Filters, value: int) -> Filters:
    return _until_offset(_from_offset(filters, value), value + 1)


def _since(filters: Filters, value: datetime) -> Filters:
    since = _milliseconds(value)
    return replace(
        filters, since_ms=since if filters.since_ms is None else max(since, filters.since_ms)
    )


def _milliseconds(value: datetime) -> int:
    """Convert to milliseconds, rounded down, so that no wanted record is excluded."""
    return int(value.timestamp() * _MICROSECONDS) // 1000


_NARROWED: Final[Mapping[tuple[str, str], Callable[[Filters, Any], Filters]]] = {
    ("EqualTo", "partition"): _partition_is,
    ("In", "partition"): _partition_in,
    ("EqualTo", "offset"): _offset_is,
    ("GreaterThanOrEqual", "offset"): _from_offset,
    ("GreaterThan", "offset"): lambda filters, value: _from_offset(filters, value + 1),
    ("LessThan", "offset"): _until_offset,
    ("LessThanOrEqual", "offset"): lambda filters, value: _until_offset(filters, value + 1),
    # Segments are excluded by their largest timestamp, so upper bounds do not help.
    ("EqualTo", "timestamp"): _since,
    ("GreaterThanOrEqual", "timestamp"): _since,
    ("GreaterThan", "timestamp"): _since,
}


log = logging.getLogger("sidetier.pipeline")


class SplitPartition(InputPartition):
    """Input partition with one task's split."""

    def __init__(self, split: Split) -> None:
        self.value = split


class SidetierDataSource(DataSource):
    """`format("sidetier")`, after it is registered.

    If the user gives a schema, only its columns are decoded; otherwise the columns of the option
    `columns`.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "sidetier"

    def schema(self) -> StructType:
        """Raises ConfigurationError for options that are wrong in any read."""
        with reduced_overhead():
            options = options_of(self.options)
            schema = spark_schema(read_settings(options).columns)
        return with_options(schema, options) if is_table(self.options) else schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Filters are pushed down if the options ask for it. Raises ConfigurationError."""
        settings = _with_schema(read_settings(options_of(self.options, schema)), schema)
        return PushingReader(settings) if settings.push_filters else BatchReader(settings)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Filters are not pushed down. Raises ConfigurationError."""
        options = options_of(self.options, schema)
        return StreamReader(_with_schema(read_settings(options, streaming=True), schema))


class BatchReader(DataSourceReader):
    """Reader of a batch.

    The plan is made once, when Spark plans: a DataFrame returns the same offsets every time it is
    used.
    """

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._filters: Filters | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """Return one input partition for each split; raises as `plan_batch`."""
        with reduced_overhead():
            plan = plan_batch(self._settings, self._filters)
        log.info("reading %s", describe_plan(plan))
        return [SplitPartition(split) for split in plan.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one split; raises as `read_task`.

        If the plan has no splits, Spark calls this with a partition that has no value.
        """
        if not isinstance(partition, SplitPartition):
            return iter(())
        return read_task(self._settings, partition.value)


class PushingReader(BatchReader):
    """Reader that accepts filters, which PySpark 4.1 and later pass if `pushFilters` is set.

    A class of its own, because Spark refuses a reader with this method while its filter push-down
    is off.
    """

    def pushFilters(self, filters: Sequence[Any]) -> Iterable[Any]:  # noqa: N802
        """Prune segments with the filters. Return all filters, so Spark applies them again."""
        self._filters = pruning(filters)
        return filters


class StreamReader(DataSourceStreamReader):
    """Stream reader. Its offsets are Kafka's: the checkpoint has `{"orders": {"0": 123}}`."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._position = StreamPosition(settings)

    def initialOffset(self) -> OffsetJson:  # noqa: N802
        """Return the offset at which a new query begins; raises as `StreamPosition.initial`."""
        return self._position.initial()

    def latestOffset(self, start: OffsetJson | None = None, limit: object = None) -> OffsetJson:  # noqa: ARG002, N802
        """Return the end of the next batch; raises as `StreamPosition.latest`.

        Spark 4.2 and later pass the start of the batch. Before, the batch begins at the end of the
        last one.
        """
        return self._position.latest(start)

    def partitions(self, start: OffsetJson, end: OffsetJson) -> Sequence[InputPartition]:
        """Return one input partition for each split between the offsets; raises as
        `StreamPosition.plan`.
        """
        plan = self._position.plan(start, end)
        if plan.splits:
            log.info("reading %s", describe_plan(plan))
        return [SplitPartition(split) for split in plan.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one split; raises as `read_task`."""
        return read_task(self._settings, partition.value)

    def stop(self) -> None:
        """Close the planner."""
        self._position.close()


def _with_schema(settings: ReadSettings, schema: StructType) -> ReadSettings:
    known = all_columns(headers=settings.request.include_headers)
    return replace(settings, columns=columns_of(schema, known))
