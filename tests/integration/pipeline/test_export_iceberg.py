"""Iceberg exports: real Spark 4.0 and 3.5 with one table, and killed drivers."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.sandbox.spark_jars import ICEBERG_4_0
from sidetier.pipeline.export.sinks.tables.stored_progress import iceberg_progress
from sidetier.storage.settings import StorageEndpoint
from tests.harness import table_jobs
from tests.harness.ci import SEARCHES
from tests.harness.iceberg_exports import IcebergExport
from tests.harness.spark import SparkCallError, SparkDriver
from tests.harness.table_exports import (
    Row,
    Said,
    consumed,
    exported,
    iceberg_catalog,
    made_archive,
    stored_offsets,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

DIRECTORIES = ("tx-0", "comp-lz4-0", "headers-nulls-0", "append-time-0")
CATALOG = "crash"
TABLE = f"{CATALOG}.db.orders"
CRASHES = int(os.environ.get("SIDETIER_EXPORT_CRASHES", "0"))
"""Number of additional drivers that are killed at random moments; each takes half a minute."""


class Export(IcebergExport):
    """An export that can also use a driver of the other Spark version."""

    def __init__(self, root: Path, survivor: SparkDriver, other: SparkDriver) -> None:
        catalog = iceberg_catalog(root / "warehouse", CATALOG)
        super().__init__(root, DIRECTORIES, catalog, TABLE, survivor, ICEBERG_4_0)
        self.other = other
        self.introduce(other)

    def run_other(self) -> Said:
        return exported(self.other, self.command())

    def assert_whole(self) -> None:
        """Also that `sidetier gc` reads the same offsets, without Spark."""
        super().assert_whole()
        directory = StorageEndpoint(f"file://{self.root}/warehouse/db/orders")
        assert stored_offsets(iceberg_progress, directory) == self.offsets()


@pytest.fixture(scope="module")
def export(
    spark40: SparkDriver, spark35: SparkDriver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Export]:
    made = Export(tmp_path_factory.mktemp("iceberg"), spark40, spark35)
    yield made
    made.victims.stop()


@SEARCHES
def test_drivers_killed_before_during_and_after_the_commit(export: Export) -> None:
    export.archive.end_at(0.4)
    export.dies(directory=str(export.root / "warehouse"), file="**/data/**/*.parquet")
    assert export.run().code == 0
    export.assert_whole()
    assert len(export.summaries()) == 1

    export.archive.end_at(0.7)
    export.dies(step="staged")
    before = export.offsets()
    export.dies(step="published")
    assert export.offsets() != before
    export.assert_whole()

    export.archive.end_at(1.0)
    export.victims.die_at_any_moment(export.command("--chunk", "50"), CRASHES, 8)
    assert export.run("--chunk", "300", fail_once=True).code == 0
    export.assert_whole()
    made = len(export.summaries())
    assert made > 3
    assert export.run() == Said(0, "")
    assert len(export.summaries()) == made, "nothing is new, and there is a commit"
    assert set(export.offsets()) == set(export.archive.topics)


def test_two_concurrent_exports_and_commits_of_other_writers(
    export: Export, tmp_path: Path
) -> None:
    export.sql(f"DROP TABLE IF EXISTS {TABLE} PURGE")
    export.archive.end_at(0.4)
    assert export.run_other().code == 0
    export.archive.end_at(0.7)
    with export.held(go := tmp_path / "first") as first:
        assert export.run_other().code == 0
        go.touch()
        said = first.result(120)
    assert said.code == 1
    assert "another export has committed meanwhile" in said.text
    export.assert_whole()

    export.archive.end_at(1.0)
    with export.held(go := tmp_path / "second") as second:
        first_again = (
            "INSERT INTO crash.db.orders "
            "SELECT * FROM crash.db.orders WHERE topic = 'tx' AND offset = 0"
        )
        export.other.call(table_jobs.sql, text=first_again)
        go.touch()
        assert second.result(120).code == 0
    ours, theirs, *_ = export.summaries()
    assert "sidetier.offsets" in ours
    assert "sidetier.offsets" not in theirs
    wanted = consumed(export.archive, export.offsets())
    assert len(export.rows()) == len(wanted) + 1, "what the other has written is there too"
    assert export.run() == Said(0, "")


def test_rows_that_do_not_fit_the_table_leave_nothing(export: Export) -> None:
    export.sql("CREATE TABLE crash.db.odd (topic INT) USING iceberg")
    said = export.run(table="crash.db.odd")
    assert said.code == 1
    assert "the rows do not fit the table" in said.text
    assert export.sql("SELECT * FROM crash.db.odd") == []


def test_text_too_long_for_a_directory_is_a_dead_letter(export: Export, tmp_path: Path) -> None:
    """In a new table, and in one that exists. Iceberg escapes the others: `..` is a value."""
    schema = tmp_path / "value.json"
    schema.write_text('{"type": "object", "properties": {"to": {"type": "string"}}}')
    values = [json.dumps({"to": to}).encode() for to in ("n" * 256, "..", "n" * 256, "a/../b")]
    config, table = made_archive(tmp_path, values), f"{CATALOG}.db.aside"
    command = ["iceberg", "orders", "--table", table, "--config", str(config), "--flat"]
    command += ["--partitioned-by", "to", "--value-format", "json", "--value-schema", str(schema)]
    command += ["--dead-letters", f"file://{tmp_path}/letters"]
    for ending in (2, 4):
        ends = json.dumps({"orders": {"0": ending}})
        said = exported(export.survivor, [*command, "--ending-offsets", ends])
        assert said.code == 3, said.text
    rows = export.sql(f"SELECT offset, to FROM {table} ORDER BY offset")  # noqa: S608
    assert rows == [{"offset": 1, "to": ".."}, {"offset": 3, "to": "a/../b"}]
    assert sorted(one.stem[-1] for one in tmp_path.glob("letters/*/*/*.json")) == ["0", "2"]


def test_expired_history_does_not_restart_the_export(export: Export) -> None:
    export.sql("INSERT INTO crash.db.odd VALUES (1), (2)")
    export.sql("INSERT INTO crash.db.odd VALUES (3)")
    export.sql(
        "CALL crash.system.expire_snapshots(table => 'db.odd', "
        "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    )
    said = export.run(table="crash.db.odd")
    assert said.code == 1
    assert "older ones have expired" in said.text


def test_dry_run_shows_the_plan_and_writes_nothing(export: Export) -> None:
    said = export.run("--dry-run", table="crash.db.planned")
    assert said.code == 0, said.text
    assert export.sql("SHOW TABLES IN crash.db LIKE 'planned'") == []


def test_export_from_the_latest_offset_begins_where_its_first_run_began(export: Export) -> None:
    table, begin = f"{CATALOG}.db.latest", ("--starting-offsets", "latest")
    export.archive.end_at(0.5)
    assert export.run(*begin, table=table).code == 0
    assert export.sql(f"SELECT * FROM {table}") == []  # noqa: S608 - a test's own table
    export.archive.end_at(1.0)
    assert export.run(*begin, table=table).code == 0
    [newest, first] = export.sql(
        f"SELECT summary['sidetier.offsets'] AS offsets FROM {table}.snapshots "  # noqa: S608
        "ORDER BY committed_at DESC"
    )
    starts, ends = (json.loads(row["offsets"]) for row in (first, newest))
    [rows] = export.sql(f"SELECT count(*) AS count FROM {table}")  # noqa: S608
    wanted = len(consumed(export.archive, ends)) - len(consumed(export.archive, starts))
    assert rows["count"] == wanted > 0


def test_state_of_many_partitions_is_not_in_each_snapshot(export: Export) -> None:
    """The snapshot with the whole state is kept when snapshots expire, as long as others need
    it.
    """
    table, count = f"{CATALOG}.db.many", 2000

    def commit(*names: str, every: int = 5) -> list[Row]:
        said: list[Row] = export.survivor.call(
            table_jobs.commit_news_of_many,
            form="iceberg",
            table=table,
            partitions=count,
            names=list(names),
            every=every,
        )
        return said

    def sizes() -> list[int]:
        summaries = export.sql(f"SELECT summary FROM {table}.snapshots ORDER BY committed_at")  # noqa: S608
        return [sum(map(len, one["summary"].values())) for one in summaries]

    def tags() -> int:
        return len(export.sql(f"SELECT * FROM {table}.refs WHERE name = 'sidetier_state'"))  # noqa: S608

    said = commit("c0", "c1", "c2")
    state = {"partitions": count, "epochs": count}
    assert said[1:] == [
        {"commit": "c0", "first": 1001, "whole": None, **state},
        {"commit": "c1", "first": 1002, "whole": "c0", **state},
        {"commit": "c2", "first": 1003, "whole": "c0", **state},
    ]
    whole, *changes = sizes()
    assert whole > 50_000
    assert max(changes) < 2_000
    assert tags() == 1
    expire = (
        "CALL crash.system.expire_snapshots(table => 'db.many', "
        "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    )
    export.sql(expire)
    assert len(sizes()) == 2, "the one that is shown, and the one with the tag"
    *_, last = commit("c3", "c4")
    assert last == {"commit": "c4", "first": 1005, "whole": "c0", **state}
    *_, last = commit("c5")
    assert last == {"commit": "c5", "first": 1006, "whole": None, **state}
    assert tags() == 0, "nothing refers to the first one any more"
    export.sql(expire)
    *_, last = commit("c6")
    assert last == {"commit": "c6", "first": 1007, "whole": "c5", **state}
    export.sql(f"ALTER TABLE {table} DROP TAG sidetier_state")
    export.sql(expire)
    with pytest.raises(SparkCallError, match="which has the whole state, and is not in the table"):
        commit("c7")
