"""`sidetier retire` over a file-system store."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Uuid

from sidetier.archive.objects.watermark import read_watermark
from sidetier.leadership.cluster import kafka_text
from sidetier.leadership.topic_identity import TopicIdentity
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import StorageEndpoint
from sidetier.uploader import retire
from tests.harness.command_line import CommandLine
from tests.harness.log_dir import CLUSTER_ID, TOPIC_ID
from tests.harness.made_archive import LAYOUT
from tests.harness.tail_packs import TOPIC_ID as TAIL_ID
from tests.harness.tailed_log import TailedLog, borders, mixed_log

BROKER = {"broker": {"bootstrap_servers": "127.0.0.1:1"}}


@pytest.fixture
def stored(cli: CommandLine) -> CommandLine:
    """Archives of orders-0, orders-1 and pay-0."""
    for topic, number in (("orders", 0), ("orders", 1), ("pay", 0)):
        cli.log_dir.create(topic, number).closed_segments(2)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill") == 0
    return cli


def now_is(monkeypatch: pytest.MonkeyPatch, identity: TopicIdentity) -> None:
    """Set the broker's answer about the topic."""
    monkeypatch.setattr(retire, "ask_identity", lambda _cluster, _topic: identity)


def test_dry_run_writes_nothing(stored: CommandLine) -> None:
    before = stored.stored()
    told = stored.json("retire", "orders", "--offline", "--dry-run")
    assert told["dry_run"] is True
    assert [(row["partition"], row["topic_id"], row["segments"]) for row in told["partitions"]] == [
        (0, TOPIC_ID, 2),
        (1, TOPIC_ID, 2),
    ]
    assert stored.stored() == before


def test_offline_retire_moves_everything_of_the_topic_and_nothing_else(stored: CommandLine) -> None:
    before = stored.stored()
    assert stored.run("retire", "orders", "--offline") == 0
    assert "moved to _sidetier/prod-a/retired/orders-0/" in stored.out
    after = stored.stored()
    kept = {key for key in before if "/pay-0/" in key or key.endswith("layout.json")}
    assert {key for key in after if "/retired/" not in key} == kept
    logs = {data for key, data in before.items() if "/orders-" in key and key.endswith(".log")}
    assert {data for key, data in after.items() if "/retired/orders-" in key} >= logs
    assert stored.run("retire", "orders", "--offline") == 0
    assert stored.lines() == ["everything named was retired before; nothing is left to move"]


def test_archive_of_the_current_topic_id_is_left(
    stored: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.configure(BROKER)
    now_is(monkeypatch, TopicIdentity(CLUSTER_ID, TOPIC_ID, 1))
    told = stored.json("retire", "orders", code=3)
    assert [(row["left"] is None, row["target"] is None) for row in told["partitions"]] == [
        (False, True),
        (True, False),  # the topic has no partition 1 any more
    ]
    assert any("/orders-0/" in key and "/retired/" not in key for key in stored.stored())
    assert stored.run("retire", "orders", "--partition", "0", "--force") == 0


@pytest.mark.parametrize(
    "identity",
    [TopicIdentity(CLUSTER_ID, "another", 2), TopicIdentity(CLUSTER_ID)],
    ids=["recreated", "deleted"],
)
def test_archive_of_a_deleted_topic_is_moved(
    stored: CommandLine, monkeypatch: pytest.MonkeyPatch, identity: TopicIdentity
) -> None:
    stored.configure(BROKER)
    now_is(monkeypatch, identity)
    told = stored.json("retire", "orders")
    assert all(row["target"] for row in told["partitions"])


def test_offline_must_be_given_without_a_broker(stored: CommandLine) -> None:
    before = stored.stored()
    assert stored.run("retire", "orders") == 2
    assert "--offline" in stored.err
    assert stored.stored() == before


def test_topic_id_is_encoded_as_in_kafka() -> None:
    """As in `partition.metadata`; the sidecar writes the same text into `offset.wm`."""
    assert kafka_text(str(Uuid(-1, -2))) == "_____________________g"
    assert kafka_text(str(Uuid(-(2**58), 1))) == "_AAAAAAAAAAAAAAAAAAAAQ"


@pytest.mark.parametrize("cluster_id", ["another", None])
def test_brokers_of_another_cluster_say_nothing_about_the_topic(
    stored: CommandLine, monkeypatch: pytest.MonkeyPatch, cluster_id: str | None
) -> None:
    """There, the topic is absent, or was created at another time."""
    stored.configure(BROKER)
    before = stored.stored()
    for identity in (TopicIdentity(cluster_id), TopicIdentity(cluster_id, "another", 2)):
        now_is(monkeypatch, identity)
        assert stored.run("retire", "orders") == 2
        assert "cluster" in stored.err
        assert "--force" in stored.err
        assert stored.stored() == before
    assert stored.run("retire", "orders", "--force") == 0


def test_archive_whose_cluster_is_not_known_is_left(
    stored: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.configure(BROKER)
    now_is(monkeypatch, TopicIdentity(CLUSTER_ID))
    stored.remove("layout.json")
    before = stored.stored()
    assert stored.run("retire", "orders") == 2
    assert "layout.json has no Kafka cluster id" in stored.err
    assert stored.stored() == before


def test_topic_that_is_created_again_while_its_partitions_are_moved_keeps_its_archive(
    stored: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers about the first partition do not count for the second one."""
    stored.configure(BROKER)
    deleted, again = TopicIdentity(CLUSTER_ID), TopicIdentity(CLUSTER_ID, TOPIC_ID, 2)
    # One answer for the check of the cluster, two for the plan, one for the first move.
    answers = [deleted] * 4
    monkeypatch.setattr(
        retire, "ask_identity", lambda _cluster, _topic: answers.pop() if answers else again
    )
    told = stored.json("retire", "orders", code=3)
    assert [row["left"] is None for row in told["partitions"]] == [True, False]
    assert any("/orders-1/" in key and "/retired/" not in key for key in stored.stored())


# -- records that only tail packs have ------------------------------------------------------------


@pytest.fixture
def log(cli: CommandLine) -> Iterator[TailedLog]:
    """A log that is archived up to 12, and in packs of a broker from 5 on."""
    store = open_plain(StorageEndpoint(f"file://{cli.store}"))
    log = mixed_log(store)
    log.archived(0, 5, 12)
    log.pack(1, 0, (5, 14))
    cli.configure(BROKER)
    yield log
    store.close()


def retired_logs(cli: CommandLine, tp: TopicPartition, topic_id: str) -> dict[str, bytes]:
    """The segments of a retired archive, by name."""
    prefix = LAYOUT.retired_prefix(tp) + topic_id + "/"
    return {
        key.removeprefix(prefix).removesuffix(FileKind.LOG.value): data
        for key, data in cli.stored().items()
        if key.startswith(prefix) and key.endswith(FileKind.LOG.value)
    }


def test_records_that_only_packs_have_are_promoted_before_the_archive_is_moved(
    cli: CommandLine, log: TailedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the packs go, and with them what the archive had anyway."""
    end = log.next_offset
    log.pack(2, 0, (14, end))
    cluster = TopicIdentity(LAYOUT.cluster)
    log.store.put_object(LAYOUT.layout_key(), BytesBody(note(LAYOUT.cluster)))
    now_is(monkeypatch, cluster)
    before = cli.stored()
    [row] = cli.json("retire", "orders", "--dry-run")["partitions"]
    assert (row["promoted_offsets"], row["left"]) == (end - 12, None)
    assert cli.stored() == before
    assert cli.run("retire", "orders") == 0, cli.err
    assert f"with {end - 12} offsets from tail packs" in cli.out
    stored = retired_logs(cli, log.tp, TAIL_ID)
    assert list(stored) == [f"{base:020d}" for base in (0, 5, 12)]
    assert b"".join(stored.values()) == b"".join(b.encoded() for b in log.batches)
    assert read_watermark(log.store, LAYOUT.watermark_key(log.tp)) is None
    assert cli.run("retire", "orders") == 0
    assert "retired before" in cli.out
    # Now nothing needs the packs.
    assert cli.run("gc", "--tail-packs", "--older-than", "0s", "--dry-run") == 0, cli.out
    assert "would drop 2 packs" in cli.out
    assert cli.run("gc", "--tail-packs", "--older-than", "0s") == 2
    assert "2 tail packs" in cli.err
    done = cli.json("gc", "--tail-packs", "--older-than", "0s", "--yes")
    assert [(each["dropped_packs"], each["kept"]) for each in done["brokers"]] == [(1, {})] * 2
    assert cli.json("tail", "status")["brokers"] == []


def note(cluster_id: str) -> bytes:
    return b'{"version": 1, "bits": 3, "kafka_cluster_id": "%s"}' % (cluster_id.encode())


def test_archive_stays_while_packs_have_records_that_cannot_be_promoted(
    cli: CommandLine, log: TailedLog
) -> None:
    """Behind a gap; and then in a pack that cannot be read."""
    at = next(border for border in borders(log) if border > 14)
    log.pack(1, 1, (at, log.next_offset))
    before = cli.stored()
    for words in (("--dry-run",), ()):
        [row] = cli.json("retire", "orders", "--offline", *words, code=3)["partitions"]
        assert "only tail packs have some of its records" in row["left"]
        assert f"offsets [{at}, {log.next_offset})" in row["left"]
        assert row["target"] is None
        assert cli.stored() == before
    damaged = LAYOUT.tail_pack_key(2, 0)
    log.store.put_object(damaged, BytesBody(b"damaged"))
    [row] = cli.json("retire", "orders", "--offline", code=3)["partitions"]
    assert f"{damaged} cannot be read" in row["left"]
    [row] = cli.json("retire", "orders", "--offline", "--without-tail")["partitions"]
    assert (row["promoted_offsets"], row["left"]) == (0, None)
    assert list(retired_logs(cli, log.tp, TAIL_ID)) == [f"{base:020d}" for base in (0, 5)]
    # The records stay in the packs, and gc says so.
    told = cli.json("gc", "--tail-packs", "--older-than", "0s", "--yes", code=3)
    kept = {what: why for broker in told["brokers"] for what, why in broker["kept"].items()}
    assert set(kept) == {damaged, f"orders-0, topic id {TAIL_ID}"}
    assert all(broker["dropped_packs"] == 0 for broker in told["brokers"])


def test_archive_stays_while_packs_have_records_of_a_recorded_gap(
    cli: CommandLine, log: TailedLog
) -> None:
    """Cleaning knows by the archive that they are to go to the quarantine."""
    log.pack(2, 0, (0, 5))
    log.store.put_object(LAYOUT.gap_key(log.tp, Offset(0), Offset(5)), BytesBody(b"{}"))
    before = cli.stored()
    [row] = cli.json("retire", "orders", "--offline", code=3)["partitions"]
    assert "lost the records from offset 0 on" in row["left"]
    assert cli.stored() == before


def test_topic_that_was_deleted_before_a_segment_was_archived(
    cli: CommandLine, log: TailedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if the brokers do not have it: otherwise its archive has not begun."""
    other = TailedLog(store=log.store, tp=TopicPartition("new", 0))
    other.write(9, 6, transactional=False)
    other.pack(1, 1, (0, 6))
    log.store.put_object(LAYOUT.layout_key(), BytesBody(note("id")))
    for identity in (TopicIdentity("id", TAIL_ID, 1), TopicIdentity("id", "another", 1)):
        now_is(monkeypatch, identity)
        assert cli.run("retire", "new") == 2
        assert "there is no topic new in the archive" in cli.err
    assert cli.run("retire", "new", "--offline") == 2
    now_is(monkeypatch, TopicIdentity("id"))
    [planned] = cli.json("retire", "new", "--dry-run")["partitions"]
    [row] = cli.json("retire", "new")["partitions"]
    assert row["promoted_offsets"] == planned["promoted_offsets"] == 6
    assert row["target"] == planned["target"] == LAYOUT.retired_prefix(other.tp) + f"{TAIL_ID}/"
    assert retired_logs(cli, other.tp, TAIL_ID) == {
        f"{0:020d}": b"".join(batch.encoded() for batch in other.batches)
    }


def test_gc_of_tail_packs_refuses_other_options(cli: CommandLine, log: TailedLog) -> None:
    for words in (
        ("--tail-packs", "--orphans"),
        ("--tail-packs", "--topic", "orders"),
        ("--deleted-topics",),
    ):
        assert cli.run("gc", *words) == 2
    # No broker answers, or another cluster: nothing is deleted.
    before = cli.stored()
    assert cli.run("gc", "--tail-packs", "--deleted-topics", "--yes", "--older-than", "0s") == 1
    assert cli.stored() == before
    assert log.next_offset
