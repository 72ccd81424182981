"""Exports into Iceberg: real Sparks, 4.0 and 3.5 at one table, drivers that are killed."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.table_exports import (
    ICEBERG_35,
    ICEBERG_40,
    Environment,
    GrowingArchive,
    Worker,
    consumed,
)
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

DIRECTORIES = ("tx-0", "comp-lz4-0", "headers-nulls-0", "append-time-0")
TABLE = "lake.db.orders"
CRASHES = int(os.environ.get("SIDETIER_EXPORT_CRASHES", "1"))
"""So many drivers are killed at random moments besides; each costs half a minute."""


class Export:
    """One table, and drivers of two versions of Spark that export into it."""

    def __init__(self, root: Path, archive: GrowingArchive) -> None:
        self.root = root
        self.archive = archive
        self.worker = self.start(ICEBERG_40)

    def start(self, environment: Environment) -> Worker:
        return Worker.start(environment, self.root / f"{environment.name}.log")

    def command(self, environment: Environment, *more: str) -> list[str]:
        catalog = {
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": f"{self.root}/warehouse",
        }
        config = ("--config", str(self.archive.config), "--master", "local[1]")
        table = ("--table", TABLE, "--partitioned-by", "topic")
        return [
            "iceberg",
            *self.archive.topics,
            *table,
            *config,
            *environment.conf(**catalog),
            *more,
        ]

    def run(self, *more: str) -> int:
        code: int = self.worker.ask({"export": self.command(ICEBERG_40, *more)})
        return code

    def dies(self, die: dict[str, Any]) -> None:
        self.worker.dies({"export": self.command(ICEBERG_40), "die": die})
        self.restart()

    def restart(self) -> None:
        self.worker.stop()
        self.worker = self.start(ICEBERG_40)

    def sql(self, text: str, worker: Worker | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (worker or self.worker).ask({"sql": text})
        return found

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.worker.ask(
            {"rows": {"format": "iceberg", "table": TABLE}}
        )
        return found

    def snapshots(self) -> list[dict[str, str]]:
        """The summaries of what the table was made by, newest first."""
        found = self.sql(
            "SELECT to_json(s.summary) AS summary FROM lake.db.orders.snapshots s "
            "JOIN lake.db.orders.history h ON s.snapshot_id = h.snapshot_id "
            "WHERE h.is_current_ancestor ORDER BY h.made_current_at DESC"
        )
        return [json.loads(one["summary"]) for one in found]

    def offsets(self) -> dict[str, dict[str, int]]:
        told = next(one for one in self.snapshots() if "sidetier.offsets" in one)
        offsets: dict[str, dict[str, int]] = json.loads(told["sidetier.offsets"])
        return offsets

    def assert_whole(self) -> None:
        wanted = consumed(self.archive, self.offsets())
        wanted.sort(key=lambda row: (row["topic"], row["partition"], row["offset"]))
        assert self.rows() == wanted


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Export]:
    root = tmp_path_factory.mktemp("iceberg")
    made = Export(root, GrowingArchive(root / "archive", DIRECTORIES).create())
    yield made
    made.worker.stop()


def test_drivers_killed_before_during_and_after_the_commit(export: Export) -> None:
    data = {"directory": str(export.root / "warehouse"), "file": "**/data/**/*.parquet"}
    export.archive.end_at(0.4)
    export.dies(data)
    assert export.run() == 0, export.worker.told()
    export.assert_whole()
    assert len(export.snapshots()) == 1

    export.archive.end_at(0.7)
    export.dies({"step": "staged"})
    before = export.offsets()
    export.dies({"step": "published"})
    assert export.offsets() != before
    export.assert_whole()

    export.archive.end_at(1.0)
    assert export.run("--chunk", "300") == 0, export.worker.told()
    export.assert_whole()
    made = len(export.snapshots())
    assert made > 3
    assert export.run() == 0
    assert len(export.snapshots()) == made, "nothing is new, and there is a commit"
    assert set(export.offsets()) == set(export.archive.topics)


def test_two_exports_at_once_and_what_others_write_meanwhile(
    export: Export, tmp_path: Path
) -> None:
    export.sql("DROP TABLE lake.db.orders PURGE")
    other = export.start(ICEBERG_35)
    try:
        export.archive.end_at(0.4)
        assert other.ask({"export": export.command(ICEBERG_35)}) == 0, other.told()
        export.archive.end_at(0.7)
        go = tmp_path / "first"
        export.worker.send({"export": export.command(ICEBERG_40), "hold": str(go)})
        wait_until(go.with_suffix(".reached").exists, 120, "the first to have staged its rows")
        assert other.ask({"export": export.command(ICEBERG_35)}) == 0, other.told()
        go.touch()
        assert export.worker.answer() == 1
        assert "another export has committed meanwhile" in export.worker.told()
        export.assert_whole()

        export.archive.end_at(1.0)
        go = tmp_path / "second"
        export.worker.send({"export": export.command(ICEBERG_40), "hold": str(go)})
        wait_until(go.with_suffix(".reached").exists, 120, "the second to have staged its rows")
        export.sql("ALTER TABLE lake.db.orders WRITE ORDERED BY offset", other)
        export.sql("DELETE FROM lake.db.orders WHERE topic = 'nobody' OR offset < 0", other)
        export.sql(
            "INSERT INTO lake.db.orders "
            "SELECT * FROM lake.db.orders WHERE topic = 'tx' AND offset = 0",
            other,
        )
        go.touch()
        assert export.worker.answer() == 0, export.worker.told()
    finally:
        other.stop()
    export.sql("REFRESH TABLE lake.db.orders")
    assert "sidetier.offsets" in export.snapshots()[0]
    assert "sidetier.offsets" not in export.snapshots()[1]
    wanted = consumed(export.archive, export.offsets())
    assert len(export.rows()) == len(wanted) + 1, "what the other has written is there too"


def test_rows_that_do_not_fit_the_table_leave_nothing(export: Export, tmp_path: Path) -> None:
    before = export.snapshots()
    schema = tmp_path / "value.json"
    schema.write_text('{"type": "object", "properties": {"i": {"type": "integer"}}}')
    export.sql("CREATE TABLE lake.db.odd (topic INT) USING iceberg")
    command = export.command(ICEBERG_40)
    command[command.index(TABLE)] = "lake.db.odd"
    assert export.worker.ask({"export": command}) == 1
    assert "do not fit the table" in export.worker.told()
    assert export.sql("SELECT * FROM lake.db.odd") == []
    assert export.snapshots() == before


def test_a_state_of_a_later_version_is_refused(export: Export) -> None:
    command = export.command(ICEBERG_40)
    command[command.index(TABLE)] = "lake.db.later"
    export.sql("CREATE TABLE lake.db.later (topic STRING) USING iceberg")
    export.worker.ask(
        {"append": {"table": "lake.db.later", "properties": {"sidetier.version": "2"}}}
    )
    assert export.worker.ask({"export": command}) == 1
    assert "was written by a later version" in export.worker.told()


def test_drivers_killed_at_any_moment(export: Export) -> None:
    export.sql("DROP TABLE lake.db.orders PURGE")
    random_ = random.Random(6)
    for number in range(CRASHES):
        export.archive.end_at((number + 1) / (CRASHES + 1))
        die = {"seconds": random_.uniform(2, 20)}
        export.worker.send({"export": export.command(ICEBERG_40), "die": die})
        export.worker.answer()
        export.restart()
    export.archive.end_at(1.0)
    assert export.run() == 0, export.worker.told()
    export.assert_whole()
