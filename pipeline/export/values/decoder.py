"""Port of value decoders, and decoders of bytes and text."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from sidetier.segments.errors import ConfigurationError

BUILD_ERRORS: Final = (pa.ArrowException, ValueError, TypeError, OverflowError)


@dataclass(frozen=True, slots=True)
class Misfit:
    """A row of a batch that cannot be used, and the reason."""

    row: int
    reason: str


class UnfitError(ValueError):
    """A value that does not fit, and its path. The path is built only in this case."""

    def __init__(self, said: str, path: str = "") -> None:
        super().__init__(said, path)
        self.said = said
        self.path = path

    def within(self, step: str) -> "UnfitError":
        """Return the error with a path that starts one level further out."""
        return UnfitError(self.said, step + self.path)


@dataclass(frozen=True, slots=True)
class DecodedValues:
    """Decoded values, one for each input: null for a null and for a value that does not fit."""

    values: pa.Array
    misfits: tuple[Misfit, ...] = ()


class ValueDecoder(Protocol):
    """Decodes the values of records. The same bytes always give the same value."""

    @property
    def type(self) -> pa.DataType:
        """Arrow type of decoded values."""
        ...

    @property
    def required(self) -> frozenset[str]:
        """Fields that each value has according to its schema, and that are not null."""
        ...

    def decode(self, values: pa.Array) -> DecodedValues:
        """Decode the binary values of one batch. No input bytes make it raise."""
        ...


class BytesDecoder:
    """Passes values through as bytes."""

    type: Final = pa.binary()
    required: Final[frozenset[str]] = frozenset()

    def decode(self, values: pa.Array) -> DecodedValues:
        """Return the values themselves; every value fits."""
        return DecodedValues(values)


class StringDecoder:
    """Decodes UTF-8 values."""

    type: Final = pa.string()
    required: Final[frozenset[str]] = frozenset()

    def decode(self, values: pa.Array) -> DecodedValues:
        """Cast the whole batch; value by value only if one is not UTF-8."""
        try:
            return DecodedValues(values.cast(pa.string()))
        # Not to fail: each value is decoded alone, to find out which ones do not fit.
        except pa.ArrowInvalid:
            return decode_each(values, self.type, bytes.decode)


def with_fields(schema: pa.Schema, kind: pa.DataType) -> pa.Schema:
    """Return the columns of a record without its value, and after them the fields of its value.

    Raises:
        ConfigurationError: a field has the name of a column of the record, also in another case.
    """
    rest = schema.remove(schema.get_field_index("value"))
    fields = [kind.field(number) for number in range(kind.num_fields)]
    names = {name.lower() for name in rest.names}
    for field in fields:
        if field.name.lower() in names:
            raise ConfigurationError(
                f"the value's field {field.name} has the name of a column of the record: keep the "
                "value in one column"
            )
    return pa.schema([*rest, *(field.with_nullable(nullable=True) for field in fields)])


def lacking(decoder: ValueDecoder, values: pa.Array) -> list[Misfit]:
    """Return misfits for records without a value, if a field of the value is required."""
    if not decoder.required or not values.null_count:
        return []
    reason = f"record has no value, and its field {min(decoder.required)} is required"
    rows = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
    return [Misfit(int(row), reason) for row in rows]


def decode_each(
    values: pa.Array, kind: pa.DataType, parse: Callable[[bytes], object]
) -> DecodedValues:
    """Decode value by value. `parse` raises ValueError for a value that does not fit."""
    rows: list[object] = []
    misfits: list[Misfit] = []
    for row, data in enumerate(values.to_pylist()):
        try:
            rows.append(None if data is None else parse(data))
        except ValueError as error:
            rows.append(None)
            misfits.append(Misfit(row, _reason(error)))
    built, refused = build(rows, kind)
    return DecodedValues(built, tuple(sorted((*misfits, *refused), key=lambda misfit: misfit.row)))


def build(rows: Sequence[object], kind: pa.DataType) -> tuple[pa.Array, list[Misfit]]:
    """Build an array. Values that Arrow refuses become null and misfits."""
    try:
        return pa.array(rows, type=kind), []
    # Arrow does not name the value that it refuses, so each is tried alone.
    except BUILD_ERRORS:
        misfits = list(_refused(rows, kind))
        bad = {misfit.row for misfit in misfits}
        kept: list[Any] = [None if row in bad else value for row, value in enumerate(rows)]
        return pa.array(kept, type=kind), misfits


def _refused(rows: Sequence[object], kind: pa.DataType) -> Iterator[Misfit]:
    for row, value in enumerate(rows):
        try:
            pa.array([value], type=kind)
        except BUILD_ERRORS as error:
            path, part = _unfit_part(value, kind, "value")
            yield Misfit(row, f"{path} does not fit {part}: {_reason(error)}")


def _unfit_part(value: Any, kind: pa.DataType, path: str) -> tuple[str, pa.DataType]:  # noqa: ANN401
    """Return path and type of the innermost part that Arrow refuses."""
    parts: list[tuple[str, Any, pa.DataType]] = []
    if pa.types.is_struct(kind) and isinstance(value, dict):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        parts = [(f"{path}.{field.name}", value.get(field.name), field.type) for field in fields]
    elif pa.types.is_map(kind) and isinstance(value, list):
        parts = [(f"{path}.*", item, kind.item_type) for _, item in value]
    elif pa.types.is_list(kind) and isinstance(value, list):
        parts = [(f"{path}[]", item, kind.value_type) for item in value]
    for inner_path, inner, inner_kind in parts:
        try:
            pa.array([inner], type=inner_kind)
        except BUILD_ERRORS:
            return _unfit_part(inner, inner_kind, inner_path)
    return path, kind


def _reason(error: BaseException) -> str:
    if isinstance(error, UnfitError):
        return f"value{error.path} {error.said}"
    if isinstance(error, UnicodeDecodeError):
        return f"value is not UTF-8 text: byte {error.start} is 0x{error.object[error.start]:02X}"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
