"""Read many partitions from their archives, within one memory budget."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from sidetier.archive.access import ArchiveAccess, range_reader
from sidetier.archive.locate import IndexCache, Locator
from sidetier.archive.objects.layout import read_note
from sidetier.archive.partition_archive import ArchiveBounds, PartitionArchive
from sidetier.archive.reader.fetch_threads import FetchThreads
from sidetier.archive.reader.memory import BufferPool, MemoryBudget
from sidetier.archive.reader.opening import Bound, Opener
from sidetier.archive.reader.partition import DecodeRange, DecodeRecords, PartitionReader
from sidetier.archive.reader.results import (
    Failed,
    Gap,
    NullReadingObserver,
    ReachedEnd,
    ReadingObserver,
    Records,
    Taken,
)
from sidetier.archive.reader.settings import ReaderSettings
from sidetier.archive.reader.time_search import FoundRecord, Largest, SegmentTimes, TimeSearch
from sidetier.archive.settings_check import SettingsCheck
from sidetier.archive.view import Extract
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.attempt import monotonic
from sidetier.storage.port import IfMatch, ObjectSummary, RemoteStorage
from sidetier.storage.ranges import read_into
from sidetier.storage.settings import AttemptDeadline

_INDEX_PART = 8
"""1/8 of the memory budget is for the cache of indexes."""
_MAX_FOUND = 4
"""Number of ranges, of at most 4 MiB each, that are kept for reads that begin at a searched
timestamp.
"""


class ArchiveReader:
    """Reads partitions from the store, ahead of the caller of `take`.

    Every method may be called from any thread at any time. `take` returns each partition's records
    in order of offsets, each offset once, from the offset that was assigned or sought.
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
        # The cache of indexes has its own part, so that a
        # partition with many segments does not displace ranges.
        self._budget = MemoryBudget(self._settings.memory_budget - indexes)
        self._buffers = buffers or BufferPool()
        self._locator = Locator(IndexCache(indexes), self._observer.fell_back)
        self._settings_check = SettingsCheck(archive)
        self._lock = threading.RLock()
        self._ready = threading.Condition(self._lock)
        """Wakes `take`."""
        self._work = threading.Condition(self._lock)
        """Wakes the threads that make requests."""
        self._take_lock = threading.Lock()
        self._archives: dict[TopicPartition, PartitionArchive] = {}
        self._partitions: OrderedDict[TopicPartition, PartitionReader] = OrderedDict()
        self._gathered: list[Taken] = []
        """Results that `take` has not returned yet: at most one of each partition. An exception
        that ends a `take` (KeyboardInterrupt, or a bug in decoding) leaves them to the next one,
        because the positions of their partitions are behind them.
        """
        self._last_taken: PartitionReader | None = None
        """The partition from which `take` took last. Only this one can have decoded records left
        over, or work that an exception has interrupted, so `take` need not ask all partitions.
        """
        self._found: dict[TopicPartition, FoundRecord] = {}
        """The range in which a timestamp's offset was found last. A read from there does not fetch
        it again.
        """
        self._largest: dict[TopicPartition, Largest] = {}
        self._cluster_ids: dict[str, str | None] = {}
        self._closed = False
        self._threads = FetchThreads(
            self._settings.fetch_threads,
            work=self._work,
            ready=self._ready,
            partitions=self._partitions.values(),
            budget=self._budget,
            observer=self._observer,
            clock=clock,
        )

    @property
    def peak_memory(self) -> int:
        """The most bytes of objects that were ever held at once."""
        return self._budget.peak

    @property
    def held_memory(self) -> int:
        """Bytes of objects that are held now or being fetched."""
        with self._lock:
            return self._budget.used

    def bounds(self, tp: TopicPartition, *, max_age: float = 0.0) -> ArchiveBounds | None:
        """Return the range of offsets that can be read; None if there is no archive.

        A snapshot needs one or two requests. The first one needs a listing: one request per 1,000
        objects.

        Args:
            tp: The partition.
            max_age: A snapshot of up to this age, in seconds, may be used.

        Raises:
            WrongPlaceError: Nothing is stored here, but an archive exists under another number of
                entropy bits.
            ArchiveError: A stored object is not as it should be.
            StorageError: As `RemoteStorage` says.
        """
        return self._archive(tp).bounds(max_age)

    def kafka_cluster_id(self, topic: str) -> str | None:
        """Return Kafka's id of the archived cluster, as `layout.json` has it; None if it is not
        known.

        One request for each store.

        Raises:
            MalformedObjectError: `layout.json` does not parse.
            StorageError: As `RemoteStorage` says.
        """
        url = self._access.url(topic)
        with self._lock:
            if url in self._cluster_ids:
                return self._cluster_ids[url]
        note = read_note(self._access.store(topic), self._access.layout)
        found = None if note is None else note.kafka_cluster_id
        with self._lock:
            self._cluster_ids[url] = found
        return found

    def where(self, tp: TopicPartition) -> str:
        """Return the URL and key prefix of the partition. No request."""
        return self._archive(tp).where

    def offset_for_time(self, tp: TopicPartition, timestamp_ms: int) -> Offset | None:
        """Return the offset of the first record with this timestamp or a later one, as ListOffsets
        does.

        Takes a snapshot of the archive. Then it makes one small request, once, for each segment
        below the answer: its metadata has the segment's largest timestamp. Then it reads the time
        index, the index, and the range that must hold the record, up to 4 MiB. A read from the
        offset fetches none of it again.

        Returns:
            None if the archive has no such record, or if there is no archive.

        Raises:
            As `bounds`; and DamagedSegmentError, BatchTooLargeError.
        """
        opener = self._opener(tp)
        with self._lock:
            # Kept per partition over calls: the largest timestamp of a version never changes.
            known = self._largest.setdefault(tp, {})
        times = SegmentTimes(self._locator, opener.read, opener.archive.noted_largest, known)
        search = TimeSearch(opener, times, self._settings.max_batch_bytes)
        record = search.first_at(timestamp_ms, self._settings.look_interval)
        if record is None:
            return None
        with self._lock:
            self._found[tp] = record
            while len(self._found) > _MAX_FOUND:
                del self._found[next(iter(self._found))]
        return record.offset

    def assign(
        self,
        tp: TopicPartition,
        offset: int,
        *,
        until: int | None = None,
        extract: Extract | None = None,
    ) -> None:
        """Read a partition from this offset on. Records that were fetched of it before are dropped.

        Args:
            tp: The partition.
            offset: First wanted offset.
            until: End of the wanted offsets, exclusive. `take` returns `ReachedEnd` once all
                records below are returned and all their transactions are decided; nothing more is
                read then. Bytes above are fetched only if a transaction below is not decided.
            extract: A part of the archive. No snapshot of the archive is taken while the extract
                has everything that is needed.
        """
        if extract is not None:
            self._hand_on(tp, extract)
        bound = None
        if until is not None:
            bound = Bound(Offset(until), {} if extract is None else extract.ends)
        opener = self._opener(tp, bound)
        with self._lock:
            self._forget(tp)
            partition = PartitionReader(tp, opener, self._settings, self._budget, bound)
            snapshot = opener.archive.latest
            if extract is not None and snapshot is not None:
                partition.view_extract(snapshot)
            elif snapshot is not None:
                partition.notice_changes_since(snapshot)
            self._seek(partition, Offset(offset))
            self._partitions[tp] = partition
            self._threads.begin()
            self._work.notify()

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue at another offset, or at the same after a `Gap` or `Failed`.

        Raises:
            KeyError: The partition is not assigned.
        """
        with self._lock:
            partition = self._partitions[tp]
            # Results that `take` has gathered and not returned belong to the position before.
            self._drop_gathered(tp)
            self._seek(partition, Offset(offset))
            self._work.notify()

    def unassign(self, tp: TopicPartition) -> None:
        """Drop a partition: `take` returns nothing more of it. No error if it is not assigned."""
        with self._lock:
            self._forget(tp)
            self._work.notify()

    def pause(self, tp: TopicPartition) -> None:
        """Return nothing and fetch nothing until `resume`.

        Fetched records are dropped, and the position is kept.

        Raises:
            KeyError: The partition is not assigned.
        """
        with self._lock:
            # The position of the first gathered record, not that behind
            # it: gathered records are dropped, and must be read again.
            position = self.position(tp)
            partition = self._partitions[tp]
            self._drop_gathered(tp)
            partition.position = position
            partition.pause(self._clock())
            self._work.notify()

    def resume(self, tp: TopicPartition) -> None:
        """Continue after `pause`, or at once after `Failed`. Raises KeyError as `pause`."""
        with self._lock:
            self._partitions[tp].resume(self._clock())
            self._work.notify()

    def position(self, tp: TopicPartition) -> Offset:
        """Return the next offset that `take` will return. Raises KeyError as `pause`."""
        with self._lock:
            position = self._partitions[tp].position
            for taken in self._gathered:
                if taken.tp == tp and isinstance(taken, Records):
                    return _first_offset(taken)
            return position

    def take(self, max_records: int, timeout: float) -> list[Taken]:
        """Return the available results of all partitions, in turn, with at most `max_records`
        records.

        Waits up to `timeout` seconds for the first result. Returns an empty list if none arrives,
        or if `close` is called. Each partition has at most one `Records`, and nothing after its
        `Gap` or `Failed`. One caller at a time; others wait. If an exception (KeyboardInterrupt,
        or a bug) ends the call, the next one returns what was available.

        Raises:
            ValueError: `max_records` is below 1.
        """
        if max_records < 1:
            raise ValueError(f"{max_records} records asked for: at least 1 is needed")
        end = monotonic() + timeout
        with self._take_lock:
            # Left over from a `take` that an exception has ended.
            if self._gathered:
                self._end_interrupted_take(max_records)
            else:
                self._gather(max_records)
            while not self._gathered and self._wait(end - monotonic()):
                self._gather(max_records)
            with self._lock:
                results, self._gathered = self._gathered, []
            return results

    def close(self) -> None:
        """End all reading. A waiting `take` returns. May be called twice.

        Requests in progress are abandoned after 2 seconds. The stores stay open: their owner closes
        them.
        """
        with self._lock:
            self._closed = True
            for tp in list(self._partitions):
                self._forget(tp)
            self._ready.notify_all()
        self._threads.close()

    def _gather(self, most: int) -> None:
        """Gather the available results without waiting."""
        for partition in self._in_turn():
            taken = self._take_from(partition, most)
            if isinstance(taken, Records):
                most -= taken.records.num_rows
            if most <= 0:
                break
        self._served()

    def _take_from(self, partition: PartitionReader, most: int) -> Taken | None:
        """Drive a partition until it has something to return, and gather that; None if it has
        nothing for now.
        """
        # Before any work: an exception in between must leave a trace of the partition to repair.
        self._last_taken = partition
        while True:
            with self._lock:
                work = partition.next_work()
                if work is None and partition.apply_answer(self._clock()):
                    self._work.notify()
                    continue
                if isinstance(work, Gap | Failed | ReachedEnd):
                    self._gathered.append(work)
                if not isinstance(work, DecodeRecords | DecodeRange):
                    partition.work_recorded()
                    return work
            if isinstance(work, DecodeRecords):
                records = self._decode_records(partition, work, most)
                if records is not None:
                    return records
            else:
                self._decode_range(partition, work)

    def _decode_records(
        self, partition: PartitionReader, work: DecodeRecords, most: int
    ) -> Records | None:
        decoded = work.run(most)
        with self._lock:
            records, may_act = partition.records_decoded(work, decoded)
            if records is not None:
                # Before `work_recorded`: `end_interrupted_work`
                # has to know whether the records were gathered.
                self._gathered.append(records)
            partition.work_recorded()
            if may_act:
                self._work.notify()
        if records is not None:
            self._observer.decoded(partition.tp, records.records.num_rows)
        return records

    def _decode_range(self, partition: PartitionReader, work: DecodeRange) -> None:
        self._observer.prefetch(partition.tp, hit=not work.range.was_awaited)
        result = work.run()
        with self._lock:
            partition.range_decoded(work, result, self._clock())
            self._work.notify()

    def _in_turn(self) -> list[PartitionReader]:
        """Return the partitions that have something; first the one with decoded records left
        over.
        """
        with self._lock:
            if self._threads.died is not None:
                raise self._threads.died
            last = self._last_taken
            if last is not None:
                last.end_interrupted_work(self._clock)
            ready = [partition for partition in self._partitions.values() if partition.takeable()]
            if last is not None and len(ready) > 1 and last.has_remainder:
                ready.remove(last)
                ready.insert(0, last)
            return ready

    def _end_interrupted_take(self, most: int) -> None:
        """Keep the results that the interrupted `take` has gathered, up to `most` records."""
        with self._lock:
            for taken in list(self._gathered):
                self._partitions[taken.tp].end_interrupted_work(self._clock, taken)
                if isinstance(taken, Records):
                    most -= taken.records.num_rows
                    if most < 0:  # read again, in smaller parts
                        self.seek(taken.tp, _first_offset(taken))

    def _served(self) -> None:
        """Put the served partitions last for the next time."""
        with self._lock:
            for taken in self._gathered:
                if taken.tp in self._partitions:
                    # One step: an exception between `pop` and an insertion would lose it.
                    self._partitions.move_to_end(taken.tp)

    def _drop_gathered(self, tp: TopicPartition) -> None:
        """Drop the results of a partition that `take` has gathered and not returned."""
        if self._gathered:
            self._gathered = [taken for taken in self._gathered if taken.tp != tp]

    def _wait(self, seconds: float) -> bool:
        """Wait until there may be a result. Return False after the timeout, or after `close`."""
        end = monotonic() + seconds
        with self._lock:
            while not self._closed and not self._anything():
                left = end - monotonic()
                if left <= 0:
                    return False
                self._ready.wait(left)
            return not self._closed

    def _anything(self) -> bool:
        """Whether a partition has something. Marks the ranges that `take` waits for."""
        if self._threads.died is not None:
            return True
        partitions = self._partitions.values()
        if any(candidate.takeable() for candidate in partitions):
            return True
        for partition in partitions:
            if partition.waiting_begins():
                self._work.notify()
        return False

    def _archive(self, tp: TopicPartition) -> PartitionArchive:
        with self._lock:
            if tp not in self._archives:
                self._archives[tp] = PartitionArchive(
                    tp, self._access, self._settings_check, self._clock
                )
            return self._archives[tp]

    def _hand_on(self, tp: TopicPartition, extract: Extract) -> None:
        first, position = extract.begins
        # The plan knows the byte position, so that a task needs no index.
        self._locator.found(extract.logs[0], first, position)
        with self._lock:
            self._archives[tp] = PartitionArchive(
                tp, self._access, self._settings_check, self._clock, extract
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
        # Unused budget may stay in the pool. The lock is not needed: the number is a hint.
        buffer = self._buffers.take(end - start, self._budget.total - self._budget.used)
        condition = IfMatch(row.etag)
        count = read_into(store, row.key, start, buffer, condition=condition, deadline=deadline)
        return buffer[:count]

    def _seek(self, partition: PartitionReader, offset: Offset) -> None:
        """Read from this offset on; begin with the range that a search for a timestamp has read, if
        it found this offset.
        """
        partition.seek(offset, self._clock())
        partition.keep(self._found.pop(partition.tp, None))

    def _forget(self, tp: TopicPartition) -> None:
        partition = self._partitions.pop(tp, None)
        if partition is not None:
            self._drop_gathered(tp)
            partition.close()


def _first_offset(taken: Records) -> Offset:
    return Offset(taken.records.column("offset")[0].as_py())
