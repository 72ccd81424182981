"""File exports that include records which only a real broker has."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from devtools.sandbox.kafka import KraftCluster
from devtools.sandbox.s3server import S3Server
from sidetier.cli.main import run
from sidetier.config.model import BrokerConfig
from sidetier.pipeline.export.exporting import broker_ends
from sidetier.segments.errors import LeadershipUnavailableError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import StorageEndpoint
from tests.harness.broker_tail import TailedTopic
from tests.harness.command_line import CommandLine
from tests.harness.exported_files import as_consumed, data_files, manifest_in, rows_of
from tests.harness.lake import SECONDS, Lake, at_nth_put, kill_during
from tests.harness.made_archive import MadeArchive
from tests.harness.raw_produce import produce_raw
from tests.harness.record_batches import MadeBatch, MadeRecord
from tests.harness.s3 import new_bucket
from tests.harness.s3_proxy import S3Proxy
from tests.harness.spark import SparkDriver
from tests.harness.spark_cli import command_line
from tests.harness.topics import create_topic, delete_records, delete_topic

pytestmark = pytest.mark.integration


def test_export_waits_for_records_that_only_the_broker_has(
    kraft43: KraftCluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = kraft43.bootstrap_servers
    create_topic(servers, topic, partitions=2)
    plain = Producer({"bootstrap.servers": servers})
    for _ in range(5):
        plain.produce(topic, b"v", partition=1)
    assert plain.flush(120) == 0
    writer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    writer.init_transactions(20)
    writer.begin_transaction()
    writer.produce(topic, b"open", partition=1)
    assert writer.flush(120) == 0
    broker = BrokerConfig(bootstrap_servers=servers)
    assert broker_ends(broker, topic, "read_committed") == {0: 0, 1: 5}
    assert broker_ends(broker, topic, "read_uncommitted") == {0: 0, 1: 6}
    assert broker_ends(broker, f"{topic}-none", "read_committed") == {}

    cli = CommandLine(tmp_path, capsys)
    store = open_plain(StorageEndpoint(f"file://{cli.store}"))
    archive = MadeArchive(store, ArchiveLayout("prod-a", 3), TopicPartition(topic, 1))
    archive.segments(0, 3)
    wait = ("--tail", "wait", "--tail-timeout", "0s", "--bootstrap", servers)
    line = ("export", "files", topic, "--into", f"file://{tmp_path}/lake", *wait)
    assert cli.run(*line) == 3, cli.err
    assert f"{topic}-1: offsets [3, 5) are still only on the broker" in cli.err
    assert cli.lines()[-1].startswith("3 records exported")
    archive.segments(3, 5)
    assert cli.run(*line) == 0, cli.err
    store.close()

    tail = (*line[:5], "--tail", "kafka", "--bootstrap", servers)
    assert cli.run(*tail) == 0, cli.err
    told = cli.out + cli.err
    assert f"{topic}-1: offsets [5, 6) wait for a transaction: one was opened at offset 5" in told
    assert f"describe-producers --topic {topic} --partition 1" in told
    assert cli.run(*tail, "--transaction-timeout", "1ms") == 3
    assert f"abort --topic {topic} --partition 1 --start-offset 5" in cli.err
    writer.abort_transaction(20)


def test_unavailable_broker_is_an_error() -> None:
    with pytest.raises(LeadershipUnavailableError, match="returns no offsets of orders"):
        broker_ends(BrokerConfig(bootstrap_servers="127.0.0.1:1"), "orders", "read_committed")


FEW = ("--flush-size", "3", "--max-open-files", "2", "--partitioner", "hourly")
Export = Callable[..., str]


@pytest.fixture
def tailed(kraft43: KraftCluster, topic: str, tmp_path: Path) -> TailedTopic:
    return TailedTopic(tmp_path / "archive", cluster=kraft43, topic=topic).begin()


def check_whole(objects: dict[str, bytes], tailed: TailedTopic, below: str = "topics") -> None:
    """Assert that the manifest's files contain each record of a consumer once, and that no other
    file exists.
    """
    manifest = manifest_in(objects, tailed.topic)
    assert manifest.pending is None
    files = data_files(objects, f"{below}/{tailed.topic}/")
    assert {one.key for one in manifest.files} == files.keys()
    found = [as_consumed(row) | {"partition": row["partition"]} for row in rows_in(files)]
    names = {0: "CreateTime", 1: "LogAppendTime"}
    wanted = [
        {
            "offset": row["offset"],
            "timestamp": row["timestamp"],
            "timestamp_type": names[row["timestampType"]],
            "key": row["key"],
            "value": row["value"],
            "headers": row["headers"] or [],
            "partition": row["partition"],
        }
        for row in tailed.rows()
    ]
    assert found == wanted
    assert manifest.next_offsets == {one: end for one, end in tailed.ends().items() if end}


def rows_in(files: dict[str, bytes]) -> list[dict[str, Any]]:
    rows = [row for key, data in files.items() for row in rows_of(key, data)]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_killed_tail_export_is_completed_from_the_archive(
    tailed: TailedTopic, tmp_path: Path, s3_server: S3Server, spark40: SparkDriver
) -> None:
    """The archive ends within a transaction; nothing of partition 1 is archived. The killed driver
    reads the tail by itself, the next one on Spark.
    """
    tailed.mixed(0)
    tailed.write(3, 1)
    straddling = tailed.transaction(4, 0)
    tailed.archive_to(tailed.ends()[0] + 2)
    straddling.commit_transaction(20)
    tailed.mixed(0)
    undecided = tailed.transaction(2, 0)
    tailed.write(3, 0)
    with S3Proxy(s3_server.port) as proxy:
        lake = Lake(tmp_path, tailed, new_bucket(s3_server), proxy)
        with lake.driver(*FEW, *tailed.tail) as driver:
            proxy.misbehave(at_nth_put(5, ".parquet", kill_during(driver)))
            assert driver.wait(SECONDS) == -9, driver.log_tail()
        proxy.heal()

        def export(*more: str, code: int = 0) -> None:
            line = lake.line("--master", "local[2]", *FEW, *more)
            assert spark40.call(command_line, line=line) == code, spark40.log()

        def changes_nothing() -> None:
            before = manifest_in(lake.objects(), tailed.topic)
            export()
            assert manifest_in(lake.objects(), tailed.topic) == before

        export(code=1)
        assert (
            f"{tailed.topic}-0: a run was begun with --tail kafka or packs, up to" in spark40.log()
        )
        undecided.abort_transaction(20)
        tailed.mixed(1)
        tailed.archive_to(tailed.archived[0] + 6)
        export(*tailed.tail)
        check_whole(lake.objects(), tailed)

        changes_nothing()  # the archive is behind
        tailed.write(2, 1)
        tailed.archive_to(1 << 40)
        tailed.archive_to(1 << 40, 1)
        export()
        check_whole(lake.objects(), tailed)


def test_files_are_equal_from_archive_and_brokers(
    tailed: TailedTopic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()

    def export(*more: str, code: int = 0) -> str:
        config = ("--config", str(tailed.config), "--into", f"file://{lake}")
        assert run(["export", "files", tailed.topic, *config, *FEW, *more]) == code
        captured = capsys.readouterr()
        return captured.out + captured.err

    def objects() -> dict[str, bytes]:
        files = [path for path in lake.rglob("*") if path.is_file()]
        return {path.relative_to(lake).as_posix(): path.read_bytes() for path in files}

    tailed.mixed()
    tailed.archive_to(6)
    tailed.mixed()
    shown = export("--dry-run", *tailed.tail)
    end = tailed.ends()[0]
    undecided = 4
    on_broker = f"on the broker: topic {tailed.topic}, partition 0, offsets [{undecided}, {end})"
    assert on_broker in shown
    export(*tailed.tail)
    check_whole(objects(), tailed)
    assert manifest_in(objects(), tailed.topic).epochs == {0: ((0, end),)}, "as the broker told"
    tailed.pack_tails()
    export("--tail", "packs", "--topics-dir", "packed")
    tailed.archive_to(1 << 40)
    export("--topics-dir", "again")
    from_broker = data_files(objects())
    for other in ("packed", "again"):
        found = data_files(objects(), f"{other}/")
        renamed = {key.replace(f"{other}/", "topics/"): data for key, data in found.items()}
        assert renamed == from_broker

    _a_header_that_is_no_text(tailed, export, objects)
    _what_nobody_has(tailed, export)
    _another_topic_of_the_name(tailed, export)


def _a_header_that_is_no_text(
    tailed: TailedTopic, export: Export, objects: Callable[[], dict[str, bytes]]
) -> None:
    """A header key that is not text: Java's client, and so Spark, inserts replacement characters;
    Python's client cannot return it.
    """
    offset = tailed.ends()[0]
    headers = ((b"fine", b"1"), (b"k\xff", b"2"))
    batch = MadeBatch((MadeRecord(0, value=b"odd", headers=headers), MadeRecord(1)))
    produce_raw(tailed.servers, tailed.topic, 0, batch)
    said = export(*tailed.tail, code=1)
    assert f"{tailed.topic}-0 offset {offset}: a header's key is not UTF-8 text" in said
    tailed.archive_to(1 << 40)
    export(*tailed.tail)
    [row] = [one for one in rows_in(data_files(objects())) if one["offset"] == offset]
    pairs = [(one["key"], one["value"]) for one in row["headers"]]
    assert pairs == [("fine", b"1"), ("k\ufffd", b"2")]


def _what_nobody_has(tailed: TailedTopic, export: Export) -> None:
    end = tailed.ends()[0]
    tailed.write(8)
    delete_records(tailed.servers, tailed.topic, 0, end + 3)
    said = export(*tailed.tail, code=1)
    assert f"partition 0, offsets [{end}, {end + 3}) (the broker has deleted them" in said
    said = export(*tailed.tail, "--topics-dir", "skips", "--on-data-loss", "skip", code=3)
    [row] = [line.split() for line in said.splitlines() if line.startswith(f"{tailed.topic}-0")]
    assert row[1:3] == ["0", str(end + 8)]
    assert row[-2] == "3", "offsets that are missing"


def _another_topic_of_the_name(tailed: TailedTopic, export: Export) -> None:
    delete_topic(tailed.servers, tailed.topic)
    tailed.create_topic()
    tailed.write(60)
    said = export(*tailed.tail, code=1)
    assert "the topic was deleted and created again" in said
