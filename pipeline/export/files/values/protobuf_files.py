"""A registry's Protobuf schema and the files that it imports, as one text.

Registries return a file's descriptor in base64 (`format=serialized`). The text is a base64
`google.protobuf.FileDescriptorSet`, in which each file follows the files that it imports.
"""

import base64
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sidetier.pipeline.export.files.values.references import (
    Reference,
    Registered,
    UnusableSchemaError,
)
from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

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
        UnusableSchemaError: a text is not a descriptor, or an imported file is not there.
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
                f"{name} is no descriptor of a Protobuf file: {error}; a registry has to know "
                "format=serialized"
            ) from None
        file.name = name
    return base64.b64encode(descriptor_set.SerializeToString(deterministic=True)).decode()


def messages_of(text: str, name: str | None) -> "tuple[Descriptor, _Files]":
    """Return the message of the values and its files. Without a `name`, the first message is taken.

    Raises:
        ConfigurationError: there is no such message, or the schema cannot be used.
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
            ValueError: there is no message at these indexes.
        """
        if min(indexes, default=0) < 0:
            raise ValueError("value names no message of its schema")
        try:
            return self._name(indexes)
        except IndexError:
            raise ValueError("value names a message that its schema has not") from None

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
