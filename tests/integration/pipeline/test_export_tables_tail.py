"""Table exports of records that only a real broker has, read by Spark's own Kafka source."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.sandbox.kafka import KraftCluster
from devtools.sandbox.spark import SPARK_4
from devtools.sandbox.spark_jars import ICEBERG_4_0
from sidetier.pipeline.export.table_export import ICEBERG_SESSION
from tests.harness import table_jobs
from tests.harness.broker_tail import TailedTopic
from tests.harness.spark import SparkDriver
from tests.harness.table_exports import Drivers, Row, Said, iceberg_catalog

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

WAREHOUSE = "spark.sql.catalog.lake.warehouse"
SECRET = "open-sesame"


@pytest.fixture
def tailed(kraft43: KraftCluster, topic: str, tmp_path: Path) -> TailedTopic:
    """A topic archived up to the middle of a transaction that is decided only on the broker."""
    tailed = TailedTopic(tmp_path / "archive", cluster=kraft43, topic=topic).begin()
    tailed.mixed()
    writer = tailed.transaction(4)
    tailed.archive_to(tailed.ends()[0] + 2)
    writer.commit_transaction(20)
    tailed.mixed()
    tailed.mixed(1)
    return tailed


def grow(tailed: TailedTopic) -> None:
    """Archive some of the records that were read from the broker, and produce more."""
    tailed.archive_to(tailed.archived[0] + 8)
    tailed.mixed()
    tailed.transaction(2, 1)


def said(driver: SparkDriver, arguments: list[str]) -> Said:
    told = driver.call(table_jobs.export, arguments=arguments)
    return Said(told["code"], told["said"])


def test_hudi_export_continues_with_the_brokers(
    tailed: TailedTopic, spark35: SparkDriver, tmp_path: Path
) -> None:
    path = f"file://{tmp_path}/lake/orders"
    options = (
        f"target.base.path={path}",
        "target.table.name=orders",
        "hoodie.metadata.enable=false",
    )
    line = ["hudi", tailed.topic, *(text for one in options for text in ("--option", one))]
    line += ["--config", str(tailed.config)]

    def rows() -> list[Row]:
        found: list[Row] = spark35.call(table_jobs.rows, form="hudi", table=path)
        return found

    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    hidden = ("--kafka-option", f"ssl.key.password=file:{secret}")
    assert said(spark35, [*line, *tailed.tail, *hidden]).code == 0
    assert rows() == tailed.rows()
    assert said(spark35, line) == Said(0, ""), "the archive is behind what the table has"
    grow(tailed)
    tailed.pack_tails()
    assert said(spark35, [*line, "--tail", "packs", "--chunk", "20"]).code == 0
    assert rows() == tailed.rows()
    tailed.archive_to(1 << 40)
    tailed.archive_to(1 << 40, 1)
    assert said(spark35, line).code == 0
    assert rows() == tailed.rows()
    properties = {"bootstrap.servers": tailed.servers, "ssl.key.password": SECRET}
    shown = spark35.call(table_jobs.broker_plan, topic=tailed.topic, properties=properties)
    assert "Relation" in shown
    assert SECRET not in shown + spark35.log()


@pytest.fixture
def mortal(spark40: SparkDriver, tmp_path: Path) -> Iterator[Drivers]:
    """A driver that may be killed, with the catalog of the shared one."""
    [told] = spark40.call(table_jobs.sql, text=f"SET {WAREHOUSE}")
    drivers = Drivers(
        SPARK_4, tmp_path, ICEBERG_SESSION | iceberg_catalog(told["value"]), ICEBERG_4_0
    )
    yield drivers
    drivers.stop()


def test_iceberg_export_with_a_killed_driver_continues_with_the_brokers(
    tailed: TailedTopic, spark40: SparkDriver, mortal: Drivers
) -> None:
    table = "lake.db.tail"
    line = ["iceberg", tailed.topic, "--table", table, "--config", str(tailed.config)]
    line += ["--value-format", "string", *tailed.tail]
    assert said(spark40, [*line, "--dry-run"]).code == 0
    mortal.dies(line, {"step": "staged"})
    grow(tailed)
    ended = said(spark40, line)
    assert ended.code == 0, ended.text
    assert spark40.call(table_jobs.rows, form="iceberg", table=table) == as_texts(tailed)
    query = "SELECT summary FROM lake.db.tail.snapshots ORDER BY committed_at DESC"
    newest = spark40.call(table_jobs.sql, text=query)[0]["summary"]
    ends = {str(one): end for one, end in tailed.ends().items()}
    assert json.loads(newest["sidetier.offsets"]) == {tailed.topic: ends}
    assert json.loads(newest["sidetier.tail"]) == {tailed.topic: ends}
    epochs = {str(one): [[0, end]] for one, end in tailed.ends().items()}
    assert json.loads(newest["sidetier.epochs"]) == {tailed.topic: epochs}, "as the broker told"
    assert json.loads(newest["sidetier.topics"]) == {tailed.topic: tailed.topic_id()}

    tailed.mixed()
    tailed.pack_tails()
    line[line.index("kafka")] = "packs"
    ended = said(spark40, line)
    assert ended.code == 0, ended.text
    assert spark40.call(table_jobs.rows, form="iceberg", table=table) == as_texts(tailed)
    newest = spark40.call(table_jobs.sql, text=query)[0]["summary"]
    assert json.loads(newest["sidetier.tail"])[tailed.topic]["0"] == tailed.ends()[0]
    found = json.loads(newest["sidetier.epochs"])[tailed.topic]
    # This archive has no leader epochs: they are known of what came from packs.
    assert found["0"] == [[0, tailed.archived[0]]]


def as_texts(tailed: TailedTopic) -> list[Row]:
    return [row | {"value": _text(row["value"])} for row in tailed.rows()]


def _text(value: str | None) -> str | None:
    return None if value is None else base64.b64decode(value).decode()
