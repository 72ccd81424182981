"""Find the live tail packs of a cluster in one store, and read their rows.

Requests: one listing of the brokers; for each broker one GET of the index object, then one LIST for
every 1,000 packs; for each pack one ranged GET of its end (two if the pack's index does not fit in
it; with encryption keys one more, for the header of the encrypted format).

Packs never change: their rows, or at least the partitions that they have rows of, are kept by key
and etag. So to read the rows of some partitions again, only new packs are requested, and those that
have such rows. The index object is read before the listing: it cannot name a pack that cleaning has
written since as dropped, so that one is live.
"""

import threading
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

from sidetier.archive.objects.tail_index import StoredTailIndex, read_tail_index
from sidetier.archive.tail.merge import (
    NEVER_MS,
    ArchivedPart,
    MergedTail,
    PackedRow,
    PackRef,
    merge,
)
from sidetier.archive.tail.pack import PackIndex, TailRow, decode_footer, decode_index
from sidetier.segments.errors import (
    ArchiveConflictError,
    ChecksumMismatchError,
    EncryptionError,
    EncryptionKeyError,
    MalformedObjectError,
    ObjectNotFoundError,
    PreconditionFailedError,
    SidetierError,
)
from sidetier.segments.keys import ArchiveLayout, parse_tail_directory, parse_tail_pack_key
from sidetier.segments.lru import Lru
from sidetier.segments.offsets import BrokerId, TopicPartition
from sidetier.storage.port import IfMatch, RemoteStorage
from sidetier.storage.ranges import read_range

END_BYTES: Final = 64 * 1024
"""Bytes of the first request of a pack: an index of about 2,500 rows fits."""
_SEALED_HEADER: Final = 2048
_SEALED_SHARE: Final = 4096
"""Encryption adds a header, and less than one byte for this number of bytes."""
_READINGS: Final = 4
PACK_GONE: Final = (ObjectNotFoundError, PreconditionFailedError)
"""The pack was deleted since it was listed."""
UNREADABLE: Final = (*PACK_GONE, MalformedObjectError, ChecksumMismatchError, EncryptionError)
"""One pack cannot be read. Other errors are of the store."""


@dataclass(frozen=True, slots=True)
class TailContents:
    """The live packs of a cluster in one store.

    Attributes:
        packs: The packs, by broker and number.
        rows: The rows by partition, in order of broker and number.
        problems: Packs and index objects that cannot be read: the reason, by key. A pack that the
            index names and that is not stored is one of them. The tails may then have gaps.
        footers: Number of packs that were read from the store.
        unread: Packs that cannot be read, and may have rows of any partition. For a reader that
            has no key of any encrypted pack, such packs are not among them: it reads other topics.
    """

    packs: tuple[PackRef, ...]
    rows: Mapping[TopicPartition, Sequence[PackedRow]]
    problems: Mapping[str, str]
    footers: int
    unread: Sequence[PackRef] = ()

    def merged(self, tp: TopicPartition, archived: ArchivedPart) -> MergedTail:
        """Merge the rows of a partition. Raises as `merge`."""
        return merge(archived, self.rows.get(tp, ()), self.unread)

    def may_have_tail(self, tp: TopicPartition) -> bool:
        """Whether a partition without an archive has a tail, or it is not known whether it has."""
        try:
            merged = self.merged(tp, ArchivedPart())
        except ArchiveConflictError:
            return True
        return bool(merged.slices) or merged.unread is not None


@dataclass(frozen=True, slots=True)
class PackListing:
    """The live packs of one broker.

    Attributes:
        packs: Those that are stored, by number.
        missing: Those that the index object names, and that are not stored.
        problems: The reason, by key.
    """

    packs: list[PackRef]
    missing: list[PackRef]
    problems: dict[str, str]


class _Read:
    """The packs of one reading, as far as they are read."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[TailRow, ...]] = {}
        self.unread: list[PackRef] = []
        self.locked: list[PackRef] = []
        """Encrypted with a key that is not configured."""
        self.problems: dict[str, str] = {}
        self.footers = 0

    def take(
        self, found: Iterable[tuple[PackRef, "_Found | SidetierError"]], *, is_last: bool
    ) -> list[BrokerId]:
        """Take rows and errors. Return the brokers whose packs are to be listed again."""
        gone: set[BrokerId] = set()
        for pack, result in found:
            if isinstance(result, PACK_GONE) and not is_last:
                gone.add(pack.broker)
            elif isinstance(result, SidetierError):
                self.problems[pack.key] = str(result)
                is_locked = isinstance(result, EncryptionKeyError)
                (self.locked if is_locked else self.unread).append(pack)
            else:
                self.rows[pack.key] = result.rows
                self.footers += result.is_read
        return sorted(gone)


class _Found(NamedTuple):
    """The wanted rows of a pack, and whether its end was requested."""

    rows: tuple[TailRow, ...]
    is_read: bool


class _KnownPartitions:
    """Which partitions packs have rows of: 4 bytes for each. Thread-safe.

    Args:
        capacity: Maximum number of partitions of all packs together.
    """

    def __init__(self, capacity: int) -> None:
        self._guard = threading.Lock()
        self._capacity = capacity
        self._numbers: dict[TopicPartition, int] = {}
        self._packs = Lru[tuple[str, str], "array[int]"](capacity, len)

    def put(self, pack: PackRef, partitions: Iterable[TopicPartition]) -> None:
        """Note the partitions of a pack."""
        with self._guard:
            if len(self._numbers) > self._capacity:  # topics come and go
                self._numbers.clear()
                self._packs.clear()
            numbers = self._numbers
            known = array("I", [numbers.setdefault(tp, len(numbers)) for tp in partitions])
            self._packs.put((pack.key, pack.etag), known)

    def lacks(self, pack: PackRef, partitions: Iterable[TopicPartition]) -> bool:
        """Return whether a pack is known to have no row of these partitions."""
        with self._guard:
            known = self._packs.get((pack.key, pack.etag))
            if known is None:
                return False
            return {self._numbers.get(tp, -1) for tp in partitions}.isdisjoint(known)


class TailInventory:
    """Reads the live packs of a cluster in one store. Thread-safe; keeps rows between readings.

    After a reading of all packs and partitions, the rows of the live packs are kept, however many:
    about half a kilobyte each. An LRU that is a little too small would keep next to nothing.

    Args:
        store: The store.
        layout: How keys are made.
        concurrency: Maximum number of requests at the same time.
        max_known_partitions: Maximum number of partitions that are remembered of all packs, in
            place of their rows; 4 bytes each.
        refuses_plain: Whether records of this topic are not read from a pack that is not encrypted
            (`StorageEndpoint.refuses_plain`).
    """

    def __init__(
        self,
        store: RemoteStorage,
        layout: ArchiveLayout,
        *,
        concurrency: int = 16,
        max_known_partitions: int = 4_000_000,
        refuses_plain: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._store = store
        self._layout = layout
        self._concurrency = concurrency
        self._refuses_plain = refuses_plain
        self._kept: Mapping[tuple[str, str], tuple[TailRow, ...]] = {}
        self._known = _KnownPartitions(max_known_partitions)
        self._has_key = False

    @property
    def store(self) -> RemoteStorage:
        """The store."""
        return self._store

    def brokers(self) -> list[BrokerId]:
        """List the brokers that have a tail. One request."""
        prefix = self._layout.tails_prefix()
        found = (parse_tail_directory(d, prefix) for d in self._store.list_directories(prefix))
        return sorted(broker for broker in found if broker is not None)

    def rows(self, pack: PackRef) -> tuple[TailRow, ...]:
        """Read the rows of a pack, or take them from the kept ones.

        Raises:
            ObjectNotFoundError, PreconditionFailedError: The pack was deleted since it was listed.
            MalformedObjectError: It is damaged, or was written by a newer version.
        """
        found = self._kept.get((pack.key, pack.etag))
        return self._read_rows(pack, None) if found is None else found

    def read(
        self,
        brokers: Iterable[BrokerId] | None = None,
        partitions: Collection[TopicPartition] | None = None,
    ) -> TailContents:
        """Read all live packs. If one was deleted meanwhile, list the packs of its broker again.

        Args:
            brokers: Only packs of these brokers; None for all.
            partitions: Only the rows of these; None for all.

        Raises:
            StorageError: A request failed, otherwise than because a pack does not exist.
        """
        with ThreadPoolExecutor(self._concurrency, "tail-packs") as helpers:
            chosen = self.brokers() if brokers is None else sorted(set(brokers))
            listings = dict(zip(chosen, helpers.map(self.listing, chosen), strict=True))
            wanted = None if partitions is None else frozenset(partitions)
            read = _Read()
            for reading in range(_READINGS):
                pending = [
                    pack
                    for listing in listings.values()
                    for pack in listing.packs
                    if pack.key not in read.rows and pack.key not in read.problems
                ]
                results = helpers.map(lambda pack: self._try(pack, wanted), pending)
                found = zip(pending, results, strict=True)
                gone = read.take(found, is_last=reading == _READINGS - 1)
                if not gone:
                    break
                listings |= zip(gone, helpers.map(self.listing, gone), strict=True)
        packs = [p for broker in chosen for p in listings[broker].packs if p.key in read.rows]
        by_partition: dict[TopicPartition, list[PackedRow]] = defaultdict(list)
        for pack in packs:
            for row in read.rows[pack.key]:
                by_partition[row.tp].append(PackedRow(pack, row))
        if brokers is None and wanted is None:
            self._kept = {(pack.key, pack.etag): read.rows[pack.key] for pack in packs}
        for listing in listings.values():
            read.problems |= listing.problems
            read.unread += listing.missing
        if self._has_key:
            read.unread += read.locked
        return TailContents(
            tuple(packs), dict(by_partition), read.problems, read.footers, tuple(read.unread)
        )

    def listing(self, broker: BrokerId) -> PackListing:
        """List the packs of a broker. A damaged index object makes all packs live."""
        index = StoredTailIndex()
        for _ in range(_READINGS):
            try:
                index = read_tail_index(self._store, self._layout, broker)
            except MalformedObjectError as error:
                listing = self._live(broker, StoredTailIndex())
                listing.problems[self._layout.tail_index_key(broker)] = str(error)
                return listing
            listing = self._live(broker, index)
            if not listing.problems:
                break
            # Cleaning may have written the index and deleted packs since the index was read.
            if read_tail_index(self._store, self._layout, broker).etag == index.etag:
                break
        return listing

    def _live(self, broker: BrokerId, stored: StoredTailIndex) -> PackListing:
        prefix = self._layout.tail_packs_prefix(broker)
        index, packs = stored.index, list[PackRef]()
        for row in self._store.list_objects(prefix):
            number = parse_tail_pack_key(row.key, prefix)
            if number is not None and (index is None or index.is_live(number)):
                packs.append(PackRef(broker, number, row.key, row.etag, row.size, row.modified_ms))
        listed = {pack.number for pack in packs}
        numbers = [] if index is None else [n for n in index.packs if n not in listed]
        missing = [_missing(self._layout, broker, number, packs) for number in numbers]
        index_key = self._layout.tail_index_key(broker)
        text = f"{index_key} names this pack, and it is not stored"
        return PackListing(packs, missing, {pack.key: text for pack in missing})

    def _try(
        self, pack: PackRef, wanted: frozenset[TopicPartition] | None
    ) -> _Found | SidetierError:
        """Read the wanted rows of a pack, or return why one pack cannot be read."""
        cached = self._kept.get((pack.key, pack.etag))
        try:
            if cached is not None or wanted is None:
                rows = self._read_rows(pack, None) if cached is None else cached
                chosen = rows if wanted is None else tuple(row for row in rows if row.tp in wanted)
                return _Found(chosen, is_read=cached is None)
            if self._known.lacks(pack, wanted):
                return _Found((), is_read=False)
            return _Found(self._read_rows(pack, wanted), is_read=True)
        except UNREADABLE as error:
            return error

    def _read_rows(
        self, pack: PackRef, wanted: frozenset[TopicPartition] | None
    ) -> tuple[TailRow, ...]:
        index = self._read_either_index(pack, wanted)
        self._known.put(pack, index.partitions)
        return index.rows

    def _read_either_index(
        self, pack: PackRef, wanted: frozenset[TopicPartition] | None
    ) -> PackIndex:
        try:
            return self._read_index(pack, wanted)
        except MalformedObjectError:
            # A store without encryption keys does not see in a listing that a pack is encrypted.
            # Once it has read the metadata of one, it decrypts, or its error names the key.
            if self._store.head_object(pack.key).size == pack.size:
                raise
            return self._read_index(pack, wanted)

    def _read_index(self, pack: PackRef, wanted: frozenset[TopicPartition] | None) -> PackIndex:
        # The listed size of an encrypted pack is larger than that of its plaintext, which ends
        # where the answer ends.
        surplus = _SEALED_HEADER + pack.size // _SEALED_SHARE
        start = max(pack.size - END_BYTES - surplus, 0)
        data = self._range(pack, start, pack.size)
        size = start + len(data)
        footer = decode_footer(data, size, pack.key)
        if footer.position >= start:
            index = data[footer.position - start :][: footer.length]
        else:
            index = self._range(pack, footer.position, footer.position + footer.length)
        found = decode_index(index, footer, pack.key, wanted)
        if size == pack.size:
            self._check_may_be_plain(pack, {tp.topic for tp in found.partitions})
        else:
            self._has_key = True
        return found

    def _check_may_be_plain(self, pack: PackRef, topics: Iterable[str]) -> None:
        for topic in topics:
            if self._refuses_plain(topic):
                raise EncryptionError(
                    f"{pack.key} is not encrypted and has records of {topic}, and "
                    "storage.encryption.refuse_plain names this topic: restore the encrypted "
                    "object, or remove the topic from refuse_plain"
                )

    def _range(self, pack: PackRef, start: int, end: int) -> bytes:
        return read_range(self._store, pack.key, start, end, condition=IfMatch(pack.etag))


def _missing(
    layout: ArchiveLayout, broker: BrokerId, number: int, packs: Iterable[PackRef]
) -> PackRef:
    """Return a pack that is not stored; it was stored before the next one of the broker."""
    later = (pack.modified_ms for pack in packs if pack.number > number)
    return PackRef(
        broker, number, layout.tail_pack_key(broker, number), "", 0, next(later, NEVER_MS)
    )
