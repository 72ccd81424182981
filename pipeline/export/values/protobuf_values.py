"""Protobuf values in Confluent's wire format: header, index path of the message in its file,
message.

A message is read with the file of the rows, whatever version its writer used: field numbers
identify fields. A field without a value is null if Protobuf tracks its presence (`optional`,
members of a `oneof`, messages). Otherwise it has the default of its type. A value that lacks a
required field (proto2) does not fit.
"""

import base64
import importlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from sidetier.pipeline.export.values.decoder import DecodedValues, UnfitError, decode_each
from sidetier.pipeline.export.values.framing import HEADER_BYTES, Framing
from sidetier.pipeline.export.values.references import (
    Reference,
    Registered,
    UnusableSchemaError,
)
from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor


# A registry's Protobuf schema and the files that it imports, as one text.
#
# Registries return a file's descriptor in base64 (`format=serialized`). The text is a base64
# `google.protobuf.FileDescriptorSet`, in which each file follows the files that it imports.

_ROOT: Final = "sidetier-value.proto"
"""Name of the file of the values. Registries do not know its real name."""
_MODULES: Final = {
    "google/protobuf/": "google.protobuf.",
    "google/type/": "google.type.",
    "confluent/": "confluent_kafka.schema_registry.confluent.",
}
"""Python modules of files that every producer has and registries do not store."""


def file_set(schema: Registered, needed: Mapping[Reference, Registered]) -> str:
    """Return the file and all files that it imports, in base64.

    Raises:
        UnusableSchemaError: a text is not a descriptor, or an imported file is missing.
        ConfigurationError: the package protobuf is not installed.
    """
    descriptors = _descriptors()
    descriptor_set = descriptors.FileDescriptorSet()
    for name, text in (
        *((reference.name, registered.text) for reference, registered in needed.items()),
        (_ROOT, schema.text),
    ):
        file = descriptor_set.file.add()
        try:
            file.ParseFromString(base64.b64decode(text, validate=True))
        except Exception as error:  # noqa: BLE001 -- errors of base64 and of Protobuf's library
            raise UnusableSchemaError(
                f"{name} is not a descriptor of a Protobuf file: {error}; a registry has to know "
                "format=serialized"
            ) from None
        file.name = name
    return base64.b64encode(descriptor_set.SerializeToString(deterministic=True)).decode()


def messages_of(text: str, name: str | None) -> "tuple[Descriptor, _Files]":
    """Return the message of the values and its files. Without a `name`, the first message is taken.

    Raises:
        ConfigurationError: the message does not exist, or the schema cannot be used.
    """
    files = _Files(text)
    return files.message(name or files.first), files


class _Files:
    """The messages of a file, and of the files that it imports."""

    def __init__(self, text: str) -> None:
        descriptors = _descriptors()
        from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415

        files = descriptors.FileDescriptorSet()
        self._pool = DescriptorPool()
        try:
            files.ParseFromString(base64.b64decode(text, validate=True))
            for file in files.file:
                for needed in file.dependency:
                    self._add_common(needed)
                self._pool.Add(file)
            self._root = files.file[-1]
            self._pool.FindFileByName(self._root.name)
        except Exception as error:  # noqa: BLE001 -- Protobuf's library raises errors of many types
            raise ConfigurationError(f"the Protobuf schema cannot be used: {error}") from None

    @property
    def first(self) -> str:
        """Full name of the first message."""
        if not self._root.message_type:
            raise ConfigurationError("the Protobuf schema: has no message")
        return self._name([0])

    def _name(self, indexes: list[int]) -> str:
        parts, messages = (
            [self._root.package] if self._root.package else [],
            self._root.message_type,
        )
        for index in indexes:
            parts.append(messages[index].name)
            messages = messages[index].nested_type
        return ".".join(parts)

    def name_at(self, indexes: list[int]) -> str:
        """Return the full name of the message at these indexes.

        Raises:
            ValueError: these indexes lead to no message.
        """
        # Python would count a negative index from the end.
        if min(indexes, default=0) < 0:
            raise ValueError("value names no message of its schema")
        try:
            return self._name(indexes)
        except IndexError:
            raise ValueError("value names a message that its schema does not have") from None

    def message(self, name: str) -> "Descriptor":
        """Return the message with this full name; raise ConfigurationError if there is none."""
        try:
            return self._pool.FindMessageTypeByName(name)
        except KeyError:
            raise ConfigurationError(f"the Protobuf schema: has no message {name}") from None

    def _add_common(self, name: str) -> None:
        """Add a file that no registry stores, and the files that it imports."""
        for prefix, package in _MODULES.items():
            if name.startswith(prefix):
                path = name.removeprefix(prefix).removesuffix(".proto").replace("/", ".")
                self._add_file(importlib.import_module(f"{package}{path}_pb2").DESCRIPTOR)

    def _add_file(self, file: Any) -> None:  # noqa: ANN401 -- a class in C
        for needed in file.dependencies:
            self._add_file(needed)
        self._pool.AddSerializedFile(file.serialized_pb)


def _descriptors() -> Any:  # noqa: ANN401
    try:
        from google.protobuf import descriptor_pb2  # noqa: PLC0415 -- an extra
    except ModuleNotFoundError:
        raise ConfigurationError(
            "Protobuf values need protobuf, which is not installed: pip install 'sidetier[export]'"
        ) from None
    return descriptor_pb2


Convert = Callable[[Any], Any]
Column = tuple[pa.DataType, Convert]

_LARGEST: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_INDEXES: Final = 100
_MAX_BYTES: Final = 5
_MORE: Final = 0x80
"""Bit of a varint's byte: another byte follows."""
_JSON_TEXT: Final = frozenset(
    f"google.protobuf.{name}" for name in ("Any", "Struct", "Value", "ListValue")
)
"""Messages that can hold any JSON."""
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


def message_written(text: str, data: bytes) -> str:
    """Return the full name of the message of a value in Confluent's wire format.

    Args:
        text: The value's schema.
        data: The value, with its header.

    Raises:
        ValueError: the value names no message of the schema.
    """
    return _Files(text).name_at(list(_indexes(data[HEADER_BYTES:])[0]))


class ProtobufDecoder:
    """Decodes values of one message, whatever version of its file their writer used."""

    def __init__(self, text: str, framing: Framing, message: str | None = None) -> None:
        """Create a decoder; raise ConfigurationError if the schema is invalid or has no such
        message.
        """
        from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415 -- an extra

        descriptor, self._files = messages_of(text, message)
        self._name = descriptor.full_name
        self._class = GetMessageClass(descriptor)
        self.type, self._convert = _message(descriptor, ())
        self.required: Final = frozenset(
            field.name for field in descriptor.fields if field.is_required
        )
        self._framing = framing
        self._written: dict[tuple[int, tuple[int, ...]], str] = {}

    def decode(self, values: pa.Array) -> DecodedValues:
        """Decode value by value."""
        return decode_each(values, self.type, self._parse)

    def _parse(self, data: bytes) -> object:
        from google.protobuf.message import DecodeError  # noqa: PLC0415

        number, payload = self._framing.split(data)
        indexes, payload = _indexes(payload)
        name = self._name_written(number, indexes)
        if name != self._name:
            raise ValueError(f"value is a {name}, and the column is of {self._name}")
        message = self._class()
        try:
            message.ParseFromString(payload)
        except DecodeError as error:
            raise ValueError(f"value is no {self._name}: {error}") from None
        if not message.IsInitialized():
            lacking = ", ".join(message.FindInitializationErrors())
            raise ValueError(f"value is no {self._name}: it lacks the required {lacking}")
        return self._convert(message)

    def _name_written(self, number: int, indexes: tuple[int, ...]) -> str:
        if (number, indexes) not in self._written:
            files = self._framing.parsed(number, lambda text: messages_of(text, None)[1])
            self._written[number, indexes] = files.name_at(list(indexes))
        return self._written[number, indexes]


def _indexes(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the index path of the message, and the bytes behind it. A single 0 means `(0,)`."""
    count, at = _varint(data, 0)
    if count == 0:
        return (0,), data[at:]
    if not 0 < count <= _MAX_INDEXES:
        raise ValueError("value is not Protobuf in Confluent's wire format")
    path = []
    for _ in range(count):
        index, at = _varint(data, at)
        path.append(index)
    return tuple(path), data[at:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag number, and the position after it."""
    number = 0
    for size, byte in enumerate(data[at : at + _MAX_BYTES]):
        number |= (byte & (_MORE - 1)) << 7 * size
        if byte < _MORE:
            return (number >> 1) ^ -(number & 1), at + size + 1
    raise ValueError("value is not Protobuf in Confluent's wire format")


def _message(descriptor: "Descriptor", around: tuple[str, ...]) -> Column:
    """Return a struct column; JSON text for a message within itself, and for messages of
    any JSON.
    """
    name = descriptor.full_name
    if name == "google.protobuf.Timestamp":
        return pa.timestamp("us", tz="UTC"), _timestamp
    if name in _WRAPPERS:
        kind, convert = _scalar(descriptor.fields_by_name["value"])
        return kind, lambda message: convert(message.value)
    if name in around or name in _JSON_TEXT:
        return pa.string(), _json_text
    members = [
        (member.name, member, _field(member, (*around, name))) for member in descriptor.fields
    ]
    if not members:  # Parquet has no struct without fields
        return pa.string(), _json_text
    fields = [pa.field(name, kind) for name, _, (kind, _) in members]
    converters = [(name, _tells_absence(field), convert) for name, field, (_, convert) in members]

    def take(message: Any) -> dict[str, Any]:  # noqa: ANN401 -- a class in C
        taken, name = {}, ""
        try:
            for name, absent, convert in converters:
                is_absent = absent and not message.HasField(name)
                taken[name] = None if is_absent else convert(getattr(message, name))
        except UnfitError as error:
            raise error.within(f".{name}") from None
        return taken

    return pa.struct(fields), take


def _tells_absence(field: "FieldDescriptor") -> bool:
    return bool(field.has_presence)


def _field(field: "FieldDescriptor", around: tuple[str, ...]) -> Column:
    if not field.is_repeated:
        return _one(field, around)
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, key_convert = _scalar(message.fields_by_name["key"])
        value, convert = _one(message.fields_by_name["value"], around)
        text = key if pa.types.is_string(key) else pa.string()
        # Sorted, because Protobuf's maps have no order, and equal values must give equal rows.
        return pa.map_(text, value), lambda items: [
            (str(key_convert(name)), convert(item)) for name, item in sorted(items.items())
        ]
    kind, convert = _one(field, around)
    return pa.list_(kind), lambda items: [convert(item) for item in items]


def _one(field: "FieldDescriptor", around: tuple[str, ...]) -> Column:
    if field.message_type is not None:
        return _message(field.message_type, around)
    return _scalar(field)


def _scalar(field: "FieldDescriptor") -> Column:
    if field.enum_type is not None:
        names = {value.number: value.name for value in field.enum_type.values}
        return pa.string(), lambda number: names.get(number, str(number))
    kinds: dict[int, Column] = {
        field.CPPTYPE_INT32: (pa.int32(), _as_it_is),
        field.CPPTYPE_UINT32: (pa.int64(), _as_it_is),
        field.CPPTYPE_INT64: (pa.int64(), _as_it_is),
        field.CPPTYPE_UINT64: (pa.int64(), _signed),
        field.CPPTYPE_DOUBLE: (pa.float64(), _as_it_is),
        field.CPPTYPE_FLOAT: (pa.float32(), _as_it_is),
        field.CPPTYPE_BOOL: (pa.bool_(), _as_it_is),
    }
    text = pa.binary() if field.type == field.TYPE_BYTES else pa.string()
    return kinds.get(field.cpp_type, (text, _as_it_is))


def _as_it_is(value: Any) -> Any:  # noqa: ANN401
    return value


def _signed(value: int) -> int:
    if value > _LARGEST:
        raise UnfitError(f"is {value}, above {_LARGEST}, the largest number of a column")
    return value


def _timestamp(message: Any) -> datetime:  # noqa: ANN401
    try:
        return _EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    except OverflowError:
        raise UnfitError(
            f"is {message.seconds} s since 1970, which is not a time of the years 1 to 9999"
        ) from None


def _json_text(message: Any) -> str:  # noqa: ANN401
    from google.protobuf.json_format import MessageToJson  # noqa: PLC0415

    try:
        return str(MessageToJson(message, preserving_proto_field_name=True, indent=None))
    except Exception as error:  # noqa: BLE001 -- e.g. an `Any` of an unknown type
        raise UnfitError(f"cannot be written as JSON: {error}") from None
