"""`sidetier tail` over a file-system store, and the commands that take no account of packs."""

import json
import shutil
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, TopicPartition

from sidetier import TieredConsumer
from sidetier.archive.reader import IsolationLevel
from sidetier.archive.tail.pack import PackBuilder, claim
from sidetier.segments.offsets import Offset
from sidetier.segments.offsets import TopicPartition as Partition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import StorageEndpoint
from tests.harness.command_line import CommandLine
from tests.harness.made_archive import LAYOUT
from tests.harness.tail_packs import TOPIC_ID, history
from tests.harness.tailed_log import TailedLog, mixed_log, store_pack


@pytest.fixture
def log(cli: CommandLine) -> Iterator[TailedLog]:
    """A log that is archived up to 12."""
    store = open_plain(StorageEndpoint(f"file://{cli.store}"))
    log = mixed_log(store)
    log.archived(0, 5, 12)
    yield log
    store.close()


def test_status_plan_and_promotion(cli: CommandLine, log: TailedLog) -> None:
    end = log.next_offset
    log.pack(1, 0, (5, 14))
    log.pack(2, 0, (14, end))
    found = cli.json("tail", "status")
    assert [(row["broker"], row["packs"]) for row in found["brokers"]] == [(1, 1), (2, 1)]
    [row] = found["partitions"]
    assert (row["archived_up_to"], row["safe_up_to"], row["tail_offsets"]) == (12, end, end - 12)
    assert row["newest_record_ms"] == 1_700_000_000_000 + end
    assert row["newest_record_age_seconds"] > 0
    assert row["brokers"] == [1, 2]
    assert cli.run("tail", "status") == 0
    assert "orders-0" in cli.out
    before = cli.stored()

    plan = cli.json("tail", "promote", "--dry-run")
    assert plan["partitions"] == found["partitions"] or plan["dry_run"]
    assert cli.run("tail", "promote", "--dry-run") == 0
    assert f"{end - 12} offsets of 1 partitions to promote" in cli.out
    assert cli.stored() == before

    done = cli.json("tail", "promote", "--partition", "orders-0")
    assert [(row["segments"], row["archived_up_to"]) for row in done["partitions"]] == [(1, end)]
    [listed] = cli.json("ls")["partitions"]
    assert listed["next_offset"] == end
    assert cli.run("verify", "--deep") == 0, cli.out
    assert cli.run("tail", "promote") == 0
    assert "0 partitions promoted" in cli.out
    assert cli.run("tail", "status") == 0
    assert "1 partitions have no record in packs that is not archived" in cli.out


def test_partition_that_only_has_a_claim_has_no_records(cli: CommandLine, log: TailedLog) -> None:
    log.pack(1, 0, (12, log.next_offset))
    builder = PackBuilder()
    empty = Partition("orders", 1)
    builder.add(claim(empty, TOPIC_ID, history((0, 0)), Offset(0), Offset(0)))
    store_pack(log.store, LAYOUT, builder, 1, 1)
    assert cli.run("consume", "orders", "--with-tail", "--count") == 0, cli.err


def test_named_partition_without_a_tail(cli: CommandLine, log: TailedLog) -> None:
    for words in (["status"], ["promote", "--dry-run"], ["promote"]):
        assert cli.run("tail", *words, "--partition", "orders-0") == 0, cli.err
        assert "orders-0: no tail pack has records of it; archived up to 12" in cli.err
    key = LAYOUT.tail_pack_key(2, 0)
    log.store.put_object(key, BytesBody(b"damaged"))
    assert cli.run("tail", "promote", "--partition", "orders-1") == 2
    assert "nothing of it is archived" in cli.err
    assert key in cli.err
    assert cli.run("tail", "status", "--partition", "orders-0") == 3
    assert key in cli.out
    assert cli.run("tail", "status", "--partition", "orders") == 2


def test_losses_are_findings_with_their_reason(cli: CommandLine, log: TailedLog) -> None:
    log.pack(1, 0, (12, 14))
    log.pack(1, 1, (18, 19))
    for words in (["status"], ["promote", "--dry-run"], ["promote"], ["promote"]):
        assert cli.run("tail", *words) == 3
        assert "orders-0: offsets [14, 18) are lost: no pack has them" in cli.out
    [row] = cli.json("tail", "status", code=3)["partitions"]
    assert row["gap"] == {"start_offset": 14, "end_offset": 18}
    assert [each["reason"] for each in row["not_used"]] == ["gap"]


def test_packs_that_cannot_be_read_are_accepted_by_the_operator(
    cli: CommandLine, log: TailedLog
) -> None:
    end = log.next_offset
    log.pack(1, 0, (12, end))
    key = LAYOUT.tail_pack_key(2, 0)
    log.store.put_object(key, BytesBody(b"damaged"))
    for words in (["status"], ["promote", "--dry-run"], ["promote"]):
        assert cli.run("tail", *words) == 3
        assert f"orders-0: {key} cannot be read, and may show" in cli.out
    [row] = cli.json("tail", "status", code=3)["partitions"]
    assert (row["safe_up_to"], row["not_used"][0]["reason"]) == (12, "unread")
    assert cli.run("consume", "orders", "--with-tail") == 1
    assert key in cli.err
    accepted = cli.json("tail", "promote", "--accept-unread", code=3)
    assert [row["archived_up_to"] for row in accepted["partitions"]] == [end]
    assert list(accepted["problems"]) == [key]


def test_records_that_the_cluster_has_lost_are_findings(cli: CommandLine, log: TailedLog) -> None:
    """After a power failure: the next leader begins below what was stored."""
    end = log.next_offset
    log.pack(1, 0, (12, end))
    builder = PackBuilder()
    epochs = history((0, 0), (2, 18))
    builder.add(claim(log.tp, TOPIC_ID, epochs, Offset(0), Offset(0)))
    store_pack(log.store, LAYOUT, builder, 1, 1)
    assert cli.run("tail", "status") == 3
    assert f"{end - 18} offsets were committed, and the newest leader has lost them" in cli.out
    [row] = cli.json("tail", "status", code=3)["partitions"]
    assert (row["stale_offsets"], row["safe_up_to"]) == (end - 18, 18)


def test_readers_with_and_without_the_tail(cli: CommandLine, log: TailedLog) -> None:
    end = log.next_offset
    log.pack(1, 0, (5, 14))
    log.pack(2, 0, (14, end))
    uncommitted = ("--isolation", "read_uncommitted")
    for words, isolation, to in (
        ((), IsolationLevel.READ_COMMITTED, 12),
        (uncommitted, IsolationLevel.READ_UNCOMMITTED, 12),
        (("--with-tail",), IsolationLevel.READ_COMMITTED, end),
        (("--with-tail", *uncommitted), IsolationLevel.READ_UNCOMMITTED, end),
    ):
        assert cli.run("consume", "orders", *words) == 0, cli.err
        assert [json.loads(line)["offset"] for line in cli.lines()] == log.offsets(isolation, to)
    assert cli.run("consume", "orders", "0", "--with-tail", "--from", "-2", *uncommitted) == 0
    assert [json.loads(line)["offset"] for line in cli.lines()] == [end - 2, end - 1]
    assert cli.run("consume", "orders", "--with-tail", "--mode", "KAFKA_PREFERRED") == 2
    assert "--with-tail is only for --mode TIERED_STORAGE_ONLY" in cli.err

    consumer = TieredConsumer(
        {
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_uncommitted",
            "enable.partition.eof": True,
            "tiered.storage.mode": "TIERED_STORAGE_ONLY",
            "tiered.storage.url": f"file://{cli.store}",
            "tiered.storage.cluster.name": "prod-a",
            "tiered.storage.prefix.entropy.bits": 3,
            "tiered.storage.with.tail": "true",
        }
    )
    try:
        assert consumer.get_watermark_offsets(TopicPartition("orders", 0)) == (0, end)
        consumer.assign([TopicPartition("orders", 0)])
        offsets: list[int] = []
        while True:
            message = consumer.poll(10.0)
            assert message is not None
            error, offset = message.error(), message.offset()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF
                break
            assert offset is not None
            offsets.append(offset)
    finally:
        consumer.close()
    assert offsets == log.offsets(IsolationLevel.READ_UNCOMMITTED, end)


def test_topic_that_only_packs_have(cli: CommandLine, log: TailedLog) -> None:
    new = TailedLog(store=log.store, tp=Partition("new", 3))
    new.write(1, 2, transactional=False)
    new.pack(1, 7, (0, 2))
    assert cli.run("consume", "new", "--with-tail") == 0, cli.err
    assert [json.loads(line)["partition"] for line in cli.lines()] == [3, 3]
    assert cli.run("consume", "new") == 2
    assert cli.json("tail", "promote", "--topic", "new")["partitions"][0]["archived_up_to"] == 2
    assert cli.run("consume", "new") == 0


def test_selection(cli: CommandLine, log: TailedLog) -> None:
    log.pack(1, 0, (12, 14))
    assert cli.run("tail", "status", "--topic", "other.*") == 0
    assert "orders-0" not in cli.out
    assert cli.run("tail", "promote", "--topic", "ord.*", "--dry-run") == 0
    assert "orders-0" in cli.out
    assert cli.run("tail", "promote", "--partition", "orders-1") == 2
    assert "no tail pack has records of orders-1" in cli.err
    assert cli.run("tail", "promote", "--topic", "(") == 2


def test_no_packs_is_said(cli: CommandLine, log: TailedLog) -> None:
    del log
    assert cli.run("tail", "status") == 0
    assert "has no tail packs: see uploader.tail.interval" in cli.out
    assert cli.run("tail", "promote") == 0


@pytest.mark.parametrize(
    "words",
    [
        ["ls"],
        ["ls", "orders", "0"],
        ["verify", "--deep"],
        ["gc", "--dry-run"],
        ["gc", "--yes"],
        ["gc", "--orphans", "--older-than", "0s", "--dry-run"],
        ["repair", "--dry-run"],
        ["locate", "orders", "0"],
    ],
    ids=" ".join,
)
def test_packs_are_not_the_archive(cli: CommandLine, log: TailedLog, words: list[str]) -> None:
    rule = {"topics": ["orders"], "age": "1d"}
    cli.configure({"retention": {"store": [rule]}})
    assert cli.run("repair") == 0  # writes the _metadata, which gc needs
    contents = cli.stored()
    shutil.copytree(cli.store, cli.root / "before")
    before = _output(cli, words)
    changed = cli.stored()
    assert (changed != contents) == ("--yes" in words)
    shutil.rmtree(cli.store)
    shutil.copytree(cli.root / "before", cli.store)
    log.pack(1, 0, (5, 14))
    log.pack(2, 0, (14, log.next_offset))
    packs = {key: data for key, data in cli.stored().items() if "/tail/" in key}
    assert _output(cli, words) == before
    assert packs.items() <= cli.stored().items()


def _output(cli: CommandLine, words: list[str]) -> tuple[int, list[str]]:
    code = cli.run(*words, "--output", "json")
    return code, [line for line in cli.lines() if '"seconds"' not in line]


def test_drill_samples_the_tail_and_changes_nothing(cli: CommandLine, log: TailedLog) -> None:
    end = log.next_offset
    log.pack(1, 0, (12, 18))
    log.pack(2, 0, (18, end))
    # A partition that only packs have, with records of another topic id behind them.
    other = mixed_log(log.store)
    other.tp = Partition("orders", 1)
    other.pack(3, 0, (0, 12))
    before = cli.stored()
    drill = ("drill", "--dry-run", "--segments", "1")
    found = cli.json(*drill, "--with-tail")["partitions"]
    assert [(one["start"], one["end"], one["tail_offsets"]) for one in found] == [
        (12, end, end - 12),
        (0, 12, 12),
    ]
    assert cli.run(*drill, "--with-tail", "--seed", "1") == 0
    assert f"{end} offsets of them in tail packs" in cli.out
    assert cli.stored() == before
    assert cli.json(*drill, "--newest")["partitions"][0]["end"] == 12
    assert not list(cli.root.glob("sidetier-drill-*"))
