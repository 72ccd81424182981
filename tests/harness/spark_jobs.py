"""Functions that tests call in a driver through `spark_driver`. No pytest here."""

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
from pyspark.sql import functions as F  # noqa: N812 -- the usual name

from sidetier.spark import ReadReport, read, register

Json = dict[str, Any]
Options = dict[str, str]


def frame(spark: SparkSession, face: str, options: Options, report: ReadReport | None) -> DataFrame:
    """Return the same read through either interface: `read` or `format`."""
    if face == "read":
        return read(spark, options, report=report)
    register(spark)
    return spark.read.format("sidetier").options(**options).load()


def rows(spark: SparkSession, face: str, options: Options, fail_once: bool = False) -> list[Json]:  # noqa: FBT001, FBT002
    """Return all rows, by topic, partition and offset."""
    data_frame = frame(spark, face, options, None)
    if fail_once:
        data_frame = data_frame.mapInArrow(fails_at_first, data_frame.schema)
    return sorted(map(plain, data_frame.collect()), key=place)


def counts(spark: SparkSession, face: str, options: Options) -> Json:
    """Return counts of a read with a report, and its number of tasks."""
    report = ReadReport(spark) if face == "read" else None
    data_frame = frame(spark, face, options, report)
    result: Json = {
        "rows": data_frame.count(),
        "tasks": data_frame.rdd.getNumPartitions(),
        "columns": data_frame.columns,
    }
    if report is not None:
        result["line"] = report.line()
        result["missing"] = [
            [missing_range.tp.topic, missing_range.range.start, missing_range.range.end]
            for missing_range in report.missing
        ]
    return result


def schemas(spark: SparkSession, face: str, options: Options) -> Json:
    """Return Sidetier's schema, and the schema of Spark's Kafka source with the same options."""
    kafka = spark.read.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:1")
    for name, value in options.items():
        if not name.startswith("tiered."):
            kafka = kafka.option(name, value)
    archived = frame(spark, face, options, None)
    return {"ours": archived.schema.jsonValue(), "kafka": kafka.load().schema.jsonValue()}


def chosen(spark: SparkSession, options: Options, ddl: str) -> list[Json]:
    """Return rows of a schema that the user gives."""
    register(spark)
    data_frame = spark.read.format("sidetier").schema(ddl).options(**options).load()
    return [row.asDict() for row in data_frame.orderBy("offset").collect()]


def explained(spark: SparkSession, face: str, options: Options) -> str:
    """Return every plan of a read, as `explain(extended=True)` prints it."""
    query = frame(spark, face, options, None)._jdf.queryExecution()
    return str(query.toString())


def by_minute(spark: SparkSession, face: str, options: Options) -> list[Json]:
    """Return the number of records per minute."""
    minute = F.date_trunc("minute", "timestamp").alias("minute")
    data_frame = frame(spark, face, options, None).groupBy(minute).count().orderBy("minute")
    return [{"minute": str(row[0]), "count": row[1]} for row in data_frame.collect()]


def stream(
    spark: SparkSession,
    options: Options,
    checkpoint: str,
    output: str,
    until: Json | None = None,
) -> list[Json]:
    """Run a stream over the present data (`availableNow`), or until it reaches the offsets `until`.

    Each batch becomes a file of its offsets. Returns the end offsets of the batches.
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
    """Run a stream whose driver is killed after it has written this batch, before the commit."""
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
    progress = [
        entry if isinstance(entry, dict) else entry.jsonValue for entry in query.recentProgress
    ]
    end_offsets = [entry["sources"][0]["endOffset"] for entry in progress]
    return [json.loads(entry) if isinstance(entry, str) else entry for entry in end_offsets]


def plain(row: Row) -> Json:
    """Return a row in the form of `expected.*.jsonl`, without the leader epoch."""
    fields: Json = row.asDict(recursive=True)
    return {name: _plain(value) for name, value in fields.items()}


def _plain(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, bytearray | bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, list):
        return [[header["key"], _plain(header["value"])] for header in value]
    if hasattr(value, "timestamp"):
        return round(value.timestamp() * 1000)
    return value


def place(row: Json) -> tuple[str, int, int]:
    return row["topic"], row["partition"], row["offset"]


def fails_at_first(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fail in the middle of the rows of some tasks, at the first attempt only."""
    context = TaskContext.get()
    assert context is not None
    fails = context.partitionId() % 16 == 0 and context.attemptNumber() == 0
    for batch in batches:
        yield batch
        if fails:
            raise OSError("the first try of this task fails")


def through_catalog(spark: SparkSession, options: Options, location: str) -> Json:
    """Return the offsets of a table in Spark's catalog, whole and with a query option."""
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


def kafka_rows(spark: SparkSession, options: Options, into: str | None = None) -> list[Json]:
    """Return all rows that Spark's own Kafka source reads, by topic, partition and offset.

    With `into`, a query reads what is there now, in micro-batches, and writes it into files of this
    folder. The next query goes on there; the rows of all are returned.
    """
    source = spark.read if into is None else spark.readStream
    data_frame = source.format("kafka").options(**options, includeHeaders="true").load()
    if into is not None:
        rows = f"{into}/rows"
        writer = data_frame.writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("path", rows).option("checkpointLocation", f"{into}/checkpoint")
        writer.start().awaitTermination()
        data_frame = spark.read.parquet(rows)
    return sorted(map(plain, data_frame.collect()), key=place)
