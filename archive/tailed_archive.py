"""Archive and tail of a partition as one log.

`TailedArchive` is a `PartitionArchive` whose snapshots continue behind the archive end offset: each
range of a tail pack is a `PackedLog` in the view, so that whoever reads a view reads the tail, too.
The records stay where they are in the view when they arrive as segments.

The packs of a store are read for all partitions together, no more often than the partitions look
for new segments.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.errors import TailMovedError, UnreadTailError
from sidetier.archive.objects.segment import PackedLog, RowTransactions, StoredLog
from sidetier.archive.objects.watermark import Watermark, is_noted
from sidetier.archive.partition_archive import ArchiveSnapshot, PartitionArchive
from sidetier.archive.settings_check import SettingsCheck
from sidetier.archive.tail.inventory import TailContents, TailInventory
from sidetier.archive.tail.merge import (
    ArchivedPart,
    MergedTail,
    PackedRow,
    PackRef,
    Reason,
    TailSlice,
)
from sidetier.archive.tail.pack import TailRow
from sidetier.archive.view import ArchiveView, Change, Extract
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.errors import ArchiveConflictError, SidetierError
from sidetier.segments.offsets import BaseOffset, Offset, OffsetRange, TopicPartition
from sidetier.storage.port import ObjectPart

if TYPE_CHECKING:
    from sidetier.storage.settings import StorageEndpoint

log: Final = structlog.get_logger()
_ROUNDING: Final = 1e-6


class ReadTails(NamedTuple):
    """The live packs of a store, and when they were read.

    Attributes:
        contents: The packs.
        as_of: The time before the first request.
        read_at: The time after the last one.
    """

    contents: TailContents
    as_of: float
    read_at: float


class SharedTails:
    """The tail packs of all stores, for many partitions. Thread-safe.

    Args:
        access: The archive of the cluster.
        clock: Returns seconds.
        min_age: Minimum seconds between two readings of a store, whatever age is asked for. If it
            is above 0, nobody waits for a reading that another thread makes, but for the first one.
    """

    def __init__(
        self, access: ArchiveAccess, clock: Callable[[], float], min_age: float = 0.0
    ) -> None:
        self._access = access
        self._clock = clock
        self._min_age = min_age
        self._guard = threading.Lock()
        self._stores: dict[StorageEndpoint, _StoreTails] = {}

    def read(self, topic: str, max_age: float) -> ReadTails:
        """Return the packs of the topic's store, not older than `max_age` seconds.

        Raises:
            StorageError: A request failed.
        """
        return self.read_store(self._access.provider.endpoint(topic), max_age)

    def read_store(self, endpoint: "StorageEndpoint", max_age: float) -> ReadTails:
        """Return the packs of a store. As `read`."""
        with self._guard:
            if endpoint not in self._stores:
                store, layout = self._access.stores.at(endpoint), self._access.layout
                inventory = TailInventory(store, layout, refuses_plain=endpoint.refuses_plain)
                self._stores[endpoint] = _StoreTails(inventory, self._clock)
            tails = self._stores[endpoint]
        return tails.read(max(max_age, self._min_age), waits=self._min_age <= 0)

    def partitions(self, endpoint: "StorageEndpoint", max_age: float) -> list[TopicPartition]:
        """Return the partitions that packs of a store have, and that belong there. As `read`."""
        of_topic = self._access.provider.endpoint
        rows = self.read_store(endpoint, max_age).contents.rows
        return sorted(tp for tp in rows if of_topic(tp.topic) == endpoint)


@dataclass(slots=True)
class _StoreTails:
    inventory: TailInventory
    clock: Callable[[], float]
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _latest: ReadTails | None = None

    def read(self, max_age: float, *, waits: bool) -> ReadTails:
        known = self._latest
        if known is not None and not waits and self._guard.locked():
            return known
        # One thread reads the store. The others wait here for what it finds.
        with self._guard:
            now = self.clock()
            if self._latest is None or now - self._latest.as_of >= max_age:
                contents = self.inventory.read()
                if known is None or known.contents.problems != contents.problems:
                    for key, problem in contents.problems.items():
                        log.warning("tail.unread", key=key, problem=problem)
                self._latest = ReadTails(contents, now, self.clock())
            return self._latest


class _Tail(NamedTuple):
    """A tail, with the state of the archive and the rows that it was made from.

    Attributes:
        newest_epochs: The history of the newest leader; None if no row is above the archive.
        problem: Why it is nothing, if that is not known to be right.
    """

    etag: str | None
    rows: Sequence[PackedRow]
    unread: Sequence[PackRef]
    merged: MergedTail
    logs: tuple[PackedLog, ...]
    newest_epochs: EpochHistory | None = None
    problem: SidetierError | None = None


class _Joined(NamedTuple):
    """A view of archive and tail, and what it was made from."""

    archived: ArchiveView | None
    tail: _Tail
    view: ArchiveView | None


class _Seen(NamedTuple):
    """The history of the tail that callers may have read: the offsets [start, end)."""

    topic_id: str | None
    epochs: EpochHistory
    start: Offset
    end: Offset


class TailedArchive(PartitionArchive):
    """The archive of one partition, and behind it the tail. Thread-safe.

    Nothing follows an archive of Pinterest's uploader. If packs contradict each other, nothing
    follows either, and `problem` says so. The changes are those of the archive, and those of the
    tail: records of it that the newest history does not have.
    """

    def __init__(
        self,
        tp: TopicPartition,
        archive: ArchiveAccess,
        settings_check: SettingsCheck,
        clock: Callable[[], float],
        tails: SharedTails,
        extract: Extract | None = None,
    ) -> None:
        super().__init__(tp, archive, settings_check, clock, extract)
        self._tails = tails
        self._joined: _Joined | None = None
        self._latest_of_both: ArchiveSnapshot | None = None
        self._archived: tuple[str, ArchivedPart] | None = None
        self._join_guard = threading.Lock()
        self._read_at = float("-inf"), float("-inf")
        self._seen: _Seen | None = None
        self._changes: tuple[Change, ...] = ()
        self._archive_changes = 0
        self._is_archive_alone = False

    @property
    def latest(self) -> ArchiveSnapshot | None:
        """The newest snapshot of archive and tail, without a request; None before the first."""
        return self._latest if self._latest_of_both is None else self._latest_of_both

    @property
    def unreadable(self) -> bool:
        """Whether a pack of the store could not be read, so that the tail may end too early."""
        return bool(self._tails.read(self.tp.topic, float("inf")).contents.problems)

    @property
    def problem(self) -> SidetierError | None:
        """Why the tail is not known; None if it is."""
        return None if self._joined is None else self._joined.tail.problem

    @property
    def divergence(self) -> SidetierError | None:
        """The archive has records that the newest leader has discarded."""
        merged = None if self._joined is None else self._joined.tail.merged
        if merged is None or merged.diverged is None:
            return None
        return UnreadTailError(
            f"{self.tp}: {merged.diverged}: its last records were discarded (an unclean election), "
            "and are read again when the sidecar has moved them to quarantine"
        )

    @property
    def has_known_end(self) -> bool:
        """Whether nothing follows the end of the latest snapshot, as of its time."""
        return self.problem is None and not self._is_archive_alone

    def moved(self, log: StoredLog, offset: Offset) -> SidetierError | None:
        """Return the error for an offset that was in a pack, and is above the end of the tail now;
        None if a later leader does not have it.
        """
        if self.problem is not None or not isinstance(log, PackedLog):
            return self.problem
        left_out = () if self._joined is None else self._joined.tail.merged.left_out
        if any(out.reason is Reason.STALE and offset in out.offsets for out in left_out):
            return None
        return TailMovedError(
            f"{self.tp}: the offsets from {offset} on were in {log.key}, and are in no pack and no "
            "segment now"
        )

    def epochs(self) -> EpochHistory:
        """Return the leader epochs of archive and tail. One request if there is no tail."""
        joined = self._joined
        if joined is None or not joined.tail.logs:
            return super().epochs()
        return joined.tail.merged.epochs

    def tail_epochs(self) -> EpochHistory:
        """See `PartitionArchive.tail_epochs`."""
        joined = self._joined
        return NO_EPOCHS if joined is None or not joined.tail.logs else joined.tail.merged.epochs

    def newest_epochs(self) -> EpochHistory | None:
        """Return the epoch history of the newest leader that packs know; as the base class."""
        return None if self._joined is None else self._joined.tail.newest_epochs

    def snapshot(self, max_age: float = 0.0, *, thorough: bool = False) -> ArchiveSnapshot:
        """Return a snapshot of archive and tail; see `PartitionArchive.snapshot`."""
        known = self._latest
        is_part = known is not None and known.view is not None and known.view.is_part
        if known is not None and is_part and max_age > 0 and not thorough:
            return known  # an extract does not age
        if self._is_archive_alone and max_age > 0 and not thorough:
            return super().snapshot(max_age)
        self._is_archive_alone = False
        while True:
            contents, as_of, read_at = self._tails.read(self.tp.topic, max_age)
            # The archive after the packs: what cleaning has dropped from them is archived by then.
            since = self._clock() - read_at + _ROUNDING
            archived = super().snapshot(min(max_age, since), thorough=thorough)
            with self._join_guard:
                if as_of < self._read_at[0] or archived.taken_at < self._read_at[1]:
                    continue  # another thread was faster, and an older state is no change
                self._read_at = as_of, archived.taken_at
                view = self._join(archived.view, contents)
                self._note_changes(archived)
                both = ArchiveSnapshot(view, self._changes, min(archived.taken_at, as_of))
                self._latest_of_both = both
                return both

    def continued(self, snapshot: ArchiveSnapshot, offset: Offset) -> ArchiveSnapshot:
        """Return a snapshot that shows what is stored at an offset.

        Behind an extract without packs, the archive alone, as long as it has the offset: each of
        the many tasks of a job would read all packs.
        """
        view = snapshot.view
        if view is None or offset < view.end:
            return snapshot
        if view.is_part and view.end <= view.archived_end:
            archived = super().snapshot()
            if archived.view is not None and offset < archived.view.end:
                self._is_archive_alone = True
                return archived
        return self.snapshot() if view.is_part or self._is_archive_alone else snapshot

    def _note_changes(self, archived: ArchiveSnapshot) -> None:
        """Note what has changed since the snapshot before: in the archive, or else in the tail."""
        new = archived.changes[self._archive_changes :]
        self._archive_changes = len(archived.changes)
        self._changes += new
        joined = self._joined
        if joined is None or joined.tail.problem is not None:
            return  # it is not known yet
        merged, seen = joined.tail.merged, self._seen
        if seen is not None and not new:
            change = self._difference(seen, joined)
            if change is not None:
                self._changes += (change,)
                seen = None
            elif merged.end < seen.end:
                return  # neither in packs nor in the archive now: see `moved`
        has_tail = bool(joined.tail.logs)
        seen_now = _Seen(merged.topic_id, merged.epochs, merged.start, merged.end)
        self._seen = seen_now if has_tail else None

    def _difference(self, seen: _Seen, joined: _Joined) -> Change | None:
        """Compare the tail that callers may have read with the present archive and tail."""
        merged, archived = joined.tail.merged, joined.archived
        watermark = None if archived is None else archived.watermark
        topic_id = merged.topic_id if watermark is None else watermark.topic_id
        if None not in {seen.topic_id, topic_id} and seen.topic_id != topic_id:
            return Change(
                Offset(0),
                f"{self.where}: the tail belonged to topic id {seen.topic_id} and now belongs to "
                f"{topic_id}: the topic was deleted and created again",
            )
        epochs = merged.epochs
        if not joined.tail.logs and watermark is not None:
            newest = seen.epochs.entries[-1][0] if seen.epochs.entries else None
            # With the same newest epoch, the history below is the same.
            epochs = seen.epochs if watermark.leader_epoch == newest else super().epochs()
        first = _first_lost(seen, epochs, merged)
        if first is None:
            return None
        return Change(
            first,
            f"{self.where}: the cluster has discarded the records from offset {first} on (an "
            "unclean election), which were in tail packs, and has or will have other records at "
            "these offsets",
        )

    def _join(self, archived: ArchiveView | None, contents: TailContents) -> ArchiveView | None:
        tail = self._tail(archived, contents)
        known = self._joined
        if known is not None and known.archived is archived and known.tail is tail:
            return known.view
        view = _with_tail(archived, tail, self.where)
        self._joined = _Joined(archived, tail, view)
        return view

    def _tail(self, archived: ArchiveView | None, contents: TailContents) -> _Tail:
        etag = None if archived is None else archived.etag
        rows = contents.rows.get(self.tp, ())
        if archived is not None and archived.is_pinterest:
            rows = ()
        known = self._joined
        if known is not None and known.tail[:3] == (etag, rows, contents.unread):
            return known.tail
        is_above = any(_is_above(archived, source.row) for source in rows)
        part = self._archived_part(archived, is_above=is_above)
        problem: SidetierError | None = None
        try:
            merged = replace(contents, rows={self.tp: rows}).merged(self.tp, part)
        except ArchiveConflictError as error:
            merged = replace(contents, rows={}).merged(self.tp, part)
            problem = UnreadTailError(f"{self.tp}: {error}")
        if merged.unread is not None:
            problem = UnreadTailError(f"{self.tp}: {merged.unread}")
        elif archived is None and (first := _without_pack(merged)) is not None:
            merged = replace(contents, rows={}).merged(self.tp, part)
            problem = UnreadTailError(
                f"{self.tp}: nothing is archived, and no pack has the offsets {first} of the log"
            )
        logs = tuple(map(_as_segment, merged.slices))
        newest = merged.newest_epochs if problem is None and is_above else None
        return _Tail(etag, rows, contents.unread, merged, logs, newest, problem)

    def _archived_part(self, archived: ArchiveView | None, *, is_above: bool) -> ArchivedPart:
        """Return what is archived; gaps and leader epochs only if rows are above it."""
        if archived is None:
            return ArchivedPart()
        topic_id = archived.watermark.topic_id
        if not is_above:
            return ArchivedPart(archived.end, topic_id=topic_id)
        if self._archived is None or self._archived[0] != archived.etag:
            epochs = super().epochs()
            if not is_noted(archived.watermark, epochs):
                epochs = NO_EPOCHS  # of a sidecar that lost the race for `offset.wm`
            part = ArchivedPart(archived.end, epochs, topic_id, self.gaps())
            self._archived = archived.etag, part
        return self._archived[1]


def open_partition(
    tp: TopicPartition,
    archive: ArchiveAccess,
    settings_check: SettingsCheck,
    clock: Callable[[], float],
    tails: SharedTails | None = None,
    extract: Extract | None = None,
) -> PartitionArchive:
    """Return the archive of a partition; with `tails`, followed by its tail."""
    if tails is None:
        return PartitionArchive(tp, archive, settings_check, clock, extract)
    return TailedArchive(tp, archive, settings_check, clock, tails, extract)


def _is_above(archived: ArchiveView | None, row: TailRow) -> bool:
    """Whether a row reaches beyond the archive, or is the claim of a leader that begins there."""
    return archived is None or row.end > archived.end or (row.is_claim and row.end == archived.end)


def _without_pack(merged: MergedTail) -> OffsetRange | None:
    """Return the offsets of the leader's log below a tail without an archive; None without any.
    Their pack has not arrived yet, or cannot be read.
    """
    first = merged.log_start
    if not merged.slices or first is None or first >= merged.start:
        return None
    return OffsetRange(first, merged.start)


def _first_lost(seen: _Seen, epochs: EpochHistory, merged: MergedTail) -> Offset | None:
    """Return the first offset that was seen, and that the newest history does not have.

    Only the ends of epochs count: compaction may have removed the first records of an epoch.
    """
    lost = [
        first
        for out in merged.left_out
        if out.reason is Reason.STALE
        and (first := max(out.offsets.start, merged.end)) < min(out.offsets.end, seen.end)
        and out.source.row.epochs.epoch_at(first) == seen.epochs.epoch_at(first)
    ]
    if seen.epochs.entries and epochs.entries:
        newest, start = seen.epochs.entries[-1]
        end = epochs.end_of(newest)
        if end is not None and end < seen.end:
            is_known = epochs.epoch_at(end - 1) == newest
            may_be_cut = epochs.entries[0][0] >= newest
            lost.append(end if is_known or may_be_cut else min(start, end))
    return min(lost, default=None)


def _with_tail(archived: ArchiveView | None, tail: _Tail, where: str) -> ArchiveView | None:
    if not tail.logs:
        return archived
    merged, logs = tail.merged, tail.logs
    if archived is not None:
        return replace(archived, logs=(*archived.logs, *logs), end=merged.end)
    start = merged.start
    watermark = Watermark(BaseOffset(start), start, topic_id=merged.topic_id)
    return ArchiveView(where, watermark, "", logs, start, merged.end)


def _as_segment(part: TailSlice) -> PackedLog:
    pack, row = part.source.stored_in, part.source.row
    name = f"{pack.key}, bytes {row.position} to {row.position + row.size}"
    transactions = None
    if (part.start, part.end) == (row.start, row.end):
        # Equal, because a last stable offset above the end may be of a later time.
        is_settled = not row.open and row.last_stable == row.end
        transactions = RowTransactions(row.aborted, row.open, is_settled)
    else:  # two parts of a row are two segments
        name += f", offsets {part.start} to {part.end}"
    return PackedLog(
        BaseOffset(part.start),
        ObjectPart(name, row.size, pack.etag, pack.modified_ms, pack.key, row.position),
        end=part.end,
        reaches=row.end,
        max_timestamp=row.max_timestamp,
        transactions=transactions,
    )
