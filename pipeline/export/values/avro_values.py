"""Avro values in Confluent's wire format: a zero byte, the schema's id (4 bytes), the record."""

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from sidetier.pipeline.export.values.avro_columns import (
    MARK,
    MARKED_TYPES,
    Convert,
    Marked,
    column_of,
    marked,
    parsed_json,
    required_fields,
)
from sidetier.pipeline.export.values.decoder import DecodedValues, UnfitError, decode_each
from sidetier.pipeline.export.values.framing import Framing, WriterSchema
from sidetier.segments.errors import ConfigurationError, SidetierError

DEEPEST: Final = 100
"""Deepest nesting of a value of a recursive schema. Beyond it, Python's own recursion limit would
decide, which depends on the thread.
"""


@dataclass(frozen=True, slots=True)
class _Reading:
    """How values of one writer's schema are read.

    Attributes:
        read: fastavro's `schemaless_reader`.
        writer: the schema as parsed by fastavro.
        marks: whether values have marks and type names.
        is_deep: whether values can be nested without limit.
    """

    read: Callable[..., object]
    writer: Any
    convert: Convert
    marks: bool
    is_deep: bool


class AvroDecoder:
    """Decodes values of any writer's schema into one reader's schema: "Schema Resolution"
    in Avro.
    """

    def __init__(self, reader_text: str, writer: WriterSchema) -> None:
        """Create a decoder; raise ConfigurationError if the schema is invalid or cannot be a
        column.
        """
        self._schema = parsed_json(reader_text)
        self._reader = _parsed(self._schema, logical=False)
        self._marked = column_of(self._schema)
        self._plain = column_of(self._schema, marks=False)
        self.type: Final[pa.DataType] = self._marked.type
        self.required: Final = required_fields(self._schema)
        self._framing = Framing("Avro", writer)

    def decode(self, values: pa.Array) -> DecodedValues:
        """Decode value by value."""
        return decode_each(values, self.type, self._parse)

    def _parse(self, data: bytes) -> object:
        number, payload = self._framing.split(data)
        reading = self._framing.parsed(number, self._reading)
        stream = io.BytesIO(payload)
        try:
            raw = reading.read(
                stream, reading.writer, self._reader, return_named_type=reading.marks
            )
            if reading.is_deep:
                _require_shallow(raw)
            converted: object = reading.convert(raw)
        except (SidetierError, UnfitError):
            raise
        except Exception as error:  # noqa: BLE001 -- fastavro raises errors of many types
            raise ValueError(f"value does not fit its Avro schema: {_shown(error)}") from None
        # fastavro stops where the schema ends.
        if stream.read(1):
            raise ValueError("value is longer than its Avro schema says")
        return converted

    def _reading(self, text: str) -> _Reading:
        schema = parsed_json(text)
        is_deep = _is_recursive(schema)
        # Equal schemas need no marks for logical types: both give numbers the same meaning.
        needed = self._marked.has_recursion or self._marked.has_unions
        marks = needed or schema != self._schema
        writer = _parsed(schema, logical=marks)
        column = self._marked if marks else self._plain
        return _Reading(_reader(is_deep=is_deep), writer, column.convert, marks, is_deep)


def _reader(*, is_deep: bool) -> Callable[..., object]:
    """Return fastavro's reader.

    The compiled one recurses without a limit: a value of 20 kB can crash the process. So values
    that can be deep are read in Python, which raises RecursionError.
    """
    from fastavro import _read_py, read  # noqa: PLC0415 -- an extra; it has no public name

    # Each process has to do this: the registry is a global of fastavro.
    for kind in MARKED_TYPES:
        read.LOGICAL_READERS[f"{kind}-{MARK}"] = _mark
    read_schemaless: Callable[..., object] = (
        _read_py.schemaless_reader if is_deep else read.schemaless_reader
    )
    return read_schemaless


def _mark(data: object, writer: Any, _reader: Any = None) -> Marked:  # noqa: ANN401 -- a callback of fastavro
    return Marked(data, writer)


def _is_recursive(schema: Any) -> bool:  # noqa: ANN401
    try:
        return column_of(schema).has_recursion
    except ConfigurationError:  # still readable if the reader's schema leaves that part out
        return True


def _require_shallow(value: object) -> None:
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for value_at_level in level for inner in _within(value_at_level)]
        if not level:
            return
    raise ValueError(f"value is nested more than {DEEPEST} deep")


def _within(value: Any) -> Iterable[object]:  # noqa: ANN401
    """Return the values nested in a value. fastavro returns some values as tuples with
    type names.
    """
    bare = value[1] if type(value) is tuple else value
    bare = bare.data if type(bare) is Marked else bare
    if isinstance(bare, dict):
        return bare.values()
    return bare if isinstance(bare, list) else ()


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
