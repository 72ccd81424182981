"""Move objects from an archive to the quarantine: copy them first, remove them later.

A copy never replaces another object, and a removal spares an object that was written since. So a
delayed request, carried out after another sidecar has finished the move, does no harm.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sidetier.archive.objects.watermark import Watermark, write_watermark
from sidetier.segments.errors import (
    ArchiveConflictError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.notes import CHECKSUM_KEY
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.checksums import is_replaced
from sidetier.storage.port import IfAbsent, IfMatch, ObjectHead, ObjectSummary, RemoteStorage

# The right to move objects of a partition's archive: the version of `offset.wm` that we wrote.
#
# Each write has a new nonce and replaces the version before it. So a sidecar notices when another
# one takes over the move, and a sidecar that read `offset.wm` before the move can no longer write
# it.


class Claim:
    """Holds the etag of our version of `offset.wm`; None where there is no object."""

    def __init__(
        self, store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, etag: str | None
    ) -> None:
        self._store = store
        self._key = layout.watermark_key(tp)
        self._etag = etag

    def write(self, watermark: Watermark) -> None:
        """Replace our version of `offset.wm`; raises WatermarkConflictError if it is not ours any
        more.
        """
        _, self._etag = write_watermark(self._store, self._key, watermark, self._etag)

    def check(self) -> None:
        """Check that the stored version is still ours. Called before a step that cannot be undone.

        Raises:
            ArchiveConflictError: another process has continued the move, and may have finished it.
        """
        try:
            etag: str | None = self._store.head_object(self._key).etag
        except ObjectNotFoundError:
            etag = None
        if etag != self._etag:
            raise ArchiveConflictError(f"{self._key}: another process has taken over the move")

    def remove(self) -> None:
        """Delete the `offset.wm` of an archive that was moved as a whole.

        Raises:
            ArchiveConflictError: another process has written it since.
        """
        self.check()
        try:
            self._store.delete_object(self._key, condition=IfMatch(self._etag or ""))
        except PreconditionFailedError:
            raise ArchiveConflictError(f"{self._key} was written while it was removed") from None


ForEach = Callable[[Callable[[Any], None], Iterable[Any]], Iterable[None]]
"""`map`, or the `map` of an executor: sets how many requests are made at once."""
MovedOne = Callable[[ObjectSummary], None]
"""Called with each object that has been copied."""


@dataclass(frozen=True, slots=True)
class Move:
    """An object, and the key to which it moves."""

    row: ObjectSummary
    target: str


@dataclass(slots=True)
class Relocation:
    """Copies and removes the objects of one plan."""

    store: RemoteStorage
    claim: Claim
    for_each: ForEach = map
    moved_one: MovedOne = lambda _: None
    _copied: dict[str, str] = field(default_factory=dict)
    """Etag of each object that was copied, or compared with its copy, by its key."""

    def copy(self, moves: Iterable[Move]) -> None:
        """Copy each object, unless its copy exists."""
        for _ in self.for_each(self._copy, moves):
            pass

    def _copy(self, move: Move) -> None:
        row = move.row
        if self._copied.get(row.key) == row.etag:
            return
        try:
            self.store.copy_object(row.key, move.target, condition=IfAbsent())
        except PreconditionFailedError:
            self._copy_beside(move)
        except ObjectNotFoundError:
            raise ArchiveConflictError(f"{row.key} was moved by another meanwhile") from None
        self._copied[row.key] = row.etag
        self.moved_one(row)

    def _copy_beside(self, move: Move) -> None:
        """Check a copy of an earlier attempt. If it is of another version, keep both versions."""
        # A kill after a copy leaves it, and the next attempt arrives here.
        copied = self.store.head_object(move.target, with_checksum=True)
        original = self._head(move)
        if original is None or _same(original, copied):
            return
        folder, _, name = move.target.rpartition("/")
        beside = f"{folder}/also-{original.etag.replace('/', '_')}/{name}"
        try:
            self.store.copy_object(move.row.key, beside, condition=IfAbsent())
        except PreconditionFailedError:
            return

    def _head(self, move: Move) -> ObjectHead | None:
        try:
            return self.store.head_object(move.row.key, with_checksum=True)
        except ObjectNotFoundError:
            return None  # another process has moved it already

    def remove(self, moves: Iterable[Move]) -> None:
        """Remove each object, after a check that it is copied and the move is still ours.

        Raises:
            ArchiveConflictError: another process has taken over the move.
        """
        for _ in self.for_each(self._remove, moves):
            pass

    def _remove(self, move: Move) -> None:
        # Usually a lookup in `_copied`. After a restart of the process, the object is compared with
        # its copy again before it is removed.
        self._copy(move)
        # Right before the delete, and for each object: some stores ignore If-Match on deletes.
        self.claim.check()
        try:
            self.store.delete_object(move.row.key, condition=IfMatch(move.row.etag))
        except PreconditionFailedError:
            raise ArchiveConflictError(
                f"{move.row.key} was written while it was moved to {move.target}"
            ) from None


def _same(first: ObjectHead, second: ObjectHead) -> bool:
    """Return whether two objects have the same bytes, as far as the store's metadata shows."""
    if first.size != second.size:
        return False
    own = first.own_checksum, second.own_checksum
    if None not in own:
        return own[0] == own[1]
    if is_replaced(first) or is_replaced(second):
        return False
    if first.checksum is not None and second.checksum is not None:
        return first.checksum == second.checksum
    noted = first.metadata.get(CHECKSUM_KEY)
    if noted is not None:
        return noted == second.metadata.get(CHECKSUM_KEY)
    # A copy need not keep the etag of an object that was uploaded in parts, so this
    # comparison can fail for equal objects. They are then kept twice, which loses nothing.
    return first.etag == second.etag or first.size == 0
