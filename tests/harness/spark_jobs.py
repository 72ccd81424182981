"""What tests let a driver do with its session; `spark_driver` calls these. No pytest here."""

import base64
import json
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
        told["missing"] = [[one.tp.topic, one.range.start, one.range.end] for one in report.missing]
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
    spark: SparkSession,
    options: Options,
    checkpoint: str,
    output: str,
    until: Json | None = None,
) -> list[Json]:
    """Run a stream over what is there (`availableNow`), or until it stands where it is told to.
    Each batch becomes a file of its offsets. Returns the offsets at which batches have ended.
    """
    register(spark)
    query = _writing(spark, options, checkpoint, output, once=until is None)
    while query.isActive and (not (ends := _ends(query)) or ends[-1] != until):
        query.awaitTermination(0.2)
    query.stop()
    query.awaitTermination()
    return _ends(query)


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


def _ends(query: Any) -> list[Json]:  # noqa: ANN401
    progress = [one if isinstance(one, dict) else one.jsonValue for one in query.recentProgress]
    found = [one["sources"][0]["endOffset"] for one in progress]
    return [json.loads(one) if isinstance(one, str) else one for one in found]


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
    """Some tasks, in the middle of their rows, and not when they are tried again."""
    context = TaskContext.get()
    assert context is not None
    fails = context.partitionId() % 16 == 0 and context.attemptNumber() == 0
    for batch in batches:
        yield batch
        if fails:
            raise OSError("the first try of this task fails")


def through_catalog(spark: SparkSession, options: Options, location: str) -> Json:
    """The same offsets of a table in Spark's catalog, whole and with an option of the query."""
    register(spark)
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
    spark.sql(
        f"CREATE TABLE archived USING sidetier OPTIONS ({listed}) LOCATION '{location}' "
        "COMMENT 'a table' TBLPROPERTIES ('a.property' = 'x')"
    )
    try:
        whole = spark.table("archived")
        narrowed = spark.sql("SELECT offset FROM archived WITH ('minPartitions' = '7')")
        return {
            "offsets": sorted(row.offset for row in whole.collect()),
            "again": sorted(row.offset for row in narrowed.collect()),
            "columns": whole.columns,
        }
    finally:
        spark.sql("DROP TABLE archived")
