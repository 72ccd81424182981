"""The write step: write the records of one Kafka partition's range to files on the store.

The files depend only on the range, the options and the records: a repeated task writes the same
files on any host.
"""

import base64
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sidetier.pipeline.export.errors import MisfitError, RecordCountError
from sidetier.pipeline.export.sinks.files.formats.avro import AvroForm
from sidetier.pipeline.export.sinks.files.formats.forms import (
    Form,
    ParquetForm,
    StreamForm,
    json_lines,
    json_values,
    lines,
    raw,
)
from sidetier.pipeline.export.sinks.files.manifest import NO_SCHEMAS, FileEntry, SchemaIds
from sidetier.pipeline.export.sinks.files.options import (
    COMPRESSIONS,
    FileFormat,
    FilesOptions,
    Layout,
)
from sidetier.pipeline.export.sinks.files.partitioners import Encoded, default_name
from sidetier.pipeline.export.sinks.files.rotation import FileGroups, Router, Rules
from sidetier.pipeline.export.sinks.files.rows import RowMaker, Rows
from sidetier.pipeline.export.sinks.files.upload import MEMORY, FileSet, FileUploader
from sidetier.pipeline.export.sinks.files.zones import Longs
from sidetier.pipeline.export.values.decoder import Misfit, ValueDecoder
from sidetier.pipeline.export.values.decoder_factory import registry_of
from sidetier.pipeline.export.values.evolution import SchemaTracker
from sidetier.pipeline.export.values.json_texts import text_of
from sidetier.pipeline.export.values.registry import RegistryConfig
from sidetier.segments.offsets import Offset, TopicPartition


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


DEAD_LETTER_SCHEMA = pa.schema([pa.field("letter", pa.string())])


def dead_letter_form() -> Form:
    """Return the format of dead-letter files: one JSON object per line."""
    return StreamForm("json", _render, "none")


def dead_letters(tp: TopicPartition, batch: pa.RecordBatch, misfits: Sequence[Misfit]) -> Rows:
    """Return the rows for records that do not fit. Keys, values and header values are base64."""
    chosen = batch.take(pa.array([misfit.row for misfit in misfits], type=pa.int64()))
    reasons = [misfit.reason for misfit in misfits]
    letters = [
        text_of(_letter(tp, row, reason))
        for row, reason in zip(chosen.to_pylist(), reasons, strict=True)
    ]
    count = len(letters)
    return Rows(
        chosen.column("offset").to_numpy(),
        np.zeros(count, dtype=np.int64),
        Encoded(np.zeros(count, dtype=np.intp), (default_name(tp.partition),)),
        pa.RecordBatch.from_arrays([pa.array(letters, pa.string())], schema=DEAD_LETTER_SCHEMA),
    )


def _render(rows: pa.Table) -> tuple[bytes, int]:
    return lines("".join(f"{line}\n" for line in rows.column("letter").to_pylist()).encode())


def _letter(tp: TopicPartition, row: dict[str, Any], reason: str) -> dict[str, object]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "offset": row["offset"],
        "timestamp": row["timestamp"],
        "timestamp_type": row["timestamp_type"],
        "reason": reason,
        "key": _base64(row["key"]),
        "value": _base64(row["value"]),
        "headers": [
            {"key": header["key"], "value": _base64(header["value"])} for header in row["headers"]
        ],
    }


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


COLUMNS: Final = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")
"""Columns of `RECORD_SCHEMA` for whole records."""
_VALUE_COLUMNS: Final = ("offset", "timestamp", "value")

Progress = Callable[[int, int], None]
"""Called after each batch with its number of records, and the offset after its last record."""


def columns_of(options: FilesOptions) -> tuple[str, ...]:
    """Return the columns of `RECORD_SCHEMA` to read. Dead letters need whole records."""
    if options.dead_letters is not None:
        return COLUMNS
    if options.format is FileFormat.RAW:
        return _VALUE_COLUMNS if options.key_delimiter is None else (*_VALUE_COLUMNS, "key")
    return _VALUE_COLUMNS if options.layout is Layout.VALUE else COLUMNS


@dataclass(frozen=True, slots=True)
class Written:
    """Result of writing a range.

    Attributes:
        files: files on the store, dead letters included.
        dead_letters: number of records that were written as dead letters.
        skipped: number of records without a value that were left out.
        until: with `whole_files`, the end offset of the last whole file, exclusive; None if no file
            is whole.
        schemas: schema ids of the last rows of the range, or of the last rows below `until`.
        read: number of records that were read, with `whole_files` only those below `until`.
    """

    files: tuple[FileEntry, ...] = ()
    dead_letters: int = 0
    skipped: int = 0
    until: Offset | None = None
    schemas: SchemaIds = NO_SCHEMAS
    read: int = 0

    def check(self, where: str) -> None:
        """Raise RecordCountError unless each record is in one file, or was left out."""
        held = sum(entry.records for entry in self.files)
        if held + self.skipped != self.read:
            raise RecordCountError(
                where,
                f"{self.read} records were read; the files have {held}, and {self.skipped} without "
                "a value were left out",
            )


def write_range(  # noqa: PLR0913 -- a parameter class would have one user
    tp: TopicPartition,
    options: FilesOptions,
    records: Iterable[pa.RecordBatch],
    sink: FileUploader,
    progress: Progress = lambda _records, _next_offset: None,
    *,
    memory: int = MEMORY,
    schemas: SchemaIds = NO_SCHEMAS,
    registry: RegistryConfig | None = None,
) -> Written:
    """Write the records of a range to files.

    Args:
        tp: the Kafka partition.
        options: names and contents of files.
        records: batches in order of offsets, with the columns of `columns_of`.
        sink: stores finished files.
        progress: called after each batch; see `Progress`.
        memory: most bytes of rows that wait to be written.
        schemas: schema ids of the last rows before this range.
        registry: connection to the schema registry.

    Raises:
        MisfitError: a record does not fit, and there is no directory for dead letters.
        RecordCountError: the files do not hold the records that were read.
        ConfigurationError: the options cannot be used with these values.
        ArchiveError, StorageError, OSError: see `FileUploader.put`; or reading `records`
            fails.
    """
    with ExitStack() as stack:
        kind = _WholeFiles if options.whole_files else _Step
        files = partial(FileSet, tp=tp, send=sink.put, memory=memory)
        step = kind(tp, options, files, schemas, registry)
        # Also on success: `_WholeFiles` leaves the files of an unfinished group open.
        stack.callback(step.abandon)
        read = 0
        for batch in records:
            step.take(batch)
            read += len(batch.column("offset"))
            if step.taken != read:
                raise RecordCountError(
                    str(tp), f"{read} records were read, and {step.taken} were taken over"
                )
            if batch.num_rows:
                progress(batch.num_rows, batch.column("offset")[-1].as_py() + 1)
        written = step.finish()
        written.check(str(tp))
        return written


class _Step:
    def __init__(
        self,
        tp: TopicPartition,
        options: FilesOptions,
        files: Callable[..., FileSet],
        schemas: SchemaIds,
        registry: RegistryConfig | None,
    ) -> None:
        self._tp = tp
        self._options = options
        self._new_files = files
        self._form = form_of(options, tp.topic)
        value, key = options.value, options.key
        self._values = SchemaTracker(value, registry_of(value, registry), schemas.value)
        self._keys = SchemaTracker(key, registry_of(key, registry), schemas.key)
        self._schemas = schemas
        self._sent: list[FileEntry] = []
        self._decoders = self._decoders_of(schemas)
        self._maker, self._files = self._opened()
        _, of_letters = self._rules(options)
        self._letters: FileSet | None = None
        if options.dead_letters is not None:
            self._letters = files(
                options.dead_letters,
                form=dead_letter_form(),
                schema=DEAD_LETTER_SCHEMA,
                router=Router(of_letters),
            )
        self._rows = self._dead = self._skipped = 0

    @property
    def taken(self) -> int:
        """Number of records that became a row or a dead letter, or were left out."""
        return self._rows + self._dead + self._skipped

    def _rules(self, options: FilesOptions) -> tuple[Rules, Rules]:
        """Return the rules for data files and those for dead letters."""
        rules = Rules(options.flush_size, options.rotate_interval_ms, options.max_open_files)
        return rules, Rules(options.flush_size)

    def _decoders_of(self, schemas: SchemaIds) -> tuple[ValueDecoder, ValueDecoder]:
        return self._values.decoder(schemas.value), self._keys.decoder(schemas.key)

    def _opened(self) -> tuple[RowMaker, FileSet]:
        """Return a row maker for the current schemas, and a file set for its rows."""
        options = self._options
        maker = RowMaker(options, self._tp, *self._decoders)
        rules, _ = self._rules(options)
        files = self._new_files(
            options.topics_dir, form=self._form, schema=maker.schema, router=Router(rules)
        )
        return maker, files

    def take(self, batch: pa.RecordBatch) -> None:
        for values in self._values.stretches(batch.column("value")):
            part = batch.slice(values.first, values.until - values.first)
            if not self._options.has_keys:
                self._take(part, SchemaIds(value=values.schema))
                continue
            for keys in self._keys.stretches(part.column("key")):
                piece = part.slice(keys.first, keys.until - keys.first)
                self._take(piece, SchemaIds(value=values.schema, key=keys.schema))

    def _take(self, batch: pa.RecordBatch, schemas: SchemaIds) -> None:
        """Take records whose rows have these schemas. If the schemas change, all open files end
        first.
        """
        wanted = self._decoders_of(schemas)
        if wanted != self._decoders:
            self._change(Offset(batch.column("offset")[0].as_py()))
            self._decoders = wanted
            # After `_change`, which sends the last of these files, and counts them itself.
            self._sent += self._files.sent
            self._maker, self._files = self._opened()
        # After `_change`, which stores the schemas of the rows before.
        self._schemas = schemas
        decoded = self._values.decode(batch.column("value"), wanted[0])
        keys = None
        if self._options.has_keys:
            keys = self._keys.decode(batch.column("key"), wanted[1])
        prepared = self._maker.prepare(batch, decoded, keys)
        letters = None
        if prepared.misfits:
            if self._letters is None:
                first = prepared.misfits[0]
                offset = Offset(batch.column("offset")[first.row].as_py())
                raise MisfitError(self._tp, offset, first.reason)
            letters = dead_letters(self._tp, batch, prepared.misfits)
        self._add(prepared.rows, letters, prepared.skipped)

    def _add(self, rows: Rows, letters: Rows | None, skipped: Longs) -> None:
        """Add the rows of a batch and its dead letters to the open files.

        `skipped` has the offsets of the records that are left out.
        """
        self._skipped += len(skipped)
        if letters is not None and self._letters is not None and len(letters.offsets):
            self._letters.add(letters)
            self._dead += len(letters.offsets)
        if len(rows.offsets):
            self._files.add(rows)
            self._rows += len(rows.offsets)

    def _close(self) -> None:
        """End all open files."""
        self._files.finish()
        if self._letters is not None:
            self._letters.finish()

    def _change(self, offset: Offset) -> None:
        """End the open files, because rows have another schema from this offset on."""
        del offset
        self._files.finish()

    def finish(self) -> Written:
        self._close()
        return self._written()

    def _written(self, until: Offset | None = None) -> Written:
        sent = [*self._sent, *self._files.sent]
        if self._letters is not None:
            sent += self._letters.sent
        return Written(tuple(sent), self._dead, self._skipped, until, self._schemas, self.taken)

    def abandon(self) -> None:
        self._files.abandon()
        if self._letters is not None:
            self._letters.abandon()


class _WholeFiles(_Step):
    """Ends files by groups, and does not write records of an unfinished group."""

    def __init__(
        self,
        tp: TopicPartition,
        options: FilesOptions,
        files: Callable[..., FileSet],
        schemas: SchemaIds,
        registry: RegistryConfig | None,
    ) -> None:
        super().__init__(tp, options, files, schemas, registry)
        self._groups = self._new_groups()
        self._whole = Written(schemas=schemas)

    def _new_groups(self) -> FileGroups:
        options = self._options
        rules = Rules(options.flush_size, options.rotate_interval_ms, options.max_open_files)
        return FileGroups(rules)

    def _change(self, offset: Offset) -> None:
        """End the group: the next records have another schema and cannot be in its files."""
        self._close()
        self._whole = self._written(offset)
        self._groups = self._new_groups()

    def _rules(self, options: FilesOptions) -> tuple[Rules, Rules]:
        del options
        # No file ends by itself: `_add` ends all files of a group at once.
        by_groups = Rules(sys.maxsize, max_open=sys.maxsize)
        return by_groups, by_groups

    def _add(self, rows: Rows, letters: Rows | None, skipped: Longs) -> None:
        first_row = first_letter = first_skipped = 0
        encoded = rows.encoded
        for end in self._groups.ends(rows.offsets, rows.times, encoded.codes, encoded.names):
            letter = 0 if letters is None else int(np.searchsorted(letters.offsets, end.until))
            until = int(np.searchsorted(skipped, end.until))
            super()._add(
                rows.part(first_row, end.before),
                None if letters is None else letters.part(first_letter, letter),
                skipped[first_skipped:until],
            )
            first_row, first_letter, first_skipped = end.before, letter, until
            self._close()
            self._whole = self._written(end.until)
        super()._add(
            rows.part(first_row, len(rows.offsets)),
            None if letters is None else letters.part(first_letter, len(letters.offsets)),
            skipped[first_skipped:],
        )

    def finish(self) -> Written:
        return self._whole
