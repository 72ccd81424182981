"""Protobuf values as columns: written by Confluent's serializer, with their files in a registry."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidetier.cli.consume.decoding import Decoding
from sidetier.cli.consume.formats import as_text
from sidetier.pipeline.export.values.decoder import DecodedValues
from sidetier.pipeline.export.values.framing import Framing
from sidetier.pipeline.export.values.protobuf_values import ProtobufDecoder
from sidetier.pipeline.export.values.registry import (
    RegistryConfig,
    SchemaKind,
    SchemaRegistry,
)
from sidetier.segments.errors import ConfigurationError
from tests.harness.schema_registry import FakeRegistry, serving

F = descriptor_pb2.FieldDescriptorProto
TIMES = "google/protobuf/timestamp.proto"


def field(name: str, number: int, kind: int, **more: Any) -> Any:  # noqa: ANN401 -- a class of C
    return F(name=name, number=number, type=kind, **{"label": F.LABEL_OPTIONAL, **more})


def message(name: str, *fields: Any, **more: Any) -> descriptor_pb2.DescriptorProto:  # noqa: ANN401
    return descriptor_pb2.DescriptorProto(name=name, field=fields, **more)


COLORS = descriptor_pb2.EnumDescriptorProto(
    name="Color",
    value=[
        descriptor_pb2.EnumValueDescriptorProto(name=name, number=number)
        for number, name in enumerate(("RED", "BLUE"))
    ],
)
ADDRESS = descriptor_pb2.FileDescriptorProto(
    name="shop/address.proto",
    package="shop",
    syntax="proto3",
    message_type=[message("Address", field("street", 1, F.TYPE_STRING))],
)
LABELS = message(
    "LabelsEntry",
    field("key", 1, F.TYPE_STRING),
    field("value", 2, F.TYPE_INT64),
    options=descriptor_pb2.MessageOptions(map_entry=True),
)
ORDER = message(
    "Order",
    field("id", 1, F.TYPE_INT64),
    field("paid", 2, F.TYPE_BOOL),
    field("note", 3, F.TYPE_STRING, proto3_optional=True, oneof_index=1),
    field("to", 4, F.TYPE_MESSAGE, type_name=".shop.Address"),
    field("at", 5, F.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp"),
    field("color", 6, F.TYPE_ENUM, type_name=".shop.Color"),
    field("lines", 7, F.TYPE_STRING, label=F.LABEL_REPEATED),
    field("labels", 8, F.TYPE_MESSAGE, label=F.LABEL_REPEATED, type_name=".shop.Order.LabelsEntry"),
    field("card", 9, F.TYPE_STRING, oneof_index=0),
    field("cash", 10, F.TYPE_UINT64, oneof_index=0),
    field("next", 11, F.TYPE_MESSAGE, type_name=".shop.Order"),
    field("blob", 12, F.TYPE_BYTES),
    field("price", 13, F.TYPE_DOUBLE),
    nested_type=[LABELS, message("Inner", field("x", 1, F.TYPE_UINT32))],
    oneof_decl=[
        descriptor_pb2.OneofDescriptorProto(name="pays"),
        descriptor_pb2.OneofDescriptorProto(name="_note"),
    ],
)
NEWER = descriptor_pb2.DescriptorProto()
NEWER.CopyFrom(ORDER)
NEWER.field.append(field("more", 20, F.TYPE_STRING))


def file_of(*messages: descriptor_pb2.DescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    return descriptor_pb2.FileDescriptorProto(
        name="shop/order.proto",
        package="shop",
        syntax="proto3",
        dependency=[ADDRESS.name, TIMES],
        message_type=messages,
        enum_type=[COLORS],
    )


FIRST = file_of(ORDER, message("Refund", field("id", 1, F.TYPE_INT64)))
SECOND = file_of(NEWER, message("Refund", field("id", 1, F.TYPE_INT64)))
CONTEXT = SerializationContext("orders", MessageField.VALUE)


class Producer:
    """Writes messages of a Protobuf file."""

    def __init__(self, url: str, file: descriptor_pb2.FileDescriptorProto) -> None:
        self._pool = DescriptorPool()
        self._pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
        self._pool.Add(ADDRESS)
        self._pool.Add(file)
        self._client = SchemaRegistryClient({"url": url})

    def __call__(self, name: str, value: dict[str, Any]) -> bytes:
        kind = GetMessageClass(self._pool.FindMessageTypeByName(name))
        serialize = ProtobufSerializer(kind, self._client, {"use.deprecated.format": False})
        found: bytes = serialize(ParseDict(value, kind()), CONTEXT)
        return found


@pytest.fixture
def server() -> Iterator[FakeRegistry]:
    with serving() as registry:
        yield registry


@pytest.fixture
def registry(server: FakeRegistry) -> SchemaRegistry:
    return SchemaRegistry(RegistryConfig(url=server.url), SchemaKind.PROTOBUF)


def decoder(registry: SchemaRegistry, name: str | None = None) -> ProtobufDecoder:
    framing = Framing("Protobuf", registry.by_id)
    return ProtobufDecoder(registry.latest("orders-value").text, framing, name)


def read(decoder: ProtobufDecoder, *values: bytes) -> DecodedValues:
    decoded = decoder.decode(pa.array(values, pa.binary()))
    decoded.values.validate(full=True)
    return decoded


def test_message_is_a_struct(server: FakeRegistry, registry: SchemaRegistry) -> None:
    """Its file imports another file of the registry and one that is part of Protobuf."""
    produce = Producer(server.url, FIRST)
    full = {
        "id": "7",
        "paid": True,
        "note": "",
        "to": {"street": "A 1"},
        "at": "2026-11-21T12:00:00.123456Z",
        "color": "BLUE",
        "lines": ["a", "b"],
        "labels": {"y": "2", "x": "1"},
        "cash": "5",
        "next": {"id": "8", "next": {"id": "9"}},
        "blob": "AP8=",
        "price": 1.5,
    }
    values = [produce("shop.Order", full), produce("shop.Order", {})]
    decoded = read(decoder(registry), *values)
    assert not decoded.misfits
    found, empty = decoded.values.to_pylist()
    following = json.loads(found.pop("next"))
    assert found == {
        "id": 7,
        "paid": True,
        "note": "",
        "to": {"street": "A 1"},
        "at": datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=UTC),
        "color": "BLUE",
        "lines": ["a", "b"],
        "labels": [("x", 1), ("y", 2)],
        "card": None,
        "cash": 5,
        "blob": b"\x00\xff",
        "price": 1.5,
    }
    assert following == {"id": "8", "next": {"id": "9"}}
    assert empty == {
        "id": 0,
        "paid": False,
        "note": None,
        "to": None,
        "at": None,
        "color": "RED",
        "lines": [],
        "labels": [],
        "card": None,
        "cash": None,
        "next": None,
        "blob": b"",
        "price": 0.0,
    }


def test_value_names_its_message(server: FakeRegistry) -> None:
    """`sidetier consume` decodes each value as the message that it names."""
    shown: list[str] = []
    decoding = Decoding(SchemaKind.PROTOBUF, RegistryConfig(url=server.url), shown.append)
    produce = Producer(server.url, FIRST)
    values = [produce("shop.Refund", {"id": "7"}), produce("shop.Order", {"id": "8"}), b"other"]
    refund, order, other = decoding.decode(pa.array(values, pa.binary()), as_text)
    assert refund == {"id": 7}
    assert isinstance(order, dict)
    assert order["id"] == 8
    assert other == "other"
    assert shown == [
        "not decoded, and shown as bytes: value lacks the header with the id of its schema"
    ]


def test_values_of_an_older_and_a_newer_file_are_read(
    server: FakeRegistry, registry: SchemaRegistry
) -> None:
    old = Producer(server.url, FIRST)("shop.Order", {"id": "1"})
    reader = decoder(registry)
    new = Producer(server.url, SECOND)("shop.Order", {"id": "2", "more": "x"})
    assert [row["id"] for row in read(reader, old, new).values.to_pylist()] == [1, 2]
    rows = read(decoder(registry), old, new).values.to_pylist()
    assert [row["more"] for row in rows] == ["", "x"]


def test_message_without_its_required_field_does_not_fit(
    server: FakeRegistry, registry: SchemaRegistry
) -> None:
    item = message("Item", field("sku", 1, F.TYPE_STRING, label=F.LABEL_REQUIRED))
    order = message(
        "Order",
        field("id", 1, F.TYPE_INT64, label=F.LABEL_REQUIRED),
        field("item", 2, F.TYPE_MESSAGE, type_name=".shop.Item"),
    )
    file = file_of(order, item)
    file.syntax = "proto2"
    produce = Producer(server.url, file)
    header = produce("shop.Order", {"id": "1"})[:6]
    reader = decoder(registry)
    assert reader.required == {"id"}
    decoded = read(
        reader,
        header + b"\x08\x07",
        header,
        header + b"\x08\x07\x12\x00",
        header + b"\x08\x07\x12\x03\x0a\x01x",
    )
    whole, none, lacking, full = decoded.values.to_pylist()
    assert (whole, none, lacking) == ({"id": 7, "item": None}, None, None)
    assert full == {"id": 7, "item": {"sku": "x"}}
    assert [(one.row, one.reason) for one in decoded.misfits] == [
        (1, "value is no shop.Order: it lacks the required id"),
        (2, "value is no shop.Order: it lacks the required item.sku"),
    ]


def test_message_type_other_than_the_columns_does_not_fit(
    server: FakeRegistry, registry: SchemaRegistry
) -> None:
    produce = Producer(server.url, FIRST)
    order, refund = produce("shop.Order", {}), produce("shop.Refund", {"id": "3"})
    inner = produce("shop.Order.Inner", {"x": 4_000_000_000})
    decoded = read(decoder(registry, "shop.Refund"), order, refund)
    assert decoded.values.to_pylist() == [None, {"id": 3}]
    [misfit] = decoded.misfits
    assert misfit.reason == "value is a shop.Order, and the column is of shop.Refund"
    found = read(decoder(registry, "shop.Order.Inner"), inner)
    assert found.values.to_pylist() == [{"x": 4_000_000_000}]
    with pytest.raises(ConfigurationError, match="has no message shop"):
        decoder(registry, "shop.Nothing")


def test_damaged_values_do_not_fit(server: FakeRegistry, registry: SchemaRegistry) -> None:
    produce = Producer(server.url, FIRST)
    good = produce("shop.Order", {"id": "1"})
    avro = server.register("other", {"schema": '"string"'})
    values = [
        good[:5] + b"\x08",
        good[:5] + b"\x02\x0e" + good[6:],
        good[:5] + b"\x02\x01" + good[6:],
        good[:6] + b"\xff",
        b"\0" + avro.to_bytes(4, "big") + good[5:],
        b"\0\0\0\3\xe7" + good[5:],
        produce("shop.Order", {"cash": str(2**63)}),
        good[:5] + b"\xff" * 20,
        good,
    ]
    decoded = read(decoder(registry), *values)
    reasons = {one.row: one.reason for one in decoded.misfits}
    assert reasons.keys() == set(range(8))
    assert "names a message that its schema does not have" in reasons[1]
    assert "names no message" in reasons[2]
    assert "is of the type AVRO" in reasons[4]
    assert "it is not known" in reasons[5]
    assert reasons[6].startswith(f"value.cash is {2**63}, above")


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_do_not_end_a_run(
    server: FakeRegistry, registry: SchemaRegistry, data: bytes
) -> None:
    good = Producer(server.url, FIRST)("shop.Order", {}) if not server.requests else None
    head = good[:6] if good is not None else b"\0\0\0\0\2\0"
    assert len(read(decoder(registry), head + data).values) == 1


def test_registry_without_protobuf_descriptors_is_refused(
    server: FakeRegistry, registry: SchemaRegistry
) -> None:
    source = {"schema": 'syntax = "proto3"; message A {}', "schemaType": "PROTOBUF"}
    server.register("orders-value", source)
    with pytest.raises(ConfigurationError, match="a registry has to know format=serialized"):
        decoder(registry)
