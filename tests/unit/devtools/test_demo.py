import json
import signal
from pathlib import Path

import pytest

from devtools.demo import run as demo
from devtools.demo import serve, spark
from devtools.demo.__main__ import _work_directory, command
from devtools.demo.records import Ledger, OnBrokerAlone, digest, orders
from devtools.demo.verify import LogOffsets, PartitionProof, prove
from sidetier.brokers.errors import JavaMissingError
from sidetier.cli import main
from sidetier.cli.signals import ended_by_signals
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.local import LocalStorage
from tests.harness.command_line import CommandLine
from tests.harness.log_dir import PartitionLog

LAYOUT = ArchiveLayout("prod-a", 3)


@pytest.fixture
def log(cli: CommandLine) -> PartitionLog:
    """A partition orders-0 with three stored segments of ten records and five records in the active
    one.
    """
    log = cli.log_dir.create("orders", 0)
    log.closed_segments(3)
    log.append(5)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill") == 0
    return log


def proof(cli: CommandLine, log: PartitionLog, *, start: int = 0) -> PartitionProof:
    produced = {offset: digest(offset, None, value) for offset, value in log.values.items()}
    bounds = LogOffsets(start, log.log_end)
    return prove(LocalStorage(cli.store), LAYOUT, log.tp, produced, bounds)


def path(cli: CommandLine, ending: str) -> Path:
    [key] = [key for key in cli.stored() if key.endswith(ending)]
    return cli.store / key


def test_complete_archive_passes_the_proof(cli: CommandLine, log: PartitionLog) -> None:
    found = proof(cli, log, start=20)
    assert found.sound
    assert (found.produced, found.expected, found.found) == (35, 30, 30)
    assert (found.watermark, found.next_offset, found.lag) == (20, 30, 5)
    assert (found.segments, found.deleted_segments) == ((0, 10, 20), 2)
    assert found.size == sum(len(log.written[base]) for base in (0, 10, 20))
    assert found.checksum_produced == found.checksum_stored


def test_removed_segment_fails_the_proof(cli: CommandLine, log: PartitionLog) -> None:
    path(cli, "10.log").unlink()
    found = proof(cli, log)
    assert not found.sound
    assert found.problems == ("10 records missing, the first at offset 10",)
    assert (found.expected, found.found) == (30, 20)


@pytest.mark.parametrize("at", [5, 21, 70, -1])
def test_damaged_segment_fails_the_proof(at: int, cli: CommandLine, log: PartitionLog) -> None:
    file = path(cli, "10.log")
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    found = proof(cli, log)
    assert not found.sound
    assert "00000000000000000010.log: b" in found.problems[0]  # byte, or batch with base offset
    assert "records missing" in found.problems[1]


def test_truncated_segment_fails_the_proof(cli: CommandLine, log: PartitionLog) -> None:
    file = path(cli, "10.log")
    file.write_bytes(file.read_bytes()[: len(log.written[10]) // 2])  # valid: cut at a batch end
    assert proof(cli, log).problems == ("5 records missing, the first at offset 15",)


def test_different_records_fail_the_proof(cli: CommandLine, log: PartitionLog) -> None:
    log.values[12] = b"another"
    del log.values[29]
    found = proof(cli, log)
    assert not found.sound
    assert found.problems == (
        "1 records different, the first at offset 12",
        "1 records never produced, the first at offset 29",
    )


def test_records_deleted_on_the_broker_must_be_stored(cli: CommandLine, log: PartitionLog) -> None:
    found = proof(cli, log, start=33)
    assert found.problems == ("3 records missing, the first at offset 30",)


def test_missing_watermark_fails_the_proof(cli: CommandLine, log: PartitionLog) -> None:
    cli.remove("offset.wm")
    found = proof(cli, log, start=20)
    assert found.problems == ("no offset.wm", "20 records missing, the first at offset 0")


def test_seed_determines_the_records() -> None:
    some = list(orders(1, 50, 3))
    assert some == list(orders(1, 50, 3))
    assert some != list(orders(2, 50, 3))
    assert {len(order.value) for order in some} == {1000}
    assert [order.partition for order in some[:4]] == [0, 1, 2, 0]


def test_checksum_covers_offset_key_and_value() -> None:
    told = {
        digest(1, b"k", b"v"),
        digest(2, b"k", b"v"),
        digest(1, b"kv", b""),
        digest(1, b"", b""),
    }
    told |= {digest(1, None, b"kv"), digest(1, b"kv", None), digest(1, None, None)}
    assert len(told) == 7


def test_ledger_counts_acknowledged_records() -> None:
    ledger = Ledger()
    for offset in (0, 1):
        ledger.note(2, offset, b"key", b"value")
    assert (ledger.count, ledger.size) == (2, 16)


def test_the_work_directory_goes_away(tmp_path: Path) -> None:
    for place in (None, tmp_path / "new"):
        with _work_directory(place, keep=False) as work:
            (work / "store").mkdir()
        assert not work.exists()


def test_the_work_directory_goes_away_when_it_is_interrupted(tmp_path: Path) -> None:
    place = tmp_path / "empty"
    place.mkdir()

    def interrupted() -> None:
        with ended_by_signals(), _work_directory(place, keep=False) as work:
            (work / "store").mkdir()
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(place.iterdir()) == []


def test_the_work_directory_can_be_kept(tmp_path: Path) -> None:
    with _work_directory(tmp_path / "new", keep=True) as work:
        (work / "store").mkdir()
    assert (work / "store").is_dir()


def test_directory_that_is_not_empty_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "store"
    mine.mkdir()
    assert run("--directory", str(tmp_path)) == 2
    assert "is not an empty directory" in capsys.readouterr().err
    assert mine.is_dir()


def run(*arguments: str) -> int:
    return main.run(arguments, command)


def outcome(monkeypatch: pytest.MonkeyPatch, found: PartitionProof) -> None:
    """Let the demo be outcome at once, with this proof."""
    monkeypatch.setattr(demo, "run_demo", lambda *_: demo.DemoOutcome((found,), 1.5))


def test_successful_proof_is_printed(
    cli: CommandLine,
    log: PartitionLog,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcome(monkeypatch, proof(cli, log, start=20))
    assert run() == 0
    out = capsys.readouterr().out
    assert "orders-0" in out
    assert "Nothing is missing: 30 records stored as they were produced" in out


def test_failed_proof_is_printed_and_exits_with_3(
    cli: CommandLine,
    log: PartitionLog,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path(cli, "10.log").unlink()
    outcome(monkeypatch, proof(cli, log))
    assert run() == 3
    out = capsys.readouterr().out
    assert "NOT everything is as it was produced" in out
    assert "orders-0: 10 records missing, the first at offset 10" in out
    assert "Nothing is missing" not in out
    assert run("--output", "json") == 3
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is False
    assert told["partitions"][0]["problems"] == ["10 records missing, the first at offset 10"]


def test_count_by_spark_must_equal_the_records_read_back(
    cli: CommandLine,
    log: PartitionLog,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = proof(cli, log, start=20)
    for counted, code in ((30, 0), (29, 3)):
        monkeypatch.setattr(
            demo, "run_demo", lambda *_, n=counted: demo.DemoOutcome((found,), 1.5, n)
        )
        assert run("--picture", "unused.png") == code
    assert "Spark counts 29 records of 30" in capsys.readouterr().out


def test_console_consumer_must_read_every_record(
    cli: CommandLine,
    log: PartitionLog,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = proof(cli, log, start=20)
    for consumed, code in ((30, 0), (29, 3), (None, 0)):
        monkeypatch.setattr(
            demo, "run_demo", lambda *_, n=consumed: demo.DemoOutcome((found,), 1.5, 30, n)
        )
        assert run("--output", "json") == code
        assert json.loads(capsys.readouterr().out)["read_by_console_consumer"] == consumed
        assert run() == code
        text = "Kafka's console consumer reads 29 records of 30"
        assert (text in capsys.readouterr().out) is (consumed == 29)


def test_address_of_the_endpoint_is_that_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    assert serve._address(log) is None
    log.write_text('{"event": "other"}\nno JSON\n{"event": "endpoint.listening", "host": "127')
    assert serve._address(log) is None, "its line is not complete"
    log.write_text('{"event": "endpoint.listening", "host": "127.0.0.1", "port": 4711}\n')
    assert serve._address(log) == "127.0.0.1:4711"


def test_spark_is_skipped_if_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "find_java_for_spark", _no_java)
    assert spark.why_no_spark() == "no whole Java"
    monkeypatch.setattr(spark, "_NEEDED", ("pyspark", "no_such_package"))
    assert str(spark.why_no_spark()).startswith("no_such_package not installed: `make")


def _no_java() -> None:
    raise JavaMissingError("no whole Java")


def test_time_on_the_broker_alone_is_that_of_the_record_that_waited_longest() -> None:
    alone = OnBrokerAlone(10.0)
    alone.look({}, {}, 11.0)
    alone.look({0: 5, 1: 2}, {0: 5, 1: 0}, 12.0)  # acknowledged between 11 and 12
    assert alone.longest == 1.0
    alone.look({0: 9, 1: 2}, {0: 5, 1: 2}, 13.0)
    alone.look({0: 12, 1: 2}, {0: 8, 1: 2}, 14.0)
    assert alone.longest == 2.0
    alone.look({0: 12, 1: 2}, {0: 9, 1: 2}, 15.5)  # 9 to 11 since 13
    assert alone.longest == 2.5
    alone.look({0: 12, 1: 2}, {0: 12, 1: 2}, 30.0)
    assert alone.longest == 2.5
