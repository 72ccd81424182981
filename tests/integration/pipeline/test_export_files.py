"""File exports: genuine segments, a real S3 server, real Spark, and killed drivers."""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from devtools.sandbox.s3server import S3Server
from sidetier.brokers.processes import ManagedProcess
from sidetier.segments.names import FileKind, segment_file_name
from tests.harness.broker_segments import ROOT
from tests.harness.ci import SEARCHES
from tests.harness.exported_files import (
    as_consumed,
    consumed_below,
    data_files,
    manifest_in,
    rows_of,
)
from tests.harness.lake import (
    SECONDS,
    SPARK,
    Lake,
    at_nth_put,
    at_state,
    kill_after,
    kill_before,
    kill_during,
    told,
)
from tests.harness.s3 import new_bucket
from tests.harness.s3_proxy import Rule, S3Proxy, answer, first_puts, late
from tests.harness.spark import SparkDriver
from tests.harness.spark_cli import command_line
from tests.harness.table_exports import GrowingArchive
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SEED = 20_261_121
HOURLY = ("--partitioner", "hourly", "--flush-size", "20", "--chunk", "400")
MANIFEST = "_sidetier/manifest.json"
MAX_BYTES = 12_000
OVERSHOOT = 1024 + 2851
"""The bytes between two index entries, and the largest batch."""

MOMENTS: Mapping[str, Callable[[ManagedProcess], Rule]] = {
    "among the files": lambda driver: at_nth_put(3, ".parquet", kill_during(driver)),
    "before the state is written": lambda driver: at_state(kill_before(driver)),
    "while the state is written": lambda driver: at_state(kill_during(driver)),
    "once the state is written": lambda driver: at_state(kill_after(driver)),
}


@pytest.fixture
def lake(tmp_path: Path, s3_server: S3Server) -> Iterator[Lake]:
    archive = GrowingArchive(tmp_path, ("comp-lz4-0", "tx-0")).create()
    with S3Proxy(s3_server.port) as proxy:
        yield Lake(tmp_path, archive, new_bucket(s3_server), proxy)


def rows_of_topic(lake: Lake, topic: str, below: str = "topics/") -> list[dict[str, Any]]:
    """Every row that a reader of the directory receives, by offset."""
    files = data_files(lake.objects(), f"{below}{topic}/")
    rows = [as_consumed(row) for key, data in files.items() for row in rows_of(key, data)]
    return sorted(rows, key=lambda row: row["offset"])


def size(lake: Lake, topic: str, first: int, until: int) -> int:
    """Number of archived bytes of these offsets."""
    return lake.archive.size({topic: {"0": first}}, {topic: {"0": until}})


def check_whole(lake: Lake) -> None:
    """Assert that each committed record is exported once, as a consumer read it, and every file is
    named.
    """
    objects = lake.objects()
    for directory in lake.archive.directories:
        topic = directory.rpartition("-")[0]
        manifest = manifest_in(objects, topic)
        assert manifest.pending is None
        named = {one.key for one in manifest.files}
        assert named == data_files(objects, f"topics/{topic}/").keys()
        end = manifest.next_offsets[0]
        wanted = consumed_below(ROOT / directory, "read_committed", end)
        assert rows_of_topic(lake, topic) == wanted
        assert len(wanted) > 10


@SEARCHES
@pytest.mark.timeout(1500)
def test_drivers_on_spark_killed_around_the_write_of_the_state(lake: Lake) -> None:
    """In a seeded random order; each driver continues from the state that the killed one left, and
    the archive has grown meanwhile.
    """
    moments = list(MOMENTS)
    random.Random(SEED).shuffle(moments)
    for at, moment in enumerate(moments, 1):
        lake.archive.end_at(at / (len(moments) + 1))
        with lake.driver(*HOURLY, *SPARK) as driver:
            lake.proxy.misbehave(MOMENTS[moment](driver))
            assert driver.wait(SECONDS) == -9, f"{moment}: {driver.log_tail()}"
        lake.proxy.heal()
    lake.archive.end_at(1)
    lake.submit(*HOURLY)
    check_whole(lake)
    assert not told(lake.export(*HOURLY))["partitions"]


@pytest.mark.timeout(900)
def test_second_of_two_concurrent_exports_is_refused(
    lake: Lake, spark40: SparkDriver, spark35: SparkDriver
) -> None:
    """The first has written its files when the second begins; its state arrives too late."""
    line = lake.line("--master", "submit", "--workers", "1", *HOURLY[:2])  # topic by topic
    # The second must finish before the delayed request times out: its JVM is warm.
    assert spark35.call(command_line, line=[*line, "--topics-dir", "before"]) == 0, spark35.log()
    lake.proxy.misbehave(at_nth_put(2, MANIFEST, late(60)))
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(spark40.call, command_line, line=line)
        wait_until(lambda: lake.proxy.found("PUT", "topics/comp-lz4/year="), 200, "its files")
        assert spark35.call(command_line, line=line) == 0, spark35.log()
        lake.proxy.heal()
        assert slow.result(200) == 1, spark40.log()
    assert "another export has written its state since this one began" in spark40.log()
    check_whole(lake)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("session", ["spark40", "spark35"])
def test_export_works_on_either_spark_version(
    lake: Lake, session: str, request: pytest.FixtureRequest
) -> None:
    """A task that fails once, a matching schema, a mismatching one, and missing offsets."""
    spark: SparkDriver = request.getfixturevalue(session)

    def export(*options: str) -> int:
        line = lake.line("--master", "local[2]", *options)
        code: int = spark.call(command_line, line=line)
        return code

    # As often as one request is tried: the task fails, and Spark runs it again.
    lake.proxy.misbehave(first_puts(3, answer(503, "SlowDown"), ".parquet"))
    assert export(*HOURLY) == 0, spark.log()
    assert len(lake.proxy.found("PUT", ".parquet", 503)) == 3
    check_whole(lake)
    _in_commits_of_so_many_bytes(lake, export)
    _does_not_fit(lake, export, spark.log)
    _is_missing(lake, export, spark.log)


def _in_commits_of_so_many_bytes(lake: Lake, export: Callable[..., int]) -> None:
    """Each chunk makes one file of a topic, and its begin and end are recorded."""
    most = MAX_BYTES + OVERSHOOT
    by_bytes = ("--topics-dir", "by-bytes", "--chunk-bytes", str(MAX_BYTES))
    assert export(*by_bytes, "--flush-size", "1000000", "--partitioner", "default") == 0
    for topic in lake.archive.topics:
        objects = lake.objects()
        manifest = manifest_in(objects, topic, "by-bytes")
        assert rows_of_topic(lake, topic, "by-bytes/") == rows_of_topic(lake, topic)
        commits = len(lake.proxy.found("PUT", f"by-bytes/{topic}/{MANIFEST}")) // 2
        files = sorted(manifest.files, key=lambda one: one.first)
        assert len(files) == commits == manifest.generation
        taken = {one.first: one.last + 1 for one in files}
        assert max(size(lake, topic, *span) for span in taken.items()) <= most
        total = size(lake, topic, 0, manifest.next_offsets[0])
        assert max(2, total / most) < len(files) < 2 * total / MAX_BYTES


def _does_not_fit(lake: Lake, export: Callable[..., int], log: Callable[[], str]) -> None:
    """The values of `comp-lz4` are numbers instead of text: each record must be in the output."""
    schema = lake.root / "schema.json"
    schema.write_text(json.dumps({"type": "object", "properties": {"i": {"type": "string"}}}))
    strict = ("--value-format", "json", "--value-schema", str(schema), "--topics-dir", "strict")
    assert export(*strict) == 1
    assert re.search(
        r"sidetier: comp-lz4: failed, and is left out: comp-lz4-0 offset \d+: value", log()
    )
    assert export(*strict, "--dead-letters", "dead") == 3
    objects = lake.objects()
    for topic in lake.archive.topics:
        files = data_files(objects, f"strict/{topic}/") | data_files(objects, f"dead/{topic}/")
        offsets = sorted(row["offset"] for key, data in files.items() for row in rows_of(key, data))
        assert offsets == [row["offset"] for row in rows_of_topic(lake, topic)]
    assert data_files(objects, "dead/")


def _is_missing(lake: Lake, export: Callable[..., int], log: Callable[[], str]) -> None:
    segments = lake.archive.segments["comp-lz4-0"]
    lost = segments[len(segments) // 2]
    stored = lake.archive.root / "store"
    [gone] = stored.rglob(f"comp-lz4-0/{segment_file_name(lost.base, FileKind.LOG)}")
    gone.unlink()
    tolerant = ("--topics-dir", "gaps", "--on-data-loss")
    assert export(*tolerant, "error") == 1
    assert f"offsets [{lost.base}, {lost.next_base})" in log()
    assert export(*tolerant, "skip") == 3
    everything = rows_of_topic(lake, "comp-lz4")
    kept = [row for row in everything if not lost.base <= row["offset"] < lost.next_base]
    assert len(kept) < len(everything)
    assert rows_of_topic(lake, "comp-lz4", "gaps/") == kept
