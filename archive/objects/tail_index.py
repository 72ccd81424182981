"""`tail/<broker>/index`: which tail packs of a broker are live.

A pack is live if the index names it, or if its number is above `through`. So a new pack is live
once it is created, and the index is rewritten only after packs were cleaned. Without an index
object, all packs are live.
"""

import secrets
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Final

from sidetier.archive.objects.codec import JsonCodec
from sidetier.segments.errors import PreconditionFailedError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import MAX_OFFSET
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import PutOptions, RemoteStorage, unchanged

_NONCE_BYTES: Final = 12


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

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: `packs` do not ascend or exceed `through`, or a number is out of range.
        """
        if not -1 <= self.through <= MAX_OFFSET or not 0 <= self.generation <= MAX_OFFSET:
            raise ValueError(f"through is {self.through}, and generation {self.generation}")
        if any(first >= second for first, second in pairwise(self.packs)):
            raise ValueError("packs do not ascend")
        if self.packs and not 0 <= self.packs[0] <= self.packs[-1] <= self.through:
            raise ValueError(f"packs are not all from 0 to {self.through}")

    def is_live(self, number: int) -> bool:
        """Return whether the pack with this number is live."""
        if number > self.through:
            return True
        at = bisect_left(self.packs, number)
        return at < len(self.packs) and self.packs[at] == number


@dataclass(frozen=True, slots=True)
class StoredTailIndex:
    """The index object as it was read, with its etag. Without an object: no index, no etag."""

    index: TailIndex | None = None
    etag: str | None = None


_CODEC: Final = JsonCodec(
    TailIndex,
    "the index of tail packs",
    remedy="Move it away: all packs of the broker then count as live",
)


def read_tail_index(store: RemoteStorage, layout: ArchiveLayout, broker_id: int) -> StoredTailIndex:
    """Read the index of a broker. One request.

    Raises:
        MalformedObjectError: It does not parse, or is of another version.
    """
    stored = _CODEC.read(store, layout.tail_index_key(broker_id))
    return StoredTailIndex() if stored is None else StoredTailIndex(stored.value, stored.etag)


def write_tail_index(
    store: RemoteStorage,
    layout: ArchiveLayout,
    broker_id: int,
    through: int,
    packs: Sequence[int],
    before: StoredTailIndex,
) -> StoredTailIndex:
    """Replace the version that was read before (If-Match, or If-None-Match without one).

    A lost answer is not an error: if the stored version has our nonce, the write has succeeded.

    Raises:
        PreconditionFailedError: Another sidecar of this broker has written it.
        ValueError: `packs` do not ascend or exceed `through`, or `through` is lower than before.
    """
    old = before.index
    if old is not None and through < old.through:
        raise ValueError(f"through would fall from {old.through} to {through}")
    generation = 1 if old is None else old.generation + 1
    index = TailIndex(through, tuple(packs), generation, secrets.token_hex(_NONCE_BYTES))
    body = BytesBody(_CODEC.encode(asdict(index)))
    options = PutOptions(condition=unchanged(before.etag))
    try:
        etag = store.put_object(layout.tail_index_key(broker_id), body, options)
    except PreconditionFailedError:
        stored = read_tail_index(store, layout, broker_id)
        if stored.index is None or stored.index.nonce != index.nonce:
            raise
        return stored
    return StoredTailIndex(index, etag)
