"""The `_metadata` of partitions: what the peer's consumer needs to see a segment at all."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Final, NamedTuple

from sidetier.segments.errors import (
    ArchiveConflictError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sidetier.segments.keys import ArchiveLayout, parse_object_key
from sidetier.segments.metadata import PartitionMetadata, decode_metadata, encode_metadata
from sidetier.segments.offsets import BaseOffset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import Condition, IfAbsent, IfMatch, ObjectSummary, RemoteStorage

_TRIES: Final = 5


class _Version(NamedTuple):
    data: bytes
    etag: str | None


_ABSENT: Final = _Version(b"", None)


class MetadataCache:
    """Encoded `_metadata` of the partitions written last, bounded in bytes; safe among threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = Lock()
        self._versions: OrderedDict[TopicPartition, _Version] = OrderedDict()

    def get(self, tp: TopicPartition) -> _Version | None:
        """The version known, or None."""
        with self._lock:
            version = self._versions.get(tp)
            if version is not None:
                self._versions.move_to_end(tp)
            return version

    def put(self, tp: TopicPartition, version: _Version | None) -> None:
        """Remember a version, or forget it; the ones not used for the longest time go first."""
        with self._lock:
            old = self._versions.pop(tp, None)
            self._bytes -= len(old.data) if old else 0
            if version is not None:
                self._versions[tp] = version
                self._bytes += len(version.data)
            while self._bytes > self._max_bytes and len(self._versions) > 1:
                _, dropped = self._versions.popitem(last=False)
                self._bytes -= len(dropped.data)


class MetadataEditor:
    """Adds segments to `_metadata` under a condition, and repairs it after a lost race."""

    def __init__(self, store: RemoteStorage, layout: ArchiveLayout, cache: MetadataCache) -> None:
        self._store = store
        self._layout = layout
        self._cache = cache

    def load(self, tp: TopicPartition, *, there: bool) -> None:
        """Read it if a listing has shown it, so that `add` need not; that there is none is
        remembered too. Another may write it meanwhile: our condition is refused then, and `add`
        reads.
        """
        self._cache.put(tp, (self._read(tp) if there else None) or _ABSENT)

    def add(
        self,
        tp: TopicPartition,
        segments: Sequence[tuple[BaseOffset, int]],
        stored: Callable[[], Iterable[ObjectSummary]],
    ) -> None:
        """Name these stored segments (base offset, time in ms), also when others write at once.

        Where there is none yet, it begins with the `.log` files that `stored` lists.

        Raises:
            ArchiveConflictError: others kept winning; the same call can succeed later.
        """
        known = self._cache.get(tp) or self._read(tp) or _ABSENT
        version = self._begin(tp, stored()) if known is _ABSENT else known
        self._write(tp, version, lambda metadata: metadata.with_segments(segments), stored)

    def rewrite(
        self, tp: TopicPartition, change: Callable[[PartitionMetadata], PartitionMetadata]
    ) -> None:
        """Change what is there now, an empty one where there is none, also when others write.

        Raises:
            ArchiveConflictError: others kept winning; the same call can succeed later.
            MalformedObjectError: what is there does not parse.
        """
        self._write(tp, self._read(tp) or self._begin(tp, ()), change, lambda: ())

    def _write(
        self,
        tp: TopicPartition,
        version: _Version,
        change: Callable[[PartitionMetadata], PartitionMetadata],
        stored: Callable[[], Iterable[ObjectSummary]],
    ) -> None:
        key = self._layout.metadata_key(tp)
        for _ in range(_TRIES):
            data = encode_metadata(change(decode_metadata(version.data, key)))
            if version.etag is not None and data == version.data:
                self._cache.put(tp, version)
                return
            try:
                etag = self._store.put_object(key, BytesBody(data), condition=self._over(version))
            except PreconditionFailedError:
                version = self._read(tp) or self._begin(tp, stored())
            else:
                self._cache.put(tp, _Version(data, etag))
                return
        self._cache.put(tp, None)
        raise ArchiveConflictError(f"{key} was changed by others {_TRIES} times in a row")

    def _read(self, tp: TopicPartition) -> _Version | None:
        try:
            found = self._store.get_object(self._layout.metadata_key(tp))
        except ObjectNotFoundError:
            return None
        return _Version(found.data, found.head.etag)

    def _begin(self, tp: TopicPartition, logs: Iterable[ObjectSummary]) -> _Version:
        prefix = self._layout.partition_prefix(tp)
        found = [
            (parsed[0], log.modified_ms)
            for log in logs
            if (parsed := parse_object_key(log.key, prefix)) is not None
        ]
        return _Version(encode_metadata(PartitionMetadata(tp).with_segments(found)), None)

    def _over(self, version: _Version) -> Condition | None:
        return IfAbsent() if version.etag is None else IfMatch(version.etag)
