"""Compare restored topics with their archive.

The bytes of all batches are compared first (`batch_compare`). If they are not equal, or the brokers
cannot be read that way, every record is consumed and compared to find the difference.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import pyarrow as pa
import structlog
import tenacity
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.kafka_messages import records_of
from sidetier.archive.reader import (
    ArchiveReader,
    IsolationLevel,
    ReaderSettings,
)
from sidetier.mirror.hydrate.batch_compare import (
    EqualBatches,
    PlacedBatches,
    compare_batches,
    fetch_batches,
)
from sidetier.mirror.hydrate.batch_scan import RangeReader, check_end, read_chunk
from sidetier.mirror.hydrate.digest import (
    COLUMNS,
    Digest,
    HiddenOffsets,
    LogBytes,
    archived_records,
    hidden_ranges,
)
from sidetier.mirror.hydrate.plan import PlannedPartition, PlannedSegment
from sidetier.mirror.hydrate.survey import chunks_of, may_have_transactions
from sidetier.mirror.hydrate.topics import is_not_leading
from sidetier.segments.errors import (
    BrokerError,
    LeadershipUnavailableError,
)
from sidetier.segments.offsets import Offset, OffsetRange, TopicPartition
from sidetier.wire.cluster import Cluster
from sidetier.wire.requests import EARLIEST, list_offsets

_AT_ONCE: Final = 16
_RANGES_AT_ONCE: Final = 12
_TAKE: Final = 10_000
_SILENCE_SECONDS: Final = 60.0
_CONSUME_SECONDS: Final = 0.25
_GROUP: Final = "sidetier-hydrate-verify"
_SAMPLE: Final = 1000
"""Number of offsets at the end of a partition that are consumed even if its bytes are equal."""

log = structlog.get_logger("sidetier.mirror.hydrate")

T = TypeVar("T")


class ArchiveSide:
    """Reads the placed partitions from the archive."""

    def __init__(self, archive: ArchiveAccess) -> None:
        self._archive = archive
        settings = ReaderSettings(isolation=IsolationLevel.READ_UNCOMMITTED, columns=COLUMNS)
        self._reader = ArchiveReader(archive, settings)
        self._pool = ThreadPoolExecutor(_RANGES_AT_ONCE, "hydrate-read")

    def close(self) -> None:
        """Stop all reading."""
        self._reader.close()
        self._pool.shutdown(cancel_futures=True)

    def expected(self, plan: PlannedPartition) -> dict[IsolationLevel, Digest]:
        """Return the digests that consumers must get of a partition, by isolation level.

        Raises:
            SidetierError: The archive cannot be read.
        """
        every, committed = Digest(), Digest()
        hidden = HiddenOffsets(self._hidden(plan))
        for records in archived_records(self._reader, plan.topic_partition, plan.start, plan.end):
            every.add(records)
            committed.add(records, hidden)
        return {IsolationLevel.READ_UNCOMMITTED: every, IsolationLevel.READ_COMMITTED: committed}

    def placed(self, plan: PlannedPartition) -> PlacedBatches:
        """Return the placed bytes of a partition. Several threads may read different partitions."""
        store = self._archive.store(plan.topic)
        deadline = self._archive.provider.endpoint(plan.topic).deadline
        ranges = RangeReader(self._pool)

        def chunks(segment: PlannedSegment) -> Iterator[bytearray]:
            return ranges.read_ahead(
                lambda start, room: read_chunk(store, segment, start, room, deadline), segment.size
            )

        planned = {segment.key: (segment, until) for segment, until in plan.segments_with_ends}

        def check(key: str, reached: Offset) -> None:
            segment, until = planned[key]
            check_end(store, segment, reached, until)

        return PlacedBatches(
            plan, ((segment.key, chunks(segment)) for segment in plan.segments), check
        )

    def offset_for_time(self, plan: PlannedPartition, timestamp: int) -> int | None:
        """Return the offset for a timestamp on the restored partition; None at or above its end."""
        offset = self._reader.offset_for_time(plan.topic_partition, timestamp)
        return None if offset is None or offset >= plan.end else max(int(offset), plan.start)

    def _hidden(self, plan: PlannedPartition) -> list[OffsetRange]:
        tp = plan.topic_partition
        with ThreadPoolExecutor(_AT_ONCE, "hydrate-verify") as pool:
            flags = list(
                pool.map(
                    lambda segment: may_have_transactions(self._archive, tp, segment), plan.segments
                )
            )
        wanted = [segment for segment, flag in zip(plan.segments, flags, strict=True) if flag]
        return hidden_ranges(
            LogBytes(
                segment.key,
                chunks_of(self._archive, tp, segment),
                OffsetRange(Offset(segment.base_offset), Offset(plan.end)),
            )
            for segment in wanted
        )


class BrokerSide:
    """Consumes the restored topics.

    Args:
        properties: librdkafka's properties, with `bootstrap.servers`.
        new_consumer: Makes a consumer with these properties.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        new_consumer: Callable[[dict[str, Any]], Consumer] = Consumer,
    ) -> None:
        self._properties = dict(properties)
        self._new_consumer = new_consumer

    def digest(self, plan: PlannedPartition, isolation: IsolationLevel) -> Digest:
        """Return the digest of what a consumer gets from the planned start up to the planned end.

        Raises:
            LeadershipUnavailableError: The brokers refuse, or send nothing for a minute.
        """
        digest = Digest()
        for records in self.records(plan.topic_partition, plan.start, plan.end, isolation):
            digest.add(records)
        return digest

    def records(
        self, tp: TopicPartition, start: int, end: int, isolation: IsolationLevel
    ) -> Iterator[pa.RecordBatch]:
        """Yield what a consumer gets in [`start`, `end`), or up to the end of the partition.

        Raises:
            LeadershipUnavailableError: The brokers refuse, or send nothing for a minute.
        """
        consumer = self._consumer(isolation)
        last = None
        try:
            consumer.assign([KafkaPartition(tp.topic, tp.partition, start)])
            silent = 0.0
            while True:
                # `consume` waits for the whole timeout unless it gets this many messages: a short
                # timeout.
                messages = consumer.consume(_TAKE, _CONSUME_SECONDS)
                silent = 0.0 if messages else silent + _CONSUME_SECONDS
                if silent >= _SILENCE_SECONDS:
                    raise LeadershipUnavailableError(
                        f"{tp}: the brokers sent nothing for {_SILENCE_SECONDS:.0f} s after offset "
                        f"{last}"
                    )
                records, is_last = _until(messages, end)
                if records:
                    last = records[-1].offset()
                    yield records_of(records, COLUMNS)
                if is_last:
                    return
        except KafkaException as error:
            raise LeadershipUnavailableError(f"{tp}: {error}") from error
        finally:
            consumer.close()

    def offsets_for_times(
        self, plan: PlannedPartition, timestamps: Iterable[int]
    ) -> list[int | None]:
        """Return the broker's offset for each timestamp; None if at or above the planned end."""
        lookups = [KafkaPartition(plan.topic, plan.partition, lookup) for lookup in timestamps]

        def ask(consumer: Consumer) -> list[int]:
            # A request can have only one timestamp per partition.
            return [
                consumer.offsets_for_times([lookup], timeout=_SILENCE_SECONDS)[0].offset
                for lookup in lookups
            ]

        offsets = self._ask(plan, ask)
        return [None if offset < 0 or offset >= plan.end else int(offset) for offset in offsets]

    def commit(self, ends: Mapping[TopicPartition, int]) -> list[str]:
        """Commit offsets of a temporary group and read them back; return the problems."""
        consumer = self._consumer(IsolationLevel.READ_COMMITTED)
        try:
            wanted = [KafkaPartition(tp.topic, tp.partition, end) for tp, end in ends.items()]
            consumer.commit(offsets=wanted, asynchronous=False)
            committed = consumer.committed(wanted, timeout=_SILENCE_SECONDS)
        except KafkaException as error:
            return [f"group {_GROUP} could not commit: {error}"]
        finally:
            consumer.close()
        return [
            f"group {_GROUP}: {row.topic}-{row.partition} is committed at {row.offset}, expected "
            f"{ends[TopicPartition(row.topic, row.partition)]}"
            for row in committed
            if row.offset != ends[TopicPartition(row.topic, row.partition)]
        ]

    def produce(self, plan: PlannedPartition, value: bytes) -> str | None:
        """Produce one record with an idempotent producer; return the problem, or None."""
        ends: list[Any] = []
        producer = Producer({**self._properties, "enable.idempotence": True, "log_level": 0})
        before = self._end(plan)
        producer.produce(
            plan.topic,
            value,
            partition=plan.partition,
            on_delivery=lambda error, message: ends.append(error or message.offset()),
        )
        producer.flush(_SILENCE_SECONDS)
        if not ends or isinstance(ends[0], KafkaError):
            return f"{plan.topic_partition}: a record was not accepted: {ends[0] if ends else ''}"
        if ends[0] != before:
            return f"{plan.topic_partition}: a record got offset {ends[0]}, expected {before}"
        return None

    def _end(self, plan: PlannedPartition) -> int:
        queried = KafkaPartition(plan.topic, plan.partition)
        return self._ask(
            plan,
            lambda consumer: int(
                consumer.get_watermark_offsets(queried, timeout=_SILENCE_SECONDS)[1]
            ),
        )

    def _ask(self, plan: PlannedPartition, ask: Callable[[Consumer], T]) -> T:
        """Call `ask` with a new consumer, and after an election again with another one.

        librdkafka sends the request to the leader and with the leader epoch that it knows, and does
        not refresh its metadata when a broker refuses.
        """

        def attempt() -> T:
            consumer = self._consumer(IsolationLevel.READ_UNCOMMITTED)
            try:
                return ask(consumer)
            finally:
                consumer.close()

        trying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_not_leading),
            stop=tenacity.stop_after_delay(_SILENCE_SECONDS),
            wait=tenacity.wait_exponential(multiplier=0.1, max=2.0),
            reraise=True,
        )
        try:
            return trying(attempt)
        except KafkaException as error:
            raise LeadershipUnavailableError(f"{plan.topic_partition}: {error}") from error

    def _consumer(self, isolation: IsolationLevel) -> Consumer:
        return self._new_consumer(
            {
                "log_level": 0,
                **self._properties,
                "group.id": _GROUP,
                "enable.auto.commit": False,
                # The last offsets can be markers, for which no message comes.
                "enable.partition.eof": True,
                # A deleted offset must be an error, not a jump.
                "auto.offset.reset": "error",
                "check.crcs": True,
                "isolation.level": isolation.value,
            }
        )


def _until(messages: Sequence[Any], end: int) -> tuple[list[Any], bool]:
    """Return the records below `end`, and whether there are no more."""
    records: list[Any] = []
    for message in messages:
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  librdkafka's own name
                return records, True
            raise KafkaException(error)
        if message.offset() >= end:
            return records, True
        records.append(message)
    return records, False


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of comparing one partition.

    Attributes:
        topic_partition: The partition.
        records: Number of records that were compared.
        committed_records: Number of them that read-committed consumers see.
        problems: The differences.
        by_bytes: True if the bytes of all batches are equal, False if each record was consumed.
    """

    topic_partition: TopicPartition
    records: int
    committed_records: int
    problems: tuple[str, ...] = ()
    by_bytes: bool = False


def verify_partitions(
    partitions: Sequence[PlannedPartition],
    archive: ArchiveSide,
    brokers: BrokerSide,
    connect: Callable[[], Cluster],
    *,
    at_once: int,
) -> list[Verified]:
    """Compare partitions, several at the same time.

    A partition whose log start is not the planned one is not compared, because records were
    deleted. For the first partition of each topic, the last records are also consumed at both
    isolation levels, even if the bytes are equal.

    Args:
        partitions: Partitions of the plan.
        archive: The archive.
        brokers: Consumers of the restored topics.
        connect: Opens a client of the brokers for raw batches; it is closed here.
        at_once: Number of partitions to compare at the same time.

    Raises:
        SidetierError: The archive or the brokers cannot be read.
    """
    with connect() as cluster:
        starts = list_offsets(
            cluster, {partition.topic_partition: EARLIEST for partition in partitions}
        )
    # Retention is unlimited until `finish`. Records that a broker has deleted cannot be compared.
    deleted = {
        partition.topic_partition: _started_later(
            partition, starts[partition.topic_partition].offset
        )
        for partition in partitions
        if starts[partition.topic_partition].offset != partition.start
    }
    whole = [partition for partition in partitions if partition.topic_partition not in deleted]
    with ThreadPoolExecutor(at_once, "hydrate-verify") as pool:
        compared = list(pool.map(lambda plan: _compare_bytes(plan, archive, connect), whole))
    sampled: set[str] = set()
    verified = list(deleted.values())
    for plan, equal in zip(whole, compared, strict=True):
        if equal is None:
            verified.append(verify_partition(plan, archive, brokers))
            continue
        problems = _differences_of_times(plan, equal.timestamps, archive, brokers)
        if equal.records and plan.topic not in sampled:
            sampled.add(plan.topic)
            problems += verify_partition(_last_records(plan), archive, brokers).problems
        verified.append(
            Verified(
                plan.topic_partition,
                equal.records,
                equal.committed_records,
                tuple(problems),
                by_bytes=True,
            )
        )
    return sorted(verified, key=lambda partition: partition.topic_partition)


def _started_later(plan: PlannedPartition, start: int) -> Verified:
    """Return the result for a partition whose log does not start at the planned offset."""
    problem = (
        f"{plan.topic_partition}: the log starts at offset {start}, the plan at {plan.start}; "
        "verify before `sidetier hydrate finish`, which lets retention delete old records"
    )
    return Verified(plan.topic_partition, 0, 0, (problem,))


def _compare_bytes(
    plan: PlannedPartition, archive: ArchiveSide, connect: Callable[[], Cluster]
) -> EqualBatches | None:
    """Compare the bytes of all batches; return None if every record has to be consumed."""
    try:
        with connect() as cluster:
            result = compare_batches(archive.placed(plan), fetch_batches(cluster, plan))
    except BrokerError as error:
        result = str(error)
    if isinstance(result, EqualBatches):
        return result
    log.warning("hydrate.records_are_compared", partition=str(plan.topic_partition), reason=result)
    return None


def _last_records(plan: PlannedPartition) -> PlannedPartition:
    """Return a plan for only the last records of a partition."""
    start = max(plan.start, plan.end - _SAMPLE)
    holder = max(
        (number for number, segment in enumerate(plan.segments) if segment.base_offset <= start),
        default=0,
    )
    return replace(plan, start=start, segments=plan.segments[holder:])


def verify_partition(plan: PlannedPartition, archive: ArchiveSide, brokers: BrokerSide) -> Verified:
    """Compare a partition at both isolation levels, and look up some times.

    Number of records, first and last offset, and a checksum must be equal.

    Raises:
        SidetierError: The archive or the brokers cannot be read.
    """
    expected = archive.expected(plan)
    problems = []
    for level, digest in expected.items():
        difference = digest.difference(brokers.digest(plan, level))
        if difference is not None:
            problems.append(f"{plan.topic_partition}, {level}: {difference}")
    every = expected[IsolationLevel.READ_UNCOMMITTED]
    problems += _differences_of_times(plan, every.timestamps, archive, brokers)
    return Verified(
        plan.topic_partition,
        every.records,
        expected[IsolationLevel.READ_COMMITTED].records,
        tuple(problems),
    )


def _differences_of_times(
    plan: PlannedPartition, timestamps: Iterable[int], archive: ArchiveSide, brokers: BrokerSide
) -> list[str]:
    # Negative timestamps have other meanings in ListOffsets.
    wanted = sorted({time for time in timestamps if time >= 0})
    problems = []
    for timestamp, offset in zip(wanted, brokers.offsets_for_times(plan, wanted), strict=True):
        # If the plan has only the end of a partition, a record before it may have this time too.
        restored = None if offset is None else max(offset, plan.start)
        archived = archive.offset_for_time(plan, timestamp)
        if archived != restored:
            problems.append(
                f"{plan.topic_partition}: time {timestamp} ms is at offset {restored}, "
                f"expected {archived}"
            )
    return problems
