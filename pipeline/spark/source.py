"""The data source `sidetier` of PySpark 4: batches and streams."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from sidetier.pipeline.planning.split import Split
from sidetier.pipeline.spark.columns import all_columns
from sidetier.pipeline.spark.filters import pruning
from sidetier.pipeline.spark.planned import plan_batch
from sidetier.pipeline.spark.report import describe_plan
from sidetier.pipeline.spark.schema import columns_of, spark_schema
from sidetier.pipeline.spark.settings import ReadSettings, read_settings
from sidetier.pipeline.spark.stream import StreamPosition
from sidetier.pipeline.spark.stream_offset import OffsetJson
from sidetier.pipeline.spark.table_options import is_table, options_of, with_options
from sidetier.pipeline.spark.tasks import read_task
from sidetier.pipeline.spark.worker_reuse import cheap_upkeep

if TYPE_CHECKING:
    from sidetier.pipeline.planning.request import Filters

log = logging.getLogger("sidetier.pipeline")


class SplitPartition(InputPartition):
    """One task's split."""

    def __init__(self, split: Split) -> None:
        self.value = split


class SidetierDataSource(DataSource):
    """`format("sidetier")`, once it is registered.

    Where a schema is given, only its columns are decoded; else those of the option `columns`.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "sidetier"

    def schema(self) -> StructType:
        """See `DataSource`; raises ConfigurationError for options that are wrong in any read."""
        with cheap_upkeep():
            options = options_of(self.options)
            schema = spark_schema(read_settings(options).columns)
        return with_options(schema, options) if is_table(self.options) else schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """See `DataSource`; raises ConfigurationError."""
        settings = _with_schema(read_settings(options_of(self.options, schema)), schema)
        return PushingReader(settings) if settings.push_filters else BatchReader(settings)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """See `DataSource`; raises ConfigurationError."""
        options = options_of(self.options, schema)
        return StreamReader(_with_schema(read_settings(options, streaming=True), schema))


class BatchReader(DataSourceReader):
    """Plans when Spark plans, and once: a DataFrame reads the same offsets however often it is
    used.
    """

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._filters: Filters | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """One for each split; raises as `plan_batch`."""
        with cheap_upkeep():
            plan = plan_batch(self._settings, self._filters)
        log.info("reads %s", describe_plan(plan))
        return [SplitPartition(split) for split in plan.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises as `read_task`. Where there is no split, Spark asks for one without a value."""
        if not isinstance(partition, SplitPartition):
            return iter(())
        return read_task(self._settings, partition.value)


class PushingReader(BatchReader):
    """Takes filters, where PySpark has them (4.1) and they are switched on.

    It is apart because Spark refuses a reader that could take filters where they are switched off.
    """

    def pushFilters(self, filters: Sequence[Any]) -> Iterable[Any]:  # noqa: N802
        """They prune what is read; Spark applies them all once more."""
        self._filters = pruning(filters)
        return filters


class StreamReader(DataSourceStreamReader):
    """A stream whose offsets are Kafka's: in the checkpoint stands `{"orders": {"0": 123}}`."""

    def __init__(self, settings: ReadSettings) -> None:
        self._settings = settings
        self._position = StreamPosition(settings)

    def initialOffset(self) -> OffsetJson:  # noqa: N802
        """Where a new query begins; raises as `StreamPosition.initial`."""
        return self._position.initial()

    def latestOffset(self, start: OffsetJson | None = None, limit: object = None) -> OffsetJson:  # noqa: ARG002, N802
        """Where the next batch ends; raises as `StreamPosition.latest`.

        From 4.2 on Spark says where the batch begins. Before, it is where the last one ended.
        """
        return self._position.latest(start)

    def partitions(self, start: OffsetJson, end: OffsetJson) -> Sequence[InputPartition]:
        """One for each split between the two; raises as `StreamPosition.plan`."""
        plan = self._position.plan(start, end)
        if plan.splits:
            log.info("reads %s", describe_plan(plan))
        return [SplitPartition(split) for split in plan.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises as `read_task`."""
        return read_task(self._settings, partition.value)

    def stop(self) -> None:
        """End what planning has opened."""
        self._position.close()


def _with_schema(settings: ReadSettings, schema: StructType) -> ReadSettings:
    known = all_columns(headers=settings.request.include_headers)
    return replace(settings, columns=columns_of(schema, known))
