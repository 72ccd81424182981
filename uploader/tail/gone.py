"""Clean the packs of brokers whose sidecars do not: `sidetier gc --tail-packs`.

No witness is needed that a broker is gone. Cleaning is the same as by its sidecar (`cleaning`): it
drops a row only if another object has its records. A sidecar that comes back, or that never was
away, finds packs that it would have dropped itself: a new pack is live whatever the index object
says, and the index object is written with If-Match. So a minimum age only keeps the command from
doing again what the sidecars do.

A kill leaves what a kill of a sidecar's cleaning leaves. The next run goes on: it takes from the
time of the index object how long packs have been dropped.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Final

from sidetier.archive.access import ArchiveAccess, require_fencing
from sidetier.archive.objects.layout import LayoutNote, check_stored_note, other_cluster
from sidetier.archive.objects.tail_index import read_index_to_replace
from sidetier.archive.tail.inventory import UNREADABLE, PackListing, TailInventory
from sidetier.archive.tail.merge import PackedRow
from sidetier.config.storage import StorageConfig
from sidetier.leadership.topic_identity import ask_identity
from sidetier.segments.errors import ConfigurationError, PreconditionFailedError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import BrokerId
from sidetier.storage.port import IfMatch
from sidetier.uploader.clock import Clock
from sidetier.uploader.tail.cleaning import (
    QUARANTINED_AFTER,
    IsDeleted,
    TailCleaner,
    not_known_to_be_deleted,
    stored_archive,
    stored_retired,
)
from sidetier.uploader.tail.packs import PackNumbers, TailPlace, first_number

if TYPE_CHECKING:
    from sidetier.wire.cluster import Cluster

_CLEANINGS: Final = 2
"""The first stores lost records in quarantine; the second drops their rows."""

PlaceOf = Callable[[str], TailPlace]
InventoryOf = Callable[[TailPlace | PackNumbers], TailInventory]


@dataclass(frozen=True, slots=True)
class CleanedTail:
    """The packs of one broker in one store.

    Attributes:
        broker: The broker.
        url: The store.
        packs: Its live packs before.
        size_bytes: Their bytes.
        newest_ms: When the newest was stored, in ms since 1970; None without one.
        is_cleaned: Whether it was cleaned: not if it has stored new records lately.
        dropped_packs: Packs that are not live any more. A later run deletes them.
        dropped_bytes: Their bytes.
        copied_bytes: Bytes of their rows that are copied into new packs.
        deleted_packs: Packs that were dropped an hour ago or earlier, and are deleted.
        deleted_bytes: Their bytes.
        quarantined_offsets: Offsets whose records the cluster has lost, and that are stored in the
            quarantine.
        kept: Why other packs and rows stay, by partition or key.
        problem: What has failed.
    """

    broker: BrokerId
    url: str
    packs: int = 0
    size_bytes: int = 0
    newest_ms: int | None = None
    is_cleaned: bool = False
    dropped_packs: int = 0
    dropped_bytes: int = 0
    copied_bytes: int = 0
    deleted_packs: int = 0
    deleted_bytes: int = 0
    quarantined_offsets: int = 0
    kept: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None


class DeletedTopics:
    """Asks the brokers which topics are deleted.

    Args:
        cluster: The brokers.
        note: The content of `layout.json`, which has the cluster's id.
        layout: How keys are made.
    """

    def __init__(self, cluster: "Cluster", note: LayoutNote | None, layout: ArchiveLayout) -> None:
        self._cluster = cluster
        self._note = note
        self._layout = layout

    def __call__(self, topic: str, topic_id: str) -> bool:
        """Return whether the cluster has no topic of this name and id.

        Raises:
            BrokerError: No broker answers, or it refuses.
            ConfigurationError: They are not known to be the brokers of the archived cluster, or
                they have no topic ids.
        """
        identity = ask_identity(self._cluster, topic)
        self._check(identity.cluster_id)
        if identity.partitions and identity.topic_id is None:
            raise ConfigurationError("the brokers report no topic ids (Kafka before 2.8)")
        return identity.topic_id != topic_id

    def check(self) -> None:
        """Raise as a call does, before anything is cleaned."""
        self._check(self._cluster.metadata(()).cluster_id)

    def _check(self, cluster_id: str | None) -> None:
        reason = other_cluster(self._note, self._layout, cluster_id)
        if reason is not None:
            raise ConfigurationError(reason)


def clean_tails(  # noqa: PLR0913 - one argument for each choice
    archive: ArchiveAccess,
    storage: StorageConfig,
    place_of: PlaceOf,
    inventory_of: InventoryOf,
    older_than: float,
    clock: Clock,
    *,
    is_deleted: IsDeleted = not_known_to_be_deleted,
    dry_run: bool = False,
) -> list[CleanedTail]:
    """Clean the packs of the brokers that have stored no new records lately.

    Open the archive with permission to delete objects.

    Args:
        archive: The archive.
        storage: Its configuration; only `fencing` is read.
        place_of: Where packs of a topic are stored.
        inventory_of: Reads the live packs of a store.
        older_than: Minimum age of a broker's newest records in packs, in seconds.
        clock: The time.
        is_deleted: As of `TailCleaner`.
        dry_run: Write nothing.

    Raises:
        ConfigurationError: A store belongs to another cluster, or has no conditional writes.
        StorageError: The brokers cannot be listed. Later errors are in the result.
    """
    done = []
    for endpoint, store in archive.by_endpoint.items():
        require_fencing(storage, store, endpoint.url)
        check_stored_note(store, archive.layout, None)
        unused = count(first_number(clock.wall()))
        for broker in inventory_of(TailPlace(store, archive.layout, encrypts=False)).brokers():
            numbers = PackNumbers(store, archive.layout, broker, unused)
            cleaner = TailCleaner(
                lambda numbers=numbers: [numbers],  # type: ignore[misc]
                inventory_of,
                place_of,
                stored_archive(place_of),
                stored_retired(place_of),
                broker,
                clock,
                is_deleted=is_deleted,
                # A sidecar waits as long, so that it does not mistake a divergence for a loss.
                quarantined_after=max(0.0, QUARANTINED_AFTER - older_than),
                dry_run=dry_run,
            )
            limit_ms = (clock.wall() - older_than) * 1000
            found = CleanedTail(broker, endpoint.url)
            done.append(_cleaned(found, cleaner, numbers, inventory_of(numbers), limit_ms))
    return done


def _cleaned(
    found: CleanedTail,
    cleaner: TailCleaner,
    numbers: PackNumbers,
    inventory: TailInventory,
    limit_ms: float,
) -> CleanedTail:
    problem = None
    try:
        listing = inventory.listing(found.broker)
        found = replace(
            found,
            packs=len(listing.packs),
            size_bytes=sum(pack.size for pack in listing.packs),
            newest_ms=max((pack.modified_ms for pack in listing.packs), default=None),
            is_cleaned=_is_old(inventory, listing, limit_ms),
        )
        if not found.is_cleaned:
            return found
        for _ in range(_CLEANINGS):
            quarantined = cleaner.totals.quarantined_offsets
            cleaner.run(dict)  # this process leads no partition
            if cleaner.dry_run or cleaner.totals.quarantined_offsets == quarantined:
                break
        if not cleaner.dry_run:
            _remove_index(numbers)
    except Exception as error:  # noqa: BLE001 - as `TailCleaner.run`; other brokers follow
        problem = str(error) or repr(error)
    totals = cleaner.totals
    return replace(
        found,
        dropped_packs=totals.dropped_packs,
        dropped_bytes=totals.dropped_bytes,
        copied_bytes=totals.rewritten_bytes,
        deleted_packs=totals.deleted_packs,
        deleted_bytes=totals.deleted_bytes,
        quarantined_offsets=totals.quarantined_offsets,
        kept=dict(cleaner.kept),
        problem=problem,
    )


def _is_old(inventory: TailInventory, listing: PackListing, limit_ms: float) -> bool:
    """Whether all records of a broker were stored before a time. A copy has those of older packs.

    A pack that cannot be read counts with its own time.
    """
    for pack in reversed(listing.packs):
        if pack.modified_ms < limit_ms:
            continue
        try:
            rows = inventory.rows(pack)
        except UNREADABLE:
            return False
        if any(PackedRow(pack, row).first_stored_ms >= limit_ms for row in rows):
            return False
    return True


def _remove_index(numbers: PackNumbers) -> None:
    """Delete the index object of a broker without packs. A kill before it leaves it to the next
    run. A pack that is stored meanwhile is live without it, too.
    """
    store, layout, broker = numbers.store, numbers.layout, numbers.broker
    stored = read_index_to_replace(store, layout, broker)
    if stored.etag is None or stored.index is None or stored.index.packs:
        return
    if next(iter(store.list_objects(layout.tail_packs_prefix(broker))), None) is None:
        with suppress(PreconditionFailedError):
            key = layout.tail_index_key(broker)
            store.delete_object(key, condition=IfMatch(stored.etag))
