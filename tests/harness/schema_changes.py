"""A topic whose value schema changes, and the expected rows of a table that follows it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import StorageEndpoint
from tests.harness.made_archive import MadeArchive
from tests.harness.record_batches import MadeBatch, MadeRecord
from tests.harness.schema_registry import FakeRegistry

Row = dict[str, Any]
ID = {"name": "id", "type": "int"}
TO = {"name": "to", "type": ["null", "string"], "default": None}
PLACE = {"type": "record", "name": "Place", "fields": [TO]}
V1 = {"type": "record", "name": "Order", "fields": [ID, {"name": "at", "type": PLACE}]}
WIDER = {**PLACE, "fields": [TO, {**TO, "name": "zip"}]}
V2 = {**V1, "fields": [ID, {"name": "at", "type": WIDER, "default": {}}, {**TO, "name": "note"}]}
V3 = {**V1, "fields": [ID, {**TO, "name": "note"}]}


class ChangingTopic:
    """The topic `orders` with one archived partition, and its schema registry."""

    def __init__(self, root: Path, registry: FakeRegistry) -> None:
        self.config = root / "sidetier.yaml"
        self.registry = registry
        store = open_plain(StorageEndpoint(f"file://{root}/store"))
        self._archive = MadeArchive(store, ArchiveLayout("prod-a", 3))
        (root / "logs").mkdir()
        settings = {
            "cluster": {"name": "prod-a"},
            "log_dirs": [str(root / "logs")],
            "storage": {"url": f"file://{root}/store", "prefix_entropy_bits": 3},
        }
        self.config.write_text(yaml.safe_dump(settings))

    @property
    def options(self) -> list[str]:
        """Options of an export that reads the topic."""
        registry = ("--value-format", "avro", "--schema-registry", self.registry.url)
        return ["--config", str(self.config), *registry, "--flat"]

    def register(self, schema: object) -> int:
        return self.registry.register("orders-value", {"schema": json.dumps(schema)})

    def produce(self, offset: int, schema: int, payload: bytes) -> None:
        value = b"\0" + schema.to_bytes(4, "big") + payload
        self._archive.segment(offset, [MadeBatch((MadeRecord(offset, 5, value=value),))])
        self._archive.mark(offset, offset + 1)


def check_rows_of_each_version(
    topic: ChangingTopic, rows_after_export: Callable[[], list[Row]]
) -> None:
    """Check that an export adds columns, also within a struct.

    A removed field is null in later rows. Rows are in offset order.
    """

    def export() -> list[Row]:
        names = ("offset", "id", "at", "note")
        return [{name: row[name] for name in names if name in row} for row in rows_after_export()]

    first = topic.register(V1)
    topic.produce(0, first, b"\x02\x02\x02x")
    one: Row = {"offset": 0, "id": 1, "at": {"to": "x"}}
    assert export() == [one]

    second = topic.register(V2)
    topic.produce(1, second, b"\x04\x02\x02y\x02\x02z\x02\x02n")
    topic.produce(2, first, b"\x06\x02\x02w")
    one = {**one, "at": {"to": "x", "zip": None}, "note": None}
    two = {"offset": 1, "id": 2, "at": {"to": "y", "zip": "z"}, "note": "n"}
    three = {"offset": 2, "id": 3, "at": {"to": "w", "zip": None}, "note": None}
    assert export() == [one, two, three]

    third = topic.register(V3)
    topic.produce(3, third, b"\x08\x02\x02m")
    four = {"offset": 3, "id": 4, "at": None, "note": "m"}
    assert export() == [one, two, three, four]
