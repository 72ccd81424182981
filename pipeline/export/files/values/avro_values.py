"""Avro values in Confluent's wire format: a zero byte, the schema's id (4 bytes), the record."""

import io
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from sidetier.pipeline.export.files.values.avro_columns import (
    MARK,
    MARKED_TYPES,
    Convert,
    Marked,
    column_of,
    marked,
    parsed_json,
    required_fields,
)
from sidetier.pipeline.export.files.values.decoder import DecodedValues, decode_each
from sidetier.pipeline.export.files.values.references import UnusableSchemaError
from sidetier.segments.errors import ConfigurationError, SidetierError

_MAGIC: Final = 0
_HEADER: Final = struct.Struct(">bI")
DEEPEST: Final = 100
"""How deep a value of a recursive schema may be nested. With more, what Python itself allows would
decide, which depends on the thread."""

WriterSchema = Callable[[int], str | None]
"""The text of the schema with an id; None where it is not known. Raises UnusableSchemaError where
there is one, but none to read values with, and StorageError where a registry does not answer."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """How values of one writer's schema are read.

    Attributes:
        read: fastavro's `schemaless_reader`.
        writer: the schema as fastavro parses it.
        marks: values have marks, and the names of their types.
        is_deep: values can be nested without an end.
    """

    read: Callable[..., object]
    writer: Any
    convert: Convert
    marks: bool
    is_deep: bool


class AvroDecoder:
    """Values of any writer's schema, read as one schema, by Avro's rules of resolution."""

    def __init__(self, reader_text: str, writer: WriterSchema) -> None:
        """Raises ConfigurationError: a schema that is none, or cannot be a column."""
        self._schema = parsed_json(reader_text)
        self._reader = _parsed(self._schema, logical=False)
        self._marked = column_of(self._schema)
        self._plain = column_of(self._schema, marks=False)
        self.type: Final[pa.DataType] = self._marked.type
        self.required: Final = required_fields(self._schema)
        self._writer = writer
        self._readings: dict[int, _Reading] = {}
        self._unusable: dict[int, str] = {}

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder`."""
        return decode_each(values, self.type, self._parse)

    def _parse(self, data: bytes) -> object:
        if len(data) < _HEADER.size or data[0] != _MAGIC:
            raise ValueError("value is no Avro in Confluent's wire format: it lacks its header")
        how = self._reading(_HEADER.unpack_from(data)[1])
        stream = io.BytesIO(data[_HEADER.size :])
        try:
            found = how.read(stream, how.writer, self._reader, return_named_type=how.marks)
            if how.is_deep:
                _require_shallow(found)
            converted: object = how.convert(found)
        except SidetierError:
            raise
        except Exception as error:  # noqa: BLE001 -- fastavro raises whatever its steps do
            raise ValueError(f"value does not fit its Avro schema: {_shown(error)}") from None
        if stream.read(1):
            raise ValueError("value is longer than its Avro schema says")
        return converted

    def _reading(self, number: int) -> _Reading:
        """Looked up once for all values, whatever comes of it."""
        if number not in self._readings and number not in self._unusable:
            try:
                self._readings[number] = self._reading_of(number)
            except UnusableSchemaError as error:
                self._unusable[number] = str(error)
        if number in self._unusable:
            raise ValueError(f"value has the Avro schema {number}: {self._unusable[number]}")
        return self._readings[number]

    def _reading_of(self, number: int) -> _Reading:
        text = self._writer(number)
        if text is None:
            raise UnusableSchemaError("it is not known")
        try:
            schema = parsed_json(text)
            is_deep = _is_recursive(schema)
            # Numbers mean the same to both where the schemas are the same.
            needed = self._marked.has_recursion or self._marked.has_unions
            marks = needed or schema != self._schema
            writer = _parsed(schema, logical=marks)
        except ConfigurationError as error:
            raise UnusableSchemaError(str(error)) from None
        column = self._marked if marks else self._plain
        return _Reading(_reader(is_deep=is_deep), writer, column.convert, marks, is_deep)


def _reader(*, is_deep: bool) -> Callable[..., object]:
    """Fastavro's compiled reader recurses without a bound: a value of 20 kB can end the process.
    The one in Python raises RecursionError.
    """
    from fastavro import _read_py, read  # noqa: PLC0415 -- an extra; it has no public name

    for kind in MARKED_TYPES:
        read.LOGICAL_READERS[f"{kind}-{MARK}"] = _mark
    found: Callable[..., object] = _read_py.schemaless_reader if is_deep else read.schemaless_reader
    return found


def _mark(data: object, writer: Any, _reader: Any = None) -> Marked:  # noqa: ANN401 -- fastavro's
    return Marked(data, writer)


def _is_recursive(schema: Any) -> bool:  # noqa: ANN401
    try:
        return column_of(schema).has_recursion
    except ConfigurationError:  # values can be read all the same, where the reader leaves it out
        return True


def _require_shallow(value: object) -> None:
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for one in level for inner in _within(one)]
        if not level:
            return
    raise ValueError(f"value is nested more than {DEEPEST} deep")


def _within(value: Any) -> Iterable[object]:  # noqa: ANN401
    """What is nested in a value. fastavro gives some of them as tuples, with their names."""
    found = value[1] if type(value) is tuple else value
    found = found.data if type(found) is Marked else found
    if isinstance(found, dict):
        return found.values()
    return found if isinstance(found, list) else ()


def _parsed(schema: Any, *, logical: bool) -> Any:  # noqa: ANN401
    try:
        from fastavro import parse_schema  # noqa: PLC0415
        from fastavro.schema import SchemaParseException  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ConfigurationError(
            "Avro needs fastavro, which is not installed: pip install 'sidetier[export]'"
        ) from None
    try:
        return parse_schema(marked(schema, logical=logical))
    except (SchemaParseException, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigurationError(f"the Avro schema cannot be used: {_shown(error)}") from None


def _shown(error: BaseException) -> str:
    text = str(error).splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
