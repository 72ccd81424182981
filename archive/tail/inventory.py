"""Find the live tail packs of a cluster in one store, and read their rows.

Requests: one listing of the brokers; for each broker one GET of the index object, then one LIST for
every 1,000 packs; for each pack one ranged GET of its end (two if the pack's index does not fit in
it; with encryption keys one more, for the header of the encrypted format). Packs never change, so
their rows are kept, by key and etag. The index object is read before the listing: a pack that
cleaning has written since is then live by its number.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from sidetier.archive.objects.tail_index import StoredTailIndex, read_tail_index
from sidetier.archive.tail.merge import ArchivedPart, MergedTail, PackedRow, PackRef, merge
from sidetier.archive.tail.pack import TailRow, decode_footer, decode_index
from sidetier.segments.errors import (
    ChecksumMismatchError,
    EncryptionError,
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


@dataclass(frozen=True, slots=True)
class TailContents:
    """The live packs of a cluster in one store.

    Attributes:
        packs: The packs, by broker and number.
        rows: The rows by partition, in order of broker and number.
        problems: Packs and index objects that cannot be read: the reason, by key. A pack that the
            index names and that is not stored is one of them. The tails may then have gaps.
        footers: Number of packs whose rows were read from the store, and not kept.
    """

    packs: tuple[PackRef, ...]
    rows: Mapping[TopicPartition, Sequence[PackedRow]]
    problems: Mapping[str, str]
    footers: int

    def merged(self, tp: TopicPartition, archived: ArchivedPart) -> MergedTail:
        """Merge the rows of a partition. Raises as `merge`."""
        return merge(archived, self.rows.get(tp, ()))


@dataclass(frozen=True, slots=True)
class _Listing:
    packs: list[PackRef]
    problems: dict[str, str]


class _Read:
    """The packs of one reading, as far as they are read."""

    def __init__(self, wanted: Callable[[TailRow], bool] | None) -> None:
        self._wanted = wanted
        self.rows: dict[str, tuple[TailRow, ...]] = {}
        self.problems: dict[str, str] = {}
        self.footers = 0

    def take(
        self,
        found: Iterable[tuple[PackRef, tuple[TailRow, ...] | SidetierError]],
        *,
        is_last: bool,
    ) -> list[BrokerId]:
        """Take rows and errors. Return the brokers whose packs are to be listed again."""
        gone: set[BrokerId] = set()
        for pack, rows in found:
            if isinstance(rows, PACK_GONE) and not is_last:
                gone.add(pack.broker)
            elif isinstance(rows, SidetierError):
                self.problems[pack.key] = str(rows)
            else:
                keeps_all = self._wanted is None
                self.rows[pack.key] = rows if keeps_all else tuple(filter(self._wanted, rows))
        return sorted(gone)


class TailInventory:
    """Reads the live packs of a cluster in one store. Thread-safe; keeps rows between readings.

    Args:
        store: The store.
        layout: How keys are made.
        concurrency: Maximum number of requests at the same time.
        max_cached_rows: Maximum number of rows that are kept for the next reading; one takes about
            half a kilobyte.
        refuses_plain: Whether records of this topic are not read from a pack that is not encrypted
            (`StorageEndpoint.refuses_plain`).
    """

    def __init__(
        self,
        store: RemoteStorage,
        layout: ArchiveLayout,
        *,
        concurrency: int = 16,
        max_cached_rows: int = 200_000,
        refuses_plain: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._store = store
        self._layout = layout
        self._concurrency = concurrency
        self._refuses_plain = refuses_plain
        self._cache = Lru[tuple[str, str], tuple[TailRow, ...]](max_cached_rows, len)

    @property
    def store(self) -> RemoteStorage:
        """The store."""
        return self._store

    def brokers(self) -> list[BrokerId]:
        """List the brokers that have a tail. One request."""
        prefix = self._layout.tails_prefix()
        found = (parse_tail_directory(d, prefix) for d in self._store.list_directories(prefix))
        return sorted(broker for broker in found if broker is not None)

    def packs(self, broker: BrokerId) -> list[PackRef]:
        """List the live packs of a broker, by number.

        Raises:
            MalformedObjectError: Its index object does not parse.
        """
        return self._live(broker, read_tail_index(self._store, self._layout, broker)).packs

    def rows(self, pack: PackRef) -> tuple[TailRow, ...]:
        """Read the rows of a pack, or take them from the kept ones.

        Raises:
            ObjectNotFoundError, PreconditionFailedError: The pack was deleted since it was listed.
            MalformedObjectError: It is damaged, or was written by a newer version.
        """
        return self._cache.get_or((pack.key, pack.etag), lambda: self._read_rows(pack))

    def read(
        self,
        brokers: Iterable[BrokerId] | None = None,
        wanted: Callable[[TailRow], bool] | None = None,
    ) -> TailContents:
        """Read all live packs. If one was deleted meanwhile, list the packs of its broker again.

        Args:
            brokers: Only packs of these brokers; None for all.
            wanted: Only these rows; None for all.

        Raises:
            StorageError: A request failed, otherwise than because a pack does not exist.
        """
        with ThreadPoolExecutor(self._concurrency, "tail-packs") as helpers:
            chosen = self.brokers() if brokers is None else sorted(set(brokers))
            listings = dict(zip(chosen, helpers.map(self._list, chosen), strict=True))
            read = _Read(wanted)
            for reading in range(_READINGS):
                pending = [
                    pack
                    for listing in listings.values()
                    for pack in listing.packs
                    if pack.key not in read.rows and pack.key not in read.problems
                ]
                read.footers += sum((each.key, each.etag) not in self._cache for each in pending)
                found = zip(pending, helpers.map(self._try, pending), strict=True)
                gone = read.take(found, is_last=reading == _READINGS - 1)
                if not gone:
                    break
                listings |= zip(gone, helpers.map(self._list, gone), strict=True)
        packs = [p for broker in chosen for p in listings[broker].packs if p.key in read.rows]
        by_partition: dict[TopicPartition, list[PackedRow]] = defaultdict(list)
        for pack in packs:
            for row in read.rows[pack.key]:
                by_partition[row.tp].append(PackedRow(pack, row))
        for listing in listings.values():
            read.problems |= listing.problems
        return TailContents(tuple(packs), dict(by_partition), read.problems, read.footers)

    def _list(self, broker: BrokerId) -> _Listing:
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

    def _live(self, broker: BrokerId, stored: StoredTailIndex) -> _Listing:
        prefix = self._layout.tail_packs_prefix(broker)
        index, packs = stored.index, list[PackRef]()
        for row in self._store.list_objects(prefix):
            number = parse_tail_pack_key(row.key, prefix)
            if number is not None and (index is None or index.is_live(number)):
                packs.append(PackRef(broker, number, row.key, row.etag, row.size, row.modified_ms))
        listed = {pack.number for pack in packs}
        missing = [] if index is None else [n for n in index.packs if n not in listed]
        problems = {
            self._layout.tail_pack_key(broker, number): (
                f"{self._layout.tail_index_key(broker)} names this pack, and it is not stored"
            )
            for number in missing
        }
        return _Listing(packs, problems)

    def _try(self, pack: PackRef) -> tuple[TailRow, ...] | SidetierError:
        """Read the rows of a pack, or return why one pack cannot be read."""
        try:
            return self.rows(pack)
        except (*PACK_GONE, MalformedObjectError, ChecksumMismatchError, EncryptionError) as error:
            return error

    def _read_rows(self, pack: PackRef) -> tuple[TailRow, ...]:
        try:
            return self._read_index(pack)
        except MalformedObjectError:
            # A store without encryption keys does not see in a listing that a pack is encrypted.
            # Once it has read the metadata of one, it decrypts, or its error names the key.
            if self._store.head_object(pack.key).size == pack.size:
                raise
            return self._read_index(pack)

    def _read_index(self, pack: PackRef) -> tuple[TailRow, ...]:
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
        rows = decode_index(index, footer, pack.key)
        if size == pack.size:
            self._check_may_be_plain(pack, {row.tp.topic for row in rows})
        return rows

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
