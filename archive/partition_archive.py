"""One partition's archive: looked at when needed, and never for more than has changed.

A look at an archive of ours reads `offset.wm`: one request while it stands still, and a listing of
what is new and `_metadata` when it has moved. At Pinterest's it is the listing, which shows whether
`offset.wm` has changed. The whole listing (a request for every 1,000 objects) is read first, and
again when there is a reason to doubt it: a new leader epoch, a watermark that went back, or an
object that is not as it was listed.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Final

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.bounds import ArchiveBounds
from sidetier.archive.errors import NoArchiveError
from sidetier.archive.extract import Extract
from sidetier.archive.listing import partition_rows
from sidetier.archive.objects.gaps import Gaps, recorded_gaps
from sidetier.archive.objects.segment import StoredLog, noted_next_offset, stored_logs
from sidetier.archive.objects.watermark import Watermark, read_watermark
from sidetier.archive.orphan_segments import readable_names, without_orphans
from sidetier.archive.pinterest import Ends, readable_end
from sidetier.archive.settings_check import SettingsCheck
from sidetier.archive.view import (
    ArchiveView,
    Change,
    compare,
    continues,
    view_of_ours,
    view_of_pinterest,
)
from sidetier.segments.errors import ObjectNotFoundError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.port import ObjectSummary, RemoteStorage

_LISTING_SECONDS: Final = 60.0
"""How old the listing may be from which an archive's start is told."""


@dataclass(frozen=True, slots=True)
class ArchiveSnapshot:
    """What is known of an archive: `view` is None where there is none.

    `changes` are all that were noticed since the first look, in order; `looked_at` is the clock at
    the newest look, in seconds.
    """

    view: ArchiveView | None
    changes: tuple[Change, ...]
    looked_at: float


class PartitionArchive:
    """May be called from many threads; one of them looks, the others wait for what it sees."""

    def __init__(
        self,
        tp: TopicPartition,
        archive: ArchiveAccess,
        elsewhere: SettingsCheck,
        clock: Callable[[], float],
        extract: Extract | None = None,
    ) -> None:
        self.tp = tp
        self._archive = archive
        self._elsewhere = elsewhere
        self._clock = clock
        self._guard = threading.Lock()
        self._look: ArchiveSnapshot | None = None
        self._listed: tuple[StoredLog, ...] = ()
        self._listed_at = clock()
        self._ends: Ends | None = None
        if extract is not None:
            self._listed = extract.logs
            self._look = ArchiveSnapshot(extract.view(self.where), (), clock())

    @property
    def latest(self) -> ArchiveSnapshot | None:
        """The newest look, without a request; None before the first."""
        return self._look

    @property
    def store(self) -> RemoteStorage:
        """Where it lies."""
        return self._archive.store(self.tp.topic)

    @property
    def where(self) -> str:
        """Url and prefix, for errors."""
        return f"{self._archive.url(self.tp.topic)}/{self._prefix}"

    @property
    def _prefix(self) -> str:
        return self._archive.layout.partition_prefix(self.tp)

    def look(self, max_age: float = 0.0, *, thorough: bool = False) -> ArchiveSnapshot:
        """The newest look, or an older one of at most so many seconds; a `thorough` one lists all.
        An extract that was handed on does not age.

        Raises:
            WrongPlaceError: nothing is here, but under other entropy bits.
            MalformedObjectError: `offset.wm` does not parse.
            StorageError: as the port says.
        """
        with self._guard:
            known = self._look
            if known is not None and not thorough and self._age(known) < max_age:
                return known
            now = self._clock()
            old = known.view if known is not None else None
            view = self._see(None if thorough else old)
            change = compare(old, view)
            changes = known.changes if known is not None else ()
            self._look = ArchiveSnapshot(
                view, changes if change is None else (*changes, change), now
            )
            return self._look

    def bounds(self, max_age: float = 0.0) -> ArchiveBounds | None:
        """From where to where it can be read; raises as `look`.

        What a store has deleted at the start shows in a listing alone: that is made anew after a
        while.
        """
        age = self._clock() - self._listed_at
        look = self.look(max_age, thorough=age > max(max_age, _LISTING_SECONDS))
        if look.view is not None and look.view.is_part:
            look = self.look()
        view = look.view
        if view is None:
            return None
        return ArchiveBounds(view.start, view.end, view.is_pinterest, look.looked_at)

    def end_of(self, log: StoredLog) -> Offset:
        """One past the last offset of a segment, from its bytes; raises StorageError."""
        with self._guard:
            return self._end_of(log)

    def noted_end(self, log: StoredLog) -> Offset | None:
        """What is noted of a segment's end, with no look at its bytes; None of Pinterest's, and of
        one that is gone. One request; raises StorageError.
        """
        try:
            return noted_next_offset(self.store.head_object(log.key))
        except ObjectNotFoundError:
            return None

    def gaps(self) -> Gaps:
        """Those that are recorded; one request."""
        return recorded_gaps(self.store, self._archive.layout, [self.tp])[self.tp]

    def missing(self) -> NoArchiveError:
        """The error for a partition without a watermark; one request."""
        row = next(iter(self.store.list_objects(self._prefix)), None)
        if row is None:
            return NoArchiveError(f"nothing of {self.tp} is stored at {self.where}")
        return NoArchiveError(
            f"{self.where} has no offset.wm, so nothing of {self.tp} is known to be committed, "
            f"though {row.key} is there"
        )

    def _age(self, known: ArchiveSnapshot) -> float:
        is_part = known.view is not None and known.view.is_part
        return 0.0 if is_part else self._clock() - known.looked_at

    def _see(self, old: ArchiveView | None) -> ArchiveView | None:
        """Look, on the ground of what is known if it is given."""
        if old is not None and old.is_part:
            return self._see_more(old)
        if old is not None and old.is_pinterest:
            return self._see_peers_again(old)
        found = self._watermark()
        if found is None:
            self._listed = ()
            if self._look is None or self._look.view is None:
                self._elsewhere.check(self.tp)
            return None
        watermark, etag = found
        if old is not None and etag == old.etag:
            return old
        if old is None or not continues(old.watermark, watermark):
            self._listed = self._list(watermark)
        else:
            self._extend(old)
        return self._view(watermark, etag)

    def _see_more(self, old: ArchiveView) -> ArchiveView | None:
        """From the last segment that was handed on."""
        found = self._watermark()
        if found is None:
            self._listed = ()
            return None
        self._extend(old)
        return self._view(*found)

    def _see_peers_again(self, old: ArchiveView) -> ArchiveView | None:
        """The listing from the last segment on has the row of the watermark, too."""
        etag = self._extend(old)
        if etag == old.etag:
            return self._view(old.watermark, old.etag)
        found = self._watermark()
        if found is None:
            self._listed = ()
            return None
        watermark, etag = found
        if watermark.next_offset is not None or watermark.base_offset < old.watermark.base_offset:
            self._listed = self._list(watermark)
        return self._view(watermark, etag)

    def _view(self, watermark: Watermark, etag: str) -> ArchiveView:
        if watermark.next_offset is not None:
            named = readable_names(self.store, self._archive.layout.metadata_key(self.tp))
            committed = [log for log in self._listed if log.base_offset <= watermark.base_offset]
            logs = without_orphans(committed, named, self.noted_end)
            return view_of_ours(self.where, watermark, etag, logs)
        end = readable_end(self._listed, watermark.base_offset, self._end_of)
        return view_of_pinterest(self.where, watermark, etag, self._listed, end)

    def _watermark(self) -> tuple[Watermark, str] | None:
        given = self._archive.watermarks.get(self.tp)
        if given is not None:
            return given, ""
        key = self._archive.layout.watermark_key(self.tp)
        stored = read_watermark(self.store, key)
        return None if stored is None else (stored.watermark, stored.etag)

    def _list(self, watermark: Watermark) -> tuple[StoredLog, ...]:
        self._listed_at = self._clock()
        rows = partition_rows(self.store, self._prefix, watermark.base_offset)
        return stored_logs(rows, self._prefix)

    def _extend(self, old: ArchiveView) -> str | None:
        """List from the last readable segment on; returns the etag of the watermark there."""
        last = old.logs[-1].base_offset if old.logs else 0
        after = f"{self._prefix}{last:020d}"  # sorts before every file of that segment
        rows = list(self.store.list_objects(self._prefix, start_after=after))
        kept = (log for log in self._listed if log.base_offset < last)
        self._listed = tuple(chain(kept, stored_logs(rows, self._prefix)))
        return _etag_of(rows, self._archive.layout.watermark_key(self.tp))

    def _end_of(self, log: StoredLog) -> Offset:
        if self._ends is None:
            self._ends = Ends(self.store)
        return self._ends(log)


def _etag_of(rows: Iterable[ObjectSummary], key: str) -> str | None:
    return next((row.etag for row in rows if row.key == key), None)
