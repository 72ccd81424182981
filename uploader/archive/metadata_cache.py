"""The `_metadata` objects of partitions: Pinterest's consumer sees only the segments in them."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

from sidetier.archive.objects.pinterest_metadata import (
    PartitionMetadata,
    append_segments,
    count_entries,
    decode_metadata,
    encode_metadata,
)
from sidetier.segments.errors import (
    ArchiveConflictError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from sidetier.segments.keys import ArchiveLayout, parse_object_key
from sidetier.segments.lru import Lru
from sidetier.segments.offsets import BaseOffset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import (
    Condition,
    IfAbsent,
    IfMatch,
    ObjectSummary,
    PutOptions,
    RemoteStorage,
)

_TRIES: Final = 5


_CHECK_EVERY: Final = 1000
"""Entries between two checks for segments that were deleted, for example by a lifecycle rule."""


class _Version(NamedTuple):
    """A version of an object.

    Attributes:
        data: Its bytes.
        etag: Its etag; None if it is not stored yet.
        kept: Number of its entries after the last check for deleted segments.
    """

    data: bytes
    etag: str | None
    kept: int = 0


_ABSENT: Final = _Version(b"", None)


class MetadataCache(Lru[TopicPartition, _Version]):
    """Encoded `_metadata` of the partitions used last. Bounded in bytes; thread-safe.

    The version that was used last stays even if it is larger than the whole cache: its partition
    would otherwise read it again for every commit.
    """

    def __init__(self, max_bytes: int) -> None:
        capacity = max(max_bytes, 1)
        super().__init__(capacity, lambda version: min(len(version.data), capacity))


class MetadataEditor:
    """Changes `_metadata` with conditional puts, and tries again after a lost race."""

    def __init__(self, store: RemoteStorage, layout: ArchiveLayout, cache: MetadataCache) -> None:
        self._store = store
        self._layout = layout
        self._cache = cache

    def load(self, tp: TopicPartition, *, exists: bool) -> None:
        """Read `_metadata` into the cache, so that `add` need not read it.

        If another sidecar writes it meanwhile, the store refuses the conditional put of `add`,
        which then reads it again.

        Args:
            tp: The partition.
            exists: Whether a listing has shown the object. Its absence is cached, too.
        """
        self._cache.put(tp, (self._read(tp) if exists else None) or _ABSENT)

    def entries(self, tp: TopicPartition) -> int | None:
        """Return the number of entries when it was read or written last; None where that is not
        known. Makes no request.
        """
        cached = self._cache.get(tp)
        return None if cached is None else count_entries(cached.data)

    def add(
        self,
        tp: TopicPartition,
        segments: Sequence[tuple[BaseOffset, int]],
        stored: Callable[[], Iterable[ObjectSummary]],
        expect_ours: Callable[[], None],
    ) -> None:
        """Add entries for stored segments, also while other sidecars write the object.

        Entries are appended without decoding the others. After every 1,000 entries, if the number
        has grown by a quarter since the last check, the entries of segments that are no longer
        stored are removed.

        Args:
            tp: The partition.
            segments: Base offset of each segment, and its time in ms since 1970.
            stored: Lists the committed `.log` objects; a new `_metadata` begins with their entries.
            expect_ours: Raises an ArchiveConflictError if another sidecar has written `offset.wm`.
                Called after `_metadata` was read here. A version that is newer than the sidecar's
                view of the archive may come from a quarantine, which has moved the segments away.

        Raises:
            ArchiveConflictError: other sidecars changed it each time; the same call can succeed
                later.
        """
        cached = self._cache.get(tp)
        if cached is None:
            cached = self._read(tp) or _ABSENT
            expect_ours()
        # A new `_metadata` lists every committed segment:
        # Pinterest's consumer skips a segment without an entry.
        version = self._begin(tp, stored()) if cached is _ABSENT else cached
        key = self._layout.metadata_key(tp)

        def change(version: _Version) -> _Version:
            data = append_segments(version.data, segments)
            if data is None:
                metadata = decode_metadata(version.data, key).with_segments(segments)
                data = encode_metadata(metadata)
            changed = version._replace(data=data)
            if _is_check_due(version, changed):
                return _without_gone(changed, key, self._bases(tp, stored()))
            return changed

        self._write(tp, version, change, stored, expect_ours)

    def rewrite(
        self, tp: TopicPartition, change: Callable[[PartitionMetadata], PartitionMetadata]
    ) -> None:
        """Change the stored `_metadata`, also while other sidecars write it.

        If there is none, `change` gets one without entries.

        Raises:
            ArchiveConflictError: other sidecars changed it each time; the same call can succeed
                later.
            MalformedObjectError: the stored object does not parse.
        """
        key = self._layout.metadata_key(tp)

        def changed(version: _Version) -> _Version:
            data = encode_metadata(change(decode_metadata(version.data, key)))
            return version._replace(data=data)

        self._write(tp, self._read(tp) or self._begin(tp, ()), changed, lambda: (), lambda: None)

    def _write(
        self,
        tp: TopicPartition,
        version: _Version,
        change: Callable[[_Version], _Version],
        stored: Callable[[], Iterable[ObjectSummary]],
        expect_ours: Callable[[], None],
    ) -> None:
        key = self._layout.metadata_key(tp)
        for _ in range(_TRIES):
            changed = change(version)
            # An object that is not stored yet is written even if nothing has changed.
            if version.etag is not None and changed.data == version.data:
                self._cache.put(tp, version)
                return
            try:
                body = BytesBody(changed.data)
                etag = self._store.put_object(key, body, PutOptions(condition=self._over(version)))
            except PreconditionFailedError:
                version = self._read(tp) or self._begin(tp, stored())
                # After the read: a quarantine that begins later rewrites `_metadata` itself.
                expect_ours()
            else:
                self._cache.put(tp, changed._replace(etag=etag))
                return
        # The next call reads the stored version.
        self._cache.pop(tp)
        raise ArchiveConflictError(f"{key} was changed by others {_TRIES} times in a row")

    def _read(self, tp: TopicPartition) -> _Version | None:
        try:
            answer = self._store.get_object(self._layout.metadata_key(tp))
        except ObjectNotFoundError:
            return None
        return _Version(answer.data, answer.head.etag)

    def _begin(self, tp: TopicPartition, logs: Iterable[ObjectSummary]) -> _Version:
        entries = self._bases(tp, logs).items()
        data = encode_metadata(PartitionMetadata(tp).with_segments(entries))
        return _Version(data, None, len(entries))

    def _bases(self, tp: TopicPartition, logs: Iterable[ObjectSummary]) -> dict[BaseOffset, int]:
        """Return the time of each `.log` in ms since 1970, by its base offset."""
        prefix = self._layout.partition_prefix(tp)
        return {
            parsed[0]: log.modified_ms
            for log in logs
            if (parsed := parse_object_key(log.key, prefix)) is not None
        }

    def _over(self, version: _Version) -> Condition | None:
        return IfAbsent() if version.etag is None else IfMatch(version.etag)


def _is_check_due(before: _Version, after: _Version) -> bool:
    old, new = count_entries(before.data) or 0, count_entries(after.data) or 0
    if new // _CHECK_EVERY <= old // _CHECK_EVERY:
        return False
    return new >= before.kept + before.kept // 4


def _without_gone(version: _Version, key: str, stored: Collection[BaseOffset]) -> _Version:
    """Remove the entries of segments that are no longer stored.

    Entries above the last `stored` segment stay: the listing does not cover them.
    """
    if not stored:
        return version
    last = max(stored)
    metadata = decode_metadata(version.data, key)
    kept = [e for e in metadata.entries if e.base_offset in stored or e.base_offset > last]
    data = encode_metadata(metadata.with_entries(kept))
    return version._replace(data=data, kept=len(kept))
