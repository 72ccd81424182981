"""Exports into an Iceberg table while producers change their schema: a real Spark 4.0."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import StorageEndpoint
from tests.harness import table_jobs
from tests.harness.made_archive import MadeArchive
from tests.harness.record_batches import MadeBatch, MadeRecord
from tests.harness.schema_registry import FakeRegistry, serving
from tests.harness.spark import SparkDriver
from tests.harness.table_exports import exported

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

TABLE = "lake.db.changing"
ID = {"name": "id", "type": "int"}
TO = {"name": "to", "type": ["null", "string"], "default": None}
PLACE = {"type": "record", "name": "Place", "fields": [TO]}
V1 = {"type": "record", "name": "Order", "fields": [ID, {"name": "at", "type": PLACE}]}
WIDER = {**PLACE, "fields": [TO, {**TO, "name": "zip"}]}
V2 = {**V1, "fields": [ID, {"name": "at", "type": WIDER, "default": {}}, {**TO, "name": "note"}]}
V3 = {**V1, "fields": [ID, {**TO, "name": "note"}]}


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with serving() as server:
        yield server


def framed(number: int, payload: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + payload


def test_columns_are_added_and_rows_of_each_version_are_kept(
    spark40: SparkDriver, registry: FakeRegistry, tmp_path: Path
) -> None:
    """Also within a struct; a field that is gone is null in later rows."""
    store = open_plain(StorageEndpoint(f"file://{tmp_path}/store"))
    archive = MadeArchive(store, ArchiveLayout("prod-a", 3))
    config = tmp_path / "sidetier.yaml"
    (tmp_path / "logs").mkdir()
    settings = {
        "cluster": {"name": "prod-a"},
        "log_dirs": [str(tmp_path / "logs")],
        "storage": {"url": f"file://{tmp_path}/store", "prefix_entropy_bits": 3},
    }
    config.write_text(yaml.safe_dump(settings))
    command = [
        *("iceberg", "orders", "--table", TABLE, "--config", str(config)),
        *("--value-format", "avro", "--schema-registry", registry.url, "--flat"),
    ]

    def produced(offset: int, value: bytes) -> None:
        archive.segment(offset, [MadeBatch((MadeRecord(offset, 5, value=value),))])
        archive.mark(offset, offset + 1)

    def registered(schema: object) -> int:
        return registry.register("orders-value", {"schema": json.dumps(schema)})

    def export() -> list[dict[str, Any]]:
        said = exported(spark40, command)
        assert said.code == 0, said.text
        every = "to_json(struct(*), map('ignoreNullFields', 'false'))"
        text = f"SELECT {every} AS row FROM {TABLE} ORDER BY offset"  # noqa: S608
        answers = spark40.call(table_jobs.sql, text=text)
        found: list[dict[str, Any]] = [json.loads(one["row"]) for one in answers]
        names = ("offset", "id", "at", "note")
        return [{name: row[name] for name in names if name in row} for row in found]

    first = registered(V1)
    produced(0, framed(first, b"\x02\x02\x02x"))
    one = {"offset": 0, "id": 1, "at": {"to": "x"}}
    assert export() == [one]

    second = registered(V2)
    produced(1, framed(second, b"\x04\x02\x02y\x02\x02z\x02\x02n"))
    produced(2, framed(first, b"\x06\x02\x02w"))
    one = {**one, "at": {"to": "x", "zip": None}, "note": None}
    two = {"offset": 1, "id": 2, "at": {"to": "y", "zip": "z"}, "note": "n"}
    three = {"offset": 2, "id": 3, "at": {"to": "w", "zip": None}, "note": None}
    assert export() == [one, two, three]

    third = registered(V3)
    produced(3, framed(third, b"\x08\x02\x02m"))
    four = {"offset": 3, "id": 4, "at": None, "note": "m"}
    assert export() == [one, two, three, four]
