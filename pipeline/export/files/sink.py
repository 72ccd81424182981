"""Upload of finished files: each file whole, and never over a file of a later run."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sidetier.pipeline.export.errors import ForeignFileError, OtherWriterError, ReadingsDifferError
from sidetier.pipeline.export.state.manifest import FileEntry
from sidetier.segments.errors import ObjectNotFoundError, PreconditionFailedError
from sidetier.storage.port import Body, Condition, IfAbsent, IfMatch, ObjectHead, RemoteStorage

RUN_NOTE: Final = "sidetier-run"
"""Metadata key of each file: generation and nonce of its run."""
RECORDS_NOTE: Final = "sidetier-records"
"""Metadata key of each file: number of records, first and last offset, for example `100 5 117`."""
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Noted:
    """Metadata of a file on the store."""

    generation: int
    run: str
    records: str


def noted(head: ObjectHead) -> Noted | None:
    """Parse a file's metadata; return None if no export of Sidetier has written the file."""
    run = head.metadata.get(RUN_NOTE, "")
    generation, dash, _ = run.partition("-")
    if not dash or not generation.isdigit():
        return None
    return Noted(int(generation), run, head.metadata.get(RECORDS_NOTE, ""))


@dataclass(frozen=True, slots=True)
class FileSink:
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
            RUN_NOTE: self.run,
            RECORDS_NOTE: f"{entry.records} {entry.first} {entry.last}",
        }
        condition: Condition = IfAbsent()
        for _ in range(_TRIES):
            with suppress(PreconditionFailedError):
                self.store.put_object(entry.key, body, metadata=notes, condition=condition)
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
        note = noted(head)
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
        if note.records != notes[RECORDS_NOTE]:
            raise ReadingsDifferError(
                f"{head.key}: holds {note.records} (records, first and last offset), and should "
                f"hold {notes[RECORDS_NOTE]}: the archive has changed since this run was begun"
            )
        return True
