"""JSON values with a JSON Schema: its types, properties, items, `required`, and time formats.

Other constraints (patterns, ranges, enumerations) are not checked: a value of the right type fits
its column.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, Final, NoReturn

import pyarrow as pa

from sidetier.pipeline.export.values.decoder import DecodedValues, UnfitError, decode_each
from sidetier.pipeline.export.values.framing import Framing
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.json_text import parse_json

Coerce = Callable[[Any], Any]
"""Converts a parsed value to the column's type. Raises UnfitError with the path below the
value.
"""
Column = tuple[pa.DataType, Coerce]

_LEAST, _MOST = -(2**63), 2**63 - 1
_DEEPEST: Final = 50
MAX_NESTED: Final = 500
"""Deepest nesting of a value, also in parts that become no column. Beyond it, Python's own
recursion limit would decide, which depends on the thread.
"""
_BRACKETS: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


class JsonDecoder:
    """Decodes values of a JSON Schema. Properties that the schema does not name are left out."""

    def __init__(self, schema_text: str, framing: Framing | None = None) -> None:
        """Create a decoder; `framing` is set if values have Confluent's wire format.

        Raises:
            ConfigurationError: the schema is invalid, or cannot be a column.
        """
        try:
            schema = parse_json(schema_text)
        except ValueError as error:
            raise ConfigurationError(f"the schema of values is not JSON: {error}") from None
        reader = _SchemaReader(schema)
        self.type, self._coerce = reader.column(schema, "value", 0)
        self.required: Final[frozenset[str]] = reader.required
        self._framing = framing

    def decode(self, values: pa.Array) -> DecodedValues:
        """Decode value by value."""
        return decode_each(values, self.type, self._parse)

    def _parse(self, data: bytes) -> object:
        if self._framing is not None:
            number, data = self._framing.split(data)
            # Only to refuse a schema that the registry does not know: the value needs none.
            self._framing.parsed(number, str)
        try:
            # As `json.loads` decodes bytes.
            text = data.decode(json.detect_encoding(data), "surrogatepass")
            _require_shallow(text)
            parsed = _DECODER.decode(text)
        except ValueError as error:
            raise ValueError(f"value is not JSON: {error}") from None
        return self._coerce(parsed)


def _require_shallow(text: str) -> None:
    # The usual case: so few brackets cannot be nested deeper.
    if text.count("[") + text.count("{") <= MAX_NESTED:
        return
    depth = 0
    for token in _BRACKETS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if depth > MAX_NESTED:
            raise ValueError(f"it is nested more than {MAX_NESTED} deep")


_KEYWORDS: Final = {"oneOf": list, "anyOf": list, "properties": dict, "required": list}
"""Keywords that are read, and the types of their values."""


class _SchemaReader:
    """Converts schemas to columns. `$ref` points into the root schema."""

    def __init__(self, root: object) -> None:
        self._root = root
        self.required: frozenset[str] = frozenset()

    def column(self, schema: object, path: str, depth: int) -> Column:
        """Return the column of a schema.

        Raises:
            ConfigurationError: the schema has no column, or is invalid. The message names the
                field.
        """
        if depth > _DEEPEST:
            raise ConfigurationError(f"the schema of values: {path} is nested without an end")
        if not isinstance(schema, Mapping):
            raise ConfigurationError(f"the schema of values: {path} has no schema, but {schema!r}")
        schema, nullable = self._plain(schema, path)
        kind, coerce = self._typed(schema, path, depth)
        return kind, _or_null(coerce) if nullable else coerce

    def _plain(self, schema: Mapping[str, Any], path: str) -> tuple[Mapping[str, Any], bool]:
        """Follow references, and take null out of alternatives.

        Returns:
            The remaining schema, and whether null is allowed.
        """
        nullable = False
        for _ in range(_DEEPEST):
            for name, known in _KEYWORDS.items():
                if not isinstance(schema.get(name, known()), known):
                    _refuse(path, f"{name} is {schema[name]!r}, which JSON Schema does not allow")
            if "$ref" in schema:
                schema = self._referred(schema["$ref"], path)
                continue
            alternatives = schema.get("oneOf", schema.get("anyOf"))
            if alternatives is None:
                return schema, nullable or schema.get("nullable") is True
            if not all(isinstance(alternative, Mapping) for alternative in alternatives):
                _refuse(path, "an alternative that is not an object cannot be a column")
            others = [
                alternative for alternative in alternatives if alternative.get("type") != "null"
            ]
            nullable |= len(others) < len(alternatives)
            others = others or alternatives[:1]
            if len(others) != 1:
                _refuse(path, "alternatives other than null and one type cannot be one column")
            schema = others[0]
        return _refuse(path, "references lead in a circle")

    def _referred(self, reference: object, path: str) -> Mapping[str, Any]:
        target: Any = self._root
        text = str(reference)
        for step in filter(None, text.removeprefix("#").split("/")):
            if not text.startswith("#") or not isinstance(target, Mapping) or step not in target:
                _refuse(path, f"{text} is not in this schema")
            target = target[step]
        return target if isinstance(target, Mapping) else _refuse(path, f"{text} is not a schema")

    def _typed(self, schema: Mapping[str, Any], path: str, depth: int) -> Column:
        kinds = schema.get("type", "object" if "properties" in schema else None)
        kinds = kinds if isinstance(kinds, list) else [kinds] if isinstance(kinds, str) else []
        named = [kind for kind in kinds if kind != "null"] or kinds[:1]
        if len(named) != 1 or not isinstance(named[0], str):
            _refuse(
                path, f"its type is {schema.get('type')!r}; one type, and null, can be a column"
            )
        kind, coerce = self._one(named[0], schema, path, depth)
        return kind, _or_null(coerce) if "null" in kinds else coerce

    def _one(self, kind: str, schema: Mapping[str, Any], path: str, depth: int) -> Column:
        if kind == "object":
            return self._object(schema, path, depth)
        if kind == "array":
            item, coerce = self.column(schema.get("items"), f"{path}[]", depth + 1)
            return pa.list_(item), _array(coerce)
        if kind == "string":
            return _STRINGS.get(str(schema.get("format")), (pa.string(), _string))
        if kind not in _PLAIN:
            _refuse(path, f"there is no type {kind!r}")
        return _PLAIN[kind]

    def _object(self, schema: Mapping[str, Any], path: str, depth: int) -> Column:
        properties = schema.get("properties")
        if not properties:
            values = schema.get("additionalProperties")
            if not isinstance(values, Mapping):
                _refuse(path, "an object needs properties, or a schema of additionalProperties")
            kind, coerce = self.column(values, f"{path}.*", depth + 1)
            return pa.map_(pa.string(), kind), _map(coerce)
        columns = {
            name: self.column(property_schema, f"{path}.{name}", depth + 1)
            for name, property_schema in properties.items()
        }
        required = frozenset(schema.get("required", ()))
        if depth == 0:
            self.required = required
        fields = [pa.field(name, kind) for name, (kind, _) in columns.items()]
        return pa.struct(fields), _struct({n: c for n, (_, c) in columns.items()}, required)


def _refuse(path: str, reason: str) -> NoReturn:
    raise ConfigurationError(f"the schema of values: {path}: {reason}")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)
"""Kept because `json.loads` with these options creates a decoder for each call."""


def _wrong(wanted: str, value: object) -> NoReturn:
    shown = json.dumps(value, ensure_ascii=False)
    raise UnfitError(f"should be {wanted}, and is {shown[:60]}")


def _or_null(coerce: Coerce) -> Coerce:
    return lambda value: None if value is None else coerce(value)


def _string(value: Any) -> str:  # noqa: ANN401 -- any JSON value
    return value if isinstance(value, str) else _wrong("a string", value)


def _integer(value: Any) -> int:  # noqa: ANN401
    # In JSON Schema, 1.0 is an integer. In Python, True is one.
    if type(value) is not int and not (isinstance(value, float) and value == value // 1):
        _wrong("an integer", value)
    return int(value) if _LEAST <= value <= _MOST else _wrong("an integer of 64 bits", value)


def _number(value: Any) -> float:  # noqa: ANN401
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        _wrong("a number", value)
    try:
        number = float(value)
    except OverflowError:
        _wrong("a number of 64 bits", value)
    # Python reads a number beyond 64 bits, such as 1e400, as infinity.
    return number if math.isfinite(number) else _wrong("a number of 64 bits", value)


def _boolean(value: Any) -> bool:  # noqa: ANN401
    return value if isinstance(value, bool) else _wrong("a boolean", value)


def _null(value: Any) -> None:  # noqa: ANN401
    if value is not None:
        _wrong("null", value)


def _date(value: Any) -> date:  # noqa: ANN401
    try:
        return date.fromisoformat(_string(value))
    except ValueError:
        _wrong("a date as 2026-11-21", value)


def _date_time(value: Any) -> datetime:  # noqa: ANN401
    try:
        moment = datetime.fromisoformat(_string(value))
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        _wrong("a time as 2026-11-21T08:00:00Z", value)


def _array(coerce: Coerce) -> Coerce:
    def take(value: Any) -> Sequence[Any]:  # noqa: ANN401
        if not isinstance(value, list):
            _wrong("an array", value)
        try:
            return [coerce(item) for item in value]
        except UnfitError as error:
            raise error.within("[]") from None

    return take


def _map(coerce: Coerce) -> Coerce:
    def take(value: Any) -> list[tuple[str, Any]]:  # noqa: ANN401
        if not isinstance(value, dict):
            _wrong("an object", value)
        return list(_coerced(value, [(name, coerce) for name in value]).items())

    return take


def _struct(columns: Mapping[str, Coerce], required: frozenset[str]) -> Coerce:
    named = list(columns.items())

    def take(value: Any) -> dict[str, Any]:  # noqa: ANN401
        if not isinstance(value, dict):
            _wrong("an object", value)
        if missing := required - value.keys():
            raise UnfitError("is missing", f".{min(missing)}")
        return _coerced(value, named)

    return take


def _coerced(value: dict[str, Any], named: Sequence[tuple[str, Coerce]]) -> dict[str, Any]:
    """Return the converted values of those properties that are present."""
    converted, name = {}, ""
    try:
        for name, coerce in named:
            if name in value:
                converted[name] = coerce(value[name])
    except UnfitError as error:
        raise error.within(f".{name}") from None
    return converted


_PLAIN: Final[dict[str, Column]] = {
    "integer": (pa.int64(), _integer),
    "number": (pa.float64(), _number),
    "boolean": (pa.bool_(), _boolean),
    "null": (pa.string(), _null),  # as the column of Avro's type `null`
}
_STRINGS: Final[dict[str, Column]] = {
    "date": (pa.date32(), _date),
    "date-time": (pa.timestamp("us", tz="UTC"), _date_time),
}
