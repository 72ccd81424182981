"""`sidetier gc` over a file-system store."""

import json
import os
import shutil
import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry

from sidetier.archive.access import open_archive
from sidetier.archive.gc import GarbageCollector, GcRequest, needs
from sidetier.archive.objects.pinterest_metadata import decode_metadata
from sidetier.archive.objects.watermark import (
    decode_watermark,
    read_watermark,
    write_watermark,
)
from sidetier.config.retention import RetentionConfig
from sidetier.config.storage import StorageConfig
from sidetier.endpoint.groups.coordinator import GroupCoordinator
from sidetier.endpoint.groups.expiry import GroupExpiry
from sidetier.endpoint.groups.stored_offsets import (
    GroupObjects,
    StoredGroup,
    StoredOffset,
    encode_group,
)
from sidetier.endpoint.metrics import GroupMetrics
from sidetier.leadership.topic_identity import TopicIdentity
from sidetier.mirror import gc_consumer
from sidetier.mirror.topics.rules import Lineage
from sidetier.pipeline.export.sinks.tables.commit_metadata import Progress, to_properties
from sidetier.pipeline.export.state import Tail
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.notes import NEXT_OFFSET_KEY
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.factory import open_storage
from sidetier.storage.port import PutOptions
from sidetier.storage.settings import StorageEndpoint
from sidetier.wire.protocol import ApiKey
from sidetier.wire.requests import CommittedOffset
from tests.harness.command_line import CommandLine
from tests.harness.fake_broker import (
    FakeBroker,
    Received,
    committed_by,
    coordinated_by,
    fake_broker,
    led_by,
)
from tests.harness.log_dir import CLUSTER_ID, TOPIC_ID

AGE: dict[str, Any] = {"topics": ["orders"], "age": "1d"}
"""The records of the tests are of 2023."""


def with_rules(cli: CommandLine, *rules: dict[str, Any]) -> CommandLine:
    cli.configure({"retention": {"store": list(rules)}})
    return cli


@pytest.fixture
def stored(cli: CommandLine) -> CommandLine:
    """Archives of orders-0, orders-1 and pay-0, with three segments of ten records each."""
    for topic, number in (("orders", 0), ("orders", 1), ("pay", 0)):
        cli.log_dir.create(topic, number).closed_segments(3)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill") == 0
    return cli


def logs(cli: CommandLine, partition: str) -> list[int]:
    """The base offsets of the stored `.log`s of a partition."""
    names = (key.rpartition("/") for key in cli.stored() if key.endswith(".log"))
    return sorted(int(name[:20]) for folder, _, name in names if folder.endswith(f"/{partition}"))


def age_files(cli: CommandLine, days: float) -> None:
    """Set the time at which every object was stored."""
    then = time.time_ns() / 1e9 - days * 86400
    for path in cli.store.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))


def test_without_a_rule_nothing_is_deleted(stored: CommandLine) -> None:
    before = stored.stored()
    assert stored.run("gc", "--yes") == 2
    assert "retention.store is not set" in stored.err
    with_rules(stored, AGE)
    assert stored.run("gc", "--yes", "--topic", "pay") == 2
    assert "no rule for topic pay" in stored.err
    assert stored.stored() == before


def test_dry_run_shows_what_would_be_deleted_and_writes_nothing(stored: CommandLine) -> None:
    with_rules(stored, AGE)
    before = stored.stored()
    told = stored.json("gc", "--dry-run")
    assert told["segments"] == 4
    assert [
        (row["topic"], row["partition"], row["start_offset"], row["new_start_offset"])
        for row in told["partitions"]
    ] == [("orders", 0, 0, 20), ("orders", 1, 0, 20)]
    assert {row["reason"] for row in told["partitions"]} == {"the newest segment is always kept"}
    assert stored.run("gc", "--dry-run", "--topic", "orders") == 0
    assert "4 segments" in stored.out
    assert "would be deleted" in stored.out
    assert stored.stored() == before


def test_only_topics_with_a_rule_lose_their_oldest_segments(stored: CommandLine) -> None:
    with_rules(stored, AGE)
    before = stored.stored()
    told = stored.json("gc", "--yes")
    assert told["dry_run"] is False
    assert logs(stored, "orders-0") == logs(stored, "orders-1") == [20]
    assert logs(stored, "pay-0") == [0, 10, 20]
    freed = sum(map(len, before.values())) - sum(map(len, stored.stored().values()))
    # `offset.wm` and `_metadata` were written anew.
    assert abs(freed - told["size_bytes"]) < 1000
    [mark] = [data for key, data in stored.stored().items() if key.endswith("orders-0/offset.wm")]
    assert decode_watermark(mark, "").start_offset == 20
    [rows] = [data for key, data in stored.stored().items() if key.endswith("orders-0/_metadata")]
    assert [entry.base_offset for entry in decode_metadata(rows, "").entries] == [20]
    again = stored.json("gc", "--yes")
    assert (again["segments"], again["size_bytes"]) == (0, 0)


def test_bytes_count_for_each_partition(stored: CommandLine) -> None:
    [size] = {
        len(data)
        for key, data in stored.stored().items()
        if key.endswith(".log") and "/orders-" in key
    }
    with_rules(stored, {"topics": ["orders"], "bytes": 2 * size})
    stored.json("gc", "--yes")
    assert logs(stored, "orders-0") == logs(stored, "orders-1") == [10, 20]


def test_without_a_terminal_yes_must_be_given(stored: CommandLine) -> None:
    with_rules(stored, AGE)
    before = stored.stored()
    assert stored.run("gc") == 2
    assert "--yes" in stored.err
    assert stored.stored() == before


def test_ls_and_consume_show_the_rest_of_the_archive(stored: CommandLine) -> None:
    with_rules(stored, AGE)
    stored.json("gc", "--yes")
    told = stored.json("ls", "orders")
    assert [row["segments"] for row in told["partitions"]] == [1, 1]
    assert stored.run("consume", "orders", "0") == 0
    assert len(stored.lines()) == 10


def answering(
    offsets: Mapping[int, int], metadata: str = "", topic_id: str | None = TOPIC_ID
) -> needs.GroupAnswer:
    """Return brokers' answer about a group in orders."""
    committed = {
        TopicPartition("orders", number): CommittedOffset(Offset(at), metadata=metadata)
        for number, at in offsets.items()
    }
    return needs.GroupAnswer("orders", committed, TopicIdentity(CLUSTER_ID, topic_id, 2))


def group_at(monkeypatch: pytest.MonkeyPatch, offsets: dict[int, int]) -> None:
    """Set the committed offsets of every consumer group in orders."""
    monkeypatch.setattr(needs, "ask_group", lambda *_: answering(offsets))


@pytest.fixture
def group_broker(stored: CommandLine) -> Iterator[FakeBroker]:
    """The archive's broker. The group billing, which a rule protects, has committed 15 and 100."""
    with fake_broker() as broker:
        tells(broker)
        broker.answers |= {
            ApiKey.FIND_COORDINATOR: lambda request: coordinated_by(broker, request),
            ApiKey.OFFSET_FETCH: lambda request: committed_by(request, {0: 15, 1: 100}),
        }
        servers = str(broker.address)
        stored.configure({"broker": {"bootstrap_servers": servers}})
        with_rules(stored, {**AGE, "keep_for": {"groups": ["billing"]}})
        yield broker


def tells(broker: FakeBroker, *answers: dict[str, Any]) -> None:
    """Set what the broker says about orders: the archive's ids, except for these values. Its last
    answer is repeated.
    """
    known = {"cluster_id": CLUSTER_ID, "topic_id": uuid_of(TOPIC_ID), "partitions": 2}
    queue = [{**known, **answer} for answer in answers] or [known]

    def answer(request: Received) -> bytes:
        values = dict(queue.pop(0) if len(queue) > 1 and request.entity.topics else queue[0])
        partitions = [
            TopicPartition("orders", number) for number in range(values.pop("partitions"))
        ]
        return led_by(broker, request, *partitions, **values)

    broker.answers[ApiKey.METADATA] = answer


def uuid_of(topic_id: str) -> UUID:
    return UUID(bytes=urlsafe_b64decode(f"{topic_id}=="))


def test_segments_that_a_group_needs_are_kept(
    stored: CommandLine, group_broker: FakeBroker
) -> None:
    told = stored.json("gc", "--yes")
    assert [row["new_start_offset"] for row in told["partitions"]] == [10, 20]
    assert told["partitions"][0]["reason"] == "consumer group billing still needs offset 15"
    asked = [api for api in group_broker.apis() if api is not ApiKey.FIND_COORDINATOR]
    at = asked.index(ApiKey.OFFSET_FETCH)
    assert ApiKey.METADATA in asked[:at], "the ids are read before the offsets"
    assert ApiKey.METADATA in asked[at:], "and after them"


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (
            [{"topic_id": UUID(int=7)}],
            f"of another topic of the same name: topic id {'A' * 20}Bw, and the archive has",
        ),
        ([{"topic_id": None}], "reports no id of topic orders, so the committed offsets may be"),
        ([{"topic_id": UUID(int=0)}], "reports no id of topic orders"),
        ([{"partitions": 0}], "has no topic orders"),
        (
            [{"cluster_id": "another"}],
            f"the brokers belong to the Kafka cluster another, and the archive to {CLUSTER_ID}",
        ),
        ([{"cluster_id": None}], "the brokers report no cluster id"),
        (
            [{}, {"topic_id": UUID(int=7)}],
            "changed while its committed offsets were read",
        ),
        ([{}, {"cluster_id": "another"}], "changed while its committed offsets were read"),
    ],
)
def test_group_of_another_topic_or_cluster_is_not_the_archives(
    stored: CommandLine, group_broker: FakeBroker, answers: list[dict[str, Any]], reason: str
) -> None:
    """Its committed offset says nothing about the archived records, so all of them stay."""
    tells(group_broker, *answers)
    blocked = blocked_by(stored)
    assert "consumer group billing: " in blocked
    assert reason in blocked


@pytest.mark.usefixtures("group_broker")
def test_group_protects_all_of_an_archive_whose_cluster_is_not_known(stored: CommandLine) -> None:
    note = stored.store / "_sidetier/prod-a/layout.json"
    known = json.loads(note.read_text())
    note.write_text(json.dumps({**known, "kafka_cluster_id": None}))
    assert "layout.json has no Kafka cluster id" in blocked_by(stored)


def test_unknown_progress_keeps_every_partition_of_the_topic(
    stored: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.configure({"broker": {"bootstrap_servers": "127.0.0.1:1"}})
    with_rules(
        stored, {**AGE, "keep_for": {"groups": ["billing"]}}, {"topics": ["pay"], "age": "1d"}
    )
    group_at(monkeypatch, {0: 30})
    told = stored.json("gc", "--yes", code=3)
    blocked = [row for row in told["partitions"] if row["topic"] == "orders"]
    assert {row["reason"] for row in blocked} == {
        "consumer group billing: its progress in orders-1 is unknown"
    }
    assert all(row["blocked"] for row in blocked)
    assert logs(stored, "orders-0") == logs(stored, "orders-1") == [0, 10, 20]
    assert logs(stored, "pay-0") == [20], "other topics continue"


def test_group_needs_a_broker(stored: CommandLine) -> None:
    """Nothing is deleted of the topic before it either."""
    rule = {"topics": ["pay"], "age": "1d", "keep_for": {"groups": ["billing"]}}
    with_rules(stored, AGE, rule)
    before = stored.stored()
    assert stored.run("gc", "--yes") == 2
    assert "broker.bootstrap_servers" in stored.err
    assert stored.stored() == before


def test_export_that_is_behind_keeps_its_segments(stored: CommandLine, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with_rules(stored, {**AGE, "keep_for": {"exports": [{"into": f"file://{lake}"}]}})
    told = stored.json("gc", "--yes", code=3)
    assert "no such directory" in told["partitions"][0]["reason"]
    lake.mkdir()
    told = stored.json("gc", "--yes", code=3)
    assert "it has not exported topic orders yet" in told["partitions"][0]["reason"]
    assert logs(stored, "orders-0") == [0, 10, 20]
    export = ("export", "files", "orders", "--into", f"file://{lake}", "--flush-size", "10")
    assert stored.run(*export) == 0, stored.err
    manifest_file = lake / "topics/orders/_sidetier/manifest.json"
    manifest = json.loads(manifest_file.read_text())
    assert manifest["next_offsets"] == {"0": 30, "1": 30}
    manifest["next_offsets"] = {"0": 10, "1": 25}
    manifest_file.write_text(json.dumps(manifest))
    told = stored.json("gc", "--yes")
    assert [row["new_start_offset"] for row in told["partitions"]] == [10, 20]
    assert "export to file://" in told["partitions"][0]["reason"]


def store_table(
    location: Path, offsets: Mapping[TopicPartition, Offset], topic_id: str | None
) -> None:
    """Store the metadata of an Iceberg table whose export has reached these offsets of orders."""
    tail = Tail(topic_ids={} if topic_id is None else {"orders": topic_id})
    progress = Progress("prod-a", IsolationLevel.READ_COMMITTED, offsets, {}, "a", tail)
    snapshot = {"snapshot-id": 1, "summary": to_properties(progress)}
    document = {"current-snapshot-id": 1, "snapshots": [snapshot]}
    (location / "metadata").mkdir(parents=True, exist_ok=True)
    (location / "metadata/v1.metadata.json").write_text(json.dumps(document))


def test_table_that_is_behind_keeps_its_segments(stored: CommandLine, tmp_path: Path) -> None:
    location = tmp_path / "lake/db/orders"
    table = {"format": "iceberg", "location": f"file://{location}"}
    with_rules(stored, {**AGE, "keep_for": {"tables": [table]}})
    told = stored.json("gc", "--yes", code=3)
    assert "no such directory" in told["partitions"][0]["reason"]
    (location / "metadata").mkdir(parents=True)
    told = stored.json("gc", "--yes", code=3)
    assert told["partitions"][0]["reason"] == (
        f"export to the Iceberg table file://{location}: there is no Iceberg table: metadata/ has "
        "no metadata file"
    )
    assert logs(stored, "orders-0") == [0, 10, 20]

    def exported(offsets: dict[TopicPartition, Offset]) -> None:
        store_table(location, offsets, TOPIC_ID)

    exported({TopicPartition("orders", 0): Offset(10)})
    told = stored.json("gc", "--yes", code=3)
    assert "its progress in orders-1 is unknown" in told["partitions"][0]["reason"]
    assert logs(stored, "orders-0") == [0, 10, 20]
    exported({TopicPartition("orders", 0): Offset(10), TopicPartition("orders", 1): Offset(25)})
    told = stored.json("gc", "--yes")
    assert [row["new_start_offset"] for row in told["partitions"]] == [10, 20]
    assert "still needs offset 10" in told["partitions"][0]["reason"]


NEW_ID = "AAAAAAAAAAAAAAAAAAAAAw"
TARGET_ID = "AAAAAAAAAAAAAAAAAAAABA"


def recreate(cli: CommandLine) -> None:
    """Retire the archive of orders, and archive a new topic of the same name."""
    assert cli.run("retire", "orders", "--offline") == 0, cli.err
    for partition in (0, 1):
        shutil.rmtree(cli.log_dir.path / f"orders-{partition}")
        cli.log_dir.create("orders", partition, topic_id=NEW_ID).closed_segments(3)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill") == 0, cli.err
    assert logs(cli, "orders-0") == [0, 10, 20]


def blocked_by(cli: CommandLine) -> str:
    """Run gc; return why it has deleted nothing of orders."""
    [reason] = {row["reason"] for row in cli.json("gc", "--yes", code=3)["partitions"]}
    assert logs(cli, "orders-0") == logs(cli, "orders-1") == [0, 10, 20]
    return str(reason)


def test_export_of_a_deleted_topic_protects_the_new_one(
    stored: CommandLine, tmp_path: Path
) -> None:
    """The export halts at the new topic, so it has read none of its records."""
    lake = tmp_path / "lake"
    lake.mkdir()
    export = ("export", "files", "orders", "--into", f"file://{lake}", "--flush-size", "10")
    assert stored.run(*export) == 0, stored.err
    recreate(stored)
    assert stored.run(*export) != 0
    with_rules(stored, {**AGE, "keep_for": {"exports": [{"into": f"file://{lake}"}]}})
    assert blocked_by(stored) == (
        f"orders-0: export to file://{lake}: its offset is of another topic of the same name: "
        f"topic id {TOPIC_ID}, and the archive has {NEW_ID}"
    )


@pytest.mark.parametrize(
    ("topic_id", "reason"),
    [(TOPIC_ID, f"topic id {TOPIC_ID}, and the archive has {NEW_ID}"), (None, "has no topic id")],
)
def test_table_of_a_deleted_topic_protects_the_new_one(
    stored: CommandLine, tmp_path: Path, topic_id: str | None, reason: str
) -> None:
    location = tmp_path / "lake/orders"
    offsets = {TopicPartition("orders", number): Offset(1000) for number in (0, 1)}
    store_table(location, offsets, topic_id)
    recreate(stored)
    table = {"format": "iceberg", "location": f"file://{location}"}
    with_rules(stored, {**AGE, "keep_for": {"tables": [table]}})
    assert reason in blocked_by(stored)


@pytest.mark.parametrize("topic_id", [None, TOPIC_ID])
def test_archive_without_a_topic_id_needs_progress_without_one(
    stored: CommandLine, tmp_path: Path, topic_id: str | None
) -> None:
    """As after Pinterest's uploader, and of brokers before 2.8."""
    with closing(open_storage(StorageEndpoint(f"file://{stored.store}"))) as store:
        for key in stored.stored():
            if key.endswith("/offset.wm") and "/orders-" in key:
                mark = read_watermark(store, key)
                assert mark is not None
                write_watermark(store, key, replace(mark.watermark, topic_id=None), mark.etag)
    location = tmp_path / "lake/orders"
    offsets = {TopicPartition("orders", number): Offset(10) for number in (0, 1)}
    store_table(location, offsets, topic_id)
    table = {"format": "iceberg", "location": f"file://{location}"}
    with_rules(stored, {**AGE, "keep_for": {"tables": [table]}})
    if topic_id is None:
        stored.json("gc", "--yes")
        assert logs(stored, "orders-0") == [10, 20]
    else:
        assert "the archive has no topic id" in blocked_by(stored)


def test_mirror_of_a_deleted_topic_protects_the_new_one(
    stored: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = tmp_path / "target.properties"
    target.write_text("bootstrap.servers=127.0.0.1:1\n")
    mirrors = [{"name": "dr", "target_config": str(target)}]
    with_rules(stored, {**AGE, "keep_for": {"mirrors": mirrors}})

    def mirrored(metadata: str) -> None:
        answer = answering({0: 10, 1: 10}, metadata, topic_id=TARGET_ID)
        monkeypatch.setattr(gc_consumer, "ask_group", lambda *_: answer)

    def lineage(source_id: str, target_id: str | None = None) -> str:
        return Lineage("orders", ("source",), source_id, target_id).encoded()

    same, other, copy = (str(uuid_of(topic_id)) for topic_id in (TOPIC_ID, NEW_ID, TARGET_ID))
    mirrored(lineage(other))
    assert f"topic id {NEW_ID}, and the archive has {TOPIC_ID}" in blocked_by(stored)
    mirrored("")
    assert "mirror dr: it has no topic id" in blocked_by(stored)
    mirrored(lineage("x"))
    assert "is 'x', which is not a topic id" in blocked_by(stored)
    mirrored(lineage(same, other))
    assert f"is of topic id {NEW_ID} on the target, and the target has" in blocked_by(stored)
    mirrored(lineage(same, copy))
    stored.json("gc", "--yes")
    assert logs(stored, "orders-0") == [10, 20]


def test_group_of_a_topic_that_is_recreated_meanwhile_deletes_nothing(
    stored: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its committed offset is of the topic whose archive is retired before gc surveys it."""
    stored.configure({"broker": {"bootstrap_servers": "127.0.0.1:1"}})
    with_rules(stored, {**AGE, "keep_for": {"groups": ["billing"]}})
    committed = answering({0: 30, 1: 30})

    def answer(*_: object) -> needs.GroupAnswer:
        monkeypatch.setattr(needs, "ask_group", lambda *_: committed)
        stored.configure({"broker": {"bootstrap_servers": None}})
        recreate(stored)
        return committed

    monkeypatch.setattr(needs, "ask_group", answer)
    [reason] = {row["reason"] for row in stored.json("gc", "--yes", code=3)["partitions"]}
    assert reason == (
        "consumer group billing: its offset is of another topic of the same name: topic id "
        f"{TOPIC_ID}, and the archive has {NEW_ID}"
    )
    assert logs(stored, "orders-0") == logs(stored, "orders-1") == [0, 10, 20]


def test_damaged_hudi_table_keeps_everything(stored: CommandLine, tmp_path: Path) -> None:
    table = {"format": "hudi", "location": f"file://{tmp_path}/lake"}
    with_rules(stored, {**AGE, "keep_for": {"tables": [table]}})
    timeline = tmp_path / "lake/.hoodie/timeline"
    timeline.mkdir(parents=True)
    (timeline.parent / "hoodie.properties").write_text("hoodie.table.version=9\n")
    (timeline / "20260101000000000_20260101000000005.commit").write_bytes(b"x")
    told = stored.json("gc", "--yes", code=3)
    assert "not the metadata of a commit" in told["partitions"][0]["reason"]
    assert logs(stored, "orders-0") == [0, 10, 20]


def local_group(
    cli: CommandLine, offsets: dict[int, int], topic_id: str | None = None, text: bytes = b""
) -> None:
    """Store the offsets in orders that a group has committed at an endpoint."""
    committed = {
        TopicPartition("orders", number): StoredOffset(Offset(at), topic_id=topic_id)
        for number, at in offsets.items()
    }
    key = ArchiveLayout("prod-a", 3).group_key("billing")
    assert key is not None
    with closing(open_storage(StorageEndpoint(f"file://{cli.store}"))) as store:
        data = text or encode_group(StoredGroup("billing", "x", "host", offsets=committed))
        store.put_object(key, BytesBody(data))


def expire_groups(cli: CommandLine) -> None:
    """Delete all groups, as an endpoint deletes those that nobody has used for long."""
    with (
        closing(open_storage(StorageEndpoint(f"file://{cli.store}"))) as store,
        ThreadPoolExecutor(1) as pool,
    ):
        objects = GroupObjects(store, ArchiveLayout("prod-a", 3), "x", "host", pool)
        coordinator = GroupCoordinator(objects, GroupMetrics(CollectorRegistry()))
        GroupExpiry(objects, coordinator, retention=-86_400.0).run_once()


def test_segments_that_a_local_group_needs_are_kept(stored: CommandLine) -> None:
    with_rules(stored, {**AGE, "keep_for": {"local_groups": ["billing"]}})
    told = stored.json("gc", "--yes", code=3)
    assert "has committed no offset yet" in told["partitions"][0]["reason"]
    local_group(stored, {0: 15}, TOPIC_ID)
    told = stored.json("gc", "--yes", code=3)
    assert told["partitions"][0]["reason"] == (
        "local group billing: its progress in orders-1 is unknown"
    )
    local_group(stored, {}, text=b"{")
    told = stored.json("gc", "--yes", code=3)
    assert "not the offsets of a group" in told["partitions"][0]["reason"]
    local_group(stored, {0: 15, 1: 20}, topic_id="AAAAAAAAAAAAAAAAAAAAAw")
    told = stored.json("gc", "--yes", code=3)
    assert "of another topic of the same name" in told["partitions"][0]["reason"]
    assert logs(stored, "orders-0") == logs(stored, "orders-1") == [0, 10, 20]
    local_group(stored, {0: 15, 1: 20})
    told = stored.json("gc", "--yes", code=3)
    assert "it has no topic id with its offset" in told["partitions"][0]["reason"]
    local_group(stored, {0: 15, 1: 20}, TOPIC_ID)
    told = stored.json("gc", "--yes")
    assert [row["new_start_offset"] for row in told["partitions"]] == [10, 20]
    assert told["partitions"][0]["reason"] == "local group billing still needs offset 15"
    left = logs(stored, "orders-0"), logs(stored, "orders-1")
    expire_groups(stored)
    told = stored.json("gc", "--yes", code=3)
    assert "has committed no offset yet" in told["partitions"][0]["reason"]
    assert (logs(stored, "orders-0"), logs(stored, "orders-1")) == left


def test_metrics_of_a_run(stored: CommandLine, tmp_path: Path) -> None:
    with_rules(stored, AGE)
    file = tmp_path / "gc.prom"
    assert stored.run("gc", "--yes", "--metrics-file", str(file)) == 0
    text = file.read_text()
    assert 'sidetier_gc_deleted_segments{topic="orders"} 4.0' in text
    assert 'sidetier_gc_blocked_partitions{topic="orders"} 0.0' in text
    assert "sidetier_gc_last_run_timestamp_seconds" in text


def test_interrupted_run_deletes_nothing_more(stored: CommandLine) -> None:
    """Threads that wait for the rate would otherwise delete the rest at once."""
    url = f"file://{stored.store}"
    storage = StorageConfig.model_validate({"url": url, "prefix_entropy_bits": 3})
    rules = RetentionConfig.model_validate({"store": [AGE]})
    stop = threading.Event()
    stop.set()
    with (
        open_archive("prod-a", storage) as archive,
        GarbageCollector(archive, storage, GcRequest(), stop=stop) as collector,
    ):
        report = collector.retention(rules, dry_run=False)
    assert {row.problem for row in report.rows} == {"interrupted; the next run deletes the rest"}
    assert logs(stored, "orders-0") == logs(stored, "orders-1") == [0, 10, 20]


def test_orphans_are_found_and_old_ones_deleted(stored: CommandLine) -> None:
    [folder] = {path.parent for path in stored.store.rglob("*.log") if "orders-0" in str(path)}
    below = folder / f"{5:020d}.index"
    above = folder / f"{30:020d}.log"
    below.write_bytes(b"")
    above.write_bytes(b"x")
    told = stored.json("gc", "--orphans", "--yes")
    assert [(entry["kind"], entry["deleted"]) for entry in told["orphans"]] == [
        ("without_log", False),
        ("above_end", False),
    ]
    age_files(stored, days=8)
    before = stored.stored()
    assert stored.run("gc", "--orphans", "--dry-run") == 0
    assert "1 would be deleted" in stored.out
    assert stored.stored() == before
    told = stored.json("gc", "--orphans", "--yes", "--older-than", "7d")
    assert [entry["deleted"] for entry in told["orphans"]] == [True, False]
    assert before.keys() - stored.stored().keys() == {below.relative_to(stored.store).as_posix()}


def test_quarantined_objects_are_deleted_on_request_only(stored: CommandLine) -> None:
    folder = stored.store / "_sidetier/prod-a/quarantine/orders-0/x"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}.log").write_bytes(b"x")
    age_files(stored, days=8)
    told = stored.json("gc", "--orphans", "--yes")
    assert [(entry["kind"], entry["deleted"]) for entry in told["orphans"]] == [
        ("quarantined", False)
    ]
    told = stored.json("gc", "--orphans", "--quarantined", "--yes")
    assert [entry["deleted"] for entry in told["orphans"]] == [True]
    assert not any("/quarantine/" in key for key in stored.stored())


def test_quarantined_objects_of_a_topic(stored: CommandLine) -> None:
    for name in ("orders-0", "orders-eu-0", "pay-0"):
        folder = stored.store / "_sidetier/prod-a/quarantine" / name / "x"
        folder.mkdir(parents=True)
        (folder / f"{0:020d}.log").write_bytes(b"x")
    age_files(stored, days=8)
    line = ("gc", "--orphans", "--quarantined", "--yes", "--topic", "orders")
    [deleted] = stored.json(*line)["orphans"]
    assert deleted["deleted"]
    left = {key for key in stored.stored() if "/quarantine/" in key}
    assert "/quarantine/orders-0/" in deleted["key"]
    assert {key.split("/")[3] for key in left} == {"orders-eu-0", "pay-0"}


def test_quarantine_that_is_not_finished_is_not_touched(stored: CommandLine) -> None:
    target = "_sidetier/prod-a/quarantine/orders-0/x/"
    folder = stored.store / target
    folder.mkdir(parents=True)
    (folder / "plan.json").write_bytes(b"{}")
    [key] = [key for key in stored.stored() if key.endswith("/orders-0/offset.wm")]
    with closing(open_storage(StorageEndpoint(f"file://{stored.store}"))) as store:
        mark = read_watermark(store, key)
        assert mark is not None
        write_watermark(store, key, replace(mark.watermark, pending=target), mark.etag)
    age_files(stored, days=8)
    told = stored.json("gc", "--orphans", "--quarantined", "--yes", code=3)
    assert told["orphans"] == []
    assert f"{target}plan.json" in stored.stored()


def test_segment_in_a_gap_is_kept(stored: CommandLine) -> None:
    """A late sidecar has stored the offsets 5 to 15, and 10 to 20 are a recorded gap."""
    [key] = [key for key in stored.stored() if key.endswith(f"/orders-0/{0:020d}.log")]
    late = key.replace(f"{0:020d}.log", f"{5:020d}.log")
    with closing(open_storage(StorageEndpoint(f"file://{stored.store}"))) as store:
        head = store.head_object(key)
        notes = {**head.metadata, NEXT_OFFSET_KEY: "15"}
        store.put_object(late, BytesBody(store.get_object(key).data), PutOptions(metadata=notes))
    told = stored.json("gc", "--orphans", "--dry-run")
    assert [(entry["key"], entry["kind"]) for entry in told["orphans"]] == [(late, "duplicate")]
    layout = ArchiveLayout("prod-a", 3)
    gap = stored.store / layout.gap_key(TopicPartition("orders", 0), Offset(10), Offset(20))
    gap.parent.mkdir(parents=True)
    gap.write_bytes(b"{}")
    told = stored.json("gc", "--orphans", "--yes", "--older-than", "1ms")
    assert [(entry["kind"], entry["deleted"]) for entry in told["orphans"]] == [("in_gap", False)]


@pytest.mark.parametrize("gap", [(20, 25), (5, 20), (5, 25), None])
def test_segment_that_reaches_from_below_the_start_into_a_gap_is_kept(
    stored: CommandLine, gap: tuple[int, int] | None
) -> None:
    """A late sidecar has stored the offsets 5 to 25, and the archive begins at 20 then. A gap below
    the start is no reason to keep it.
    """
    layout, tp = ArchiveLayout("prod-a", 3), TopicPartition("orders", 0)
    late = layout.object_key(tp, BaseOffset(5), FileKind.LOG)
    with_rules(stored, AGE)
    with closing(open_storage(StorageEndpoint(f"file://{stored.store}"))) as store:
        key = layout.object_key(tp, BaseOffset(0), FileKind.LOG)
        data, head = store.get_object(key).data, store.head_object(key)
        stored.json("gc", "--yes")
        store.put_object(
            late, BytesBody(data), PutOptions(metadata={**head.metadata, NEXT_OFFSET_KEY: "25"})
        )
    if gap is not None:
        path = stored.store / layout.gap_key(tp, Offset(gap[0]), Offset(gap[1]))
        path.parent.mkdir(parents=True)
        path.write_bytes(b"{}")
    is_kept = gap is not None and gap[1] > 20
    stored.json("gc", "--yes")
    assert (late in stored.stored()) == is_kept
    assert logs(stored, "orders-0") == ([5, 20] if is_kept else [20])
    with closing(open_storage(StorageEndpoint(f"file://{stored.store}"))) as store:
        store.put_object(
            late, BytesBody(data), PutOptions(metadata={**head.metadata, NEXT_OFFSET_KEY: "25"})
        )
    told = stored.json("gc", "--orphans", "--yes", "--older-than", "1ms")
    [orphan] = [entry for entry in told["orphans"] if entry["key"] == late]
    assert orphan["kind"] == ("in_gap" if is_kept else "below_start")
    assert (late in stored.stored()) == is_kept


def test_unfinished_uploads_are_not_applicable_to_a_file_system(stored: CommandLine) -> None:
    told = stored.json("gc", "--multipart-uploads", "--yes")
    assert told["uploads"] == []
    assert told["not_applicable"] == [f"file://{stored.store}"]
