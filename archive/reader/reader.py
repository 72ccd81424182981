"""Read many partitions from their archives, within one memory budget.

`pipeline` describes the path of a record, and what an exception in `take` leaves.
"""

import threading
from collections.abc import Callable

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.locate import Locator
from sidetier.archive.partition_archive import ArchiveBounds
from sidetier.archive.reader.archives import OpenArchives
from sidetier.archive.reader.decoder import DecodedRecords, Decoder
from sidetier.archive.reader.fetch_threads import FetchThreads
from sidetier.archive.reader.partition import HandOut, Partition
from sidetier.archive.reader.pipeline import Pipeline
from sidetier.archive.reader.results import NullReadingObserver, ReadingObserver, Records, Taken
from sidetier.archive.reader.settings import ReaderSettings
from sidetier.archive.reader.source import Bound
from sidetier.archive.reader.time_search import FoundRecord, Largest, SegmentTimes, TimeSearch
from sidetier.archive.segment_bytes import BufferPool, MemoryBudget, Range
from sidetier.archive.view import Extract
from sidetier.segments.errors import BatchTooLargeError
from sidetier.segments.lru import Lru
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.attempt import monotonic

_INDEX_PART = 8
"""1/8 of the memory budget is for the cache of indexes, which so displaces no ranges."""
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
        self._settings = settings or ReaderSettings()
        self._observer = observer or NullReadingObserver()
        self._clock = clock
        indexes = self._settings.memory_budget // _INDEX_PART
        self._budget = MemoryBudget(self._settings.memory_budget - indexes)
        locator = Locator(indexes, self._observer.fell_back)
        self._archives = OpenArchives(
            archive,
            locator,
            self._budget,
            buffers or BufferPool(),
            clock,
            with_tail=self._settings.with_tail,
        )
        self._lock = threading.RLock()
        self._ready = threading.Condition(self._lock)
        """Wakes `take`."""
        self._work = threading.Condition(self._lock)
        """Wakes the threads that make requests."""
        self._take_lock = threading.Lock()
        self._partitions: dict[TopicPartition, Partition] = {}
        self._has_lost_results = False
        """An exception has ended a `take` since the last one began."""
        self._error: tuple[Partition, Exception] | None = None
        """An exception in one partition, which the next `take` raises."""
        self._arrivals: dict[Partition, None] = {}
        """Partitions that may have something, the one that was served longest ago first."""
        self._found = Lru[TopicPartition, FoundRecord](_MAX_FOUND)
        """The range in which a timestamp's offset was found last. A read from there does not fetch
        it again.
        """
        self._largest: dict[TopicPartition, Largest] = {}
        self._closed = False
        self._threads = FetchThreads(
            self._settings.fetch_threads,
            work=self._work,
            ready=self._ready,
            arrivals=self._arrivals,
            partitions=self._partitions,
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
            return self._threads.measure()

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
        return self._archives.bounds(tp, max_age)

    def partitions_with_tail(self, topic: str) -> frozenset[int]:
        """Return the partitions of a topic that tail packs have records of; none if tails are not
        read.

        Raises:
            StorageError: As `RemoteStorage` says.
        """
        return self._archives.partitions_with_tail(topic)

    def kafka_cluster_id(self, topic: str) -> str | None:
        """Return Kafka's id of the archived cluster, as `layout.json` has it; None if it is not
        known. One request for each store.

        Raises:
            MalformedObjectError: `layout.json` does not parse.
            StorageError: As `RemoteStorage` says.
        """
        return self._archives.kafka_cluster_id(topic)

    def where(self, tp: TopicPartition) -> str:
        """Return the URL and key prefix of the partition. No request."""
        return self._archives.of(tp).where

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
        source = self._archives.source(tp)
        with self._lock:
            # Kept per partition over calls: the largest timestamp of a version never changes.
            known = self._largest.setdefault(tp, {})
        times = SegmentTimes(source.locator, source.read, source.archive.noted_largest, known)
        search = TimeSearch(source, times, self._settings.max_batch_bytes)
        record = search.first_at(timestamp_ms, self._settings.look_interval)
        if record is None:
            return None
        self._found.put(tp, record)
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
            self._archives.begin_with(tp, extract)
        bound = None
        if until is not None:
            bound = Bound(Offset(until), {} if extract is None else extract.ends)
        source = self._archives.source(tp, bound)
        with self._lock:
            partition = Partition(
                tp, source, self._settings, None if bound is None else bound.until
            )
            self._seek(partition, Offset(offset))
            self._unassign(tp)
            self._partitions[tp] = partition
            self._threads.begin()

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Continue at another offset, or at the same after a `Gap` or `Failed`. After an
        ArchiveReplacedError, this error is returned again: `assign` the partition instead.

        Raises:
            KeyError: The partition is not assigned.
        """
        with self._lock:
            self._seek(self._partitions[tp], Offset(offset))

    def unassign(self, tp: TopicPartition) -> None:
        """Drop a partition: `take` returns nothing more of it. No error if it is not assigned."""
        with self._lock:
            self._unassign(tp)

    def pause(self, tp: TopicPartition) -> None:
        """Return nothing and fetch nothing until `resume`.

        Fetched records are dropped, and the position is kept.

        Raises:
            KeyError: The partition is not assigned.
        """
        self._set_paused(tp, is_paused=True)

    def resume(self, tp: TopicPartition) -> None:
        """Continue after `pause`, or at once after `Failed`, as `seek` does. Raises KeyError as
        `pause`.
        """
        self._set_paused(tp, is_paused=False)

    def position(self, tp: TopicPartition) -> Offset:
        """Return the next offset that `take` will return. Raises KeyError as `pause`."""
        with self._lock:
            return self._partitions[tp].settled[0]

    def take(self, max_records: int, timeout: float) -> list[Taken]:
        """Return the available results of all partitions, in turn, with at most `max_records`
        records.

        Waits up to `timeout` seconds for the first result. Returns an empty list if none arrives,
        or if `close` is called. Each partition has at most one `Records`, and nothing after its
        `Gap` or `Failed`. One caller at a time; others wait. If an exception (KeyboardInterrupt,
        or a bug) ends the call, the next one reads what this one would have returned.

        Raises:
            ValueError: `max_records` is below 1.
            Exception: A bug, or too little memory, in one partition, after the results of the
                others were returned. It is tried again after `ReaderSettings.failed_pause`.
        """
        if max_records < 1:
            raise ValueError(f"{max_records} records asked for: at least 1 is needed")
        end = monotonic() + timeout
        hand_out = HandOut()
        try:
            with self._take_lock:
                self._restart_interrupted(hand_out)
                results = self._gather(hand_out, max_records)
                while not results and self._wait(hand_out, end - monotonic()):
                    hand_out = HandOut()
                    results = self._gather(hand_out, max_records)
        except BaseException:
            # Python may raise KeyboardInterrupt also after the last statement.
            hand_out.is_returned = False
            self._has_lost_results = True
            raise
        return results

    def close(self) -> None:
        """End all reading. A waiting `take` returns. May be called twice.

        Requests in progress are abandoned after 2 seconds. The stores stay open.
        """
        with self._lock:
            self._closed = True
            for tp in list(self._partitions):
                self._unassign(tp)
            self._ready.notify_all()
        self._threads.close()

    def _restart_interrupted(self, hand_out: HandOut) -> None:
        """Restart all partitions of a `take` that was ended by an exception."""
        with self._lock:
            if self._has_lost_results:
                self._has_lost_results = False
                for partition in self._partitions.values():
                    if partition.has_lost_results(hand_out):
                        self._touch(hand_out, partition)

    def _touch(self, hand_out: HandOut, partition: Partition) -> None:
        if partition.has_lost_results(hand_out):
            # It may be in any state.
            self._replace(partition)
            partition.restart(self._clock())
        partition.touch(hand_out)

    def _gather(self, hand_out: HandOut, max_records: int) -> list[Taken]:
        """Return the available results without waiting."""
        gathered: list[tuple[Partition, Pipeline, Taken]] = []
        for partition in self._in_turn():
            try:
                got = self._take_from(hand_out, partition, max_records)
            except Exception as error:  # noqa: BLE001 - one partition does not stop the others
                self._hold(partition, error)
                continue
            if got is not None:
                gathered.append((partition, *got))
                if isinstance(got[1], Records):
                    max_records -= got[1].records.num_rows
            if max_records <= 0:
                break
        with self._lock:
            for partition, _, _ in gathered:
                # One with decoded records left over stays first, so that only one has such records.
                if partition in self._arrivals and not partition.has_remainder:
                    del self._arrivals[partition]
                    self._arrivals[partition] = None
            # Another thread may have called `seek` meanwhile, or the archive has changed.
            results = [
                taken
                for partition, pipeline, taken in gathered
                if partition.pipeline is pipeline and self._threads.is_assigned(partition)
            ]
            # Not later: a pipeline that is replaced from now on begins behind these results.
            hand_out.is_returned = True
            return results

    def _hold(self, partition: Partition, error: Exception) -> None:
        """Let a partition pause after an exception, and serve it last. The others continue."""
        with self._lock:
            if self._threads.is_assigned(partition):
                self._error = partition, error
                self._arrivals.pop(partition, None)
                self._replace(partition)
                partition.restart(self._clock() + self._settings.failed_pause)

    def _take_from(
        self, hand_out: HandOut, partition: Partition, max_records: int
    ) -> tuple[Pipeline, Taken] | None:
        """Drive a partition until it has something to return; None if it has nothing for now."""
        while True:
            with self._lock:
                if not self._has_something(partition):
                    self._arrivals.pop(partition, None)
                    return None
                self._touch(hand_out, partition)
                pipeline, run = partition.pipeline, partition.pipeline.run
                work = pipeline.step(self._clock())
                if pipeline.run is not run:
                    self._threads.changed(partition)
            if isinstance(work, Decoder):
                records = self._decode(partition, pipeline, work, max_records)
                if records is not None:
                    return pipeline, records
            elif isinstance(work, Range):
                self._scan(partition, pipeline, work)
            elif work is not None:
                return pipeline, work

    def _decode(
        self, partition: Partition, pipeline: Pipeline, decoder: Decoder, max_records: int
    ) -> Records | None:
        got: DecodedRecords | BatchTooLargeError | None
        try:
            got = decoder.next_records(max_records)
        except BatchTooLargeError as error:
            got = error
        with self._lock:
            held = pipeline.decoder_bytes
            records = pipeline.decoded(decoder, got)
            # A thread that is woken for each piece in vain would cost more than the decoding.
            if records is None or pipeline.decoder_bytes < held or not partition.takeable:
                self._threads.changed(partition)
        if records is not None:
            self._observer.decoded(partition.tp, records.records.num_rows)
        return records

    def _scan(self, partition: Partition, pipeline: Pipeline, fetched: Range) -> None:
        self._observer.prefetch(partition.tp, hit=not fetched.was_awaited)
        result = pipeline.scan(fetched)
        with self._lock:
            pipeline.scanned(fetched, result, self._budget.share)
            self._threads.changed(partition)

    def _in_turn(self) -> list[Partition]:
        """Return the partitions that may have something, in the order in which they are served."""
        with self._lock:
            if self._threads.died is not None:
                raise self._threads.died
            held, self._error = self._error, None
            if held is not None and self._threads.is_assigned(held[0]):
                raise held[1]
            return list(self._arrivals)

    def _has_something(self, partition: Partition) -> bool:
        return self._threads.is_assigned(partition) and partition.takeable

    def _wait(self, hand_out: HandOut, seconds: float) -> bool:
        """Wait until there may be a result. Return False after the timeout, or after `close`."""
        end = monotonic() + seconds
        with self._lock:
            while not self._closed and not self._anything(hand_out):
                left = end - monotonic()
                if left <= 0:
                    return False
                self._ready.wait(left)
                for partition in filter(self._has_something, self._arrivals):
                    partition.note_wait()
            return not self._closed

    def _anything(self, hand_out: HandOut) -> bool:
        """Whether a partition has something. If none has, memory is freed if that is needed."""
        if self._threads.died is not None or self._error is not None:
            return True
        while self._arrivals:
            partition = next(iter(self._arrivals))
            if self._has_something(partition):
                return True
            del self._arrivals[partition]
        if not self._budget.is_ample:
            for partition in self._partitions.values():
                if partition.may_yield(self._budget):
                    self._touch(hand_out, partition)
                    partition.look_ahead()
                    self._threads.changed(partition)
        return False

    def _set_paused(self, tp: TopicPartition, *, is_paused: bool) -> None:
        with self._lock:
            partition = self._partitions[tp]
            self._replace(partition)
            partition.pause(self._clock(), is_paused=is_paused)

    def _seek(self, partition: Partition, offset: Offset) -> None:
        """Read from this offset on; begin with the range that a search for a timestamp has read, if
        it found this offset.
        """
        found, kept = self._found.pop(partition.tp), None
        if found is not None and found.offset == offset:
            self._threads.measure()
            kept = found.read if self._budget.fits(found.read.size) else None
        self._replace(partition)
        partition.seek(offset, self._clock(), kept)

    def _replace(self, partition: Partition) -> None:
        """Announce a new pipeline, before it begins: an exception in between loses no event."""
        self._threads.arrived(partition)  # it may be at its end at once
        self._threads.changed(partition)

    def _unassign(self, tp: TopicPartition) -> None:
        partition = self._partitions.get(tp)
        if partition is not None:
            self._threads.changed(partition)
            del self._partitions[tp]
            self._arrivals.pop(partition, None)
            # The threads may refer to the partition for long: without its ranges.
            partition.pause(self._clock(), is_paused=True)
