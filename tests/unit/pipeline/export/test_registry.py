"""The requests that are made of a schema registry, against a server of this process."""

import base64
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import fastavro
import pyarrow as pa
import pytest

from sidetier.pipeline.export.files.values.avro_columns import column_of
from sidetier.pipeline.export.files.values.avro_inlining import inlined
from sidetier.pipeline.export.files.values.avro_values import AvroDecoder
from sidetier.pipeline.export.files.values.references import UnusableSchemaError
from sidetier.pipeline.export.files.values.registry import CREDENTIALS_VARIABLE, SchemaRegistry
from sidetier.segments.errors import ConfigurationError, StoreUnavailableError

SCHEMA = '{"type": "string"}'


def record(name: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 -- a schema each
    parts = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, "fields": parts}


# What an order is made of, each a subject of its own; it uses two of them, and both use the third.
COUNTRY = {"type": "enum", "name": "Country", "namespace": "geo", "symbols": ["DE", "UK"]}
ADDRESS = record(
    "shop.Address",
    country="geo.Country",
    lines={"type": "array", "items": record("Line", text="string")},
)
BUYER = record("shop.Buyer", of=["null", "geo.Country"], home="Address", last="shop.Line")
ORDER = record("shop.Order", to="Address", by="shop.Buyer", more={"type": "map", "values": "Line"})
RETURN = record("shop.Return", of="long", home="shop.Address")
COUNTRY_1, ADDRESS_2, BUYER_1, ORDER_4 = ("country", 1), ("address", 2), ("buyer", 1), ("order", 4)


def registered(schema: object, *references: tuple[str, int]) -> tuple[int, object]:
    refer = [{"name": "as we like", "subject": one, "version": at} for one, at in references]
    return 200, {"schema": json.dumps(schema), "references": refer}


def version(subject: str, number: int) -> str:
    return f"/subjects/{subject}/versions/{number}?deleted=true"


class _Registry(BaseHTTPRequestHandler):
    answers: ClassVar[dict[str, tuple[int, object]]] = {
        "/schemas/ids/7": (200, {"schema": SCHEMA}),
        "/schemas/ids/8": (200, {"schema": "{}", "schemaType": "PROTOBUF"}),
        "/schemas/ids/500": (500, {}),
        "/schemas/ids/403": (403, {}),
        "/subjects/my%2Ftopic-value/versions/latest": (200, {"schema": SCHEMA, "version": 3}),
        version(*COUNTRY_1): registered(COUNTRY),
        version(*ADDRESS_2): registered(ADDRESS, COUNTRY_1),
        version(*BUYER_1): registered(BUYER, COUNTRY_1, ADDRESS_2),
        version(*ORDER_4): registered(ORDER, ADDRESS_2, BUYER_1),
        "/subjects/order/versions/latest": registered(ORDER, ADDRESS_2, BUYER_1),
        "/schemas/ids/20": registered(ORDER, ADDRESS_2, BUYER_1),
        "/schemas/ids/21": registered(["shop.Return", "shop.Order"], ORDER_4, ("return", 1)),
        version("return", 1): registered({"type": RETURN}, ADDRESS_2),
        "/schemas/ids/22": registered(ORDER, ADDRESS_2, ("buyer", 9)),
        "/schemas/ids/23": registered("egg", ("hen", 1)),
        version("hen", 1): registered("egg", ("egg", 1)),
        version("egg", 1): registered("hen", ("hen", 1)),
        "/schemas/ids/24": registered("a", ("drawn", 1)),
        version("drawn", 1): (200, {"schema": "{}", "schemaType": "JSON"}),
        "/schemas/ids/25": registered(ORDER, ADDRESS_2),  # and nobody has registered the buyer
        "/schemas/ids/26": registered("a", ("deep", 1)),
        **{version("deep", at): registered("a", ("deep", at + 1)) for at in range(1, 300)},
        "/schemas/ids/27": (200, {"schema": "{", "references": [{"subject": "country"}]}),
        "/schemas/ids/28": registered("a", ("torn", 1)),
        version("torn", 1): (200, {"schema": "{"}),
    }
    seen: ClassVar[list[str | None]] = []
    paths: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization"))
        self.paths.append(self.path)
        code, body = self.answers.get(self.path, (404, {"error_code": 40403}))
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Registry)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    _Registry.seen.clear()
    _Registry.paths.clear()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_schemas_by_id_and_by_subject(url: str) -> None:
    registry = SchemaRegistry(url + "/", {CREDENTIALS_VARIABLE: "me:secret"})
    assert registry.by_id(7) == SCHEMA
    assert registry.by_id(9) is None
    assert registry.latest("my/topic-value") == SCHEMA
    token = base64.b64encode(b"me:secret").decode()
    assert _Registry.seen == [f"Basic {token}"] * 3


def test_what_goes_wrong(url: str) -> None:
    registry = SchemaRegistry(url, {})
    with pytest.raises(ConfigurationError, match="has no subject other"):
        registry.latest("other")
    with pytest.raises(UnusableSchemaError, match="schema 8: is of the type PROTOBUF; only Avro"):
        registry.by_id(8)
    with pytest.raises(ConfigurationError, match="answered 403"):
        registry.by_id(403)
    with pytest.raises(StoreUnavailableError, match="answered 500"):
        registry.by_id(500)
    assert _Registry.seen[-1] is None


HOME = {"country": "UK", "lines": [{"text": "here"}]}
FULL = {"to": HOME, "by": {"of": "DE", "home": HOME, "last": {"text": "x"}}, "more": {}}


def wire(number: int, schema: object) -> bytes:
    """An order, written by fastavro as it puts schemas together."""
    named: dict[str, Any] = {}
    for one in (COUNTRY, ADDRESS, BUYER, ORDER, RETURN):
        parsed = fastavro.parse_schema(one, named)
        named[fastavro.schema.fullname(one)] = parsed
    stream = io.BytesIO()
    whole = [named[one] for one in schema] if isinstance(schema, list) else named["shop.Order"]
    fastavro.schemaless_writer(stream, whole, FULL)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


def test_schemas_that_refer_to_others_are_read(url: str) -> None:
    """Nested, twice from two sides, and by two schemas: each is asked for once."""
    registry = SchemaRegistry(url, {})
    decoder = AvroDecoder(registry.latest("order"), registry.by_id)
    values = [wire(20, ORDER), wire(21, ["shop.Return", "shop.Order"])]
    decoded = decoder.decode(pa.array(values * 2, pa.binary()))
    assert not decoded.misfits
    assert decoded.values.to_pylist() == [{**FULL, "more": []}] * 4
    assert len(_Registry.paths) == len(set(_Registry.paths)) == 8
    once = SchemaRegistry(url, {})
    assert once.by_id(20) == registry.by_id(20)  # the same for every task


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (22, "schema 22: it refers to subject buyer, version 9, which is not there"),
        (
            23,
            "schema 23: its references lead in a circle: subject hen, version 1 to subject egg",
        ),
        (24, "schema 24: subject drawn, version 1: is of the type JSON; only Avro"),
        (25, "shop.Buyer"),
        (26, "lead more than 100 deep: ... subject deep, version 97 to"),
        (27, "schema 27: is not as registries describe schemas"),
        (28, "schema 28, or one it refers to, is no JSON"),
    ],
)
def test_references_that_lead_nowhere(url: str, number: int, reason: str) -> None:
    """Its values do not fit; those of other schemas do."""
    registry = SchemaRegistry(url, {})
    decoder = AvroDecoder(registry.latest("order"), registry.by_id)
    values = [wire(20, ORDER), wire(number, ORDER), wire(number, ORDER)]
    decoded = decoder.decode(pa.array(values, pa.binary()))
    assert [value is None for value in decoded.values.to_pylist()] == [False, True, True]
    assert [one.row for one in decoded.misfits] == [1, 2]
    assert all(reason in one.reason for one in decoded.misfits)
    assert all(f"has the Avro schema {number}: " in one.reason for one in decoded.misfits)
    assert _Registry.paths.count(f"/schemas/ids/{number}") == 1


def test_names_are_those_that_avro_means() -> None:
    """A type without a namespace keeps it, within one that has some, and is found from there."""
    plain = json.dumps(record("Plain", x="int"))
    whole = json.loads(inlined(json.dumps(record("a.b.C", one="Plain", own="C")), [plain]))
    assert whole["fields"][0]["type"] == {**record("Plain", x="int"), "namespace": ""}
    assert whole["fields"][1]["type"] == "a.b.C"
    assert column_of(json.loads(inlined('"Plain"', [plain]))).type == pa.struct([("x", pa.int32())])
    odd = [3, {"items": 1}, {"type": "record", "name": 5, "fields": [7, {"name": "x"}]}]
    assert len(json.loads(inlined(json.dumps(odd), [json.dumps(odd)]))) == 3


def test_a_registry_that_is_away() -> None:
    server = HTTPServer(("127.0.0.1", 0), _Registry)
    port = server.server_port
    server.server_close()
    with pytest.raises(StoreUnavailableError, match="does not answer"):
        SchemaRegistry(f"http://127.0.0.1:{port}", {}).by_id(7)


def test_addresses_that_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be http"):
        SchemaRegistry("file:///etc/passwd")
    with pytest.raises(ConfigurationError, match=CREDENTIALS_VARIABLE) as raised:
        SchemaRegistry("http://me:hidden@host")
    assert "hidden" not in str(raised.value)
