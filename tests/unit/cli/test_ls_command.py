import json
from array import array
from contextlib import closing
from dataclasses import replace

import pytest

from sidetier.archive.inventory.cluster import list_partitions
from sidetier.archive.objects.watermark import read_watermark, write_watermark
from sidetier.archive.topics import cluster_prefixes
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.factory import open_storage
from sidetier.storage.fake import FakeStorage
from sidetier.storage.settings import StorageEndpoint
from tests.harness.command_line import CommandLine
from tests.harness.log_dir import PartitionLog


@pytest.fixture
def orders(cli: CommandLine) -> PartitionLog:
    """Archives of orders-0 with three segments of ten records each, and orders-1 and pay-0 with
    one.
    """
    log = cli.log_dir.create("orders", 0)
    log.closed_segments(3)
    for topic, number in (("orders", 1), ("orders-eu", 0), ("pay", 0)):
        cli.log_dir.create(topic, number).closed_segments(1)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill") == 0
    return log


def test_every_partition_is_listed(cli: CommandLine, orders: PartitionLog) -> None:
    assert cli.run("ls") == 0
    head, *rows, footer = cli.lines()
    assert head.split("  ")[0] == "TOPIC"
    assert "PROBLEM" not in head
    sizes = {key: len(data) for key, data in cli.stored().items() if "/orders-0/" in key}
    assert [row.split() for row in rows] == [
        ["orders", "0", "3", f"{sum(sizes.values()) / 1000:.1f}", "kB", "0", "30", "20", "0"],
        *(
            [topic, number, "1", *row.split()[3:5], "0", "10", "0", "0"]
            for (topic, number), row in zip(
                [("orders", "1"), ("orders-eu", "0"), ("pay", "0")], rows[1:], strict=True
            )
        ),
    ]
    assert footer.startswith("4 partitions, 6 segments, ")
    assert orders.log_end == 30


def test_topic_is_matched_by_its_full_name(cli: CommandLine, orders: PartitionLog) -> None:
    assert orders.tp.topic == "orders"
    found = cli.json("ls", "orders")["partitions"]
    assert [(row["topic"], row["partition"]) for row in found] == [("orders", 0), ("orders", 1)]
    assert found[0]["size_bytes"] == sum(
        len(data) for key, data in cli.stored().items() if "/orders-0/" in key
    )


def test_segments_of_a_partition_are_listed(cli: CommandLine, orders: PartitionLog) -> None:
    found = cli.json("ls", "orders", "0")
    assert (found["watermark"], found["next_offset"], found["problem"]) == (20, 30, None)
    assert found["uri"].startswith(f"file://{cli.store}/")
    assert [
        (row["base_offset"], row["next_offset"], row["size_bytes"], row["max_timestamp_ms"])
        for row in found["segments"]
    ] == [
        (base, base + 10, len(orders.written[base]), 1_700_000_000_000 + base + 9)
        for base in (0, 10, 20)
    ]
    assert {tuple(row["files"]) for row in found["segments"]} == {("log", "index", "timeindex")}
    assert cli.run("ls", "orders", "0") == 0
    assert "2023-11-14T22:13:20+00:00  log index timeindex  yes" in cli.lines()[1]
    assert cli.lines()[-1].endswith("; archived up to 30")


def test_segments_above_the_watermark_are_reported(cli: CommandLine, orders: PartitionLog) -> None:
    [mark] = [key for key in cli.stored() if key.endswith("/orders-0/offset.wm")]
    text = (cli.store / mark).read_text()
    (cli.store / mark).write_text(f"{0:020d}\n")  # as Pinterest's uploader writes it
    [row, _] = cli.json("ls", "orders")["partitions"]
    assert (row["watermark"], row["next_offset"], row["segments_above_watermark"]) == (0, 10, 2)
    above = [s["above_watermark"] for s in cli.json("ls", "orders", "0")["segments"]]
    assert above == [False, True, True]
    assert json.loads(text.splitlines()[1])["next_offset"] == orders.log_end


@pytest.mark.parametrize(
    ("ending", "problem"),
    [
        ("/orders-0/00000000000000000010.index", "segments without all of their files: 10"),
        ("/orders-0/00000000000000000010.log", "segments without all of their files: 10"),
        ("/orders-0/offset.wm", "no offset.wm"),
    ],
)
def test_missing_object_is_a_finding(
    ending: str, problem: str, cli: CommandLine, orders: PartitionLog
) -> None:
    assert orders.log_end == 30
    cli.remove(ending)
    rows = cli.json("ls", code=3)["partitions"]
    assert [row["problem"] for row in rows] == [problem, None, None, None]
    assert cli.json("ls", "orders", "0", code=3)["problem"] == problem
    assert cli.run("ls") == 3
    assert cli.lines()[1].endswith(problem)


def test_missing_segment_of_the_watermark_is_a_finding(
    cli: CommandLine, orders: PartitionLog
) -> None:
    assert orders.log_end == 30
    for kind in ("log", "index", "timeindex"):
        cli.remove(f"/orders-0/00000000000000000020.{kind}")
    [row, _] = cli.json("ls", "orders", code=3)["partitions"]
    assert row["problem"] == "offset.wm names segment 20, which is not stored"


def test_malformed_watermark_is_a_finding(cli: CommandLine, orders: PartitionLog) -> None:
    assert orders.log_end == 30
    [mark] = [key for key in cli.stored() if key.endswith("/orders-0/offset.wm")]
    (cli.store / mark).write_text("nonsense")
    [row, _] = cli.json("ls", "orders", code=3)["partitions"]
    assert f"{mark}: not a watermark" in row["problem"]


def test_quick_leaves_out_columns_that_need_requests(
    cli: CommandLine, orders: PartitionLog
) -> None:
    assert orders.log_end == 30
    rows = cli.json("ls", "--quick")["partitions"]
    assert {(row["next_offset"], row["watermark"]) for row in rows} == {(None, None)}
    assert [row["segments"] for row in rows] == [3, 1, 1, 1]
    segments = cli.json("ls", "orders", "0", "--quick")["segments"]
    assert {row["next_offset"] for row in segments} == {None}


def test_topics_in_other_stores_are_listed(cli: CommandLine) -> None:
    other = cli.root / "other"
    cli.configure({"storage": {"overrides": [{"topics": "pay", "url": f"file://{other}"}]}})
    for topic in ("orders", "pay"):
        cli.log_dir.create(topic, 0).closed_segments(1)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill") == 0
    assert not any("pay-0" in key for key in cli.stored())
    assert [row["topic"] for row in cli.json("ls")["partitions"]] == ["orders", "pay"]
    assert str(other) in cli.json("ls", "pay", "0")["uri"]


def test_empty_store_is_reported(cli: CommandLine) -> None:
    assert cli.run("ls") == 2
    assert "there is no such directory; nothing is stored at this URL yet" in cli.err
    assert not cli.store.exists()
    cli.store.mkdir()
    assert cli.run("ls") == 0
    assert cli.out == "the archive of cluster prod-a is empty\n"


def test_other_entropy_bits_are_refused(cli: CommandLine, orders: PartitionLog) -> None:
    assert orders.log_end == 30
    cli.configure({"storage": {"prefix_entropy_bits": 4}})
    for line in (["ls"], ["ls", "orders", "0"]):
        assert cli.run(*line) == 2
        assert "set it to 3" in cli.err


def keys_of(layout: ArchiveLayout, *partitions: TopicPartition) -> list[str]:
    names = ("00000000000000000000.log", "00000000000000000000.index", "offset.wm")
    return [layout.partition_prefix(tp) + name for tp in partitions for name in names]


@pytest.mark.parametrize("bits", [0, 1, 5, 8, 9, 20, 128])
def test_partitions_are_found_under_any_number_of_entropy_bits(bits: int) -> None:
    store = FakeStorage()
    ours, theirs = ArchiveLayout("prod-a", bits), ArchiveLayout("prod-b", bits)
    wanted = [TopicPartition("t", number) for number in range(40)]
    other_bits = ArchiveLayout("prod-a", bits + 1 if bits < 128 else 7)
    keys = keys_of(ours, *wanted) + keys_of(theirs, *wanted)
    keys += keys_of(other_bits, TopicPartition("other", 0))
    keys += ["_sidetier/prod-a/layout.json", "0", "1/stray", "10/prod-a/x", "zebra"]
    for key in keys:
        store.put_object(key, BytesBody(b"x"))
    found = [
        stored
        for prefix in cluster_prefixes(store, ours)
        for stored in list_partitions(store, ours, prefix)
    ]
    assert sorted(stored.topic_partition for stored in found) == wanted
    assert {stored.size for stored in found} == {3}
    assert all(stored.has_watermark for stored in found)
    assert all(stored.bases == stored.incomplete == array("q", [0]) for stored in found)


def test_files_that_a_killed_gc_has_left_are_not_part_of_the_archive(
    cli: CommandLine, orders: PartitionLog
) -> None:
    """It has moved the start to 20, and deleted all of the segment 0 and the `.log` of 10."""
    del orders
    [key] = [key for key in cli.stored() if key.endswith("/orders-0/offset.wm")]
    with closing(open_storage(StorageEndpoint(f"file://{cli.store}"))) as store:
        stored = read_watermark(store, key)
        assert stored is not None
        moved = replace(stored.watermark, start_offset=Offset(20))
        write_watermark(store, key, moved, stored.etag)
        prefix = key.removesuffix("offset.wm")
        for name in (f"{0:020d}.log", f"{0:020d}.index", f"{0:020d}.timeindex", f"{10:020d}.log"):
            store.delete_object(f"{prefix}{name}")
    [row] = [r for r in cli.json("ls", "orders")["partitions"] if r["partition"] == 0]
    assert (row["first_offset"], row["problem"]) == (20, None)
    listed = cli.json("ls", "orders", "0")
    assert listed["problem"] is None
    assert [(s["base_offset"], s["below_start"]) for s in listed["segments"]] == [
        (10, True),
        (20, False),
    ]
    assert cli.run("ls", "orders", "0") == 0
    leftover, archived = cli.lines()[1:3]
    assert leftover.endswith("below start")
    assert archived.endswith("yes")
