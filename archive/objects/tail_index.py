"""`tail/<broker>/index`: which tail packs of a broker are live.

A pack is live if the index names it, or if its number is above `through`. So a new pack is live
once it is created, and the index is rewritten only after packs were cleaned. Without an index
object, all packs are live.
"""

from dataclasses import dataclass

from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.port import RemoteStorage


@dataclass(frozen=True, slots=True)
class TailIndex:
    """The contents of the index object.

    Attributes:
        through: The number up to which packs are live only if they are named.
        packs: Numbers of the live packs up to `through`, ascending.
        generation: Number of writes so far.
        nonce: Random text of this write; gives each version another etag.
    """

    through: int
    packs: tuple[int, ...]
    generation: int
    nonce: str

    def is_live(self, number: int) -> bool:
        """Return whether the pack with this number is live."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class StoredTailIndex:
    """The index object as it was read, with its etag. Without an object: no index, no etag."""

    index: TailIndex | None = None
    etag: str | None = None


def read_tail_index(store: RemoteStorage, layout: ArchiveLayout, broker_id: int) -> StoredTailIndex:
    """Read the index of a broker. One request.

    Raises:
        MalformedObjectError: It does not parse, or is of another version.
    """
    raise NotImplementedError


def write_tail_index(
    store: RemoteStorage,
    layout: ArchiveLayout,
    broker_id: int,
    through: int,
    packs: tuple[int, ...],
    before: StoredTailIndex,
) -> StoredTailIndex:
    """Replace the version that was read before (If-Match, or If-None-Match without one).

    A lost answer is not an error: if the stored version has our nonce, the write has succeeded.

    Raises:
        PreconditionFailedError: Another sidecar of this broker has written it.
        ValueError: `packs` do not ascend, or exceed `through`, or `through` is lower than before.
    """
    raise NotImplementedError
