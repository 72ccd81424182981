import json
import os
from pathlib import Path
from typing import Any

import pytest

from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.verify import light
from sidetier.archive.verify import run as verification
from sidetier.archive.verify.deep import SegmentChecker
from sidetier.archive.verify.progress_file import ProgressFile
from sidetier.archive.verify.run import VerifyReport, VerifyRequest
from sidetier.cli import verify as command
from sidetier.cli.stores import open_archive as open_the_archive
from sidetier.cli.verify import VerifyResult, write_metrics
from sidetier.config.model import Config
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.store_calls import StoreCalls
from tests.harness.command_line import CommandLine
from tests.harness.log_dir import PartitionLog

LAYOUT = ArchiveLayout("prod-a", 3)
ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def orders(cli: CommandLine) -> PartitionLog:
    """Archives of orders-0 with four segments of ten records each, and orders-1 and pay-0."""
    log = cli.log_dir.create("orders", 0)
    log.closed_segments(4)
    for topic, number in (("orders", 1), ("pay", 0)):
        cli.log_dir.create(topic, number).closed_segments(1)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill") == 0
    return log


def damage(cli: CommandLine, base: int) -> str:
    """Change a bit of a `.log` as a failing disk does, without a new modification time."""
    key = LAYOUT.object_key(ORDERS, BaseOffset(base), FileKind.LOG)
    path = cli.store / key
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    times = path.stat()
    path.write_bytes(bytes(data))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return key


@pytest.mark.usefixtures("orders")
def test_archive_without_damage_ends_with_0(cli: CommandLine) -> None:
    found = cli.json("verify", "--deep", "--local")
    assert (found["partitions"], found["segments"], found["findings"]) == (3, 6, [])
    assert (found["read_segments"], found["compared_segments"]) == (6, 6)
    assert found["complete"]
    assert cli.run("verify") == 0
    assert cli.lines()[-1].startswith("3 partitions, 6 segments in ")
    assert cli.lines()[-1].endswith(": 0 errors, 0 warnings")


@pytest.mark.usefixtures("orders")
def test_damage_ends_with_3_and_names_object_offsets_and_remedy(cli: CommandLine) -> None:
    key = damage(cli, 10)
    assert cli.run("verify") == 0
    findings = cli.json("verify", "--deep", code=3)["findings"]
    assert {f["kind"] for f in findings} == {"damaged_log", "checksum_mismatch"}
    assert {(f["key"], f["start_offset"], f["end_offset"]) for f in findings} == {(key, 10, 20)}
    assert cli.run("verify", "--deep") == 3
    assert "[10, 20)" in cli.out
    assert "damaged_log: Restore the object from another copy" in cli.out
    assert cli.json("verify", "--deep", "--topic", "pay")["partitions"] == 1


@pytest.mark.usefixtures("orders")
def test_selection(cli: CommandLine) -> None:
    assert cli.json("verify", "--topic", "ord.*")["partitions"] == 2
    assert cli.json("verify", "--topic", "orders", "--partition", "1")["partitions"] == 1
    assert cli.run("verify", "--topic", "order") == 2
    assert "did you mean orders" in cli.err
    assert cli.run("verify", "--topic", "(") == 2
    assert cli.run("verify", "--partition", "7") == 2
    assert cli.run("verify", "--since", "12") == 2
    assert "is not a time" in cli.err
    assert cli.run("verify", "--resume", "x") == 2
    found = cli.json("verify", "--deep", "--since", "2099-01-01T00:00:00Z")
    assert (found["partitions"], found["read_segments"]) == (3, 0)


@pytest.mark.usefixtures("orders")
def test_resumed_run_reads_only_what_is_left_and_reports_everything(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(cli, 10)
    state = tmp_path / "verify.state"
    read: list[int] = []
    real = SegmentChecker.check

    def killed(self: SegmentChecker, tp: TopicPartition, segment: Any, *more: Any) -> Any:  # noqa: ANN401
        if tp == ORDERS:
            read.append(segment.base_offset)
            if len(read) == 4:
                raise KeyboardInterrupt
        return real(self, tp, segment, *more)

    monkeypatch.setattr(SegmentChecker, "check", killed)
    line = ("verify", "--deep", "--threads", "1", "--resume", str(state), "--topic", "orders")
    assert cli.run(*line, "--partition", "0") == 130
    assert read == [0, 10, 20, 30]
    with state.open("a") as file:
        file.write('{"key": "a line that a kill has cu')

    read.clear()

    def counted(self: SegmentChecker, tp: TopicPartition, segment: Any, *more: Any) -> Any:  # noqa: ANN401
        read.append(segment.base_offset)
        return real(self, tp, segment, *more)

    monkeypatch.setattr(SegmentChecker, "check", counted)
    found = cli.json(*line, "--partition", "0", code=3)
    assert read == [30]
    assert {f["kind"] for f in found["findings"]} == {"damaged_log", "checksum_mismatch"}
    assert found["read_segments"] == 4
    assert not state.exists()


@pytest.mark.usefixtures("orders")
def test_resumed_run_checks_repaired_leader_epochs_again(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run was killed, and the checkpoint was repaired before it was resumed."""
    state = tmp_path / "verify.state"
    epochs = cli.store / LAYOUT.epoch_checkpoint_key(ORDERS)
    right = epochs.read_bytes()
    epochs.write_bytes(b"0\n2\n0 0\n7 20\n")
    line = ("verify", "--deep", "--resume", str(state), "--topic", "orders")
    with monkeypatch.context() as patched:
        patched.setattr(ProgressFile, "remove", ProgressFile.close)
        kinds = [f["kind"] for f in cli.json(*line, code=3)["findings"]]
    assert kinds == ["wrong_epochs"] * 3  # of the checkpoint, and of the segments 20 and 30
    epochs.write_bytes(right)

    read: list[int] = []
    real = SegmentChecker.check

    def counted(self: SegmentChecker, tp: TopicPartition, segment: Any, *more: Any) -> Any:  # noqa: ANN401
        read.append(segment.base_offset)
        return real(self, tp, segment, *more)

    monkeypatch.setattr(SegmentChecker, "check", counted)
    assert cli.json(*line)["findings"] == []
    assert sorted(read) == [20, 30]


@pytest.mark.usefixtures("orders")
def test_state_of_another_run_is_refused(cli: CommandLine, tmp_path: Path) -> None:
    state = tmp_path / "verify.state"
    state.write_text('{"version": 1, "cluster": "other"}\n')
    assert cli.run("verify", "--deep", "--resume", str(state)) == 2
    assert "of a run with other options" in cli.err
    assert cli.run("verify", "--deep", "--resume", str(tmp_path / "no" / "x")) == 2


@pytest.mark.usefixtures("orders")
def test_unread_partition_ends_with_1(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    real = light.read_partition

    def read(stored: StoredPartition, before_more: Any) -> Any:  # noqa: ANN401
        if stored.tp.topic == "pay":
            raise PermissionError("no permission")
        return real(stored, before_more)

    monkeypatch.setattr(verification, "read_partition", read)
    found = cli.json("verify", code=1)
    assert [unread["error"] for unread in found["unread"]] == ["no permission"]
    assert found["partitions"] == 2
    assert cli.run("verify") == 1
    assert "could not be read: " in cli.out


@pytest.mark.usefixtures("orders")
def test_metrics_file(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "verify.prom"
    damage(cli, 10)
    assert cli.run("verify", "--deep", "--metrics-file", str(file)) == 3
    lines = file.read_text().splitlines()
    labels = 'cluster="prod-a",kind="{}",severity="error"'
    assert f"sidetier_verify_findings{{{labels.format('damaged_log')}}} 1.0" in lines
    assert f"sidetier_verify_findings{{{labels.format('empty_log')}}} 0.0" in lines
    assert 'sidetier_verify_segments{cluster="prod-a"} 6.0' in lines
    completed = 'sidetier_verify_last_completed_timestamp_seconds{cluster="prod-a"} 1'
    assert any(line.startswith(completed) for line in lines)
    assert cli.run("verify", "--metrics-file", str(tmp_path / "no" / "x")) == 2


def completed(file: Path, *, is_stopped: bool, cluster: str = "prod-a") -> float:
    """Write the metrics of a run, and return the time of the last complete run in them."""
    report = VerifyReport()
    report.is_stopped = is_stopped
    write_metrics(file, VerifyResult(cluster, report, (), 1.0, show_all=False))
    name = f'sidetier_verify_last_completed_timestamp_seconds{{cluster="{cluster}"}} '
    [line] = [line for line in file.read_text().splitlines() if line.startswith(name)]
    return float(line.removeprefix(name))


def test_interrupted_run_keeps_the_time_of_the_last_complete_run(tmp_path: Path) -> None:
    """A run that is interrupted each night must not end the alert."""
    file = tmp_path / "verify.prom"
    assert completed(file, is_stopped=True) == 0
    time_of_run = completed(file, is_stopped=False)
    assert time_of_run > 1e9
    for _ in range(2):
        assert completed(file, is_stopped=True) == time_of_run
    assert completed(file, is_stopped=True, cluster="prod-b") == 0


@pytest.mark.parametrize("content", [b"half of a l", b"\xff", b'a{cluster="p", ="y"} 1\n', b""])
def test_metrics_file_that_does_not_parse_has_no_complete_run(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "verify.prom"
    file.write_bytes(content)
    assert completed(file, is_stopped=True) == 0


@pytest.mark.usefixtures("orders")
def test_each_reader_of_the_light_check_has_a_connection(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, opened = open_the_archive, list[int]()

    def open_archive(config: Config, *, connections: int, calls: StoreCalls) -> object:
        opened.append(connections)
        return real(config, connections=connections, calls=calls)

    monkeypatch.setattr(command, "open_archive", open_archive)
    assert cli.run("verify", "--threads", "5") == 0
    assert opened == [VerifyRequest(threads=5).light_threads] == [40]


@pytest.mark.usefixtures("orders")
def test_rate_and_sample(cli: CommandLine) -> None:
    found = cli.json("verify", "--deep", "--rate", "100MiB", "--sample", "0.5", "--seed", "3")
    assert 0 < found["read_segments"] < 6
    assert found["read_segments"] == found["segments"]
    assert cli.run("verify", "--rate", "0") == 2


def test_repair(cli: CommandLine, orders: PartitionLog) -> None:
    cli.remove("/orders-0/00000000000000000010.index")
    cli.remove("/orders-0/_metadata")
    cli.remove("/orders-0/leader-epoch-checkpoint")
    before = cli.stored()

    planned = cli.json("repair", "--dry-run", code=3)
    assert planned["dry_run"]
    assert [row["key"].rpartition("/")[2] for row in planned["repairs"]] == [
        "00000000000000000010.index",
        "_metadata",
        "leader-epoch-checkpoint",
    ]
    assert cli.stored() == before

    assert cli.run("repair", "--topic", "orders") == 0
    assert "rebuilt: 4 entries added" in cli.out
    assert cli.json("verify", "--deep")["findings"] == []
    assert cli.run("repair") == 0
    assert cli.lines() == ["nothing to repair"]
    assert cli.json("ls", "orders", "0")["next_offset"] == orders.log_end

    damage(cli, 20)
    assert cli.run("repair", "--deep") == 3
    assert "not repairable: damaged_log " in cli.out


def test_gap_is_acknowledged_with_a_reason(cli: CommandLine, orders: PartitionLog) -> None:
    for kind in FileKind:
        path = cli.store / LAYOUT.object_key(ORDERS, BaseOffset(10), kind)
        path.unlink(missing_ok=True)
    gap = cli.store / LAYOUT.gap_key(ORDERS, Offset(10), Offset(20))
    gap.parent.mkdir(parents=True)
    gap.write_text("{}")
    assert orders.log_end == 40
    assert "recorded_gap" in {f["kind"] for f in cli.json("verify", code=3)["findings"]}

    assert cli.run("ack-gap", "orders", "0", "10", "21", "--reason", "x") == 2
    assert "has no recorded gap [10, 21); its recorded gaps, START and END: [10, 20)" in cli.err
    assert cli.run("ack-gap", "orders", "0", "10", "20", "--reason", " ") == 2
    line = ("ack-gap", "orders", "0", "10", "20", "--reason", "INC-42: übernommen", "--user", "ann")
    done = cli.json(*line)
    assert done["new"]
    stored = json.loads((cli.store / done["key"]).read_bytes())
    assert (stored["reason"], stored["user"]) == ("INC-42: übernommen", "ann")
    assert (stored["start_offset"], stored["end_offset"]) == (10, 20)
    assert stored["time_ms"] > 1_700_000_000_000

    assert not cli.json(*line[:-3], "another reason")["new"]
    assert json.loads((cli.store / done["key"]).read_bytes()) == stored
    kinds = {f["kind"] for f in cli.json("verify", code=3)["findings"]}
    assert "acknowledged_gap" in kinds
    assert "recorded_gap" not in kinds
