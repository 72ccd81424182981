"""Store a mirror's offset map in the archive's store, in case the target's topic is lost.

Each target partition has one object in the default store of the source's archive:
`_sidetier/<cluster>/mirrors/<mirror>/offsets/<topic>-<partition>.json`. It has at most `MAX_RUNS`
runs: all of the newest, fewer of the older ones (`OffsetMap.thinned`). Each write is a conditional
put: it replaces the object only if it is still the one that was read.

A kill leaves the former object, whose `mirrored_to` is the offset up to which its map is complete.
If two workers both believe that they own a partition, each writes a correct map. The condition
admits one of them; the other reads that map and adds its own runs.

Earlier versions stored the maps of the longest topic names at another key, which file systems
refuse (`ArchiveLayout.mirror_map_keys`). Such a map is read, and deleted after the next write.
"""

import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sidetier.archive.objects.codec import JsonCodec
from sidetier.archive.objects.starts import read_first
from sidetier.mirror.copy.offset_map import OffsetMap, Run
from sidetier.segments.errors import (
    InvalidRequestError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import PutOptions, RemoteStorage, unchanged

MAX_RUNS: Final = 1024
"""Makes about 30 KB of JSON."""


@dataclass(frozen=True, slots=True)
class StoredMap:
    """The offset map of one target partition.

    Attributes:
        source: The source partition.
        target: Its copy.
        target_topic_id: Kafka's id of the target topic; "" if the brokers have none.
        mirrored_to: The map is complete up to this source offset, exclusive.
        map: The runs of the map.
    """

    source: TopicPartition
    target: TopicPartition
    target_topic_id: str
    mirrored_to: Offset
    map: OffsetMap


class MapStore:
    """Reads and writes the maps of one mirror.

    Args:
        store: The default store of the source's archive.
        layout: Makes the keys of the archive's objects.
        mirror: The mirror's name.
    """

    def __init__(self, store: RemoteStorage, layout: ArchiveLayout, mirror: str) -> None:
        self._store = store
        self._layout = layout
        self._mirror = mirror
        self._etags: dict[TopicPartition, str] = {}

    def read(self, target: TopicPartition) -> StoredMap | None:
        """Return the map of a partition; None if none is stored.

        Raises:
            MalformedObjectError: The object is not a map, or has an unknown version.
            StorageError: As `RemoteStorage` documents.
        """
        # Without an object at the current key, the next write requires that there is none.
        self._etags.pop(target, None)
        keys = self._layout.mirror_map_keys(self._mirror, target)
        answer = read_first(self._store, keys)
        if answer is None:
            return None
        if answer.head.key == keys[0]:
            self._etags[target] = answer.head.etag
        return _decode(answer.data, answer.head.key)

    def read_all(self) -> dict[TopicPartition, StoredMap]:
        """Return every map of the mirror by target partition. Raises the errors of `read`."""
        prefix = self._layout.mirror_maps_prefix(self._mirror)
        maps: dict[TopicPartition, StoredMap] = {}
        for row in self._store.list_objects(prefix):
            stored = _decode(self._store.get_object(row.key).data, row.key)
            is_current = row.key == self._layout.mirror_map_key(self._mirror, stored.target)
            if is_current or stored.target not in maps:
                maps[stored.target] = stored
        return maps

    def write(self, stored: StoredMap) -> bool:
        """Replace the object that `read` or the last `write` has seen.

        Returns:
            False if another object is stored now.

        Raises:
            StorageError: As `RemoteStorage` documents. The write may have happened.
        """
        key, *former = self._layout.mirror_map_keys(self._mirror, stored.target)
        condition = unchanged(self._etags.get(stored.target))
        try:
            self._etags[stored.target] = self._store.put_object(
                key, BytesBody(_encode(stored)), PutOptions(condition=condition)
            )
        except PreconditionFailedError:
            # Another worker has replaced the object, or the response to our own earlier write was
            # lost. `read` returns the object that is stored now.
            self._etags.pop(stored.target, None)
            return False
        for old in former:  # a kill before this leaves both: the current one counts
            # A file system refuses a name of this length, and so has no object there.
            with suppress(ObjectNotFoundError, InvalidRequestError):
                self._store.delete_object(old)
        return True


def _encode(stored: StoredMap) -> bytes:
    value = {
        "nonce": uuid.uuid4().hex,  # gives each write another etag
        "source_topic": stored.source.topic,
        "target_topic": stored.target.topic,
        "target_topic_id": stored.target_topic_id,
        "partition": stored.target.partition,
        "mirrored_to": stored.mirrored_to,
        "exact_from": stored.map.exact_from,
        "runs": [list(run) for run in stored.map.runs],
    }
    return _CODEC.encode(value, separators=(",", ":"), sort_keys=False) + b"\n"


def _decode(data: bytes, key: str) -> StoredMap:
    value = _CODEC.decode(data, key)
    return StoredMap(
        TopicPartition(value.source_topic, value.partition),
        TopicPartition(value.target_topic, value.partition),
        value.target_topic_id,
        value.mirrored_to,
        OffsetMap(value.runs, value.exact_from),
    )


@dataclass(frozen=True, slots=True)
class _Document:
    source_topic: str
    target_topic: str
    target_topic_id: str
    partition: int
    mirrored_to: Offset
    exact_from: int
    runs: list[Run]


_CODEC: Final = JsonCodec(_Document, "an offset map")
