"""Parquet files."""

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from sidetier.pipeline.export.files.formats.form import FileWriter

_EXTENSIONS: Final = {"gzip": "gz.parquet", "none": "parquet"}
"""Extensions in Confluent's sink connector. Other codecs have their name and `.parquet`."""


class ParquetForm:
    """Parquet files. Each write becomes a row group."""

    def __init__(self, compression: str) -> None:
        self._compression = compression
        self.extension = _EXTENSIONS.get(compression, f"{compression}.parquet")

    def open(self, path: Path, schema: pa.Schema) -> FileWriter:
        """See `Form.open`."""
        return _Writer(pq.ParquetWriter(path, schema, compression=self._compression))


class _Writer:
    def __init__(self, writer: pq.ParquetWriter) -> None:
        self._writer = writer

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))

    def close(self) -> None:
        self._writer.close()
