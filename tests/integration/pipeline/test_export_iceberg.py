"""Exports into Iceberg: real Sparks, 4.0 and 3.5 at one table, drivers that are killed."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidetier.cli.export.iceberg_session import SESSION
from sidetier.sandbox.spark_jars import ICEBERG_3_5, ICEBERG_4_0
from tests.harness import table_jobs
from tests.harness.spark import SPARK_4, SPARK_35
from tests.harness.table_exports import Drivers, GrowingArchive, Offsets, Row, Said, consumed
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

DIRECTORIES = ("tx-0", "comp-lz4-0", "headers-nulls-0", "append-time-0")
TABLE = "lake.db.orders"
CRASHES = int(os.environ.get("SIDETIER_EXPORT_CRASHES", "0"))
"""So many drivers are killed at random moments besides; each costs half a minute."""


class Export:
    """One table, and drivers of two versions of Spark that export into it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.archive = GrowingArchive(root / "archive", DIRECTORIES).create()
        settings = {
            **SESSION,
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.cache-enabled": "false",  # the tests look at what others write
            "spark.sql.catalog.lake.warehouse": f"{root}/warehouse",
        }
        self.drivers = Drivers(SPARK_4, root / "4.0", settings, ICEBERG_4_0)
        self.others = Drivers(SPARK_35, root / "3.5", settings, ICEBERG_3_5)

    def stop(self) -> None:
        self.drivers.stop()
        self.others.stop()

    def command(self, *more: str, table: str = TABLE) -> list[str]:
        named = ("--table", table, "--partitioned-by", "topic")
        return [
            "iceberg",
            *self.archive.topics,
            *named,
            "--config",
            str(self.archive.config),
            *more,
        ]

    def run(self, *more: str, table: str = TABLE, **faults: object) -> Said:
        return self.drivers.export(self.command(*more, table=table), **faults)

    def rows(self) -> list[Row]:
        return self.drivers.rows("iceberg", TABLE)

    def summaries(self) -> list[dict[str, str]]:
        """Of the snapshots that the table was made by, newest first."""
        found = self.drivers.sql(
            "SELECT to_json(s.summary) AS summary FROM lake.db.orders.snapshots s "
            "JOIN lake.db.orders.history h ON s.snapshot_id = h.snapshot_id "
            "WHERE h.is_current_ancestor ORDER BY h.made_current_at DESC"
        )
        return [json.loads(one["summary"]) for one in found]

    def offsets(self) -> Offsets:
        told = next(one for one in self.summaries() if "sidetier.offsets" in one)
        offsets: Offsets = json.loads(told["sidetier.offsets"])
        return offsets

    def assert_whole(self) -> None:
        assert self.rows() == consumed(self.archive, self.offsets())


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Export]:
    made = Export(tmp_path_factory.mktemp("iceberg"))
    yield made
    made.stop()


def test_drivers_killed_before_during_and_after_the_commit(export: Export) -> None:
    data = {"directory": str(export.root / "warehouse"), "file": "**/data/**/*.parquet"}
    export.archive.end_at(0.4)
    export.drivers.dies(export.command(), data)
    assert export.run().code == 0
    export.assert_whole()
    assert len(export.summaries()) == 1

    export.archive.end_at(0.7)
    export.drivers.dies(export.command(), {"step": "staged"})
    before = export.offsets()
    export.drivers.dies(export.command(), {"step": "published"})
    assert export.offsets() != before
    export.assert_whole()

    export.archive.end_at(1.0)
    export.drivers.die_at_any_moment(export.command("--chunk", "50"), CRASHES, 8)
    assert export.run("--chunk", "300", fail_once=True).code == 0
    export.assert_whole()
    made = len(export.summaries())
    assert made > 3
    assert export.run() == Said(0, "")
    assert len(export.summaries()) == made, "nothing is new, and there is a commit"
    assert set(export.offsets()) == set(export.archive.topics)


def test_two_exports_at_once_and_what_others_write(export: Export, tmp_path: Path) -> None:
    export.drivers.sql("DROP TABLE IF EXISTS lake.db.orders PURGE")
    export.archive.end_at(0.4)
    assert export.others.export(export.command()).code == 0
    export.archive.end_at(0.7)
    go = tmp_path / "first"
    with export.drivers.exporting(export.command(), hold=str(go)) as first:
        wait_until(go.with_suffix(".reached").exists, 120, "the first to have staged its rows")
        assert export.others.export(export.command()).code == 0
        go.touch()
        said = first.result(120)
    assert said.code == 1
    assert "another export has committed meanwhile" in said.text
    export.assert_whole()

    export.archive.end_at(1.0)
    go = tmp_path / "second"
    with export.drivers.exporting(export.command(), hold=str(go)) as second:
        wait_until(go.with_suffix(".reached").exists, 120, "the second to have staged its rows")
        export.others.sql(
            "INSERT INTO lake.db.orders "
            "SELECT * FROM lake.db.orders WHERE topic = 'tx' AND offset = 0"
        )
        go.touch()
        assert second.result(120).code == 0
    ours, theirs, *_ = export.summaries()
    assert "sidetier.offsets" in ours
    assert "sidetier.offsets" not in theirs
    wanted = consumed(export.archive, export.offsets())
    assert len(export.rows()) == len(wanted) + 1, "what the other has written is there too"
    assert export.run() == Said(0, "")


def test_rows_that_do_not_fit_the_table_leave_nothing(export: Export) -> None:
    export.drivers.sql("CREATE TABLE lake.db.odd (topic INT) USING iceberg")
    said = export.run(table="lake.db.odd")
    assert said.code == 1
    assert "the rows do not fit the table" in said.text
    assert export.drivers.sql("SELECT * FROM lake.db.odd") == []


def test_a_state_of_a_later_version_is_refused(export: Export) -> None:
    export.drivers.sql("CREATE TABLE lake.db.later (topic STRING) USING iceberg")
    export.drivers.driver.call(
        table_jobs.append_nothing, table="lake.db.later", properties={"sidetier.version": "2"}
    )
    said = export.run(table="lake.db.later")
    assert said.code == 1
    assert "was written by a later version" in said.text


def test_an_expired_history_is_no_reason_to_begin_again(export: Export) -> None:
    export.drivers.sql("INSERT INTO lake.db.odd VALUES (1), (2)")
    export.drivers.sql("INSERT INTO lake.db.odd VALUES (3)")
    export.drivers.sql(
        "CALL lake.system.expire_snapshots(table => 'db.odd', "
        "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    )
    said = export.run(table="lake.db.odd")
    assert said.code == 1
    assert "older ones have expired" in said.text


def test_a_plan_is_shown_and_nothing_written(export: Export) -> None:
    said = export.run("--dry-run", table="lake.db.planned")
    assert said.code == 0, said.text
    assert export.drivers.sql("SHOW TABLES IN lake.db LIKE 'planned'") == []
