"""Upload of finished files: each file whole, and never over a file of a later run."""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

from sidetier.pipeline.export.errors import (
    ForeignFileError,
    OtherWriterError,
    ReadingsDifferError,
    RecordCountError,
)
from sidetier.pipeline.export.sinks.files.formats.forms import FileWriter, Form
from sidetier.pipeline.export.sinks.files.manifest import FileEntry
from sidetier.pipeline.export.sinks.files.names import FileName, file_key
from sidetier.pipeline.export.sinks.files.rotation import Append, FileId, Router
from sidetier.pipeline.export.sinks.files.rows import Rows
from sidetier.segments.errors import ObjectNotFoundError, PreconditionFailedError
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.bodies import FileBody
from sidetier.storage.port import (
    Body,
    Condition,
    IfAbsent,
    IfMatch,
    ObjectHead,
    PutOptions,
    RemoteStorage,
)

RUN_METADATA: Final = "sidetier-run"
"""Metadata key of each file: generation and nonce of its run."""
RECORDS_METADATA: Final = "sidetier-records"
"""Metadata key of each file: number of records, first and last offset, for example `100 5 117`."""
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class FileMetadata:
    """Metadata of a file on the store."""

    generation: int
    run: str
    records: str


def file_metadata(head: ObjectHead) -> FileMetadata | None:
    """Parse a file's metadata; return None if no export of Sidetier has written the file."""
    run = head.metadata.get(RUN_METADATA, "")
    generation, dash, _ = run.partition("-")
    if not dash or not generation.isdigit():
        return None
    return FileMetadata(int(generation), run, head.metadata.get(RECORDS_METADATA, ""))


@dataclass(frozen=True, slots=True)
class FileUploader:
    """Stores the files of one run.

    A file of the same run that exists already (of an earlier or speculative attempt, or of a killed
    run) has the same records and stays. A file of an earlier, withdrawn run is replaced. A file of
    a later run means that another job has overtaken this run.

    A kill at any time leaves only whole files, which the manifest does not name yet.
    """

    store: RemoteStorage
    run: str

    def put(self, body: Body, entry: FileEntry) -> FileEntry:
        """Store the file; return its entry with its size on the store.

        Raises:
            ForeignFileError: another program's file has this key.
            OtherWriterError: a later run has written the file.
            ReadingsDifferError: the same run has written other records.
            StorageError: see `RemoteStorage.put_object`.
        """
        notes = {
            RUN_METADATA: self.run,
            RECORDS_METADATA: f"{entry.records} {entry.first} {entry.last}",
        }
        condition: Condition = IfAbsent()
        # A refused put proves nothing about the object that is there: it may be of an earlier
        # attempt of this put whose answer was lost. So each refusal leads to a look at the object.
        for _ in range(_TRIES):
            with suppress(PreconditionFailedError):
                self.store.put_object(
                    entry.key, body, PutOptions(metadata=notes, condition=condition)
                )
                return entry.model_copy(update={"bytes": body.size})
            with suppress(ObjectNotFoundError):  # removed in between: put it again if absent
                head = self.store.head_object(entry.key)
                if self._is_ours(head, notes):
                    return entry.model_copy(update={"bytes": head.size})
                condition = IfMatch(head.etag)
                continue
            condition = IfAbsent()
        raise OtherWriterError(f"{entry.key}: others write it again and again")

    def _is_ours(self, head: ObjectHead, notes: Mapping[str, str]) -> bool:
        """Return whether the file is this run's; False if it can be replaced."""
        note = file_metadata(head)
        if note is None:
            raise ForeignFileError(
                f"{head.key}: a file that no export of Sidetier has written has this name; it is "
                "left as it is: choose another directory"
            )
        if note.run != self.run:
            if note.generation < int(self.run.partition("-")[0]):
                return False
            raise OtherWriterError(
                f"{head.key}: was written by run {note.run}, which is not before this one, "
                f"{self.run}: another export is at work here, or the manifest was removed"
            )
        if note.records != notes[RECORDS_METADATA]:
            raise ReadingsDifferError(
                f"{head.key}: holds {note.records} (records, first and last offset), and should "
                f"hold {notes[RECORDS_METADATA]}: the archive has changed since this run was begun"
            )
        return True


MEMORY: Final = 128 * 1024**2
"""Most bytes of rows that wait in memory, over all open files of a Kafka partition: 128 MiB."""

Send = Callable[[Body, FileEntry], FileEntry]


class _Scratch:
    """A file without a name in `TMPDIR`. The kernel frees it however the process ends."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 -- closed by `close`
        # The file writer and the sender open the file by this path.
        self.path = Path(f"/proc/self/fd/{self._file.fileno()}")

    def close(self) -> None:
        """Free the file's disk space."""
        self._file.close()


@dataclass(slots=True)
class _File:
    scratch: _Scratch
    writer: FileWriter
    first: int
    last: int = -1
    records: int = 0
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0


class FileSet:
    """The open files of one Kafka partition below one directory. Not thread-safe.

    Rows wait in memory until their file ends, or until all waiting rows exceed the limit. Then the
    rows of the file with the most waiting bytes are written as a row group. Only open files use
    disk space.
    """

    def __init__(  # noqa: PLR0913, PLR0917 -- a parameter class would have one user
        self,
        directory: str,
        tp: TopicPartition,
        form: Form,
        schema: pa.Schema,
        router: Router,
        send: Send,
        memory: int = MEMORY,
    ) -> None:
        self._directory = directory
        self._tp = tp
        self._form = form
        self._schema = schema
        self._router = router
        self._send = send
        self._memory = memory
        self._files: dict[FileId, _File] = {}
        self._waiting = 0
        self.sent: list[FileEntry] = []

    def add(self, rows: Rows) -> None:
        """Add rows.

        Raises:
            RecordCountError: a finished file does not hold the rows that were added to it.
            OSError: the local disk failed. Errors of `send` are raised as well.
        """
        steps = self._router.route(rows.offsets, rows.times, rows.encoded.codes, rows.encoded.names)
        for step in steps:
            if isinstance(step, Append):
                self._append(step, rows)
            else:
                self._close(step.file)

    def finish(self) -> None:
        """End and send all open files. Raises the errors of `add`."""
        for step in self._router.finish():
            self._close(step.file)

    def abandon(self) -> None:
        """Close all open files without sending them."""
        for file in self._files.values():
            file.writer.close()
            file.scratch.close()
        self._files.clear()

    def _append(self, step: Append, rows: Rows) -> None:
        target = self._files.get(step.file) or self._open(step.file)
        whole = len(step.rows) == rows.table.num_rows
        part = rows.table if whole else rows.table.take(pa.array(step.rows))
        target.waiting.append(part)
        # Not `part.num_rows`: the file's own count is compared with this one.
        target.records += len(step.rows)
        target.last = int(rows.offsets[step.rows[-1]])
        target.bytes += part.nbytes
        self._waiting += part.nbytes
        while self._waiting > self._memory:
            self._flush(max(self._files.values(), key=lambda file: file.bytes))

    def _open(self, file: FileId) -> _File:
        with ExitStack() as unless_open:
            scratch = unless_open.enter_context(closing(_Scratch()))
            writer = self._form.open(scratch.path, self._schema)
            unless_open.pop_all()
        self._files[file] = _File(scratch, writer, file.start)
        return self._files[file]

    def _flush(self, file: _File) -> None:
        if file.waiting:
            file.writer.write(pa.Table.from_batches(file.waiting, schema=self._schema))
        self._waiting -= file.bytes
        file.waiting, file.bytes = [], 0

    def _close(self, file: FileId) -> None:
        finished = self._files[file]
        self._flush(finished)
        # First: if closing fails, `abandon` must not close the writer a second time.
        del self._files[file]
        with closing(finished.scratch):
            finished.writer.close()
            held = finished.writer.count()
            name = FileName(self._tp, file.start, self._form.extension)
            key = file_key(self._directory, file.encoded, name)
            if held != finished.records:
                raise RecordCountError(
                    key, f"{finished.records} records were added, and the file has {held}"
                )
            entry = FileEntry(
                key=key,
                partition=self._tp.partition,
                first=finished.first,
                last=finished.last,
                records=finished.records,
                bytes=0,
            )
            self.sent.append(self._send(FileBody.of(finished.scratch.path), entry))
