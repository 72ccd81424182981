"""The archives that a reader has opened, and what they share."""

import threading
from collections.abc import Callable
from functools import partial

from sidetier.archive.access import ArchiveAccess, range_reader
from sidetier.archive.locate import Locator
from sidetier.archive.objects.layout import read_note
from sidetier.archive.partition_archive import ArchiveBounds, PartitionArchive
from sidetier.archive.reader.source import ArchiveSource, Bound
from sidetier.archive.segment_bytes import BufferPool, MemoryBudget
from sidetier.archive.settings_check import SettingsCheck
from sidetier.archive.tailed_archive import SharedTails, open_partition
from sidetier.archive.view import Extract
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import IfMatch, ObjectSummary, RemoteStorage
from sidetier.storage.ranges import located, read_into
from sidetier.storage.settings import AttemptDeadline


class OpenArchives:
    """The archive of each partition. Thread-safe.

    Args:
        access: Finds the stores.
        locator: Finds offsets in segments.
        budget: Memory that ranges do not use may be kept in `buffers`.
        buffers: Lends memory for ranges.
        clock: The reader's clock, in seconds.
        with_tail: Also read tail packs.
    """

    def __init__(
        self,
        access: ArchiveAccess,
        locator: Locator,
        budget: MemoryBudget,
        buffers: BufferPool,
        clock: Callable[[], float],
        *,
        with_tail: bool = False,
    ) -> None:
        self._locator = locator
        self._access = access
        self._budget, self._buffers = budget, buffers
        self._clock = clock
        self._tails = SharedTails(access, clock) if with_tail else None
        self._settings_check = SettingsCheck(access)
        self._guard = threading.Lock()
        self._archives: dict[TopicPartition, PartitionArchive] = {}
        self._cluster_ids: dict[str, str | None] = {}

    def of(self, tp: TopicPartition) -> PartitionArchive:
        """Return the archive of a partition. No request."""
        with self._guard:
            if tp not in self._archives:
                self._archives[tp] = self._open(tp)
            return self._archives[tp]

    def begin_with(self, tp: TopicPartition, extract: Extract) -> None:
        """Open the archive of a partition again, of which a part is known."""
        first, position = extract.begins
        # The plan knows the byte position, so that a task needs no index.
        self._locator.found(extract.logs[0], first, position)
        with self._guard:
            self._archives[tp] = self._open(tp, extract)

    def _open(self, tp: TopicPartition, extract: Extract | None = None) -> PartitionArchive:
        return open_partition(
            tp, self._access, self._settings_check, self._clock, self._tails, extract
        )

    def partitions_with_tail(self, topic: str) -> frozenset[int]:
        """Return the partitions of a topic of which packs have records; none if packs are not read.

        A leader's claim is no record: the partition may be empty.
        """
        if self._tails is None:
            return frozenset()
        contents = self._tails.read(topic, float("inf")).contents
        return frozenset(
            tp.partition for tp in contents.rows if tp.topic == topic and contents.may_have_tail(tp)
        )

    def bounds(self, tp: TopicPartition, max_age: float) -> ArchiveBounds | None:
        """Return the readable range of a partition; None if there is nothing.

        Raises:
            UnreadTailError: Nothing is archived, and it is not known what packs have.
        """
        archive = self.of(tp)
        bounds = archive.bounds(max_age)
        if bounds is None and archive.problem is not None:
            raise archive.problem
        return bounds

    def source(self, tp: TopicPartition, bound: Bound | None = None) -> ArchiveSource:
        """Return the source of a partition's archived records, up to the bound."""
        archive = self.of(tp)
        deadline = self._access.provider.endpoint(tp.topic).deadline
        read = range_reader(self._access, tp.topic)
        lend = partial(self._fetch, archive.store, deadline)
        return ArchiveSource(archive, self._locator, read, bound, lend)

    def kafka_cluster_id(self, topic: str) -> str | None:
        """Return Kafka's cluster id in `layout.json`; None if it is not known. One request for each
        store.
        """
        url = self._access.url(topic)
        with self._guard:
            if url in self._cluster_ids:
                return self._cluster_ids[url]
        note = read_note(self._access.store(topic), self._access.layout)
        found = None if note is None else note.kafka_cluster_id
        with self._guard:
            self._cluster_ids[url] = found
        return found

    def _fetch(
        self,
        store: RemoteStorage,
        deadline: AttemptDeadline,
        row: ObjectSummary,
        start: int,
        end: int,
    ) -> memoryview:
        # Unused budget may stay in the pool. Without the lock, the number is a hint.
        buffer = self._buffers.take(end - start, self._budget.total - self._budget.used)
        key, first, _ = located(row, start, end)
        condition = IfMatch(row.etag)
        count = read_into(store, key, first, buffer, condition=condition, deadline=deadline)
        return buffer[:count]
