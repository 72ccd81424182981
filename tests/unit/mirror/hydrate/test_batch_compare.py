"""The bytes on the brokers compared with the archive, and the count of committed records."""

from collections.abc import Collection, Iterator
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from sidetier.mirror.hydrate.batch_compare import (
    EqualBatches,
    FetchedBatches,
    PlacedBatches,
    Transaction,
    compare_batches,
    fetch_batches,
)
from sidetier.mirror.hydrate.batch_scan import NORMALISED_EPOCH
from sidetier.mirror.hydrate.plan import PlannedPartition
from sidetier.segments.batches import set_leader_epoch
from sidetier.segments.headers import HEADER_BYTES
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.wire.cluster import Cluster
from sidetier.wire.protocol import ApiKey
from sidetier.wire.settings import ClientSettings
from tests.harness.fake_broker import FakeBroker, Received, fake_broker, led_by
from tests.harness.record_batches import MadeBatch, MadeRecord, TransactionalLog

ABORTED: Transaction = (2, 3)


def archived() -> TransactionalLog:
    """A log of three producers: 1 commits, 2 aborts, and 3 writes without a transaction."""
    log = TransactionalLog()
    log.write(1, 3)  # 0 to 2
    log.write(2, 4)  # 3 to 6
    log.mark(1, commit=True)  # 7
    log.mark(2, commit=False)  # 8
    log.write(3, 6, transactional=False)  # 9 to 14
    return log


def plan_of(log: TransactionalLog, *, start: int = 0, end: int | None = None) -> PlannedPartition:
    last = log.next_offset if end is None else end
    return PlannedPartition("orders", 0, start, last, log.next_offset)


def placed(log: TransactionalLog, plan: PlannedPartition, chunk: int = 100) -> PlacedBatches:
    batches = [replace(batch, leader_epoch=7).encoded() for batch in log.batches]
    halves = (b"".join(batches[:2]), b"".join(batches[2:]))
    return PlacedBatches(
        plan,
        [
            (f"segment {number}", [half[at : at + chunk] for at in range(0, len(half), chunk)])
            for number, half in enumerate(halves)
        ],
        lambda _key, _reached: None,
    )


def fetched(
    batches: Collection[MadeBatch], start: int = 0, aborted: Collection[Transaction] = (ABORTED,)
) -> Iterator[FetchedBatches]:
    """Each batch in a separate fetch answer."""
    for batch in batches:
        data = memoryview(bytearray(batch.encoded()))
        set_leader_epoch(data, NORMALISED_EPOCH)
        end = Offset(batch.last + 1)
        if end > start:
            yield FetchedBatches(Offset(start), end, data, frozenset(aborted))
            start = end


@pytest.mark.parametrize("chunk", [1, 61, 100, 10_000])
def test_equal_batches_are_counted_at_both_isolation_levels(chunk: int) -> None:
    log = archived()
    result = compare_batches(placed(log, plan_of(log), chunk), fetched(log.batches))
    assert isinstance(result, EqualBatches)
    assert (result.records, result.committed_records) == (13, 9)
    assert result.timestamps


def test_start_within_a_batch_and_a_cut_leave_records_out() -> None:
    log = archived()
    plan = plan_of(log, start=5, end=9)
    answers = fetched(log.batches[1:4], start=5)
    result = compare_batches(placed(log, plan, 50), answers)
    assert isinstance(result, EqualBatches)
    assert (result.records, result.committed_records) == (2, 0)


def test_transactions_that_are_open_at_the_end_are_aborted() -> None:
    log = archived()
    plan = plan_of(log, end=7)
    both = [(1, 0), ABORTED]
    assert compare_batches(placed(log, plan), fetched(log.batches[:2], aborted=both)) == (
        EqualBatches(7, 0, (1_700_000_000_000,))
    )
    assert "producer 1 from offset 0 on is not aborted" in str(
        compare_batches(placed(log, plan), fetched(log.batches[:2]))
    )


@pytest.mark.parametrize("at", [0, 7, 12, 17, HEADER_BYTES + 3])
def test_different_byte_is_detected(at: int) -> None:
    log = archived()
    answers = list(fetched(log.batches))
    answers[2].data[at] ^= 1
    result = compare_batches(placed(log, plan_of(log)), answers)
    assert result == "a batch between offsets 7 and 8 differs"


def test_missing_batch_at_the_end_is_detected() -> None:
    log = archived()
    answers = list(fetched(log.batches))
    plan = plan_of(log)
    result = compare_batches(placed(log, plan), answers[:-1])
    assert result == "read-committed consumers are shown nothing from offset 9 on"
    # an answer that lies about its end
    answers[-2] = replace(answers[-2], end=Offset(plan.end))
    result = compare_batches(placed(log, plan), answers[:-1])
    assert result == "the brokers have no batches after offset 15, the archive has"


def test_additional_batches_are_detected() -> None:
    log = archived()
    more = [*log.batches, MadeBatch((MadeRecord(15),))]
    result = compare_batches(placed(log, plan_of(log)), fetched(more))
    assert result == "a batch between offsets 15 and 16 differs"


def test_aborted_transactions_are_compared() -> None:
    log = archived()
    plan = plan_of(log)
    result = compare_batches(placed(log, plan), fetched(log.batches, aborted=[]))
    assert result == "the transaction of producer 2 from offset 3 on is not aborted on the brokers"
    result = compare_batches(placed(log, plan), fetched(log.batches, aborted=[ABORTED, (1, 0)]))
    assert result == "the transaction of producer 1 from offset 0 on is aborted on the brokers"
    later = [ABORTED, (9, plan.end + 3)]  # produced later
    assert isinstance(
        compare_batches(placed(log, plan), fetched(log.batches, aborted=later)), EqualBatches
    )


def test_aborted_transaction_is_listed_only_where_it_overlaps() -> None:
    log = archived()
    answers = [
        replace(item, aborted=frozenset([ABORTED] if 3 <= item.start <= 8 else []))
        for item in fetched(log.batches)
    ]
    assert isinstance(compare_batches(placed(log, plan_of(log)), answers), EqualBatches)


def test_start_within_a_compacted_batch_is_not_compared() -> None:
    log = TransactionalLog()
    batch = MadeBatch((MadeRecord(0), MadeRecord(4)), last_offset=5)
    log.batches.append(batch)
    log.next_offset = 6
    plan = plan_of(log, start=2)
    result = compare_batches(placed(log, plan), fetched(log.batches, start=2, aborted=[]))
    assert "compacted" in str(result)


def serve(broker: FakeBroker, log: TransactionalLog, most: int) -> None:
    """Answer Fetch like a broker: from the batch with the offset on, truncated after `most`
    bytes.
    """
    tp = TopicPartition("orders", 0)
    broker.answers[ApiKey.METADATA] = lambda request: led_by(broker, request, tp)

    def fetch(request: Received) -> bytes:
        offset = request.entity.topics[0].partitions[0].fetch_offset
        rest = [batch for batch in log.batches if batch.last >= offset]
        records = b"".join(batch.encoded() for batch in rest)
        first = len(rest[0].encoded()) if rest else 0
        partition = {
            "partition_index": 0,
            "error_code": ErrorCode.none,
            "high_watermark": log.next_offset,
            "last_stable_offset": log.next_offset,
            "log_start_offset": 0,
            "aborted_transactions": [{"producer_id": ABORTED[0], "first_offset": ABORTED[1]}],
            "preferred_read_replica": -1,
            "records": records[: max(most, first)],
        }
        return request.response(
            throttle_time=0,
            error_code=ErrorCode.none,
            session_id=0,
            responses=[{"topic": "orders", "partitions": [partition]}],
        )

    broker.answers[ApiKey.FETCH] = fetch


@pytest.mark.parametrize("most", [1, 200, 10_000])
@pytest.mark.parametrize(("start", "end"), [(0, 15), (5, 9)])
def test_partition_is_fetched_from_start_to_end(most: int, start: int, end: int) -> None:
    log = archived()
    plan = plan_of(log, start=start, end=end)
    with fake_broker() as broker, Cluster(ClientSettings((broker.address,))) as cluster:
        serve(broker, log, most)
        result = compare_batches(placed(log, plan), fetch_batches(cluster, plan))
        assert isinstance(result, EqualBatches)
        log.batches[3] = replace(log.batches[3], producer_epoch=9)  # the batch at offset 8
        changed = compare_batches(placed(archived(), plan), fetch_batches(cluster, plan))
        assert isinstance(changed, str)
        assert "differs" in changed
        log.batches.clear()
        empty = compare_batches(placed(archived(), plan), fetch_batches(cluster, plan))
        assert empty == f"read-committed consumers are shown nothing from offset {start} on"
