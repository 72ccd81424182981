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
from tests.harness.table_exports import Said

Row = dict[str, Any]
ID = {"name": "id", "type": "int"}
TO = {"name": "to", "type": ["null", "string"], "default": None}
PLACE = {"type": "record", "name": "Place", "fields": [TO]}
V1: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [ID, {"name": "at", "type": PLACE}],
}
WIDER = {**PLACE, "fields": [TO, {**TO, "name": "zip"}]}
V2 = {**V1, "fields": [ID, {"name": "at", "type": WIDER, "default": {}}, {**TO, "name": "note"}]}
WIDEST = {**PLACE, "fields": [TO, {**TO, "name": "ZIP"}, {**TO, "name": "street"}]}
V4 = {
    **V1,
    "fields": [
        {**ID, "name": "ID"},
        {"name": "at", "type": WIDEST, "default": {}},
        {**TO, "name": "Note"},
    ],
}
"""As V2, with other cases of letters, and one more member of the struct."""
TWICE = {**V1, "fields": [ID, {**TO, "name": "late"}, {**TO, "name": "LATE"}]}
V5 = {**V1, "fields": [ID, {"name": "at", "type": PLACE, "default": {}}, {**TO, "name": "late"}]}
V3 = {**V1, "fields": [ID, {**TO, "name": "note"}]}


class ChangingTopic:
    """The topic `orders` with one archived partition, and its schema registry."""

    def __init__(self, root: Path, registry: FakeRegistry) -> None:
        self.config = root / "sidetier.yaml"
        self.registry = registry
        store = open_plain(StorageEndpoint(f"file://{root}/store"))
        self._archive = MadeArchive(store, ArchiveLayout("prod-a", 3))
        (root / "logs").mkdir(parents=True)
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
    topic: ChangingTopic, run: Callable[[], Said], all_rows: Callable[[], list[Row]]
) -> None:
    """Check that an export adds columns, also within a struct.

    A removed field is null in later rows. Names that differ only in case from those of the table
    are no new columns. A schema with two such names changes nothing. Rows are in offset order.
    """

    def rows() -> list[Row]:
        ours = {
            "offset",
            *(field["name"] for schema in (V2, V4, TWICE) for field in schema["fields"]),
        }
        return [{name: row[name] for name in row if name in ours} for row in all_rows()]

    def export() -> list[Row]:
        said = run()
        assert said.code == 0, said.text
        return rows()

    first = topic.register(V1)
    topic.produce(0, first, b"\x02\x02\x02x")
    one: Row = {"offset": 0, "id": 1, "at": {"to": "x"}}
    assert export() == [one]

    second = topic.register(V2)
    topic.produce(1, second, b"\x04\x02\x02y\x02\x02z\x02\x02n")
    topic.produce(2, first, b"\x06\x02\x02w")
    one = {**one, "at": {"to": "x", "zip": None}, "note": None}
    two: Row = {"offset": 1, "id": 2, "at": {"to": "y", "zip": "z"}, "note": "n"}
    three: Row = {"offset": 2, "id": 3, "at": {"to": "w", "zip": None}, "note": None}
    assert export() == [one, two, three]

    third = topic.register(V3)
    topic.produce(3, third, b"\x08\x02\x02m")
    four = {"offset": 3, "id": 4, "at": None, "note": "m"}
    assert export() == [one, two, three, four]

    fourth = topic.register(V4)
    topic.produce(4, fourth, b"\x0a\x02\x02v\x02\x02c\x02\x02s\x02\x02o")
    one, two, three = ({**row, "at": {**row["at"], "street": None}} for row in (one, two, three))
    five = {"offset": 4, "id": 5, "at": {"to": "v", "zip": "c", "street": "s"}, "note": "o"}
    assert export() == [one, two, three, four, five]

    before = rows()
    topic.produce(5, topic.register(TWICE), b"\x0c\x00\x00")
    said = run()
    assert said.code == 1
    assert "the rows have the fields late and LATE" in said.text
    assert rows() == before, "the refused export has changed the columns"
    topic.register(V5)
    last = {"offset": 5, "id": 6, "at": {"to": None, "zip": None, "street": None}, "note": None}
    assert export() == [*({**row, "late": None} for row in before), {**last, "late": None}]
