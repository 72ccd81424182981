"""Finished files to the store: each whole, and never over what another run has written since."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sidetier.pipeline.export.errors import ForeignFileError, OtherWriterError, ReadingsDifferError
from sidetier.pipeline.export.state.manifest import FileEntry
from sidetier.segments.errors import ObjectNotFoundError, PreconditionFailedError
from sidetier.storage.port import Body, Condition, IfAbsent, IfMatch, ObjectHead, RemoteStorage

RUN_NOTE: Final = "sidetier-run"
"""Metadata of each file: the generation and the nonce of its run."""
RECORDS_NOTE: Final = "sidetier-records"
"""How many records, the first offset and the last: `100 5 117`."""
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Noted:
    """What a file on the store says of itself."""

    generation: int
    run: str
    records: str


def noted(head: ObjectHead) -> Noted | None:
    """None where no export of ours has written it."""
    run = head.metadata.get(RUN_NOTE, "")
    generation, dash, _ = run.partition("-")
    if not dash or not generation.isdigit():
        return None
    return Noted(int(generation), run, head.metadata.get(RECORDS_NOTE, ""))


@dataclass(frozen=True, slots=True)
class FileSink:
    """Puts the files of one run.

    What is there already of the same run (a task's earlier try, a speculative one, a run that was
    killed) has the same records, and stays. What an earlier run has left that was given up is
    replaced. A later run's means that this one has been overtaken.

    A kill at any time leaves whole files, which the manifest does not name yet.
    """

    store: RemoteStorage
    run: str

    def put(self, body: Body, entry: FileEntry) -> FileEntry:
        """Make the file whole at its place; returns it as it is there.

        Raises:
            ForeignFileError: a file that is not ours is there.
            OtherWriterError: a later run has written it.
            ReadingsDifferError: the same run wrote other records.
            StorageError: as the port says.
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
            with suppress(ObjectNotFoundError):  # it was removed since: once more
                head = self.store.head_object(entry.key)
                if self._is_ours(head, notes):
                    return entry.model_copy(update={"bytes": head.size})
                condition = IfMatch(head.etag)
                continue
            condition = IfAbsent()
        raise OtherWriterError(f"{entry.key}: others write it again and again")

    def _is_ours(self, head: ObjectHead, notes: Mapping[str, str]) -> bool:
        """Whether it is this run's; False where it is to be replaced."""
        found = noted(head)
        if found is None:
            raise ForeignFileError(
                f"{head.key}: a file that no export of Sidetier has written has this name; it is "
                "left as it is: choose another directory"
            )
        if found.run != self.run:
            if found.generation < int(self.run.partition("-")[0]):
                return False
            raise OtherWriterError(
                f"{head.key}: was written by run {found.run}, which is not before this one, "
                f"{self.run}: another export is at work here, or the manifest was removed"
            )
        if found.records != notes[RECORDS_NOTE]:
            raise ReadingsDifferError(
                f"{head.key}: holds {found.records} (records, first and last offset), and should "
                f"hold {notes[RECORDS_NOTE]}: the archive has changed since this run was begun"
            )
        return True
