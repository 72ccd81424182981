"""Export of topics to a table, over all of its runs, on one Spark session."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from sidetier.archive.access import open_archive
from sidetier.config.model import BrokerConfig, Config
from sidetier.config.storage import StorageConfig
from sidetier.pipeline.export.exporting import (
    HeldBackReporter,
    Note,
    OnRound,
    broker_ends,
    no_notes,
    paused,
    wait_for_archive,
    waits,
    will_retry,
)
from sidetier.pipeline.export.output import open_output, require_fencing
from sidetier.pipeline.export.report import ExportPlan, TableReport
from sidetier.pipeline.export.request import TableRequest
from sidetier.pipeline.export.run import Chunk, run_at_interval
from sidetier.pipeline.export.sinks.tables.commit_metadata import Progress
from sidetier.pipeline.export.sinks.tables.dead_letters import DeadLetters
from sidetier.pipeline.export.sinks.tables.frames import (
    COLUMNS,
    Frames,
    KafkaSource,
    table_frames,
    value_columns,
)
from sidetier.pipeline.export.sinks.tables.gateway import java_process
from sidetier.pipeline.export.sinks.tables.hudi import (
    HudiOptions,
    HudiTable,
    with_schema_changes,
)
from sidetier.pipeline.export.sinks.tables.iceberg import IcebergOptions, IcebergTable
from sidetier.pipeline.export.sinks.tables.lease import Lease, LeaseTimes, ProcessId, process_here
from sidetier.pipeline.export.sinks.tables.run import Table, TableRun
from sidetier.pipeline.export.sinks.tables.spark_jars import TableJar, jar_of
from sidetier.pipeline.export.source import ArchiveSource, Source, TailedSource
from sidetier.pipeline.export.state import Offsets
from sidetier.pipeline.export.tail.java_properties import java_properties
from sidetier.pipeline.export.tail.topics import TopicLogs
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.spark.report import ReadReport
from sidetier.pipeline.spark.session import spark_session
from sidetier.pipeline.spark.settings import ArchivePlace, ReadSettings, TaskOptions
from sidetier.segments.errors import SidetierError

Opened = Callable[[SparkSession], AbstractContextManager[Table]]
"""Opens the table for the duration of an export."""

_TASK: Final = TaskOptions()
_PACKAGES: Final = "spark.jars.packages"
_JARS: Final = ("spark.jars", _PACKAGES, "spark.driver.extraClassPath")


@contextmanager
def _open_table_export(
    config: Config,
    request: TableRequest,
    opened: Opened,
    dead_letters: StorageConfig | None,
    on_note: Note,
) -> Iterator["TableExport"]:
    with ExitStack() as stack:
        archive = stack.enter_context(open_archive(config.cluster.name, config.storage))
        planner = stack.enter_context(request.planner(archive))
        name = f"sidetier export {' '.join(request.topics)}"
        spark = stack.enter_context(spark_session(request.master, name, request.spark_conf))
        table = stack.enter_context(opened(spark))
        settings = ReadSettings(
            ArchivePlace(config.cluster.name, config.storage),
            request.read,
            COLUMNS,
            _TASK.memory_budget,
            _TASK.batch_records,
            max_batch_bytes=request.max_batch_bytes,
            raw_timestamps=True,
            with_tail=request.tail == "packs",
        )
        report = ReadReport(spark)
        letters = None if dead_letters is None else DeadLetters.at(dead_letters, spark)
        columns = value_columns(
            request.values,
            letters,
            flat=request.flat,
            null_values=request.null_values,
            keys=request.keys,
            registry=request.registry,
            checks=table.row_checks(),
        )
        kafka = None
        if request.tail == "kafka":
            properties = java_properties(config.broker, request.kafka)
            kafka = KafkaSource(spark, properties, request.terms.isolation)
        frames = table_frames(spark, settings, columns, report, kafka)
        archived = ArchiveSource(config.cluster.name, planner, request.read, say=on_note)
        source: Source = archived
        if kafka is not None:
            logs = TopicLogs(planner, config.broker, request.topics, say=on_note)
            source = TailedSource(archived, logs)
        writer = TableWriter(table, frames, report, letters)
        yield TableExport(config.broker, request, planner, source, writer, on_note)


@dataclass(frozen=True, slots=True)
class TableWriter:
    """The table of an export, and the source of its rows.

    Attributes:
        frames: returns the records of a plan as rows.
        read: the counts of records that tasks have read, and the missing offsets.
        letters: receives records that do not fit; None if they are an error.
    """

    table: Table
    frames: Frames
    read: ReadReport
    letters: DeadLetters | None = None


@dataclass(slots=True)
class TableExport:
    """The runs of an export.

    Attributes:
        broker: The cluster with the records of the tail.
    """

    broker: BrokerConfig
    request: TableRequest
    planner: Planner
    source: Source
    writer: TableWriter
    on_note: Note = no_notes
    reporter: HeldBackReporter = field(init=False)

    def __post_init__(self) -> None:
        self.reporter = HeldBackReporter(self.on_note)

    def dry_run(self) -> ExportPlan:
        """Return what a run would export."""
        run = self._table_run()
        remaining = run.remaining()
        new = {tp: span for tp, span in remaining.ranges.items() if span.start < span.end}
        plan = self.source.plan(new)
        held_back = run.held_back(
            remaining, {tp: span.end for tp, span in remaining.ranges.items()}
        )
        self.reporter.report(held_back)
        plans = (plan,) if new else ()
        return ExportPlan(run.output, plans, held_back=held_back, waits=waits(self.source))

    def run(
        self, stop: threading.Event, on_round: OnRound = lambda _held_back, _failed: None
    ) -> TableReport:
        """Export; with `follow` until `stop`, which takes effect between two runs.

        Raises:
            SidetierError: The export failed; what was committed remains.
        """
        report = TableReport(self.writer.table.name, topics=len(self.request.topics))
        report.is_missing = self._wait_for_tail(stop)
        once = partial(self._once, report, on_round)
        if self.request.follow is None:
            once()
        else:
            run_at_interval(once, self.request.follow, stop, monotonic, self._can_pass)
        report.missing = self.writer.read.missing_offsets
        report.dead_letters = self.writer.letters.count if self.writer.letters else 0
        report.waits = waits(self.source)
        return report

    def _once(self, report: TableReport, on_round: OnRound) -> None:
        def committed(progress: Progress, chunk: Chunk) -> None:
            report.add_chunk(chunk)
            offsets = sum(span.end - span.start for span in chunk.ranges.values())
            self.on_note(f"commit {progress.commit}: {offsets} offsets")

        done = replace(self._table_run(), report=committed).run()
        report.add_run(done)
        self.reporter.report(done.held_back)
        on_round(done.held_back, 0)

    def _table_run(self) -> TableRun:
        return TableRun(self.source, self.request.terms, self.writer.table, self.writer.frames)

    def _can_pass(self, error: SidetierError) -> bool:
        follows = self.request.follow is not None
        return follows and will_retry(
            error, self.planner, self._offsets_without_epoch, self.on_note
        )

    def _offsets_without_epoch(self) -> Offsets:
        progress = self.writer.table.progress()
        return {} if progress is None else progress.exported.offsets_without_epoch

    def _wait_for_tail(self, stop: threading.Event) -> bool:
        """Wait as long as allowed; return whether records are still on the brokers alone."""
        if self.request.tail != "wait":
            return False
        pause = paused(stop, self.request.patience)
        archived = ArchiveSource(self.source.cluster, self.planner, self.request.read)
        isolation = self.request.terms.isolation
        missing = []
        for topic in self.request.topics:
            wanted = broker_ends(self.broker, topic, isolation)
            stored = partial(archived.archive_ends, topic)
            missing.append(
                wait_for_archive(topic, wanted, stored, pause, self.on_note, self._can_pass)
            )
        return any(missing)


def with_jars(
    conf: Mapping[str, str], settings: Mapping[str, str], *jars: TableJar
) -> dict[str, str]:
    """Return the settings of the Spark session for a table format; given settings override them.

    Given jars replace the known ones.

    Raises:
        ConfigurationError: No jars are given, and none are known for this version of PySpark.
    """
    if any(name in conf for name in _JARS):
        return {**settings, **conf}
    packages = ",".join(jar_of(jar, pyspark.__version__) for jar in jars)
    return {**settings, _PACKAGES: packages, **conf}


def tail_jars(request: TableRequest) -> tuple[TableJar, ...]:
    """Return the additional jars that `--tail` needs."""
    return (TableJar.KAFKA,) if request.tail == "kafka" else ()


HUDI_SESSION: Final = {
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.kryo.registrator": "org.apache.spark.HoodieSparkKryoRegistrar",
    "spark.sql.extensions": "org.apache.spark.sql.hudi.HoodieSparkSessionExtension",
    "spark.speculation": "false",  # Hudi refuses to write if it is on
    # Without it, a null within an array fails each commit.
    "spark.hadoop.parquet.avro.write-old-list-structure": "false",
    # Hudi writes old dates as they are. Without it, an upsert beside a date before 1582 fails.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.hadoop.fs.s3a.directory.marker.retention": "keep",  # otherwise commits hang: Hadoop 3.3
}


@dataclass(frozen=True, slots=True)
class LeasePlace:
    """Store of the lease on a Hudi table, and its times."""

    target: StorageConfig
    times: LeaseTimes


@contextmanager
def open_hudi_export(
    config: Config,
    request: TableRequest,
    options: HudiOptions,
    lease: LeasePlace,
    *,
    dead_letters: StorageConfig | None = None,
    on_note: Note = no_notes,
) -> Iterator[TableExport]:
    """Start Spark, and connect an export to the archive and a Hudi table; closed on exit.

    Args:
        config: Its `storage` is the archive, and its `broker` has the records of the tail.
        request: What is exported.
        options: The table.
        lease: Where the lease on the table is.
        dead_letters: Store for records whose value does not fit the schema; None for an error.
        on_note: Receives messages for an operator.

    Raises:
        SidetierError: A store or the table cannot be opened, or Spark does not start.
    """
    if request.follows_registry:
        options = with_schema_changes(options)

    @contextmanager
    def opened(spark: SparkSession) -> Iterator[Table]:
        holder = process_here(java_process(spark))
        with _lease(lease, options, holder) as held:
            table = HudiTable(spark, options, held)
            if request.dry_run:
                yield table
                return
            with table:
                yield table

    conf = with_jars(request.spark_conf, HUDI_SESSION, TableJar.HUDI, *tail_jars(request))
    request = replace(request, spark_conf=conf)
    with _open_table_export(config, request, opened, dead_letters, on_note) as export:
        yield export


@contextmanager
def _lease(place: LeasePlace, options: HudiOptions, holder: ProcessId) -> Iterator[Lease]:
    with open_output(place.target) as store:
        require_fencing(store, place.target)
        name = options.base_path.rpartition("/")[2]
        yield Lease(store, f"_sidetier/{name}.lease", place.times, holder)


ICEBERG_SESSION: Final = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
}


@contextmanager
def open_iceberg_export(
    config: Config,
    request: TableRequest,
    options: IcebergOptions,
    *,
    dead_letters: StorageConfig | None = None,
    on_note: Note = no_notes,
) -> Iterator[TableExport]:
    """Start Spark, and connect an export to the archive and an Iceberg table; closed on exit.

    Arguments and errors as `open_hudi_export`.
    """

    @contextmanager
    def opened(spark: SparkSession) -> Iterator[Table]:
        yield IcebergTable(spark, replace(options, adds_columns=request.follows_registry))

    conf = with_jars(request.spark_conf, ICEBERG_SESSION, TableJar.ICEBERG, *tail_jars(request))
    given = replace(request, spark_conf=conf)
    with _open_table_export(config, given, opened, dead_letters, on_note) as export:
        yield export
