"""The engine copies each record once, with a failure at any step."""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from sidetier.mirror.copy.batches import Selection, select_batches
from sidetier.mirror.copy.engine import RETRY_SECONDS, Copy, Engine, Limits
from sidetier.mirror.copy.source import (
    NO_IDS,
    Fetched,
    PartitionFailed,
    SourceEvent,
    SourceGap,
    TopicRecreated,
)
from sidetier.mirror.copy.target import (
    DamagedBatchError,
    OutgoingBatch,
    RefusedBatchError,
    Written,
)
from sidetier.segments.batches import check_crc
from sidetier.segments.errors import (
    BrokerUnavailableError,
    DamagedSegmentError,
    KafkaApiError,
    MalformedObjectError,
    MirrorError,
    SidetierError,
    SourceUnavailableError,
)
from sidetier.segments.offsets import MAX_OFFSET, Offset, TopicPartition
from sidetier.wire.requests import CommittedOffset
from tests.harness.made_archive import TP
from tests.harness.mirror_target import TARGET, FakeTarget
from tests.harness.record_batches import MadeBatch, MadeRecord

SOURCE = TP
COPIES = {SOURCE: Copy(SOURCE, TARGET, "lineage")}


def batch(first: int, count: int = 5) -> MadeBatch:
    return MadeBatch(
        tuple(MadeRecord(first + row, value=b"%d" % (first + row)) for row in range(count))
    )


@dataclass
class FakeSource:
    """Return one batch per poll, then end; `failure` is raised in place of later batches."""

    batches: list[MadeBatch]
    gap: SourceGap | None = None
    failure: SidetierError | None = None
    assigned: list[Mapping[TopicPartition, Offset]] = field(default_factory=list)
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)
    left: deque[SourceEvent] = field(default_factory=deque)

    def assign(
        self, positions: Mapping[TopicPartition, Offset], topic_ids: Mapping[str, UUID] = NO_IDS
    ) -> None:
        self.topic_ids = topic_ids
        self.assigned.append(positions)
        self.left.clear()
        position = positions[SOURCE]
        if self.gap is not None and self.gap.start >= position:
            self.left.append(self.gap)
        for batch in self.batches:
            if batch.last < position:
                continue
            data = memoryview(bytearray(batch.encoded()))
            selection = select_batches(data, position, (), until=MAX_OFFSET)
            self.left.append(
                Fetched(SOURCE, position, selection, len(data), Offset(99), from_archive=False)
            )
            position = selection.next_offset

    def poll(self, timeout: float) -> list[SourceEvent]:
        del timeout
        if not self.left and self.failure is not None:
            raise self.failure
        return [self.left.popleft()] if self.left else []

    def finished(self) -> bool:
        return not self.left and self.failure is None

    def close(self) -> None: ...


@dataclass
class TwoPartitions(FakeSource):
    """Return the batches of two partitions in one poll, like one answer of a broker."""

    def assign(
        self, positions: Mapping[TopicPartition, Offset], topic_ids: Mapping[str, UUID] = NO_IDS
    ) -> None:
        self.topic_ids = topic_ids
        self.left.clear()
        for tp in positions:
            data = memoryview(bytearray(b"".join(batch.encoded() for batch in self.batches)))
            selection = select_batches(data, positions[tp], ())
            self.left.append(
                Fetched(tp, positions[tp], selection, len(data), Offset(99), from_archive=False)
            )

    def poll(self, timeout: float) -> list[SourceEvent]:
        del timeout
        events = list(self.left)
        self.left.clear()
        return events


class NoPause(threading.Event):
    """Skip the pauses between attempts."""

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        return self.is_set()


EACH_BATCH = Limits(transaction_bytes=1)


def engine(source: FakeSource, target: FakeTarget, limits: Limits = EACH_BATCH) -> Engine:
    return Engine(
        source,
        target,
        lambda: COPIES,
        lambda partitions: {tp: Offset(0) for tp in partitions},
        offsets_topic="map",
        limits=limits,
        refresh_seconds=None,
        stop=NoPause(),
    )


def expected(batches: Iterable[MadeBatch]) -> list[bytes | None]:
    return [record.value for batch in batches for record in batch.records]


BATCHES = [batch(first) for first in range(0, 50, 5)]


class FailsAt:
    """Raise once at the given occurrence of any step."""

    def __init__(self, occurrence: int, error: SidetierError) -> None:
        self.left, self.error = occurrence, error

    def __call__(self, step: str) -> None:
        del step
        self.left -= 1
        if self.left == -1:
            raise self.error


def test_records_and_progress_are_written() -> None:
    target = FakeTarget()
    copying = engine(FakeSource(BATCHES), target)
    copying.run()
    assert target.values() == expected(BATCHES)
    assert target.committed[TARGET] == CommittedOffset(Offset(50), metadata="lineage")
    assert copying.counts.records == 50


@pytest.mark.parametrize("occurrence", range(60))
def test_failure_at_any_step_loses_and_repeats_nothing(occurrence: int) -> None:
    fault = FailsAt(occurrence, BrokerUnavailableError("broken"))
    target = FakeTarget(fault=fault)
    copying = engine(FakeSource(BATCHES), target)
    copying.run()
    assert target.values() == expected(BATCHES)
    assert copying.counts.aborts == (fault.left < 0)
    copied = target.offset_map()
    at = {value: offset for offset, value in target.placed().items()}
    assert {offset: copied.target_of(offset) for offset in range(50)} == {
        offset: at[b"%d" % offset] for offset in range(50)
    }


def test_timed_out_transaction_is_read_again() -> None:
    fenced = KafkaApiError("refused", code=47, name="INVALID_PRODUCER_EPOCH", retry=False)
    target = FakeTarget(fault=FailsAt(7, fenced))
    engine(FakeSource(BATCHES), target).run()
    assert target.values() == expected(BATCHES)
    assert target.starts == 2


class Forgetful(FakeTarget):
    """Acknowledge all batches but one."""

    def flush(self) -> list[Written]:
        return super().flush()[1:]


def test_batch_that_is_not_acknowledged_is_not_committed() -> None:
    target = Forgetful()
    with pytest.raises(
        MirrorError, match=r"records were read for a transaction, and the target has acknowledged"
    ):
        engine(FakeSource(BATCHES), target).run()
    assert target.values() == []
    assert target.committed[TARGET].offset == 0


def test_fenced_worker_ends() -> None:
    target = FakeTarget(fault=FailsAt(7, MirrorError("another process has started")))
    with pytest.raises(MirrorError, match="another process"):
        engine(FakeSource(BATCHES), target).run()


def test_permanent_refusal_ends_the_engine() -> None:
    denied = KafkaApiError("no", code=29, name="TOPIC_AUTHORIZATION_FAILED", retry=False)
    with pytest.raises(KafkaApiError):
        engine(FakeSource(BATCHES), FakeTarget(fault=FailsAt(5, denied))).run()


OTHER = Copy(TopicPartition("payments", 0), TopicPartition("copy.payments", 0))


@dataclass
class Refusing(FakeTarget):
    """Refuse batches as brokers do: at `flush`, by the partition and the size."""

    refuses: Callable[[OutgoingBatch], KafkaApiError | None] = lambda _: None
    refusals: int = 0
    failure: RefusedBatchError | None = None

    def start(self) -> None:
        self.failure = None
        super().start()

    def send(self, batches: Iterable[OutgoingBatch]) -> None:
        taken = list(batches)
        for item in taken:
            error = self.refuses(item)
            if error is not None:
                self.refusals += 1
                self.failure = self.failure or RefusedBatchError(error, item)
        super().send(taken)

    def flush(self) -> list[Written]:
        if self.failure is not None:
            raise self.failure
        return super().flush()


def too_large(size: int) -> Callable[[OutgoingBatch], KafkaApiError | None]:
    error = KafkaApiError("too large", code=10, name="MESSAGE_TOO_LARGE", retry=False)
    return lambda item: error if item.tp == TARGET and len(item.data) > size else None


def denied(item: OutgoingBatch) -> KafkaApiError | None:
    error = KafkaApiError("no", code=29, name="TOPIC_AUTHORIZATION_FAILED", retry=False)
    return error if item.tp == TARGET else None


def unavailable(item: OutgoingBatch) -> KafkaApiError | None:
    error = KafkaApiError("no", code=19, name="NOT_ENOUGH_REPLICAS", retry=True)
    return error if item.tp == TARGET else None


def leaving_out(
    source: FakeSource,
    target: FakeTarget,
    copy: Copy = COPIES[SOURCE],
    limits: Limits = EACH_BATCH,
) -> Engine:
    return Engine(
        source,
        target,
        lambda: {SOURCE: copy, OTHER.source: OTHER},
        lambda partitions: {tp: Offset(0) for tp in partitions},
        offsets_topic=None,
        limits=limits,
        refresh_seconds=None,
        stop=NoPause(),
        leave_out=True,
    )


LARGE = MadeBatch(tuple(MadeRecord(row, value=bytes(100)) for row in range(8)))
WITH_TOO_LARGE = MadeBatch(
    tuple(MadeRecord(row, value=bytes(5000 if row == 5 else 100)) for row in range(8))
)


@pytest.mark.parametrize("max_batch_bytes", [None, 500])
def test_batch_above_the_limit_of_the_target_is_split(max_batch_bytes: int | None) -> None:
    """Whether the limit is known before, or the brokers refuse the batch."""
    target = Refusing(refuses=too_large(500))
    copying = engine(FakeSource([LARGE]), target)
    copying._find_copies = lambda: {SOURCE: Copy(SOURCE, TARGET, max_batch_bytes=max_batch_bytes)}
    copying.run()
    assert target.values() == expected([LARGE])
    assert (target.refusals > 0) is (max_batch_bytes is None)
    assert copying.counts.left_out == {}


@pytest.mark.parametrize("max_batch_bytes", [None, 2000])
def test_too_large_record_stops_only_its_own_partition(max_batch_bytes: int | None) -> None:
    target = Refusing(refuses=too_large(2000))
    copy = Copy(SOURCE, TARGET, max_batch_bytes=max_batch_bytes)
    copying = leaving_out(TwoPartitions([WITH_TOO_LARGE]), target, copy)
    copying.run()
    assert target.committed[OTHER.target].offset == 8
    # Nothing before the record is missing.
    assert target.committed[TARGET].offset == 5
    assert target.values() == expected([WITH_TOO_LARGE])[:5]
    (reason,) = copying.counts.left_out.values()
    assert (
        f"{SOURCE} is not copied from offset 5 on: the record at offset 5 is a batch of" in reason
    )
    assert "Raise max.message.bytes of that topic to at least 50" in reason


@pytest.mark.parametrize("max_batch_bytes", [None, 2000])
def test_too_large_record_ends_a_copy_that_may_not_leave_out_a_partition(
    max_batch_bytes: int | None,
) -> None:
    target = Refusing(refuses=too_large(2000))
    copying = engine(FakeSource([WITH_TOO_LARGE]), target)
    copying._find_copies = lambda: {SOURCE: Copy(SOURCE, TARGET, max_batch_bytes=max_batch_bytes)}
    with pytest.raises(MirrorError, match="the record at offset 5 is a batch of"):
        copying.run()
    assert target.values() == expected([WITH_TOO_LARGE])[:5]


@pytest.mark.parametrize("refuses", [denied, unavailable])
def test_refused_partition_does_not_stop_others(
    refuses: Callable[[OutgoingBatch], KafkaApiError | None],
) -> None:
    target = Refusing(refuses=refuses)
    limits = Limits(transaction_bytes=1, patience=0.0)
    copying = leaving_out(TwoPartitions(BATCHES), target, limits=limits)
    copying.run()
    assert target.committed[OTHER.target].offset == 50
    assert target.committed[TARGET].offset == 0
    assert list(copying.counts.left_out) == [SOURCE]


def test_partition_that_is_refused_for_long_is_left_out_although_others_are_copied() -> None:
    """Its batches abort transactions again and again, also after those of others succeeded."""
    now, stop = 0.0, NoPause()

    @dataclass
    class OtherFirst(FakeSource):
        def assign(
            self, positions: Mapping[TopicPartition, Offset], topic_ids: Mapping[str, UUID] = NO_IDS
        ) -> None:
            self.left.clear()
            for tp in sorted(positions, key=lambda tp: tp == SOURCE):
                data = memoryview(bytearray(batch(positions[tp]).encoded()))
                selection = select_batches(data, positions[tp], ())
                self.left.append(
                    Fetched(tp, positions[tp], selection, len(data), MAX_OFFSET, from_archive=False)
                )
            del topic_ids

        def poll(self, timeout: float) -> list[SourceEvent]:
            nonlocal now
            now += 10.0
            if copying.counts.left_out or now > 2000:
                stop.set()
            return super().poll(timeout)

    target = Refusing(refuses=unavailable)
    copying = leaving_out(OtherFirst([]), target)
    copying._stop, copying._clock = stop, lambda: now
    copying.run()
    assert list(copying.counts.left_out) == [SOURCE]
    assert target.committed[OTHER.target].offset > 5


def test_records_before_a_left_out_one_are_copied_after_another_partition_was_refused() -> None:
    """Their transaction was aborted after the record was found."""
    failures = 0
    for occurrence in range(12):
        fault = FailsAt(occurrence, BrokerUnavailableError("broken"))
        target = FakeTarget(fault=fault)
        copy = Copy(SOURCE, TARGET, max_batch_bytes=2000)
        leaving_out(TwoPartitions([WITH_TOO_LARGE]), target, copy, Limits()).run()
        failures += fault.left < 0
        assert target.values() == expected([WITH_TOO_LARGE])[:5]
        assert target.committed[OTHER.target].offset == 8
    assert failures > 5


@dataclass
class FailsToRead(FakeSource):
    """One partition cannot be read after its first batch, the other can."""

    def assign(
        self, positions: Mapping[TopicPartition, Offset], topic_ids: Mapping[str, UUID] = NO_IDS
    ) -> None:
        TwoPartitions.assign(self, positions, topic_ids)  # type: ignore[arg-type]
        if SOURCE in positions:
            self.left.append(PartitionFailed(SOURCE, MirrorError("a gap at offset 50")))


def test_partition_that_cannot_be_read_does_not_stop_others() -> None:
    target = FakeTarget()
    copying = leaving_out(FailsToRead(BATCHES), target)
    copying.run()
    assert {tp: at.offset for tp, at in target.committed.items()} == {TARGET: 50, OTHER.target: 50}
    assert copying.counts.left_out == {
        SOURCE: f"{SOURCE} is not copied from offset 50 on: a gap at offset 50"
    }
    with pytest.raises(MirrorError, match="a gap at offset 50"):
        engine(FailsToRead(BATCHES), target).run()


@pytest.mark.parametrize(
    "error",
    [
        MalformedObjectError("orders-0/offset.wm does not parse"),
        KafkaApiError("no", code=29, name="TOPIC_AUTHORIZATION_FAILED", retry=False),
    ],
)
def test_partition_whose_beginning_is_unknown_does_not_stop_others(error: SidetierError) -> None:
    def first_offsets(tps: Collection[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        if SOURCE in tps:
            raise error
        return dict.fromkeys(tps, Offset(0))

    target = FakeTarget()
    copying = leaving_out(TwoPartitions(BATCHES), target)
    copying._first_offsets = first_offsets
    copying.run()
    assert {tp: at.offset for tp, at in target.committed.items()} == {OTHER.target: 50}
    assert str(error) in copying.counts.left_out[SOURCE]


def test_partition_without_a_leader_at_the_start_does_not_stop_others() -> None:
    target = FakeTarget()
    copying = leaving_out(TwoPartitions(BATCHES), target)
    copying._first_offsets = lambda tps: {tp: Offset(0) for tp in tps if tp != SOURCE}
    copying.run()
    assert {tp: at.offset for tp, at in target.committed.items()} == {OTHER.target: 50}
    assert "has no leader" in copying.counts.left_out[SOURCE]


def test_damaged_batch_stops_only_its_own_partition() -> None:
    @dataclass
    class Damaged(TwoPartitions):
        def assign(
            self, positions: Mapping[TopicPartition, Offset], topic_ids: Mapping[str, UUID] = NO_IDS
        ) -> None:
            super().assign(positions, topic_ids)
            for event in self.left:
                if isinstance(event, Fetched) and event.tp == SOURCE:
                    event.selection.batches[1].data[-1] ^= 1

    class Checks(FakeTarget):
        def send(self, batches: Iterable[OutgoingBatch]) -> None:
            for item in batches:
                try:
                    check_crc(item.data)
                except DamagedSegmentError as error:
                    raise DamagedBatchError(error, item) from error
                super().send([item])

    target = Checks()
    copying = leaving_out(Damaged(BATCHES), target)
    copying.run()
    assert target.committed[OTHER.target].offset == 50
    assert "is not copied from offset 5 on" in copying.counts.left_out[SOURCE]


def test_left_out_partition_is_copied_once_the_setting_is_raised() -> None:
    """While the mirror runs: the catalog finds the new limit."""
    now, limit, stop = 0.0, 2000, NoPause()
    target = Refusing()

    def copies() -> Mapping[TopicPartition, Copy]:
        return {SOURCE: Copy(SOURCE, TARGET, max_batch_bytes=limit), OTHER.source: OTHER}

    @dataclass
    class Raises(FakeSource):
        def poll(self, timeout: float) -> list[SourceEvent]:
            nonlocal now, limit
            events = TwoPartitions.poll(self, timeout)  # type: ignore[arg-type]
            if not events:
                reasons.append(dict(copying.counts.left_out))
                now, limit = now + 31.0, 10_000
                if target.committed[TARGET].offset == 8:
                    stop.set()
            return events

        def assign(
            self, positions: Mapping[TopicPartition, Offset], topic_ids: Mapping[str, UUID] = NO_IDS
        ) -> None:
            self.left.clear()
            for tp, position in positions.items():
                data = memoryview(bytearray(WITH_TOO_LARGE.encoded()))
                selection = select_batches(data, position, ())
                self.left.append(
                    Fetched(tp, position, selection, len(data), Offset(99), from_archive=False)
                )
            del topic_ids

    reasons: list[dict[TopicPartition, str]] = []
    copying = Engine(
        Raises([]),
        target,
        copies,
        lambda partitions: {tp: Offset(0) for tp in partitions},
        offsets_topic=None,
        limits=EACH_BATCH,
        refresh_seconds=30.0,
        stop=stop,
        leave_out=True,
        clock=lambda: now,
    )
    copying.run()
    assert list(reasons[0]) == [SOURCE]
    assert reasons[-1] == copying.counts.left_out == {}
    assert target.values() == expected([WITH_TOO_LARGE])


def test_left_out_partition_without_new_records_is_no_longer_reported() -> None:
    """Such as one that had no leader for a while: no transaction follows that could show it."""
    now, stop = 0.0, NoPause()

    @dataclass
    class LeaderReturns(FakeSource):
        def assign(
            self, positions: Mapping[TopicPartition, Offset], topic_ids: Mapping[str, UUID] = NO_IDS
        ) -> None:
            self.left.clear()
            if SOURCE in positions:
                self.left.append(
                    Fetched(
                        SOURCE,
                        Offset(50),
                        Selection((), Offset(50), 0),
                        0,
                        Offset(50),
                        from_archive=False,
                    )
                    if reasons
                    else PartitionFailed(SOURCE, MirrorError("no leader"))
                )
            del topic_ids

        def poll(self, timeout: float) -> list[SourceEvent]:
            nonlocal now
            events = TwoPartitions.poll(self, timeout)  # type: ignore[arg-type]
            if not events:
                reasons.append(list(copying.counts.left_out))
                now += 31.0
                if now > 2 * RETRY_SECONDS:
                    stop.set()
            return events

    reasons: list[list[TopicPartition]] = []
    target = FakeTarget(committed={TARGET: CommittedOffset(Offset(50), metadata="lineage")})
    copying = Engine(
        LeaderReturns([]),
        target,
        lambda: COPIES,
        lambda partitions: {tp: Offset(0) for tp in partitions},
        offsets_topic=None,
        refresh_seconds=30.0,
        stop=stop,
        leave_out=True,
        clock=lambda: now,
    )
    copying.run()
    assert reasons[0] == [SOURCE]
    assert reasons[-1] == []


class Alone:
    """A group with one worker, which may always rejoin."""

    joins = 0

    def join(self) -> None:
        self.joins += 1

    def must_join_again(self) -> bool:
        return False

    def owns(self, source: TopicPartition) -> bool:
        del source
        return True


MEMBERSHIP_LOST = pytest.mark.parametrize(
    ("code", "name"),
    [
        (22, "ILLEGAL_GENERATION"),
        (25, "UNKNOWN_MEMBER_ID"),
        (27, "REBALANCE_IN_PROGRESS"),
        (82, "FENCED_INSTANCE_ID"),
    ],
)


@MEMBERSHIP_LOST
def test_worker_that_lost_its_membership_rejoins(code: int, name: str) -> None:
    lost = KafkaApiError(name, code=code, name=name, retry=False)
    target, workers = FakeTarget(fault=FailsAt(7, lost)), Alone()
    copying = Engine(
        FakeSource(BATCHES),
        target,
        lambda: COPIES,
        lambda partitions: {tp: Offset(0) for tp in partitions},
        offsets_topic="map",
        workers=workers,
        limits=EACH_BATCH,
        refresh_seconds=None,
        stop=NoPause(),
    )
    copying.run()
    assert target.values() == expected(BATCHES)
    assert workers.joins == 2


@MEMBERSHIP_LOST
def test_a_writer_that_cannot_join_again_ends_at_once(code: int, name: str) -> None:
    """A Spark task uses the membership of the driver."""
    lost = KafkaApiError(name, code=code, name=name, retry=False)
    target = FakeTarget(fault=FailsAt(7, lost))
    with pytest.raises(KafkaApiError, match=name):
        engine(FakeSource(BATCHES), target).run()
    assert target.starts == 1


def test_permanently_unavailable_source_ends_a_single_process() -> None:
    target = FakeTarget()
    with pytest.raises(SourceUnavailableError):
        engine(FakeSource(BATCHES, failure=SourceUnavailableError("away")), target).run()
    assert target.starts == 1


def test_repeated_failures_end_the_engine_after_a_while() -> None:
    def broken(step: str) -> None:
        raise BrokerUnavailableError(step)

    with pytest.raises(BrokerUnavailableError):
        engine(FakeSource(BATCHES), FakeTarget(fault=broken), Limits(patience=0.0)).run()


def test_records_that_were_read_before_the_source_ended_are_committed() -> None:
    source = FakeSource(BATCHES, failure=MirrorError("a gap"))
    target = FakeTarget()
    with pytest.raises(MirrorError, match="a gap"):
        engine(source, target, Limits(transaction_seconds=3600.0)).run()
    assert target.values() == expected(BATCHES)


def test_second_run_continues_after_the_first() -> None:
    target = FakeTarget()
    engine(FakeSource(BATCHES), target).run()
    source = FakeSource([*BATCHES, batch(50)])
    engine(source, target).run()
    assert source.assigned == [{SOURCE: 50}]
    assert target.values() == expected([*BATCHES, batch(50)])


def test_gap_is_counted_and_skipped() -> None:
    gap = SourceGap(SOURCE, Offset(0), Offset(5), "deleted")
    target = FakeTarget()
    copying = engine(FakeSource(BATCHES[1:], gap=gap), target)
    copying.run()
    assert copying.counts.gaps == [gap]
    assert target.committed[TARGET].offset == 50
    assert target.values() == expected(BATCHES[1:])


def test_dropped_records_move_the_progress_too() -> None:
    @dataclass
    class OnlyMarkers(FakeSource):
        def assign(
            self,
            positions: Mapping[TopicPartition, Offset],
            topic_ids: Mapping[str, UUID] = NO_IDS,
        ) -> None:
            del topic_ids
            self.left = deque(
                [
                    Fetched(
                        SOURCE,
                        positions[SOURCE],
                        Selection((), Offset(7), 3),
                        100,
                        Offset(7),
                        from_archive=False,
                    )
                ]
            )

    target = FakeTarget()
    engine(OnlyMarkers([]), target).run()
    assert target.committed[TARGET].offset == 7
    assert target.log == []


def test_recreated_topic_is_planned_again_after_a_commit() -> None:
    """The catalog then leaves it out; in this test it is gone."""

    @dataclass
    class Recreated(FakeSource):
        def assign(
            self, positions: Mapping[TopicPartition, Offset], topic_ids: Mapping[str, UUID] = NO_IDS
        ) -> None:
            if positions:
                super().assign(positions, topic_ids)
                self.left.append(TopicRecreated(SOURCE.topic))

    source, target = Recreated(BATCHES[:1]), FakeTarget()
    first_id = UUID(int=1)
    looks = iter([{SOURCE: Copy(SOURCE, TARGET, "lineage", first_id)}, {}])
    copying = Engine(
        source,
        target,
        lambda: next(looks),
        lambda partitions: {tp: Offset(0) for tp in partitions},
        offsets_topic=None,
        limits=Limits(transaction_seconds=3600.0),
        refresh_seconds=None,
        stop=NoPause(),
    )
    copying.run()
    assert source.topic_ids == {SOURCE.topic: first_id}
    assert target.values() == expected(BATCHES[:1])
    assert target.starts == 2


def test_stop_commits_the_sent_records() -> None:
    stop = threading.Event()
    target = FakeTarget(fault=lambda step: stop.set() if step == "send" else None)
    copying = Engine(
        FakeSource(BATCHES),
        target,
        lambda: COPIES,
        lambda partitions: {tp: Offset(0) for tp in partitions},
        offsets_topic=None,
        limits=Limits(),
        stop=stop,
    )
    copying.run()
    assert target.values() == expected(BATCHES[:1])
    assert target.committed[TARGET].offset == 5


@dataclass
class CountsCalls(FakeTarget):
    """Remember the partitions of each call of `send`."""

    calls: list[set[TopicPartition]] = field(default_factory=list)

    def send(self, batches: Iterable[OutgoingBatch]) -> None:
        taken = list(batches)
        self.calls.append({item.tp for item in taken})
        super().send(taken)


def test_batches_of_all_partitions_are_sent_together() -> None:
    """A request contains one batch per partition: sending one partition after the other needs more
    requests.
    """
    other = Copy(TopicPartition("orders", 1), TopicPartition("copy.orders", 1))
    target = CountsCalls()
    copying = Engine(
        TwoPartitions(BATCHES),
        target,
        lambda: {**COPIES, other.source: other},
        lambda partitions: {tp: Offset(0) for tp in partitions},
        offsets_topic=None,
        refresh_seconds=None,
        stop=NoPause(),
    )
    copying.run()
    assert target.calls == [{TARGET, other.target}]
    assert copying.counts.records == 2 * len(expected(BATCHES))
