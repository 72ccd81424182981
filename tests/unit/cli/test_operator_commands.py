"""`explain`, `can-i-lose` and `doctor` on the command line, with a log dir, a store and a
sidecar.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from sidetier.archive.objects.quarantine import MoveKind, MovePlan, write_plan
from sidetier.archive.objects.watermark import (
    decode_watermark,
    encode_watermark,
    read_watermark,
)
from sidetier.archive.tail.pack import PackBuilder, TailRow
from sidetier.cli.main import run
from sidetier.leadership.cluster_map import ReplicaSet
from sidetier.segments.batches import split_batches
from sidetier.segments.cluster_state import GroupMember
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import BrokerUnavailableError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import StorageEndpoint
from sidetier.telemetry.http import HttpServer
from sidetier.telemetry.metrics import create_registry
from sidetier.telemetry.pages import Application
from sidetier.telemetry.status import (
    Condition,
    PartitionState,
    PartitionStatus,
    PinnedRange,
    SegmentStatus,
    StatusSnapshot,
)
from sidetier.uploader.archive.quarantine.relocation import Claim
from tests.harness.batches import make_batch
from tests.harness.command_line import CommandLine
from tests.harness.fake_cluster import FakeCluster
from tests.harness.log_dir import TOPIC_ID, PartitionLog
from tests.harness.record_deletion import DeletingBroker
from tests.harness.tailed_log import store_pack

TP = TopicPartition("orders", 0)
ERROR = "put orders-0: 403"


class Page:
    """The HTTP status page of the sidecar."""

    def __init__(self) -> None:
        segment = SegmentStatus(
            BaseOffset(30),
            Offset(40),
            100,
            "queued",
            pinned=True,
            marked_for_deletion=False,
            error=None,
        )
        partition = PartitionStatus(
            "orders",
            0,
            PartitionState.WAITING,
            next_offset=Offset(30),
            unstored_segments=1,
            segments=(segment,),
        )
        ready = (Condition("bootstrapped", holds=True),)
        self.now = StatusSnapshot("prod-a", BrokerId(1), conditions=ready, partitions=(partition,))

    def snapshot(self, *, with_partitions: bool = True) -> StatusSnapshot:  # noqa: ARG002 -- the port's
        return self.now


@pytest.fixture
def page() -> Page:
    return Page()


@pytest.fixture
def sidecar(page: Page) -> Iterator[str]:
    server = HttpServer("127.0.0.1", 0, Application(create_registry(), page))
    server.start()
    yield server.url
    server.stop()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """A cluster where broker 1 leads orders-0 as its only replica."""
    fake = FakeCluster()
    fake.add(TP, 1, start=0, high_watermark=45)
    fake.settings["orders"] = {
        "segment.bytes": "1000000",
        "segment.ms": "604800000",
        "file.delete.delay.ms": "3600000",
        "unclean.leader.election.enable": "false",
    }
    monkeypatch.setattr("sidetier.cli.commands.can_i_lose.open_cluster", lambda *_: fake)
    monkeypatch.setattr("sidetier.cli.inspect.facts.open_cluster", lambda *_: fake)
    return fake


@pytest.fixture
def log(cli: CommandLine) -> PartitionLog:
    """A log whose segments 0, 10 and 20 are stored; 30 was closed later, and records 40 to 44 are
    active.
    """
    log = cli.log_dir.create("orders")
    log.closed_segments(3)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill") == 0
    log.closed_segment()
    log.append(5)
    return log


@dataclass(frozen=True, slots=True)
class Ground:
    """Command line, cluster, log and sidecar page together."""

    cli: CommandLine
    log: PartitionLog
    cluster: FakeCluster
    sidecar: str
    page: Page


@pytest.fixture
def ground(
    cli: CommandLine, log: PartitionLog, cluster: FakeCluster, sidecar: str, page: Page
) -> Ground:
    return Ground(cli, log, cluster, sidecar, page)


@pytest.mark.parametrize(
    ("offset", "code", "answer", "gate"),
    [
        (15, 0, "stored", None),
        (35, 3, "waits", "queued"),
        (41, 3, "waits", "active_segment"),
        (45, 4, "not_written", None),
    ],
)
def test_explain_answers_from_every_source(
    ground: Ground, offset: int, code: int, answer: str, gate: str | None
) -> None:
    line = ("explain", "orders", "0", str(offset), "--sidecar", ground.sidecar)
    told = ground.cli.json(*line, code=code)
    assert (told["answer"], told["gate"], told["exit_code"]) == (answer, gate, code)
    assert told["problems"] == {}
    assert told["archive"]["watermark"]["next_offset"] == 30
    assert (told["disk"]["log_end_offset"], told["cluster"]["high_watermark"]) == (45, 45)
    assert told["sidecar"]["partition"]["next_offset"] == 30
    assert ground.cli.run(*line) == code
    verdict, *table = ground.cli.lines()
    assert verdict == f"orders-0 offset {offset}: {told['text']}"
    assert [row.split()[0] for row in table] == ["SOURCE", "disk", "sidecar", "archive", "cluster"]
    assert ground.cluster.asked.count("map") == 2  # one request per run


def test_explain_reports_an_archive_that_is_being_moved(ground: Ground) -> None:
    [row] = ground.page.now.partitions
    moving = replace(row, state=PartitionState.QUARANTINING, waiting_for="it is moved to x")
    ground.page.now = replace(ground.page.now, partitions=(moving,))
    line = ("explain", "orders", "0", "35", "--sidecar", ground.sidecar)
    told = ground.cli.json(*line, code=3)
    assert told["gate"] == "quarantining"
    assert "it is moved to x" in told["text"]


def test_explain_reports_unavailable_sources(ground: Ground) -> None:
    ground.cluster.away = True
    line = ("explain", "orders", "0", "15", "--sidecar", "http://127.0.0.1:1")
    assert ground.cli.run(*line) == 0
    rows = {line.split()[0]: line for line in ground.cli.lines()[1:]}
    assert "no answer: one:9092 returns no metadata: no answer" in rows["cluster"]
    assert "no answer: no sidecar answers at http://127.0.0.1:1" in rows["sidecar"]
    assert str(ground.log.file(10)) in rows["disk"]


@pytest.mark.usefixtures("cluster")
def test_explain_works_without_a_log_dir_and_a_store(cli: CommandLine, sidecar: str) -> None:
    cli.configure({"log_dirs": ["/nowhere/kafka"]})
    assert cli.run("explain", "orders", "0", "35", "--sidecar", sidecar) == 3
    assert "queued for a free upload thread" in cli.lines()[0]
    assert "/nowhere/kafka: not on this host" in cli.out
    assert "nothing is stored at this URL yet" in cli.out


def test_explain_refuses_an_impossible_offset(cli: CommandLine) -> None:
    assert cli.run("explain", "orders", "0", "-1") == 2
    assert cli.run("explain", "no/topic", "0", "1") == 2
    assert cli.run("explain", "orders", "0", "1", "--sidecar", "nowhere") == 2
    assert "--sidecar" in cli.err


def test_broker_with_records_of_its_own_cannot_be_lost(ground: Ground) -> None:
    told = ground.cli.json("can-i-lose", "1", "--sidecar", ground.sidecar, code=3)
    assert (told["can_be_lost"], told["records_at_risk"]) == (False, 15)
    assert told["bytes_at_risk"] == len(ground.log.written[30]) + len(ground.log.written[40])
    [partition] = told["partitions"]
    assert partition["archived_to"] == 30
    assert partition["at_risk"][0]["why"] == "not archived yet; there is no other replica"
    assert ground.cli.run("can-i-lose", "1", "--sidecar", ground.sidecar) == 3
    assert ground.cli.lines()[0].startswith("no: with broker 1 and its disk, 15 records")
    assert ground.cli.lines()[2].split()[:4] == ["orders-0", "leader", "[30,", "45)"]


def test_records_in_tail_packs_do_not_count_as_archived(ground: Ground) -> None:
    words = ("can-i-lose", "1", "--sidecar", ground.sidecar)
    before = ground.cli.json(*words, code=3)
    builder = PackBuilder()
    data = ground.log.written[30] + ground.log.written[40]
    row = TailRow(
        TP,
        TOPIC_ID,
        EpochHistory(((LeaderEpoch(0), Offset(0)),)),
        Offset(30),
        Offset(45),
        Offset(0),
        Offset(45),
        sum(1 for _ in split_batches(memoryview(data))),
    )
    builder.add(row, data)
    store = open_plain(StorageEndpoint(f"file://{ground.cli.store}"))
    store_pack(store, ArchiveLayout("prod-a", 3), builder, 1, 0)
    store.close()
    [tail] = ground.cli.json("tail", "status")["partitions"]
    assert (tail["archived_up_to"], tail["safe_up_to"]) == (30, 45)
    assert ground.cli.json(*words, code=3) == before
    assert ground.cli.json("explain", "orders", "0", "41", code=3)["answer"] == "waits"


def test_in_sync_replica_makes_the_broker_safe_unless_it_is_down(ground: Ground) -> None:
    ground.cluster.add(TP, 1, 2, start=0, high_watermark=45)
    assert ground.cli.run("can-i-lose", "1", "--sidecar", ground.sidecar) == 0
    assert ground.cli.lines()[0].startswith("yes: broker 1 and its disk can be lost")
    assert ground.cli.run("can-i-lose", "2") == 0
    assert "broker 2's sidecar was not asked" in ground.cli.out
    ground.cluster.brokers = {1: "one:9092"}
    assert ground.cli.run("can-i-lose", "1", "--sidecar", ground.sidecar) == 3
    assert "broker 2 is down" in ground.cli.out
    assert ground.cluster.asked == ["map", "topic_settings", "topic_ids", "log_offsets"] * 3


def test_records_that_only_pins_hold_are_at_risk(ground: Ground) -> None:
    ground.cluster.add(TP, 1, 2, start=40, high_watermark=45)
    ground.page.now = replace(
        ground.page.now, pins=(PinnedRange("orders", 0, Offset(30), Offset(40), 777),)
    )
    told = ground.cli.json("can-i-lose", "1", "--sidecar", ground.sidecar, code=3)
    [risk] = told["partitions"][0]["at_risk"]
    assert (risk["start_offset"], risk["end_offset"], risk["bytes"]) == (30, 40, 777)
    ground.page.now = replace(ground.page.now, pins=())
    assert ground.cli.run("can-i-lose", "1", "--sidecar", ground.sidecar) == 0
    assert ground.cli.run("can-i-lose", "1", "--sidecar", "http://127.0.0.1:1") == 3
    assert "but was not asked (--sidecar)" in ground.cli.out


def test_trimmed_records_are_lost_with_the_store_and_not_with_the_broker(ground: Ground) -> None:
    line = ("can-i-lose", "1", "--sidecar", ground.sidecar)
    ground.cluster.add(TP, 1, start=20, high_watermark=30)
    told = ground.cli.json(*line)
    assert told["can_be_lost"]
    [partition] = told["partitions"]
    assert (partition["archived_from"], partition["archived_to"]) == (0, 30)
    assert partition["only_on_store"] == {"start_offset": 0, "end_offset": 20}
    assert partition["at_risk"] == []
    [note] = told["notes"]
    assert note.startswith("only the store has 20 records of 1 partitions")
    assert note.endswith("they do not depend on this broker, and would be lost with the store")
    ground.cluster.add(TP, 1, start=0, high_watermark=30)
    assert ground.cli.json(*line)["partitions"][0]["only_on_store"] is None


def test_records_below_the_archive_are_lost_with_the_broker(ground: Ground) -> None:
    """`sidetier gc` has moved the start of the archive above the log start offset."""
    store = open_plain(StorageEndpoint(f"file://{ground.cli.store}"))
    layout = ArchiveLayout("prod-a", 3)
    mark = read_watermark(store, layout.watermark_key(TP))
    assert mark is not None
    Claim(store, layout, TP, mark.etag).write(replace(mark.watermark, start_offset=Offset(10)))
    ground.cluster.add(TP, 1, start=0, high_watermark=30)
    told = ground.cli.json("can-i-lose", "1", "--sidecar", ground.sidecar, code=3)
    [risk] = told["partitions"][0]["at_risk"]
    assert (risk["start_offset"], risk["end_offset"]) == (0, 10)
    assert risk["bytes"] == len(ground.log.written[0])
    assert "the archive begins at 10" in risk["why"]


@pytest.mark.parametrize(
    ("kind", "archived", "at_risk"), [("quarantine", 20, 25), ("retire", None, 45)]
)
def test_only_the_kept_part_of_a_moving_archive_counts(
    ground: Ground, kind: str, archived: int | None, at_risk: int
) -> None:
    """Its watermark is unchanged; the part that is being moved no longer belongs to the archive."""
    layout = ArchiveLayout("prod-a", 3)
    store = open_plain(StorageEndpoint(f"file://{ground.cli.store}"))
    mark = read_watermark(store, layout.watermark_key(TP))
    assert mark is not None
    target = f"{layout.quarantine_prefix(TP)}x/"
    plan = MovePlan(MoveKind(kind), TP, target, Offset(20))
    plan = replace(plan, kept=BaseOffset(10)) if kind == "quarantine" else plan
    plan = write_plan(store, plan)
    Claim(store, layout, TP, mark.etag).write(replace(mark.watermark, pending=plan.target))
    line = ("can-i-lose", "1", "--sidecar", ground.sidecar)
    told = ground.cli.json(*line, code=3)
    [partition] = told["partitions"]
    assert (partition["archived_to"], partition["archive_moving_to"]) == (archived, plan.target)
    assert told["records_at_risk"] == at_risk
    assert f"its archive is being moved to {plan.target}" in partition["at_risk"][0]["why"]
    assert "1 archives are being moved" in " ".join(told["notes"])
    assert ground.cli.run(*line) == 3


def test_unarchived_topic_is_reported(ground: Ground) -> None:
    ground.cluster.add(TopicPartition("__consumer_offsets", 0), 1, 2, high_watermark=9)
    ground.cluster.add(TopicPartition("users", 0), 1, high_watermark=9)
    ground.cluster.settings["users"] = {"cleanup.policy": "compact"}
    told = ground.cli.json("can-i-lose", "1", "--sidecar", ground.sidecar, code=3)
    reasons = {one["topic"]: one["not_archived"] for one in told["partitions"]}
    assert reasons == {
        "__consumer_offsets": "left out by `topics`",
        "orders": None,
        "users": "compacted",
    }
    assert (
        "never archived, so only as safe as their replicas: __consumer_offsets, users"
        in (told["notes"])
    )
    at_risk = {one["topic"]: len(one["at_risk"]) for one in told["partitions"]}
    assert at_risk == {"__consumer_offsets": 0, "orders": 1, "users": 1}


@pytest.mark.usefixtures("cluster")
def test_nothing_counts_as_archived_without_an_archive(cli: CommandLine, sidecar: str) -> None:
    assert cli.run("can-i-lose", "1", "--sidecar", sidecar) == 3
    assert "perhaps not archived: the archive cannot be read" in cli.out
    assert "the archive could not be read: storage.url" in cli.out


def test_partition_without_a_leader_has_an_unknown_end(ground: Ground) -> None:
    ground.cluster.partitions[TP] = ReplicaSet(None, (1, 2), (1,))
    ground.cluster.brokers = {2: "two:9092"}
    told = ground.cli.json("can-i-lose", "1", "--sidecar", ground.sidecar, code=3)
    [risk] = told["partitions"][0]["at_risk"]
    assert (risk["start_offset"], risk["end_offset"]) == (30, None)
    assert "the partition has no leader" in risk["why"]
    assert "broker 1 is not up now" in told["notes"]


def test_unknown_broker_and_another_brokers_sidecar_are_refused(ground: Ground) -> None:
    assert ground.cli.run("can-i-lose", "9") == 2
    assert "there is no broker 9: brokers 1, 2 are up" in ground.cli.err
    assert ground.cli.run("can-i-lose", "2", "--sidecar", ground.sidecar) == 2
    assert "is the sidecar of broker 1, not of broker 2" in ground.cli.err


def test_unavailable_cluster_is_an_error(cli: CommandLine, cluster: FakeCluster) -> None:
    cluster.away = True
    assert cli.run("can-i-lose", "1") == 1
    assert "--bootstrap-server names another broker" in cli.err


def test_missing_broker_address_error_names_the_setting(cli: CommandLine) -> None:
    assert cli.run("can-i-lose", "1") == 2
    assert "broker.bootstrap_servers is not set" in cli.err


def test_doctor_checks_everything_and_writes_nothing(ground: Ground) -> None:
    before = ground.cli.stored()
    told = ground.cli.json("doctor", "--sidecar", ground.sidecar)
    checks = {one["check"]: one["level"] for one in told["findings"]}
    assert checks["segment.ms"] == "advice"
    assert checks["log dirs"] == checks["store"] == checks["layout"] == "ok"
    assert told["problem"] == 0
    assert ground.cli.stored() == before
    ground.cluster.settings["orders"] = {"cleanup.policy": "compact"}
    assert ground.cli.run("doctor", "--sidecar", ground.sidecar) == 3
    assert ground.cli.lines()[0].startswith("1 problem, ")
    assert "because they are compacted: orders" in ground.cli.out


def test_doctor_names_groups_that_skip_records_at_the_brokers(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> Any:  # noqa: ANN401 -- JSON
        return ground.cli.json("doctor", "--sidecar", ground.sidecar)

    def found() -> list[str]:
        groups = [one for one in told()["findings"] if one["check"] == "consumer groups"]
        return [f"{one['level']}: {one['found']}" for one in groups]

    reader = DeletingBroker([])
    reader.committed = {"below": {TP: Offset(15)}, "far": {TP: Offset(20)}, "at": {TP: Offset(45)}}
    reader.members_of = {"below": (GroupMember("billing", "10.0.0.7"),), "far": ()}
    monkeypatch.setattr("sidetier.uploader.wiring.consumer_groups", lambda _: reader)
    [none] = found()
    assert none.startswith("ok: ")
    ground.cluster.add(TP, 1, start=20, high_watermark=45)
    below = (
        "advice: group below (members: 1: billing at 10.0.0.7) has not committed 5 offsets in 1 "
        "partition of orders below the brokers' log start, of which the archive has all or some: "
        "if it reads from the brokers, it skips them"
    )
    assert found() == [below]
    settings = ground.cluster.settings
    settings["orders"] = {**settings["orders"], "cleanup.policy": "delete"}
    local = {"topics": ["orders"], "bytes": 0}
    ground.cli.configure({"retention": {"local": local}, "broker": {"bootstrap_servers": "b:1"}})
    soon = (
        "advice: group far (members: none) has not committed 20 offsets in 1 partition of orders "
        "that local retention deletes as soon as they are archived: if it reads from the brokers, "
        "it skips them"
    )
    assert found() == [below, soon]
    rows = told()["groups"]
    assert [row["group"] for row in rows["below_log_start"]] == ["below"]
    assert rows["within_reach"] == [
        {
            "group": "far",
            "topic": "orders",
            "partitions": 1,
            "skipped_offsets": 20,
            "members": [],
        }
    ]
    ground.cli.configure({"retention": {"local": {"protect_groups": ["far"]}}})
    assert found() == [below], "local retention waits for it"
    reader.incomplete = "some are hidden"
    assert found()[0] == "advice: groups may be missing here: some are hidden"
    reader.groups_error = BrokerUnavailableError("no coordinator")
    assert found() == ["advice: groups may be missing here: no coordinator"]


def test_doctor_counts_segments_of_an_old_message_format(ground: Ground) -> None:
    first = ground.log.bases()[0]
    ground.log.file(first).write_bytes(make_batch(first, 10, magic=0))
    assert ground.cli.run("doctor", "--sidecar", ground.sidecar) == 3
    assert "1 segments begin with message format v0 or v1" in ground.cli.out


def test_doctor_finds_archives_that_pinterests_uploader_cannot_continue(ground: Ground) -> None:
    """It would skip the segment in which they end, because its name is not behind `offset.wm`."""
    line = ("doctor", "--sidecar", ground.sidecar)
    assert ground.cli.run(*line) == 0
    assert "way back" not in ground.cli.out, "it costs a request for each partition"
    assert ground.cli.run(*line, "--back-to-pinterest") == 0
    assert "every archive ends where a segment of the log begins or ends" in ground.cli.out
    [key] = [key for key in ground.cli.stored() if key.endswith("offset.wm")]
    path = ground.cli.store / key
    stored = decode_watermark(path.read_bytes(), key)
    for end in (25, 43, 45):  # within a closed segment, within the active one, at the log's end
        path.write_bytes(encode_watermark(replace(stored, next_offset=Offset(end))))
        assert ground.cli.run(*line, "--back-to-pinterest") == 3
        assert "1 archives end within a segment" in ground.cli.out
        assert "orders-0" in ground.cli.out
    path.write_bytes(b"30\n{")
    assert ground.cli.run(*line, "--back-to-pinterest") != 0, "an unknown end is not a good one"
    assert "where the archive of orders-0 ends is not known" in ground.cli.err
    path.unlink()
    assert ground.cli.run(*line, "--back-to-pinterest") == 0, "nothing is archived"
    ground.cluster.partitions[TopicPartition("orders", 0)] = ReplicaSet(2, (1, 2), (1, 2))
    path.write_bytes(b"30\n{")
    assert ground.cli.run(*line, "--back-to-pinterest") == 0, "another broker leads it"


def test_doctor_tries_conditional_writes_only_on_request(ground: Ground) -> None:
    before = ground.cli.stored()
    assert ground.cli.run("doctor", "--sidecar", ground.sidecar) == 0
    assert "--try-conditions tests it" in ground.cli.out
    assert ground.cli.run("doctor", "--sidecar", ground.sidecar, "--try-conditions") == 0
    assert "refused two writes, and accepted one, as it had to" in ground.cli.out
    assert ground.cli.stored() == before


def test_doctor_tries_nothing_before_a_layout_object_is_stored(cli: CommandLine) -> None:
    cli.store.mkdir()
    cli.run("doctor", "--sidecar", "http://127.0.0.1:1", "--try-conditions")
    assert "--try-conditions tests it, once a sidecar has stored layout.json" in cli.out
    assert cli.stored() == {}


def test_doctor_finds_a_layout_object_with_other_entropy_bits(ground: Ground) -> None:
    ground.cli.configure({"storage": {"prefix_entropy_bits": 4}})
    assert ground.cli.run("doctor", "--sidecar", ground.sidecar) == 3
    assert "storage.prefix_entropy_bits: 3" in ground.cli.out


def test_doctor_continues_without_store_broker_and_sidecar(
    cli: CommandLine, cluster: FakeCluster
) -> None:
    cluster.away = True
    cli.log_dir.create("orders")
    told = cli.json("doctor", "--sidecar", "http://127.0.0.1:1", code=3)
    found = {one["check"]: one["found"] for one in told["findings"]}
    assert "nothing is stored at this URL yet" in found["store"]
    assert "one:9092 returns no metadata" in found["broker"]
    assert "no sidecar answers" in found["sidecar"]


def test_archive_of_a_deleted_topic_is_not_taken_for_that_of_the_new_one(ground: Ground) -> None:
    """Its archive end is below the high watermark of the new topic."""
    line = ("--sidecar", ground.sidecar)
    before = ground.cli.json("can-i-lose", "1", *line, code=3)
    ground.cluster.ids["orders"] = TOPIC_ID
    assert ground.cli.json("can-i-lose", "1", *line, code=3) == before
    ground.cluster.ids["orders"] = "AAAAAAAAAAAAAAAAAAAAAg"
    told = ground.cli.json("can-i-lose", "1", *line, code=3)
    assert told["partitions"][0]["at_risk"][0]["start_offset"] == 0, told
    answer = ground.cli.json("explain", "orders", "0", "15", *line, code=1)
    assert "the topic was deleted and created again" in answer["text"]


@pytest.mark.parametrize("source", ["brokers", "checkpoint"])
def test_segments_below_the_log_start_are_called_deleted(ground: Ground, source: str) -> None:
    """After a trim, the broker keeps the files until its next retention check."""
    line = ("explain", "orders", "0", "15", "--sidecar", ground.sidecar)
    assert ground.cli.run(*line) == 0
    assert "closed" in ground.cli.out
    if source == "brokers":
        ground.cluster.add(TP, 1, start=20, high_watermark=45)
    else:
        checkpoint = ground.cli.log_dir.path / "log-start-offset-checkpoint"
        checkpoint.write_text("0\n1\norders 0 20\n")
    assert ground.cli.run(*line) == 0
    assert "below the log start offset 20, deleted by the broker at its next check" in (
        " ".join(ground.cli.out.split())
    )
    assert "offsets [20, 45) are here" in " ".join(ground.cli.out.split())
    kept = ground.cli.json("explain", "orders", "0", "25", "--sidecar", ground.sidecar)
    assert kept["disk"]["log_start_offset"] == 20


def test_brokers_of_another_cluster_are_not_taken_for_those_of_the_archive(ground: Ground) -> None:
    """Their topic of the same name has other records below the archive end offset."""
    ground.cluster.cluster_id = "another"
    told = ground.cli.json("can-i-lose", "1", "--sidecar", ground.sidecar, code=3)
    assert "the broker belongs to another" in str(told)
    told = ground.cli.json("explain", "orders", "0", "15", "--sidecar", ground.sidecar)
    assert "the brokers belong to the Kafka cluster another" in told["problems"]["cluster"]
    assert not told["cluster"]


@pytest.mark.parametrize("name", ["explain", "can-i-lose", "doctor"])
def test_help_has_an_example_and_exit_codes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"sidetier {name} " in shown
    assert "Exit codes: 0 " in shown
