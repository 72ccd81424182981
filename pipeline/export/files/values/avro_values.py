"""Avro values in Confluent's wire format: a zero byte, the schema's id (4 bytes), the record."""

import io
import struct
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from sidetier.pipeline.export.files.values.avro_schema import arrow_type, parsed_schema
from sidetier.pipeline.export.files.values.decoder import DecodedValues, decode_each
from sidetier.pipeline.export.files.values.references import UnusableSchemaError
from sidetier.segments.errors import ConfigurationError, SidetierError

_MAGIC: Final = 0
_HEADER: Final = struct.Struct(">bI")

WriterSchema = Callable[[int], str | None]
"""The text of the schema with an id; None where it is not known. Raises UnusableSchemaError where
there is one, but none to read values with, and StorageError where a registry does not answer."""


class AvroDecoder:
    """Values of any writer's schema, read as one schema, by Avro's rules of resolution."""

    def __init__(self, reader_text: str, writer: WriterSchema) -> None:
        """Raises ConfigurationError: a schema that is none, or cannot be a column."""
        self._reader = _prepared(reader_text)
        self.type: Final[pa.DataType] = arrow_type(parsed_schema(reader_text))
        self._writer = writer
        self._writers: dict[int, Any] = {}
        self._unusable: dict[int, str] = {}

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder`."""
        return decode_each(values, self.type, self._parse)

    def _parse(self, data: bytes) -> object:
        from fastavro import schemaless_reader  # noqa: PLC0415 -- an extra

        if len(data) < _HEADER.size or data[0] != _MAGIC:
            raise ValueError("value is no Avro in Confluent's wire format: it lacks its header")
        schema = self._schema(_HEADER.unpack_from(data)[1])
        stream = io.BytesIO(data[_HEADER.size :])
        try:
            found: object = schemaless_reader(stream, schema, self._reader)
        except SidetierError:
            raise
        except Exception as error:  # noqa: BLE001 -- fastavro raises whatever its steps do
            raise ValueError(f"value does not fit its Avro schema: {_shown(error)}") from None
        if stream.read(1):
            raise ValueError("value is longer than its Avro schema says")
        return found

    def _schema(self, number: int) -> Any:  # noqa: ANN401 -- fastavro's own
        """Looked up once for all values, whatever comes of it."""
        if number not in self._writers and number not in self._unusable:
            try:
                self._writers[number] = self._writer_schema(number)
            except UnusableSchemaError as error:
                self._unusable[number] = str(error)
        if number in self._unusable:
            raise ValueError(f"value has the Avro schema {number}: {self._unusable[number]}")
        return self._writers[number]

    def _writer_schema(self, number: int) -> Any:  # noqa: ANN401
        text = self._writer(number)
        if text is None:
            raise UnusableSchemaError("it is not known")
        try:
            return _prepared(text)
        except ConfigurationError as error:
            raise UnusableSchemaError(str(error)) from None


def _prepared(text: str) -> Any:  # noqa: ANN401
    try:
        from fastavro import parse_schema  # noqa: PLC0415
        from fastavro.schema import SchemaParseException  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ConfigurationError(
            "Avro needs fastavro, which is not installed: pip install 'sidetier[export]'"
        ) from None
    try:
        return parse_schema(parsed_schema(text))
    except (SchemaParseException, ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"the Avro schema cannot be used: {_shown(error)}") from None


def _shown(error: BaseException) -> str:
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
