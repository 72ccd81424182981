"""Parquet files."""

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from sidetier.pipeline.export.files.formats.form import FileWriter

_EXTENSIONS: Final = {"gzip": "gz.parquet", "none": "parquet"}
"""As Confluent's sink names them; others are the codec's name and `.parquet`."""


class ParquetForm:
    """A row group for each write."""

    def __init__(self, compression: str) -> None:
        self._compression = compression
        self.extension = _EXTENSIONS.get(compression, f"{compression}.parquet")

    def open(self, path: Path, schema: pa.Schema) -> FileWriter:
        """See `Form`."""
        return _Writer(pq.ParquetWriter(path, schema, compression=self._compression))


class _Writer:
    def __init__(self, writer: pq.ParquetWriter) -> None:
        self._writer = writer

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))

    def close(self) -> None:
        self._writer.close()
