"""The file format that the options select."""

import re

from sidetier.pipeline.export.files.formats.avro import AvroForm
from sidetier.pipeline.export.files.formats.form import Form
from sidetier.pipeline.export.files.formats.lines import StreamForm, json_lines, json_values, raw
from sidetier.pipeline.export.files.formats.parquet import ParquetForm
from sidetier.pipeline.export.files.options import COMPRESSIONS, FileFormat, FilesOptions, Layout


def form_of(options: FilesOptions, topic: str) -> Form:
    """Return the format for files of a topic.

    Raises:
        ConfigurationError: a package that it needs is not installed.
    """
    compression = options.compression or COMPRESSIONS[options.format][0]
    if options.format is FileFormat.PARQUET:
        return ParquetForm(compression)
    if options.format is FileFormat.AVRO:
        return AvroForm(compression, re.sub(r"\W", "_", f"r_{topic}", flags=re.ASCII))
    if options.format is FileFormat.RAW:
        return StreamForm("bin", raw(options.delimiter, options.key_delimiter), compression)
    bare = options.layout is Layout.VALUE and not options.has_fields
    return StreamForm("json", json_values if bare else json_lines, compression)
