"""The partition archives that a planner uses, with a cache of their snapshots."""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Final

from sidetier.archive.access import ArchiveAccess, range_reader
from sidetier.archive.errors import ArchiveReplacedError
from sidetier.archive.locate import Locator
from sidetier.archive.objects.chapters import SEGMENTS, read_chapter, stored_chapters
from sidetier.archive.objects.gaps import Gaps, recorded_gaps
from sidetier.archive.objects.layout import LayoutNote, read_note
from sidetier.archive.objects.segment import StoredLog, Version
from sidetier.archive.partition_archive import PartitionArchive
from sidetier.archive.reader.source import ArchiveSource
from sidetier.archive.reader.time_search import Largest, SegmentTimes, TimeSearch
from sidetier.archive.settings_check import SettingsCheck
from sidetier.archive.tailed_archive import SharedTails, open_partition
from sidetier.archive.view import ArchiveView
from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.pipeline.planning.request_pool import RequestPool
from sidetier.segments.epoch_history import EpochHistory
from sidetier.segments.errors import MalformedObjectError, StorageError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.settings import StorageEndpoint

_INDEX_BYTES: Final = 64 * 1024**2
_CHAPTERS_AT_ONCE: Final = 8
log: Final = logging.getLogger("sidetier.pipeline")


@dataclass(slots=True)
class Archives:
    """Archives of many partitions. Thread-safe.

    A second snapshot of a partition only requests what has changed.

    Attributes:
        tails: the tail packs that follow the archives; None to read the archives alone.
    """

    access: ArchiveAccess
    clock: Callable[[], float]
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
    tails: SharedTails | None = None
    locator: Locator = field(
        default_factory=lambda: Locator(_INDEX_BYTES, lambda _key, _reason: None)
    )
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _known: dict[TopicPartition, PartitionArchive] = field(default_factory=dict)
    _largest: dict[TopicPartition, Largest] = field(default_factory=dict)
    _ends: dict[TopicPartition, dict[Version, Offset]] = field(default_factory=dict)
    _in_chapters: dict[TopicPartition, int] = field(default_factory=dict)
    settings_check: SettingsCheck = field(init=False)

    def __post_init__(self) -> None:
        self.settings_check = SettingsCheck(self.access)

    def of(self, tp: TopicPartition) -> PartitionArchive:
        """Return the archive of one partition."""
        with self._guard:
            if tp not in self._known:
                self._known[tp] = open_partition(
                    tp, self.access, self.settings_check, self.clock, self.tails
                )
            return self._known[tp]

    def in_packs(self, endpoint: StorageEndpoint) -> list[TopicPartition]:
        """Return the partitions that tail packs of a store have; none if tails are not read."""
        return [] if self.tails is None else self.tails.partitions(endpoint, 0.0)

    @property
    def known(self) -> tuple[TopicPartition, ...]:
        """The partitions whose archives were requested so far."""
        with self._guard:
            return tuple(self._known)

    def forget(self, tp: TopicPartition) -> None:
        """Drop the cached snapshot of a partition."""
        with self._guard:
            self._known.pop(tp, None)

    def note(self, topic: str) -> LayoutNote | None:
        """Read the note that sidecars store about the cluster beside its topics. One request."""
        return read_note(self.access.store(topic), self.access.layout)

    def topic_ids(self, topic: str) -> set[str]:
        """Return the topic ids in the latest snapshots of this topic's partitions. No request.

        More than one id means that the topic was deleted and created again.
        """
        with self._guard:
            snapshots = [archive.latest for tp, archive in self._known.items() if tp.topic == topic]
        views = [
            snapshot.view
            for snapshot in snapshots
            if snapshot is not None and snapshot.view is not None
        ]
        return {view.watermark.topic_id for view in views if view.watermark.topic_id is not None}

    def gaps(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, Gaps]:
        """Read the recorded gaps of partitions of one topic. One request."""
        return recorded_gaps(self.access.store(tps[0].topic), self.access.layout, tps)

    def epoch_history(self, tp: TopicPartition) -> EpochHistory:
        """Read the leader epochs of one partition's archive. One request."""
        return self.access.partition(tp).epochs().epoch_history

    def source(self, tp: TopicPartition) -> ArchiveSource:
        """Return an `ArchiveSource`, which finds offsets in one partition."""
        read = range_reader(self.access, tp.topic)
        return ArchiveSource(self.of(tp), self.locator, read)

    def times(self, tp: TopicPartition) -> SegmentTimes:
        """Return the largest timestamps of a partition's segments."""
        with self._guard:
            known = self._largest.setdefault(tp, {})
        read = range_reader(self.access, tp.topic)
        return SegmentTimes(self.locator, read, self.of(tp).noted_largest, known)

    def noted_end(self, tp: TopicPartition, log: StoredLog) -> Offset | None:
        """As `PartitionArchive.noted_end`, but without a request if a chapter has the end."""
        with self._guard:
            known = self._ends.get(tp, {}).get(log.version)
        return self.of(tp).noted_end(log) if known is None else known

    def read_chapters(self, tp: TopicPartition, view: ArchiveView) -> None:
        """Read ends and largest timestamps of segments from chapters: one request, and one per
        chapter.

        No request is made if the archive has too few new segments for another chapter. A chapter
        that cannot be read is not an error: the planner then requests the metadata of each segment.
        """
        known = self._in_chapters.get(tp, 0)
        if view.is_pinterest or len(view.logs) - known < SEGMENTS:
            return
        # Noted before the request: a failure is not repeated until there are enough new segments.
        self._in_chapters[tp] = len(view.logs)
        store, topic_id = self.access.store(tp.topic), view.watermark.topic_id
        logs = {item.base_offset: item for item in view.logs}
        try:
            chapters = stored_chapters(store, self.access.layout, tp, topic_id)
            with ThreadPoolExecutor(_CHAPTERS_AT_ONCE, "chapters") as pool:
                entries_by_chapter = list(
                    pool.map(lambda item: read_chapter(store, item), chapters)
                )
        except (MalformedObjectError, StorageError) as error:
            log.warning("the chapters of %s are not used: %s", tp, error)
            return
        largest: Largest = {}
        ends: dict[Version, Offset] = {}
        for entry in chain.from_iterable(entries_by_chapter):
            stored = logs.get(entry.base_offset)
            # A chapter is older than the listing: a segment may have been replaced since, for
            # example after an unclean election.
            if stored is not None and (stored.row.etag, stored.size) == (entry.etag, entry.size):
                ends[stored.version] = entry.next_offset
                if entry.largest_timestamp is not None:
                    largest[stored.version] = entry.largest_timestamp
        with self._guard:
            self._ends.setdefault(tp, {}).update(ends)
            self._largest.setdefault(tp, {}).update(largest)

    def first_at(self, tp: TopicPartition, timestamp_ms: int) -> Offset | None:
        """Return the first record at or after this time in the latest snapshot; None if there is
        none.

        Raises:
            DamagedSegmentError: a batch that must be decoded cannot be read.
            BatchTooLargeError: a batch is larger, decompressed, than `max_batch_bytes`.
            StorageError, ArchiveError: as `PartitionArchive.snapshot`.
        """
        view = self.of(tp).snapshot(float("inf")).view
        if view is not None:
            self.read_chapters(tp, view)
        search = TimeSearch(self.source(tp), self.times(tp), self.max_batch_bytes)
        match = search.first_at(timestamp_ms, float("inf"))
        return None if match is None else match.offset


@dataclass(frozen=True, slots=True)
class ArchiveSnapshots:
    """Snapshots of archives.

    Every method except `renew` raises ArchiveReplacedError if an archive was replaced after it was
    first seen. All raise the errors of `PartitionArchive.snapshot`.
    """

    archives: Archives
    pool: RequestPool

    def of_all(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, ArchiveView | None]:
        """Return the present snapshot of each partition; None where nothing is stored."""
        return self.pool.of_each(self.of, tps)

    def gaps(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Gaps]:
        """Read the recorded gaps of the partitions. One listing for each topic."""
        topics = [list(group) for _, group in groupby(sorted(tps), lambda tp: tp.topic)]
        by_topic = self.pool.each(self.archives.gaps, topics)
        return {tp: gaps for group in by_topic for tp, gaps in group.items()}

    def reaching(self, tp: TopicPartition, until: Offset) -> ArchiveView | None:
        """Return the cached snapshot if it reaches `until`; otherwise a new one."""
        view = self.of(tp, float("inf"))
        return self.of(tp) if view is None or view.end < until else view

    def of(self, tp: TopicPartition, max_age: float = 0.0) -> ArchiveView | None:
        """Return a partition's snapshot that is at most `max_age` seconds old."""
        snapshot = self.archives.of(tp).snapshot(max_age)
        for change in snapshot.changes:
            if change.message is not None:
                raise ArchiveReplacedError(change.message, change.first)
        archive = self.archives.of(tp)
        # A plan without the tail would look complete, and one with discarded records would have to
        # be taken back.
        problem = archive.problem or archive.divergence
        if problem is not None:
            raise problem
        return snapshot.view

    def renew(self) -> dict[TopicPartition, Offset]:
        """Take a new snapshot of each archive, and drop the cache of those that were replaced.

        If one snapshot fails, nothing is dropped.

        Returns:
            For each replaced archive, the first offset whose records are different.
        """
        firsts = self.pool.of_each(self._replaced_from, self.archives.known)
        replaced = {tp: first for tp, first in firsts.items() if first is not None}
        for tp in replaced:
            self.archives.forget(tp)
        return replaced

    def _replaced_from(self, tp: TopicPartition) -> Offset | None:
        changes = self.archives.of(tp).snapshot().changes
        return min((change.first for change in changes if change.message is not None), default=None)
