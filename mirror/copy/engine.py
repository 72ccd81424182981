"""Copy record batches from a source to a target, in transactions, until stopped."""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import structlog

from sidetier.mirror.copy.batches import SourceBatch, encode_record, reencode
from sidetier.mirror.copy.offset_map import MapRecord, OffsetMapWriter, Run, runs_of
from sidetier.mirror.copy.source import (
    Fetched,
    Source,
    SourceEvent,
    SourceGap,
    TopicRecreated,
)
from sidetier.mirror.copy.target import (
    ABORTABLE,
    MEMBERSHIP_LOST,
    TOO_LARGE,
    DamagedBatchError,
    OutgoingBatch,
    RefusedBatchError,
    Target,
    Written,
)
from sidetier.segments.batches import build_batch
from sidetier.segments.errors import (
    BrokerError,
    KafkaApiError,
    MirrorError,
    SegmentError,
    SidetierError,
    SourceUnavailableError,
)
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.requests import CommittedOffset

TRANSACTION_BYTES: Final = 256 << 20
TRANSACTION_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 300.0
MAX_BATCH_BYTES: Final = 256 << 20
RETRY_SECONDS: Final = 300.0
"""Seconds after which a partition that was left out is tried again."""
_MAP_RECORDS_AT_ONCE: Final = 100
"""About 0.5 MB: by default a broker accepts batches of up to 1 MiB."""
_POLL_SECONDS: Final = 0.2
_LONGEST_PAUSE: Final = 10.0
_SHORTEST_SLEEP: Final = 1 / 8
Clock = Callable[[], float]

log = structlog.get_logger("sidetier.mirror")


@dataclass(frozen=True, slots=True)
class Copy:
    """A source partition and its copy.

    Attributes:
        source: The source partition.
        target: The target partition.
        lineage: Text that is stored as metadata of the progress (`Lineage.encoded`).
        source_id: The source topic is read only as long as it has this id; None for any id.
        target_id: Kafka's id of the target topic, for the offset map; "" if the brokers have none.
        max_batch_bytes: Maximum size of a batch in the target topic; None if unknown.
    """

    source: TopicPartition
    target: TopicPartition
    lineage: str = ""
    source_id: UUID | None = None
    target_id: str = ""
    max_batch_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the engine's work.

    Attributes:
        transaction_bytes: Bytes of batches after which a transaction is committed.
        transaction_seconds: Seconds after its first batch after which a transaction is committed.
        bytes_per_second: Bandwidth limit; None for no limit.
        patience: Seconds without a commit after which failures end the engine.
        max_batch_bytes: Maximum decompressed bytes of a batch that has to be re-encoded.
    """

    transaction_bytes: int = TRANSACTION_BYTES
    transaction_seconds: float = TRANSACTION_SECONDS
    bytes_per_second: int | None = None
    patience: float = PATIENCE_SECONDS
    max_batch_bytes: int = MAX_BATCH_BYTES


@dataclass(slots=True)
class PartitionLag:
    """How far a copy is behind its source.

    Attributes:
        position: The next source offset to copy.
        end: The end of the source partition, exclusive; -1 if unknown.
        newest_timestamp: The newest timestamp that was read, in ms since 1970; -1 if none.
    """

    position: Offset
    end: int = -1
    newest_timestamp: int = -1

    @property
    def records(self) -> int:
        """Number of source offsets that are not copied yet."""
        return max(self.end - self.position, 0)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A partition that is not copied further, although it has more records.

    Attributes:
        copy: The copy when it was left out.
        offset: The first source offset that is not copied.
        retry_at: Time of the next attempt; infinite if only another `copy` can help.
    """

    copy: Copy
    offset: Offset
    retry_at: float


@dataclass(slots=True)
class Counts:
    """Work done by an engine since it started. Its thread writes, any thread may read."""

    records: int = 0
    bytes: int = 0
    dropped_records: int = 0
    reencoded_batches: int = 0
    transactions: int = 0
    aborts: int = 0
    gaps: list[SourceGap] = field(default_factory=list)
    transaction_seconds: float = 0.0
    """Total of all committed transactions, from their first batch to the answer of EndTxn."""
    commit_seconds: float = 0.0
    """The part of `transaction_seconds` after the last batch."""
    newest_latency: float = 0.0
    """Seconds from a record's timestamp to its commit on the target, for the newest record of the
    last transaction.
    """
    lags: dict[TopicPartition, PartitionLag] = field(default_factory=dict)
    left_out: dict[TopicPartition, str] = field(default_factory=dict)
    """Why partitions are not copied further, by source partition. An entry stays during the next
    attempts, until one succeeds.
    """

    @property
    def lag_records(self) -> int:
        """Source offsets of all partitions that are not copied yet."""
        return sum(lag.records for lag in list(self.lags.values()))


def summed(every: Iterable[Counts]) -> Counts:
    """Add the counts of several engines, for different partitions or one after the other."""
    total = Counts()
    for counts in every:
        total.records += counts.records
        total.bytes += counts.bytes
        total.dropped_records += counts.dropped_records
        total.reencoded_batches += counts.reencoded_batches
        total.transactions += counts.transactions
        total.aborts += counts.aborts
        total.gaps += counts.gaps
        total.transaction_seconds += counts.transaction_seconds
        total.commit_seconds += counts.commit_seconds
        total.newest_latency = max(total.newest_latency, counts.newest_latency)
        total.lags |= counts.lags
        total.left_out |= counts.left_out
    return total


@dataclass(slots=True)
class _Open:
    """Contents of the open transaction."""

    started: float
    progress: dict[TopicPartition, Offset] = field(default_factory=dict)
    bytes: int = 0
    records: int = 0
    newest_timestamp: int = -1


class WorkerGroup(Protocol):
    """The workers of a mirror, which share its partitions."""

    def join(self) -> None:
        """Become a member, and wait until every worker knows its share.

        Other workers can no longer commit progress of partitions that they lose by this join.

        Raises:
            ConfigurationError: The other workers copy other topics, and this worker has not begun.
            MirrorError: Another process of this worker has started, or the workers do not agree.
            BrokerError: A broker refuses, or none answers.
        """
        ...

    def must_join_again(self) -> bool:
        """Whether workers joined or left since `join`, or this worker was removed."""
        ...

    def owns(self, source: TopicPartition) -> bool:
        """Whether the partition is in this worker's share, as of the last `join`."""
        ...


class Engine:
    """The copy loop of one worker. `run` returns when the source is finished or `stop` is set.

    Args:
        source: The source of batches.
        target: The target of batches.
        copies: Returns the partitions that all workers copy now; called every `refresh_seconds`.
        first_offsets: Returns where reading begins for partitions without progress; those without a
            leader may be missing.
        offsets_topic: The target's topic for the offset map; None keeps no map.
        workers: Divides the partitions between workers; None if there is one worker.
        limits: Limits of the engine's work.
        refresh_seconds: None if reading has an end: `run` then returns once the source is finished.
        stop: Set by another thread to end `run` after the next commit.
        leave_out: Whether a partition that cannot be copied is left out and reported; otherwise its
            failure ends `run`.
    """

    def __init__(  # noqa: PLR0913 -- all but four have a default
        self,
        source: Source,
        target: Target,
        copies: Callable[[], Mapping[TopicPartition, Copy]],
        first_offsets: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, Offset]],
        *,
        offsets_topic: str | None,
        workers: WorkerGroup | None = None,
        limits: Limits | None = None,
        refresh_seconds: float | None = 30.0,
        stop: threading.Event | None = None,
        leave_out: bool = False,
        clock: Clock = time.monotonic,
        wall_clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.counts = Counts()
        self._source = source
        self._target = target
        self._find_copies = copies
        self._first_offsets = first_offsets
        self._offsets_topic = offsets_topic
        self._workers = workers
        self._limits = limits or Limits()
        self._refresh_seconds = refresh_seconds
        self._stop = stop or threading.Event()
        self._may_leave_out = leave_out
        self._clock = clock
        self._wall_clock_ms = wall_clock_ms
        self._copies: Mapping[TopicPartition, Copy] = {}
        self._left_out: dict[TopicPartition, LeftOut] = {}
        self._smaller: dict[TopicPartition, int] = {}
        """Size to split batches to, of partitions whose target has refused a batch."""
        self._refused_since: dict[TopicPartition, float] = {}
        """Time of the first refusal since the last commit of the partition."""
        self._blocked: dict[TopicPartition, _Failure] = {}
        """The batch that the target has refused, of partitions that must not be copied further."""
        self._map = OffsetMapWriter()
        self._events: deque[SourceEvent] = deque()
        self._open: _Open | None = None
        self._must_begin = False
        self._failure: SidetierError | None = None
        self._paced_until = clock()
        self._refreshed_at = clock()

    @property
    def copies(self) -> Mapping[TopicPartition, Copy]:
        """The partitions that are copied now, by source partition. Any thread may read it."""
        return self._copies

    def run(self) -> None:
        """Copy until the source is finished or `stop` is set.

        A failure that may pass aborts the open transaction. The engine then reads the progress from
        the target again and continues reading the source from there.

        Raises:
            ProducerFencedError: Another process has taken over.
            MirrorError: The source has a gap, or a record is larger than the target accepts, and
                partitions may not be left out; or the workers do not agree.
            SidetierError: The failure cannot be repaired by a retry, or has lasted too long.
        """
        committed_at = self._clock()
        failures = 0
        while not self._stop.is_set():
            before = self.counts.transactions
            try:
                self._begin()
                self._copy()
            except SidetierError as error:
                # Progress since the last failure: patience and pauses begin again.
                if self.counts.transactions > before:
                    committed_at, failures = self._clock(), 0
                failures += 1
                self.counts.aborts += 1
                has_lasted = self._clock() - committed_at > self._limits.patience
                if self._handle_refused_batch(error, has_lasted=has_lasted):
                    continue  # the next attempt is a different one
                if has_lasted or not self._is_worth_another_attempt(error):
                    raise
                pause = min(0.1 * 2**failures, _LONGEST_PAUSE)
                log.warning("mirror.aborted", reason=str(error), next_attempt_seconds=pause)
                self._stop.wait(pause)
            else:
                return

    def _handle_refused_batch(self, error: SidetierError, *, has_lasted: bool) -> bool:
        """Let the next attempt split the batches of the partition, or end before this batch.

        Returns False if neither can help.
        """
        if not isinstance(error, RefusedBatchError | DamagedBatchError):
            return False
        batch = error.batch
        source = next((tp for tp, copy in self._copies.items() if copy.target == batch.tp), None)
        if source is None:
            return False  # the offset map
        # Commits of other partitions between the attempts must not hide how long it has lasted.
        refused_since = self._refused_since.setdefault(source, self._clock())
        has_lasted |= self._clock() - refused_since > self._limits.patience
        if isinstance(error, RefusedBatchError) and error.code in TOO_LARGE:
            if len(batch.source_offsets) > 1:
                # Half of it, because brokers that compress batches themselves have another limit.
                self._smaller[source] = len(batch.data) // 2
                return True
            error = _too_large(self._copies[source], batch)
        elif not self._may_leave_out or (
            self._is_worth_another_attempt(error)
            and not (error.retry and (has_lasted or source in self.counts.left_out))
        ):
            return False
        # The next attempt commits the records before this batch, which were aborted with it.
        self._blocked[source] = _Failure(Offset(batch.source_offsets[0]), error)
        return True

    def _leave_out(self, tp: TopicPartition, failure: "_Failure") -> None:
        """Do not copy a partition further; `_begin` then reads the others only."""
        offset, error = failure.offset, failure.error
        wait = float("inf") if failure.until_changed else RETRY_SECONDS
        reason = f"{tp} is not copied from offset {offset} on: {error}"
        self._left_out[tp] = LeftOut(self._copies[tp], offset, self._clock() + wait)
        self.counts.left_out[tp] = reason
        self._must_begin = True
        log.error("mirror.partition_left_out", partition=str(tp), offset=offset, reason=str(error))

    def _is_worth_another_attempt(self, error: SidetierError) -> bool:
        if isinstance(error, MirrorError):
            return False
        if isinstance(error, KafkaApiError) and error.code in MEMBERSHIP_LOST:
            return self._workers is not None  # the next attempt joins again
        return error.retry or (isinstance(error, KafkaApiError) and error.code in ABORTABLE)

    def _begin(self) -> None:
        """Become the worker's only producer, and read the progress from the target."""
        # The batches that were read belong to positions that were not committed.
        self._events.clear()
        self._must_begin = False
        self._failure = None
        self._open = None
        self._map.restart()
        # The order matters. `start` aborts the transaction of an earlier process of this worker.
        # From `join` on, the coordinator refuses commits of the workers that owned these partitions
        # before. So no other process moves the progress that is read next.
        self._target.start()
        if self._workers is not None:
            self._workers.join()
        copies = self._find_own_copies()
        for tp, copy in self._copies.items():
            if copies.get(tp) != copy:
                self._smaller.pop(tp, None)
                self._refused_since.pop(tp, None)
        self._copies = copies
        self._left_out = {
            tp: left
            for tp, left in self._left_out.items()
            if copies.get(tp) == left.copy and self._clock() < left.retry_at
        }
        positions = self._begin_copies(copies.values())
        # Records before the offset may have been aborted since: they have to be read again.
        self._left_out = {
            tp: left
            for tp, left in self._left_out.items()
            if positions.get(tp, left.offset) >= left.offset
        }
        self._must_begin = False
        for tp in self.counts.left_out.keys() - copies.keys():
            del self.counts.left_out[tp]
        kept = {tp: lag for tp, lag in self.counts.lags.items() if tp in self._left_out}
        self.counts.lags = {tp: PartitionLag(offset) for tp, offset in positions.items()} | kept
        copied = [copy for tp, copy in copies.items() if tp not in self._left_out]
        self._source.assign(
            {copy.source: positions[copy.source] for copy in copied},
            {copy.source.topic: copy.source_id for copy in copied if copy.source_id is not None},
        )
        self._refreshed_at = self._clock()

    def _find_own_copies(self) -> Mapping[TopicPartition, Copy]:
        copies = self._find_copies()
        if self._workers is None:
            return copies
        return {tp: copy for tp, copy in copies.items() if self._workers.owns(tp)}

    def _begin_copies(self, copies: Collection[Copy]) -> dict[TopicPartition, Offset]:
        """Return the next source offset of each copy; commit where the new copies begin.

        Copies that are left out and have no progress are missing.
        """
        progress = self._target.progress([copy.target for copy in copies])
        first = self._find_first_offsets(
            [
                copy.source
                for copy in copies
                if copy.target not in progress and copy.source not in self._left_out
            ]
        )
        if first:
            # The start of a copy is durable before its first record. So after a kill, records of
            # the first transaction can be distinguished from records that others have written.
            self._target.commit(
                {
                    copy.target: CommittedOffset(first[copy.source], metadata=copy.lineage)
                    for copy in copies
                    if copy.source in first
                }
            )
        done = {
            copy.source: progress[copy.target].offset for copy in copies if copy.target in progress
        }
        return done | first

    def _find_first_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        """Return where reading begins; a partition of which this is not known is left out.

        Raises:
            SidetierError: It is known of no partition, and no other one is copied.
        """
        if not partitions:
            return {}
        found: dict[TopicPartition, Offset | SidetierError]
        try:
            first = self._first_offsets(partitions)
            found = {tp: first[tp] if tp in first else _without_leader(tp) for tp in partitions}
        except SidetierError as error:
            if not (self._may_leave_out and _is_of_one_partition(error)):
                raise
            found = {tp: self._find_first_offset(tp) for tp in partitions}
        failures = {tp: error for tp, error in found.items() if isinstance(error, SidetierError)}
        if failures and (not self._may_leave_out or len(failures) == len(self._copies)):
            raise failures.popitem()[1]
        for tp, failure in failures.items():
            self._leave_out(tp, _Failure(Offset(0), failure))
        return {tp: at for tp, at in found.items() if not isinstance(at, SidetierError)}

    def _find_first_offset(self, tp: TopicPartition) -> Offset | SidetierError:
        try:
            return self._first_offsets([tp])[tp]
        except SidetierError as error:
            if not _is_of_one_partition(error):
                raise
            return error

    def _copy(self) -> None:
        while True:
            source_error: SidetierError | None = None
            try:
                self._take_events()
            except _SourceEndedError as error:
                source_error = error.reason
            # The open transaction is committed below, before the worker joins the rebalance.
            if self._workers is not None and self._workers.must_join_again():
                self._must_begin = True
            is_last = source_error is not None or self._stop.is_set() or self._is_finished()
            if is_last or self._must_begin or self._is_full():
                self._commit()
            if source_error is not None:
                raise source_error  # only now: records that were read before it are committed
            if is_last:
                return
            if self._must_begin or (self._open is None and self._has_new_copies()):
                self._begin()

    def _is_finished(self) -> bool:
        if self._refresh_seconds is not None:
            return False  # topics and partitions may still be added
        return not (self._events or self._must_begin) and self._source.finished()

    def _is_full(self) -> bool:
        return self._open is not None and (
            self._open.bytes >= self._limits.transaction_bytes
            or self._clock() - self._open.started >= self._limits.transaction_seconds
        )

    def _take_events(self) -> None:
        if not self._events:
            try:
                self._events.extend(self._source.poll(_POLL_SECONDS))
            except SidetierError as error:
                raise _SourceEndedError(error) from error
        # Sent together: a request takes one batch of each partition, so with small batches the
        # number of requests limits the throughput.
        outgoing: list[OutgoingBatch] = []
        # Events that do not fit into this transaction stay for the next one.
        while (
            self._events and self._failure is None and not (self._is_full() or self._stop.is_set())
        ):
            outgoing += self._take(self._events.popleft())
        if outgoing:
            self._pace(sum(len(batch.data) for batch in outgoing))
            self._target.send(outgoing)
        if self._failure is not None:
            raise _SourceEndedError(self._failure)

    def _take(self, event: SourceEvent) -> list[OutgoingBatch]:
        """Handle an event, and return the batches to send."""
        if isinstance(event, TopicRecreated):
            # The batches before it are of the former topic and are committed. `_begin` then finds
            # out what to copy now.
            self._must_begin = True
        elif event.tp in self._left_out:
            return []
        elif isinstance(event, Fetched):
            return self._prepare(event)
        elif isinstance(event, SourceGap):
            self._step_over(event)
        else:
            progress = {} if self._open is None else self._open.progress
            reached = progress.get(event.tp, self.counts.lags[event.tp].position)
            self._handle_failed(event.tp, _Failure(reached, event.error))
        return []

    def _prepare(self, fetched: Fetched) -> list[OutgoingBatch]:
        """Return the batches to send; count them as part of the open transaction."""
        tp, selection = fetched.tp, fetched.selection
        lag = self.counts.lags[tp]
        lag.end = fetched.end
        outgoing: list[OutgoingBatch] = []
        reached, newest, failure = selection.next_offset, -1, None
        for batch in selection.batches:
            prepared, failure = self._outgoing(batch, self._copies[tp])
            outgoing += prepared
            newest = max(newest, batch.header.max_timestamp)
            if failure is not None:
                reached = failure.offset
                break
        # Otherwise only the end of the source has moved: no reason to begin a transaction.
        if reached > fetched.start:
            opened = self._open_transaction()
            opened.records += sum(len(batch.source_offsets) for batch in outgoing)
            opened.bytes += sum(len(batch.data) for batch in outgoing)
            lag.newest_timestamp = max(lag.newest_timestamp, newest)
            opened.newest_timestamp = max(opened.newest_timestamp, newest)
            self.counts.dropped_records += selection.dropped_records
            # Also without a batch: control batches and aborted records move the progress, too.
            opened.progress[tp] = reached
        elif failure is None and reached >= fetched.end:
            self.counts.left_out.pop(tp, None)  # it can be read again, and nothing is left to copy
        if failure is not None:
            self._handle_failed(tp, failure)
        return outgoing

    def _outgoing(
        self, batch: SourceBatch, copy: Copy
    ) -> tuple[list[OutgoingBatch], "_Failure | None"]:
        """Return the batches to send, and why the records after them cannot be sent."""
        most = copy.max_batch_bytes
        sizes = [size for size in (most, self._smaller.get(copy.source)) if size is not None]
        split_above = min(sizes, default=None)
        is_small = split_above is None or len(batch.data) <= split_above
        if is_small and not batch.must_be_reencoded:
            header = batch.header
            # A range instead of a list of offsets: no work for each record.
            offsets = range(header.base_offset, header.next_offset)
            items = [OutgoingBatch(copy.target, batch.data, offsets)]
        else:
            try:
                others = reencode(
                    batch, self._limits.max_batch_bytes, str(copy.source), split_above
                )
            except SegmentError as error:
                return [], _Failure(batch.start, error)
            self.counts.reencoded_batches += len(others)
            items = [
                OutgoingBatch(copy.target, memoryview(other.data), other.source_offsets)
                for other in others
            ]
        for number, item in enumerate(items):
            failure = self._why_not(item, copy)
            if failure is not None:
                return items[:number], failure
        return items, None

    def _why_not(self, item: OutgoingBatch, copy: Copy) -> "_Failure | None":
        """Return why a batch must not be sent; None if it may be."""
        first = Offset(item.source_offsets[0])
        blocked = self._blocked.get(copy.source)
        if blocked is not None and first <= blocked.offset <= item.source_offsets[-1]:
            del self._blocked[copy.source]  # a later attempt tries it again
            return _Failure(first, blocked.error)
        if copy.max_batch_bytes is None or len(item.data) <= copy.max_batch_bytes:
            return None
        return _Failure(first, _too_large(copy, item), until_changed=True)  # it is one record

    def _handle_failed(self, tp: TopicPartition, failure: "_Failure") -> None:
        """Leave a partition out, or end `run` after a commit of what was read before."""
        if self._may_leave_out:
            self._leave_out(tp, failure)
        else:
            self._failure = self._failure or failure.error

    def _step_over(self, gap: SourceGap) -> None:
        log.error(
            "mirror.gap", partition=str(gap.tp), start=gap.start, end=gap.end, detail=gap.detail
        )
        self.counts.gaps.append(gap)
        self._open_transaction().progress[gap.tp] = gap.end

    def _open_transaction(self) -> _Open:
        if self._open is None:
            self._open = _Open(self._clock())
        return self._open

    def _pace(self, size: int) -> None:
        """Wait as long as the bandwidth limit requires."""
        rate = self._limits.bytes_per_second
        if rate is None:
            return
        now = self._clock()
        self._paced_until = max(self._paced_until, now) + size / rate
        if self._paced_until - now > _SHORTEST_SLEEP:  # shorter waits add up until they are longer
            self._stop.wait(self._paced_until - now)

    def _commit(self) -> None:
        opened = self._open
        if opened is None:
            return
        filled = self._clock()
        # Target offsets are known only after the flush, so the map comes last. It is part of the
        # same transaction: after a kill, records, map and progress agree.
        written = self._target.flush()
        acknowledged = sum(len(batch.source_offsets) for batch in written)
        if acknowledged != opened.records:
            raise MirrorError(
                f"{opened.records} records were read for a transaction, and the target has "
                f"acknowledged {acknowledged}: nothing of it is committed; please report this"
            )
        self._write_map(written)
        self._target.commit(
            {
                self._copies[tp].target: CommittedOffset(offset, metadata=self._copies[tp].lineage)
                for tp, offset in opened.progress.items()
            }
        )
        self._open = None
        now = self._clock()
        counts = self.counts
        counts.transactions += 1
        counts.records += opened.records
        counts.bytes += opened.bytes
        counts.transaction_seconds += now - opened.started
        counts.commit_seconds += now - filled
        if opened.newest_timestamp >= 0:
            counts.newest_latency = (self._wall_clock_ms() - opened.newest_timestamp) / 1000
        for tp, offset in opened.progress.items():
            counts.lags[tp].position = offset
            self._refused_since.pop(tp, None)
            if tp not in self._left_out:
                counts.left_out.pop(tp, None)

    def _write_map(self, written: Collection[Written]) -> None:
        if self._offsets_topic is None:
            return
        runs: dict[TopicPartition, list[Run]] = {}
        for acknowledged in written:
            runs.setdefault(acknowledged.tp, []).extend(
                runs_of(acknowledged.source_offsets, acknowledged.target_offset)
            )
        ids = {copy.target: copy.target_id for copy in self._copies.values()}
        records = [
            self._map.add(tp, partition_runs, ids[tp]) for tp, partition_runs in runs.items()
        ]
        if records:
            batch = map_batch(records, self._wall_clock_ms())
            tp = TopicPartition(self._offsets_topic, 0)
            self._target.send([OutgoingBatch(tp, memoryview(batch), range(len(records)))])
            self._target.flush()

    def _has_new_copies(self) -> bool:
        """Whether topics or partitions were added, deleted, created again, take batches of another
        size, or are to be tried again.
        """
        if (
            self._refresh_seconds is None
            or self._clock() - self._refreshed_at < self._refresh_seconds
        ):
            return False
        now = self._refreshed_at = self._clock()
        if any(left.retry_at <= now for left in self._left_out.values()):
            return True
        return self._find_own_copies() != self._copies


class _Failure(NamedTuple):
    """Why a partition cannot be copied from `offset` on.

    Attributes:
        offset: The first source offset that is not copied.
        error: The reason.
        until_changed: Whether only another `Copy` can help.
    """

    offset: Offset
    error: SidetierError
    until_changed: bool = False


def _is_of_one_partition(error: SidetierError) -> bool:
    """Whether a failed question about several partitions may succeed for some of them.

    Not if a retry can help: each partition without a leader would be waited for.
    """
    if isinstance(error, KafkaApiError):
        return not error.retry
    return not (error.retry or isinstance(error, BrokerError | MirrorError))


def _without_leader(tp: TopicPartition) -> SourceUnavailableError:
    return SourceUnavailableError(f"partition {tp} of the source has no leader")


def _too_large(copy: Copy, batch: OutgoingBatch) -> MirrorError:
    """Return the error for a batch with one record that the target does not accept."""
    limit = copy.max_batch_bytes
    accepted = "" if limit is None else f", which accepts {limit}"
    return MirrorError(
        f"the record at offset {batch.source_offsets[0]} is a batch of {len(batch.data)} bytes, "
        f"too large for topic {copy.target.topic} on the target{accepted}. Raise max.message.bytes "
        f"of that topic to at least {len(batch.data)}, and segment.bytes if it is lower"
    )


class _SourceEndedError(Exception):
    """Reading has ended. The engine first commits what was read before."""

    def __init__(self, reason: SidetierError) -> None:
        super().__init__(str(reason))
        self.reason = reason


def write_map_records(
    target: Target, topic: str, records: Sequence[MapRecord], timestamp: int
) -> None:
    """Write records to the topic that keeps the offset map, and wait until they are written.

    Args:
        target: A target that is not transactional.
        topic: `MirrorNames.offsets_topic`.
        records: Written in this order.
        timestamp: Timestamp of the records, in ms since 1970.

    Raises:
        BrokerError: The target refuses, or does not answer.
    """
    target.start()
    for at in range(0, len(records), _MAP_RECORDS_AT_ONCE):
        part = records[at : at + _MAP_RECORDS_AT_ONCE]
        batch = memoryview(map_batch(part, timestamp))
        target.send([OutgoingBatch(TopicPartition(topic, 0), batch, range(len(part)))])
        target.flush()


def map_batch(records: Collection[MapRecord], timestamp: int) -> bytearray:
    """Build a batch for the topic that keeps the offset map; `timestamp` is in ms since 1970."""
    payload = b"".join(
        encode_record(record.key, record.value, position) for position, record in enumerate(records)
    )
    return build_batch(
        payload,
        record_count=len(records),
        attributes=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
    )
