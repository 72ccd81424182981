"""Remove from the tail what other objects have. On a thread of its own.

`archive.tail.needed_rows` decides about each row, by the archive alone. Packs without a needed row
are left out of the index. Small packs, and those of which few bytes are needed, are copied into
larger ones: whole rows with their bytes, compared with their checksums. The log is not read, and no
broker is asked, so packs of partitions that other brokers lead are cleaned as well.

Order of writes, and what a kill leaves:

0. Records that the cluster has lost go to the quarantine (`quarantine`), an hour after the archive
   was first seen to have others, or none, at their offsets.
1. New packs: ranges twice, with equal bytes. The next cleaning drops one of each.
2. The index object (If-Match), without the old packs: packs that are not live.
3. One hour later, for readers, the old packs are deleted: nothing.

A pack that cannot be read stays, as does every row of a partition whose archive cannot be read. An
index object that does not parse is replaced: cleaning judges all packs anew.

Any process may clean the packs of a broker, also beside its sidecar: the archive decides, and of
two index objects one wins. `gone` cleans those of brokers whose sidecars do not.

Memory: the rows of one pack, then a bit for each row, and a chunk of the bytes of a copy
(`copying`).
"""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Generic, NamedTuple, TypeVar

import structlog

from sidetier.archive.objects.gaps import listed_gaps, recorded_gaps
from sidetier.archive.objects.leader_epochs import read_epoch_history
from sidetier.archive.objects.tail_index import (
    StoredTailIndex,
    read_index_to_replace,
    write_tail_index,
)
from sidetier.archive.objects.watermark import read_watermark
from sidetier.archive.tail.inventory import UNREADABLE, TailInventory
from sidetier.archive.tail.merge import (
    ArchivedPart,
    PackedRow,
    PackRef,
    below_start,
    replaced,
)
from sidetier.archive.tail.needed_rows import Kept, Need, need_of
from sidetier.archive.tail.pack import (
    FULL_INDEX_BYTES,
    TailRow,
    index_bytes,
)
from sidetier.archive.tail.retired import retired_parts
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.errors import (
    ChecksumMismatchError,
    MalformedObjectError,
    PreconditionFailedError,
    SegmentError,
    SidetierError,
)
from sidetier.segments.keys import parse_tail_pack_key
from sidetier.segments.offsets import (
    MAX_OFFSET,
    BrokerId,
    LeaderEpoch,
    Offset,
    OffsetRange,
    TopicPartition,
)
from sidetier.storage.port import LISTED_AT_ONCE, ObjectSummary, RemoteStorage
from sidetier.uploader.clock import Clock
from sidetier.uploader.gates.remembered_epochs import read_local_epochs
from sidetier.uploader.tail.board import TailPartition
from sidetier.uploader.tail.copying import PackCopy, UnreadablePackError
from sidetier.uploader.tail.packs import PackNumbers, TailPlace, store_pack
from sidetier.uploader.tail.quarantine import runs_in, store_run
from sidetier.uploader.watching.disk import topic_id_in

_Key = TypeVar("_Key")
_Result = TypeVar("_Result")
log: Final = structlog.get_logger()
MIN_LIVE_SHARE: Final = 0.25
"""Packs of which a smaller share of the bytes is needed are copied."""
SIZE_CLASSES: Final = (64 << 10, 512 << 10, 4 << 20, 18 << 20)
"""Packs with fewer needed bytes are small; those below the same limit are of one class. A broker
with 10 MB/s sends packs above the last limit, so most of its bytes are copied once, when few of
their neighbours are needed.
"""
MAX_SMALL_PACKS: Final = 8
"""This number of small packs of one class is copied into one."""
MIN_COPIED_BYTES: Final = 256 << 20
"""A cleaning copies this number of bytes, or `COPIED_SHARE` of the bytes of recent packs."""
COPIED_SHARE: Final = 0.6
"""Copies are recent packs, too. So cleanings copy at most 1.65 times the new bytes."""
RECENT: Final = 660.0
"""Seconds since a recent pack was stored: the usual time between two cleanings, and a minute."""
MAX_PACK_BYTES: Final = 256 << 20
MAX_PACK_ROWS: Final = 40_000
"""Rows that are copied into one pack, before those that follow each other are joined."""
DELETED_AFTER: Final = 3600.0
"""Seconds from the index without a pack to the pack's deletion."""
QUARANTINED_AFTER: Final = 3600.0
"""Seconds from the first cleaning that has found records to be lost."""
ASKED_AGAIN: Final = 3600.0
"""Seconds until the stored archive of a partition is read again."""
UNKNOWN_TOPIC_KEPT_FOR: Final = 86_400.0
"""Seconds for which rows of a topic are kept although the brokers do not know it: a broker that
starts, or lags behind, does not know a new topic yet.
"""
_DAMAGED: Final = (MalformedObjectError, ChecksumMismatchError)
"""Those that come again with the next reading."""
DAMAGED_AGAIN: Final = 3600.0
"""Seconds until a pack with a damaged range is read again for a copy."""


@dataclass(slots=True)
class StoredArchive:
    """What was read of an archive.

    Attributes:
        part: What it has, without its recorded gaps.
        read_gaps: Reads its recorded gaps; None if the archive has changed since `part` was read.
            Raises SidetierError.
    """

    part: ArchivedPart
    read_gaps: Callable[[], Sequence[OffsetRange] | None]
    _gaps: Sequence[OffsetRange] | None = None

    def gaps(self) -> Sequence[OffsetRange] | None:
        """Return the recorded gaps of the same state, which are read once; as `read_gaps`."""
        if self._gaps is None:
            self._gaps = self.read_gaps()
        return self._gaps


ArchivedOf = Callable[[TopicPartition], StoredArchive | None]
"""Reads what the archive has of a partition; None without an archive. Raises SidetierError."""
RetiredOf = Callable[[TopicPartition, str], Sequence[ArchivedPart]]
"""Reads what the retired archives of a partition have of a topic id. Raises SidetierError."""
IsDeleted = Callable[[str, str], bool]
"""Whether the topic of this name and id is known to be deleted. Raises SidetierError."""


def not_known_to_be_deleted(_topic: str, _topic_id: str) -> bool:
    """Return False: nothing shows which topics are deleted."""
    return False


class PackUse(NamedTuple):
    """What is needed of a pack.

    Attributes:
        pack: The pack.
        size: Bytes of its rows.
        live_bytes: Bytes of the needed rows.
        live_rows: Number of the needed rows.
        is_live: Whether each of its rows is needed, as a byte.
        may_copy: Whether its needed rows may be copied.
        must_copy: Whether it has lost records that are in the quarantine or in another row: as long
            as they are in a live pack, a restart would store them in the quarantine again. Or
            records of a deleted topic that are to be deleted without a copy.
        index_bytes: Bytes of the needed rows in the index of a pack.
    """

    pack: PackRef
    size: int
    live_bytes: int
    live_rows: int
    is_live: bytes
    may_copy: bool = True
    must_copy: bool = False
    index_bytes: int = 0

    @property
    def is_sparse(self) -> bool:
        """Whether most of its bytes are not needed."""
        return self.live_bytes < MIN_LIVE_SHARE * self.size

    @property
    def size_class(self) -> int | None:
        """Index of its limit in `SIZE_CLASSES`; None if it is not small."""
        found = (n for n, limit in enumerate(SIZE_CLASSES) if self.live_bytes < limit)
        return next(found, None)


class CleaningPlan(NamedTuple):
    """What to do with the packs of a broker.

    Attributes:
        keep: Packs that stay.
        drop: Packs without a needed row.
        copy: Packs whose needed rows are copied; each batch into one new pack, or two.
    """

    keep: tuple[PackRef, ...]
    drop: tuple[PackRef, ...]
    copy: tuple[tuple[PackUse, ...], ...]


def plan_cleaning(uses: Iterable[PackUse], now_ms: int) -> CleaningPlan:
    """Decide what happens to each pack. Pure. The oldest packs are copied first.

    `now_ms` is the store's time or ours, in ms since 1970.
    """
    uses = list(uses)
    since = now_ms - RECENT * 1000
    recent = sum(use.pack.size for use in uses if use.pack.modified_ms > since)
    max_bytes = max(MIN_COPIED_BYTES, int(COPIED_SHARE * recent))
    copy: list[tuple[PackUse, ...]] = []
    for batch in _batches(_to_copy(uses)):
        size = sum(use.live_bytes for use in batch)
        # One small pack that only moves is not worth a write.
        is_worth = len(batch) > 1 or batch[0].size >= SIZE_CLASSES[-1] or batch[0].must_copy
        if is_worth and size <= max_bytes:
            copy.append(batch)
            max_bytes -= size
    copied = {use.pack.number for batch in copy for use in batch}
    return CleaningPlan(
        tuple(use.pack for use in uses if use.live_rows and use.pack.number not in copied),
        tuple(use.pack for use in uses if not use.live_rows),
        tuple(copy),
    )


def _not_copied(uses: Iterable[PackUse], plan: CleaningPlan) -> dict[str, str]:
    """Return the packs that must be copied, and are not because of the limit, by key."""
    reason = "one cleaning does not copy more bytes; the next one continues"
    return {
        use.pack.key: reason
        for use in uses
        if use.must_copy and use.may_copy and use.pack in plan.keep
    }


def _to_copy(uses: Iterable[PackUse]) -> list[PackUse]:
    """Return the packs that are worth a copy, the oldest first."""
    small: dict[int, list[PackUse]] = defaultdict(list)
    chosen: list[PackUse] = []
    for use in uses:
        if not use.live_rows or not use.may_copy:
            continue
        if use.is_sparse or use.must_copy:
            chosen.append(use)
        elif use.size_class is not None:
            small[use.size_class].append(use)
    for members in small.values():
        if len(members) >= MAX_SMALL_PACKS:
            chosen += members
    return sorted(chosen, key=lambda use: use.pack.number)


def _batches(uses: Iterable[PackUse]) -> Iterator[tuple[PackUse, ...]]:
    batch: list[PackUse] = []
    size = rows = in_index = 0
    for use in uses:
        size, rows = size + use.live_bytes, rows + use.live_rows
        in_index += use.index_bytes
        is_full = rows > MAX_PACK_ROWS or in_index > FULL_INDEX_BYTES
        if batch and (size > MAX_PACK_BYTES or is_full):
            yield tuple(batch)
            batch, size, rows, in_index = [], use.live_bytes, use.live_rows, use.index_bytes
        batch.append(use)
    if batch:
        yield tuple(batch)


def stored_archive(place_of: Callable[[str], TailPlace]) -> ArchivedOf:
    """Return a function that reads what is archived of a partition; two requests, and two for its
    recorded gaps.

    A gap is recorded before the commit behind it, and a move of the archive takes its gaps along.
    So gaps count only if `offset.wm` is the same object before and behind their listing.
    """

    def read(tp: TopicPartition) -> StoredArchive | None:
        place = place_of(tp.topic)
        key = place.layout.watermark_key(tp)
        stored = read_watermark(place.store, key)
        if stored is None:
            return None
        mark, etag = stored.watermark, stored.etag

        def read_gaps() -> Sequence[OffsetRange] | None:
            if mark.pending is not None:
                return None
            gaps = recorded_gaps(place.store, place.layout, [tp])[tp]
            now = read_watermark(place.store, key)
            return gaps if now is not None and now.etag == etag else None

        epochs = read_epoch_history(place.store, place.layout, tp).epoch_history
        below = below_start(mark.start_offset)
        part = ArchivedPart(mark.next_offset, epochs, mark.topic_id, below)
        return StoredArchive(part, read_gaps)

    return read


def stored_retired(place_of: Callable[[str], TailPlace]) -> RetiredOf:
    """Return a function that reads what retired archives have of a topic id."""

    def read(tp: TopicPartition, topic_id: str) -> Sequence[ArchivedPart]:
        place = place_of(tp.topic)
        return retired_parts(place.store, place.layout, tp, topic_id)

    return read


@dataclass(slots=True)
class CleaningTotals:
    """The result of the last cleaning; from `rewritten_bytes` on, counts since the start.

    Attributes:
        live_packs: Packs of this broker with a needed row, and those that cannot be read.
        live_bytes: Bytes of needed rows.
        stored_bytes: Bytes of live packs.
        unread_packs: Live packs that cannot be read, also in part. They stay.
        unknown_partitions: Partitions whose archive cannot be read. Their rows stay.
        stale_offsets: Offsets whose records were committed, and that only packs have: the cluster
            has lost them in an unclean election or a power failure, or deleted them before they
            were archived. Their rows stay until they are in quarantine.
        rewritten_bytes: Bytes that were copied into new packs.
        dropped_packs: Packs that the index object has dropped since.
        dropped_bytes: Their bytes.
        deleted_packs: Packs that were deleted.
        deleted_bytes: Their bytes.
        quarantined_offsets: Offsets of rows that were stored in quarantine.
    """

    live_packs: int = 0
    live_bytes: int = 0
    stored_bytes: int = 0
    unread_packs: int = 0
    unknown_partitions: int = 0
    stale_offsets: int = 0
    rewritten_bytes: int = 0
    dropped_packs: int = 0
    dropped_bytes: int = 0
    deleted_packs: int = 0
    deleted_bytes: int = 0
    quarantined_offsets: int = 0


_RowKey = tuple[TopicPartition, tuple[str, int, int, int]]
"""Partition and place of a row."""


def _key_of(source: PackedRow) -> _RowKey:
    return source.row.tp, source.place


@dataclass(slots=True)
class _Seen:
    """What earlier cleanings of a store have seen. Times are monotonic.

    Attributes:
        dropped: Since when the index has dropped packs, by number.
        lost: Since when the archive has other records than rows, or none.
        moved: Rows whose records are in quarantine.
        damaged: Packs of which a range could not be read for a copy, by number: when, and why.
    """

    dropped: dict[int, float] = field(default_factory=dict)
    lost: dict[_RowKey, float] = field(default_factory=dict)
    moved: set[_RowKey] = field(default_factory=set)
    damaged: dict[int, tuple[float, str]] = field(default_factory=dict)


class _ForAnHour(Generic[_Key, _Result]):
    """Remembers what was read for an hour. An older state of an archive is right, too: what it has
    had is in no pack alone. That there was none shows nothing later: see `afresh`.
    """

    def __init__(self, read: Callable[[_Key], _Result], now: Callable[[], float]) -> None:
        self._read = read
        self._now = now
        self._known: dict[_Key, tuple[float, _Result]] = {}

    def __call__(self, key: _Key) -> _Result:
        known = self._known.get(key)
        if known is None or not self._is_young(known):
            return self.afresh(key)
        return known[1]

    def since(self, key: _Key, then: float) -> _Result:
        """Return what was read then or later."""
        known = self._known.get(key)
        return self.afresh(key) if known is None or known[0] < then else known[1]

    def afresh(self, key: _Key) -> _Result:
        """Read now, and remember it."""
        now = self._now()
        self.forget(key)
        result = self._read(key)
        self._known[key] = now, result
        return result

    def forget(self, key: _Key) -> None:
        """Read it with the next call."""
        self._known.pop(key, None)

    def purge(self) -> None:
        """Forget what is too old."""
        self._known = {key: known for key, known in self._known.items() if self._is_young(known)}

    def _is_young(self, known: tuple[float, _Result]) -> bool:
        return self._now() < known[0] + ASKED_AGAIN


class TailCleaner:
    """Cleans the packs of one broker in all stores.

    Args:
        stores: Returns the stores in use, with the numbers of this broker's packs there.
        inventory_of: Reads the live packs of a store.
        place_of: Where a topic is stored.
        archived_of: What the archive has of a partition that this broker does not lead, or whose
            archived leader epochs it has not read since it leads.
        retired_of: What retired archives have of a topic id.
        broker: This broker.
        clock: The time.
        is_deleted: Tells which topics are deleted. Rows of those without an archive of their topic
            id at its place are dropped, also if nothing else has their records.
        quarantined_after: Seconds until lost records are stored in quarantine.
        before_read: Called with a number of bytes before they are read for a copy. It may wait.
        dry_run: Write nothing; `totals` has what would be done.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - its ports
        self,
        stores: Callable[[], Iterable[PackNumbers]],
        inventory_of: Callable[[PackNumbers], TailInventory],
        place_of: Callable[[str], TailPlace],
        archived_of: ArchivedOf,
        retired_of: RetiredOf,
        broker: BrokerId,
        clock: Clock,
        *,
        is_deleted: IsDeleted = not_known_to_be_deleted,
        quarantined_after: float = QUARANTINED_AFTER,
        before_read: Callable[[int], None] = lambda _: None,
        dry_run: bool = False,
    ) -> None:
        self._stores = stores
        self._inventory_of = inventory_of
        self._place_of = place_of
        self._ask = _ForAnHour(archived_of, clock.monotonic)
        self._began = clock.monotonic()
        self._retired_of = retired_of
        self._ask_retired = _ForAnHour(self._read_retired, clock.monotonic)
        self._is_deleted = is_deleted
        self._broker = broker
        self._clock = clock
        self._quarantined_after = quarantined_after
        self._before_read = before_read
        self.dry_run = dry_run
        self._seen: dict[int, _Seen] = defaultdict(_Seen)
        self._reported: dict[str, str] = {}
        """What was logged: it is not repeated as long as it lasts."""
        self.totals = CleaningTotals()

    def _read_retired(self, topic: tuple[TopicPartition, str]) -> Sequence[ArchivedPart] | None:
        """Read what retired archives have of a topic id; None if its archive is at its place.

        A retired archive is whole once `offset.wm` is gone: so that is read before, and in
        this cleaning.
        """
        tp, topic_id = topic
        stored = self._ask.since(tp, self._began)
        if stored is not None and stored.part.topic_id in {None, topic_id}:
            return None
        return self._retired_of(tp, topic_id)

    def run(
        self,
        led: Callable[[], Mapping[TopicPartition, TailPartition]],
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Clean each store once. An error in one store does not stop the others.

        Args:
            led: Returns the led partitions. Asked behind the listing of each store's packs, so that
                it knows the topic of each row.
            stopped: Whether to end soon.

        Raises:
            Exception: The last error, after all stores were tried.
        """
        failed: Exception | None = None
        totals = replace(
            self.totals,
            live_packs=0,
            live_bytes=0,
            stored_bytes=0,
            unread_packs=0,
            unknown_partitions=0,
            stale_offsets=0,
        )
        found: dict[str, str] = {}
        self._began = self._clock.monotonic()
        self._ask.purge()
        self._ask_retired.purge()
        for numbers in self._stores():
            moved = self._seen[id(numbers.store)].moved
            now_ms = int(self._clock.wall() * 1000)
            judge = _Judge(
                self._ask,
                self._ask_retired,
                self._is_deleted,
                self._place_of,
                moved,
                found,
                now_ms,
            )
            try:
                self._clean(numbers, judge, led, totals, stopped)
            except Exception as error:  # noqa: BLE001 - raised behind the last store
                failed = error
            totals.unknown_partitions += len(judge.unknown)
            totals.stale_offsets += judge.stale_offsets
        for what, reason in found.items():
            if self._reported.get(what) != reason:
                log.warning("tail.kept", what=what, reason=reason)
        self._reported = found
        self.totals = totals
        if failed is not None:
            raise failed

    @property
    def kept(self) -> Mapping[str, str]:
        """Why rows and packs stay, by partition or key, after the last cleaning."""
        return self._reported

    def _clean(
        self,
        numbers: PackNumbers,
        judge: "_Judge",
        led: Callable[[], Mapping[TopicPartition, TailPartition]],
        totals: CleaningTotals,
        stopped: Callable[[], bool],
    ) -> None:
        before = read_index_to_replace(numbers.store, numbers.layout, self._broker)
        inventory = self._inventory_of(numbers)
        listing = inventory.listing(self._broker)
        judge.led = led()
        unread = {pack.number for pack in listing.missing}
        judge.found |= listing.problems
        uses: list[PackUse] = []
        # The newest first: see `Kept`.
        for pack in reversed(listing.packs):
            if stopped():
                return
            try:
                uses.append(judge.use_of(pack, inventory.rows(pack)))
            except UNREADABLE as error:
                unread.add(pack.number)
                judge.found[pack.key] = str(error)
        uses, damaged = self._without_damaged(numbers, uses)
        self._quarantine(numbers, judge, totals)
        totals.live_packs += sum(use.live_rows > 0 for use in uses) + len(unread)
        totals.stored_bytes += sum(use.pack.size for use in uses)
        totals.live_bytes += sum(use.live_bytes for use in uses)
        plan = plan_cleaning(uses, int(self._clock.wall() * 1000))
        keep = {pack.number for pack in plan.keep} | unread
        for batch in plan.copy:
            size = None if stopped() else self._copy(numbers, inventory, batch, judge, damaged)
            totals.rewritten_bytes += size or 0
            if size is None:
                keep |= {use.pack.number for use in batch}
        judge.found |= _not_copied(uses, plan)
        keep |= damaged.keys()
        totals.unread_packs += len(unread) + len(damaged)
        judge.found |= {pack.key: reason for pack, reason in damaged.values()}
        prefix = numbers.layout.tail_packs_prefix(self._broker)
        stored = {
            parse_tail_pack_key(listed.key, prefix): listed
            for listed in numbers.store.list_objects(prefix)
        }
        known = set(() if before.index is None else before.index.dropped)
        # Only packs that were read. A name is needed as long as its pack is stored.
        dropped = (known | {pack.number for pack in listing.packs} - keep) & stored.keys()
        if dropped == known or self._write_index(numbers, keep, dropped, before, judge):
            totals.dropped_packs += len(dropped - known)
            totals.dropped_bytes += sum(stored[number].size for number in dropped - known)
            wait = self._clock.wall() - (before.modified_ms or 0) / 1000
            self._delete_dropped(
                numbers.store,
                {number: stored[number] for number in dropped},
                {number: max(0.0, wait) if number in known else 0.0 for number in dropped},
                totals,
            )

    def _quarantine(self, numbers: PackNumbers, judge: "_Judge", totals: CleaningTotals) -> None:
        """Store what the cluster has lost in the quarantine; the next cleaning drops the rows.
        Not at once: a divergence of the archive may not be in quarantine yet.
        """
        seen, now = self._seen[id(numbers.store)], self._clock.monotonic()
        since = {key: seen.lost.get(key, now) for key in map(_key_of, judge.lost)}
        seen.lost = since
        seen.moved &= judge.moved_rows
        for run in runs_in(judge.lost):
            tp = run[0].row.tp
            if any(now < since[_key_of(source)] + self._quarantined_after for source in run):
                continue
            offsets = max(source.row.end for source in run) - run[0].row.start
            if self.dry_run:
                totals.quarantined_offsets += offsets
                continue
            try:
                epoch = judge.newest_archived(tp)
                prefix = store_run(numbers.store, numbers.layout, self._broker, run, epoch)
            except SidetierError as error:
                judge.found[f"{tp}: quarantine"] = str(error)
                continue
            seen.moved |= set(map(_key_of, run))
            totals.quarantined_offsets += offsets
            log.warning("tail.quarantined", topic=tp.topic, partition=tp.partition, prefix=prefix)

    def _write_index(
        self,
        numbers: PackNumbers,
        keep: set[int],
        dropped: set[int],
        before: StoredTailIndex,
        judge: "_Judge",
    ) -> bool:
        """Write the index. Return whether it is stored: another sidecar of this broker may clean,
        too.
        """
        if self.dry_run:
            return True
        store, layout = numbers.store, numbers.layout
        try:
            write_tail_index(store, layout, self._broker, sorted(keep), sorted(dropped), before)
        except PreconditionFailedError:
            judge.found[layout.tail_index_key(self._broker)] = (
                "another process has written it meanwhile; the next cleaning tries again"
            )
            return False
        return True

    def _without_damaged(
        self, numbers: PackNumbers, uses: Sequence[PackUse]
    ) -> tuple[list[PackUse], dict[int, tuple[PackRef, str]]]:
        """Take packs whose ranges were damaged from the copying, until they are read again. Return
        all packs, and those with the reason by number.
        """
        seen, now = self._seen[id(numbers.store)], self._clock.monotonic()
        needed = {use.pack.number: use.pack for use in uses if use.live_rows}
        seen.damaged = {
            number: (since, reason)
            for number, (since, reason) in seen.damaged.items()
            if number in needed and now < since + DAMAGED_AGAIN
        }
        damaged = {number: (needed[number], reason) for number, (_, reason) in seen.damaged.items()}
        return [
            use._replace(may_copy=False) if use.pack.number in damaged else use for use in uses
        ], damaged

    def _copy(
        self,
        numbers: PackNumbers,
        inventory: TailInventory,
        batch: Iterable[PackUse],
        judge: "_Judge",
        damaged: dict[int, tuple[PackRef, str]],
    ) -> int | None:
        """Copy the needed rows of some packs. Return the number of bytes; None if it failed. Packs
        that cannot be read are left out, and added to `damaged`.
        """
        if self.dry_run:
            return sum(use.live_bytes for use in batch)
        seen, wanted = self._seen[id(numbers.store)], list(batch)
        while wanted:
            try:
                return self._store_copies(numbers, inventory, wanted, judge)
            except UnreadablePackError as error:
                pack = error.pack
                damaged[pack.number] = pack, str(error)
                if isinstance(error.reason, _DAMAGED):
                    seen.damaged[pack.number] = self._clock.monotonic(), str(error)
                wanted = [use for use in wanted if use.pack.number != pack.number]
            except (SidetierError, ValueError) as error:
                log.warning("tail.not_copied", error=str(error))
                judge.found[wanted[0].pack.key] = f"not copied: {error}"
                return None
        return 0

    def _store_copies(
        self,
        numbers: PackNumbers,
        inventory: TailInventory,
        batch: Iterable[PackUse],
        judge: "_Judge",
    ) -> int:
        """Store the needed rows of some packs in one new pack, or two: encrypted topics and others.
        Return the number of their bytes.
        """
        groups: dict[bool, list[PackedRow]] = defaultdict(list)
        for use in batch:
            try:
                rows = inventory.rows(use.pack)
            except UNREADABLE as error:
                raise UnreadablePackError(use.pack, error) from error
            for row, is_live in zip(rows, use.is_live, strict=True):
                if is_live:
                    groups[judge.encrypts(row.tp.topic)].append(PackedRow(use.pack, row))
        size = 0
        for sources in groups.values():
            copy = PackCopy(numbers.store, sources, self._before_read)
            store_pack(numbers, copy, int(self._clock.wall() * 1000))
            size += copy.size - len(copy.end)
        return size

    def _delete_dropped(
        self,
        store: RemoteStorage,
        dropped: Mapping[int, ObjectSummary],
        waited: Mapping[int, float],
        totals: CleaningTotals,
    ) -> None:
        """Delete packs that the stored index has dropped for long enough.

        `waited` has the seconds since the index object was written that had dropped them already: a
        lower bound, also for another process.
        """
        now, seen = self._clock.monotonic(), self._seen[id(store)]
        since = {number: seen.dropped.get(number, now - waited[number]) for number in dropped}
        seen.dropped = since
        due = [dropped[number] for number in since if since[number] + DELETED_AFTER <= now]
        if not self.dry_run:
            for at in range(0, len(due), LISTED_AT_ONCE):
                store.delete_objects([row.key for row in due[at : at + LISTED_AT_ONCE]])
        totals.deleted_packs += len(due)
        totals.deleted_bytes += sum(row.size for row in due)


class _Judge:
    """Decides which rows of this broker's packs in one store are needed.

    Attributes:
        led: The partitions that this broker leads, as known behind the listing of the packs.
        found: What stays and why, by partition or key.
        unknown: Partitions whose archive cannot be read.
        lost: Rows for whose offsets the archive has other records, or none.
        moved_rows: Rows whose records are in quarantine.
        stale_offsets: Number of offsets of stale rows.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what decides
        self,
        ask: _ForAnHour[TopicPartition, StoredArchive | None],
        ask_retired: Callable[[tuple[TopicPartition, str]], Sequence[ArchivedPart] | None],
        is_deleted: IsDeleted,
        place_of: Callable[[str], TailPlace],
        moved: Container[_RowKey],
        found: dict[str, str],
        now_ms: int,
    ) -> None:
        self.led: Mapping[TopicPartition, TailPartition] = {}
        self._now_ms = now_ms
        self._moved = moved
        self.lost: list[PackedRow] = []
        self.moved_rows: set[_RowKey] = set()
        self._ask = ask
        self._ask_retired = ask_retired
        self._is_deleted = is_deleted
        self._deleted: dict[tuple[str, str], bool] = {}
        self._place_of = place_of
        self.found = found
        self.unknown: set[TopicPartition] = set()
        self.stale_offsets = 0
        self._kept = Kept()
        self._archived: dict[TopicPartition, ArchivedPart | None] = {}
        self._stored: dict[TopicPartition, StoredArchive] = {}
        """Where `_archived` is what the store has."""
        self._afresh: dict[TopicPartition, StoredArchive | None] = {}
        self._directory_ids: dict[TopicPartition, str | None] = {}
        self._gaps: dict[tuple[int, str], dict[str, list[OffsetRange]] | SidetierError] = {}
        self._logs: dict[TopicPartition, EpochHistory] = {}
        self._encrypts: dict[str, bool] = {}
        self._stale: dict[str, Offset] = {}

    def use_of(self, pack: PackRef, rows: Iterable[TailRow]) -> PackUse:
        """Return what is needed of a pack."""
        is_live, size, live_bytes, in_index = bytearray(), 0, 0, 0
        may_copy, must_copy = True, False
        before = len(self.lost)
        for row in rows:
            source = PackedRow(pack, row)
            is_moved = _key_of(source) in self._moved
            need = Need.LOST if is_moved else self._need_of(source)
            needed = self._is_needed(source, need, is_moved=is_moved)
            must_copy = must_copy or (need is Need.LOST and not needed)
            # Only the operator's order decides so where the broker does not lead.
            must_copy = must_copy or (need is Need.OTHER_TOPIC and row.tp not in self.led)
            is_live.append(needed)
            size += row.size
            if needed:
                live_bytes += row.size
                in_index += index_bytes(row.epochs, row.open, row.aborted)
                may_copy = may_copy and self._knows_place(row.tp)
        # Rows that wait for the quarantine stay where they are until then.
        may_copy = may_copy and len(self.lost) == before
        live_rows = sum(is_live)
        return PackUse(
            pack, size, live_bytes, live_rows, bytes(is_live), may_copy, must_copy, in_index
        )

    def encrypts(self, topic: str) -> bool:
        """Whether packs of a topic are encrypted. Raises SidetierError."""
        if topic not in self._encrypts:
            self._encrypts[topic] = self._place_of(topic).encrypts
        return self._encrypts[topic]

    def newest_archived(self, tp: TopicPartition) -> LeaderEpoch:
        """Return the newest leader epoch of which records are archived."""
        archived = self._archived[tp]
        assert archived is not None  # noqa: S101 - its rows were found to be lost
        return archived.epochs.up_to(archived.end or 0).entries[-1][0]

    def _is_needed(self, source: PackedRow, need: Need, *, is_moved: bool) -> bool:
        row = source.row
        if is_moved:
            self.moved_rows.add(_key_of(source))
            self._kept.add(row)  # rows with the same records are in the quarantine, too
            return False
        if need in {Need.ARCHIVED, Need.OTHER_TOPIC} or not self._kept.add(row):
            return False
        if need is Need.LOST and not row.is_claim:
            self.lost.append(source)
        if need is Need.LOST or self._is_stale(row):
            self.stale_offsets += row.end - row.start
            what = f"{row.tp}, leader epoch {row.last_epoch}"
            self._stale[what] = min(row.start, self._stale.get(what, row.start))
            self.found[what] = (
                f"the cluster has lost committed records from offset {self._stale[what]} on, in an "
                "unclean election or a power failure, or deleted them before they were archived: "
                "only packs have them"
            )
        return True

    def _need_of(self, source: PackedRow) -> Need:
        row = source.row
        archived = self._archived_of(row)
        if archived is None:
            return Need.NEEDED if row.tp in self.unknown else self._need_of_moved(source)
        if row.topic_id == archived.topic_id:
            return self._need_beside_gaps(row, archived, self._stored.get(row.tp))
        need = need_of(row, archived)
        if need is not Need.OTHER_TOPIC:
            return need
        if row.tp in self.led:
            return self._need_of_deleted(row)
        # The archive may be that of the deleted topic, which is not retired yet, and the row of the
        # new one.
        return self._need_of_moved(source)

    def _need_beside_gaps(
        self, row: TailRow, archived: ArchivedPart, stored: StoredArchive | None
    ) -> Need:
        need = need_of(row, archived)
        if need is not Need.ARCHIVED or row.is_claim:
            return need
        gaps = self._try(row.tp, lambda tp: self._gaps_of(tp, stored), None)
        # Unknown gaps may be everywhere.
        if gaps is None:
            return Need.NEEDED
        return need_of(row, replace(archived, gaps=(*archived.gaps, *gaps)))

    def _need_of_deleted(self, row: TailRow) -> Need:
        """Decide about a row of another topic id than that of a partition that is led, which is
        deleted if the broker's directory shows that now. `sidetier retire` promotes its records as
        long as their archive is at its place.
        """
        if self._directory_id(row.tp) in {None, row.topic_id}:
            return Need.NEEDED
        stored = self._stored_now(row.tp)
        if row.tp in self.unknown:
            return Need.NEEDED
        if stored is None or stored.part.topic_id not in {None, row.topic_id}:
            return Need.OTHER_TOPIC
        is_archived = self._need_beside_gaps(row, stored.part, stored) is Need.ARCHIVED
        return Need.ARCHIVED if is_archived else Need.NEEDED

    def _directory_id(self, tp: TopicPartition) -> str | None:
        """Return the topic id in the directory of a led partition; None if it is not known."""
        if tp not in self._directory_ids:
            self._directory_ids[tp] = topic_id_in(self.led[tp].directory)
        return self._directory_ids[tp]

    def _stored_now(self, tp: TopicPartition) -> StoredArchive | None:
        """Return what the store has of an archive, read in this cleaning. `unknown` has the
        partition if it cannot be read.
        """
        if tp not in self._afresh:
            self._afresh[tp] = self._try(tp, self._ask.afresh, None)
        return self._afresh[tp]

    def _need_of_moved(self, source: PackedRow) -> Need:
        """Decide about a row of a topic id that no archive at its place has: it is retired, or has
        not begun.
        """
        row = source.row
        tp, topic_id = row.tp, row.topic_id
        parts = self._try(tp, lambda tp: self._ask_retired((tp, topic_id)), None)
        if parts is None:
            return Need.NEEDED
        if any(need_of(row, part) is Need.ARCHIVED for part in parts):
            return Need.ARCHIVED
        is_young = source.first_stored_ms > self._now_ms - UNKNOWN_TOPIC_KEPT_FOR * 1000
        if not is_young and self._is_topic_deleted(tp, topic_id):
            stored = self._stored_now(tp)
            is_there = stored is not None and stored.part.topic_id in {None, topic_id}
            return Need.NEEDED if is_there or tp in self.unknown else Need.OTHER_TOPIC
        if parts and not row.is_claim:
            what = f"{tp}, topic id {topic_id}"
            self._stale[what] = min(row.start, self._stale.get(what, row.start))
            self.found[what] = (
                f"its archive is retired and does not have records from offset {self._stale[what]} "
                "on: only packs have them"
            )
        return Need.NEEDED

    def _is_topic_deleted(self, tp: TopicPartition, topic_id: str) -> bool:
        topic = tp.topic, topic_id
        # Asked behind the listing of the packs, and anew in each cleaning: an older answer does not
        # know the topic of a newer row.
        if topic not in self._deleted:
            self._deleted[topic] = self._try(
                tp, lambda _: self._is_deleted(*topic), otherwise=False
            )
        return self._deleted[topic]

    def _is_stale(self, row: TailRow) -> bool:
        """Whether the log of this broker, which leads, has other records."""
        part = self.led.get(row.tp)
        if part is None or part.topic_id != row.topic_id or row.leader_epoch == part.leader_epoch:
            return False
        if row.tp not in self._logs:
            self._logs[row.tp] = NO_EPOCHS
            with suppress(SegmentError, OSError):
                self._logs[row.tp] = read_local_epochs(part.directory)
        history = self._logs[row.tp]
        return next(replaced(row, history, MAX_OFFSET), None) is not None

    def _archived_of(self, row: TailRow) -> ArchivedPart | None:
        """Return what the archive of a row's partition has, without recorded gaps."""
        tp = row.tp
        if tp in self._archived:
            return self._archived[tp]
        part = self.led.get(tp)
        if part is None:
            self._archived[tp] = None
            stored = self._try(tp, self._ask, None)
            if stored is not None:
                self._archived[tp], self._stored[tp] = stored.part, stored
            return self._archived[tp]
        below = below_start(part.archive_start)
        known = ArchivedPart(part.archive_end, part.archived_epochs, part.topic_id, below)
        if not part.archived_epochs.entries:
            # As after a restart: the sidecar reads the epochs with its next commit.
            if not 0 < part.archive_end >= row.end:
                return known
            stored = self._try(tp, self._ask, None)
            # Not if its end has fallen since: what was above is in quarantine.
            is_same = stored is not None and stored.part.topic_id in {None, part.topic_id}
            if is_same and stored is not None and (stored.part.end or 0) <= part.archive_end:
                known = replace(stored.part, topic_id=part.topic_id)
                self._stored[tp] = stored
        self._archived[tp] = known
        return known

    def _gaps_of(
        self, tp: TopicPartition, stored: StoredArchive | None
    ) -> Sequence[OffsetRange] | None:
        """Return the recorded gaps that belong to what is known of an archive; None if it has
        changed. For led partitions, one listing of the gaps of the cluster, behind `led`: the
        gap is recorded before the archive end offset moves. Raises SidetierError.
        """
        if stored is not None:
            of_same_state = stored.gaps()
            if of_same_state is None:
                self._ask.forget(tp)  # the next cleaning reads it again
            return of_same_state
        place = self._place_of(tp.topic)
        prefix = place.layout.gaps_prefix()
        key = id(place.store), prefix
        if key not in self._gaps:
            try:
                gaps = defaultdict[str, list[OffsetRange]](list)
                for folder, _, gap in listed_gaps(place.store, prefix):
                    gaps[folder].append(gap)
                self._gaps[key] = dict(gaps)
            except SidetierError as error:
                self._gaps[key] = error  # not asked again for each partition
        known = self._gaps[key]
        if isinstance(known, SidetierError):
            raise known
        return known.get(place.layout.gap_prefix(tp), ())

    def _knows_place(self, tp: TopicPartition) -> bool:
        return self._try(tp, lambda tp: self.encrypts(tp.topic) in {True, False}, otherwise=False)

    def _try(
        self, tp: TopicPartition, read: Callable[[TopicPartition], _Result], otherwise: _Result
    ) -> _Result:
        """Read something of a partition. One that cannot be read does not end the cleaning."""
        try:
            return read(tp)
        except SidetierError as error:
            self.unknown.add(tp)
            self.found[str(tp)] = str(error)
            return otherwise
