"""Streams on real Spark 4.0: their offsets equal Kafka's, and each is read once."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from devtools.sandbox.spark import SPARK_4
from sidetier.segments.arrow import feed_table, read_markers, scan_headers
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import TopicPartition
from sidetier.segments.transactions import TransactionTracker
from tests.harness import spark_jobs
from tests.harness.broker_archive import store_broker_segments
from tests.harness.broker_segments import closed_segments
from tests.harness.diverged_archive import before_the_election, elect_uncleanly
from tests.harness.made_archive import MadeArchive
from tests.harness.spark import SparkCallError, SparkDriver, spark_driver
from tests.harness.tailed_log import TailedLog
from tests.integration.pipeline.conftest import LAYOUT, Archive, NewArchive
from tests.integration.pipeline.test_spark_read import stored

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def written(output: Path) -> Counter[tuple[str, int]]:
    """Number of occurrences of each record in the written batches."""
    lines = [
        json.loads(line)
        for path in output.glob("batch=*/*.json")
        for line in path.read_text().splitlines()
    ]
    return Counter((line["topic"], line["offset"]) for line in lines)


def records(*names: str) -> Counter[tuple[str, int]]:
    """Each stored record of these fixtures, once."""
    return Counter(
        (name.removesuffix("-0"), row["offset"])
        for name in names
        for row in stored(name, IsolationLevel.READ_COMMITTED)
    )


def stable_end(name: str) -> int:
    """The first offset of a transaction that is open at the end of the closed segments."""
    tracker = TransactionTracker()
    for segment in closed_segments():
        if segment.directory.name == name:
            data = segment.read(FileKind.LOG)
            headers = scan_headers(data)
            feed_table(tracker, headers, read_markers(data, headers))
    return int(tracker.last_stable_offset)


def end_at(archive: Archive, name: str, segments: int) -> int:
    """Let an archive end after this number of its segments; return its end."""
    result = [item for item in closed_segments() if item.directory.name == name]
    last = result[segments - 1]
    made = MadeArchive(archive.store, LAYOUT, TopicPartition(name.removesuffix("-0"), 0))
    made.mark(last.base, last.next_base)
    return last.next_base


def test_a_killed_stream_continues_from_its_checkpoint(
    spark40: SparkDriver, archive: Archive, tmp_path: Path
) -> None:
    options = archive.reading(
        subscribe="tx,comp-zstd",
        startingOffsets="earliest",
        kafka__isolation__level="read_committed",
        maxOffsetsPerTrigger="300",
    )
    places = {"checkpoint": str(tmp_path / "checkpoint"), "output": str(tmp_path / "output")}
    with (
        spark_driver(SPARK_4, tmp_path / "killed") as killed,
        pytest.raises(AssertionError, match="the driver has ended"),
    ):
        killed.call(spark_jobs.die_in_batch, options=options, number=1, **places)
    half = written(tmp_path / "output")
    wanted = records("tx-0", "comp-zstd-0")
    assert 0 < len(half) < len(wanted)
    assert half <= wanted

    first = json.loads((tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1])
    assert set(first) == {"tx", "comp-zstd"}
    assert sum(first[topic]["0"] for topic in first) <= 300

    until = {"comp-zstd": {"0": 480}, "tx": {"0": stable_end("tx-0")}}
    ends = spark40.call(spark_jobs.stream, options=options, until=until, **places)
    assert written(tmp_path / "output") == wanted
    spans = [sum(end[topic]["0"] for topic in end) for end in ends]
    assert all(after - before <= 300 for before, after in pairwise(spans))


def test_a_stream_follows_the_archive_and_refuses_a_shorter_one(
    spark40: SparkDriver, new_archive: NewArchive, tmp_path: Path
) -> None:
    archive = new_archive("segms-0")
    options = archive.reading(subscribePattern="segms|comp-none", startingOffsets="earliest")
    places = {"checkpoint": str(tmp_path / "checkpoint"), "output": str(tmp_path / "output")}
    for segments, end in ((1, 30), (3, 90)):
        assert end_at(archive, "segms-0", segments) == end
        ends = spark40.call(spark_jobs.stream, options=options, **places)
        assert ends[-1] == {"segms": {"0": end}}
        assert written(tmp_path / "output") == Counter(("segms", n) for n in range(end))
    store_broker_segments(archive.store, LAYOUT, "comp-none-0")
    spark40.call(spark_jobs.stream, options=options, **places)
    assert written(tmp_path / "output") == records("segms-0", "comp-none-0")

    end_at(archive, "segms-0", 2)
    with pytest.raises(SparkCallError, match="is at offset 90, and the archive ends at 60"):
        spark40.call(spark_jobs.stream, options=options, **places)
    assert written(tmp_path / "output") == records("segms-0", "comp-none-0")


def test_a_stream_reads_the_records_that_replace_discarded_ones(
    spark40: SparkDriver, new_archive: NewArchive, tmp_path: Path
) -> None:
    archive = new_archive("segms-0")
    made = MadeArchive(archive.store, LAYOUT, TopicPartition("diverged", 0))
    before_the_election(made, "first")
    options = archive.reading(subscribe="diverged", startingOffsets="earliest")
    places = {"checkpoint": str(tmp_path / "checkpoint"), "output": str(tmp_path / "output")}
    spark40.call(spark_jobs.stream, options=options, **places)
    assert written(tmp_path / "output") == Counter(("diverged", n) for n in range(40))
    elect_uncleanly(made, topic_id="first")
    with pytest.raises(SparkCallError, match=r"offsets \[24, 40\) .leader epoch 3, now 4"):
        spark40.call(spark_jobs.stream, options=options, **places)
    assert written(tmp_path / "output") == Counter(("diverged", n) for n in range(40))
    reread = {**options, "onTruncation": "reread"}
    spark40.call(spark_jobs.stream, options=reread, **places)
    assert written(tmp_path / "output") == Counter(
        ("diverged", n) for n in (*range(40), *range(24, 50))
    )
    assert not spark40.call(spark_jobs.stream, options=reread, **places)[1:]


def test_a_stream_reads_on_in_tail_packs(
    spark40: SparkDriver, new_archive: NewArchive, tmp_path: Path
) -> None:
    archive = new_archive("segms-0")
    log = TailedLog(store=archive.store, layout=LAYOUT, tp=TopicPartition("tailed", 0))
    for _ in range(8):
        log.write(9, 3, transactional=False)
    log.archived(0, 6, 12)
    first = log.pack(1, 0, (12, 18))
    options = archive.reading(
        subscribe="tailed", startingOffsets="earliest", tiered__storage__with__tail="true"
    )
    places = {"checkpoint": str(tmp_path / "checkpoint"), "output": str(tmp_path / "output")}
    spark40.call(spark_jobs.stream, options=options, **places)
    assert written(tmp_path / "output") == Counter(("tailed", n) for n in range(18))
    log.archived(0, 6, 12, 15)
    log.store.delete_object(first)
    log.pack(1, 1, (15, 18), (18, 24))
    spark40.call(spark_jobs.stream, options=options, **places)
    assert written(tmp_path / "output") == Counter(("tailed", n) for n in range(24))
    log.elected_uncleanly(18).claim(2, 0)
    with pytest.raises(SparkCallError, match=r"offsets \[18, 24\) .leader epoch 0, now 1"):
        spark40.call(spark_jobs.stream, options=options, **places)
