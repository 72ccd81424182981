"""Exports into an Iceberg table by drivers that are killed, and by one that survives."""

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from devtools.sandbox.spark import SPARK_4
from sidetier.brokers.jars import Distribution
from sidetier.pipeline.export.table_export import ICEBERG_SESSION
from tests.harness import table_jobs
from tests.harness.s3 import S3Bucket
from tests.harness.spark import SparkDriver
from tests.harness.table_exports import (
    Drivers,
    GrowingArchive,
    Offsets,
    Row,
    Said,
    consumed,
    exported,
)
from tests.harness.waiting import wait_until


def catalog_on_s3(name: str, database: Path, bucket: S3Bucket, endpoint_url: str) -> dict[str, str]:
    """Return session settings for a catalog in a database, with its tables in a bucket."""
    prefix = f"spark.sql.catalog.{name}"
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.type": "jdbc",
        f"{prefix}.uri": f"jdbc:sqlite:{database}",
        f"{prefix}.jdbc.schema-version": "V1",  # else Spark cannot check whether a table exists
        f"{prefix}.cache-enabled": "false",  # the tests read what other processes write
        f"{prefix}.warehouse": f"s3://{bucket.name}/warehouse",
        f"{prefix}.io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        f"{prefix}.client.region": bucket.server.region,
        f"{prefix}.s3.endpoint": endpoint_url,
        f"{prefix}.s3.path-style-access": "true",
        f"{prefix}.s3.access-key-id": bucket.server.access_key,
        f"{prefix}.s3.secret-access-key": bucket.server.secret_key,
    }


class IcebergExport:
    """One table with everything in an archive."""

    def __init__(
        self,
        root: Path,
        directories: tuple[str, ...],
        catalog: Mapping[str, str],
        table: str,
        survivor: SparkDriver,
        *jars: Distribution,
    ) -> None:
        """Set up the export.

        `survivor` is the Spark 4.0 driver that is never killed. The other drivers use the jars.
        """
        self.root = root
        self.table = table
        self.archive = GrowingArchive(root / "archive", directories).create()
        self.catalog = catalog
        self.victims = Drivers(SPARK_4, root / "4.0", {**ICEBERG_SESSION, **catalog}, *jars)
        self.survivor = survivor
        self.introduce(survivor)

    def introduce(self, driver: SparkDriver, catalog: Mapping[str, str] | None = None) -> None:
        """Configure a catalog in a session, by default this table's."""
        for name, value in (catalog or self.catalog).items():
            driver.call(table_jobs.sql, text=f"SET `{name}`=`{value}`")

    def command(self, *more: str, table: str | None = None) -> list[str]:
        named = ("--table", table or self.table, "--partitioned-by", "topic")
        config = ("--config", str(self.archive.config))
        return ["iceberg", *self.archive.topics, *named, *config, *more]

    def run(self, *more: str, table: str | None = None, **faults: object) -> Said:
        return exported(self.survivor, self.command(*more, table=table), **faults)

    @contextmanager
    def held(self, go: Path) -> Iterator[Future[Said]]:
        """Start an export that prepares its commit, waits for this file, and then publishes."""
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self.run, hold=str(go))
            wait_until(go.with_suffix(".reached").exists, 120, "the rows to be staged")
            yield running

    def dies(self, **die: str) -> None:
        self.victims.dies(self.command(), die)

    def rows(self) -> list[Row]:
        table_rows: list[Row] = self.survivor.call(
            table_jobs.rows, form="iceberg", table=self.table
        )
        return table_rows

    def sql(self, text: str) -> list[Row]:
        result_rows: list[Row] = self.survivor.call(table_jobs.sql, text=text)
        return result_rows

    def summaries(self) -> list[dict[str, str]]:
        """Return the summaries of the export's snapshots, newest first."""
        rows = self.sql(
            f"SELECT to_json(s.summary) AS summary FROM {self.table}.snapshots s "  # noqa: S608 - a test's own table
            f"JOIN {self.table}.history h ON s.snapshot_id = h.snapshot_id "
            "WHERE h.is_current_ancestor ORDER BY h.made_current_at DESC"
        )
        return [json.loads(row["summary"]) for row in rows]

    def offsets(self) -> Offsets:
        newest = next(summary for summary in self.summaries() if "sidetier.offsets" in summary)
        offsets: Offsets = json.loads(newest["sidetier.offsets"])
        return offsets

    def sizes(self) -> list[int]:
        """Return the number of archived bytes of each commit, newest first."""
        offset_ranges = [
            (json.loads(summary["sidetier.since"]), json.loads(summary["sidetier.offsets"]))
            for summary in self.summaries()
        ]
        return [self.archive.size(since, until) for since, until in offset_ranges]

    def assert_whole(self) -> None:
        assert self.rows() == consumed(self.archive, self.offsets())
