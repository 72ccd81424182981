"""Exports into Hudi: a real Spark 3.5, a broker's own segments, drivers that are killed."""

import json
import os
import random
import signal
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from sidetier.pipeline.export.tables.lease import Lease
from sidetier.storage.local import LocalStorage
from tests.harness.table_exports import HUDI, GrowingArchive, Worker, consumed
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

DIRECTORIES = ("tx-0", "comp-zstd-0", "headers-nulls-0", "compacted-0")
CRASHES = int(os.environ.get("SIDETIER_EXPORT_CRASHES", "1"))
"""So many drivers are killed at random moments besides; each costs half a minute."""


WRITTEN = "metadata/.hoodie/timeline/*.deltacommit.inflight"
"""Appears once all files of a commit are written, and shortly before it is completed."""


class Export:
    """One table, and the drivers that export into it, one after the other."""

    def __init__(self, root: Path, archive: GrowingArchive) -> None:
        self.root = root
        self.archive = archive
        self.worker = Worker.start(HUDI, root / "driver.log")

    def command(self, table: str = "orders", *more: str) -> list[str]:
        base = ("--option", f"target.base.path={self.path(table)}")
        name = ("--option", f"target.table.name={table}")
        config = ("--config", str(self.archive.config), "--master", "local[1]")
        return ["hudi", *self.archive.topics, *base, *name, *config, *HUDI.conf(), *more]

    def path(self, table: str) -> str:
        return f"file://{self.root}/lake/{table}"

    def timeline(self, table: str = "orders") -> Path:
        return self.root / "lake" / table / ".hoodie"

    def run(self, table: str = "orders", *more: str) -> int:
        code: int = self.worker.ask({"export": self.command(table, *more)})
        return code

    def dies(self, die: dict[str, Any]) -> None:
        self.worker.dies({"export": self.command(), "die": die})
        self.restart()

    def restart(self) -> None:
        self.worker.stop()
        self.worker = Worker.start(HUDI, self.root / "driver.log")

    def rows(self, table: str = "orders") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.worker.ask(
            {"rows": {"format": "hudi", "table": self.path(table)}}
        )
        return found

    def half(self) -> str:
        """Offsets in the middle of the archive."""
        offsets = {
            topic: {one: until // 2 for one, until in ends.items()}
            for topic, ends in ends_of(self.rows()).items()
        }
        return json.dumps(offsets)

    def completed(self) -> list[str]:
        commits = self.timeline().glob("timeline/*_*.commit")
        return sorted(one.name.partition("_")[0] for one in commits)


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Export]:
    root = tmp_path_factory.mktemp("hudi")
    made = Export(root, GrowingArchive(root / "archive", DIRECTORIES).create())
    yield made
    made.worker.stop()


def ends_of(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """The offset behind the last record of each partition."""
    grouped = groupby(rows, key=lambda row: (row["topic"], row["partition"]))
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), some in grouped:
        found.setdefault(topic, {})[str(partition)] = max(row["offset"] for row in some) + 1
    return found


def sorted_consumed(export: Export, rows: list[dict[str, Any]]) -> list[Any]:
    wanted = consumed(export.archive, ends_of(rows))
    return sorted(wanted, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def test_drivers_killed_before_during_and_after_the_commit(export: Export) -> None:
    timeline = export.timeline()
    export.archive.end_at(0.4)
    export.dies({"directory": str(timeline), "file": "timeline/*.inflight"})
    assert export.completed() == []
    assert export.run() == 0, export.worker.told()
    first = export.rows()
    assert first == sorted_consumed(export, first)
    assert len(export.completed()) == 1
    assert list(timeline.glob("timeline/*.rollback")), "what was begun was not rolled back"

    export.archive.end_at(0.7)
    export.dies({"directory": str(timeline), "file": "metadata/.hoodie/timeline/*_*.deltacommit"})
    assert len(export.completed()) == 1
    export.dies({"directory": str(timeline), "file": "timeline/*_*.commit"})
    assert len(export.completed()) == 2

    export.archive.end_at(1.0)
    assert export.run() == 0, export.worker.told()
    rows = export.rows()
    assert rows == sorted_consumed(export, rows)
    assert len(rows) > len(first)
    assert len(export.completed()) == 3
    assert export.run() == 0
    assert len(export.completed()) == 3, "nothing is new, and there is a commit"


def test_the_offsets_of_all_partitions_are_in_the_commit(export: Export) -> None:
    rows = export.rows()
    [last, *_] = export.worker.ask(
        {
            "sql": "CALL show_commit_extra_metadata(path => "
            f"'{export.path('orders')}', metadata_key => 'sidetier.offsets')"
        }
    )
    told = {key: value for key, value in last.items() if "offsets" in str(last)}
    for topic, partitions in ends_of(rows).items():
        for partition in partitions:
            assert f'"{topic}":{{"{partition}":' in str(told)


def test_while_another_holds_the_lease_it_is_refused(export: Export) -> None:
    store = LocalStorage(export.root / "lake")
    with Lease(store, "_sidetier/second.lease"):
        assert export.run("second", "--lock-wait", "1s") == 1
    assert "held by process" in export.worker.told()
    assert not export.timeline("second").exists()


def test_a_write_that_fails_or_takes_too_long_leaves_nothing(
    export: Export, tmp_path: Path
) -> None:
    schema = tmp_path / "strict.json"
    schema.write_text('{"type": "object", "properties": {"i": {"type": "boolean"}}}')
    before = export.timeline("third")
    bad = ("--value-format", "json", "--value-schema", str(schema))
    assert export.run("third", *bad) == 1
    assert "offset 0" in export.worker.told()
    assert not list(before.glob("timeline/*_*.commit"))
    assert export.run("third", "--timeout", "1ms") == 1
    assert "it took more than 0.001 s" in export.worker.told()
    assert not list(before.glob("timeline/*_*.commit"))
    assert export.run("third", "--chunk", "700") == 0
    rows = export.rows("third")
    assert rows == sorted_consumed(export, rows) == export.rows()
    assert len(list(before.glob("timeline/*_*.commit"))) > 1


def test_upserts_into_merge_on_read_keep_the_last_of_each_key(export: Export) -> None:
    options = {
        "hoodie.datasource.write.operation": "upsert",
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
        "hoodie.datasource.write.recordkey.field": "topic",
        "hoodie.datasource.write.partitionpath.field": "partition",
    }
    more = [text for one in options.items() for text in ("--option", "=".join(one))]
    assert export.run("latest", *more, "--chunk", "600") == 0, export.worker.told()
    rows = export.rows("latest")
    ends = ends_of(export.rows())
    assert {row["topic"]: row["offset"] + 1 for row in rows} == {
        topic: partitions["0"] for topic, partitions in ends.items()
    }
    assert list(export.timeline("latest").glob("timeline/*_*.deltacommit"))


def test_a_driver_that_was_suspended_cannot_commit(export: Export) -> None:
    lock = ("--lock-ttl", "6s", "--lock-wait", "60s")
    table = "suspended"
    assert export.run(table, *lock, "--ending-offsets", export.half()) == 0
    seen = set(export.timeline(table).glob(WRITTEN))
    export.worker.send({"export": export.command(table, *lock)})
    wait_until(
        lambda: set(export.timeline(table).glob(WRITTEN)) - seen, 120, "files to be written", 0.001
    )
    os.killpg(export.worker.process.pid, signal.SIGSTOP)
    other = Worker.start(HUDI, export.root / "other.log")
    try:
        assert len(list(export.timeline(table).glob("timeline/*_*.commit"))) == 1, "too late"
        assert other.ask({"export": export.command(table, *lock)}) == 0, other.told()
        os.killpg(export.worker.process.pid, signal.SIGCONT)
        assert export.worker.answer() == 1
    finally:
        other.stop()
    rows = export.rows(table)
    assert rows == sorted_consumed(export, rows) == export.rows()
    assert export.run(table, *lock) == 0


def test_drivers_killed_at_any_moment(tmp_path: Path) -> None:
    random_ = random.Random(6)
    export = Export(tmp_path, GrowingArchive(tmp_path / "archive", DIRECTORIES).create())
    for number in range(CRASHES):
        export.archive.end_at((number + 1) / CRASHES)
        export.worker.send({"export": export.command(), "die": {"seconds": random_.uniform(2, 30)}})
        export.worker.answer()
        export.restart()
    assert export.run() == 0
    rows = export.rows()
    assert rows == sorted_consumed(export, rows)
    export.worker.stop()
