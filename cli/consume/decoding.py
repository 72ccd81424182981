"""Keys and values of `sidetier consume`, decoded with the schema that each record names."""

import base64
import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from sidetier.cli.consume.formats import Decode, Show
from sidetier.cli.consume.request import Formats
from sidetier.cli.export.request import registry_config
from sidetier.pipeline.export.values.avro_values import AvroDecoder
from sidetier.pipeline.export.values.decoder import ValueDecoder
from sidetier.pipeline.export.values.framing import HEADER_BYTES, NO_SCHEMA, Framing, schema_ids
from sidetier.pipeline.export.values.protobuf_values import ProtobufDecoder, message_written
from sidetier.pipeline.export.values.references import UnusableSchemaError
from sidetier.pipeline.export.values.registry import RegistryConfig, SchemaKind, SchemaRegistry
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.json_text import parse_json

Report = Callable[[str], None]


class Decoding:
    """Decodes Avro and Protobuf by a schema registry; JSON also without its header.

    A value that cannot be decoded stays as it is. The first one of each schema is reported.
    """

    def __init__(self, kind: SchemaKind, registry: RegistryConfig | None, report: Report) -> None:
        """Raises ConfigurationError if the registry's settings are wrong."""
        self._kind = kind
        self._registry: SchemaRegistry | None = None
        if registry is not None and kind is not SchemaKind.JSON:
            self._registry = SchemaRegistry(registry, kind)
        self._report = report
        self._decoders: dict[tuple[int, str], ValueDecoder] = {}
        self._reported: set[int] = set()

    def decode(self, values: pa.Array, otherwise: Show) -> list[object]:
        """Return what JSON shows of each value; `otherwise` shows one that is not decoded."""
        ids = schema_ids(values).tolist()
        return [
            None if data is None else self._shown(number, data, otherwise)
            for number, data in zip(ids, values.to_pylist(), strict=True)
        ]

    def _shown(self, number: int, data: bytes, otherwise: Show) -> object:
        try:
            if self._kind is SchemaKind.JSON:
                return parse_json(data if number == NO_SCHEMA else data[HEADER_BYTES:])
            return self._decoded(number, data)
        except (ValueError, RecursionError, UnusableSchemaError) as error:
            if number not in self._reported:
                self._reported.add(number)
                self._report(f"not decoded, and shown as bytes: {error}")
            return otherwise(data)

    def _decoded(self, number: int, data: bytes) -> object:
        if number == NO_SCHEMA or self._registry is None:
            raise ValueError("value lacks the header with the id of its schema")
        text = self._registry.by_id(number)
        if text is None:
            raise ValueError(f"value has the schema {number}, which the registry does not have")
        name = message_written(text, data) if self._kind is SchemaKind.PROTOBUF else ""
        if (number, name) not in self._decoders:
            self._decoders[number, name] = self._decoder(self._registry, text, name)
        decoded = self._decoders[number, name].decode(pa.array([data], pa.binary()))
        if decoded.misfits:
            raise ValueError(decoded.misfits[0].reason)
        return plain(decoded.values[0].as_py())

    def _decoder(self, registry: SchemaRegistry, text: str, name: str) -> ValueDecoder:
        if self._kind is SchemaKind.PROTOBUF:
            return ProtobufDecoder(text, Framing("Protobuf", registry.by_id), name)
        return AvroDecoder(text, registry.by_id)


def plain(value: Any) -> object:  # noqa: ANN401, PLR0911 -- any value of Arrow; one return per type
    """Return a value of Arrow as JSON has it: decimals and times as text, bytes as base64."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return {str(key): plain(item) for key, item in value}
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def decoders(formats: Formats, report: Report) -> tuple[Decode | None, Decode | None]:
    """Return the decoders of keys and of values; None for bytes.

    Raises:
        ConfigurationError: A setting of the registry is wrong or missing.
    """
    registry = registry_config(formats.registry, formats.registry_options)

    def decoder(option: str, kind: str) -> Decode | None:
        if kind == "bytes":
            return None
        if kind != "json" and registry is None:
            raise ConfigurationError(f"{option} {kind}: needs --schema-registry")
        return Decoding(SchemaKind(kind.upper()), registry, report).decode

    return decoder("--key-format", formats.key), decoder("--value-format", formats.value)
