"""Functions for tests of table exports that a driver calls with its session. No pytest here."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql import SparkSession

from sidetier.cli.main import run
from sidetier.pipeline.export import table_export
from sidetier.pipeline.export.epoch_history import epoch_history_of
from sidetier.pipeline.export.sinks.tables.commit_metadata import Progress, following
from sidetier.pipeline.export.sinks.tables.frames import (
    Frames,
    KafkaSource,
    Rows,
    table_frames,
    value_columns,
)
from sidetier.pipeline.export.sinks.tables.hudi import HudiOptions, HudiTable, parse_options
from sidetier.pipeline.export.sinks.tables.iceberg import (
    IcebergMetadata,
    IcebergOptions,
    IcebergTable,
)
from sidetier.pipeline.export.sinks.tables.lease import Lease
from sidetier.pipeline.export.sinks.tables.row_counts import RowCounts
from sidetier.pipeline.export.sinks.tables.run import Table
from sidetier.pipeline.export.state import Tail
from sidetier.pipeline.export.values.options import ValueOptions
from sidetier.pipeline.planning.split import BrokerRange, Plan
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.storage.local import LocalStorage
from tests.harness.spark_jobs import fails_at_first, place, plain

Json = dict[str, Any]
LOOK_SECONDS = 0.002
_STEPS = {"staged": (IcebergTable, "_stage"), "published": (IcebergMetadata, "publish")}


def export(
    spark: SparkSession,
    arguments: list[str],
    die: Json | None = None,
    hold: str | None = None,
    fail_once: bool = False,  # noqa: FBT001, FBT002 - set by name, from JSON
) -> Json:
    """Run `sidetier export` with these arguments in this session, and return exit code and output.

    Args:
        spark: The session.
        arguments: Arguments after `export`.
        die: When to kill the driver with its Java process: after `in` seconds, after a `step`, or
            on a new `file` below a `directory`.
        hold: File that must exist before a snapshot of a table, read earlier, is published.
            `<name>.reached` shows when it could be published.
        fail_once: Let the first attempt of every task fail.
    """

    @contextmanager
    def kept(*_: object) -> Iterator[SparkSession]:
        yield spark

    errors = StringIO()
    with ExitStack() as stack:
        stack.enter_context(patch.object(table_export, "spark_session", kept))
        if fail_once:
            failing = _failing(table_frames)
            stack.enter_context(patch.object(table_export, "table_frames", failing))
        if hold is not None:
            stack.enter_context(_held(Path(hold)))
        if die is not None:
            _die_at(die)
        stack.enter_context(redirect_stderr(errors))
        # The fixtures end in an open transaction, with markers years newer than its records.
        code = run(["export", *arguments, "--transaction-timeout", "99999h"])
    return {"code": code, "said": errors.getvalue()}


def rows(spark: SparkSession, form: str, table: str) -> list[Json]:
    """Return a table's rows by topic, partition and offset, without Hudi's own columns."""
    loaded = spark.read.format(form).load(table)
    selected = loaded.select(
        *(column for column in loaded.columns if not column.startswith("_hoodie"))
    )
    return sorted(map(plain, selected.collect()), key=place)


def sql(spark: SparkSession, text: str) -> list[Json]:
    """Return the result of a statement."""
    return [row.asDict(recursive=True) for row in spark.sql(text).collect()]


def set_hadoop(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Set options of Hadoop file systems that are opened from now on."""
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in settings.items():
        configuration.set(name, value)


def append_nothing(spark: SparkSession, table: str, properties: Mapping[str, str]) -> None:
    """Commit without rows to an Iceberg table, with these snapshot properties."""
    writer = spark.table(table).limit(0).writeTo(table)
    for name, value in properties.items():
        writer = writer.option(f"snapshot-property.{name}", value)
    writer.append()


def commit_news_of_many(
    spark: SparkSession, form: str, table: str, partitions: int, names: list[str], every: int
) -> list[Json]:
    """Commit once under each name to a table of `partitions` Kafka partitions.

    Each commit changes the offset of the first partition only. Returns the table's progress before
    and after each commit. An Iceberg table is given by name, a Hudi table by its directory.
    """
    with ExitStack() as stack:
        opened: Table
        if form == "hudi":
            lease = Lease(LocalStorage(Path(table).parent), "_sidetier/many.lease")
            opened = stack.enter_context(HudiTable(spark, _hudi_options(table), lease))
        else:
            opened = IcebergTable(spark, IcebergOptions(table))
        return _commit_news(spark, opened, partitions, names, every)


def _hudi_options(directory: str) -> HudiOptions:
    return parse_options(
        {
            "target.base.path": f"file://{directory}",
            "target.table.name": "many",
            "hoodie.metadata.enable": "false",
            "hoodie.datasource.write.recordkey.field": "id",
            "hoodie.datasource.write.precombine.field": "id",
        }
    )


def _commit_news(
    spark: SparkSession, table: Table, partitions: int, names: list[str], every: int
) -> list[Json]:
    first = TopicPartition("orders", 0)
    epochs = epoch_history_of([(3, 0), (5, 100)])
    progress_rows: list[Json] = []
    for name in names:
        last = table.progress()
        progress_rows.append(_said_of(last))
        tps = [TopicPartition("orders", at) for at in range(partitions)]
        before = dict(last.offsets) if last is not None else dict.fromkeys(tps, Offset(1000))
        tail = Tail({}, {"orders": "id-1"}, dict.fromkeys(tps, epochs))
        progress = Progress(
            "prod-a",
            IsolationLevel.READ_COMMITTED,
            before | {first: Offset(before[first] + 1)},
            {} if last is None else last.offsets,
            name,
            tail,
        )
        table.write(spark.range(1), following(progress, last, every), 120, lambda: 1)
    progress_rows.append(_said_of(table.progress()))
    return progress_rows


def _said_of(progress: Progress | None) -> Json:
    if progress is None:
        return {}
    whole = None if progress.whole is None else progress.whole.commit
    return {
        "commit": progress.commit,
        "partitions": len(progress.offsets),
        "first": progress.offsets[TopicPartition("orders", 0)],
        "epochs": len(progress.tail.epoch_histories),
        "whole": whole,
    }


def append_nothing_to_path(
    spark: SparkSession, form: str, path: str, options: Mapping[str, str]
) -> None:
    """Commit without rows to a table that is named by its path."""
    loaded = spark.read.format(form).load(path)
    columns = [column for column in loaded.columns if not column.startswith("_hoodie")]
    loaded.limit(0).select(columns).write.format(form).mode("append").options(**options).save(path)


def broker_plan(spark: SparkSession, topic: str, properties: dict[str, str]) -> str:
    """Return the most detailed plan that Spark shows for a read of a broker's records."""
    columns = value_columns(ValueOptions(), flat=False)
    source = KafkaSource(spark, properties, IsolationLevel.READ_COMMITTED)
    span = OffsetRange(Offset(0), Offset(1))
    counter = RowCounts.on(spark).of_new_frame()
    frame = source.frame((BrokerRange(TopicPartition(topic, 0), span),), columns, counter)
    return str(frame._jdf.queryExecution().toString())


def _failing(real: Callable[..., Frames]) -> Callable[..., Frames]:
    def frames(*given: object, **named: object) -> Frames:
        built = real(*given, **named)

        def frame(plan: Plan) -> Rows:
            rows = built(plan)
            failing = rows.frame.mapInArrow(_fails_at_first, rows.frame.schema)
            return replace(rows, frame=failing)

        return frame

    return frames


def _fails_at_first(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return fails_at_first(iter(batches))


@contextmanager
def _held(path: Path) -> Iterator[None]:
    real: Callable[..., bool] = IcebergMetadata.publish
    never = threading.Event()

    def publish(*given: object) -> bool:
        path.with_suffix(".reached").touch()
        while not path.exists():
            never.wait(LOOK_SECONDS)
        return real(*given)

    with patch.object(IcebergMetadata, "publish", publish):
        yield


def _die(*_: object) -> None:
    """Kill the whole driver at once: Python and its Java process."""
    os.killpg(0, signal.SIGKILL)


def _die_at(given: Json) -> None:
    if "file" in given:
        _die_on_new_file(Path(given["directory"]), given["file"])
    elif "in" in given:
        timer = threading.Timer(given["in"], _die)
        timer.daemon = True
        timer.start()
    else:
        _die_after(*_STEPS[given["step"]])


def _die_after(owner: type, method: str) -> None:
    real: Callable[..., object] = getattr(owner, method)

    def fatal(*given: object) -> None:
        real(*given)
        _die()

    setattr(owner, method, fatal)


def _die_on_new_file(directory: Path, pattern: str) -> None:
    existing = set(directory.glob(pattern))
    never = threading.Event()

    def is_new() -> bool:
        try:
            return not set(directory.glob(pattern)) <= existing
        except FileNotFoundError:  # a directory was removed during the listing
            return False

    def look() -> None:
        while not is_new():
            never.wait(LOOK_SECONDS)
        _die()

    threading.Thread(target=look, daemon=True).start()
