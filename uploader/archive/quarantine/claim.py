"""The right to move objects of a partition's archive: the version of `offset.wm` that we wrote.

Each write has a new nonce and replaces the version before it. So a sidecar notices when another one
takes over the move, and a sidecar that read `offset.wm` before the move can no longer write it.
"""

from sidetier.archive.objects.watermark import Watermark, write_watermark
from sidetier.segments.errors import (
    ArchiveConflictError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import IfMatch, RemoteStorage


class Claim:
    """Holds the etag of our version of `offset.wm`; None where there is no object."""

    def __init__(
        self, store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, etag: str | None
    ) -> None:
        self._store = store
        self._key = layout.watermark_key(tp)
        self._etag = etag

    def write(self, watermark: Watermark) -> None:
        """Replace our version of `offset.wm`.

        Raises:
            WatermarkConflictError: another process has written it since.
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
