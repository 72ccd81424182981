"""Avro container files: fastavro makes the container, rows are encoded a column at a time."""

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
"""A block ends with the record that makes it as large; fastavro's own size."""


class AvroForm:
    """A container with the schema of its rows, which follows from their columns."""

    extension = "avro"

    def __init__(self, codec: str, name: str) -> None:
        """`name` is that of the record in the schema.

        Raises:
            ConfigurationError: fastavro is not installed.
        """
        try:
            import fastavro  # noqa: F401, PLC0415 -- an extra, wanted before anything is written
        except ModuleNotFoundError:
            raise ConfigurationError(
                "Avro files need fastavro, which is not installed: pip install 'sidetier[export]'"
            ) from None
        self._codec = codec
        self._name = name

    def open(self, path: Path, schema: pa.Schema) -> FileWriter:
        """See `Form`; raises ConfigurationError where a column's name is none that Avro allows."""
        from fastavro.write import Writer  # noqa: PLC0415

        avro = avro_schema(schema, self._name)
        file = path.open("wb")
        # The marker between blocks is random unless given: equal rows give equal files.
        marker = bytes(_MARKER_BYTES)
        return _Writer(file, Writer(file, avro, codec=self._codec, sync_marker=marker))


@dataclass(frozen=True, slots=True)
class _Block:
    """As fastavro takes one."""

    num_records: int
    bytes_: io.BytesIO


class _Writer:
    def __init__(self, file: BinaryIO, writer: Any) -> None:  # noqa: ANN401 -- a class of C
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
