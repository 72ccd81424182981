"""`tail/<broker>/index`: which tail packs of a broker cleaning has dropped.

A pack is live unless the index names it in `dropped`: it can only name packs that cleaning has
read. So a new pack is live once it is created, whatever its number. Without an index object, all
packs are live. A number leaves the index once its pack is deleted; no number is used twice.
"""

import secrets
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Final

from sidetier.archive.objects.codec import JsonCodec
from sidetier.segments.errors import (
    MalformedObjectError,
    ObjectNotFoundError,
    PreconditionFailedError,
    UnknownVersionError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import MAX_OFFSET
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import PutOptions, RemoteStorage, unchanged

_NONCE_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class TailIndex:
    """The contents of the index object.

    Attributes:
        packs: Numbers of the packs that the last cleaning has kept, ascending: one that is not
            stored is lost.
        dropped: Numbers of the packs that are stored and not live, ascending.
        generation: Number of writes so far.
        nonce: Random text of this write; gives each version another etag.
    """

    packs: tuple[int, ...]
    dropped: tuple[int, ...]
    generation: int
    nonce: str

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: Numbers do not ascend, are out of range, or are both kept and dropped.
        """
        if not 0 <= self.generation <= MAX_OFFSET:
            raise ValueError(f"generation is {self.generation}")
        for name, numbers in (("packs", self.packs), ("dropped", self.dropped)):
            if any(first >= second for first, second in pairwise(numbers)):
                raise ValueError(f"{name} do not ascend")
            if numbers and not 0 <= numbers[0] <= numbers[-1] <= MAX_OFFSET:
                raise ValueError(f"{name} are not all from 0 to {MAX_OFFSET}")
        both = set(self.packs).intersection(self.dropped)
        if both:
            raise ValueError(f"pack {min(both)} is kept and dropped")

    def is_live(self, number: int) -> bool:
        """Return whether the pack with this number is live."""
        at = bisect_left(self.dropped, number)
        return at == len(self.dropped) or self.dropped[at] != number


@dataclass(frozen=True, slots=True)
class StoredTailIndex:
    """The index object as it was read. Without an object: no index, no etag.

    Attributes:
        index: Its contents.
        etag: Its etag.
        modified_ms: When it was written, in ms since 1970, as far as the reader needs it.
    """

    index: TailIndex | None = None
    etag: str | None = None
    modified_ms: int | None = None


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


def read_index_to_replace(
    store: RemoteStorage, layout: ArchiveLayout, broker_id: int
) -> StoredTailIndex:
    """Read the index of a broker before a write. One that does not parse has an etag and no index:
    all packs are live then, for readers, too.

    Raises:
        UnknownVersionError: It is of another version, and must not be replaced.
    """
    key = layout.tail_index_key(broker_id)
    try:
        answer = store.get_object(key)
    except ObjectNotFoundError:
        return StoredTailIndex()
    try:
        index = _CODEC.decode(answer.data, key)
        return StoredTailIndex(index, answer.head.etag, answer.head.modified_ms)
    except UnknownVersionError:
        raise
    except MalformedObjectError:
        return StoredTailIndex(None, answer.head.etag)


def write_tail_index(
    store: RemoteStorage,
    layout: ArchiveLayout,
    broker_id: int,
    packs: Sequence[int],
    dropped: Sequence[int],
    before: StoredTailIndex,
) -> StoredTailIndex:
    """Replace the version that was read before (If-Match, or If-None-Match without one).

    A lost answer is not an error: if the stored version has our nonce, the write has succeeded.

    Raises:
        PreconditionFailedError: Another sidecar of this broker has written it.
        ValueError: As `TailIndex`.
    """
    old = before.index
    generation = 1 if old is None else old.generation + 1
    nonce = secrets.token_hex(_NONCE_BYTES)
    index = TailIndex(tuple(packs), tuple(dropped), generation, nonce)
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
