"""Clients read on in tail packs behind the end of the archive."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sidetier.archive.reader import IsolationLevel
from sidetier.archive.tail.pack import PackBuilder, claim
from sidetier.segments.offsets import BrokerId, Offset, TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.storage.local import LocalStorage
from sidetier.storage.port import RemoteStorage
from tests.harness.endpoint import EAGER, endpoint_over
from tests.harness.fake_leaders import leaders
from tests.harness.intercepted_store import InterceptedStore, StoreCall
from tests.harness.joined_logs import Both, both, offsets
from tests.harness.made_archive import LAYOUT, Clock
from tests.harness.record_batches import MadeBatch, MadeRecord
from tests.harness.served_tail import WITH_TAIL, read_on
from tests.harness.tail_packs import TOPIC_ID, history
from tests.harness.tailed_log import TailedLog, mixed_log, store_pack, tailed
from tests.harness.waiting import wait_until

UNCOMMITTED, COMMITTED = IsolationLevel
NONE = ErrorCode.none


@pytest.fixture(params=["objects", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RemoteStorage:
    return FakeStorage() if request.param == "objects" else LocalStorage(tmp_path)


@pytest.mark.parametrize("isolation", IsolationLevel)
@pytest.mark.parametrize("most", [1, 300, 1 << 20])
def test_archive_and_tail_are_one_log(
    store: RemoteStorage, isolation: IsolationLevel, most: int
) -> None:
    log = tailed(store)
    end = log.next_offset
    with endpoint_over(store, settings=WITH_TAIL) as parts:
        for start in (0, 4, 12, 13, 17, 19, 24, end):
            expected = [offset for offset in log.offsets(isolation, end) if offset >= start]
            assert read_on(parts, log, start, isolation, most) == expected, start
    with endpoint_over(store) as parts:  # without the option
        assert parts.read(12).high_watermark == 12
        assert parts.read(13).error_code is ErrorCode.offset_out_of_range


def test_transactions_that_the_sidecar_has_not_seen_begin() -> None:
    """It began to read within two transactions: its rows have neither of them."""
    log = mixed_log()
    end = log.next_offset
    log.archived(0, 5, 12)
    for number, (start, until) in enumerate(((12, 14), (14, end))):
        known = PackBuilder()
        row = log.row(start, until, known)
        builder = PackBuilder()
        unseen = {1, 2}
        builder.add(
            row._replace(
                open=tuple(each for each in row.open if each.producer_id not in unseen),
                aborted=tuple(each for each in row.aborted if each.producer_id not in unseen),
            ),
            *(batch.encoded() for batch in log.between(start, until)),
        )
        store_pack(log.store, LAYOUT, builder, 1, number)
    for start in (0, 4, 12, 16, 24):  # the first request may be for any offset
        with endpoint_over(log.store, settings=WITH_TAIL) as parts:
            expected = [offset for offset in log.offsets(COMMITTED, end) if offset >= start]
            assert read_on(parts, log, start, COMMITTED) == expected, start


def test_last_stable_offset_of_a_later_time_does_not_hide_a_transaction() -> None:
    """The broker has answered when the transaction was decided, behind the end of the range."""
    log = TailedLog()
    log.write(1, 3)
    log.write(9, 3, transactional=False)
    log.mark(1, commit=False)
    log.write(9, 2, transactional=False)
    end = log.next_offset
    log.archived(0, 3)
    for number, (start, until) in enumerate(((3, 6), (6, end))):
        builder = PackBuilder()
        row = log.row(start, until, PackBuilder())
        row = row._replace(open=(), aborted=(), last_stable=Offset(end))
        builder.add(row, *(batch.encoded() for batch in log.between(start, until)))
        store_pack(log.store, LAYOUT, builder, 1, number)
    with endpoint_over(log.store, settings=WITH_TAIL) as parts:
        assert read_on(parts, log, 0, COMMITTED) == log.offsets(COMMITTED, end)


def test_offsets_times_and_epochs_are_those_of_both(store: RemoteStorage) -> None:
    log = tailed(store)
    end = log.next_offset
    with endpoint_over(store, settings=WITH_TAIL) as parts:

        def listed(timestamp: int, isolation: int = 0) -> int:
            answer = parts.offsets.list_offset("orders", 0, timestamp, isolation)
            assert answer.error is NONE
            return answer.offset

        assert (listed(-1), listed(-2)) == (end, 0)
        [fourth] = [batch for batch in log.batches if batch.producer_id == 4]
        assert listed(-1, 1) == fourth.first
        assert parts.offsets.epoch_end("orders", 0, 0) == (NONE, 0, end)
        moment = log.batches[-1].records[0].timestamp
        assert listed(moment) == 0
        assert listed(moment + 1) == -1
    late = MadeBatch((MadeRecord(end, moment + 5), MadeRecord(end + 1, moment + 9)))
    log.batches.append(late)
    log.next_offset = end + 2
    log.pack(2, 1, (end, end + 2))
    with endpoint_over(store, settings=WITH_TAIL) as parts:
        assert [listed(moment + each) for each in (1, 6, 10)] == [end, end + 1, -1]


def test_partition_that_only_packs_have() -> None:
    log = mixed_log()
    log.log_start = 7
    log.pack(1, 0, (7, log.next_offset))
    with endpoint_over(log.store, settings=WITH_TAIL) as parts:
        assert parts.catalog.topics["orders"].partitions == 1
        assert parts.offsets.list_offset("orders", 0, -2, 0).offset == 7
        found = read_on(parts, log, 7, UNCOMMITTED)
        assert found == [o for o in log.offsets(UNCOMMITTED, log.next_offset) if o >= 7]


def test_end_of_a_partition_that_only_packs_have_is_not_guessed() -> None:
    log = mixed_log()
    log.pack(1, 0, (0, 18))
    clock = Clock()
    settings = replace(WITH_TAIL, tail_interval=5.0)
    with endpoint_over(log.store, settings=settings, clock=clock) as parts:
        assert parts.read(0).high_watermark == 18
        key = LAYOUT.tail_pack_key(BrokerId(2), 0)
        log.archive.put(key, b"no pack")
        clock.now += 20
        for offset in (0, 10, 18, 27):
            assert parts.read(offset).error_code is ErrorCode.kafka_storage_error
        for timestamp in (-1, -2, 0):
            answer = parts.offsets.list_offset("orders", 0, timestamp, 0)
            assert answer.error is ErrorCode.kafka_storage_error
        assert parts.offsets.epoch_end("orders", 0, 0).error is ErrorCode.kafka_storage_error
        log.store.delete_object(key)
        clock.now += 20
        assert parts.read(0).high_watermark == 18
        log.store.delete_object(LAYOUT.tail_pack_key(BrokerId(1), 0))
        clock.now += 20
        assert parts.read(10).error_code is ErrorCode.not_leader_or_follower
        clock.now += 10
        assert parts.read(10).error_code is ErrorCode.offset_out_of_range


class Counted(InterceptedStore):
    """Counts the listings of packs."""

    listings = 0

    def intercept(self, call: StoreCall) -> object:
        if call.operation == "list" and "/packs/" in str(call.key):
            self.listings += 1
        return super().intercept(call)


def test_waiting_clients_share_one_reading_of_the_packs() -> None:
    log = tailed()
    assert isinstance(log.store, FakeStorage)
    clock, counted = Clock(), Counted(log.store)
    settings = replace(EAGER, with_tail=True, tail_interval=5.0)
    with endpoint_over(counted, settings=settings, clock=clock) as parts:
        end = log.next_offset
        for _ in range(20):
            for start in (0, 12, 18, end):
                assert parts.read(start).high_watermark == end
        assert counted.listings == 2, "one for each broker"
        log.write(9, 3, transactional=False)
        log.pack(1, 2, (end, log.next_offset))
        # Another endpoint may have shown this end: no reset, until it is certain.
        assert parts.read(end + 2).error_code is ErrorCode.not_leader_or_follower
        clock.now += 5
        assert offsets(parts.read(end + 2))[-1] == end + 2
        assert counted.listings == 4
        beyond = log.next_offset + 1
        assert parts.read(beyond).error_code is ErrorCode.not_leader_or_follower
        clock.now += 10
        assert parts.read(beyond).error_code is ErrorCode.offset_out_of_range
        log.archive.put(LAYOUT.tail_pack_key(BrokerId(2), 1), b"no pack")
        clock.now += 20
        assert parts.read(0).error_code is NONE
        for offset in (12, end, beyond):  # the archive ends at 12: that is no end
            assert parts.read(offset).error_code is ErrorCode.kafka_storage_error
        assert parts.offsets.list_offset("orders", 0, -1, 0).error is ErrorCode.kafka_storage_error
        assert parts.offsets.list_offset("orders", 0, -2, 0) == (NONE, 0, -1)
        # The same for questions that the end, or what follows it, decides.
        for timestamp in (1 << 60, -3):
            answer = parts.offsets.list_offset("orders", 0, timestamp, 0)
            assert answer.error is ErrorCode.kafka_storage_error
        assert parts.offsets.list_offset("orders", 0, 0, 0).offset == 0
        assert parts.offsets.epoch_end("orders", 0, 0).error is ErrorCode.kafka_storage_error


@pytest.mark.parametrize("becomes", ["pack", "segment"])
def test_a_deleted_pack_is_a_retriable_error(becomes: str) -> None:
    log = TailedLog()
    for _ in range(6):
        log.write(9, 4, transactional=False)
    end = log.next_offset
    log.archived(0, 12)
    key = log.pack(1, 0, (12, end))
    settings = replace(EAGER, max_age=60.0, with_tail=True, tail_interval=0.0)
    with endpoint_over(log.store, settings=settings) as parts:
        assert parts.offsets.list_offset("orders", 0, -1, 0).offset == end
        if becomes == "pack":
            log.pack(1, 1, (12, end))
        else:
            log.archived(0, 12, end)
        log.store.delete_object(key)
        assert parts.read(12).error_code is ErrorCode.not_leader_or_follower
        assert offsets(parts.read(12))[0] == 12
        assert read_on(parts, log, 0, UNCOMMITTED) == log.offsets(UNCOMMITTED, end)


def test_records_of_a_former_leader_behind_the_valid_part_of_a_range_are_not_sent() -> None:
    """After an unclean election at offset 14, a range of the former leader reaches to 19."""
    log = mixed_log()
    log.archived(0, 12)
    log.pack(1, 0, (12, 19))
    other = TailedLog(store=log.store, epochs=history((0, 0), (1, 14)))
    other.batches[:] = [batch for batch in log.batches if batch.first < 14]
    other.next_offset = 14
    builder = PackBuilder()
    other.write(9, 4, transactional=False)
    other.row(14, 18, builder)
    for has_more in (False, True):
        if has_more:
            store_pack(log.store, LAYOUT, builder, 2, 1)
        else:
            claims = PackBuilder()
            claims.add(claim(other.tp, TOPIC_ID, other.epochs, Offset(0), Offset(14)))
            store_pack(log.store, LAYOUT, claims, 2, 0)
        end = 18 if has_more else 14
        with endpoint_over(log.store, settings=WITH_TAIL) as parts:
            data = parts.read(13)
            assert data.high_watermark == end
            assert offsets(data)[-1] == 13
            found = offsets(parts.read(14)) if has_more else []
            assert found == list(range(14, end))
            data = parts.read(12)
            assert (offsets(data)[-1], data.last_stable_offset) == (13, 5)


def joined_log(cluster: Any) -> TailedLog:  # noqa: ANN401 - Leaders
    log = mixed_log()
    log.tp = TopicPartition("t", 0)
    log.archived(0, 12)
    log.pack(1, 0, (12, 20))
    for batch in log.batches:
        cluster.written.setdefault(0, []).append((batch.last, batch.encoded()))
    cluster.logs[0].next_offset = log.next_offset
    return log


def test_beside_a_live_cluster_the_tail_is_read_while_the_leader_is_away() -> None:
    with leaders(1, {0: 1}) as cluster:
        log = joined_log(cluster)
        with both(log.archive, cluster, timeout=0.5, catalog=WITH_TAIL) as read:
            assert isinstance(log.store, FakeStorage)
            (data,) = read.read(("t", 0, 20))
            assert offsets(data)[0] == 20, "the leader is there"
            assert not read.parts.catalog._tailed
            away = cluster.hanging[1] = threading.Event()
            wait_until(lambda: is_away(read), 20, "the leader is away")
            for isolation in (0, 1):
                (data,) = read.read(("t", 0, 12), isolation=isolation)
                assert offsets(data)[0] == 12
                assert (data.high_watermark, data.last_stable_offset) == (20, 20)
                listed = read.parts.offsets.list_offset("t", 0, -1, isolation)
                assert listed == (NONE, 20, -1)
            assert read.parts.offsets.list_offset("t", 0, -2, 0).offset == 0
            # The leader may have more of its epoch.
            ended = read.parts.offsets.epoch_end("t", 0, 0)
            assert ended.error is ErrorCode.not_leader_or_follower
            (data,) = read.read(("t", 0, 20))
            assert (data.error_code, data.records or b"") == (NONE, b"")
            # The client has read it from the leader.
            (data,) = read.read(("t", 0, 21))
            assert data.error_code is ErrorCode.not_leader_or_follower
            away.set()
            del cluster.hanging[1]
            (data,) = read.read(("t", 0, 20), max_wait=20_000)
            assert offsets(data)[0] == 20
            assert data.high_watermark == log.next_offset


def is_away(read: Both) -> bool:
    return read.live.reads.bounds(TopicPartition("t", 0), 0.0) is None


class Held(InterceptedStore):
    """Holds the listing of packs for as long as a test wants."""

    def __init__(self, store: FakeStorage) -> None:
        super().__init__(store)
        self.go, self.waits = threading.Event(), threading.Event()
        self.go.set()

    def intercept(self, call: StoreCall) -> object:
        if call.operation == "list" and "/packs/" in str(call.key):
            self.waits.set()
            assert self.go.wait(60)
        return super().intercept(call)


def test_nobody_waits_while_the_packs_are_read_again() -> None:
    log = tailed()
    assert isinstance(log.store, FakeStorage)
    clock, held = Clock(), Held(log.store)
    # Without the thread that looks for new topics, which reads packs, too.
    settings = replace(EAGER, discovery_interval=1e9, with_tail=True, tail_interval=5.0)
    with (
        endpoint_over(held, settings=settings, clock=clock) as parts,
        ThreadPoolExecutor(1) as client,
    ):
        end = log.next_offset
        assert parts.read(0).high_watermark == end
        log.write(9, 2, transactional=False)
        log.pack(1, 2, (end, log.next_offset))
        held.waits.clear()
        held.go.clear()
        clock.now += 5
        reading = client.submit(parts.read, 0)
        assert held.waits.wait(60)
        for start in (0, 12, end):
            assert parts.read(start).high_watermark == end
        held.go.set()
        assert reading.result(60).high_watermark == log.next_offset
        assert offsets(parts.read(end))[0] == end
