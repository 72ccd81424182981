"""A Protobuf schema of a registry with the files that it imports, as one text.

Registries give a file's descriptor in base64 (`format=serialized`); here it is a set of them
(`google.protobuf.FileDescriptorSet`), each behind those that it imports.
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
"""What the file is called that values are written with; registries do not know its name."""
_MODULES: Final = {
    "google/protobuf/": "google.protobuf.",
    "google/type/": "google.type.",
    "confluent/": "confluent_kafka.schema_registry.confluent.",
}
"""Where Python has the files that every producer has, and no registry."""


def file_set(schema: Registered, needed: Mapping[Reference, Registered]) -> str:
    """The file, and all that it imports, in base64.

    Raises:
        UnusableSchemaError: one of them is no descriptor, or a file is imported that is not there.
        ConfigurationError: Protobuf's library is not installed.
    """
    descriptors = _descriptors()
    found = descriptors.FileDescriptorSet()
    for name, text in (
        *((one.name, at.text) for one, at in needed.items()),
        (_ROOT, schema.text),
    ):
        file = found.file.add()
        try:
            file.ParseFromString(base64.b64decode(text, validate=True))
        except Exception as error:  # noqa: BLE001 -- base64's, and Protobuf's own
            raise UnusableSchemaError(
                f"{name} is no descriptor of a Protobuf file: {error}; a registry has to know "
                "format=serialized"
            ) from None
        file.name = name
    return base64.b64encode(found.SerializeToString(deterministic=True)).decode()


def messages_of(text: str, name: str | None) -> "tuple[Descriptor, _Files]":
    """The message that values become, the first one where no `name` is given, and the files.

    Raises:
        ConfigurationError: there is no such message, or the schema cannot be used.
    """
    files = _Files(text)
    return files.message(name or files.first), files


class _Files:
    """The messages of a file, and of those that it imports."""

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
        except Exception as error:  # noqa: BLE001 -- Protobuf's library raises what it likes
            raise ConfigurationError(f"the Protobuf schema cannot be used: {error}") from None

    @property
    def first(self) -> str:
        """The full name of the first message."""
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
        """The full name of a message by its place; raises ValueError where there is none."""
        if min(indexes, default=0) < 0:
            raise ValueError("value names no message of its schema")
        try:
            return self._name(indexes)
        except IndexError:
            raise ValueError("value names a message that its schema has not") from None

    def message(self, name: str) -> "Descriptor":
        """Raises ConfigurationError where there is none of this full name."""
        try:
            return self._pool.FindMessageTypeByName(name)
        except KeyError:
            raise ConfigurationError(f"the Protobuf schema: has no message {name}") from None

    def _add_common(self, name: str) -> None:
        """A file that registries are not asked for."""
        for prefix, package in _MODULES.items():
            if name.startswith(prefix):
                path = name.removeprefix(prefix).removesuffix(".proto").replace("/", ".")
                self._add_file(importlib.import_module(f"{package}{path}_pb2").DESCRIPTOR)

    def _add_file(self, file: Any) -> None:  # noqa: ANN401 -- a class of C
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
