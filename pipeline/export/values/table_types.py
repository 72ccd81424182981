"""The columns of Spark's tables for decoded values. Files hold decoded values as they are.

Spark has times in microseconds only, no time of day, no bytes of a fixed size, and decimals of 38
digits. A type that it does not have becomes the type that encodes it, as in Spark's own reader of
Avro; a decimal keeps its scale, and a value with more digits does not fit.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sidetier.pipeline.export.values.decoder import Misfit, UnfitError
from sidetier.pipeline.export.values.json_texts import as_list
from sidetier.segments.errors import ConfigurationError

MAX_DIGITS: Final = 38
_Column = Callable[[pa.DataType], pa.DataType]


def table_type(kind: pa.DataType, path: str = "value") -> pa.DataType:
    """Return the type of a table's column for decoded values of a type.

    Args:
        kind: the type of decoded values.
        path: name of the field, for errors.

    Raises:
        ConfigurationError: no column can hold the values. The message names the field.
    """
    if pa.types.is_struct(kind):
        members = [kind.field(at) for at in range(kind.num_fields)]
        return pa.struct(
            [field.with_type(table_type(field.type, f"{path}.{field.name}")) for field in members]
        )
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, table_type(kind.item_type, f"{path}.*"))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(table_type(kind.value_type, f"{path}[]")))
    if pa.types.is_decimal(kind):
        return _decimal(kind, path)
    return next((column(kind) for matches, column in _OTHERS if matches(kind)), kind)


_OTHERS: Final[tuple[tuple[Callable[[pa.DataType], bool], _Column], ...]] = (
    (pa.types.is_timestamp, lambda kind: pa.timestamp("us", kind.tz)),
    (pa.types.is_time32, lambda _kind: pa.int32()),
    (pa.types.is_time64, lambda _kind: pa.int64()),
    (pa.types.is_fixed_size_binary, lambda _kind: pa.binary()),
)
"""Types that Spark does not have, and the types of their columns."""


def _decimal(kind: pa.DataType, path: str) -> pa.DataType:
    if kind.scale > MAX_DIGITS:
        raise ConfigurationError(
            f"{path} is a decimal with {kind.scale} digits after the point, and a column of a "
            f"table has {MAX_DIGITS} digits at most: leave the field out with a schema "
            "(--value-schema)"
        )
    return pa.decimal128(min(kind.precision, MAX_DIGITS), kind.scale)


def table_values(
    values: pa.Array, kind: pa.DataType, path: str = "value"
) -> tuple[pa.Array, list[Misfit]]:
    """Return decoded values in the type of a table's column; null for those that do not fit."""
    if values.type == kind:
        return values, []
    try:
        return _converted(values, kind), []
    # Arrow does not name the value that it refuses, so each is tried alone.
    except UnfitError:
        misfits = list(_refused(values, kind, path))
        rows = np.arange(len(values))
        bad = np.isin(rows, [misfit.row for misfit in misfits])
        return _converted(values.take(pa.array(rows, mask=bad)), kind), misfits


def _refused(values: pa.Array, kind: pa.DataType, path: str) -> list[Misfit]:
    misfits = []
    for row in range(len(values)):
        try:
            _converted(values.slice(row, 1), kind)
        except UnfitError as error:
            misfits.append(Misfit(row, f"{path}{error.path} {error.said}"))
    return misfits


def _converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert values at any depth.

    Raises:
        UnfitError: a value does not fit.
    """
    if values.type == kind:
        return values
    if pa.types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        members = [
            _within(member, field.type, f".{field.name}")
            for member, field in zip(values.flatten(), fields, strict=True)
        ]
        return pa.StructArray.from_arrays(members, fields=fields, mask=values.is_null())
    if pa.types.is_map(kind):
        pairs = as_list(values)
        keys, items = pairs.flatten().flatten()
        items = _within(items, kind.item_type, ".*")
        return pa.MapArray.from_arrays(_offsets(pairs), keys, items, type=kind)
    if pa.types.is_list(kind):
        items = _within(values.flatten(), kind.value_type, "[]")
        return pa.ListArray.from_arrays(_offsets(values), items, type=kind)
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        raise UnfitError(f"has more than {MAX_DIGITS} digits, the most of a table") from None


def _within(values: pa.Array, kind: pa.DataType, step: str) -> pa.Array:
    try:
        return _converted(values, kind)
    except UnfitError as error:
        raise error.within(step) from None


def _offsets(lists: pa.Array) -> pa.Array:
    """Return the offsets of the flattened items; null where the list is null."""
    ends = np.cumsum(pc.fill_null(pc.list_value_length(lists), 0).to_numpy(), dtype=np.int32)
    mask = lists.is_null().to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate([[0], ends]), pa.int32(), mask=np.append(mask, False))
