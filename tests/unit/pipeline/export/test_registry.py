"""Requests to a schema registry, by Confluent's client to a server in this process."""

import base64
import io
import json
import ssl
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
import trustme
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

from sidetier.config.types import SecretRef
from sidetier.pipeline.export.values.avro_columns import column_of
from sidetier.pipeline.export.values.avro_schema import inlined
from sidetier.pipeline.export.values.avro_values import AvroDecoder
from sidetier.pipeline.export.values.json_values import JsonDecoder
from sidetier.pipeline.export.values.references import UnusableSchemaError
from sidetier.pipeline.export.values.registry import (
    CREDENTIALS_VARIABLE,
    RegistryConfig,
    SchemaKind,
    SchemaRegistry,
)
from sidetier.segments.errors import ConfigurationError, StoreUnavailableError
from tests.harness.schema_registry import FakeRegistry, serving

SCHEMA = '{"type": "string"}'


def record(name: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 -- a schema each
    parts = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, "fields": parts}


# The schemas an order consists of, each in its own subject; it uses two of them, and both use the
# third.
COUNTRY = {"type": "enum", "name": "Country", "namespace": "geo", "symbols": ["DE", "UK"]}
ADDRESS = record(
    "shop.Address",
    country="geo.Country",
    lines={"type": "array", "items": record("Line", text="string")},
)
BUYER = record("shop.Buyer", of=["null", "geo.Country"], home="Address", last="shop.Line")
ORDER = record("shop.Order", to="Address", by="shop.Buyer", more={"type": "map", "values": "Line"})
RETURN = record("shop.Return", of="long", home="shop.Address")


@pytest.fixture
def server() -> Iterator[FakeRegistry]:
    with serving() as registry:
        yield registry


Settings = dict[str, str | SecretRef]


def asked(
    url: str, settings: Settings | None = None, kind: SchemaKind = SchemaKind.AVRO
) -> SchemaRegistry:
    """Remove the client's pause before its second request."""
    quick = {"retries.wait.ms": "1", "retries.max.wait.ms": "1"}
    return SchemaRegistry(RegistryConfig(url=url, client={**quick, **(settings or {})}), kind)


@cache
def _client(url: str) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": url})


def registered(
    server: FakeRegistry, subject: str, schema: object, *references: str, kind: str = "AVRO"
) -> int:
    """Register a schema with Confluent's client; references use the newest version of their
    subjects.
    """
    client = _client(server.url)
    needed = [
        SchemaReference(name=one, subject=one, version=client.get_latest_version(one).version)
        for one in references
    ]
    return client.register_schema(subject, Schema(json.dumps(schema), kind, needed))


def referring(schema: object, *references: tuple[str, int]) -> dict[str, Any]:
    """A schema with references that a registry would refuse."""
    needed = [{"name": one, "subject": one, "version": at} for one, at in references]
    return {"schema": json.dumps(schema), "references": needed}


@pytest.fixture
def orders(server: FakeRegistry) -> FakeRegistry:
    """A registry in which 20 is an order and 21 a union with it; the referenced schemas have lower
    IDs.
    """
    registered(server, "country", COUNTRY)
    registered(server, "address", ADDRESS, "country")
    registered(server, "buyer", BUYER, "country", "address")
    registered(server, "return", {"type": RETURN}, "address")
    for number in range(5, 20):
        server.put(number, {})
    assert registered(server, "order", ORDER, "address", "buyer") == 20
    union = ["shop.Return", "shop.Order"]
    assert registered(server, "union", union, "order", "return") == 21
    server.requests.clear()
    return server


def test_schemas_are_found_by_id_and_by_subject(
    server: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = registered(server, "my/topic-value", "int")
    number = registered(server, "my/topic-value", {"type": "string"})
    monkeypatch.setenv(CREDENTIALS_VARIABLE, "me:secret")
    server.headers.clear()
    registry = asked(server.url + "/")
    assert registry.by_id(number) == SCHEMA
    assert registry.by_id(99) is None
    latest = registry.latest("my/topic-value")
    assert (latest.id, latest.version, latest.text) == (number, 2, SCHEMA)
    assert registry.version(first, "my/topic-value") == 1
    assert registry.version(number, "other") is None
    token = base64.b64encode(b"me:secret").decode()
    assert {one["Authorization"] for one in server.headers} == {f"Basic {token}"}
    count = len(server.requests)
    for _ in range(2):
        registry.by_id(number)
        registry.by_id(99)
        registry.version(number, "other")
    assert len(server.requests) == count
    registered(server, "my/topic-value", "long")
    assert registry.latest("my/topic-value").version == 3


def test_unknown_subject_and_wrong_schema_type_are_errors(server: FakeRegistry) -> None:
    registry = asked(server.url)
    protobuf = server.register("p", {"schema": "CgA=", "schemaType": "PROTOBUF"})
    with pytest.raises(ConfigurationError, match="has no subject other"):
        registry.latest("other")
    with pytest.raises(UnusableSchemaError, match="is of the type PROTOBUF; values are"):
        registry.by_id(protobuf)
    with pytest.raises(UnusableSchemaError, match="is of the type AVRO; values are read as JSON"):
        asked(server.url, kind=SchemaKind.JSON).by_id(registered(server, "a", "int"))


@pytest.mark.parametrize(
    ("code", "times", "error", "said"),
    [
        (401, 1, ConfigurationError, "answered 401"),
        (403, 1, ConfigurationError, "answered 403"),
        (422, 1, ConfigurationError, "answered 422"),
        (408, 4, StoreUnavailableError, "answered 408"),
        (429, 4, StoreUnavailableError, "answered 429"),
        (500, 4, StoreUnavailableError, "answered 500"),
        (503, 4, StoreUnavailableError, "answered 503"),
    ],
)
def test_only_transient_errors_are_retried(
    server: FakeRegistry, code: int, times: int, error: type[Exception], said: str
) -> None:
    server.fault = lambda _path: (code, {"error_code": code, "message": "no"})
    with pytest.raises(error, match=f"schema registry {server.url}: schema 7: {said}"):
        asked(server.url).by_id(7)
    assert len(server.requests) == times


def test_failed_request_is_retried(server: FakeRegistry) -> None:
    number = registered(server, "a", {"type": "string"})
    faults: Iterator[tuple[int, object]] = iter([(503, {}), (429, {})])
    server.fault = lambda _path: next(faults, None)
    assert asked(server.url).by_id(number) == SCHEMA


def test_answer_of_something_other_than_a_registry_is_an_error(server: FakeRegistry) -> None:
    server.fault = lambda _path: (200, b"<html>a proxy</html>")
    with pytest.raises(StoreUnavailableError, match="does not answer"):
        asked(server.url).by_id(7)
    server.fault = lambda _path: (200, [])
    with pytest.raises(UnusableSchemaError, match="is not as registries describe schemas"):
        asked(server.url).by_id(8)


HOME = {"country": "UK", "lines": [{"text": "here"}]}
FULL = {"to": HOME, "by": {"of": "DE", "home": HOME, "last": {"text": "x"}}, "more": {}}


def wire(number: int, schema: object) -> bytes:
    """An order written by fastavro, which resolves the references itself."""
    named: dict[str, Any] = {}
    for one in (COUNTRY, ADDRESS, BUYER, ORDER, RETURN):
        parsed = fastavro.parse_schema(one, named)
        named[fastavro.schema.fullname(one)] = parsed
    stream = io.BytesIO()
    whole = [named[one] for one in schema] if isinstance(schema, list) else named["shop.Order"]
    fastavro.schemaless_writer(stream, whole, FULL)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


def test_schemas_with_references_are_read(orders: FakeRegistry) -> None:
    """Nested references, shared between schemas: each schema is requested once."""
    registry = asked(orders.url)
    decoder = AvroDecoder(registry.latest("order").text, registry.by_id)
    values = [wire(20, ORDER), wire(21, ["shop.Return", "shop.Order"])]
    decoded = decoder.decode(pa.array(values * 2, pa.binary()))
    assert not decoded.misfits
    assert decoded.values.to_pylist() == [{**FULL, "more": []}] * 4
    assert len(orders.requests) == len(set(orders.requests)) == 8
    assert asked(orders.url).by_id(20) == registry.by_id(20)  # the same for every task


BROKEN: dict[int, tuple[object, str]] = {
    1022: (
        referring(ORDER, ("address", 1), ("buyer", 9)),
        "schema 1022: it refers to subject buyer, version 9, which does not exist",
    ),
    1023: (
        referring("egg", ("hen", 1)),
        "schema 1023: its references lead in a circle: subject hen, version 1 to subject egg",
    ),
    1024: (
        referring("a", ("drawn", 1)),
        "schema 1024: subject drawn, version 1: is of the type JSON; values are read as AVRO",
    ),
    1025: (referring(ORDER, ("address", 1)), "shop.Buyer"),
    1026: (referring("a", ("deep", 1)), "lead more than 100 deep: ... subject deep, version 97"),
    1027: (
        {"schema": "{", "references": [7]},
        "schema 1027: is not as registries describe schemas",
    ),
    1028: (referring("a", ("torn", 1)), "schema 1028, or one it refers to, is no AVRO schema"),
}


@pytest.mark.parametrize("number", BROKEN)
def test_broken_references_make_their_values_not_fit(orders: FakeRegistry, number: int) -> None:
    """Values of the broken schema do not fit; values of other schemas do."""
    orders.register("hen", referring("egg", ("egg", 1)))
    orders.register("egg", referring("hen", ("hen", 1)))
    orders.register("drawn", {"schema": "{}", "schemaType": "JSON"})
    for at in range(1, 300):
        orders.register("deep", referring("a", ("deep", at + 1)))
    orders.register("torn", {"schema": "{"})
    schema, reason = BROKEN[number]
    orders.put(number, schema)
    registry = asked(orders.url)
    decoder = AvroDecoder(registry.latest("order").text, registry.by_id)
    values = [wire(20, ORDER), wire(number, ORDER), wire(number, ORDER)]
    decoded = decoder.decode(pa.array(values, pa.binary()))
    assert [value is None for value in decoded.values.to_pylist()] == [False, True, True]
    assert [one.row for one in decoded.misfits] == [1, 2]
    assert all(reason in one.reason for one in decoded.misfits), decoded.misfits
    assert all(f"has the Avro schema {number}: " in one.reason for one in decoded.misfits)
    assert sum(path == f"/schemas/ids/{number}" for _, path in orders.requests) == 1


def test_type_names_resolve_as_in_the_avro_specification() -> None:
    """A type without a namespace keeps none inside a type with one, and is found from there."""
    plain = json.dumps(record("Plain", x="int"))
    whole = json.loads(inlined(json.dumps(record("a.b.C", one="Plain", own="C")), [plain]))
    assert whole["fields"][0]["type"] == {**record("Plain", x="int"), "namespace": ""}
    assert whole["fields"][1]["type"] == "a.b.C"
    assert column_of(json.loads(inlined('"Plain"', [plain]))).type == pa.struct([("x", pa.int32())])
    odd = [3, {"items": 1}, {"type": "record", "name": 5, "fields": [7, {"name": "x"}]}]
    assert len(json.loads(inlined(json.dumps(odd), [json.dumps(odd)]))) == 3


def test_unavailable_registry_is_an_error() -> None:
    with serving() as registry:
        url = registry.url
    with pytest.raises(StoreUnavailableError, match="schema 7: does not answer"):
        asked(url, {"max.retries": "1"}).by_id(7)


def test_second_url_is_used_when_the_first_is_unavailable(server: FakeRegistry) -> None:
    number = registered(server, "a", {"type": "string"})
    with serving() as registry:
        gone = registry.url
    assert asked(f"{gone},{server.url}", {"max.retries": "0"}).by_id(number) == SCHEMA


@pytest.mark.parametrize(
    ("url", "client", "reason"),
    [
        ("file:///etc/passwd", {}, "must be http"),
        ("http://here,mock://there", {}, "must be http"),
        ("http://me:hidden@host", {}, "basic.auth.user.info"),
        ("http://here, http://me:hidden@host", {}, "basic.auth.user.info"),
        ("http://here", {"basic.auth.user.info": "me:hidden"}, "must be env:NAME or file:/path"),
        ("http://here", {"bearer.auth.client.secret": "hidden"}, "must be env:NAME or file"),
        ("http://here", {"ssl.key.password": "hidden"}, "must be env:NAME or file:/path"),
    ],
)
def test_invalid_urls_and_secrets_are_refused(url: str, client: Settings, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        RegistryConfig(url=url, client=client)
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize(
    ("client", "reason"),
    [
        ({"ssl.truststore.location": "/x"}, "Unrecognized properties: ssl.truststore.location"),
        ({"max.retries": "many"}, "max.retries: 'many' is not a number"),
        ({"ssl.ca.location": "/nowhere.pem"}, "FileNotFoundError"),
        (
            {"basic.auth.user.info": SecretRef(env="REGISTRY_LOGIN")},
            "ValueError: basic.auth.user.info must be in the form",
        ),
        ({"bearer.auth.token": SecretRef(env="UNSET")}, "UNSET"),
    ],
)
def test_settings_that_the_client_refuses_are_errors(
    client: Settings, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGISTRY_LOGIN", "without-a-colon")
    monkeypatch.delenv("UNSET", raising=False)
    with pytest.raises(ConfigurationError, match=reason) as raised:
        asked("http://here", client)
    assert "without-a-colon" not in str(raised.value)


def test_oauth_tokens_are_sent(server: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    number = registered(server, "a", {"type": "string"})
    monkeypatch.setenv("CLIENT_SECRET", "hidden")
    grant: dict[str, object] = {"access_token": "t0ken", "token_type": "bearer", "expires_in": 60}
    server.fault = lambda path: (200, grant) if path == "/token" else None
    server.headers.clear()
    settings: Settings = {
        "bearer.auth.credentials.source": "OAUTHBEARER",
        "bearer.auth.client.id": "me",
        "bearer.auth.client.secret": SecretRef(env="CLIENT_SECRET"),
        "bearer.auth.scope": "schemas",
        "bearer.auth.issuer.endpoint.url": f"{server.url}/token",
        "bearer.auth.logical.cluster": "lsrc-1",
    }
    assert asked(server.url, settings).by_id(number) == SCHEMA
    assert server.headers[-1]["Authorization"] == "Bearer t0ken"
    assert server.headers[-1]["target-sr-cluster"] == "lsrc-1"
    refused = (400, {"error": "invalid_client", "error_description": "unknown client"})
    server.fault = lambda path: refused if path == "/token" else None
    with pytest.raises(ConfigurationError, match=r"no token was given.*invalid_client") as raised:
        asked(server.url, settings).by_id(number)
    assert "hidden" not in str(raised.value)
    with serving() as registry:
        settings["bearer.auth.issuer.endpoint.url"] = f"{registry.url}/token"
    with pytest.raises(StoreUnavailableError, match="does not answer"):
        asked(server.url, settings).by_id(number)


def test_custom_ca_and_client_certificate_are_used(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    ca, foreign = tmp_path / "ca.pem", tmp_path / "other.pem"
    authority.cert_pem.write_to_path(ca)
    other.cert_pem.write_to_path(foreign)
    client = authority.issue_cert("client@example.com")
    pem = tmp_path / "client.pem"
    client.private_key_and_cert_chain_pem.write_to_path(pem)
    once = {"max.retries": "0"}
    with serving(context) as registry:
        number = registry.register("a", {"schema": SCHEMA})
        mutual: Settings = {
            "ssl.ca.location": str(ca),
            "ssl.certificate.location": str(pem),
        }
        assert asked(registry.url, mutual).by_id(number) == SCHEMA
        with pytest.raises(ConfigurationError, match=r"TLS: .*certificate verify failed"):
            asked(registry.url, {"ssl.ca.location": str(foreign), **once}).by_id(number)
        with pytest.raises((ConfigurationError, StoreUnavailableError)):
            asked(registry.url, {"ssl.ca.location": str(ca), **once}).by_id(number)


STREET = {"$id": "https://shop.example/street.json", "type": "string"}
PLACE = {
    "$id": "https://shop.example/address.json",
    "definitions": {"lines": {"type": "array", "items": {"$ref": "street.json"}}},
    "type": "object",
    "properties": {"lines": {"$ref": "#/definitions/lines"}},
}
PURCHASE = {
    "$id": "https://shop.example/order.json",
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"$ref": "#/$defs/id"},
        "to": {"$ref": "address.json"},
        "more": {"$ref": "https://shop.example/address.json#/definitions/lines"},
    },
    "$defs": {"id": {"type": "integer"}},
}


def test_json_schemas_with_references_are_read(server: FakeRegistry) -> None:
    registered(server, "https://shop.example/street.json", STREET, kind="JSON")
    registered(
        server,
        "https://shop.example/address.json",
        PLACE,
        "https://shop.example/street.json",
        kind="JSON",
    )
    registered(server, "orders-value", PURCHASE, "https://shop.example/address.json", kind="JSON")
    latest = asked(server.url, kind=SchemaKind.JSON).latest("orders-value")
    decoder = JsonDecoder(latest.text)
    value = {"id": 1, "to": {"lines": ["a"]}, "more": ["b"]}
    decoded = decoder.decode(pa.array([json.dumps(value).encode(), b"{}"], pa.binary()))
    assert decoded.values.to_pylist() == [value, None]
    assert decoder.required == {"id"}
