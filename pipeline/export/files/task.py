"""The write step: the records of one Kafka partition's range into files on the store.

A function of the range, the options and the records alone: run again, anywhere, it makes the same
files.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa

from sidetier.pipeline.export.errors import MisfitError
from sidetier.pipeline.export.files.dead_letters import (
    DEAD_LETTER_SCHEMA,
    dead_letter_form,
    dead_letters,
)
from sidetier.pipeline.export.files.formats.choosing import form_of
from sidetier.pipeline.export.files.options import FileFormat, FilesOptions, Layout
from sidetier.pipeline.export.files.rotation import Router, Rules
from sidetier.pipeline.export.files.rows import RowMaker
from sidetier.pipeline.export.files.sink import FileSink
from sidetier.pipeline.export.files.writing import MEMORY, FileSet
from sidetier.pipeline.export.state.manifest import FileEntry
from sidetier.segments.offsets import Offset, TopicPartition

COLUMNS: Final = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")
"""Of `RECORD_SCHEMA`, what a whole record needs."""
_VALUE_COLUMNS: Final = ("offset", "timestamp", "value")

Progress = Callable[[int], None]
"""Hears how many records more were read."""


def columns_of(options: FilesOptions) -> tuple[str, ...]:
    """Of `RECORD_SCHEMA`, what is to be read; what does not fit is set aside as a whole record."""
    if options.dead_letters is not None:
        return COLUMNS
    if options.format is FileFormat.RAW:
        return _VALUE_COLUMNS if options.key_delimiter is None else (*_VALUE_COLUMNS, "key")
    return _VALUE_COLUMNS if options.layout is Layout.VALUE else COLUMNS


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a range."""

    files: tuple[FileEntry, ...] = ()
    dead_letters: int = 0
    skipped: int = 0


def write_range(
    tp: TopicPartition,
    options: FilesOptions,
    records: Iterable[pa.RecordBatch],
    sink: FileSink,
    progress: Progress = lambda _count: None,
    *,
    memory: int = MEMORY,
) -> Written:
    """Write the records of a range, in order of offsets, with the columns of `columns_of`.

    `memory` bounds the bytes of rows that wait to be written.

    Raises:
        MisfitError: a record does not fit, and there is no directory for dead letters.
        ConfigurationError: the options cannot be used with these values.
        ArchiveError, StorageError, OSError: as `FileSink.put`, and what reading raises.
    """
    with ExitStack() as stack:
        step = _Step(tp, options, partial(FileSet, tp=tp, send=sink.put, memory=memory))
        stack.callback(step.abandon)
        for batch in records:
            step.take(batch)
            progress(batch.num_rows)
        return step.finish()


class _Step:
    def __init__(
        self, tp: TopicPartition, options: FilesOptions, files: Callable[..., FileSet]
    ) -> None:
        self._tp = tp
        self._maker = RowMaker(options, tp)
        rules = Rules(options.flush_size, options.rotate_interval_ms, options.max_open_files)
        self._files = files(
            options.topics_dir,
            form=form_of(options, tp.topic),
            schema=self._maker.schema,
            router=Router(rules),
        )
        self._letters: FileSet | None = None
        if options.dead_letters is not None:
            self._letters = files(
                options.dead_letters,
                form=dead_letter_form(),
                schema=DEAD_LETTER_SCHEMA,
                router=Router(Rules(options.flush_size)),
            )
        self._dead = self._skipped = 0

    def take(self, batch: pa.RecordBatch) -> None:
        prepared = self._maker.prepare(batch)
        if prepared.misfits:
            if self._letters is None:
                first = prepared.misfits[0]
                offset = Offset(batch.column("offset")[first.row].as_py())
                raise MisfitError(self._tp, offset, first.reason)
            self._letters.add(dead_letters(self._tp, batch, prepared.misfits))
        self._dead += len(prepared.misfits)
        self._skipped += prepared.skipped
        if prepared.rows.table.num_rows:
            self._files.add(prepared.rows)

    def finish(self) -> Written:
        self._files.finish()
        sent = list(self._files.sent)
        if self._letters is not None:
            self._letters.finish()
            sent += self._letters.sent
        return Written(tuple(sent), self._dead, self._skipped)

    def abandon(self) -> None:
        self._files.abandon()
        if self._letters is not None:
            self._letters.abandon()
