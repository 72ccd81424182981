"""Many partitions read from their archives, within one bound of memory."""

import threading
from collections.abc import Callable, Iterable
from functools import partial

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.bounds import ArchiveBounds
from sidetier.archive.extract import Extract
from sidetier.archive.locate import IndexCache, Locator
from sidetier.archive.partition_archive import PartitionArchive
from sidetier.archive.ranged import range_reader
from sidetier.archive.reading.bound import Bound
from sidetier.archive.reading.budget import Budget
from sidetier.archive.reading.buffer_pool import BufferPool
from sidetier.archive.reading.fetch_buffer import FetchBuffer
from sidetier.archive.reading.observer import NullReadingObserver, ReadingObserver
from sidetier.archive.reading.opening import Opener
from sidetier.archive.reading.partition import Partition
from sidetier.archive.reading.results import Records, Taken
from sidetier.archive.reading.searching import Found, TimeSearch
from sidetier.archive.reading.settings import ReaderSettings
from sidetier.archive.reading.workers import Workers
from sidetier.archive.settings_check import SettingsCheck
from sidetier.archive.times import Largest, SegmentTimes
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.attempt import monotonic
from sidetier.storage.port import IfMatch, ObjectSummary, RemoteStorage
from sidetier.storage.ranges import read_into
from sidetier.storage.settings import AttemptDeadline

_INDEX_PART = 8
"""One part in so many of the memory keeps the indexes read last."""
_MOST_FOUND = 4
"""Ranges that are kept for who reads on where a time was searched for; 4 MiB each at most."""


class ArchiveReader:
    """Reads partitions from the store, ahead of who takes the records.

    Every method may be called from any thread at any time. `take` hands out each partition's
    records in order of offsets, each offset once, from where it was assigned or sought.
    """

    def __init__(
        self,
        archive: ArchiveAccess,
        settings: ReaderSettings | None = None,
        observer: ReadingObserver | None = None,
        clock: Callable[[], float] = monotonic,
        buffers: BufferPool | None = None,
    ) -> None:
        self._access = archive
        self._settings = settings or ReaderSettings()
        self._observer = observer or NullReadingObserver()
        self._clock = clock
        indexes = self._settings.memory_budget // _INDEX_PART
        self._budget = Budget(self._settings.memory_budget - indexes)
        self._buffers = buffers or BufferPool()
        self._locator = Locator(IndexCache(indexes), self._observer.fell_back)
        self._elsewhere = SettingsCheck(archive)
        lock = threading.RLock()
        self._lock = threading.Condition(lock)
        """What `take` waits for."""
        self._work = threading.Condition(lock)
        """What those who make requests wait for."""
        self._take_lock = threading.Lock()
        self._archives: dict[TopicPartition, PartitionArchive] = {}
        self._partitions: dict[TopicPartition, Partition] = {}
        self._found: dict[TopicPartition, Found] = {}
        """The range in which an offset was found last: read on there, it is not asked for again."""
        self._largest: dict[TopicPartition, Largest] = {}
        self._closed = False
        self._taker = FetchBuffer(self._work, self._observer, clock, self._share)
        self._workers = Workers(
            self._settings.fetch_threads,
            (self._work, self._lock),
            self._partitions.values,
            self._share,
            self._observer,
            clock,
        )

    @property
    def peak_memory(self) -> int:
        """The most bytes of the store's objects that were ever held at once."""
        return self._budget.peak

    @property
    def held_memory(self) -> int:
        """The bytes of the store's objects that are held now, or on their way."""
        with self._lock:
            return self._budget.used

    def bounds(self, tp: TopicPartition, *, max_age: float = 0.0) -> ArchiveBounds | None:
        """From where to where the archive can be read; None where there is none.

        A look makes a request or two (the first one a listing: one for every 1,000 objects). With
        `max_age` a look that is at most so many seconds old will do.

        Raises:
            WrongPlaceError: nothing is stored here, but under another number of entropy bits.
            ArchiveError: what is stored is not what it should be.
            StorageError: as the port says.
        """
        return self._archive(tp).bounds(max_age)

    def where(self, tp: TopicPartition) -> str:
        """Url and prefix under which the partition is looked for; no request."""
        return self._archive(tp).where

    def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> Offset | None:
        """The offset of the first record with this timestamp or a later one, as Kafka's
        ListOffsets means it; None where the archive has none, or there is no archive.

        A look, then for each segment below the answer a small request, once: a segment's largest
        timestamp stands in its time index. Then time index, index, and the range in which the two
        say that the record lies, up to 4 MiB. Who reads on from there asks for none of it again.

        Raises:
            As `bounds`; and DamagedSegmentError, BatchTooLargeError.
        """
        opener = self._opener(tp)
        with self._lock:
            known = self._largest.setdefault(tp, {})
        times = SegmentTimes(self._locator, opener.read, known)
        search = TimeSearch(opener, times, self._settings.max_batch_bytes)
        found = search.first_at(timestamp_ms, self._settings.look_interval)
        if found is None:
            return None
        with self._lock:
            self._found[tp] = found
            while len(self._found) > _MOST_FOUND:
                del self._found[next(iter(self._found))]
        return found.offset

    def assign(
        self,
        tp: TopicPartition,
        offset: int,
        *,
        until: int | None = None,
        extract: Extract | None = None,
    ) -> None:
        """Read a partition from this offset on; what was fetched of it before is dropped.

        With `until` records from that offset on are not handed out: once all below are, and all
        transactions among them are decided, `ReachedEnd` tells it, and nothing more is read. What
        lies behind is fetched only where a transaction is not decided before.

        With an `extract` the archive is not looked at as long as that has what is needed.
        """
        if extract is not None:
            self._hand_on(tp, extract)
        bound = None
        if until is not None:
            bound = Bound(Offset(until), {} if extract is None else extract.ends)
        opener = self._opener(tp, bound)
        with self._lock:
            self._forget(tp)
            partition = Partition(
                tp, opener, self._settings, self._budget, Offset(offset), bound=bound
            )
            look = opener.archive.latest
            if extract is not None and look is not None:
                partition.seen = 0
                partition.notice(look, self._clock())
            partition.restart(Offset(offset), self._clock())
            self._remember(partition)
            self._partitions[tp] = partition
            self._workers.begin()
            self._work.notify()

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Go on from another offset, or the same after a `Gap` or `Failed`.

        Raises:
            KeyError: the partition is not assigned.
        """
        with self._lock:
            self._partitions[tp].restart(Offset(offset), self._clock())
            self._remember(self._partitions[tp])
            self._work.notify()

    def unassign(self, tp: TopicPartition) -> None:
        """Forget a partition: nothing of it comes from `take` any more. No error if unknown."""
        with self._lock:
            self._forget(tp)
            self._work.notify()

    def pause(self, tp: TopicPartition) -> None:
        """Hand out nothing and fetch nothing until `resume`; what was fetched is dropped, the
        position is kept. Raises KeyError where it is not assigned.
        """
        with self._lock:
            partition = self._partitions[tp]
            partition.paused = True
            partition.restart(partition.position, self._clock())
            self._work.notify()

    def resume(self, tp: TopicPartition) -> None:
        """Go on after `pause`, or at once after `Failed`; raises KeyError as `pause`."""
        with self._lock:
            partition = self._partitions[tp]
            partition.paused = False
            partition.restart(partition.position, self._clock())
            self._work.notify()

    def position(self, tp: TopicPartition) -> Offset:
        """The next offset that will be handed out; raises KeyError as `pause`."""
        with self._lock:
            return self._partitions[tp].position

    def take(self, max_records: int, timeout: float) -> list[Taken]:
        """What is there of all partitions, in turn: at most so many records in all.

        Waits up to `timeout` seconds for the first; an empty list when nothing came, or `close` was
        called. At most one `Records` of a partition, and nothing behind its `Gap` or `Failed`. One
        caller at a time: others wait.

        Raises:
            ValueError: fewer than one record asked for.
        """
        if max_records < 1:
            raise ValueError(f"{max_records} records asked for, at least 1 can be taken")
        end = monotonic() + timeout
        with self._take_lock:
            found = self._gather(max_records)
            while not found and self._wait(end - monotonic()):
                found = self._gather(max_records)
            return found

    def close(self) -> None:
        """End all reading; a `take` that waits returns. May be called twice. Requests that are
        under way are abandoned after 2 seconds. The stores are closed by who opened them.
        """
        with self._lock:
            self._closed = True
            for tp in list(self._partitions):
                self._forget(tp)
            self._lock.notify_all()
        self._workers.close()

    def _gather(self, most: int) -> list[Taken]:
        """What can be handed out without waiting."""
        found: list[Taken] = []
        for partition in self._in_turn():
            taken = self._taker.take(partition, most)
            if taken is None:
                continue
            found.append(taken)
            if isinstance(taken, Records):
                most -= taken.records.num_rows
            if most <= 0:
                break
        self._served(found)
        return found

    def _in_turn(self) -> list[Partition]:
        """Those that have something: first the one whose decoded records are not all taken."""
        with self._lock:
            if self._workers.died is not None:
                raise self._workers.died
            for one in self._partitions.values():
                one.driven = False  # what has failed there drives it no longer
            there = [one for one in self._partitions.values() if one.takeable()]
            return sorted(there, key=_has_no_remainder)

    def _served(self, found: Iterable[Taken]) -> None:
        """Let all others come first the next time."""
        with self._lock:
            for one in found:
                partition = self._partitions.pop(one.tp, None)
                if partition is not None:
                    self._partitions[one.tp] = partition

    def _wait(self, seconds: float) -> bool:
        """Wait until there may be something; False once it is too late, or closed."""
        end = monotonic() + seconds
        with self._lock:
            while not self._closed and not self._anything():
                left = end - monotonic()
                if left <= 0:
                    return False
                self._lock.wait(left)
            return not self._closed

    def _anything(self) -> bool:
        """Whether a partition has something; marks what is waited for."""
        if self._workers.died is not None:
            return True
        partitions = self._partitions.values()
        if any(one.takeable() for one in partitions):
            return True
        for partition in partitions:
            for waited in partition.waits():
                waited.waited = True
            if self._taker.relieve(partition):
                self._work.notify()
        return False

    def _share(self) -> int:
        """What each partition that is read may hold; with the lock held."""
        now = self._clock()
        return self._budget.share(sum(one.is_active(now) for one in self._partitions.values()))

    def _archive(self, tp: TopicPartition) -> PartitionArchive:
        with self._lock:
            if tp not in self._archives:
                self._archives[tp] = PartitionArchive(
                    tp, self._access, self._elsewhere, self._clock
                )
            return self._archives[tp]

    def _hand_on(self, tp: TopicPartition, extract: Extract) -> None:
        first, position = extract.begins
        self._locator.found(extract.logs[0], first, position)
        with self._lock:
            self._archives[tp] = PartitionArchive(
                tp, self._access, self._elsewhere, self._clock, extract
            )

    def _opener(self, tp: TopicPartition, bound: Bound | None = None) -> Opener:
        archive = self._archive(tp)
        deadline = self._access.provider.endpoint(tp.topic).deadline
        read = range_reader(self._access, tp.topic)
        fetch = partial(self._fetch, archive.store, deadline)
        return Opener(archive, self._locator, read, fetch, bound)

    def _fetch(
        self,
        store: RemoteStorage,
        deadline: AttemptDeadline,
        row: ObjectSummary,
        start: int,
        end: int,
    ) -> memoryview:
        room = self._buffers.take(end - start, self._budget.total - self._budget.used)
        condition = IfMatch(row.etag)
        count = read_into(store, row.key, start, room, condition=condition, deadline=deadline)
        return room[:count]

    def _remember(self, partition: Partition) -> None:
        """Begin with the range in which the offset was found by its time, if it was."""
        found = self._found.pop(partition.tp, None)
        wanted = found is not None and found.offset == partition.position
        fits = found is not None and self._budget.fits(len(found.data))
        partition.remember(found if wanted and fits else None)

    def _forget(self, tp: TopicPartition) -> None:
        partition = self._partitions.pop(tp, None)
        if partition is not None:
            partition.paused = True
            partition.drop_ranges()
            partition.drop_chain()
            partition.remember(None)


def _has_no_remainder(partition: Partition) -> bool:
    return partition.chain is None or not partition.chain.has_remainder
