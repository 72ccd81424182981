"""Copy record batches from a source to a target, in transactions, until stopped."""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from uuid import UUID

import structlog

from sidetier.mirror.copy.batches import SourceBatch, build_batch, encode_record, reencode
from sidetier.mirror.copy.offset_map import MapRecord, OffsetMapWriter, Run, runs_of
from sidetier.mirror.copy.source import Fetched, Source, SourceEvent, SourceGap, TopicRecreated
from sidetier.mirror.copy.target import (
    ABORTABLE,
    MEMBERSHIP_LOST,
    OutgoingBatch,
    Target,
    Written,
)
from sidetier.segments.errors import KafkaApiError, MirrorError, SidetierError
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.requests import CommittedOffset

TRANSACTION_BYTES: Final = 256 << 20
TRANSACTION_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 300.0
MAX_BATCH_BYTES: Final = 256 << 20
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
    """

    source: TopicPartition
    target: TopicPartition
    lineage: str = ""
    source_id: UUID | None = None
    target_id: str = ""


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
        first_offsets: Returns where reading begins for partitions without progress.
        offsets_topic: The target's topic for the offset map; None keeps no map.
        workers: Divides the partitions between workers; None if there is one worker.
        limits: Limits of the engine's work.
        refresh_seconds: None if reading has an end: `run` then returns once the source is finished.
        stop: Set by another thread to end `run` after the next commit.
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
        self._clock = clock
        self._wall_clock_ms = wall_clock_ms
        self._copies: Mapping[TopicPartition, Copy] = {}
        self._map = OffsetMapWriter()
        self._events: deque[SourceEvent] = deque()
        self._open: _Open | None = None
        self._must_begin = False
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
            MirrorError: The source has a gap, or the workers do not agree.
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
                if not self._is_worth_another_attempt(error) or (
                    self._clock() - committed_at > self._limits.patience
                ):
                    raise
                pause = min(0.1 * 2**failures, _LONGEST_PAUSE)
                log.warning("mirror.aborted", reason=str(error), next_attempt_seconds=pause)
                self._stop.wait(pause)
            else:
                return

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
        self._open = None
        self._map.restart()
        # The order matters. `start` aborts the transaction of an earlier process of this worker.
        # From `join` on, the coordinator refuses commits of the workers that owned these partitions
        # before. So no other process moves the progress that is read next.
        self._target.start()
        if self._workers is not None:
            self._workers.join()
        self._copies = self._find_own_copies()
        self._source.assign(
            self._begin_copies(self._copies.values()),
            {
                copy.source.topic: copy.source_id
                for copy in self._copies.values()
                if copy.source_id is not None
            },
        )

    def _find_own_copies(self) -> Mapping[TopicPartition, Copy]:
        copies = self._find_copies()
        if self._workers is None:
            return copies
        return {tp: copy for tp, copy in copies.items() if self._workers.owns(tp)}

    def _begin_copies(self, copies: Collection[Copy]) -> dict[TopicPartition, Offset]:
        """Return the next source offset of each copy; commit where the new copies begin."""
        progress = self._target.progress([copy.target for copy in copies])
        new = [copy.source for copy in copies if copy.target not in progress]
        first = self._first_offsets(new) if new else {}
        if new:
            # The start of a copy is durable before its first record. So after a kill, records of
            # the first transaction can be distinguished from records that others have written.
            self._target.commit(
                {
                    copy.target: CommittedOffset(first[copy.source], metadata=copy.lineage)
                    for copy in copies
                    if copy.source in first
                }
            )
        positions = {
            copy.source: (
                progress[copy.target].offset if copy.target in progress else first[copy.source]
            )
            for copy in copies
        }
        self.counts.lags = {tp: PartitionLag(offset) for tp, offset in positions.items()}
        self._refreshed_at = self._clock()
        return positions

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
        while self._events and not self._is_full() and not self._stop.is_set():
            event = self._events.popleft()
            if isinstance(event, Fetched):
                outgoing += self._prepare(event)
            elif isinstance(event, TopicRecreated):
                # The batches before it are of the former topic and are
                # committed. `_begin` then finds out what to copy now.
                self._must_begin = True
            else:
                self._step_over(event)
        if outgoing:
            self._pace(sum(len(batch.data) for batch in outgoing))
            self._target.send(outgoing)

    def _prepare(self, fetched: Fetched) -> list[OutgoingBatch]:
        """Return the batches to send; count them as part of the open transaction."""
        target = self._copies[fetched.tp].target
        selection = fetched.selection
        lag = self.counts.lags[fetched.tp]
        lag.end = fetched.end
        if selection.next_offset == fetched.start:
            return []  # only the end of the source has moved: no reason to begin a transaction
        opened = self._open_transaction()
        outgoing = []
        for batch in selection.batches:
            prepared = self._outgoing(batch, target)
            if prepared is not None:
                outgoing.append(prepared)
                opened.records += len(prepared.source_offsets)
                opened.bytes += len(prepared.data)
        newest = max((batch.header.max_timestamp for batch in selection.batches), default=-1)
        lag.newest_timestamp = max(lag.newest_timestamp, newest)
        opened.newest_timestamp = max(opened.newest_timestamp, newest)
        self.counts.dropped_records += selection.dropped_records
        # Also without a batch: control batches and aborted records move the progress, too.
        opened.progress[fetched.tp] = selection.next_offset
        return outgoing

    def _outgoing(self, batch: SourceBatch, target: TopicPartition) -> OutgoingBatch | None:
        if not batch.must_be_reencoded:
            header = batch.header
            # A range instead of a list of offsets: no work for each record.
            return OutgoingBatch(target, batch.data, range(header.base_offset, header.next_offset))
        other = reencode(batch, self._limits.max_batch_bytes, str(target))
        if other is None:
            return None
        self.counts.reencoded_batches += 1
        return OutgoingBatch(target, memoryview(other.data), other.source_offsets)

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
        self._write_map(self._target.flush())
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
        """Whether topics or partitions were added, deleted, or created again."""
        if (
            self._refresh_seconds is None
            or self._clock() - self._refreshed_at < self._refresh_seconds
        ):
            return False
        self._refreshed_at = self._clock()
        return self._find_own_copies() != self._copies


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
