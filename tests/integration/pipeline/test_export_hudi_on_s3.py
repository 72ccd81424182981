"""Hudi exports on a real S3 server through Hadoop's S3A, and killed drivers."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from devtools.sandbox.s3server import S3Server
from devtools.sandbox.spark import SPARK_35
from devtools.sandbox.spark_jars import HUDI_3_5, S3A_3_3
from sidetier.brokers.processes import ManagedProcess
from sidetier.pipeline.export.sinks.tables.lease import Lease
from sidetier.pipeline.export.table_export import HUDI_SESSION
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import Credentials, S3Settings, StorageEndpoint
from tests.harness import table_jobs
from tests.harness.lake import Lake, kill_before
from tests.harness.s3 import new_bucket
from tests.harness.s3_proxy import Fault, S3Proxy
from tests.harness.spark import SparkDriver
from tests.harness.table_exports import (
    Drivers,
    GrowingArchive,
    Row,
    Said,
    consumed,
    ends_of,
    exported,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

DIRECTORIES = ("tx-0", "comp-lz4-0")
COMMIT = re.compile(r"lake/orders/\.hoodie/timeline/\d+_\d+\.commit$")


class Export:
    """A table in a bucket behind a proxy, and its lease."""

    def __init__(self, lake: Lake, survivor: SparkDriver) -> None:
        self.lake = lake
        self.path = f"s3a://{lake.bucket.name}/lake/orders"
        server = lake.bucket.server
        hadoop = {
            "fs.s3a.endpoint": lake.proxy.url,
            "fs.s3a.endpoint.region": server.region,
            "fs.s3a.path.style.access": "true",
            "fs.s3a.access.key": server.access_key,
            "fs.s3a.secret.key": server.secret_key,
        }
        settings = {f"spark.hadoop.{name}": value for name, value in hadoop.items()}
        self.victims = Drivers(
            SPARK_35, lake.root / "driver", HUDI_SESSION | settings, HUDI_3_5, S3A_3_3
        )
        self.survivor = survivor
        survivor.call(table_jobs.set_hadoop, settings=hadoop)

    @property
    def archive(self) -> GrowingArchive:
        return self.lake.archive

    def command(self) -> list[str]:
        base = ("--option", f"target.base.path={self.path}")
        name = ("--option", "target.table.name=orders")
        config = ("--config", str(self.archive.config))
        lock = ("--lock-config", str(self.lake.into_config))
        quick = ("--option", "hoodie.metadata.enable=false")
        return ["hudi", *self.archive.topics, *base, *name, *config, *lock, *quick]

    def run(self, *more: str) -> Said:
        return exported(self.survivor, [*self.command(), *more])

    @contextmanager
    def leased(self) -> Iterator[None]:
        """Let this process hold the lease."""
        server = self.lake.bucket.server
        credentials = Credentials(server.access_key, server.secret_key)
        settings = S3Settings(server.endpoint_url, server.region, True, credentials=credentials)  # noqa: FBT003 -- path_style
        store = open_plain(StorageEndpoint(f"s3://{self.lake.bucket.name}/lake", s3=settings))
        with closing(store), Lease(store, "_sidetier/orders.lease"):
            yield

    def dies_at_commit(self, fault: Callable[[ManagedProcess], Fault]) -> None:
        """Kill the driver at the request that completes the commit."""
        fatal = fault(self.victims.driver.process)
        self.lake.proxy.misbehave(
            lambda method, key: fatal if method == "PUT" and COMMIT.search(key) else None
        )
        self.victims.dies(self.command())
        self.lake.proxy.heal()

    def completed(self) -> int:
        bucket = self.lake.bucket
        pages = bucket.client.get_paginator("list_objects_v2").paginate(Bucket=bucket.name)
        keys = [row["Key"] for page in pages for row in page.get("Contents", [])]
        return len([key for key in keys if COMMIT.search(key)])

    def rows(self) -> list[Row]:
        found: list[Row] = self.survivor.call(table_jobs.rows, form="hudi", table=self.path)
        return found

    def assert_whole(self) -> list[Row]:
        rows = self.rows()
        assert rows == consumed(self.archive, ends_of(rows))
        assert {row["topic"] for row in rows} == set(self.archive.topics)
        return rows


@pytest.fixture
def export(spark35: SparkDriver, s3_server: S3Server, tmp_path: Path) -> Iterator[Export]:
    archive = GrowingArchive(tmp_path / "archive", DIRECTORIES).create()
    with S3Proxy(s3_server.port) as proxy:
        made = Export(Lake(tmp_path, archive, new_bucket(s3_server), proxy), spark35)
        yield made
        made.victims.stop()


def test_second_export_is_refused_and_a_driver_killed_at_the_commit_loses_nothing(
    export: Export,
) -> None:
    export.archive.end_at(0.4)
    assert export.run().code == 0
    first = export.assert_whole()
    assert export.completed() == 1

    export.archive.end_at(1.0)
    with export.leased():
        said = export.run("--lock-wait", "1s")
    assert said.code == 1
    assert f"held by process {os.getpid()}" in said.text
    export.dies_at_commit(kill_before)
    assert export.completed() == 1
    assert export.run().code == 0
    second = export.assert_whole()
    assert len(first) < len(second)
    assert export.completed() == 2
    assert export.run() == Said(0, "")
    assert export.completed() == 2, "nothing is new, and there is a commit"
