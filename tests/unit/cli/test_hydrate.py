"""`sidetier hydrate` without brokers: the plan, and placing files beside a stopped broker."""

import os
from pathlib import Path

import pytest

from sidetier.archive.tail.pack import PackBuilder
from sidetier.mirror.hydrate.plan import PreparedTopic, read_plan, with_prepared, write_plan
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import BrokerId
from sidetier.segments.txn_index import parse_txn_index
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import StorageEndpoint
from tests.harness.command_line import CommandLine
from tests.harness.made_archive import MadeArchive
from tests.harness.record_batches import MadeBatch, MadeRecord
from tests.harness.tailed_log import mixed_log

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    made = CommandLine(tmp_path, capsys)
    store = open_plain(StorageEndpoint(f"file://{made.store}"))
    archive = MadeArchive(store, ArchiveLayout("prod-a", 3))
    archive.segments(0, 20, 40)
    archive.gap(10, 15)
    store.close()
    return made


def test_plan_reports_restored_and_lost_records(command: CommandLine, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert command.run("hydrate", "plan", str(plan), "--dry-run") == 3  # a gap
    assert not plan.exists()
    (row,) = command.json(
        "hydrate", "plan", str(plan), "--until", "1970-01-01T00:00:00.027Z", code=3
    )["partitions"]
    assert (row["start"], row["end"], row["archive_end"]) == (0, 25, 40)
    assert (row["left_out"], row["records_in_gaps"], row["segments"]) == (15, 5, 2)
    assert command.run("hydrate", "plan", str(plan)) == 2
    assert "a plan is never replaced" in command.err


def test_plan_names_segments_above_the_archive_end(command: CommandLine, tmp_path: Path) -> None:
    """`offset.wm` is an earlier version of itself: 20 of 40 records."""
    store = open_plain(StorageEndpoint(f"file://{command.store}"))
    MadeArchive(store, ArchiveLayout("prod-a", 3)).mark(0, 20)
    store.close()
    plan = tmp_path / "plan.json"
    assert command.run("hydrate", "plan", str(plan)) == 3, command.err  # a gap
    assert "orders-0: 1 stored segments above the archive end 20 are not restored" in command.out
    (row,) = command.json("hydrate", "plan", str(tmp_path / "p"), "--dry-run", code=3)["partitions"]
    assert (row["end"], row["above_end"]) == (20, [20])
    assert read_plan(plan).partitions[0].above_end == (20,)


def test_plan_shows_a_timestamp_that_no_calendar_has(command: CommandLine, tmp_path: Path) -> None:
    store = open_plain(StorageEndpoint(f"file://{command.store}"))
    made = MadeArchive(store, ArchiveLayout("prod-a", 3))
    made.segment(20, [MadeBatch((MadeRecord(20, 2**60, value=b"from the far future"),))], 40)
    store.close()
    assert command.run("hydrate", "plan", str(tmp_path / "plan.json")) == 3, command.err  # a gap
    assert f"{2**60} ms" in command.out


def test_missing_store_directory_is_not_created(command: CommandLine, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    command.configure({"storage": {"url": f"file://{elsewhere}"}})
    assert command.run("hydrate", "plan", str(tmp_path / "plan.json")) == 2
    assert f"file://{elsewhere}: there is no such directory" in command.err
    assert not elsewhere.exists()


def test_offsets_are_read_from_a_file(command: CommandLine, tmp_path: Path) -> None:
    offsets = tmp_path / "offsets"
    offsets.write_text("orders 0 22\n")
    line = ("hydrate", "plan", str(tmp_path / "plan.json"), "--dry-run")
    (row,) = command.json(*line, "--until-offsets", str(offsets), code=3)["partitions"]
    assert row["end"] == 20
    offsets.write_text("orders zero 22\n")
    assert command.run(*line, "--until-offsets", str(offsets)) == 2
    assert "line 1: expected topic, partition and offset" in command.err
    offsets.write_text("payments 0 22\n")
    assert command.run(*line, "--until-offsets", str(offsets)) == 2
    assert "an offset is given for payments-0" in command.err


def test_text_that_is_no_time_is_refused(command: CommandLine, tmp_path: Path) -> None:
    line = ("hydrate", "plan", str(tmp_path / "plan.json"), "--until", "yesterday")
    assert command.run(*line) == 2
    assert "'--until': 'yesterday' is not a time: use a date or time (2026-11-21" in command.err


def test_tail_is_promoted_planned_and_placed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = CommandLine(tmp_path, capsys)
    store = open_plain(StorageEndpoint(f"file://{command.store}"))
    log = mixed_log(store)
    end = log.next_offset
    log.archived(0, 5, 12)
    log.pack(1, 0, (5, 14))
    log.pack(2, 0, (14, end))
    before = command.stored()
    line = ("hydrate", "plan", str(tmp_path / "plan.json"))

    plan = command.json(*line, "--dry-run")
    assert [row["end"] for row in plan["partitions"]] == [12]
    [tail] = plan["tails"]["partitions"]
    assert (plan["tails"]["promoted"], tail["archived_up_to"], tail["safe_up_to"]) == (
        False,
        12,
        end,
    )
    assert command.run(*line, "--dry-run") == 0
    assert f"{end - 12} offsets of 1 partitions, which only tail packs have" in command.out
    assert command.run(*line, "--dry-run", "--no-tail") == 0
    assert "Tail packs were not looked for" in command.out
    assert command.stored() == before

    assert command.run(*line) == 2
    assert "old, so the cluster may be alive: --tail promotes" in command.err
    assert "--no-tail plans without them" in command.err
    assert (command.stored(), (tmp_path / "plan.json").exists()) == (before, False)
    assert command.run(*line, "--tail") == 0, command.err
    assert "which tail packs had, are now archived" in command.out
    plan_file = tmp_path / "plan.json"
    assert [part.end for part in read_plan(plan_file).partitions] == [end]
    write_plan(
        plan_file,
        with_prepared(read_plan(plan_file), "new", {"orders": PreparedTopic(TOPIC_ID, (1,))}),
    )
    live = tmp_path / "kafka-logs" / "orders-0"
    live.mkdir(parents=True)
    (live / f"{0:020d}.log").touch()
    (live / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}\n")
    (live.parent / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=new\n")
    place = ("hydrate", "place", str(plan_file), "--log-dir", str(live.parent))
    assert command.json(*place)["partitions"][0]["problem"] is None
    placed = b"".join(path.read_bytes() for path in sorted(live.glob("*.log")))
    assert placed == log.encoded
    aborted = [
        entry
        for path in sorted(live.glob("*.txnindex"))
        for entry in parse_txn_index(path.read_bytes())
    ]
    assert [(entry.producer_id, entry.last_offset) for entry in aborted] == [(1, 13), (3, 19)]
    assert aborted[0].first_offset == 3, "it began in the archive"
    store.close()


def test_tail_that_cannot_be_promoted_makes_no_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = CommandLine(tmp_path, capsys)
    store = open_plain(StorageEndpoint(f"file://{command.store}"))
    log = mixed_log(store)
    log.archived(0, 12)
    builder = PackBuilder()
    log.row(12, 18, builder)
    data = bytearray(b"".join(map(bytes, builder.body().pieces)))
    data[100] ^= 1
    log.archive.put(log.layout.tail_pack_key(BrokerId(1), 0), bytes(data))
    line = ("hydrate", "plan", str(tmp_path / "plan.json"))
    pack = command.store / log.layout.tail_pack_key(BrokerId(1), 0)
    stored_at = pack.stat().st_mtime
    os.utime(pack, (stored_at - 300,) * 2)
    assert command.run(*line) == 2
    os.utime(pack, (stored_at - 610,) * 2)
    assert command.run(*line) == 1
    assert "the tails of 1 partitions are not promoted" in command.err
    assert "--no-tail" in command.err
    assert not (tmp_path / "plan.json").exists()
    assert command.run(*line, "--no-tail") == 0
    store.close()


def test_segments_are_placed_beside_a_stopped_broker(command: CommandLine, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    command.run("hydrate", "plan", str(plan))
    log_dir = tmp_path / "kafka-logs"
    live = log_dir / "orders-0"
    live.mkdir(parents=True)
    (live / f"{0:020d}.log").touch()
    (live / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}\n")
    line = ("hydrate", "place", str(plan), "--log-dir", str(log_dir), "--max-rate", "10MiB")
    assert command.run(*line) == 2
    assert "no broker has used this log dir" in command.err
    (log_dir / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=new\n")
    assert command.run(*line) == 2
    assert "sidetier hydrate prepare" in command.err
    prepared = {"orders": PreparedTopic(TOPIC_ID, (1,))}
    write_plan(plan, with_prepared(read_plan(plan), "new", prepared))
    shown = command.json(*line, "--dry-run")
    assert [(one["partition"], one["already"]) for one in shown["partitions"]] == [
        ("orders-0", False)
    ]
    assert not (live / f"{40:020d}.log").exists()
    assert command.json(*line)["partitions"][0]["problem"] is None
    assert (live / f"{40:020d}.log").exists()
    assert command.json(*line)["partitions"][0]["already"]


def test_invalid_plan_file_is_refused(command: CommandLine, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    for content, said in (
        ("{}", "not a hydrate plan: version: Field required"),
        ("not json", "not a hydrate plan"),
        ('{"version": 1}', "not a hydrate plan: plan_id"),
    ):
        plan.write_text(content)
        assert command.run("hydrate", "place", str(plan), "--log-dir", str(tmp_path)) == 2
        assert said in command.err
