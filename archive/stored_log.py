"""The segments that a listing shows, as a reader needs them."""

from collections.abc import Iterable
from dataclasses import dataclass

from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset
from sidetier.storage.port import ObjectSummary
from sidetier.storage.stored_segments import files_by_base

Version = tuple[str, str, int]
"""What names the bytes of an object: key, etag and size."""


@dataclass(frozen=True, slots=True)
class StoredLog:
    """A stored `.log` and the indexes beside it, None where they are not."""

    base_offset: BaseOffset
    row: ObjectSummary
    index: ObjectSummary | None = None
    timeindex: ObjectSummary | None = None

    @property
    def key(self) -> str:
        """The `.log`'s own."""
        return self.row.key

    @property
    def size(self) -> int:
        """The `.log`'s, in bytes."""
        return self.row.size

    @property
    def version(self) -> Version:
        """What names these bytes."""
        return self.row.key, self.row.etag, self.row.size


def stored_logs(rows: Iterable[ObjectSummary], prefix: str) -> tuple[StoredLog, ...]:
    """The `.log`s among the rows of a listing, by rising base offset."""
    return tuple(
        StoredLog(
            base, files[FileKind.LOG], files.get(FileKind.INDEX), files.get(FileKind.TIMEINDEX)
        )
        for base, files in files_by_base(rows, prefix)
        if FileKind.LOG in files
    )
