"""Hudi exports: a real Spark 3.5, a broker's own segments, and killed drivers."""

import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from devtools.sandbox.spark import SPARK_35
from devtools.sandbox.spark_jars import HUDI_3_5
from sidetier.pipeline.export.sinks.tables.lease import Lease
from sidetier.pipeline.export.sinks.tables.stored_progress import hudi_progress
from sidetier.pipeline.export.table_export import HUDI_SESSION
from sidetier.storage.local import LocalStorage
from sidetier.storage.settings import StorageEndpoint
from tests.harness import table_jobs
from tests.harness.ci import SEARCHES
from tests.harness.every_type import check_every_type, in_spark
from tests.harness.schema_changes import ChangingTopic, check_rows_of_each_version
from tests.harness.schema_registry import serving
from tests.harness.spark import SparkDriver
from tests.harness.table_exports import (
    Drivers,
    GrowingArchive,
    Offsets,
    Row,
    Said,
    consumed,
    ends_of,
    exported,
    made_archive,
    stored_offsets,
)
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

DIRECTORIES = ("tx-0", "comp-zstd-0", "headers-nulls-0", "compacted-0")
CRASHES = int(os.environ.get("SIDETIER_EXPORT_CRASHES", "0"))
"""Number of additional drivers that are killed at random moments; each takes half a minute."""


WRITTEN = "metadata/.hoodie/timeline/*.deltacommit.inflight"
"""Appears once all files of a commit are written, and shortly before it is completed."""


QUICK = "hoodie.metadata.enable=false"
KILLED = ("orders", "suspended")
"""Tables whose drivers are killed use Hudi's metadata table, which is one more step; the other
tables are faster without it.
"""


class Export:
    """Tables, drivers that are killed while they export, and one that survives."""

    def __init__(self, root: Path, survivor: SparkDriver) -> None:
        self.root = root
        self.archive = GrowingArchive(root / "archive", DIRECTORIES).create()
        self.victims = Drivers(SPARK_35, root / "driver", HUDI_SESSION, HUDI_3_5)
        self.survivor = survivor

    def command(self, table: str = "orders", *more: str) -> list[str]:
        base = ("--option", f"target.base.path={self.path(table)}")
        name = ("--option", f"target.table.name={table}")
        config = ("--config", str(self.archive.config))
        quick = () if table in KILLED else ("--option", QUICK)
        return ["hudi", *self.archive.topics, *base, *name, *config, *quick, *more]

    def path(self, table: str) -> str:
        return f"file://{self.root}/lake/{table}"

    def timeline(self, table: str = "orders") -> Path:
        return self.root / "lake" / table / ".hoodie"

    def run(self, table: str = "orders", *more: str, **faults: object) -> Said:
        return exported(self.survivor, self.command(table, *more), **faults)

    def dies_at(self, pattern: str) -> None:
        die = {"directory": str(self.timeline()), "file": pattern}
        self.victims.dies(self.command(), die)

    def rows(self, table: str = "orders") -> list[Row]:
        found: list[Row] = self.survivor.call(table_jobs.rows, form="hudi", table=self.path(table))
        return found

    def commits(self, table: str = "orders") -> list[Path]:
        return list(self.timeline(table).glob("timeline/*_*.commit"))

    def completed(self, table: str = "orders") -> int:
        return len(self.commits(table))

    def stored_offsets(self, table: str = "orders") -> Offsets:
        """Return the offsets that `sidetier gc` reads from the table, without Spark."""
        return stored_offsets(hudi_progress, StorageEndpoint(self.path(table)))

    def assert_whole(self, rows: list[Row]) -> None:
        assert rows == consumed(self.archive, ends_of(rows))
        assert {row["topic"] for row in rows} == set(self.archive.topics)


@pytest.fixture(scope="module")
def export(spark35: SparkDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Export]:
    made = Export(tmp_path_factory.mktemp("hudi"), spark35)
    yield made
    made.victims.stop()


def test_suspended_driver_cannot_commit(export: Export) -> None:
    """While it holds the lease, another driver is refused; once the lease has expired, another one
    does the work.
    """
    lock = ("--lock-ttl", "6s", "--lock-wait", "60s")
    table = "suspended"
    export.archive.end_at(0.5)
    assert export.run(table, *lock).code == 0
    export.archive.end_at(1)
    seen = set(export.timeline(table).glob(WRITTEN))
    with ThreadPoolExecutor(1) as pool:
        suspended = export.victims.driver
        first = pool.submit(export.victims.export, export.command(table, *lock))
        wait_until(
            lambda: set(export.timeline(table).glob(WRITTEN)) - seen, 200, "files", every=0.001
        )
        suspended.process.pause()
        try:
            assert export.completed(table) == 1, "it was suspended too late"
            refused = export.run(table, "--lock-wait", "1ms")
            second = export.run(table, *lock)
        finally:
            suspended.process.resume()
        assert refused.code == 1
        assert "held by process" in refused.text
        assert second.code == 0, second.text
        assert first.result(120).code == 1
    export.assert_whole(export.rows(table))
    assert export.run(table, *lock) == Said(0, "")


@SEARCHES
def test_drivers_killed_before_during_and_after_the_commit(export: Export) -> None:
    export.archive.end_at(0.4)
    export.dies_at("timeline/*.inflight")
    assert export.completed() == 0
    assert export.run().code == 0
    first = export.rows()
    export.assert_whole(first)
    assert export.completed() == 1
    assert list(export.timeline().glob("timeline/*.rollback")), "nothing was rolled back"

    export.archive.end_at(0.7)
    export.dies_at("metadata/.hoodie/timeline/*_*.deltacommit")
    export.dies_at("timeline/*_*.commit")
    assert export.completed() == 2

    export.archive.end_at(1.0)
    export.victims.die_at_any_moment(export.command("orders", "--chunk", "100"), CRASHES, 20)
    assert export.run(fail_once=True).code == 0
    rows = export.rows()
    export.assert_whole(rows)
    assert len(rows) > len(first)
    made = export.completed()
    assert made > 2
    assert export.run() == Said(0, "")
    assert export.completed() == made, "nothing is new, and there is a commit"


def test_offsets_of_all_partitions_are_in_the_commit(export: Export) -> None:
    def sql(text: str) -> list[Row]:
        found: list[Row] = export.survivor.call(table_jobs.sql, text=text)
        return found

    sql(f"CREATE TABLE orders USING hudi LOCATION '{export.path('orders')}'")
    [told, *_] = sql(
        "CALL show_commit_extra_metadata(table => 'orders', metadata_key => 'sidetier.offsets')"
    )
    offsets: Offsets = json.loads(told["metadata_value"])
    assert set(offsets) == set(export.archive.topics)
    assert export.stored_offsets() == offsets
    for topic, ends in ends_of(export.rows()).items():
        assert offsets[topic]["0"] >= ends["0"]


@pytest.mark.parametrize("allow_empty", ["true", "false"])
def test_export_from_the_latest_offset_begins_where_its_first_run_began(
    export: Export, allow_empty: str
) -> None:
    table = f"latest_{allow_empty}"
    options = (
        *("--starting-offsets", "latest"),
        *("--option", f"hoodie.allow.empty.commit={allow_empty}"),
    )
    export.archive.end_at(0.5)
    assert export.run(table, *options).code == 0
    assert export.completed(table) == 1
    assert export.rows(table) == []
    export.archive.end_at(1.0)
    assert export.run(table, *options).code == 0
    rows = export.rows(table)
    assert rows
    firsts = {row["topic"]: row["offset"] for row in reversed(rows)}
    wanted = consumed(export.archive, ends_of(rows))
    assert rows == [row for row in wanted if row["offset"] >= firsts.get(row["topic"], 0)]
    assert export.run(table, *options).code == 0
    assert export.rows(table) == rows


def test_export_is_refused_while_another_process_holds_the_lease(export: Export) -> None:
    with Lease(LocalStorage(export.root / "lake"), "_sidetier/second.lease"):
        said = export.run("second", "--lock-wait", "1s")
    assert said.code == 1
    assert f"held by process {os.getpid()}" in said.text
    assert not export.timeline("second").exists()


def test_write_that_fails_or_times_out_leaves_nothing(export: Export, tmp_path: Path) -> None:
    schema = tmp_path / "strict.json"
    schema.write_text('{"type": "object", "properties": {"i": {"type": "boolean"}}}')
    said = export.run("third", "--value-format", "json", "--value-schema", str(schema))
    assert said.code == 1
    assert re.search(r"MisfitError: \S+ offset \d+: value.i should be a boolean", said.text)
    said = export.run("third", "--timeout", "1ms")
    assert said.code == 1
    assert "cancelled: it took more than 0.001 s" in said.text
    assert export.completed("third") == 0
    bulk = ("--option", "hoodie.datasource.write.operation=bulk_insert")
    assert export.run("third", *bulk, "--chunk", "700").code == 0
    assert export.rows("third") == export.rows()
    assert export.completed("third") > 1
    assert {b"BULK_INSERT" in one.read_bytes() for one in export.commits("third")} == {True}
    assert {b"BULK_INSERT" in one.read_bytes() for one in export.commits()} == {False}


def test_rows_that_do_not_fit_become_dead_letters_and_are_reported(
    export: Export, tmp_path: Path
) -> None:
    """Some do not fit their schema, or have no key. The directories of others would be outside of
    the table, or nowhere: with Hudi, a commit has them and no reader finds them, or each commit
    fails.
    """
    schema = tmp_path / "value.json"
    kinds: dict[str, object] = {"i": {"type": "integer"}, "to": {"type": "string"}}
    kinds["_hoodie_is_deleted"] = {"type": "boolean"}  # such a row is counted, and not kept
    schema.write_text(json.dumps({"type": "object", "properties": kinds}))
    fit = ("de", "a/b", "a b", "c?d", "", None)
    unfit = ("..", "a/../b", "a//b", "a/", f"file:{tmp_path}/out", "a:b", "x\0y", "n" * 256, "a%41")
    values = [
        {"i": number, **({} if to is None else {"to": to})}
        for number, to in enumerate((*unfit, *fit))
    ]
    texts = ['{"i": "one"}', "{}", *map(json.dumps, values)]
    texts.append('{"i": 99, "to": "de", "_hoodie_is_deleted": true}')
    archive = made_archive(tmp_path, [text.encode() for text in texts])
    table, letters = f"file://{tmp_path}/lake/fourth", tmp_path / "letters"
    options = {
        "target.base.path": table,
        "target.table.name": "fourth",
        "hoodie.datasource.write.recordkey.field": "i",
        "hoodie.datasource.write.partitionpath.field": "to",
    }
    command = ["hudi", "orders", "--config", str(archive), "--option", QUICK, "--flat"]
    command += [text for one in options.items() for text in ("--option", "=".join(one))]
    command += ["--value-format", "json", "--value-schema", str(schema)]
    command += ["--dead-letters", f"file://{letters}"]
    said = exported(export.survivor, [*command, "--chunk", "4"])
    assert said.code == 3, said.text
    rows: list[Row] = export.survivor.call(table_jobs.rows, form="hudi", table=table)
    assert [row["to"] or None for row in rows] == [to or None for to in fit]
    aside = sorted(int(one.stem) for one in letters.glob("orders/0/*.json"))
    assert aside == list(range(len(unfit) + 2))
    assert not (tmp_path / "out").exists()


def test_columns_follow_the_schemas_of_the_registry_and_have_each_type(
    export: Export, tmp_path: Path
) -> None:
    table = f"file://{tmp_path}/lake/changing"
    with serving() as registry:
        topic = ChangingTopic(tmp_path, registry)
        options = ("target.base.path=" + table, "target.table.name=changing", QUICK)
        given = [word for one in options for word in ("--option", one)]
        command = ["hudi", "orders", *topic.options, *given]
        command += ["--schema-compatibility", "backward"]

        def rows() -> list[Row]:
            found: list[Row] = export.survivor.call(table_jobs.rows, form="hudi", table=table)
            return found

        check_rows_of_each_version(topic, lambda: exported(export.survivor, command), rows)

    def sql(text: str) -> list[Row]:
        found: list[Row] = export.survivor.call(table_jobs.sql, text=text)
        return found

    table = f"{tmp_path}/lake/types"
    options = (f"target.base.path=file://{table}", "target.table.name=types", QUICK)
    given = [word for one in options for word in ("--option", one)]
    sql("SET spark.sql.session.timeZone=America/New_York")
    try:
        check_every_type(
            tmp_path / "types",
            lambda *more: exported(export.survivor, ["hudi", "orders", *given, *more]),
            lambda: (
                sql(f"CREATE TABLE types USING hudi LOCATION '{table}'") + sql(in_spark("types"))
            ),
        )
    finally:
        sql("RESET spark.sql.session.timeZone")


def test_state_of_many_partitions_is_not_in_each_commit(export: Export) -> None:
    """Commits of Hudi 1.x are Avro files with text in their extra metadata."""
    count, directory = 2000, export.root / "lake" / "many"

    def commit(*names: str) -> list[Row]:
        said: list[Row] = export.survivor.call(
            table_jobs.commit_news_of_many,
            form="hudi",
            table=str(directory),
            partitions=count,
            names=list(names),
            every=3,
        )
        return said

    state = {"partitions": count, "epochs": count}
    assert commit("c0", "c1", "c2", "c3", "c4")[1:] == [
        {"commit": "c0", "first": 1001, "whole": None, **state},
        {"commit": "c1", "first": 1002, "whole": "c0", **state},
        {"commit": "c2", "first": 1003, "whole": "c0", **state},
        {"commit": "c3", "first": 1004, "whole": None, **state},
        {"commit": "c4", "first": 1005, "whole": "c3", **state},
    ]
    assert commit() == [{"commit": "c4", "first": 1005, "whole": "c3", **state}], (
        "by another writer"
    )
    sizes = [one.stat().st_size for one in sorted(export.commits("many"))]
    assert [size > 50_000 for size in sizes] == [True, False, False, True, False]
    [stored] = export.stored_offsets("many").values()
    assert (stored["0"], len(stored)) == (1005, count)


def test_upserts_into_merge_on_read_keep_the_last_of_each_key(export: Export) -> None:
    options = {
        "hoodie.datasource.write.operation": "upsert",
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
        "hoodie.datasource.write.recordkey.field": "topic",
        "hoodie.datasource.write.partitionpath.field": "partition",
    }
    more = [text for one in options.items() for text in ("--option", "=".join(one))]
    said = export.run("latest", *more, "--chunk", "600")
    assert said.code == 0, said.text
    assert ends_of(export.rows("latest")) == ends_of(export.rows())
    assert len(export.rows("latest")) == len(export.archive.topics)
    assert list(export.timeline("latest").glob("timeline/*_*.deltacommit"))
    assert export.stored_offsets("latest") == export.stored_offsets()
