"""What tests let a driver do with its session; `spark_driver` calls these. No pytest here."""

import base64
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- as everybody calls it

from sidetier.spark import ReadReport, read, register

Json = dict[str, Any]
Options = dict[str, str]


def frame(spark: SparkSession, face: str, options: Options, report: ReadReport | None) -> DataFrame:
    """The same read by either face: `read`, or `format`."""
    if face == "read":
        return read(spark, options, report=report)
    register(spark)
    return spark.read.format("sidetier").options(**options).load()


def rows(spark: SparkSession, face: str, options: Options, fail_once: bool = False) -> list[Json]:  # noqa: FBT001, FBT002
    """All rows, by topic, partition and offset."""
    found = frame(spark, face, options, None)
    if fail_once:
        found = found.mapInArrow(fails_at_first, found.schema)
    return sorted(map(plain, found.collect()), key=place)


def counts(spark: SparkSession, face: str, options: Options) -> Json:
    """What is read with a report, and the tasks that read it."""
    report = ReadReport(spark) if face == "read" else None
    found = frame(spark, face, options, report)
    told: Json = {
        "rows": found.count(),
        "tasks": found.rdd.getNumPartitions(),
        "columns": found.columns,
    }
    if report is not None:
        told["line"] = report.line()
        told["missing"] = [
            [one.tp.topic, one.range.first, one.range.until] for one in report.missing
        ]
    return told


def schemas(spark: SparkSession, face: str, options: Options) -> Json:
    """Our schema, and that of Spark's own source with the same options."""
    kafka = spark.read.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:1")
    for name, value in options.items():
        if not name.startswith("tiered."):
            kafka = kafka.option(name, value)
    ours = frame(spark, face, options, None)
    return {"ours": ours.schema.jsonValue(), "kafka": kafka.load().schema.jsonValue()}


def chosen(spark: SparkSession, options: Options, ddl: str) -> list[Json]:
    """Rows of a schema that the user gives."""
    register(spark)
    found = spark.read.format("sidetier").schema(ddl).options(**options).load()
    return [row.asDict() for row in found.orderBy("offset").collect()]


def explained(spark: SparkSession, face: str, options: Options) -> str:
    """Every plan of a read, as `explain(extended=True)` prints it."""
    query = frame(spark, face, options, None)._jdf.queryExecution()
    return str(query.toString())


def by_minute(spark: SparkSession, face: str, options: Options) -> list[Json]:
    """How many records there are of each minute."""
    minute = F.date_trunc("minute", "timestamp").alias("minute")
    found = frame(spark, face, options, None).groupBy(minute).count().orderBy("minute")
    return [{"minute": str(row[0]), "count": row[1]} for row in found.collect()]


def stream(
    spark: SparkSession, options: Options, checkpoint: str, output: str, batches: int = 0
) -> Json:
    """Run a stream over what is there (`availableNow`); with `batches`, on and on until so many
    have been written. Each batch becomes a file of its offsets.
    """
    register(spark)
    query = _writing(spark, options, checkpoint, output, once=not batches)
    if batches:
        while len(query.recentProgress) < batches and query.isActive:
            query.awaitTermination(0.1)
        query.stop()
    query.awaitTermination()
    spans = [p["sources"][0]["endOffset"] for p in map(_progress, query.recentProgress)]
    return {"ends": spans}


def die_in_batch(
    spark: SparkSession, options: Options, checkpoint: str, output: str, number: int
) -> None:
    """Run a stream whose driver is killed after it has written this batch, before it commits."""
    register(spark)
    query = _writing(spark, options, checkpoint, output, once=False, die_in=number)
    query.awaitTermination()


def _writing(
    spark: SparkSession,
    options: Options,
    checkpoint: str,
    output: str,
    *,
    once: bool,
    die_in: int | None = None,
) -> Any:  # noqa: ANN401 -- a query
    def write(batch: DataFrame, number: int) -> None:
        batch.select("topic", "partition", "offset").write.mode("overwrite").json(
            str(Path(output) / f"batch={number}")
        )
        if number == die_in:
            os.kill(os.getpid(), signal.SIGKILL)

    writer = (
        spark.readStream.format("sidetier")
        .options(**options)
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", checkpoint)
    )
    return (writer.trigger(availableNow=True) if once else writer).start()


def _progress(progress: Any) -> Json:  # noqa: ANN401 -- a dict in 3.5, an object in 4
    return progress if isinstance(progress, dict) else progress.jsonValue


def plain(row: Row) -> Json:
    """A row as `expected.*.jsonl` has it, but the leader epoch."""
    found: Json = row.asDict(recursive=True)
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, bytearray | bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list):
        return [[one["key"], _plain(one["value"])] for one in value]
    if hasattr(value, "timestamp"):
        return round(value.timestamp() * 1000)
    return value


def place(row: Json) -> tuple[str, int, int]:
    return row["topic"], row["partition"], row["offset"]


def fails_at_first(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In the middle of its rows, and not when it is tried again."""
    context = TaskContext.get()
    for batch in batches:
        yield batch
        if context is not None and context.attemptNumber() == 0:
            raise OSError("the first try of this task fails")
