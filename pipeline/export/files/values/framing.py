"""Confluent's wire format: a zero byte, the id of the writer's schema in 4 bytes, and the value."""

import struct
from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sidetier.pipeline.export.files.values.references import UnusableSchemaError
from sidetier.segments.errors import ConfigurationError

_MAGIC: Final = 0
_HEADER: Final = struct.Struct(">bI")
NO_SCHEMA: Final = -1
"""In place of an id: there is no value, or it has no header."""

WriterSchema = Callable[[int], str | None]
"""The text of the schema with an id; None where it is not known. Raises UnusableSchemaError where
there is one, but none to read values with, and StoreUnavailableError where a registry does not
answer."""

_Parsed = TypeVar("_Parsed")


class Framing:
    """Takes values apart, and looks each schema up once, whatever comes of it."""

    def __init__(self, kind: str, writer: WriterSchema) -> None:
        """`kind` is what values are called in errors: `Avro`."""
        self._kind = kind
        self._writer = writer
        self._known: dict[int, Any] = {}
        self._unusable: dict[int, str] = {}

    def split(self, data: bytes) -> tuple[int, bytes]:
        """The id of a value's schema, and what is behind the header; raises ValueError."""
        if len(data) < _HEADER.size or data[0] != _MAGIC:
            raise ValueError(
                f"value is no {self._kind} in Confluent's wire format: it lacks its header"
            )
        return _HEADER.unpack_from(data)[1], data[_HEADER.size :]

    def parsed(self, number: int, parse: Callable[[str], _Parsed]) -> _Parsed:
        """What `parse` makes of a schema's text; the same for all values.

        Raises:
            ValueError: there is no schema of this id, or values cannot be read with it.
            StoreUnavailableError, ConfigurationError: the registry does not answer, or refuses us.
        """
        if number not in self._known and number not in self._unusable:
            self._look_up(number, parse)
        if number in self._unusable:
            raise ValueError(
                f"value has the {self._kind} schema {number}: {self._unusable[number]}"
            )
        found: _Parsed = self._known[number]
        return found

    def _look_up(self, number: int, parse: Callable[[str], object]) -> None:
        try:
            text = self._writer(number)
        except UnusableSchemaError as error:
            self._unusable[number] = str(error)
            return
        if text is None:
            self._unusable[number] = "it is not known"
            return
        try:
            self._known[number] = parse(text)
        except ConfigurationError as error:
            self._unusable[number] = str(error)


def schema_ids(values: pa.Array) -> Any:  # noqa: ANN401 -- of numpy
    """The id of each value's schema; `NO_SCHEMA` where it has none."""
    found = np.full(len(values), NO_SCHEMA, dtype=np.int64)
    framed = pc.fill_null(pc.greater_equal(pc.binary_length(values), _HEADER.size), False)  # noqa: FBT003
    rows = np.flatnonzero(framed.to_numpy(zero_copy_only=False))
    if not len(rows):
        return found
    heads = b"".join(pc.binary_slice(values.take(pa.array(rows)), 0, _HEADER.size).to_pylist())
    parts = np.frombuffer(heads, dtype=np.dtype([("magic", "u1"), ("id", ">u4")]))
    found[rows] = np.where(parts["magic"] == _MAGIC, parts["id"].astype(np.int64), NO_SCHEMA)
    return found
