"""Snapshots of one partition's archive, taken when they are needed. Only changes are read again.

A snapshot of an archive that Sidetier writes reads `offset.wm`: one request while it does not
change; when it has moved, also a listing of the new objects and `_metadata`. A snapshot of an
archive of Pinterest's uploader reads the listing, which shows whether `offset.wm` has changed. The
whole listing (one request per 1,000 objects) is read first, and again when it may be wrong: a new
leader epoch, an archive end offset that went back, or an object that is not as it was listed.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Final

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.errors import NoArchiveError
from sidetier.archive.inventory.listing import partition_rows
from sidetier.archive.inventory.members import committed, deciding, without_orphans
from sidetier.archive.inventory.stored_partition import StoredPartition
from sidetier.archive.objects.gaps import Gaps
from sidetier.archive.objects.log_check import mismatches, proven_end
from sidetier.archive.objects.notes import noted_next_offset, noted_number
from sidetier.archive.objects.segment import PackedLog, StoredLog, stored_logs
from sidetier.archive.objects.watermark import Watermark
from sidetier.archive.pinterest import Ends, readable_end
from sidetier.archive.settings_check import SettingsCheck
from sidetier.archive.view import (
    ArchiveView,
    Change,
    Extract,
    compare,
    continues,
    view_of_ours,
    view_of_pinterest,
)
from sidetier.segments.epoch_history import NO_EPOCHS, EpochHistory
from sidetier.segments.errors import ObjectNotFoundError, SidetierError
from sidetier.segments.notes import MAX_TIMESTAMP_KEY
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.port import ObjectSummary, RemoteStorage


@dataclass(frozen=True, slots=True)
class ArchiveBounds:
    """The readable range of an archive, by its newest snapshot. The range may contain gaps.

    Attributes:
        start_offset: First stored offset. Equal to `next_offset` if nothing is stored.
        next_offset: One past the last readable offset.
        is_pinterest: Whether Pinterest's uploader fills the archive. Then nothing proves that the
            stored records were ever committed.
        taken_at: The reader's clock when the snapshot was taken, in seconds.
        topic_id: Kafka's id of the archived topic; None if it is not known.
    """

    start_offset: Offset
    next_offset: Offset
    is_pinterest: bool
    taken_at: float
    topic_id: str | None = None


_LISTING_SECONDS: Final = 60.0
"""Maximum age of the full listing that gives the archive's start offset."""


@dataclass(frozen=True, slots=True)
class ArchiveSnapshot:
    """The known state of an archive at one time.

    Attributes:
        view: The readable segments; None if there is no archive.
        changes: All changes since the first snapshot, in order.
        taken_at: The reader's clock when the snapshot was taken, in seconds.
    """

    view: ArchiveView | None
    changes: tuple[Change, ...]
    taken_at: float


class PartitionArchive:
    """The archive of one partition. Thread-safe: one thread reads the store, the others wait for
    its snapshot.
    """

    def __init__(
        self,
        tp: TopicPartition,
        archive: ArchiveAccess,
        settings_check: SettingsCheck,
        clock: Callable[[], float],
        extract: Extract | None = None,
    ) -> None:
        self.tp = tp
        self._archive = archive
        self._settings_check = settings_check
        self._clock = clock
        self._guard = threading.Lock()
        self._latest: ArchiveSnapshot | None = None
        self._listed: tuple[StoredLog, ...] = ()
        self._listed_at = clock()
        self._ends: Ends | None = None
        if extract is not None:
            self._listed = extract.logs
            self._latest = ArchiveSnapshot(extract.view(self.where), (), clock())

    @property
    def latest(self) -> ArchiveSnapshot | None:
        """The newest snapshot, without a request; None before the first."""
        return self._latest

    @property
    def problem(self) -> SidetierError | None:
        """Why it is not known what follows the end of the latest snapshot; None if it is."""
        return None

    @property
    def divergence(self) -> SidetierError | None:
        """Why some archived records of the latest snapshot are to be replaced; None if that is not
        known.
        """
        return None

    @property
    def has_known_end(self) -> bool:
        """Whether nothing follows the end of the latest snapshot, as of its time."""
        return True

    def moved(self, log: StoredLog, offset: Offset) -> SidetierError | None:  # noqa: ARG002 - see `TailedArchive`
        """Return the error for an offset that was in a segment, and is above the end now; None if
        the segment is not committed any more.
        """
        return None

    @property
    def store(self) -> RemoteStorage:
        """The partition's store."""
        return self._archive.store(self.tp.topic)

    @property
    def where(self) -> str:
        """URL and key prefix of the partition, for errors."""
        return f"{self._archive.url(self.tp.topic)}/{self._stored.prefix}"

    @property
    def _stored(self) -> StoredPartition:
        return self._archive.partition(self.tp)

    def snapshot(self, max_age: float = 0.0, *, thorough: bool = False) -> ArchiveSnapshot:
        """Return a snapshot of the archive that is younger than `max_age` seconds; take a new one
        if needed.

        A snapshot from an extract does not age.

        Args:
            max_age: Maximum age in seconds; 0 always takes a new snapshot.
            thorough: List all objects again.

        Raises:
            WrongPlaceError: Nothing is stored here, but an archive exists under another number of
                entropy bits.
            MalformedObjectError: `offset.wm` does not parse.
        """
        with self._guard:
            # All callers wait here for the thread that asks the store, and then share its snapshot.
            known = self._latest
            if known is not None and not thorough and self._age(known) < max_age:
                return known
            # The time before the requests: a snapshot shows the archive at this time or later.
            now = self._clock()
            old = known.view if known is not None else None
            view = self._read_view(None if thorough else old)
            change = compare(old, view)
            changes = known.changes if known is not None else ()
            self._latest = ArchiveSnapshot(
                view, changes if change is None else (*changes, change), now
            )
            return self._latest

    def continued(self, snapshot: ArchiveSnapshot, offset: Offset) -> ArchiveSnapshot:
        """Return a snapshot that shows what is stored at an offset: this one, unless the offset is
        at or above its end, and it comes from an extract. Raises as `snapshot`.
        """
        view = snapshot.view
        return self.snapshot() if view and view.is_part and offset >= view.end else snapshot

    def bounds(self, max_age: float = 0.0) -> ArchiveBounds | None:
        """Return the readable range; None if there is no archive. Raises as `snapshot`.

        Only a listing shows that the store has deleted segments at the start. So all objects are
        listed again when the last full listing is older than `max_age` and 60 s.
        """
        age = self._clock() - self._listed_at
        snapshot = self.snapshot(max_age, thorough=age > max(max_age, _LISTING_SECONDS))
        if snapshot.view is not None and snapshot.view.is_part:
            snapshot = self.snapshot()
        view = snapshot.view
        if view is None:
            return None
        topic_id = view.watermark.topic_id
        return ArchiveBounds(view.start, view.end, view.is_pinterest, snapshot.taken_at, topic_id)

    def end_of(self, log: StoredLog) -> Offset:
        """Return the offset after the last one of a segment, from the segment's bytes. Raises
        StorageError.
        """
        with self._guard:
            return self._end_of(log)

    def noted_end(self, log: StoredLog) -> Offset | None:
        """Return the next offset in the metadata of a segment's `.log`. One request.

        Returns:
            None for a segment of Pinterest's uploader, and for one that is no longer stored. The
            base offset for the object of another segment: it has no offset of this one.
        """
        if isinstance(log, PackedLog):
            return log.end
        try:
            head = self.store.head_object(log.key)
        except ObjectNotFoundError:
            return None
        is_elsewhere = any(found.kind == "place" for found in mismatches(head))
        return Offset(log.base_offset) if is_elsewhere else noted_next_offset(head)

    def noted_largest(self, log: StoredLog) -> int | None:
        """Return the largest timestamp in the metadata of a segment's `.log`, in ms. One request.

        Returns:
            None if it is not recorded, or if another version is stored now. No request for a
            segment of Pinterest's uploader.
        """
        view = None if self._latest is None else self._latest.view
        if view is not None and view.is_pinterest:
            return None
        try:
            head = self.store.head_object(log.key)
        except ObjectNotFoundError:
            return None
        return noted_number(head, MAX_TIMESTAMP_KEY) if head.etag == log.row.etag else None

    def proven_end(self, log: StoredLog, reached: Offset) -> Offset | None:
        """Return `log_check.proven_end`: the noted end of a segment whose last batch ends below."""
        if isinstance(log, PackedLog):
            return log.end if log.end > reached else None
        return proven_end(self.store, log.key, log.row.etag, reached)

    def above_end(self) -> tuple[StoredLog, ...]:
        """Return the segments above the archive end offset that the last full listing has shown."""
        view = None if self._latest is None else self._latest.view
        if view is None or view.is_pinterest:
            return ()
        return tuple(log for log in self._listed if log.base_offset > view.watermark.base_offset)

    def epochs(self) -> EpochHistory:
        """Read the stored leader epochs. One request."""
        return self._stored.epochs().epoch_history

    def tail_epochs(self) -> EpochHistory:
        """Return the leader epochs of the records that follow the archive in the latest snapshot,
        and perhaps earlier ones. No request.
        """
        return NO_EPOCHS

    def newest_epochs(self) -> EpochHistory | None:
        """Return the epoch history of the newest leader in the latest snapshot, also above its end.
        No request.

        Returns:
            None if only the archive shows which leader is the newest.
        """
        return None

    def gaps(self) -> Gaps:
        """Read the recorded gaps. One request."""
        return self._stored.gaps()

    def missing(self) -> NoArchiveError:
        """Return the error for a partition without an `offset.wm`. One request."""
        row = next(self._stored.rows(), None)
        if row is None:
            return NoArchiveError(f"nothing of {self.tp} is stored at {self.where}")
        return NoArchiveError(
            f"{self.where} has no offset.wm, so nothing of {self.tp} is known to be committed, "
            f"though {row.key} is there"
        )

    def _age(self, known: ArchiveSnapshot) -> float:
        is_part = known.view is not None and known.view.is_part
        return 0.0 if is_part else self._clock() - known.taken_at

    def _read_view(self, old: ArchiveView | None) -> ArchiveView | None:
        """Read the archive, starting from `old` if it is given."""
        if old is not None and old.is_part:
            # What an extract has of a tail may be archived by now.
            has_tail = old.end > old.archived_end
            return self._read_view(None) if has_tail else self._extend_extract(old)
        if old is not None and old.is_pinterest:
            return self._refresh_pinterest(old)
        stored_watermark = self._watermark()
        if stored_watermark is None:
            self._listed = ()
            # Only while nothing was ever found here: if an archive disappears later, the settings
            # are not the cause.
            if self._latest is None or self._latest.view is None:
                self._settings_check.check(self.tp)
            return None
        watermark, etag = stored_watermark
        # Each write of `offset.wm` has another nonce: with an equal etag nothing was committed.
        if old is not None and etag == old.etag:
            return old
        # A later leader epoch may have quarantined segments that were listed, and stored others
        # below the known end: only a whole listing shows that.
        if old is None or not continues(old.watermark, watermark):
            self._listed = self._list(watermark)
        else:
            self._extend(old)
        return self._view(watermark, etag)

    def _extend_extract(self, old: ArchiveView) -> ArchiveView | None:
        """List from the last segment of the extract on."""
        stored_watermark = self._watermark()
        if stored_watermark is None:
            self._listed = ()
            return None
        self._extend(old)
        return self._view(*stored_watermark)

    def _refresh_pinterest(self, old: ArchiveView) -> ArchiveView | None:
        """Read the listing from the last segment on. It also has the row of `offset.wm`."""
        etag = self._extend(old)
        if etag == old.etag:
            return self._view(old.watermark, old.etag)
        stored_watermark = self._watermark()
        if stored_watermark is None:
            self._listed = ()
            return None
        watermark, etag = stored_watermark
        # A sidecar has taken the archive over, or Pinterest's watermark has
        # gone back: the segments that were listed may have changed anywhere.
        if watermark.next_offset is not None or watermark.base_offset < old.watermark.base_offset:
            self._listed = self._list(watermark)
        return self._view(watermark, etag)

    def _view(self, watermark: Watermark, etag: str) -> ArchiveView:
        if watermark.next_offset is not None:
            named = self._stored.readable_names()
            logs = committed(self._listed, watermark)
            ends = {log.base_offset: self.noted_end(log) for log in deciding(logs, named)}
            known = {base: end for base, end in ends.items() if end is not None}
            logs = without_orphans(logs, named, known)
            return view_of_ours(self.where, watermark, etag, logs)
        end = readable_end(self._listed, watermark.base_offset, self._end_of)
        return view_of_pinterest(self.where, watermark, etag, self._listed, end)

    def _watermark(self) -> tuple[Watermark, str] | None:
        given = self._archive.watermarks.get(self.tp)
        if given is not None:
            return given, ""
        stored = self._stored.watermark()
        return None if stored is None else (stored.watermark, stored.etag)

    def _list(self, watermark: Watermark) -> tuple[StoredLog, ...]:
        self._listed_at = self._clock()
        prefix = self._stored.prefix
        return stored_logs(partition_rows(self.store, prefix, watermark.base_offset), prefix)

    def _extend(self, old: ArchiveView) -> str | None:
        """List from the last readable segment on. Return the etag of `offset.wm` there."""
        last = old.logs[-1].base_offset if old.logs else 0
        rows = list(self._stored.rows(last))
        # The last segment is listed again: Pinterest's
        # uploader may have stored a longer version of it.
        kept = (log for log in self._listed if log.base_offset < last)
        self._listed = tuple(chain(kept, stored_logs(rows, self._stored.prefix)))
        return _etag_of(rows, self._archive.layout.watermark_key(self.tp))

    def _end_of(self, log: StoredLog) -> Offset:
        if self._ends is None:
            self._ends = Ends(self.store)
        return self._ends(log)


def _etag_of(rows: Iterable[ObjectSummary], key: str) -> str | None:
    return next((row.etag for row in rows if row.key == key), None)
