"""Exports and reads in unusual situations, on real Spark: no records, a missing topic, a state of a
later version, two jobs at once. Tests with kills are beside each export.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.factory import open_plain
from sidetier.storage.port import RemoteStorage
from sidetier.storage.settings import StorageEndpoint
from tests.harness import spark_jobs, table_jobs
from tests.harness.made_archive import MadeArchive
from tests.harness.record_batches import MadeBatch
from tests.harness.spark import SparkDriver
from tests.harness.table_exports import GrowingArchive, Said
from tests.integration.pipeline.conftest import Face
from tests.integration.pipeline.test_export_files import MANIFEST

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

UNCONFIRMED = "unconfirmed"
"""A segment was uploaded, but no watermark confirms it: a first upload that was killed."""
EMPTIED = "emptied"
"""Compaction or transactions have left a batch without records; its offsets were used."""
EMPTIED_END = 40
NAMESPACE = "bad_days"
LATER = {"sidetier.version": "3"}


@dataclass(frozen=True, slots=True)
class Empties:
    """An archive of topics without records."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "sidetier.yaml"

    @property
    def store(self) -> str:
        return f"file://{self.root}/store"

    def options(self, topic: str) -> dict[str, str]:
        place = {"tiered.storage.url": self.store, "tiered.storage.cluster.name": "prod-a"}
        return place | {"subscribe": topic}


@pytest.fixture(scope="module")
def empties(tmp_path_factory: pytest.TempPathFactory) -> Empties:
    made = Empties(tmp_path_factory.mktemp("empties"))
    store = open_plain(StorageEndpoint(made.store))
    _archive(store, UNCONFIRMED)
    _archive(store, EMPTIED).mark(0, EMPTIED_END)
    store.close()
    (made.root / "logs").mkdir()
    settings = {
        "cluster": {"name": "prod-a"},
        "log_dirs": [str(made.root / "logs")],
        "storage": {"url": made.store},
    }
    made.config.write_text(yaml.safe_dump(settings))
    return made


def _archive(store: RemoteStorage, topic: str) -> MadeArchive:
    archive = MadeArchive(store, ArchiveLayout("prod-a", 5), TopicPartition(topic, 0))
    archive.segment(0, [MadeBatch((), base_offset=0, last_offset=EMPTIED_END - 1)])
    return archive


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of export: its command line and the rows of its output."""

    name: str
    driver: SparkDriver
    line: Callable[[str], list[str]]
    rows: Callable[[str], int]
    write_later_state: Callable[[str], object]
    refusal: str = "version 3 of an export's offsets, 2 is known here"

    def run(self, topic: str, config: Path) -> Said:
        arguments = [self.name, topic, *self.line(topic), "--config", str(config)]
        result = self.driver.call(table_jobs.export, arguments=arguments)
        return Said(result["code"], result["said"])


def _files(driver: SparkDriver, lake: Path) -> Kind:
    def rows(topic: str) -> int:
        return len(list((lake / "topics" / topic).rglob("*.parquet")))

    def write_later_state(topic: str) -> None:
        path = lake / "topics" / topic / MANIFEST
        path.write_text(path.read_text().replace('"version": 1', '"version": 2'))

    into = ["--into", f"file://{lake}", "--master", "submit"]
    refusal = "version 2 of a manifest, 1 is known here"
    return Kind("files", driver, lambda _topic: into, rows, write_later_state, refusal)


def _iceberg(driver: SparkDriver) -> Kind:
    def rows(topic: str) -> int:
        result = driver.call(table_jobs.sql, text=f"SHOW TABLES IN lake.{NAMESPACE} LIKE '{topic}'")
        table = f"lake.{NAMESPACE}.`{topic}`"
        return len(result) and len(driver.call(table_jobs.rows, form="iceberg", table=table))

    def write_later_state(topic: str) -> None:
        named = {"table": f"lake.{NAMESPACE}.`{topic}`", "properties": LATER}
        driver.call(table_jobs.append_nothing, **named)

    def line(topic: str) -> list[str]:
        return ["--table", f"lake.{NAMESPACE}.`{topic}`"]

    return Kind("iceberg", driver, line, rows, write_later_state)


def _hudi(driver: SparkDriver, lake: Path) -> Kind:
    def line(topic: str) -> list[str]:
        base = f"target.base.path=file://{lake}/{topic}"
        quick = ("--option", "hoodie.metadata.enable=false")
        return ["--option", base, "--option", f"target.table.name={topic}", *quick]

    def rows(topic: str) -> int:
        if not (lake / topic / ".hoodie").exists():
            return 0
        table = f"file://{lake}/{topic}"
        return len(driver.call(table_jobs.rows, form="hudi", table=table))

    def write_later_state(topic: str) -> None:
        named = {"hoodie.table.name": topic}
        kept = {"hoodie.datasource.write.commitmeta.key.prefix": "sidetier."}
        options = named | kept | LATER
        driver.call(
            table_jobs.append_nothing_to_path,
            form="hudi",
            path=f"file://{lake}/{topic}",
            options=options,
        )

    return Kind("hudi", driver, line, rows, write_later_state)


@pytest.fixture(params=["files", "hudi", "iceberg"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    if request.param == "hudi":
        return _hudi(request.getfixturevalue("spark35"), tmp_path)
    driver: SparkDriver = request.getfixturevalue("spark40")
    if request.param == "files":
        return _files(driver, tmp_path)
    driver.call(table_jobs.sql, text=f"CREATE NAMESPACE IF NOT EXISTS lake.{NAMESPACE}")
    return _iceberg(driver)


@pytest.mark.parametrize("topic", [UNCONFIRMED, EMPTIED])
def test_read_of_a_topic_without_records_is_empty(face: Face, empties: Empties, topic: str) -> None:
    options = empties.options(topic)
    assert face.driver.call(spark_jobs.rows, face=face.name, options=options) == []


def test_state_of_a_later_version_is_refused(kind: Kind, tmp_path: Path) -> None:
    """It stays unchanged, and so do the files beside it."""
    archive = GrowingArchive(tmp_path / "archive", ("headers-nulls-0",)).create()
    [topic] = archive.topics
    archive.end_at(0.5)
    assert kind.run(topic, archive.config).code == 0
    before = kind.rows(topic)
    assert before > 0
    kind.write_later_state(topic)
    archive.end_at(1)
    said = kind.run(topic, archive.config)
    assert said.code == 1
    assert re.search(kind.refusal, said.text), said.text
    assert kind.rows(topic) == before


def test_exports_of_empty_topics_write_nothing_and_missing_topics_are_errors(
    kind: Kind, empties: Empties
) -> None:
    for topic in (UNCONFIRMED, EMPTIED):
        for _ in range(2):
            said = kind.run(topic, empties.config)
            assert said.code == 0, said.text
        assert kind.rows(topic) == 0
    said = kind.run("never", empties.config)
    assert said.code == 2, said.text
    assert "topic never: nothing of it is stored for cluster prod-a" in said.text
    assert kind.rows("never") == 0
