"""What reads values, and what it says of those that it cannot read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

BUILD_ERRORS: Final = (pa.ArrowException, ValueError, TypeError, OverflowError)


@dataclass(frozen=True, slots=True)
class Misfit:
    """The row at this place of a batch cannot be used, and why."""

    row: int
    reason: str


@dataclass(frozen=True, slots=True)
class DecodedValues:
    """As many values as were given, null where one was null or does not fit."""

    values: pa.Array
    misfits: tuple[Misfit, ...] = ()


class ValueDecoder(Protocol):
    """Reads the values of records; the same bytes always give the same value."""

    @property
    def type(self) -> pa.DataType:
        """What values become."""
        ...

    @property
    def required(self) -> frozenset[str]:
        """The fields that each value has by its schema, and that are not null."""
        ...

    def decode(self, values: pa.Array) -> DecodedValues:
        """Values as binary, of one batch; raises nothing for any bytes."""
        ...


class BytesDecoder:
    """Values as they are."""

    type: Final = pa.binary()
    required: Final[frozenset[str]] = frozenset()

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder`."""
        return DecodedValues(values)


class StringDecoder:
    """Values that are UTF-8."""

    type: Final = pa.string()
    required: Final[frozenset[str]] = frozenset()

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder`."""
        try:
            return DecodedValues(values.cast(pa.string()))
        except pa.ArrowInvalid:
            return decode_each(values, self.type, bytes.decode)


def lacking(decoder: ValueDecoder, values: pa.Array) -> list[Misfit]:
    """The records without a value, where fields of the value are to be columns, and one of them is
    required.
    """
    if not decoder.required or not values.null_count:
        return []
    reason = f"record has no value, and its field {min(decoder.required)} is required"
    rows = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
    return [Misfit(int(row), reason) for row in rows]


def decode_each(
    values: pa.Array, kind: pa.DataType, parse: Callable[[bytes], object]
) -> DecodedValues:
    """Each value by itself; `parse` raises ValueError where it does not fit."""
    rows: list[object] = []
    misfits: list[Misfit] = []
    for row, data in enumerate(values.to_pylist()):
        try:
            rows.append(None if data is None else parse(data))
        except ValueError as error:
            rows.append(None)
            misfits.append(Misfit(row, _reason(error)))
    built, refused = build(rows, kind)
    return DecodedValues(built, tuple(sorted((*misfits, *refused), key=lambda one: one.row)))


def build(rows: Sequence[object], kind: pa.DataType) -> tuple[pa.Array, list[Misfit]]:
    """An array of values that should all fit; where Arrow refuses one, it is found and left out."""
    try:
        return pa.array(rows, type=kind), []
    except BUILD_ERRORS:
        misfits = list(_refused(rows, kind))
        bad = {one.row for one in misfits}
        kept: list[Any] = [None if row in bad else value for row, value in enumerate(rows)]
        return pa.array(kept, type=kind), misfits


def _refused(rows: Sequence[object], kind: pa.DataType) -> Iterator[Misfit]:
    for row, value in enumerate(rows):
        try:
            pa.array([value], type=kind)
        except BUILD_ERRORS as error:
            yield Misfit(row, f"value does not fit {kind}: {_reason(error)}")


def _reason(error: BaseException) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"value is no UTF-8 text: byte {error.start} is 0x{error.object[error.start]:02X}"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
