"""Avro container files. fastavro writes the container; rows are encoded column by column."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa

from sidetier.pipeline.export.files.formats.avro_records import records
from sidetier.pipeline.export.files.formats.form import FileWriter
from sidetier.pipeline.export.files.formats.fragments import content, ends, stretches
from sidetier.pipeline.export.files.values.avro_schema import avro_schema
from sidetier.segments.errors import ConfigurationError

_MARKER_BYTES: Final = 16
_BLOCK_BYTES: Final = 16_000
"""A block ends with the record that reaches this size. It is fastavro's default."""


class AvroForm:
    """Avro container files. The schema is derived from the columns of the rows."""

    extension = "avro"

    def __init__(self, codec: str, name: str) -> None:
        """Create the format; `name` is the record's name in the schema.

        Raises:
            ConfigurationError: fastavro is not installed.
        """
        try:
            import fastavro  # noqa: F401, PLC0415 -- an extra; fail before anything is written
        except ModuleNotFoundError:
            raise ConfigurationError(
                "Avro files need fastavro, which is not installed: pip install 'sidetier[export]'"
            ) from None
        self._codec = codec
        self._name = name

    def open(self, path: Path, schema: pa.Schema) -> FileWriter:
        """See `Form.open`. Raises ConfigurationError if Avro does not allow a column's name."""
        from fastavro.write import Writer  # noqa: PLC0415

        avro = avro_schema(schema, self._name)
        file = path.open("wb")
        # fastavro's default sync marker is random. A fixed one makes equal rows give equal files.
        marker = bytes(_MARKER_BYTES)
        return _Writer(file, Writer(file, avro, codec=self._codec, sync_marker=marker))


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of encoded records, with the attributes that fastavro's `write_block` reads."""

    num_records: int
    bytes_: io.BytesIO


class _Writer:
    def __init__(self, file: BinaryIO, writer: Any) -> None:  # noqa: ANN401 -- a class in C
        self._file = file
        self._writer = writer
        self._records = 0
        self._waiting = bytearray()

    def write(self, rows: pa.Table) -> None:
        for batch in stretches(rows):
            self._add(records(batch.to_struct_array()))

    def _add(self, encoded: pa.Array) -> None:
        bounds = ends(encoded)
        data, before = content(encoded), int(bounds[0])
        first, count = 0, len(encoded)
        while first < count:
            wanted = int(bounds[first]) + _BLOCK_BYTES - len(self._waiting)
            until = min(int(np.searchsorted(bounds[first + 1 :], wanted)) + first + 1, count)
            self._waiting += data[int(bounds[first]) - before : int(bounds[until]) - before]
            self._records += until - first
            first = until
            if len(self._waiting) >= _BLOCK_BYTES:
                self._put()

    def _put(self) -> None:
        self._writer.write_block(_Block(self._records, io.BytesIO(self._waiting)))
        self._records, self._waiting = 0, bytearray()

    def close(self) -> None:
        if self._records:
            self._put()
        self._writer.flush()
        self._file.close()
