"""The watermark of an archive of which something is moved: whose write stands there, may go on.

Every write has a nonce, and is made over the version before. So another sidecar that takes the move
over is noticed by the next look, and whoever knew the watermark from before can move it no more.
"""

import uuid
from dataclasses import dataclass, replace

from sidetier.archive.objects.watermark import Watermark, decode_watermark, encode_watermark
from sidetier.segments.errors import (
    ArchiveConflictError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import IfAbsent, IfMatch, RemoteStorage


@dataclass(frozen=True, slots=True)
class StoredWatermark:
    """A watermark as it was read: its text, its etag, and when it was written, in ms since 1970."""

    watermark: Watermark
    etag: str
    text: str
    modified_ms: int


def read_stored_watermark(
    store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition
) -> StoredWatermark | None:
    """The watermark that is there, or None.

    Raises:
        MalformedObjectError: it does not parse.
    """
    key = layout.watermark_key(tp)
    try:
        found = store.get_object(key)
    except ObjectNotFoundError:
        return None
    watermark = decode_watermark(found.data, key)
    text = found.data.decode("ascii", "replace")
    return StoredWatermark(watermark, found.head.etag, text, found.head.modified_ms)


class Claim:
    """Our hold on a partition's watermark; `etag` is the version that was read, None for none."""

    def __init__(
        self, store: RemoteStorage, layout: ArchiveLayout, tp: TopicPartition, etag: str | None
    ) -> None:
        self._store = store
        self._key = layout.watermark_key(tp)
        self._etag = etag

    def write(self, watermark: Watermark) -> None:
        """Write it over the version that is ours.

        Raises:
            ArchiveConflictError: somebody else has written since.
        """
        ours = replace(watermark, nonce=uuid.uuid4().hex)
        condition = IfAbsent() if self._etag is None else IfMatch(self._etag)
        try:
            self._etag = self._store.put_object(
                self._key, BytesBody(encode_watermark(ours)), condition=condition
            )
        except PreconditionFailedError:
            self._etag = self._own(ours)

    def _own(self, ours: Watermark) -> str:
        """A refusal by an earlier try of ours, whose answer was lost, is none."""
        try:
            found = self._store.get_object(self._key)
        except ObjectNotFoundError:
            raise ArchiveConflictError(f"{self._key} was removed while it was written") from None
        if decode_watermark(found.data, self._key).nonce == ours.nonce:
            return found.head.etag
        raise ArchiveConflictError(f"{self._key} was written by another while it was to be moved")

    def check(self) -> None:
        """Look whether it is still ours: made right before what cannot be undone.

        Raises:
            ArchiveConflictError: somebody else has gone on with the move, and perhaps finished it.
        """
        try:
            etag: str | None = self._store.head_object(self._key).etag
        except ObjectNotFoundError:
            etag = None
        if etag != self._etag:
            raise ArchiveConflictError(f"{self._key}: another has taken over what is being moved")

    def remove(self) -> None:
        """The end of an archive of which nothing stays.

        Raises:
            ArchiveConflictError: somebody else has written since.
        """
        self.check()
        try:
            self._store.delete_object(self._key, condition=IfMatch(self._etag or ""))
        except PreconditionFailedError:
            raise ArchiveConflictError(f"{self._key} was written while it was removed") from None
