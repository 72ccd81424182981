"""One call of `sidetier export hudi` or `iceberg`, from the configuration to the exit code."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

import pyspark
from pyspark.sql import SparkSession

from sidetier.archive.access import endpoint_provider, open_archive
from sidetier.cli.export.options import HudiCommandOptions, IcebergCommandOptions
from sidetier.cli.export.request import TableRequest, table_request
from sidetier.cli.export.session import (
    HeldBackReporter,
    broker_ends,
    exit_code,
    paused,
    reached_at,
    target_of,
    wait_for_archive,
    waits,
    will_retry,
    write_metrics,
)
from sidetier.cli.export.spark_session import spark_session
from sidetier.cli.export.view import DryRun, TableResult
from sidetier.cli.output import OutputFormat, emit, say
from sidetier.cli.signals import stopping
from sidetier.config.model import Config
from sidetier.config.properties_file import read_properties
from sidetier.config.storage import StorageConfig
from sidetier.pipeline.export.run import Chunk, run_at_interval
from sidetier.pipeline.export.sinks.files.tasks import require_fencing
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
    parse_options,
    whole_state_every,
    with_schema_changes,
)
from sidetier.pipeline.export.sinks.tables.iceberg import IcebergOptions, IcebergTable
from sidetier.pipeline.export.sinks.tables.lease import Lease, LeaseTimes, ProcessId, process_here
from sidetier.pipeline.export.sinks.tables.run import Table, TableRun, TableTerms
from sidetier.pipeline.export.sinks.tables.spark_jars import TableJar, jar_of
from sidetier.pipeline.export.source import ArchiveSource, Source, TailedSource
from sidetier.pipeline.export.state import Offsets
from sidetier.pipeline.export.tail.java_properties import java_properties
from sidetier.pipeline.export.tail.topics import TopicLogs
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.spark.report import ReadReport
from sidetier.pipeline.spark.settings import ArchivePlace, ReadSettings, TaskOptions
from sidetier.segments.errors import ConfigurationError, SidetierError
from sidetier.storage.factory import open_storage

Opened = Callable[[SparkSession], AbstractContextManager[Table]]
"""Opens the table for the duration of an export."""

_TASK: Final = TaskOptions()
_PACKAGES: Final = "spark.jars.packages"
_JARS: Final = ("spark.jars", _PACKAGES, "spark.driver.extraClassPath")


def export_table(
    config: Config, request: TableRequest, opened: Opened, output: OutputFormat
) -> int:
    """Carry out the requested export; return the exit code.

    Raises:
        SidetierError: The export failed; what was committed remains.
    """
    with ExitStack() as stack:
        archive = stack.enter_context(open_archive(config.cluster.name, config.storage))
        planner = stack.enter_context(Planner(archive, max_batch_bytes=request.max_batch_bytes))
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
        )
        report = ReadReport(spark)
        letters = _letters(config, request, spark)
        columns = value_columns(
            request.values,
            letters,
            flat=request.flat,
            null_values=request.null_values,
            keys=request.keys,
            registry=request.registry,
            checks=table.row_checks(),
        )
        broker = reached_at(config.broker, request.bootstrap, request.kafka)
        kafka = None
        if request.tail == "kafka":
            properties = java_properties(broker, request.kafka)
            kafka = KafkaSource(spark, properties, request.terms.isolation)
        frames = table_frames(spark, settings, columns, report, kafka)
        source: Source = ArchiveSource(config.cluster.name, planner, request.read, say=say)
        if kafka is not None:
            logs = TopicLogs(planner, broker, request.topics, say=say)
            source = TailedSource(ArchiveSource(config.cluster.name, planner, request.read), logs)
        session = TableSession(
            config, request, planner, source, TableWriter(table, frames, report, letters)
        )
        return session.dry_run(output) if request.dry_run else session.run(output)


def _letters(config: Config, request: TableRequest, spark: SparkSession) -> DeadLetters | None:
    if request.dead_letters is None:
        return None
    return DeadLetters.at(target_of(config.storage, request.dead_letters, None), spark)


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


@dataclass(frozen=True, slots=True)
class TableSession:
    """The runs of one call, on one Spark session."""

    config: Config
    request: TableRequest
    planner: Planner
    source: Source
    writer: TableWriter
    reporter: HeldBackReporter = field(default_factory=HeldBackReporter)

    def dry_run(self, output: OutputFormat) -> int:
        """Show what a run would export; return the exit code."""
        run = self._table_run()
        remaining = run.remaining()
        new = {tp: span for tp, span in remaining.ranges.items() if span.start < span.end}
        plan = self.source.plan(new)
        held_back = run.held_back(
            remaining, {tp: span.end for tp, span in remaining.ranges.items()}
        )
        self.reporter.report(held_back)
        emit(DryRun(run.output, (plan,) if new else (), held_back=held_back), output)
        findings = bool(plan.missing) or any(partition.is_finding for partition in held_back)
        return exit_code(findings=findings, waits=waits(self.source), fail_on_data_loss=False)

    def run(self, output: OutputFormat) -> int:
        """Export; with `follow` until a signal, which takes effect between two runs."""
        result = TableResult(self.writer.table.name)
        follow = self.request.follow
        with stopping(wanted=follow is not None) as stop:
            is_missing = self._wait_for_tail(stop)
            if follow is None:
                self._once(result)
            else:
                run_at_interval(lambda: self._once(result), follow, stop, monotonic, self._can_pass)
        result.missing = self.writer.read.missing_offsets
        result.dead_letters = self.writer.letters.count if self.writer.letters else 0
        emit(result, output)
        return exit_code(
            findings=result.has_findings or is_missing,
            waits=waits(self.source),
            fail_on_data_loss=self.request.read.fail_on_data_loss,
        )

    def _once(self, result: TableResult) -> None:
        def committed(progress: Progress, chunk: Chunk) -> None:
            result.add_chunk(chunk)
            offsets = sum(span.end - span.start for span in chunk.ranges.values())
            say(f"commit {progress.commit}: {offsets} offsets")

        done = replace(self._table_run(), report=committed).run()
        result.add_run(done)
        self.reporter.report(done.held_back)
        if self.request.metrics_file is not None:
            write_metrics(self.request.metrics_file, done.held_back, 0)

    def _table_run(self) -> TableRun:
        return TableRun(self.source, self.request.terms, self.writer.table, self.writer.frames)

    def _can_pass(self, error: SidetierError) -> bool:
        follows = self.request.follow is not None
        return follows and will_retry(error, self.planner, self._offsets_without_epoch)

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
            wanted = broker_ends(self.config.broker, self.request.bootstrap, topic, isolation)
            stored = partial(archived.archive_ends, topic)
            missing.append(wait_for_archive(topic, wanted, stored, pause, self._can_pass))
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
_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "": "file"}


def export_hudi(config: Config, given: HudiCommandOptions) -> int:
    """Export, and return the exit code. Raises SidetierError."""
    options = parse_options({**read_options(given.file), **given.properties})
    terms = TableTerms(
        timeout=options.timeout,
        allow_empty=options.allow_empty,
        whole_state_every=whole_state_every(options, given.table.whole_state_every),
    )
    request = table_request(given.topics, given.table, terms, options.interval)
    if request.follows_registry:
        options = with_schema_changes(options)
    conf = with_jars(request.spark_conf, HUDI_SESSION, TableJar.HUDI, *tail_jars(request))
    url = given.lock or lock_url(options.base_path)
    target = target_of(config.storage, url, given.lock_config)
    times = LeaseTimes(ttl=given.lock_ttl, wait=given.lock_wait)

    @contextmanager
    def opened(spark: SparkSession) -> Iterator[Table]:
        holder = process_here(java_process(spark))
        with _lease(target, options, times, holder) as lease:
            table = HudiTable(spark, options, lease)
            if request.dry_run:
                yield table
                return
            with table:
                yield table

    return export_table(config, replace(request, spark_conf=conf), opened, given.table.output)


def read_options(file: Path | None) -> dict[str, str]:
    """Return the properties of a file; raise ConfigurationError if it cannot be read."""
    return {} if file is None else read_properties(file, "--options")


def lock_url(base_path: str) -> str:
    """Return the URL of the directory beside the table, with the storage layer's scheme."""
    parts = urlsplit(base_path)
    parent = parts.path.rstrip("/").rpartition("/")[0]
    scheme = _SCHEMES.get(parts.scheme, parts.scheme)
    if not parts.path.startswith("/") or (scheme == "file" and not parent):
        raise ConfigurationError(
            f"target.base.path {base_path}: must be absolute, and below a directory"
        )
    return f"{scheme}://{parts.netloc}{parent}"


@contextmanager
def _lease(
    target: StorageConfig, options: HudiOptions, times: LeaseTimes, holder: ProcessId
) -> Iterator[Lease]:
    store = open_storage(endpoint_provider(target).endpoints[0])
    try:
        require_fencing(store, target)
        name = options.base_path.rpartition("/")[2]
        yield Lease(store, f"_sidetier/{name}.lease", times, holder)
    finally:
        store.close()


ICEBERG_SESSION: Final = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
}
DEFAULT_INTERVAL: Final = 60.0


def export_iceberg(config: Config, given: IcebergCommandOptions) -> int:
    """Export, and return the exit code. Raises SidetierError."""
    options = IcebergOptions(
        given.name, given.partitioned_by, given.table_properties, given.writer_options
    )
    request = table_request(given.topics, given.table, TableTerms(), DEFAULT_INTERVAL)
    conf = with_jars(request.spark_conf, ICEBERG_SESSION, TableJar.ICEBERG, *tail_jars(request))

    @contextmanager
    def opened(spark: SparkSession) -> Iterator[Table]:
        yield IcebergTable(spark, replace(options, adds_columns=request.follows_registry))

    request = replace(request, spark_conf=conf)
    return export_table(config, request, opened, given.table.output)
