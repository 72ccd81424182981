"""Iceberg exports on a real S3 server, with a catalog in a database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.sandbox.s3server import S3Server
from devtools.sandbox.spark_jars import ICEBERG_4_0, ICEBERG_ON_S3
from sidetier.pipeline.export.sinks.tables.stored_progress import iceberg_progress
from sidetier.storage.settings import Credentials, S3Settings, StorageEndpoint
from tests.harness.iceberg_exports import IcebergExport, catalog_on_s3
from tests.harness.lake import at_nth_put, kill_after
from tests.harness.s3 import S3Bucket, new_bucket
from tests.harness.s3_proxy import S3Proxy
from tests.harness.spark import SparkDriver
from tests.harness.table_exports import Offsets, Said, iceberg_catalog, stored_offsets

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

DIRECTORIES = ("tx-0", "comp-lz4-0")
CATALOG = "cloud"
METADATA = ".metadata.json"
MAX_BYTES = 12_000
OVERSHOOT = 2 * (1024 + 2851)
"""For each partition the bytes between two index entries, and its largest batch."""


class Export(IcebergExport):
    """An export whose S3 requests all pass a proxy."""

    def __init__(self, root: Path, bucket: S3Bucket, proxy: S3Proxy, survivor: SparkDriver) -> None:
        self.bucket = bucket
        self.proxy = proxy
        catalog = catalog_on_s3(CATALOG, root / "catalog.db", bucket, proxy.url)
        jars = (ICEBERG_4_0, ICEBERG_ON_S3)
        super().__init__(root, DIRECTORIES, catalog, f"{CATALOG}.db.orders", survivor, *jars)

    def dies_before_the_catalog_knows(self) -> None:
        """Kill the driver before the catalog is updated. Table metadata is written once to stage
        rows, and once to publish them.
        """
        victim = self.victims.driver.process
        self.proxy.misbehave(at_nth_put(2, METADATA, kill_after(victim)))
        self.victims.dies(self.command())
        self.proxy.heal()

    def stored_offsets(self) -> Offsets:
        """Return the offsets that `sidetier gc` reads from the table, without its catalog."""
        server = self.bucket.server
        credentials = Credentials(server.access_key, server.secret_key)
        settings = S3Settings(server.endpoint_url, server.region, True, credentials=credentials)  # noqa: FBT003 -- path_style
        url = f"s3://{self.bucket.name}/warehouse/db/orders"
        return stored_offsets(iceberg_progress, StorageEndpoint(url, s3=settings))


@pytest.fixture(scope="module")
def export(
    spark40: SparkDriver, s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Export]:
    root = tmp_path_factory.mktemp("iceberg-on-s3")
    with S3Proxy(s3_server.port) as proxy:
        made = Export(root, new_bucket(s3_server), proxy, spark40)
        yield made
        made.victims.stop()


def test_second_export_is_refused_and_a_driver_killed_at_the_commit_loses_nothing(
    export: Export, tmp_path: Path
) -> None:
    export.archive.end_at(0.4)
    assert export.run("--chunk-bytes", str(MAX_BYTES)).code == 0
    export.assert_whole()
    sizes = export.sizes()
    total = export.archive.size({}, export.offsets())
    assert max(sizes) <= MAX_BYTES + OVERSHOOT
    assert total / MAX_BYTES - 1 < len(sizes) < 2 * total / MAX_BYTES
    assert export.proxy.found("PUT", ".parquet"), "the table lies elsewhere"

    export.archive.end_at(0.6)
    with export.held(go := tmp_path / "first") as first:
        assert export.victims.export(export.command()).code == 0
        go.touch()
        said = first.result(120)
    assert said.code == 1
    assert "another export has committed meanwhile" in said.text
    export.assert_whole()

    export.archive.end_at(0.8)
    before = export.offsets()
    export.dies_before_the_catalog_knows()
    assert export.offsets() == before
    assert export.stored_offsets() == before, "the killed driver has left a newer metadata file"
    export.assert_whole()

    export.archive.end_at(1.0)
    assert export.run().code == 0
    export.assert_whole()
    made = len(export.summaries())
    assert export.run() == Said(0, "")
    assert len(export.summaries()) == made, "nothing is new, and there is a commit"
    [lz4] = export.offsets()["comp-lz4"].values()
    assert lz4 == export.archive.segments["comp-lz4-0"][-1].next_base
    assert export.stored_offsets()["comp-lz4"]["0"] <= lz4


def test_catalog_that_would_lose_one_of_two_commits_is_refused(export: Export) -> None:
    """No request is sent to S3, neither by us nor by Hadoop."""
    settings = iceberg_catalog(f"s3a://{export.bucket.name}/renamed", "renamed")
    export.introduce(export.survivor, settings)
    said = export.run(table="renamed.db.orders")
    assert said.code == 2
    assert "the catalog renamed is of the type hadoop" in said.text
    assert "rest, jdbc, glue, hive" in said.text
