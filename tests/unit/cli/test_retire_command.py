"""`sidetier retire` over a file-system store."""

import pytest
from confluent_kafka import Uuid

from sidetier.leadership.cluster import kafka_text
from sidetier.leadership.topic_identity import TopicIdentity
from sidetier.uploader import retire
from tests.harness.command_line import CommandLine
from tests.harness.log_dir import CLUSTER_ID, TOPIC_ID

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
