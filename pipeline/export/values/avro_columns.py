"""Avro schemas as columns: the Arrow type, and the conversion of what fastavro reads.

fastavro gets schemas without logical types (`marked`). So dates, times and decimals arrive as the
numbers and bytes of their encoding. If the writer's schema may give them another meaning than the
reader's, or if a union has several branches, each arrives as a `Marked` value with the writer's
schema for it.

Two kinds of schemas have no column type of their own in Parquet:

- A union of several types is a struct with one nullable member for each branch, as in Confluent's
  converters and Spark's `from_avro`. Members have Confluent's names: the name of the record, enum
  or fixed type, or else Avro's type (`string`, `long`, `array`, ...).
- A member that refers to an enclosing record is a column of JSON text, and so is a record without
  fields: no table or file keeps a row of which no column exists.

A column of Avro's type `null` is text that is always null: Parquet, Hudi and Iceberg have no such
type.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple, NoReturn

import pyarrow as pa

from sidetier.pipeline.export.values.avro_schema import LOGICAL_TYPES, PLAIN_TYPES
from sidetier.pipeline.export.values.decoder import UnfitError
from sidetier.pipeline.export.values.json_texts import text_of
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.json_text import parse_json

Convert = Callable[[Any], Any]
"""Converts what fastavro reads to what Arrow takes; raises ValueError for a value that does not
fit.
"""

MARK: Final = "sidetier"
"""Logical type of marked values in a schema of `marked`."""
_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_UNNAMED: Final = frozenset({"null", "array", "map", *PLAIN_TYPES})
_COLUMN_TYPES: Final = {**PLAIN_TYPES, "null": pa.string()}
MARKED_TYPES: Final = (_UNNAMED | {"fixed"}) - {"null"}
"""Avro types whose values can be marked."""
_PROMOTED: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""Types as which values of a type can be read: "Schema Resolution" in Avro's specification."""
_FEW_DIGITS: Final = 38
_MAX_DIGITS: Final = 76
"""Most digits of a 256-bit decimal; `_FEW_DIGITS` is that of a 128-bit decimal."""
_UNITS_PER_SECOND: Final = {"millis": 1_000, "micros": 1_000_000}
_DAY_SECONDS: Final = 86_400
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31, in days since 1970."""


class Marked(NamedTuple):
    """A value in its encoded form, with the writer's schema for it."""

    data: Any
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AvroColumn:
    """The column for values of a schema.

    Attributes:
        type: Arrow type of the column.
        convert: converts what fastavro reads, marked or not.
        has_recursion: whether a part of the column is JSON text.
        has_unions: whether a part of the column is a union of several types.
    """

    type: pa.DataType
    convert: Convert
    has_recursion: bool
    has_unions: bool


def column_of(schema: Any, *, marks: bool = True) -> AvroColumn:  # noqa: ANN401 -- JSON
    """Return the column for values of a schema.

    Without `marks`, values must come without marks and without type names.

    Raises:
        ConfigurationError: no column can hold the values.
    """
    reader = _Reader(marks=marks)
    try:
        kind, convert = reader.column(schema, "value", "")
    except RecursionError:
        raise ConfigurationError("the Avro schema: is nested too deep") from None
    return AvroColumn(kind, convert, reader.has_recursion, reader.has_unions)


def marked(schema: Any, *, logical: bool) -> Any:  # noqa: ANN401
    """Return the schema without logical types, and with marks.

    Members of a union of several types are marked. With `logical`, types that had a logical type
    are marked too.
    """
    if isinstance(schema, list):
        several = sum(not _is_null(part) for part in schema) > 1
        members = [marked(part, logical=logical) for part in schema]
        return [_with_mark(part) for part in members] if several else members
    if not isinstance(schema, Mapping):
        return schema
    parts = ("type", "items", "values")
    plain = {
        name: marked(part, logical=logical) if name in parts and not isinstance(part, str) else part
        for name, part in schema.items()
        if name != "logicalType"
    }
    if isinstance(plain.get("fields"), list):
        plain["fields"] = [marked(part, logical=logical) for part in schema["fields"]]
    if not logical or not _is_logical(schema):
        return plain
    return {**plain, "logicalType": MARK, "was": schema["logicalType"]}


def _with_mark(schema: Any) -> Any:  # noqa: ANN401
    """Mark a branch of a union. Named types need no mark: fastavro returns their names."""
    if isinstance(schema, str):
        known = schema in _UNNAMED and schema != "null"
        return {"type": schema, "logicalType": MARK} if known else schema
    if isinstance(schema, Mapping) and schema.get("type") in tuple(_UNNAMED):
        return {**schema, "logicalType": MARK}
    return schema


def _is_null(schema: Any) -> bool:  # noqa: ANN401
    while isinstance(schema, Mapping):
        schema = schema.get("type")
    return bool(schema == "null")


def _is_logical(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    logical = schema.get("logicalType")
    if logical == "decimal":
        return kind in {"bytes", "fixed"} and isinstance(schema.get("precision"), int)
    return isinstance(kind, str) and (kind, logical) in LOGICAL_TYPES


def _full_name(schema: Mapping[str, Any], space: str) -> str:
    name = str(schema.get("name", ""))
    space = str(schema.get("namespace", space))
    return name if "." in name or not space else f"{space}.{name}"


@dataclass(frozen=True, slots=True)
class _Branch:
    """One branch of a union of several types.

    Attributes:
        name: full name of a named type; empty for other types.
    """

    kind: str
    name: str
    member: str
    type: pa.DataType
    convert: Convert


class _Reader:
    def __init__(self, *, marks: bool) -> None:
        self._marks = marks
        self._named: dict[str, tuple[pa.DataType, Convert, str] | None] = {}
        """None while a type is being read. A reference to it is then recursive."""
        self.has_recursion = False
        self.has_unions = False

    def column(self, schema: Any, path: str, space: str) -> tuple[pa.DataType, Convert]:  # noqa: ANN401
        if isinstance(schema, list):
            return self._union(schema, path, space)
        if isinstance(schema, str):
            if schema in _COLUMN_TYPES:
                return _COLUMN_TYPES[schema], _bytes if schema == "bytes" else _bare
            return self._reference(schema, path, space)[:2]
        if not isinstance(schema, Mapping) or "type" not in schema:
            _refuse(path, f"{schema!r} is not a schema")
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.column(kind, path, space)
        if kind in _NAMED:
            return self._named_type(kind, schema, path, space)
        return self._unnamed_type(kind, schema, path, space)

    def _unnamed_type(
        self, kind: str, schema: Mapping[str, Any], path: str, space: str
    ) -> tuple[pa.DataType, Convert]:
        if kind == "array":
            item, convert = self.column(schema["items"], f"{path}[]", space)
            return pa.list_(item), convert if self._keeps(convert) else _array(convert)
        if kind == "map":
            value, convert = self.column(schema["values"], f"{path}.*", space)
            kept = self._keeps(convert)
            return pa.map_(pa.string(), value), convert if kept else _map(convert)
        return _logical(kind, schema, path) or self.column(kind, path, space)

    def _union(self, schema: list[Any], path: str, space: str) -> tuple[pa.DataType, Convert]:
        others = [branch for branch in schema if not _is_null(branch)]
        if not others:
            return self.column("null", path, space)
        if len(others) == 1:
            kind, convert = self.column(others[0], path, space)
            return kind, _or_null(convert)
        self.has_unions = True
        branches = [self._branch(branch, path, space) for branch in others]
        members = [branch.member for branch in branches]
        if len(set(members)) < len(members):
            members = [branch.name.replace(".", "_") or branch.kind for branch in branches]
        fields = [pa.field(n, branch.type) for n, branch in zip(members, branches, strict=True)]
        return pa.struct(fields), _several(list(zip(members, branches, strict=True)))

    def _branch(self, schema: Any, path: str, space: str) -> _Branch:  # noqa: ANN401
        while isinstance(schema, Mapping) and not isinstance(schema.get("type"), str):
            schema = schema.get("type")
        if isinstance(schema, str) and schema not in _UNNAMED:
            kind, convert, branch_kind = self._reference(schema, path, space)
            full = self._known_as(schema, space)
            return _Branch(branch_kind, full, full.rpartition(".")[2], kind, convert)
        branch_kind = schema if isinstance(schema, str) else str(schema.get("type"))
        full = _full_name(schema, space) if branch_kind in _NAMED else ""
        member = full.rpartition(".")[2] or branch_kind
        return _Branch(branch_kind, full, member, *self.column(schema, f"{path}.{member}", space))

    def _named_type(
        self, kind: str, schema: Mapping[str, Any], path: str, space: str
    ) -> tuple[pa.DataType, Convert]:
        full = _full_name(schema, space)
        self._named[full] = None
        column: tuple[pa.DataType, Convert]
        if kind in {"record", "error"}:
            column = self._record(schema, path, full.rpartition(".")[0])
        elif kind == "enum":
            column = pa.string(), _bare
        else:
            column = _logical("bytes", schema, path) or (pa.binary(int(schema["size"])), _bytes)
        self._named[full] = (*column, kind)
        return column

    def _record(
        self, schema: Mapping[str, Any], path: str, space: str
    ) -> tuple[pa.DataType, Convert]:
        columns = {
            field["name"]: self.column(field["type"], f"{path}.{field['name']}", space)
            for field in schema["fields"]
        }
        if not columns:
            return pa.string(), _json_text
        fields = [pa.field(name, kind) for name, (kind, _) in columns.items()]
        converts = [
            (name, convert) for name, (_, convert) in columns.items() if not self._keeps(convert)
        ]
        defaults = {
            field["name"]: field["default"] for field in schema["fields"] if "default" in field
        }
        kept = not converts and not defaults
        return pa.struct(fields), _bare if kept else _struct(len(columns), converts, defaults)

    def _keeps(self, convert: Convert) -> bool:
        """Return whether Arrow takes the values as they are, so that no conversion is needed."""
        return convert is _bare and not self._marks

    def _known_as(self, name: str, space: str) -> str:
        return next(
            (full_name for full_name in (f"{space}.{name}", name) if full_name in self._named), name
        )

    def _reference(self, name: str, path: str, space: str) -> tuple[pa.DataType, Convert, str]:
        full = self._known_as(name, space)
        if full not in self._named:
            _refuse(path, f"there is no type {name!r}")
        known = self._named[full]
        if known is not None:
            return known
        self.has_recursion = True
        return pa.string(), _json_text, "record"


def _logical(kind: str, schema: Mapping[str, Any], path: str) -> tuple[pa.DataType, Convert] | None:
    logical = str(schema.get("logicalType"))
    if logical == "decimal" and kind == "bytes" and isinstance(schema.get("precision"), int):
        scale = int(schema.get("scale", 0))
        decimal = _decimal_type(int(schema["precision"]), scale, path)
        return decimal, _decimal(scale, decimal.precision)
    if (kind, logical) not in LOGICAL_TYPES:
        return None
    return LOGICAL_TYPES[kind, logical], _date if logical == "date" else _clock(logical)


def _decimal_type(precision: int, scale: int, path: str) -> pa.DataType:
    if scale > _MAX_DIGITS:
        _refuse(path, f"a decimal of scale {scale} cannot be a column: {_MAX_DIGITS} at most")
    kind = pa.decimal128 if precision <= _FEW_DIGITS else pa.decimal256
    return kind(min(precision, _MAX_DIGITS), scale)


def _refuse(path: str, reason: str) -> NoReturn:
    raise ConfigurationError(f"the Avro schema: {path}: {reason}")


def _bare(value: Any) -> Any:  # noqa: ANN401
    """Return the encoded value, without mark. fastavro returns named types of a union as tuples."""
    if type(value) is tuple:
        value = value[1]
    return value.data if type(value) is Marked else value


def _or_null(convert: Convert) -> Convert:
    return convert if convert is _bare else lambda value: None if value is None else convert(value)


def _bytes(value: Any) -> Any:  # noqa: ANN401
    """Return bytes. fastavro returns defaults as in JSON, where a character stands for a byte."""
    data = _bare(value)
    return data.encode("latin-1") if type(data) is str else data


def _struct(
    count: int, members: Sequence[tuple[str, Convert]], defaults: Mapping[str, Any]
) -> Convert:
    """Return a conversion of records. A record that is a default value may lack members with
    defaults.
    """

    def take(value: Any) -> Any:  # noqa: ANN401
        record = _bare(value)
        if len(record) < count:
            record = {**defaults, **record}
        if not members:
            return record
        record = dict(record)  # a default is the same object in each record
        name = ""
        try:
            for name, convert in members:
                record[name] = convert(record[name])
        except UnfitError as error:
            raise error.within(f".{name}") from None
        return record

    return take


def _array(convert: Convert) -> Convert:
    def take(value: Any) -> Any:  # noqa: ANN401
        try:
            return [convert(item) for item in _bare(value)]
        except UnfitError as error:
            raise error.within("[]") from None

    return take


def _map(convert: Convert) -> Convert:
    def take(value: Any) -> Any:  # noqa: ANN401
        try:
            return [(name, convert(item)) for name, item in _bare(value).items()]
        except UnfitError as error:
            raise error.within(".*") from None

    return take


def _several(branches: Sequence[tuple[str, _Branch]]) -> Convert:
    def take(value: Any) -> Any:  # noqa: ANN401
        if value is None:
            return None
        member, branch = _chosen(branches, value)
        try:
            return {member: branch.convert(value)}
        except UnfitError as error:
            raise error.within(f".{member}") from None

    return take


def _chosen(branches: Sequence[tuple[str, _Branch]], value: Any) -> tuple[str, _Branch]:  # noqa: ANN401
    """Return the branch as which a value was read.

    fastavro names the branch of a named type. Otherwise it is the first branch as which the
    writer's type can be read, by fastavro's own rules.
    """
    if type(value) is tuple:
        return next(branch for branch in branches if branch[1].name == value[0])
    kinds = (str(value.schema["type"]),) if type(value) is Marked else _kinds_of(value)
    for kind in (*kinds, *_PROMOTED.get(kinds[0], ())):
        for branch in branches:
            if branch[1].kind == kind:
                return branch
    raise UnfitError(f"has the type {kinds[0]}, which no branch of the union takes")


def _kinds_of(value: object) -> tuple[str, ...]:
    """Return the Avro types that a value may have, if its writer has no union of several types
    there.
    """
    for python, kinds in _KINDS:
        if isinstance(value, python):
            return kinds
    return ("null",)


_KINDS: Final[tuple[tuple[type, tuple[str, ...]], ...]] = (
    (bool, ("boolean",)),
    (int, ("long", "int")),
    (float, ("double", "float")),
    (bytes, ("bytes", "fixed")),
    (str, ("string", "enum")),
    (list, ("array",)),
    (dict, ("record", "map", "error")),
)


def _decimal(scale: int, digits: int) -> Convert:
    """Return a conversion to decimals. Arrow refuses those with other digits after the point."""

    def take(value: Any) -> Decimal:  # noqa: ANN401
        if type(value) is tuple:
            value = value[1]
        written = _written(value)
        places = int(value.schema.get("scale", 0)) if written == "decimal" else scale
        unscaled = int.from_bytes(_bytes(value), "big", signed=True)
        if abs(unscaled) >= 10 ** (digits + places - scale):
            raise UnfitError(f"has more than {digits} digits")
        return Decimal(f"{unscaled}E-{places}")

    return take


def _written(value: Any) -> str | None:  # noqa: ANN401
    """Return the logical type in the writer's schema."""
    return value.schema.get("was") if type(value) is Marked else None


def _date(value: Any) -> int:  # noqa: ANN401
    days = int(_bare(value))
    if not _FIRST_DAY <= days <= _LAST_DAY:
        raise UnfitError(f"is {days} days since 1970, which is not a date of the years 1 to 9999")
    return days


def _clock(logical: str) -> Convert:
    """Return a conversion of times of day and timestamps. Another unit of the writer is
    converted.
    """
    family, _, unit = logical.rpartition("-")
    second = _UNITS_PER_SECOND[unit]
    if family == "time":
        least, most, description = 0, _DAY_SECONDS * second - 1, "time of a day"
    else:
        least, most = (
            _FIRST_DAY * _DAY_SECONDS * second,
            (_LAST_DAY + 1) * _DAY_SECONDS * second - 1,
        )
        description = "time of the years 1 to 9999"

    def take(value: Any) -> int:  # noqa: ANN401
        number = int(_bare(value))
        _, _, of_writer = (_written(value) or "").rpartition("-")
        number = number * second // _UNITS_PER_SECOND.get(of_writer, second)
        if not least <= number <= most:
            raise UnfitError(f"is {number} {unit}, which is no {description}")
        return number

    return take


def _json_text(value: Any) -> str:  # noqa: ANN401
    return text_of(_plain(value))


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Return a value of any schema in a form that can be written as JSON."""
    bare = _bare(value)
    if isinstance(bare, dict):
        return {name: _plain(inner) for name, inner in bare.items()}
    if isinstance(bare, list):
        return [_plain(inner) for inner in bare]
    written = _written(value)
    return bare if written is None else _meant(value, written)


def _meant(value: Marked, written: str) -> object:
    """Return the logical value of a marked number or marked bytes."""
    if written == "decimal":
        return _decimal(0, _MAX_DIGITS)(value)
    if written == "date":
        return pa.scalar(_date(value), pa.date32()).as_py()
    number = _clock(written)(value)
    kind = LOGICAL_TYPES[str(value.schema["type"]), written]
    meaning = pa.scalar(number, kind).as_py()
    return meaning.astimezone(UTC) if isinstance(meaning, datetime) and meaning.tzinfo else meaning


def required_fields(schema: Any) -> frozenset[str]:  # noqa: ANN401
    """Return the fields of a record that may not be null; none if the schema is not a record."""
    if not isinstance(schema, Mapping) or schema.get("type") not in tuple({"record", "error"}):
        return frozenset()
    return frozenset(field["name"] for field in schema["fields"] if not _takes_null(field["type"]))


def _takes_null(schema: Any) -> bool:  # noqa: ANN401
    if isinstance(schema, Mapping):
        schema = schema.get("type")
    return _is_null(schema) or (isinstance(schema, list) and any(map(_is_null, schema)))


def parsed_json(text: str) -> Any:  # noqa: ANN401
    """Parse a schema's JSON; raise ConfigurationError if it is invalid."""
    try:
        return parse_json(text)
    except ValueError as error:
        raise ConfigurationError(f"the Avro schema is not JSON: {error}") from None
