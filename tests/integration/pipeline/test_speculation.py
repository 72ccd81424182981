"""Speculative execution: Spark runs a slow task twice at once, and each record arrives once."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.sandbox.s3server import S3Server
from devtools.sandbox.spark import SPARK_4, SPARK_35, Version
from devtools.sandbox.spark_jars import HUDI_3_5, ICEBERG_4_0
from sidetier.brokers.jars import Distribution
from sidetier.pipeline.export.table_export import HUDI_SESSION as HUDI
from sidetier.pipeline.export.table_export import ICEBERG_SESSION as ICEBERG
from sidetier.segments.isolation import IsolationLevel
from tests.harness import spark_jobs, table_jobs
from tests.harness.lake import Lake
from tests.harness.s3 import new_bucket
from tests.harness.s3_proxy import Fault, Rule, S3Proxy, _Handler
from tests.harness.spark import SparkDriver, spark_driver
from tests.harness.spark_cli import command_line
from tests.harness.spark_cluster import SPECULATION, spark_cluster, speculative_attempts
from tests.harness.table_exports import GrowingArchive, Offsets, consumed, iceberg_catalog
from tests.harness.waiting import wait_until
from tests.integration.pipeline.conftest import NewArchive
from tests.integration.pipeline.test_export_files import check_whole
from tests.integration.pipeline.test_spark_read import stored

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

NAMES = ("tx-0", "comp-lz4-0", "headers-nulls-0", "append-time-0")
SLOWEST = 120.0


def until_asked_again(method: str, part: str) -> Rule:
    """Delay the first request of this method for a key with this part until a second one for the
    same key arrives; then both continue in parallel.
    """
    lock, again = threading.Lock(), threading.Event()
    keys: list[str] = []

    def wait(handler: _Handler) -> None:
        body = handler.read_body()
        again.wait(SLOWEST)
        handler.pass_on(body)

    def rule(asked: str, key: str) -> Fault | None:
        if asked != method or part not in key:
            return None
        with lock:
            if not keys:
                keys.append(key)
                return wait
        if key == keys[0]:
            again.set()
        return None

    return rule


@dataclass(frozen=True, slots=True)
class Cluster:
    """A session on a cluster with speculation."""

    driver: SparkDriver
    settings: Mapping[str, str]

    def second_attempts(self) -> int:
        return len(speculative_attempts(self.settings))

    def run_twice(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401 -- what it returns
        """Run an action one of whose tasks must run twice; either attempt may win."""
        before = self.second_attempts()
        found = work()
        wait_until(lambda: self.second_attempts() > before, 60, "a second attempt")
        return found


@pytest.fixture(scope="module")
def cluster40(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("cluster40")
    with _cluster(SPARK_4, root, ICEBERG | iceberg_catalog(root / "tables"), ICEBERG_4_0) as made:
        yield made


@contextmanager
def _cluster(
    version: Version, root: Path, settings: dict[str, str], jars: Distribution
) -> Iterator[Cluster]:
    with spark_cluster(version, root) as at:
        told = at | SPECULATION | settings
        with spark_driver(version, root / "driver", told, jars) as driver:
            yield Cluster(driver, told)


@dataclass(frozen=True, slots=True)
class SlowArchive:
    """An archive on S3, behind a proxy that can delay a task."""

    options: dict[str, str]
    config: Path
    proxy: S3Proxy

    def slow_once(self) -> None:
        """Delay the first read of one of its segments until the second one."""
        self.proxy.misbehave(until_asked_again("GET", "comp-lz4-0/00000000000000000000.log"))


@pytest.fixture
def slow(new_archive: NewArchive, s3_server: S3Server, tmp_path: Path) -> Iterator[SlowArchive]:
    with S3Proxy(s3_server.port) as proxy:
        archive = new_archive(*NAMES)
        options = archive.reading(tiered__storage__s3__endpoint__url=proxy.url)
        config = tmp_path / "sidetier.yaml"
        config.write_text(yaml.safe_dump(_configuration(options, tmp_path)))
        yield SlowArchive(options, config, proxy)


def _configuration(options: Mapping[str, str], root: Path) -> dict[str, Any]:
    """The sidecar's configuration for the same archive."""
    told = {name.removeprefix("tiered.storage."): text for name, text in options.items()}
    (root / "logs").mkdir()
    return {
        "cluster": {"name": told["cluster.name"]},
        "log_dirs": [str(root / "logs")],
        "storage": {
            "url": told["url"],
            "s3": {
                "endpoint_url": told["s3.endpoint.url"],
                "region": told["s3.region"],
                "path_style": True,
                "access_key_id": {"file": told["s3.access.key.id"].removeprefix("file:")},
                "secret_access_key": {"file": told["s3.secret.access.key"].removeprefix("file:")},
            },
        },
    }


def test_read_is_correct_with_speculative_attempts(cluster40: Cluster, slow: SlowArchive) -> None:
    slow.slow_once()
    options = slow.options | {"subscribePattern": ".*", "kafka.isolation.level": "read_committed"}
    found = cluster40.run_twice(
        lambda: cluster40.driver.call(spark_jobs.rows, face="format", options=options)
    )
    wanted = Counter(
        (name.rpartition("-")[0], row["offset"])
        for name in NAMES
        for row in stored(name, IsolationLevel.READ_COMMITTED)
    )
    assert Counter((row["topic"], row["offset"]) for row in found) == wanted


def test_file_export_is_correct_with_speculative_attempts(
    cluster40: Cluster, s3_server: S3Server, tmp_path: Path
) -> None:
    """The file of the first attempt arrives after the second's and changes nothing."""
    archive = GrowingArchive(tmp_path, NAMES).create()
    with S3Proxy(s3_server.port) as proxy:
        lake = Lake(tmp_path, archive, new_bucket(s3_server), proxy)
        line = lake.line("--master", "submit", "--flush-size", "50")
        proxy.misbehave(until_asked_again("PUT", "/comp-lz4+0+"))
        code = cluster40.run_twice(lambda: cluster40.driver.call(command_line, line=line))
        assert code == 0, cluster40.driver.log()
        wait_until(lambda: proxy.found("PUT", "/comp-lz4+0+", 412), 60, "the late file")
        check_whole(lake)


def test_iceberg_export_is_correct_with_speculative_attempts(
    cluster40: Cluster, slow: SlowArchive
) -> None:
    table = "lake.db.orders"
    arguments = ["iceberg", *_topics(), "--table", table, "--config", str(slow.config)]
    slow.slow_once()
    said = cluster40.run_twice(
        lambda: cluster40.driver.call(table_jobs.export, arguments=arguments)
    )
    assert said["code"] == 0, said["said"]
    _check_table(cluster40, "iceberg", table)


def test_hudi_export_with_speculation_is_refused(tmp_path: Path) -> None:
    """Hudi does not separate attempts of one task, so our own sessions disable speculation; only a
    user's session can have it.
    """
    assert HUDI["spark.speculation"] == "false"
    archive = GrowingArchive(tmp_path, NAMES[:1]).create()
    table = tmp_path / "lake" / "orders"
    named = ("--option", f"target.base.path=file://{table}", "--option", "target.table.name=orders")
    arguments = ["hudi", *archive.topics, *named, "--config", str(archive.config)]
    settings = HUDI | {"spark.speculation": "true"}
    with spark_driver(SPARK_35, tmp_path, settings, HUDI_3_5) as driver:
        said = driver.call(table_jobs.export, arguments=arguments)
    assert said["code"] == 1
    assert "spark.speculation" in said["said"]
    assert not list(table.rglob("*.parquet"))


def _topics() -> list[str]:
    return [name.rpartition("-")[0] for name in NAMES]


def _check_table(cluster: Cluster, form: str, table: str) -> None:
    rows = cluster.driver.call(table_jobs.rows, form=form, table=table)
    ends: Offsets = {topic: {"0": 1 << 62} for topic in _topics()}
    whole = consumed(GrowingArchive(Path(), NAMES), ends)
    last = {topic: max(r["offset"] for r in rows if r["topic"] == topic) for topic in _topics()}
    assert rows == [row for row in whole if row["offset"] <= last[row["topic"]]]
    assert len(rows) > 500
