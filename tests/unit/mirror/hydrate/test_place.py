"""Placed segments, checks that refuse, and kills at every durable step."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from sidetier.mirror.hydrate.log_dir import destinations, locked_log_dirs, read_offsets
from sidetier.mirror.hydrate.place import Journal, Placed, PlaceSettings, place
from sidetier.mirror.hydrate.plan import HydratePlan, PlannedTopic, PreparedTopic, with_prepared
from sidetier.mirror.hydrate.survey import Cut, make_plan
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.headers import BatchHeader, walk_headers
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.producer_snapshot import open_transactions
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from tests.harness.broker_archive import store_broker_segments
from tests.harness.made_archive import LAYOUT, MadeArchive, access_to, batches
from tests.harness.record_batches import TransactionalLog

TP = TopicPartition("orders", 0)
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


class Killed(BaseException):
    """Death of the process at a step."""


@dataclass
class Host:
    """A broker's log dir after `prepare` and a clean stop."""

    log_dir: Path

    def create(self, tp: TopicPartition = TP, topic_id: str = TOPIC_ID) -> Path:
        """Create the empty partition as the broker does."""
        directory = self.log_dir / str(tp)
        directory.mkdir()
        (directory / "00000000000000000000.log").write_bytes(b"")
        (directory / "00000000000000000000.index").write_bytes(b"")
        (directory / "leader-epoch-checkpoint").write_text("0\n0\n")
        (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")
        return directory

    def start_broker(self, tp: TopicPartition = TP) -> None:
        """Act as a starting broker: delete directories of deleted partitions, create missing
        partitions.
        """
        for path in self.log_dir.glob("*-delete"):
            shutil.rmtree(path)
        if not (self.log_dir / str(tp)).exists():
            self.create(tp)

    def contents(self) -> dict[str, bytes]:
        """Every file except the journal and the lock, by its path below the log dir."""
        return {
            str(path.relative_to(self.log_dir)): path.read_bytes()
            for path in sorted(self.log_dir.rglob("*"))
            if path.is_file() and not path.name.startswith(("sidetier-hydrate", ".lock"))
        }


@pytest.fixture
def host(tmp_path: Path) -> Host:
    log_dir = tmp_path / "kafka-logs"
    log_dir.mkdir()
    (log_dir / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=new\n")
    made = Host(log_dir)
    made.create()
    return made


@pytest.fixture
def archive() -> MadeArchive:
    made = MadeArchive()
    made.segments(0, 20, 40, 60)
    return made


def planned(archive: MadeArchive, cut: Cut | None = None) -> HydratePlan:
    plan = make_plan(access_to(archive.store), lambda _: True, cut or Cut(), {})
    brokers = {
        name: PreparedTopic(TOPIC_ID, (1,) * topic.partitions)
        for name, topic in plan.topics.items()
    }
    return with_prepared(plan, "new", brokers)


def walked(log: bytes) -> list[tuple[int, BatchHeader]]:
    return list(walk_headers(lambda at, size: log[at : at + size], len(log)))


def run(
    plan: HydratePlan,
    archive: MadeArchive,
    host: Host,
    step: Callable[[str], None] = lambda _: None,
) -> list[Placed]:
    with locked_log_dirs([host.log_dir]) as log_dirs:
        journals = {log_dir.path: Journal(log_dir.path, plan.plan_id) for log_dir in log_dirs}
        pending = {path: journal.switching for path, journal in journals.items()}
        wanted = destinations(plan, log_dirs, pending)
        settings = PlaceSettings(at_once=1, step=step)
        return place(plan, access_to(archive.store), wanted, journals, settings)


def steps() -> tuple[list[str], Callable[[str], None]]:
    seen: list[str] = []
    return seen, seen.append


def killed_at(number: int) -> Callable[[str], None]:
    left = iter(range(number))

    def step(_: str) -> None:
        if next(left, None) is None:
            raise Killed

    return step


def test_broker_finds_complete_segments_of_epoch_0_and_an_empty_active_one(
    archive: MadeArchive, host: Host
) -> None:
    (placed,) = run(planned(archive), archive, host)
    assert placed.problem is None
    live = host.log_dir / "orders-0"
    assert sorted(path.name for path in live.iterdir()) == sorted(
        [f"{base:020d}{kind}" for base in (0, 20, 40) for kind in (".log", ".index", ".timeindex")]
        + [f"{60:020d}.log", f"{60:020d}.snapshot", "leader-epoch-checkpoint", "partition.metadata"]
    )
    for base in (0, 20, 40):
        log = (live / f"{base:020d}.log").read_bytes()
        assert {header.leader_epoch for _, header in walked(log)} == {0}
        original = archive.store.get_object(archive.key(base)).data
        assert _without_epochs(log) == _without_epochs(original)
    assert (live / f"{60:020d}.log").read_bytes() == b""
    assert (live / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
    assert TOPIC_ID in (live / "partition.metadata").read_text()
    assert read_offsets(host.log_dir / "recovery-point-offset-checkpoint") == {TP: 60}
    assert not list(host.log_dir.glob("*-delete"))


def _without_epochs(log: bytes) -> bytes:
    plain = bytearray(log)
    for position, _ in walk_headers(lambda at, size: log[at : at + size], len(log)):
        plain[position + 12 : position + 16] = bytes(4)
    return bytes(plain)


def test_archived_epochs_are_normalised(archive: MadeArchive, host: Host) -> None:
    archive.segment(60, [replace(batch, leader_epoch=4) for batch in batches(60, 80)])
    archive.mark(60, 80)
    run(planned(archive), archive, host)
    log = (host.log_dir / "orders-0" / f"{60:020d}.log").read_bytes()
    assert {
        int.from_bytes(log[at + 12 : at + 16])
        for at, _ in walk_headers(lambda at, size: log[at : at + size], len(log))
    } == {0}


def test_placing_killed_at_each_step_is_finished_by_the_next_run(
    archive: MadeArchive, host: Host, tmp_path: Path
) -> None:
    plan = planned(archive)
    pristine = tmp_path / "pristine"
    shutil.copytree(host.log_dir, pristine)
    seen, note = steps()
    run(plan, archive, host, note)
    expected = host.contents()
    assert len(seen) == 11, seen
    for number in range(len(seen)):
        for broker_starts in (False, True):
            shutil.rmtree(host.log_dir)
            shutil.copytree(pristine, host.log_dir)
            with pytest.raises(Killed):
                run(plan, archive, host, killed_at(number))
            if broker_starts:
                host.start_broker()
                live = host.contents()
                # The broker sees either the empty partition or the complete one.
                logs = [
                    name for name in live if name.startswith("orders-0/") and name.endswith(".log")
                ]
                assert len(logs) in {1, 4}
            (placed,) = run(plan, archive, host)
            assert placed.problem is None, (seen[number], broker_starts)
            result = host.contents()
            # Only a run killed after the switch leaves the recovery point to the broker.
            result.setdefault(
                "recovery-point-offset-checkpoint", expected["recovery-point-offset-checkpoint"]
            )
            assert result == expected, (seen[number], broker_starts)


def test_one_object_plans_no_billion_partitions(archive: MadeArchive) -> None:
    key = f"{archive.layout.partition_prefix(TopicPartition('zzz', 2147483000))}x"
    archive.store.put_object(key, BytesBody(b""))
    with pytest.raises(ConfigurationError, match="zzz-2147483000 is stored, but hardly any"):
        planned(archive)


def test_a_placed_partition_is_not_touched_again(archive: MadeArchive, host: Host) -> None:
    plan = planned(archive)
    run(plan, archive, host)
    produced = host.log_dir / "orders-0" / f"{60:020d}.log"
    produced.write_bytes(b"a new record")
    (placed,) = run(plan, archive, host)
    assert placed.already
    assert produced.read_bytes() == b"a new record"


def test_cut_leaves_out_whole_batches_and_their_index_entries(
    archive: MadeArchive, host: Host
) -> None:
    plan = planned(archive, Cut(offsets={TP: Offset(33)}))
    assert plan.partitions[0].end == 30  # batches of five
    run(plan, archive, host)
    live = host.log_dir / "orders-0"
    assert (live / f"{30:020d}.log").read_bytes() == b""
    log = (live / f"{20:020d}.log").read_bytes()
    last = list(walk_headers(lambda at, size: log[at : at + size], len(log)))[-1][1]
    assert last.next_offset == 30
    index = (live / f"{20:020d}.index").read_bytes()
    assert all(int.from_bytes(index[at + 4 : at + 8]) < len(log) for at in range(0, len(index), 8))


def test_time_cuts_before_its_first_record(archive: MadeArchive) -> None:
    plan = make_plan(access_to(archive.store), lambda _: True, Cut(until_ms=37), {})
    assert plan.partitions[0].end == 35
    assert plan.partitions[0].archive_end == 60


def begin_at(archive: MadeArchive, start: int) -> None:
    """Let the archive begin inside its first segment."""
    mark = archive.store.get_object(archive.layout.watermark_key(TP)).data.decode()
    first, fields = mark.splitlines()
    changed = json.dumps({**json.loads(fields), "start_offset": start})
    archive.put(archive.layout.watermark_key(TP), f"{first}\n{changed}\n".encode())


def test_deleted_records_stay_deleted(archive: MadeArchive, host: Host) -> None:
    begin_at(archive, 7)
    plan = planned(archive)
    assert plan.partitions[0].start == 7
    run(plan, archive, host)
    assert read_offsets(host.log_dir / "log-start-offset-checkpoint") == {TP: 7}


def test_transaction_indexes_equal_the_brokers(tmp_path: Path) -> None:
    """With genuine segments that have aborted transactions and one open at the end."""
    store = FakeStorage()
    tp = TopicPartition("tx", 0)
    segments = store_broker_segments(store, LAYOUT, "tx-0")
    log_dir = tmp_path / "logs"
    log_dir.mkdir()
    (log_dir / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=new\n")
    host = Host(log_dir)
    host.create(tp)
    archive = MadeArchive(store, LAYOUT, tp)
    (placed,) = run(planned(archive), archive, host)
    assert placed.problem is None
    indexes = 0
    for segment in segments:
        ours = log_dir / "tx-0" / segment.path(FileKind.TXNINDEX).name
        theirs = segment.path(FileKind.TXNINDEX)
        assert ours.exists() == theirs.exists()
        if theirs.exists():
            indexes += 1
            assert ours.read_bytes() == theirs.read_bytes()
    assert indexes


def test_final_snapshot_contains_only_producers_with_open_transactions(host: Host) -> None:
    log = TransactionalLog()
    log.write(7, 3)
    log.mark(7, commit=True)
    opened = log.write(8, 2)
    log.write(9, 4, transactional=False)
    archive = MadeArchive()
    archive.segment(0, log.encoded)
    archive.mark(0, log.next_offset)
    run(planned(archive), archive, host)
    data = (host.log_dir / "orders-0" / f"{log.next_offset:020d}.snapshot").read_bytes()
    assert [(item.producer_id, item.first_offset) for item in open_transactions(data)] == [
        (8, opened.first)
    ]
    assert int.from_bytes(data[6:10]) == 1


def test_running_broker_is_refused(archive: MadeArchive, host: Host) -> None:
    plan = planned(archive)
    child_ready, child_done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # locks of the same process do not conflict
        handle = os.open(host.log_dir / ".lock", os.O_RDWR | os.O_CREAT)
        fcntl.lockf(handle, fcntl.LOCK_EX)
        os.write(child_ready[1], b"x")
        os.read(child_done[0], 1)
        os._exit(0)
    os.read(child_ready[0], 1)
    try:
        with pytest.raises(ConfigurationError, match="uses this log dir: stop it first"):
            run(plan, archive, host)
    finally:
        os.write(child_done[1], b"x")
        os.waitpid(child, 0)
        for handle in (*child_ready, *child_done):
            os.close(handle)


def test_topic_with_records_is_refused(archive: MadeArchive, host: Host) -> None:
    """Its log start is not moved, either: the broker would delete the records below it."""
    begin_at(archive, 7)
    (host.log_dir / "orders-0" / f"{0:020d}.log").write_bytes(b"a record")
    before = host.contents()
    (placed,) = run(planned(archive), archive, host)
    assert placed.problem is not None
    assert "is not empty" in placed.problem
    assert host.contents() == before


def test_recreated_topic_is_refused(archive: MadeArchive, host: Host) -> None:
    shutil.rmtree(host.log_dir / "orders-0")
    host.create(TP, "AAAAAAAAAAAAAAAAAAAAAg")
    begin_at(archive, 7)
    before = host.contents()
    (placed,) = run(planned(archive), archive, host)
    assert placed.problem is not None
    assert "was deleted and created again" in placed.problem
    assert host.contents() == before


def test_log_dirs_on_one_disk_share_its_free_space(
    archive: MadeArchive, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each partition fits, but both do not."""
    second = host.log_dir.with_name("second")
    second.mkdir()
    (second / "meta.properties").write_text((host.log_dir / "meta.properties").read_text())
    other = TopicPartition("orders", 1)
    Host(second).create(other)
    MadeArchive(archive.store, tp=other).segments(0, 20, 40, 60)
    plan = planned(archive)
    free = 3 * plan.partitions[0].size
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    paths = [host.log_dir, second]
    with locked_log_dirs(paths) as log_dirs:
        journals = {log_dir.path: Journal(log_dir.path, plan.plan_id) for log_dir in log_dirs}
        wanted = destinations(plan, log_dirs, {})
        assert {entry.log_dir.path for entry in wanted} == set(paths)
        settings = PlaceSettings(at_once=1)
        with pytest.raises(ConfigurationError, match=f"{paths[0]}, {second}: .* are free"):
            place(plan, access_to(archive.store), wanted, journals, settings)
    assert "orders-0/00000000000000000000.snapshot" not in host.contents()


def test_another_cluster_is_refused(archive: MadeArchive, host: Host) -> None:
    (host.log_dir / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=other\n")
    with pytest.raises(ConfigurationError, match="belongs to Kafka cluster other"):
        run(planned(archive), archive, host)


def test_plan_whose_topics_do_not_exist_is_refused(archive: MadeArchive, host: Host) -> None:
    plan = make_plan(access_to(archive.store), lambda _: True, Cut(), {})
    with pytest.raises(ConfigurationError, match="sidetier hydrate prepare"):
        run(plan, archive, host)


def test_partitions_of_other_brokers_are_not_placed(archive: MadeArchive, host: Host) -> None:
    plan = planned(archive)
    elsewhere = with_prepared(plan, "new", {"orders": PreparedTopic(TOPIC_ID, (2,))})
    before = host.contents()
    assert run(elsewhere, archive, host) == []
    assert host.contents() == before


def test_overlapping_segments_are_refused(host: Host) -> None:
    archive = MadeArchive(is_pinterest=True)
    archive.segment(0, batches(0, 20))
    archive.segment(15, batches(15, 40))
    archive.mark(15, 40)
    (placed,) = run(planned(archive), archive, host)
    assert placed.problem is not None
    assert "archives whose segments overlap cannot be placed" in placed.problem


def test_object_changed_after_the_plan_is_refused(archive: MadeArchive, host: Host) -> None:
    plan = planned(archive)
    archive.segment(20, batches(20, 40, 4))
    (placed,) = run(plan, archive, host)
    assert placed.problem is not None


def test_damaged_segment_is_refused(archive: MadeArchive, host: Host) -> None:
    data = bytearray(archive.store.get_object(archive.key(20)).data)
    data[-1] ^= 1
    archive.put(archive.key(20), bytes(data))
    (placed,) = run(planned(archive), archive, host)
    assert placed.problem is not None
    assert "CRC32C" in placed.problem
    assert archive.key(20) in placed.problem
    logs = list((host.log_dir / "orders-0").glob("*.log"))
    assert [path.stat().st_size for path in logs] == [0]


def test_topic_of_the_snapshot_without_segments_is_created_empty(
    archive: MadeArchive,
) -> None:
    plan = make_plan(
        access_to(archive.store),
        lambda _: True,
        Cut(),
        {"empty": PlannedTopic(2, 3), "orders": PlannedTopic(3, 1)},
    )
    assert plan.topics["empty"].partitions == 2
    assert [
        (partition.topic, partition.partition, partition.end) for partition in plan.partitions
    ] == [
        ("empty", 0, 0),
        ("empty", 1, 0),
        ("orders", 0, 60),
        ("orders", 1, 0),
        ("orders", 2, 0),
    ]


@pytest.fixture(autouse=True)
def _no_rests(tmp_path: Path) -> Iterator[None]:
    """Assert that no temporary file is left beside the journal."""
    yield
    left = [path.name for path in tmp_path.rglob(".*") if path.name != ".lock" and path.is_file()]
    assert left == []
