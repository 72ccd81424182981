"""One call of `sidetier export hudi` or `iceberg`, from the configuration to the exit code."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from sidetier.archive.access import open_archive
from sidetier.cli.export.files_session import Teller, paused, say, stopping, told_again
from sidetier.cli.export.metrics_file import write_metrics
from sidetier.cli.export.session import spark_session
from sidetier.cli.export.table_request import TableRequest
from sidetier.cli.export.tail import broker_ends, exit_code, reached_at, told_lacking
from sidetier.cli.export.targets import target_of
from sidetier.cli.export.view import DryRun, held_back_text, waiting_texts
from sidetier.cli.output import OutputFormat, emit
from sidetier.cli.output import Table as TextTable
from sidetier.config.model import Config
from sidetier.pipeline.errors import NoSuchTopicError
from sidetier.pipeline.export.held_back import HeldBack
from sidetier.pipeline.export.tables.archived import ArchivedRecords
from sidetier.pipeline.export.tables.chunks import Chunk
from sidetier.pipeline.export.tables.dead_letters import DeadLetters
from sidetier.pipeline.export.tables.frames import COLUMNS, table_frames, value_columns
from sidetier.pipeline.export.tables.kafka_source import KafkaSource
from sidetier.pipeline.export.tables.progress import Offsets, Progress
from sidetier.pipeline.export.tables.run import Committed, TableRun, run_at_interval
from sidetier.pipeline.export.tables.spark_jars import TableJar, jar_of
from sidetier.pipeline.export.tables.table import Table
from sidetier.pipeline.export.tables.tailed import TailedRecords
from sidetier.pipeline.export.tail.java_properties import java_properties
from sidetier.pipeline.export.tail.topics import TopicLogs
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.request import Topics
from sidetier.pipeline.spark.report import ReadReport
from sidetier.pipeline.spark.settings import ArchivePlace, ReadSettings, TaskOptions
from sidetier.segments.errors import SidetierError
from sidetier.segments.offsets import OffsetRange, TopicPartition


@dataclass(slots=True)
class TableResult:
    """Result of a call, over all of its runs."""

    table: str
    ranges: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    commits: int = 0
    skipped: int = 0
    missing: int = 0
    """Offsets that are not stored; the export went on behind them."""
    dead_letters: int = 0
    held_back: tuple[HeldBack, ...] = ()

    def add_chunk(self, chunk: Chunk) -> None:
        """Count a commit."""
        self.commits += 1
        for tp, span in chunk.ranges.items():
            earlier = self.ranges.get(tp, span)
            self.ranges[tp] = OffsetRange(earlier.start, span.end)

    @property
    def has_findings(self) -> bool:
        """Whether something is not in the table that should be."""
        lost = bool(self.missing or self.dead_letters)
        return lost or any(entry.is_finding for entry in self.held_back)

    def add_run(self, done: Committed) -> None:
        """Add the uncommitted offsets without records, and take over the held-back partitions."""
        self.skipped += done.skipped
        self.held_back = done.held_back

    def as_json(self) -> object:
        """Return the result; the names are stable."""
        return {
            "table": self.table,
            "commits": self.commits,
            "offsets_without_records": self.skipped,
            "missing_offsets": self.missing,
            "dead_letters": self.dead_letters,
            "held_back": [entry.as_json() for entry in self.held_back],
            "partitions": [
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "first_offset": span.start,
                    "next_offset": span.end,
                }
                for tp, span in sorted(self.ranges.items())
            ],
        }

    def as_tables(self) -> Sequence[TextTable]:
        """Return a row for each Kafka partition with new offsets."""
        rows = [
            (str(tp), span.start, span.end, span.end - span.start)
            for tp, span in sorted(self.ranges.items())
        ]
        footer = f"{self.commits} commits to {self.table}" if rows else "nothing is new"
        footer += f"; {self.missing} offsets are missing" if self.missing else ""
        footer += f"; {self.dead_letters} dead letters" if self.dead_letters else ""
        footer += held_back_text({entry.tp for entry in self.held_back})
        footer = "\n".join([*waiting_texts(self.held_back), footer])
        return (
            TextTable(
                ("PARTITION", "FROM", "NEXT", "OFFSETS") if rows else (), rows, footer=footer
            ),
        )


Records = ArchivedRecords | TailedRecords
Opened = Callable[[SparkSession], AbstractContextManager[Table]]
"""Opens the table for the duration of an export."""

_TASK: Final = TaskOptions()
_PACKAGES: Final = "spark.jars.packages"
_JARS: Final = ("spark.jars", _PACKAGES, "spark.driver.extraClassPath")


def export_table(
    config: Config, request: TableRequest, opened: Opened, output: OutputFormat
) -> int:
    """Export what the request names; return the exit code.

    Raises:
        SidetierError: The export failed; what was committed remains.
    """
    with ExitStack() as stack:
        archive = stack.enter_context(open_archive(config.cluster.name, config.storage))
        planner = stack.enter_context(Planner(archive, max_batch_bytes=request.max_batch_bytes))
        name = f"sidetier export {' '.join(request.topics)}"
        spark = stack.enter_context(spark_session(request.master, name, request.spark_conf or {}))
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
        )
        broker = reached_at(config.broker, request.bootstrap, request.kafka)
        kafka = None
        if request.tail == "kafka":
            properties = java_properties(broker, request.kafka)
            kafka = KafkaSource(spark, properties, request.terms.isolation)
        frames = table_frames(spark, settings, columns, report, kafka)
        archived = ArchivedRecords(config.cluster.name, planner, request.read, frames, say)
        records: Records = archived
        if kafka is not None:
            logs = TopicLogs(planner, broker, request.topics, said=say)
            records = TailedRecords(archived, logs)
        call = _Call(config, request, planner, records, table, report, letters)
        return call.dry_run(output) if request.dry_run else call.run(output)


def _letters(config: Config, request: TableRequest, spark: SparkSession) -> DeadLetters | None:
    if request.dead_letters is None:
        return None
    return DeadLetters.at(target_of(config.storage, request.dead_letters, None), spark)


@dataclass(frozen=True, slots=True)
class _Call:
    config: Config
    request: TableRequest
    planner: Planner
    records: Records
    table: Table
    report: ReadReport
    letters: DeadLetters | None
    teller: Teller = field(default_factory=Teller)

    def dry_run(self, output: OutputFormat) -> int:
        """Show what a run would export; return the exit code."""
        run = TableRun(self.table, self.records, self.request.terms)
        standing = run.standing()
        new_spans = {tp: span for tp, span in standing.left.items() if span.start < span.end}
        plan = self.records.plan(new_spans)
        reached = {tp: span.end for tp, span in standing.left.items()}
        held_back = run.held_back(standing, reached)
        Teller().tell(held_back)
        emit(DryRun(self.table.name, (plan,) if new_spans else (), held_back=held_back), output)
        findings = bool(plan.missing) or any(partition.is_finding for partition in held_back)
        return exit_code(findings=findings, waits=self._waits(), fail_on_data_loss=False)

    def _waits(self) -> bool:
        return isinstance(self.records, TailedRecords) and bool(self.records.logs.waiting)

    def run(self, output: OutputFormat) -> int:
        """Export; with `follow` until a signal, which takes effect between two runs."""
        result = TableResult(self.table.name)
        follow = self.request.follow
        with stopping(wanted=follow is not None) as stop:
            is_missing = self._wait_for_tail(stop)
            if follow is None:
                self._once(result)
            else:
                run_at_interval(lambda: self._once(result), follow, stop, monotonic, self._can_pass)
        result.missing = self.report.missing_offsets
        result.dead_letters = self.letters.count if self.letters else 0
        emit(result, output)
        return exit_code(
            findings=result.has_findings or is_missing,
            waits=self._waits(),
            fail_on_data_loss=self.request.read.fail_on_data_loss,
        )

    def _can_pass(self, error: SidetierError) -> bool:
        follows = self.request.follow is not None
        return follows and told_again(error, self.planner, self._exported_blindly)

    def _exported_blindly(self) -> Offsets:
        progress = self.table.progress()
        return {} if progress is None else progress.offsets_without_epoch

    def _once(self, result: TableResult) -> Committed:
        def committed(progress: Progress, chunk: Chunk) -> None:
            result.add_chunk(chunk)
            offsets = sum(span.end - span.start for span in chunk.ranges.values())
            say(f"commit {progress.commit}: {offsets} offsets")

        done = TableRun(self.table, self.records, self.request.terms, committed).run()
        result.add_run(done)
        self.teller.tell(done.held_back)
        if self.request.metrics_file is not None:
            write_metrics(self.request.metrics_file, done.held_back, 0)
        return done

    def _wait_for_tail(self, stop: threading.Event) -> bool:
        """Wait as long as allowed; return whether records are still on the brokers alone."""
        if self.request.tail != "wait":
            return False
        pause = paused(stop, self.request.patience)
        missing = [self._waited(topic, pause) for topic in self.request.topics]
        return any(missing)

    def _waited(self, topic: str, pause: Callable[[], bool]) -> bool:
        isolation = self.request.terms.isolation

        def stored() -> dict[int, int]:
            try:
                tps = self.planner.partitions(Topics((topic,)))
            except NoSuchTopicError:
                return {}
            return {tp.partition: end for tp, end in self.planner.ends(tps, isolation).items()}

        wanted = broker_ends(self.config.broker, self.request.bootstrap, topic, isolation)
        return told_lacking(topic, wanted, stored, pause, say, self._can_pass)


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
