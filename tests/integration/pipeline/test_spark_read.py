"""Batch reads on real Spark of real brokers' segments on a real S3 server."""

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from sidetier.archive.tail.pack import PackBuilder, TailRow
from sidetier.segments.batches import split_batches
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.segments.transactions import TransactionTracker
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import PutOptions
from tests.harness import spark_jobs
from tests.harness.arrow_reading import committed, expected
from tests.harness.broker_segments import ROOT, closed_segments, directories
from tests.harness.encryption import encrypting, write_key
from tests.harness.made_archive import MadeArchive
from tests.harness.spark import SparkCallError, SparkDriver
from tests.harness.tail_packs import TOPIC_ID
from tests.harness.tailed_log import store_pack
from tests.harness.transactions import feed_headers
from tests.integration.pipeline.conftest import LAYOUT, Archive, Face, NewArchive

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SMALL = "20000"
TYPES = {0: "CreateTime", 1: "LogAppendTime"}


def stored(name: str, isolation: IsolationLevel) -> list[dict[str, Any]]:
    """Consumer output of the closed segments; with read_committed, up to the first transaction that
    they do not decide.
    """
    segments = [item for item in closed_segments() if item.directory.name == name]
    end = segments[-1].next_base
    if isolation is IsolationLevel.READ_COMMITTED:
        *_, last = committed([segment.path(FileKind.LOG) for segment in segments])
        end = last["offset"] + 1
    return [row for row in expected(ROOT / name, isolation) if row["offset"] < end]


def as_consumed(row: dict[str, Any]) -> dict[str, Any]:
    """A Spark row in the form of the fixtures' records; null headers become an empty list."""
    return {
        "offset": row["offset"],
        "timestamp": row["timestamp"],
        "timestamp_type": TYPES[row["timestampType"]],
        "key": row["key"],
        "value": row["value"],
        "headers": row["headers"] or [],
    }


def without_epoch(row: dict[str, Any]) -> dict[str, Any]:
    """The record without its leader epoch, which Spark's source does not have."""
    return {name: value for name, value in row.items() if name != "leader_epoch"}


@pytest.mark.parametrize("isolation", IsolationLevel)
def test_rows_equal_the_consumer_output_even_if_tasks_fail_once(
    face: Face, archive: Archive, isolation: IsolationLevel
) -> None:
    options = archive.reading(
        subscribePattern="[a-z].*",
        includeHeaders="true",
        kafka__isolation__level=isolation.value,
        maxBytesPerSplit=SMALL,
    )
    fail_once = isolation is IsolationLevel.READ_COMMITTED
    result = face.driver.call(spark_jobs.rows, face=face.name, options=options, fail_once=fail_once)
    names = [path.name for path in directories()]
    groups = {name: list(rows) for name, rows in groupby(result, lambda row: row["topic"])}
    assert sorted(groups) == [name.removesuffix("-0") for name in names]
    for name in names:
        rows = groups[name.removesuffix("-0")]
        wanted = [without_epoch(row) for row in stored(name, isolation)]
        assert [as_consumed(row) for row in rows] == wanted, name
        assert {row["partition"] for row in rows} == {0}
    assert any(row["headers"] is None for row in result)
    assert any(row["value"] is None for row in result)


def test_schema_equals_that_of_sparks_own_source(face: Face, archive: Archive) -> None:
    for headers in ("true", "false"):
        options = archive.reading(subscribe="tx", includeHeaders=headers)
        both = face.driver.call(spark_jobs.schemas, face=face.name, options=options)
        assert both["ours"] == both["kafka"]
        assert ("headers" in json.dumps(both["ours"])) == (headers == "true")


def test_each_split_is_a_task_and_only_named_columns_are_returned(
    face: Face, archive: Archive
) -> None:
    options = archive.reading(subscribe="tx,segms", columns="partition,offset")
    whole = face.driver.call(spark_jobs.counts, face=face.name, options=options)
    small = face.driver.call(
        spark_jobs.counts, face=face.name, options={**options, "maxBytesPerSplit": SMALL}
    )
    count = sum(len(stored(name, IsolationLevel.READ_UNCOMMITTED)) for name in ("tx-0", "segms-0"))
    assert whole["rows"] == small["rows"] == count
    assert whole["tasks"] == 2
    assert small["tasks"] > 4
    assert whole["columns"] == ["partition", "offset"]
    if face.name == "read":
        splits = small["tasks"]
        assert small["line"].startswith(f"{splits} of {splits} splits")
        assert small["line"].endswith(f"{count} records, 0 offsets missing")


def test_user_schema_selects_the_columns(spark40: SparkDriver, archive: Archive) -> None:
    options = archive.reading(subscribe="segms", startingOffsets='{"segms": {"0": 88}}')
    rows = spark40.call(spark_jobs.chosen, options=options, ddl="offset long, topic string")
    assert rows == [{"offset": 88, "topic": "segms"}, {"offset": 89, "topic": "segms"}]
    with pytest.raises(SparkCallError, match="offset is bigint, not int"):
        spark40.call(spark_jobs.chosen, options=options, ddl="offset int")


def test_table_in_sparks_catalog_has_the_options_of_its_creation(
    spark40: SparkDriver, archive: Archive, tmp_path: Path
) -> None:
    options = archive.reading(subscribe="segms", columns="offset")
    result = spark40.call(
        spark_jobs.through_catalog, options=options, location=f"file://{tmp_path}/table"
    )
    offsets = list(range(result["offsets"][-1] + 1))
    assert len(offsets) > 80
    assert result == {"offsets": offsets, "again": offsets, "columns": ["offset"]}


def test_records_are_counted_per_minute(face: Face, archive: Archive) -> None:
    options = archive.reading(subscribe="comp-none", columns="timestamp")
    result = face.driver.call(spark_jobs.by_minute, face=face.name, options=options)
    rows = stored("comp-none-0", IsolationLevel.READ_UNCOMMITTED)
    minutes = [row["timestamp"] // 60_000 for row in rows]
    assert [item["count"] for item in result] == [len(list(g)) for _, g in groupby(minutes)]
    assert result[0]["minute"] == "2023-11-14 22:13:00"


def read(face: Face, options: dict[str, str]) -> list[int]:
    """The offsets of all rows."""
    rows = face.driver.call(spark_jobs.rows, face=face.name, options=options)
    return [row["offset"] for row in rows]


def damage(archive: Archive, base: int) -> None:
    """Flip a bit in the first record batch of a segment, and keep its object metadata."""
    made = MadeArchive(archive.store, LAYOUT, TopicPartition("comp-none", 0))
    stored_log = archive.store.get_object(made.key(base))
    data = bytearray(stored_log.data)
    data[70] ^= 1
    made.put(made.key(base), bytes(data), dict(stored_log.head.metadata))


def test_missing_segment_and_damaged_batch_are_errors_or_reported(
    face: Face, new_archive: NewArchive
) -> None:
    archive = new_archive("comp-none-0", "segms-0")
    bases = [item.base for item in closed_segments() if item.directory.name == "comp-none-0"]
    MadeArchive(archive.store, LAYOUT, TopicPartition("segms", 0)).lose(30)
    damage(archive, bases[1])
    whole = [row["offset"] for row in stored("comp-none-0", IsolationLevel.READ_UNCOMMITTED)]

    lost = archive.reading(subscribe="segms")
    with pytest.raises(SparkCallError, match=r"topic segms, partition 0, offsets \[30, 60\) "):
        read(face, lost)
    assert read(face, {**lost, "failOnDataLoss": "false"}) == [*range(30), *range(60, 90)]

    damaged = archive.reading(subscribe="comp-none")
    with pytest.raises(SparkCallError, match=rf"comp-none, partition 0, offsets \[{bases[1]}, "):
        read(face, damaged)
    result = read(face, {**damaged, "failOnDataLoss": "false"})
    gone = sorted(set(whole) - set(result))
    assert gone == list(range(bases[1], gone[-1] + 1))
    assert len(gone) < bases[2] - bases[1]
    log = face.driver.log()
    assert f"left out: topic comp-none, partition 0, offsets [{bases[1]}, {gone[-1] + 1})" in log
    assert "left out: topic segms, partition 0, offsets [30, 60)" in log

    if face.name == "read":
        both = archive.reading(subscribe="comp-none,segms", failOnDataLoss="false")
        actual = face.driver.call(spark_jobs.counts, face=face.name, options=both)
        assert actual["missing"] == [
            ["comp-none", bases[1], gone[-1] + 1],
            ["segms", 30, 60],
        ]
        assert actual["line"].endswith(f" {len(gone) + 30} offsets missing")


def test_an_empty_read_and_a_topic_that_does_not_exist(face: Face, archive: Archive) -> None:
    empty = archive.reading(
        subscribe="segms",
        startingOffsets='{"segms": {"0": 40}}',
        endingOffsets='{"segms": {"0": 40}}',
    )
    assert read(face, empty) == []
    with pytest.raises(SparkCallError, match="no-such-topic"):
        read(face, archive.reading(subscribe="no-such-topic"))
    with pytest.raises(SparkCallError, match="did you mean startingOffsets"):
        read(face, archive.reading(subscribe="tx", startingOffset="earliest"))


def test_plans_and_logs_name_the_topics_and_show_no_secret(face: Face, archive: Archive) -> None:
    options = archive.reading(subscribe="tx")
    plan = face.driver.call(spark_jobs.explained, face=face.name, options=options)
    assert "sidetier" in plan
    if face.name == "read":
        assert "sidetier tx (1 partition): 1 split" in plan
    result = {**options, "tiered.storage.s3.secret.access.key": archive.secret}
    with pytest.raises(SparkCallError) as refused:
        read(face, result)
    assert "env:NAME or file:/path" in str(refused.value)
    for text in (plan, str(refused.value), face.driver.log()):
        assert archive.secret not in text


def test_a_batch_reads_on_in_tail_packs(spark40: SparkDriver, new_archive: NewArchive) -> None:
    """The last segments of a broker are in packs, and a transaction begins in the archive."""
    archive, tp = new_archive("tx-0"), TopicPartition("tx", 0)
    made, tracker = MadeArchive(archive.store, LAYOUT, tp), TransactionTracker()
    builders = [PackBuilder(), PackBuilder()]
    segments = [segment for segment in closed_segments() if segment.directory.name == "tx-0"]
    for number, segment in enumerate(segments):
        log, before = segment.read(FileKind.LOG), len(tracker.aborted)
        feed_headers(tracker, log)
        if number < 2:
            continue
        for kind in FileKind:
            archive.store.delete_object(made.key(segment.base, kind))
        headers = [header for _, header in split_batches(memoryview(log))]
        starts = {each.leader_epoch: each.base_offset for each in reversed(headers)}
        builders[number % 2].add(
            TailRow(
                tp,
                TOPIC_ID,
                EpochHistory(tuple(sorted(starts.items()))),
                Offset(segment.base),
                headers[-1].next_offset,
                Offset(0),
                tracker.last_stable_offset,
                len(headers),
                max(each.max_timestamp for each in headers),
                tuple(tracker.open.values()),
                tuple(tracker.aborted[before:]),
            ),
            log,
        )
    made.mark(segments[1].base, segments[1].next_base)
    for number, builder in enumerate(builders):
        store_pack(archive.store, LAYOUT, builder, 7, number)
    for isolation in IsolationLevel:
        options = archive.reading(
            subscribe="tx", includeHeaders="true", kafka__isolation__level=isolation.value
        )
        wanted = [without_epoch(row) for row in stored("tx-0", isolation)]
        with_tail = {**options, "tiered.storage.with.tail": "true"}
        rows = spark40.call(spark_jobs.rows, face="format", options=with_tail)
        assert [as_consumed(row) for row in rows] == wanted
        rows = spark40.call(spark_jobs.rows, face="read", options=options)
        end = segments[1].next_base
        assert 0 < rows[-1]["offset"] < end < wanted[-1]["offset"]
        assert [as_consumed(row) for row in rows] == wanted[: len(rows)]


def test_encrypted_segments_are_read_with_keys_that_each_task_resolves(
    spark40: SparkDriver, new_archive: NewArchive, tmp_path: Path
) -> None:
    archive = new_archive("segms-0")
    place = MadeArchive(archive.store, LAYOUT, TopicPartition("segms", 0))
    encrypted = closed_segments_of("segms-0")[1:]
    for segment in encrypted:
        key = place.key(segment)
        stored_log = archive.store.get_object(key)
        archive.store.delete_object(key)
        notes = dict(stored_log.head.metadata)
        encrypting(archive.store).put_object(
            key, BytesBody(stored_log.data), PutOptions(metadata=notes)
        )
    options = archive.reading(subscribe="segms", includeHeaders="true", maxBytesPerSplit=SMALL)
    keys = {"tiered.storage.encryption.keys": f"k1=file:{write_key(tmp_path / 'k1')}"}
    rows = spark40.call(spark_jobs.rows, face="read", options={**options, **keys})
    wanted = [without_epoch(row) for row in stored("segms-0", IsolationLevel.READ_UNCOMMITTED)]
    assert [as_consumed(row) for row in rows] == wanted
    with pytest.raises(SparkCallError, match="'k1', which is not configured"):
        spark40.call(spark_jobs.rows, face="read", options=options)


def closed_segments_of(name: str) -> list[int]:
    """Base offsets of the closed segments of a fixture."""
    return [segment.base for segment in closed_segments() if segment.directory.name == name]
