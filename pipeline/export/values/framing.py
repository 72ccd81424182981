"""Confluent's wire format: a zero byte, the writer's schema id (4 bytes, big-endian), and the
value.
"""

import struct
from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sidetier.pipeline.export.values.references import UnusableSchemaError
from sidetier.segments.errors import ConfigurationError

_MAGIC: Final = 0
_HEADER: Final = struct.Struct(">bI")
HEADER_BYTES: Final = _HEADER.size
NO_SCHEMA: Final = -1
"""Replaces an id if there is no value, or if the value has no header."""

WriterSchema = Callable[[int], str | None]
"""Returns the text of the schema with an id; None if the id is unknown.

Raises UnusableSchemaError if no value can be read with the schema, and StoreUnavailableError if a
registry does not answer.
"""

_Parsed = TypeVar("_Parsed")


class Framing:
    """Splits values into schema id and payload. Each schema is looked up once, also if
    that fails.
    """

    def __init__(self, kind: str, writer: WriterSchema) -> None:
        """Create the framing; `kind` names the values in errors, for example `Avro`."""
        self._kind = kind
        self._writer = writer
        self._known: dict[int, Any] = {}
        self._unusable: dict[int, str] = {}

    def split(self, data: bytes) -> tuple[int, bytes]:
        """Return the id of a value's schema, and the bytes after the header.

        Raises:
            ValueError: the value has no header.
        """
        if len(data) < _HEADER.size or data[0] != _MAGIC:
            raise ValueError(
                f"value is not {self._kind} in Confluent's wire format: it lacks its header"
            )
        return _HEADER.unpack_from(data)[1], data[_HEADER.size :]

    def parsed(self, number: int, parse: Callable[[str], _Parsed]) -> _Parsed:
        """Return the result of `parse` for a schema's text. It is cached for all values.

        Raises:
            ValueError: there is not a schema with this id, or values cannot be read with it.
            StoreUnavailableError, ConfigurationError: the registry does not answer, or refuses the
                request.
        """
        if number not in self._known and number not in self._unusable:
            self._look_up(number, parse)
        if number in self._unusable:
            raise ValueError(
                f"value has the {self._kind} schema {number}: {self._unusable[number]}"
            )
        schema: _Parsed = self._known[number]
        return schema

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


def schema_ids(values: pa.Array) -> Any:  # noqa: ANN401 -- an array of numpy
    """Return the schema id of each value; `NO_SCHEMA` if it has none."""
    ids = np.full(len(values), NO_SCHEMA, dtype=np.int64)
    framed = pc.fill_null(pc.greater_equal(pc.binary_length(values), _HEADER.size), False)  # noqa: FBT003
    rows = np.flatnonzero(framed.to_numpy(zero_copy_only=False))
    if not len(rows):
        return ids
    heads = b"".join(pc.binary_slice(values.take(pa.array(rows)), 0, _HEADER.size).to_pylist())
    parts = np.frombuffer(heads, dtype=np.dtype([("magic", "u1"), ("id", ">u4")]))
    ids[rows] = np.where(parts["magic"] == _MAGIC, parts["id"].astype(np.int64), NO_SCHEMA)
    return ids
