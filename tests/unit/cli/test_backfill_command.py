import errno
import os
import signal
import threading
from pathlib import Path

import pytest

from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import TopicPartition
from sidetier.uploader.backfill import plan, run
from sidetier.uploader.state import decisions, gap
from sidetier.uploader.watching import disk
from tests.harness.batches import make_batch
from tests.harness.command_line import CommandLine
from tests.harness.log_dir import LogDir, PartitionLog
from tests.harness.stored_log import read_records
from tests.harness.waiting import wait_until


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PATIENCE_SECONDS", 0.5)
    for module in (gap, decisions):  # a gap is looked at again at once, not after two seconds
        monkeypatch.setattr(module, "GAP_CONFIRM_SECONDS", 0.001)


@pytest.fixture
def orders(cli: CommandLine) -> PartitionLog:
    """A partition orders-0 with three closed, committed segments of ten records each."""
    log = cli.log_dir.create("orders", 0)
    log.closed_segments(3)
    cli.log_dir.checkpoint_high_watermarks()
    return log


def stored_values(cli: CommandLine, name: str) -> dict[int, bytes | None]:
    return {
        offset: record.value
        for key, data in sorted(cli.stored().items())
        if f"/{name}/" in key and key.endswith(".log")
        for offset, record in read_records(data, key)
    }


def test_closed_segments_are_stored_once(cli: CommandLine, orders: PartitionLog) -> None:
    cli.log_dir.create("pay", 7).append(5)  # no closed segment
    assert cli.run("backfill") == 0
    head, row, footer = cli.lines()
    assert head.split() == ["PARTITION", "STORED", "SIZE", "ARCHIVED", "UP", "TO", "LEFT"]
    assert row.split() == ["orders-0", "3", "1.8", "kB", "30", "0"]
    assert footer.endswith("; 1 partitions had nothing to store")
    assert stored_values(cli, "orders-0") == orders.values
    assert "100%: 3 of 3 segments" in cli.err
    before = cli.stored()
    assert cli.run("backfill") == 0
    assert cli.stored() == before
    assert cli.out.startswith("0 segments, 0 B stored")


def test_second_run_continues(cli: CommandLine, orders: PartitionLog) -> None:
    assert cli.run("backfill") == 0
    orders.closed_segments(2)
    cli.log_dir.checkpoint_high_watermarks()
    found = cli.json("backfill")
    assert (found["segments"], found["left"]) == (2, 0)
    assert stored_values(cli, "orders-0") == orders.values


def test_dry_run_writes_nothing(cli: CommandLine, orders: PartitionLog) -> None:
    assert orders.log_end == 30
    assert cli.run("backfill", "--dry-run") == 0
    head, row, footer = cli.lines()
    assert head.split()[:3] == ["PARTITION", "ON", "DISK"]
    assert row.split() == ["orders-0", "[0,", "30)", "-", "3", "1.8", "kB"]
    assert footer.startswith("dry run, nothing was written: 3 segments, 1.8 kB to store of 1")
    assert not cli.store.exists()
    cli.store.mkdir()
    assert cli.run("backfill", "--dry-run") == 0
    assert list(cli.store.iterdir()) == []


def test_dry_run_reports_segments_that_are_already_stored(
    cli: CommandLine, orders: PartitionLog
) -> None:
    assert cli.run("backfill") == 0
    orders.closed_segments(1)
    cli.log_dir.checkpoint_high_watermarks()
    cli.remove("offset.wm")  # as after a kill before the first commit
    before = cli.stored()
    [row] = cli.json("backfill", "--dry-run")["partitions"]
    assert (len(row["segments"]), row["present"], row["next_offset"]) == (4, 3, None)
    assert cli.run("backfill", "--dry-run") == 0
    assert cli.lines()[2] == "orders-0: 3 are stored already, and not committed"
    assert cli.stored() == before
    assert cli.json("backfill")["segments"] == 4
    assert stored_values(cli, "orders-0") == orders.values


def test_segments_not_known_to_be_committed_are_left(
    cli: CommandLine, orders: PartitionLog
) -> None:
    cli.log_dir.checkpoint_high_watermarks({orders.tp: 20})
    [row] = cli.json("backfill", "--dry-run", code=3)["partitions"]
    assert row["uncommitted"] == 1
    assert cli.run("backfill") == 3
    _, row, why, _, hint = cli.lines()
    assert row.split() == ["orders-0", "2", "1.2", "kB", "20", "1"]
    assert why == "orders-0: segment 20 waits for the high watermark"
    assert "--assume-committed" in hint
    assert set(stored_values(cli, "orders-0")) == set(range(20))


def test_copied_log_dirs_without_timestamps_are_stored_with_assume_committed(
    cli: CommandLine, orders: PartitionLog
) -> None:
    os.utime(cli.log_dir.path / "replication-offset-checkpoint", (0, 0))
    assert cli.json("backfill", "--dry-run", code=3)["partitions"][0]["uncommitted"] == 3
    assert cli.json("backfill", "--dry-run", "--assume-committed")["partitions"]
    found = cli.json("backfill", "--assume-committed")
    assert (found["segments"], found["left"]) == (3, 0)
    assert stored_values(cli, "orders-0") == orders.values


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "is missing"),
        ("0\n0\n", "has no leader epoch"),
        ("0\n1\nx y\n", "leader-epoch-checkpoint"),
    ],
)
def test_log_dirs_without_leader_epochs_name_the_missing_file(
    cli: CommandLine, orders: PartitionLog, content: str | None, reason: str
) -> None:
    checkpoint = orders.path / "leader-epoch-checkpoint"
    checkpoint.unlink()
    if content is not None:
        checkpoint.write_text(content)
    for more in ((), ("--dry-run",)):
        assert cli.run("backfill", "--offline", "--assume-committed", *more) == 3
        text = " ".join(" ".join(cli.lines()).split())
        assert reason in text
        assert "from another replica of the partition" in text
        assert "--assume-committed" not in text


def test_damaged_segment_blocks_later_ones_and_is_reported(
    cli: CommandLine, orders: PartitionLog
) -> None:
    orders.closed_segments(1)
    cli.log_dir.create("pay", 0).closed_segments(2)
    path = orders.file(10)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill") == 3
    _, bad, good, why, footer = cli.lines()
    assert bad.split() == ["orders-0", "1", "592", "B", "10", "3"]
    assert good.split()[:2] == ["pay-0", "2"]
    assert why.startswith("orders-0: ")
    assert "00000000000000000010.log" in why
    assert "CRC32C" in why
    assert footer.endswith("3 segments are left")
    assert "1 held by an error, tried again" in cli.err


def test_deleted_records_are_reported_as_a_gap(cli: CommandLine, orders: PartitionLog) -> None:
    assert cli.run("backfill") == 0
    orders.closed_segments(3)
    for base in (0, 10, 20, 30):
        orders.unlink(base)
    cli.log_dir.checkpoint_high_watermarks()
    [row] = cli.json("backfill", "--dry-run", code=3)["partitions"]
    assert row["gaps"] == [{"start_offset": 30, "end_offset": 40}]
    [row] = cli.json("backfill", code=3)["partitions"]
    assert (row["segments"], row["left"], row["gap_records"], row["next_offset"]) == (2, 0, 10, 60)


def test_on_gap_halt_halts_the_partition(cli: CommandLine, orders: PartitionLog) -> None:
    assert cli.run("backfill") == 0
    orders.closed_segments(3)
    for base in (0, 10, 20, 30):
        orders.unlink(base)
    cli.log_dir.checkpoint_high_watermarks()
    cli.configure({"uploader": {"on_gap": "halt"}})
    assert cli.json("backfill", "--dry-run", code=3)["segments"] == 0
    [row] = cli.json("backfill", code=3)["partitions"]
    assert row["next_offset"] == 30
    assert "uploader.on_gap is halt" in row["why"]


def test_offset_reset_latest_does_not_skip_existing_segments(
    cli: CommandLine, orders: PartitionLog
) -> None:
    cli.configure({"uploader": {"offset_reset": "latest"}})
    assert cli.json("backfill")["segments"] == 3
    assert set(stored_values(cli, "orders-0")) == set(orders.values)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (["--topic", "pay"], {"pay-0", "pay-1"}),
        (["--partition", "pay-1"], {"pay-1"}),
        (["--topic", "orders", "--partition", "pay-0"], {"orders-0", "pay-0"}),
    ],
)
def test_topics_and_partitions_can_be_selected(
    line: list[str], names: set[str], cli: CommandLine, orders: PartitionLog
) -> None:
    assert orders.tp == TopicPartition("orders", 0)
    for number in (0, 1):
        cli.log_dir.create("pay", number).closed_segments(1)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill", *line) == 0
    assert {key.split("/")[-2] for key in cli.stored() if key.endswith(".log")} == names


def test_unknown_topics_and_partitions_are_refused(cli: CommandLine, orders: PartitionLog) -> None:
    assert orders.path.is_dir()
    cli.configure({"topics": {"exclude": ["ord.*"]}})
    assert cli.run("backfill", "--topic", "orders", "--partition", "nix-0") == 2
    assert "orders is left out by topics.include, topics.exclude" in cli.err
    assert f"nix-0 is not in the log dirs {cli.log_dir}" in cli.err
    assert not cli.store.exists()


def test_archive_of_another_topic_id_is_a_finding(cli: CommandLine, orders: PartitionLog) -> None:
    assert cli.run("backfill") == 0
    metadata = orders.path / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: BBBBBBBBBBBBBBBBBBBBBQ\n")
    orders.closed_segments(1)
    cli.log_dir.checkpoint_high_watermarks()
    [row] = cli.json("backfill", "--dry-run", code=3)["partitions"]
    assert "it was deleted and created again" in row["problem"]
    [row] = cli.json("backfill", code=3)["partitions"]
    assert "it was deleted and created again" in row["why"]


def test_other_entropy_bits_are_refused(cli: CommandLine, orders: PartitionLog) -> None:
    assert orders.log_end == 30
    assert cli.run("backfill") == 0
    cli.configure({"storage": {"prefix_entropy_bits": 4}})
    for line in (["--dry-run"], []):
        assert cli.run("backfill", *line) == 2
        assert "set it to 3" in cli.err


def test_unavailable_broker_is_an_error(
    cli: CommandLine, orders: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sidetier.leadership import cluster  # noqa: PLC0415 -- librdkafka, here alone

    monkeypatch.setattr(cluster.KafkaTopicConfigs.__init__, "__defaults__", (1.0,))
    cli.configure({"broker": {"bootstrap_servers": "127.0.0.1:1"}})
    assert cli.run("backfill") == 1
    assert "is the broker up? --offline goes by the log dirs alone" in cli.err
    assert not cli.store.exists()
    assert cli.run("backfill", "--offline") == 0
    assert stored_values(cli, "orders-0") == orders.values


def test_sigterm_ends_the_backfill_and_the_next_run_continues(
    cli: CommandLine, orders: PartitionLog
) -> None:
    cli.configure({"uploader": {"max_bytes_per_second": 1000, "threads": 1}})
    cli.configure({"storage": {"deadline": {"min_bytes_per_second": 100}}})
    orders.closed_segments(5)
    cli.log_dir.checkpoint_high_watermarks()

    def stop() -> None:
        wait_until(lambda: any(k.endswith(".wm") for k in cli.stored()), 3, "a watermark")
        os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop)
    stopper.start()
    code = cli.run("backfill")
    stopper.join()
    assert code == 130, cli.err
    assert cli.lines()[-1] == "interrupted: run the same command again to continue"
    assert len(stored_values(cli, "orders-0")) < 80
    cli.configure({"uploader": {"max_bytes_per_second": None}})
    assert cli.run("backfill") == 0
    assert stored_values(cli, "orders-0") == orders.values


def test_several_log_dirs_are_stored(
    cli: CommandLine, orders: PartitionLog, tmp_path: Path
) -> None:
    other = LogDir(tmp_path / "more")
    pay = other.create("pay", 0)
    pay.closed_segments(2)
    other.checkpoint_high_watermarks()
    cli.configure({"log_dirs": [str(cli.log_dir), str(other)]})
    assert cli.json("backfill")["segments"] == 5
    assert stored_values(cli, "pay-0") == pay.values
    assert stored_values(cli, "orders-0") == orders.values


def test_segments_marked_for_deletion_are_stored(cli: CommandLine, orders: PartitionLog) -> None:
    orders.stage(0)
    assert orders.file(0, FileKind.LOG, deleted=True).exists()
    assert cli.json("backfill", "--dry-run")["segments"] == 3
    assert cli.json("backfill")["segments"] == 3
    assert stored_values(cli, "orders-0") == orders.values


def test_partition_behind_a_symbolic_link_is_stored(
    cli: CommandLine, orders: PartitionLog, tmp_path: Path
) -> None:
    orders.path.rename(tmp_path / "big")
    orders.path.symlink_to(tmp_path / "big")
    assert cli.run("backfill") == 0
    assert stored_values(cli, "orders-0") == orders.values


def test_link_that_is_not_followed_is_a_finding(
    cli: CommandLine, orders: PartitionLog, tmp_path: Path
) -> None:
    pay = cli.log_dir.create("pay", 0)
    orders.path.rename(tmp_path / "big")
    orders.path.symlink_to(tmp_path / "nowhere")
    pay.closed_segments(1)
    cli.log_dir.checkpoint_high_watermarks()
    why = f"orders-0: {orders.path} is a symbolic link to {tmp_path / 'nowhere'}"
    assert cli.run("backfill", "--dry-run") == 3
    assert why in cli.out
    assert cli.run("backfill") == 3
    assert why in cli.out
    assert stored_values(cli, "pay-0") == pay.values
    assert cli.run("backfill", "--partition", "orders-0") == 3, "it is named, and not unknown"
    assert cli.run("backfill", "--partition", "pay-0") == 0


def test_unreadable_log_dir_is_a_finding(
    cli: CommandLine, orders: PartitionLog, tmp_path: Path
) -> None:
    """The readable log dirs are stored."""
    cli.configure({"log_dirs": [str(cli.log_dir), str(tmp_path / "failed")]})
    why = f"log dir {tmp_path / 'failed'} cannot be read, and nothing in it is archived"
    assert cli.run("backfill", "--dry-run") == 3
    assert why in cli.out
    assert cli.run("backfill") == 3
    assert why in cli.out
    assert stored_values(cli, "orders-0") == orders.values
    assert len(cli.json("backfill", code=3)["unreadable_log_dirs"]) == 1
    assert cli.run("backfill", "--topic", "pay") == 2
    assert why in cli.err


def test_directory_that_cannot_be_listed_is_a_finding_of_its_partition(
    cli: CommandLine, orders: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay = cli.log_dir.create("pay", 0)
    pay.closed_segments(1)
    cli.log_dir.checkpoint_high_watermarks()

    def list_names(directory: str) -> list[str]:
        if directory == str(pay.path):
            raise OSError(errno.EIO, "Input/output error", directory)
        return disk.list_names(directory)

    monkeypatch.setattr(plan, "list_names", list_names)
    assert cli.run("backfill") == 3
    assert f"pay-0: {pay.path} cannot be read: Input/output error" in cli.out
    assert stored_values(cli, "orders-0") == orders.values


def test_old_message_format_is_not_archivable_until_its_loss_is_accepted(
    cli: CommandLine, orders: PartitionLog
) -> None:
    orders.closed_segments(2)
    for base in (10, 20):
        orders.file(base).write_bytes(make_batch(base, 10, magic=1))
    cli.log_dir.checkpoint_high_watermarks()
    advice = "sidetier ack-gap orders 0 10 30 --unarchivable"

    plan = cli.json("backfill", "--dry-run", code=3)
    (row,) = plan["partitions"]
    assert [segment["base_offset"] for segment in row["segments"]] == [0]
    assert row["stored_segments"] == 0
    assert "offsets [10, 30) have message format v0 or v1" in row["problem"]
    assert advice in row["problem"]
    assert cli.run("backfill") == 3
    assert advice in cli.out
    assert set(stored_values(cli, "orders-0")) >= set(range(10))

    accept = ("ack-gap", "orders", "0", "10", "30", "--unarchivable", "--reason", "copied to v2")
    assert cli.run(*accept[:3], "9", *accept[4:]) == 2
    assert "orders-0 is archived up to 10: START must be 10 or higher" in cli.err
    assert cli.run(*accept[:4], "10", *accept[5:]) == 2
    assert cli.run(*accept) == 0
    assert "the sidecar looks at its segments within 5 minutes" in cli.out
    kinds = {finding["kind"] for finding in cli.json("verify")["findings"]}
    assert kinds <= {"not_committed"}, "no gap is recorded yet"
    (row,) = cli.json("backfill", "--dry-run", code=3)["partitions"]
    assert row["gaps"] == [{"start_offset": 10, "end_offset": 30}]
    assert row["problem"] is None
    assert cli.run("backfill") == 3, "the gap is reported"
    wait_until(lambda: cli.run("backfill") == 0, 30, "the rest, which a slow machine may leave")
    assert set(stored_values(cli, "orders-0")) == {*range(10), *range(30, 50)}
    findings = cli.json("verify")["findings"]
    acknowledged = [f for f in findings if f["kind"] == "acknowledged_gap"]
    # One gap or two: the sidecar may record the loss of each segment on its own.
    offsets = [o for f in acknowledged for o in range(f["start_offset"], f["end_offset"])]
    assert sorted(offsets) == list(range(10, 30)), findings
    assert "recorded_gap" not in {f["kind"] for f in findings}


@pytest.mark.parametrize("kind", ["layout", "start", "watermark"])
def test_object_of_a_later_version_stops_only_what_it_describes(
    cli: CommandLine, orders: PartitionLog, kind: str
) -> None:
    cli.log_dir.create("pay", 0).closed_segments(2)
    cli.log_dir.checkpoint_high_watermarks()
    layout = ArchiveLayout("prod-a", 3)
    later = '{"version": 2, "bits": 3, "start_offset": 0, "offset_reset": "earliest"}'
    key, text = {
        "layout": (layout.layout_key(), later),
        "start": (layout.start_key(orders.tp), later),
        "watermark": (layout.watermark_key(orders.tp), f"{0:020d}\n{later}\n"),
    }[kind]
    path = cli.store / key
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")

    assert cli.run("backfill") == (1 if kind == "layout" else 3)

    refusal = f"{key} has version 2, and this Sidetier reads version 1: upgrade Sidetier"
    assert refusal in (cli.err if kind == "layout" else cli.out)
    assert path.read_text(encoding="utf-8") == text
    assert not stored_values(cli, "orders-0")
    assert len(stored_values(cli, "pay-0")) == (0 if kind == "layout" else 20)
