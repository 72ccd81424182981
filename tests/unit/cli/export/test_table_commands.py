"""Arguments of the table export commands, up to the start of Spark."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest

from sidetier.cli.export.options import TableOptions
from sidetier.cli.export.request import table_request
from sidetier.cli.export.session import finish
from sidetier.cli.export.table_session import lock_url, read_options
from sidetier.cli.export.view import TableResult
from sidetier.cli.main import run
from sidetier.cli.output import OutputFormat
from sidetier.config.model import BrokerConfig
from sidetier.pipeline.export.errors import BehindError
from sidetier.pipeline.export.report import TableReport
from sidetier.pipeline.export.request import TableRequest
from sidetier.pipeline.export.run import Chunk
from sidetier.pipeline.export.sinks.tables.run import Committed, TableTerms
from sidetier.pipeline.export.sinks.tables.spark_jars import TableJar, jar_of
from sidetier.pipeline.export.source import ArchiveSource, TailedSource
from sidetier.pipeline.export.table_export import TableExport, TableWriter, with_jars
from sidetier.pipeline.export.tail.logs import Log
from sidetier.pipeline.export.tail.topics import TopicLogs
from sidetier.pipeline.planning.request import AtOffsets, Edge
from sidetier.pipeline.planning.split import Plan
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from tests.harness.command_line import options_of
from tests.unit.pipeline.export.tables.fakes import FakeTable, fake_rows

A = TopicPartition("orders", 0)


def request(*words: str) -> TableRequest:
    options = options_of(TableOptions, *words)
    return table_request(("orders",), options, TableTerms(timeout=7.0, allow_empty=False), 9.0)


def test_run_begins_at_the_tables_offsets_by_default() -> None:
    plain = request()
    assert plain.read.starting is Edge.EARLIEST
    assert plain.terms == TableTerms(timeout=7.0, allow_empty=False)
    assert plain.read.isolation is IsolationLevel.READ_COMMITTED
    assert plain.follow is None
    told = request('--starting-offsets={"orders":{"0":5}}', "--timeout=3s", "--follow", "--chunk=8")
    assert told.read.starting == AtOffsets({A: 5})
    assert told.read.starting_option == "--starting-offsets"
    assert told.terms.anew
    assert (told.terms.timeout, told.terms.most_offsets, told.follow) == (3.0, 8, 9.0)
    assert not told.terms.commits_start
    for latest in ("latest", '{"orders":{"0":5,"1":-1}}'):
        assert request(f"--starting-offsets={latest}").terms.commits_start
    assert request("--follow", "--interval=2s").follow == 2.0
    assert request("--chunk-bytes=1MiB").terms.most_bytes == 1 << 20


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kafka-option=client.id=x"], "are for --tail kafka"),
        (
            ["--tail=kafka", "--kafka-option=kafka.isolation.level=read_committed"],
            "--kafka-option isolation.level: omit it",
        ),
        (["--starting-offsets=soon"], "--starting-offsets: .* must be JSON"),
        (['--ending-offsets={"orders":{"0":-3}}'], "--ending-offsets: an offset is below -2"),
        (["--value-format=json"], "need a schema"),
    ],
)
def test_error_names_the_wrong_argument(words: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        request(*words)


@pytest.mark.parametrize(
    ("base_path", "url"),
    [
        ("s3a://lake/tables/orders", "s3://lake/tables"),
        ("s3://lake/orders", "s3://lake"),
        ("file:///data/lake/orders", "file:///data/lake"),
        ("/data/lake/orders", "file:///data/lake"),
        ("hdfs://name:8020/lake/orders", "hdfs://name:8020/lake"),
    ],
)
def test_lease_is_stored_beside_its_table(base_path: str, url: str) -> None:
    assert lock_url(base_path) == url


@pytest.mark.parametrize("base_path", ["lake/orders", "file:///orders", "/orders"])
def test_table_without_a_parent_directory_for_the_lease_is_refused(base_path: str) -> None:
    with pytest.raises(ConfigurationError, match="must be absolute, and below a directory"):
        lock_url(base_path)


def test_properties_of_the_sink_are_accepted(tmp_path: Path) -> None:
    file = tmp_path / "orders.properties"
    file.write_text("target.table.name=orders\nhoodie.datasource.write.operation : upsert\n")
    assert read_options(file) == {
        "target.table.name": "orders",
        "hoodie.datasource.write.operation": "upsert",
    }
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_options(tmp_path)
    assert read_options(None) == {}


def test_configured_jar_replaces_the_default_one() -> None:
    given = {"spark.jars": "/jars/hudi.jar", "spark.serializer": "mine"}
    assert with_jars(given, {"spark.serializer": "kryo"}, TableJar.HUDI) == given
    version = pyspark.__version__
    jars = [jar_of(one, version) for one in (TableJar.ICEBERG, TableJar.KAFKA)]
    assert with_jars({}, {}, TableJar.ICEBERG, TableJar.KAFKA) == {
        "spark.jars.packages": ",".join(jars)
    }


def test_result_counts_records_and_commits() -> None:
    report = TableReport("lake.db.orders")
    result = TableResult(report)
    assert result.as_tables()[0].footer == "nothing is new"
    for first, until in ((3, 5), (5, 9)):
        span = OffsetRange(Offset(first), Offset(until))
        report.add_chunk(Chunk({A: span}, {}))
    report.add_run(Committed((), {}, 6, 2))
    report.missing, report.dead_letters = 4, 5
    assert result.as_json() == {
        "table": "lake.db.orders",
        "commits": 2,
        "offsets_without_records": 2,
        "missing_offsets": 4,
        "dead_letters": 5,
        "held_back": [],
        "partitions": [{"topic": "orders", "partition": 0, "first_offset": 3, "next_offset": 9}],
    }
    [table] = result.as_tables()
    assert table.rows == [("orders-0", 3, 9, 6)]
    assert table.footer == "2 commits to lake.db.orders; 4 offsets are missing; 5 dead letters"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hudi", "orders", "--option", "x"], "'x' is not NAME=VALUE"),
        (["hudi", "orders", "--option", "a=1", "--option", "a=2"], "a is given twice"),
        (["hudi", "orders", "--option", "target.table.name=t"], "target.base.path is missing"),
        (["hudi", "orders", "--follow", "--once"], "--follow has no end"),
        (["iceberg", "orders"], "Missing option '--table'"),
        (["iceberg", "orders", "--table", "l.d.t", "--option", "branch=b"], "branch is set by"),
    ],
)
def test_usage_error_exits_with_2_before_spark_starts(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").mkdir()
    config = tmp_path / "sidetier.yaml"
    storage = f"storage: {{url: 'file://{tmp_path}/store'}}"
    config.write_text(f"cluster: {{name: prod-a}}\nlog_dirs: [{tmp_path}/logs]\n{storage}\n")
    assert run(["export", *arguments, "--config", str(config)]) == 2
    assert said in capsys.readouterr().err


class SeenLogs(TopicLogs):
    """Logs in which the offsets [90, 95) are archived, in a transaction whose end is not; the
    broker's log begins at 95.
    """

    def read(
        self, isolation: IsolationLevel, behind: list[BehindError] | None = None
    ) -> Mapping[TopicPartition, Log]:
        del isolation, behind
        self.logs = {A: Log(Offset(0), Offset(90), Offset(100), Offset(95), Offset(180))}
        return self.logs


def planned(ranges: dict[TopicPartition, OffsetRange], _request: object) -> Plan:
    return Plan(ranges, (), ())


@pytest.mark.parametrize(("loss", "code"), [("error", 1), ("skip", 3)])
def test_exit_code_3_reports_offsets_that_wait_for_the_archive(loss: str, code: int) -> None:
    asked = request("--tail=kafka", f"--on-data-loss={loss}")
    planner: Any = SimpleNamespace(
        plan_ranges=planned,
        topic_id=lambda _topic: None,
        epoch_histories=lambda _tps: {},
        newest_epoch_histories=lambda _tps: {},
        undecided=lambda _topic: {},
    )
    rows: Any = fake_rows([(A, 5)])
    nothing: Any = None
    archived = ArchiveSource("prod-a", planner, asked.read)
    source = TailedSource(archived, SeenLogs(planner, BrokerConfig(), ("orders",)))
    read: Any = SimpleNamespace(missing_offsets=0)
    table = FakeTable()
    writer = TableWriter(table, lambda _plan: rows, read)
    export = TableExport(nothing, asked, planner, source, writer)

    def code_of(asked: TableRequest) -> int:
        return finish(export, asked, TableResult, OutputFormat.JSON, None)

    assert code_of(replace(asked, dry_run=True)) == 3
    assert table.commits == []
    assert code_of(asked) == code
    assert [one.offsets for one in table.commits] == [{A: 90}]
