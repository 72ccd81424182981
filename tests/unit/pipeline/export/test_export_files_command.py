"""`sidetier export files` in this process, over an archive and an output in directories."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidetier.cli.export import session, submit
from sidetier.cli.main import main
from sidetier.cli.output import say
from sidetier.config.storage import StorageConfig
from sidetier.pipeline.export import files_export
from sidetier.pipeline.export.exporting import wait_for, wait_for_archive
from sidetier.pipeline.export.output import require_fencing
from sidetier.pipeline.export.sinks.files.manifest import Run, Span, encode_manifest, manifest_key
from sidetier.pipeline.export.sinks.files.options import FilesOptions
from sidetier.pipeline.export.tail.logs import BrokerLog, BrokerTopic
from sidetier.pipeline.export.tail.topics import TopicLogs
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.factory import open_plain
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import StorageCapabilities
from sidetier.storage.settings import StorageEndpoint
from tests.harness.command_line import CommandLine
from tests.harness.diverged_archive import (
    Between,
    before_the_election,
    elect_uncleanly,
    go_on,
    nothing,
    set_aside,
)
from tests.harness.exported_files import data_files, manifest_in, offsets_in, rows_of
from tests.harness.made_archive import MadeArchive, batches
from tests.harness.markdown import blocks, text_of
from tests.harness.record_batches import MadeBatch, MadeRecord, TransactionalLog

LAYOUT = ArchiveLayout("prod-a", 3)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(tmp_path, capsys)


@pytest.fixture
def orders(cli: CommandLine) -> Iterator[MadeArchive]:
    """Archives of orders-0 with the offsets 0 to 39 and orders-3 with 100 to 119; timestamps equal
    offsets.
    """
    store = open_plain(StorageEndpoint(f"file://{cli.store}"))
    archive = MadeArchive(store, LAYOUT)
    archive.segments(0, 10, 20, 30, 40)
    MadeArchive(store, LAYOUT, TopicPartition("orders", 3)).segments(100, 110, 120)
    yield archive
    store.close()


def lake(cli: CommandLine) -> str:
    return f"file://{cli.root}/lake"


def objects(cli: CommandLine) -> dict[str, bytes]:
    root = cli.root / "lake"
    files = [path for path in root.rglob("*") if path.is_file() and ".sidetier" not in path.parts]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def export(cli: CommandLine, *options: str, code: int = 0) -> list[str]:
    assert cli.run("export", "files", "orders", "--into", lake(cli), *options) == code, cli.err
    return cli.lines()


@pytest.mark.usefixtures("orders")
def test_dry_run_and_result_are_printed_as_tables(cli: CommandLine) -> None:
    first, second, whole, last = export(cli, "--dry-run")
    assert first.startswith("topic orders, partition 0, offsets [0, 40): ")
    assert second.startswith("topic orders, partition 3, offsets [100, 120): ")
    assert whole.startswith("in all: ")
    assert last == f"into {lake(cli)}/topics; nothing was written"
    assert data_files(objects(cli)) == {}
    shown = export(cli, "--flush-size", "15")
    assert shown[0].split() == [
        "PARTITION",
        "FROM",
        "NEXT",
        "RECORDS",
        "FILES",
        "SIZE",
        "MISSING",
        "DEAD",
        "LETTERS",
    ]
    assert shown[1].split()[:5] == ["orders-0", "0", "40", "40", "3"]
    assert shown[2].split()[:5] == ["orders-3", "100", "120", "20", "2"]
    assert shown[-1] == f"60 records exported to {lake(cli)}/topics"
    assert export(cli) == ["nothing is new"]
    assert export(cli, "--dry-run") == ["nothing is new"]
    assert set(offsets_in(objects(cli)).values()) == {1}


def test_json_output_has_the_same_content(cli: CommandLine, orders: MadeArchive) -> None:
    line = ("export", "files", "orders", "--into", lake(cli))
    [plan] = cli.json(*line, "--dry-run")["plans"]
    assert [row["until_offset"] for row in plan["partitions"]] == [40, 120]
    assert plan["bytes"] > 0
    done = cli.json(*line)
    assert done["runs"] == 1
    first, _ = done["partitions"]
    assert (first["records"], first["files"], first["missing_offsets"]) == (40, 1, 0)
    orders.segment(40, batches(40, 45))
    orders.mark(40, 45)
    [row] = cli.json(*line)["partitions"]
    assert (row["first_offset"], row["next_offset"], row["records"]) == (40, 45, 5)


@pytest.mark.usefixtures("orders")
def test_invalid_options_are_refused_before_any_write(cli: CommandLine) -> None:
    for options, reason in (
        (["--partitioner", "field"], "needs partition fields"),
        (["--partitioner", "daily", "--timezone", "Mars"], "timezone 'Mars'"),
        (["--partitioner", "time", "--path-format", "QQ"], "'Q' is an unknown letter"),
        (["--compression", "brotli"], "parquet files know the compressions snappy"),
        (["--value-format", "json"], "need a schema"),
        (["--value-schema", "/nowhere/s.json"], "/nowhere/s.json: cannot be read"),
        (["--writer-schemas", str(cli.root)], "named after a schema's id"),
        (["--flush-size", "0"], "flush-size"),
        (["--from", "-5"], "the end of the log moves"),
        (["--from", "2h"], "now moves, so this is no fixed range"),
        (["--from", "soon"], "neither"),
        (["--from", "5", "--chunk", "3"], "--chunk: a given range is one commit"),
        (["--to", "5", "--chunk-bytes", "1MiB"], "--chunk-bytes: a given range is one commit"),
        (["--chunk-bytes", "0"], "must be above 0"),
        (["--whole-files", "--chunk", "5"], "a chunk may hold less than a file"),
        (["--whole-files", "--to", "5"], "--whole-files: a given range is exported once"),
        (["--chunk-bytes", "a lot"], "--chunk-bytes"),
        (["--follow", "--to", "5"], "--follow has no end"),
        (["--tail", "kafka"], "--tail asks the cluster how far it goes: give --bootstrap"),
        (["--tail", "kafka", "--from", "3"], "a given range covers only archived records"),
        (["--tail", "kafka", "--kafka-option", "sasl.password=x"], "not the secret itself"),
        (["--tail", "wait"], "give --bootstrap"),
        (["--topics-dir", "../x"], "--topics-dir"),
        (["--rotate-interval", "5 parsecs"], "must be a duration"),
        (["--delimiter", r"\q"], "after a backslash"),
    ):
        export(cli, *options, code=2)
        assert reason in cli.err, options
        assert objects(cli) == {}
    assert cli.run("export", "files", "orders") == 2
    assert "--into URL" in cli.err
    assert cli.run("export", "files", "orders", "--into", "http://x") == 2
    assert "must begin with one of" in cli.err
    assert cli.run("export", "files", "nothing", "--into", lake(cli)) == 2
    assert "nothing" in cli.err
    assert cli.run("export", "fields") == 2
    assert "No such command" in cli.err


@pytest.mark.usefixtures("orders")
def test_another_range_or_format_needs_another_directory(cli: CommandLine) -> None:
    export(cli, "--to", "30")
    export(cli, code=2)
    assert "is an export of earliest to 30, not of all records" in cli.err
    export(cli, "--topics-dir", "other")
    export(cli, "--topics-dir", "other", "--format", "json", code=2)
    assert "with format parquet, now it is json" in cli.err


@pytest.mark.usefixtures("orders")
def test_output_has_store_options_of_its_own(cli: CommandLine) -> None:
    file = cli.root / "lake.yaml"
    file.write_text(yaml.safe_dump({"url": lake(cli), "retry": {"attempts": 1}}))
    line = ("export", "files", "orders", "--into-config", str(file))
    assert cli.run(*line) == 0, cli.err
    assert len(offsets_in(objects(cli))) == 60
    file.write_text(yaml.safe_dump({"url": lake(cli), "rety": 1}))
    assert cli.run(*line) == 2
    assert f"{file}: rety" in cli.err


def test_output_store_without_conditional_writes_is_refused() -> None:
    unfenced = FakeStorage(capabilities=StorageCapabilities(False, None))  # noqa: FBT003
    config = StorageConfig(url="memory://lake")
    with pytest.raises(ConfigurationError, match=r"memory://lake: .* no conditional writes"):
        require_fencing(unfenced, config)
    require_fencing(unfenced, config.model_copy(update={"fencing": "unfenced_acknowledged"}))
    require_fencing(FakeStorage(), config)


def test_record_that_does_not_fit_is_an_error_or_a_dead_letter(
    cli: CommandLine, orders: MadeArchive
) -> None:
    schema = cli.root / "order.schema.json"
    schema.write_text('{"type": "object", "properties": {"id": {"type": "integer"}}}')
    orders.segment(40, [MadeBatch((MadeRecord(40, 40, value=b'{"id": 7}'),))])
    orders.mark(40, 41)
    options = ("--value-format", "json", "--value-schema", str(schema), "--format", "json")
    export(cli, *options, code=1)
    assert "orders-0 offset 0: value is not JSON" in cli.err or "orders-3 offset 100" in cli.err
    export(cli, *options, "--dead-letters", "dead", code=3)
    [(key, data)] = data_files(objects(cli)).items()
    assert key == "topics/orders/partition=0/orders+0+0000000040.json"
    assert rows_of(key, data)[0]["value"] == {"id": 7}
    letters = data_files(objects(cli), "dead/")
    assert sum(len(rows_of(*one)) for one in letters.items()) == 60
    assert cli.lines()[1].split()[-1] == "40"


def test_missing_offsets_are_an_error_or_skipped(cli: CommandLine, orders: MadeArchive) -> None:
    orders.lose(20)
    export(cli, code=1)
    assert "offsets [20, 30)" in cli.err
    export(cli, "--on-data-loss", "skip", code=3)
    assert len(offsets_in(objects(cli))) == 50
    [missing] = manifest_in(objects(cli)).missing
    assert (missing.first, missing.until) == (20, 30)


def test_state_of_a_later_version_stays_unchanged(cli: CommandLine, orders: MadeArchive) -> None:
    export(cli)
    key = "topics/orders/_sidetier/manifest.json"
    state = json.loads(objects(cli)[key])
    state["version"] = 2
    (cli.root / "lake" / key).write_text(json.dumps(state))
    orders.segment(40, batches(40, 45))
    orders.mark(40, 45)
    before = objects(cli)
    export(cli, code=1)
    assert "version 2 of a manifest, 1 is known here" in cli.err
    assert objects(cli) == before


def test_recreated_topic_is_not_taken_for_the_deleted_one(
    cli: CommandLine, orders: MadeArchive
) -> None:
    """The old archive was retired, and the new topic's archive has already reached the same
    offset.
    """
    other = replace(orders, tp=TopicPartition("orders", 3))
    export(cli)  # a state without the topic's id, as the archive has none
    orders.segment(40, batches(40, 45))
    orders.mark(40, 45, topic_id="id-1")
    export(cli)
    assert manifest_in(objects(cli)).topic_id == "id-1"

    orders.segment(45, batches(45, 50))
    orders.mark(45, 50, topic_id="id-2")
    before = objects(cli)
    export(cli, code=1)
    assert "the topic id id-1, but the next records have id-2" in cli.err
    other.mark(110, 120, topic_id="id-1")
    export(cli, code=1)
    assert "archived of topics with the ids id-1, id-2" in cli.err
    assert objects(cli) == before


def test_follow_exports_new_records_until_it_is_stopped(
    cli: CommandLine, orders: MadeArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wait between two runs stores more records; the third wait ends the command."""
    waits: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0)
            base = 30 + 10 * len(waits)
            orders.segment(base, batches(base, base + 10))
            orders.mark(base, base + 10)
            return len(waits) == 3

    monkeypatch.setattr(session, "stopping", lambda **_: nullcontext(Stop()))
    row = export(cli, "--follow", "--interval", "5s")[1].split()
    assert row[:4] == ["orders-0", "0", "60", "60"]
    assert waits == [5.0] * 3
    assert set(offsets_in(objects(cli)).values()) == {1}


def test_wait_ends_once_the_brokers_records_are_archived() -> None:
    stored = iter([{0: 5}, {0: 9, 1: 3}, {0: 10, 1: 4}])
    assert wait_for({0: 10, 1: 4}, lambda: next(stored), lambda: True) == {}
    assert wait_for({0: 10, 1: 4}, lambda: {0: 10}, lambda: False) == {1: (0, 4)}


def test_offsets_on_the_broker_only_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert wait_for_archive("orders", {1: 4}, lambda: {1: 2}, lambda: False, say)
    said = "sidetier: orders-1: offsets [2, 4) are still only on the broker\n"
    assert capsys.readouterr().err == said
    assert not wait_for_archive("orders", {}, lambda: {1: 2}, lambda: False, say)
    assert "the brokers have no topic of this name" in capsys.readouterr().err


@pytest.mark.usefixtures("orders")
def test_program_of_the_python_page_exports_what_the_command_would(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(cli, "--dry-run")
    monkeypatch.chdir(cli.root)
    [text] = [
        block.text
        for block in blocks(text_of(Path("docs/python-api.md")), "python")
        if "open_files_export" in block.text
    ]
    variables: dict[str, Any] = {}
    exec(text, variables)  # noqa: S102 -- our own page
    assert sum(row.records for row in variables["report"].rows.values()) > 0
    assert export(cli) == ["nothing is new"]


def test_spark_submit_script_runs_the_command_line() -> None:
    assert vars(submit)["main"] is main


def test_exit_code_3_reports_offsets_that_wait_for_the_archive(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, orders: MadeArchive
) -> None:
    """Offsets [45, 50) are archived, in a transaction whose end is not, and the broker has deleted
    them.
    """
    log = TransactionalLog(next_offset=40)
    log.write(1, 5, transactional=False)
    log.write(2, 5)
    orders.segment(40, log.batches)
    orders.mark(40, 50)
    live = {0: BrokerLog(Offset(50), Offset(70), Offset(70))}
    asked = partial(TopicLogs, ask=lambda *_: BrokerTopic(None, live))
    monkeypatch.setattr(files_export, "TopicLogs", asked)
    tail = ("--tail", "kafka", "--bootstrap", "broker-1:9092")
    export(cli, *tail, "--dry-run", code=3)
    export(cli, *tail, code=1)
    assert "orders-0: offsets [45, 50) are archived, but the end of their transaction" in cli.err
    manifest = manifest_in(objects(cli))
    assert manifest.next_offsets == {0: 45, 3: 120}
    export(cli, *tail, "--on-data-loss", "skip", code=3)
    assert manifest_in(objects(cli)).next_offsets == manifest.next_offsets


SCHEMA = '{"type": "object", "properties": {"id": {"type": "integer"}}}'


def topic_of(cli: CommandLine, name: str, *values: bytes) -> MadeArchive:
    store = open_plain(StorageEndpoint(f"file://{cli.store}"))
    archive = MadeArchive(store, LAYOUT, TopicPartition(name, 0))
    if values:
        add_records(archive, 0, *values)
    return archive


def add_records(archive: MadeArchive, first: int, *values: bytes) -> None:
    rows = tuple(MadeRecord(first + at, at, value=one) for at, one in enumerate(values))
    archive.segment(first, [MadeBatch(rows)])
    archive.mark(first, first + len(values))


def export_all(cli: CommandLine, *line: str) -> int:
    schema = cli.root / "schema.json"
    schema.write_text(SCHEMA)
    into = ("--into", lake(cli), "--value-format", "json", "--value-schema", str(schema))
    return cli.run("export", "files", *line, *into, "--format", "json")


@pytest.mark.parametrize("workers", ["1", "4"])
def test_failed_topic_does_not_affect_other_topics(cli: CommandLine, workers: str) -> None:
    topic_of(cli, "a", b"poison")
    for topic in ("b", "c"):
        topic_of(cli, topic, b'{"id":1}')
    assert export_all(cli, "a", "b", "c", "nosuch", "--workers", workers, "--output", "json") == 1
    result = json.loads(cli.out)
    assert [row["topic"] for row in result["partitions"]] == ["b", "c"]
    assert sorted(result["failed"]) == ["a", "nosuch"]
    assert "a: failed, and is left out: a-0 offset 0: " in cli.err
    assert "nosuch: failed, and is left out: topic nosuch: nothing of it is stored" in cli.err
    assert sorted(data_files(objects(cli))) == [
        f"topics/{topic}/partition=0/{topic}+0+0000000000.json" for topic in ("b", "c")
    ]


def test_unknown_topics_are_a_usage_error(cli: CommandLine) -> None:
    topic_of(cli, "a", b'{"id":1}')
    assert export_all(cli, "nosuch", "neither") == 2
    assert export_all(cli, "nosuch", "a", "--dry-run") == 1
    assert "topic a, partition 0, offsets [0, 1)" in cli.out


def test_follow_continues_with_the_other_topics(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic with a permanent failure is not tried again."""
    topic_of(cli, "a", b"poison")
    good = topic_of(cli, "b", b'{"id":1}')
    stop = Between(lambda: add_records(good, 1, b'{"id":2}'), nothing)
    monkeypatch.setattr(session, "stopping", lambda **_: nullcontext(stop))
    assert export_all(cli, "a", "b", "--follow") == 1
    assert not stop.left
    assert cli.err.count("a: failed, and is left out") == 1
    assert manifest_in(objects(cli), "b").next_offsets == {0: 2}


def exported_topics(cli: CommandLine) -> list[str]:
    return sorted(key.split("/")[1] for key in data_files(objects(cli)))


def test_patterns_select_archived_topics(cli: CommandLine) -> None:
    for topic in ("eu.a", "eu.b", "us.a", "other"):
        topic_of(cli, topic, b'{"id":1}')
    assert export_all(cli, r"eu\..*", "other", r".*\.a", "--dry-run") == 0, cli.err
    assert "topic us.a, partition 0, offsets [0, 1)" in cli.out
    assert export_all(cli, r"eu\..*", "other") == 0, cli.err
    assert exported_topics(cli) == ["eu.a", "eu.b", "other"]


def test_pattern_that_matches_nothing_is_a_usage_error(cli: CommandLine) -> None:
    topic_of(cli, "orders", b'{"id":1}')
    for line in (["ordrs.*"], ["orders", "ordrs.*"], ["ordrs.*", "--dry-run"]):
        assert export_all(cli, *line) == 2
        assert "ordrs.*: matches the whole name of no archived topic of the cluster" in cli.err
        assert objects(cli) == {}
    assert export_all(cli, "orders[") == 2
    assert "'orders[' is not a regular expression" in cli.err
    registry = ("--schema-registry", "http://127.0.0.1:1", "--value-format", "json")
    assert cli.run("export", "files", "orders.*", "--into", lake(cli), *registry) == 2
    assert "each topic has a schema of its own" in cli.err


def test_topics_that_are_archived_later_join_a_pattern(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def later(topic: str) -> Callable[[], object]:
        return lambda: topic_of(cli, topic, b'{"id":1}')

    topic_of(cli, "other", b'{"id":1}')
    stop = Between(later("eu.a"), later("eu.b"), nothing)
    monkeypatch.setattr(session, "stopping", lambda **_: nullcontext(stop))
    assert export_all(cli, r"eu\..*", "--follow") == 0, cli.err
    assert cli.err.count(r"eu\..*: matches the whole name of no archived topic") == 1
    assert exported_topics(cli) == ["eu.a", "eu.b"]


def test_follow_ends_once_every_topic_has_failed(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("a", "b"):
        topic_of(cli, topic, b"poison")
    stop = Between(nothing, nothing)
    monkeypatch.setattr(session, "stopping", lambda **_: nullcontext(stop))
    assert export_all(cli, "a", "b", "--follow") == 1
    assert len(stop.left) == 1


ID = "AbCdEfGhIjKlMnOpQrStUv"


def test_quarantined_idle_partition_does_not_block_its_topic(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next offset stays; later records are exported once the archive has them."""
    store = open_plain(StorageEndpoint(f"file://{cli.store}"))
    diverged, other = (MadeArchive(store, LAYOUT, TopicPartition("orders", at)) for at in (0, 1))
    for archive in (diverged, other):
        before_the_election(archive, ID)
    export(cli)
    set_aside(diverged, ID)
    other.segment(40, batches(40, 60))
    other.mark(40, 60, topic_id=ID)
    assert "; 1 partition held back" in export(cli, "--dry-run", code=3)[-1]
    assert "1 partition held back" in export(cli, code=3)[-1]
    said = "partition 0 is exported up to offset 40, but the archive ends at 24, of the same topic"
    assert said in cli.err
    assert manifest_in(objects(cli)).next_offsets == {0: 40, 1: 60}
    [left_out] = json.loads("\n".join(export(cli, "--output", "json", code=3)))["held_back"]
    assert (left_out["partition"], left_out["cause"]) == (0, "archive_behind")
    assert left_out["next_offset"] == 40

    def grow() -> None:
        other.segment(60, batches(60, 70))
        other.mark(60, 70, topic_id=ID)

    stop = Between(nothing, grow, lambda: go_on(diverged, topic_id=ID), nothing)
    monkeypatch.setattr(session, "stopping", lambda **_: nullcontext(stop))
    export(cli, "--follow", "--on-truncation", "reread")
    assert cli.err.count(said) == 1, "once, and not in every round"
    assert manifest_in(objects(cli)).next_offsets == {0: 50, 1: 70}
    assert set(offsets_in(objects(cli)).values()) == {1}


def test_records_to_export_again_are_reported_as_such(cli: CommandLine) -> None:
    archive = topic_of(cli, "orders")
    before_the_election(archive, ID)
    export(cli)
    elect_uncleanly(archive, topic_id=ID)
    before = objects(cli)
    export(cli, "--dry-run", "--on-truncation", "reread")
    assert "to be exported again: topic orders, partition 0, offsets [24, 40)" in cli.err
    export(cli, "--on-truncation", "reread", "--from", "0", code=2)
    assert "a given range is exported once" in cli.err
    assert objects(cli) == before


HOUR = 3_600_000


def open_transaction(archive: MadeArchive, span_ms: int, began_ms: int) -> None:
    """Write a transaction of producer 7 that opens at offset 0, and 50 records of others after
    it.
    """
    rows = (MadeRecord(0, began_ms),)
    others = tuple(MadeRecord(at, began_ms + span_ms * at // 50) for at in range(1, 51))
    transaction = MadeBatch(rows, producer_id=7, is_transactional=True)
    archive.segment(0, [transaction, MadeBatch(others)])
    archive.mark(0, 51)


@pytest.mark.parametrize(
    ("span_ms", "age_ms", "code"),
    [
        (20 * 60_000, HOUR, 3),
        (60_000, HOUR, 0),
        (60_000, 8 * 24 * HOUR, 0),
    ],
    ids=["open for 20 minutes of the log", "has just begun where the log ends", "8 days ago"],
)
def test_open_transaction_is_reported_and_a_hung_one_exits_with_3(
    cli: CommandLine, span_ms: int, age_ms: int, code: int
) -> None:
    archive = topic_of(cli, "orders")
    open_transaction(archive, span_ms, time.time_ns() // 1_000_000 - age_ms)
    last = export(cli, code=code)[-1]
    assert last == "nothing is new; 1 partition held back"
    said = cli.err if code else cli.out
    assert "orders-0: offsets [0, 51) wait for a transaction: producer 7 opened it" in said
    assert ("kafka-transactions.sh" in cli.err) is bool(code)
    [waiting] = json.loads("\n".join(export(cli, "--output", "json", code=code)))["held_back"]
    assert (waiting["cause"], waiting["waiting_offsets"]) == ("open_transaction", 51)
    assert abs(waiting["open_seconds"] - age_ms / 1000) < 60
    metrics = cli.root / "export.prom"
    export(cli, "--transaction-timeout", "1h", "--metrics-file", str(metrics))
    told = metrics.read_text()
    assert 'sidetier_export_held_back_partitions{cause="open_transaction",topic="orders"} 1.0' in (
        told
    )
    [age] = re.findall(r'open_transaction_seconds\{partition="0",topic="orders"\} (\S+)', told)
    assert abs(float(age) - age_ms / 1000) < 60
    assert "sidetier_export_failed_topics 0.0" in told
    nowhere = ("--metrics-file", str(cli.root / "none" / "export.prom"))
    export(cli, *nowhere, code=2)
    assert "export.prom: cannot be written" in cli.err
    export(cli, "--isolation", "read_uncommitted", "--topics-dir", "all")


def test_range_that_ends_in_an_open_transaction_is_reported(cli: CommandLine) -> None:
    log = TransactionalLog()
    log.write(1, 5, transactional=False)
    log.write(2, 5)
    archive = topic_of(cli, "orders")
    archive.segment(0, log.batches)
    archive.mark(0, 10)
    export(cli, "--to", "5", "--topics-dir", "below")
    export(cli, "--to", "8", "--topics-dir", "across", code=3)
    assert "offsets [5, 10) wait for a transaction: producer 2" in cli.err


def test_abandon_plan_withdraws_the_plan_of_an_earlier_run(
    cli: CommandLine, orders: MadeArchive
) -> None:
    target = open_plain(StorageEndpoint(lake(cli)))
    export(cli)
    manifest = manifest_in(objects(cli))
    span = Span(first=40, until=45)
    run = Run(generation=9, nonce="n", spans={0: span}, options=FilesOptions(flush_size=2))
    data = encode_manifest(manifest.model_copy(update={"pending": run}))
    target.put_object(manifest_key("topics", "orders"), BytesBody(data))
    orders.segment(40, batches(40, 50))
    orders.mark(40, 50)
    export(cli, "--abandon-plan", "--dry-run", code=2)
    row = export(cli, "--abandon-plan")[1].split()
    assert "orders: the plan of an earlier run was withdrawn" in cli.err
    assert row[:5] == ["orders-0", "40", "50", "10", "1"]
    target.close()


def test_whole_files_are_equal_regardless_of_the_number_of_runs(cli: CommandLine) -> None:
    archive = topic_of(cli, "orders")
    for first, end in ((0, 100), (100, 300), (300, 450)):
        archive.segment(first, batches(first, end))
        archive.mark(first, end)
        row = export(cli, "--flush-size", "90", "--whole-files")[1].split()
    assert row[:5] == ["orders-0", "270", "450", "180", "2"]
    found = data_files(objects(cli))
    starts = [int(key.partition("+0+")[2].partition(".")[0]) for key in found]
    assert starts == [0, 90, 180, 270, 360]
    assert [len(rows_of(key, data)) for key, data in found.items()] == [90] * 5
