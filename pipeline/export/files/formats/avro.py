"""Avro container files, by fastavro."""

from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from sidetier.pipeline.export.files.formats.form import FileWriter
from sidetier.pipeline.export.files.values.avro_schema import avro_schema
from sidetier.segments.errors import ConfigurationError

_MARKER_BYTES = 16


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


class _Writer:
    def __init__(self, file: BinaryIO, writer: Any) -> None:  # noqa: ANN401 -- a class of C
        self._file = file
        self._writer = writer

    def write(self, rows: pa.Table) -> None:
        for row in rows.to_pylist(maps_as_pydicts="strict"):
            self._writer.write(row)

    def close(self) -> None:
        self._writer.flush()
        self._file.close()
