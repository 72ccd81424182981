"""Reads of the leaders of a live cluster of fake brokers."""

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry

from sidetier.brokers.kafka import KAFKA_2_8
from sidetier.endpoint.live.chunks import Chunk, Reader
from sidetier.endpoint.live.reads import LiveReads
from sidetier.endpoint.live.side import LiveBounds
from sidetier.endpoint.live.topics import LiveTopicsWatch
from sidetier.endpoint.metrics import LiveMetrics
from sidetier.segments.batches import split_batches
from sidetier.segments.errors import BrokerUnavailableError, KafkaApiError
from sidetier.segments.offsets import BrokerId, Offset, TopicPartition
from sidetier.wire.protocol import ApiKey
from sidetier.wire.record_requests import FetchedPartition
from tests.harness.fake_leaders import Leaders, Session, leaders, tp
from tests.harness.kafka_versions import VERSIONS
from tests.harness.waiting import wait_until


@dataclass(slots=True)
class Reading:
    """A reader of such a cluster. `told` has the partitions that were notified."""

    reads: LiveReads
    watch: LiveTopicsWatch
    told: list[TopicPartition]


@contextmanager
def reading(
    cluster: Leaders,
    *,
    memory: int = 64 << 20,
    timeout: float = 30.0,
    registry: CollectorRegistry | None = None,
) -> Iterator[Reading]:
    client = cluster.client()
    stop, told, made = threading.Event(), list[TopicPartition](), list[LiveReads]()

    def report(tps: Collection[TopicPartition]) -> None:
        for each in made:
            each.forget(tps)

    watch = LiveTopicsWatch(lambda: client, report, stop)
    metrics = LiveMetrics(registry or CollectorRegistry())
    reads = LiveReads(lambda: client, watch, memory, metrics, told.extend, stop, timeout=timeout)
    made.append(reads)
    watch.start()
    try:
        yield Reading(reads, watch, told)
    finally:
        stop.set()
        for event in cluster.hanging.values():
            event.set()
        watch.close()
        reads.close()


def offsets(chunks: Sequence[Chunk] | None) -> list[int]:
    assert chunks is not None
    return [
        offset
        for chunk in chunks
        for _, header in split_batches(chunk.data)
        for offset in range(header.base_offset, header.next_offset)
    ]


def fetch(
    read: Reading, number: int, offset: int, client_id: str | None = None, most: int = 1 << 20
) -> Sequence[Chunk] | None:
    return read.reads.fetch(tp(number), Offset(offset), most, isolated=False, client_id=client_id)


def test_records_are_fetched_once_under_the_id_of_the_first_client() -> None:
    with leaders(1, {0: 1}) as cluster, reading(cluster) as read:
        cluster.write(0, 3)
        assert offsets(fetch(read, 0, 0, "app")) == [0, 1, 2]
        assert offsets(fetch(read, 0, 0, "another")) == [0, 1, 2]
        assert [each.client_id for each in cluster.asked(ApiKey.FETCH)] == ["app"]
        assert [each.client_id for each in cluster.asked(ApiKey.METADATA)] != ["app"]


def test_the_leader_that_a_broker_names_is_asked_at_once() -> None:
    with leaders(2, {0: 1}) as cluster, reading(cluster) as read:
        cluster.write(0, 2)
        cluster.led_by, cluster.epochs = {0: 2}, {0: 6}
        cluster.shown = {0: 1}  # Metadata is not renewed yet
        before = len(cluster.asked(ApiKey.METADATA))
        assert offsets(fetch(read, 0, 0)) == [0, 1]
        assert read.watch.latest.leader(tp(0)) == 2
        assert len(cluster.asked(ApiKey.METADATA)) - before <= 1, "asked, but not waited for"


def test_a_missing_leader_is_asked_for_until_it_shows_without_further_reasons() -> None:
    with leaders(2, {0: 1}) as cluster, reading(cluster) as read:
        cluster.epochs, cluster.shown = {0: 6}, {0: 1}
        before = len(cluster.asked(ApiKey.METADATA))
        read.watch.renew()
        # Without this, the next request would be after 10 s.
        wait_until(lambda: len(cluster.asked(ApiKey.METADATA)) >= before + 3, 5, "three requests")


def test_a_leader_of_an_older_epoch_is_not_taken() -> None:
    with leaders(2, {0: 1}) as cluster, reading(cluster) as read:
        cluster.led_by, cluster.epochs = {0: 2}, {0: 4}
        cluster.shown = {0: 1}
        with pytest.raises(KafkaApiError, match="NOT_LEADER"):
            fetch(read, 0, 0)
        assert read.watch.latest.leader(tp(0)) == 1


def test_a_broker_that_hangs_costs_one_wait_and_no_other_broker_any() -> None:
    led_by = {0: 1, 1: 2, 2: 1}
    with leaders(2, led_by) as cluster, reading(cluster, timeout=1.5) as read:
        cluster.write(0)
        cluster.write(1)
        released = cluster.hanging[1] = threading.Event()
        with pytest.raises(BrokerUnavailableError):
            fetch(read, 0, 0)
        asked = len(cluster.brokers[0].received)
        read.reads.pool._brokers[BrokerId(1)].failed_at += 60  # no attempt in the meantime
        for number in (0, 2, 0):
            with pytest.raises(BrokerUnavailableError):
                fetch(read, number, 0)
        assert ApiKey.FETCH not in [each.api for each in cluster.brokers[0].received[asked:]]
        wait_until(lambda: answered(read, 1) == [0], 20, "the other broker")
        assert read.reads.pool.unreachable().keys() == {1}
        released.set()
        del cluster.hanging[1]
        read.reads.pool._brokers[BrokerId(1)].failed_at -= 60
        wait_until(lambda: answered(read, 0) == [0], 20, "the broker is asked again")
        assert read.reads.pool.away(BrokerId(1)) is None


def answered(read: Reading, number: int) -> list[int]:
    try:
        return offsets(fetch(read, number, 0))
    except BrokerUnavailableError:
        return []


def test_a_connection_that_the_broker_has_closed_is_replaced() -> None:
    with leaders(1, {0: 1}) as cluster, reading(cluster) as read:
        cluster.write(0)
        assert offsets(fetch(read, 0, 0)) == [0]
        cluster.write(0)
        cluster.closing.add(1)
        assert offsets(fetch(read, 0, 1)) == [1]


def test_only_the_throttled_client_waits() -> None:
    with leaders(1, {0: 1}) as cluster, reading(cluster) as read:
        cluster.throttled["greedy"] = 0.5
        cluster.write(0)
        began = monotonic()
        assert fetch(read, 0, 0, "greedy") is None
        asked = len(cluster.asked(ApiKey.FETCH))
        assert fetch(read, 0, 0, "greedy") is None or monotonic() - began >= 0.5
        assert read.reads.followers.positions() == {}, "it is not at the end"
        assert offsets(fetch(read, 0, 0, "modest")) == [0]
        assert len(cluster.asked(ApiKey.FETCH)) <= asked + 1
        cluster.write(0)
        wait_until(
            lambda: fetch(read, 0, 1, "greedy") is not None, 20, "the end of the throttle time"
        )
        assert monotonic() - began >= 0.5


def test_clients_that_take_their_answers_slowly_hold_little_memory() -> None:
    with leaders(1, {0: 1}) as cluster, reading(cluster, memory=256 << 10) as read:
        for _ in range(150):
            cluster.write(0, 100)
        chunks = fetch(read, 0, 0, most=4 << 20)
        assert chunks is not None
        size = len(chunks[0].data)
        assert size > 128 << 10, "more than half of the memory"
        held = read.reads.lend(chunks, size)
        small = read.reads.lend(chunks, size)
        assert (held.size, small.size) == (size, 64 << 10)
        sent = b"".join(piece for piece in small.pieces if isinstance(piece, bytes))
        assert sent == chunks[0].data[: 64 << 10]
        held.release()
        small.release()
        assert read.reads.lend(chunks, size).size == size


def test_clients_of_the_same_records_hold_them_once() -> None:
    with leaders(1, {0: 1}) as cluster, reading(cluster, memory=512 << 10) as read:
        for _ in range(60):
            cluster.write(0, 100)
        chunks = fetch(read, 0, 0, most=4 << 20)
        assert chunks is not None
        size = len(chunks[0].data)
        leases = [read.reads.lend(chunks, size) for _ in range(50)]
        assert {lease.size for lease in leases} == {size}
        for lease in leases:
            lease.release()
        assert read.reads._held == 0


def test_an_endpoint_without_clients_can_be_scraped() -> None:
    registry = CollectorRegistry()
    with leaders(1, {0: 1}) as cluster, reading(cluster, registry=registry) as read:
        for name in ("unavailable_brokers", "followed_partitions", "lag_records"):
            assert registry.get_sample_value(f"sidetier_endpoint_live_{name}") == 0
        assert fetch(read, 0, 0) == ()
        assert registry.get_sample_value("sidetier_endpoint_live_followed_partitions") == 1


def test_leaders_are_asked_again_until_one_is_shown() -> None:
    """Not every broker names the next leader, and it may be known only seconds later."""
    with leaders(2, {0: 1}) as cluster, reading(cluster) as read:
        cluster.write(0)
        cluster.led_by, cluster.shown = {0: 2}, {0: 1}
        assert read.reads.bounds(tp(0), 0.0) is None
        cluster.shown, cluster.epochs = {}, {0: 6}
        wait_until(lambda: read.reads.bounds(tp(0), 2.0) is not None, 8, "the next leader")


def test_a_broker_that_lags_behind_is_not_the_only_one_that_is_asked() -> None:
    """Its own Metadata names it as the leader, and without KIP-951 its errors name no other one."""
    with leaders(3, {0: 1}, VERSIONS[KAFKA_2_8]) as cluster, reading(cluster) as read:
        cluster.write(0)
        (asked,) = (at for at, each in enumerate(cluster.brokers, 1) if each.apis())
        cluster.shown, cluster.shown_by = {0: 1}, {asked}
        cluster.led_by, cluster.epochs = {0: 2}, {0: 6}
        wait_until(lambda: read.reads.bounds(tp(0), 2.0) is not None, 20, "the next leader")


def test_what_a_former_leader_returns_late_is_not_kept() -> None:
    with leaders(2, {0: 1}) as cluster, reading(cluster) as read:
        cluster.write(0)
        before = read.watch.latest
        answer = FetchedPartition(
            *(tp(0), 0, Offset(1), Offset(1), Offset(0), (), -1),
            memoryview(bytearray(cluster.written[0][0][1])),
        )
        cluster.led_by, cluster.epochs = {0: 2}, {0: 6}
        read.watch.renew(wait=20)
        wait_until(lambda: read.watch.latest.leader(tp(0)) == 2, 20, "the next leader")
        with pytest.raises(BrokerUnavailableError, match="has changed"):
            read.reads._take(Reader(tp(0), is_isolated=False), Offset(0), answer, before)
        assert read.reads.kept(tp(0), Offset(0), 1 << 20, isolated=False) == []


def test_only_a_topic_that_no_broker_knows_by_its_name_is_gone() -> None:
    with leaders(1, {0: 1}) as cluster, reading(cluster) as read:
        cluster.unknown = {"deleted": ErrorCode.unknown_topic_or_partition}
        cluster.unknown |= {"secret": ErrorCode.topic_authorization_failed}
        for topic in ("t", "deleted", "secret"):
            assert not read.watch.is_gone(topic)
        read.watch.renew(wait=20)
        wait_until(lambda: "deleted" in read.watch._unknown_since, 20, "the question")
        assert not read.watch.is_gone("deleted"), "it may be new"
        read.watch._unknown_since["deleted"] -= 60
        wait_until(lambda: renewed(read).is_gone("deleted"), 20, "the answer")
        assert not read.watch.is_gone("secret")
        read.watch._doubts["secret"] -= 120
        wait_until(lambda: "secret" not in renewed(read)._doubts, 20, "the end of the question")
        asked = len(cluster.asked(ApiKey.METADATA))
        renewed(read)
        assert read.watch.is_gone("deleted")
        later = cluster.asked(ApiKey.METADATA)[asked:]
        assert not [each for each in later if each.entity.topics], "nobody misses another topic"


def renewed(read: Reading) -> LiveTopicsWatch:
    """Ask for the topics, and wait for the answer."""
    read.watch.renew(wait=20)
    return read.watch


def test_an_error_that_no_leader_explains_changes_nothing() -> None:
    """The client would be woken, ask again, and so on."""
    with leaders(1, {0: 1}) as cluster, reading(cluster) as read:
        assert read.reads.bounds(tp(0), 0.0) is not None
        cluster.refused[0] = ErrorCode.topic_authorization_failed
        before = read.reads.state(tp(0))
        with pytest.raises(KafkaApiError, match="AUTHORIZATION"):
            fetch(read, 0, 0)
        assert read.reads.state(tp(0)) == before


def test_partitions_without_a_leader_make_no_broker_count_as_away() -> None:
    with leaders(1, {0: 1, 1: -1}) as cluster, reading(cluster) as read:
        unknown = TopicPartition("unknown", 0)
        read.reads.refresh([tp(0), tp(1), unknown], 0.0)
        listed = read.reads.list_offsets({tp(0): -1, tp(1): -1, unknown: -1}, isolated=False)
        assert listed.keys() == {tp(0)}
        assert read.reads.pool.unreachable() == {}
        assert read.reads.bounds(tp(0), 2.0) is not None


def test_bounds_of_many_partitions_cost_three_requests_to_each_leader() -> None:
    led_by = {number: 1 + number % 2 for number in range(10)}
    with leaders(2, led_by) as cluster, reading(cluster) as read:
        cluster.write(3, 5)
        read.reads.refresh(map(tp, range(10)), 2.0)
        assert read.reads.bounds(tp(3), 2.0) == LiveBounds(Offset(0), Offset(5), Offset(5))
        assert len(cluster.asked(ApiKey.LIST_OFFSETS)) == 6


def test_one_bad_partition_leaves_the_bounds_of_the_others() -> None:
    with leaders(2, {0: 1, 1: 1}) as cluster, reading(cluster) as read:
        cluster.led_by[0], cluster.shown = 2, {0: 1}
        assert read.reads.bounds(tp(1), 2.0) is not None
        read.reads.refresh([tp(0), tp(1)], 0.0)
        assert read.reads.bounds(tp(1), 2.0) is not None
        assert read.reads.bounds(tp(0), 2.0) is None


def test_records_behind_the_end_come_by_one_follower_for_all() -> None:
    with leaders(1, {0: 1, 1: 1}) as cluster, reading(cluster) as read:
        for number in (0, 1):
            assert fetch(read, number, 0) == ()
        assert set(read.reads.followers.positions()) == {
            Reader(tp(number), is_isolated=False) for number in (0, 1)
        }
        before = read.reads.state(tp(1))
        cluster.write(1)
        wait_until(lambda: read.reads.state(tp(1)) != before, 20, "the follower")
        for _ in range(50):
            assert offsets(fetch(read, 1, 0)) == [0]
        assert tp(1) in read.told
        followed = [
            [row.partition for row in each.entity.topics[0].partitions]
            for each in cluster.asked(ApiKey.FETCH)
            if len(each.entity.topics[0].partitions) == 2
        ]
        wait_until(lambda: len(cluster.asked(ApiKey.FETCH)) > 8, 20, "more requests")
        assert [0, 1] in followed or [1, 0] in followed
        both = {
            tuple(row.partition for row in each.entity.topics[0].partitions)
            for each in cluster.asked(ApiKey.FETCH)
        }
        assert {(0, 1), (1, 0)} <= both, "each partition is the first one in turn"


def test_a_follower_that_loses_its_connection_tells_the_waiting_clients() -> None:
    with leaders(1, {0: 1}) as cluster, reading(cluster) as read:
        assert fetch(read, 0, 0) == ()
        before = read.reads.state(tp(0))
        cluster.closing.add(1)
        wait_until(lambda: read.reads.state(tp(0)) != before, 20, "the follower")
        cluster.write(0)
        assert offsets(fetch(read, 0, 0)) == [0]
        assert fetch(read, 0, 1) == ()
        cluster.write(0)
        wait_until(lambda: bool(fetch(read, 0, 1)), 20, "the record")


def test_offsets_above_the_end_are_refused_by_the_leader() -> None:
    with leaders(1, {0: 1}) as cluster, reading(cluster) as read:
        cluster.write(0)
        with pytest.raises(KafkaApiError, match="OFFSET_OUT_OF_RANGE"):
            fetch(read, 0, 5)


def test_the_next_records_are_fetched_while_a_client_reads_in_bulk() -> None:
    """But only as far as there are some, for a few clients, and not after a short answer."""
    with leaders(1, dict.fromkeys(range(6), 1)) as cluster, reading(cluster) as read:
        cluster.cuts_off = True
        for number in cluster.led_by:
            for _ in range(100):
                cluster.write(number, 5)
        most = 20 * len(cluster.written[0][0][1]) + 2048
        asked = len(cluster.asked(ApiKey.FETCH))

        def positions() -> list[tuple[int, int]]:
            return [
                (partition.partition, partition.fetch_offset)
                for each in cluster.asked(ApiKey.FETCH)[asked:]
                for partition in each.entity.topics[0].partitions
            ]

        found = offsets(fetch(read, 0, 0, most=most))
        following = found[-1] + 1
        wait_until(lambda: len(positions()) == 2, 20, "the next chunk")
        assert positions() == [(0, 0), (0, following)]
        wait_until(
            lambda: bool(read.reads.kept(tp(0), Offset(following), 1, isolated=False)), 20, "it"
        )
        while found[-1] < 499:
            found += offsets(fetch(read, 0, found[-1] + 1, most=most))
        assert found == list(range(500))
        assert len(set(positions())) == len(positions()), "each chunk was fetched once"
        assert max(offset for _, offset in positions()) < 500

        read.reads._ahead.clear()
        before = len(positions())
        fetch(read, 1, 0, most=1 << 20)
        for number in range(2, 6):
            fetch(read, number, 0, most=most)
        fetch(read, 1, 0, most=most)
        wait_until(lambda: len(read.reads._ahead) == 4, 20, "four clients")
        wait_until(lambda: len(positions()) == before + 9, 20, "four more chunks")


def follows_ten(cluster: Leaders, read: Reading) -> None:
    """Follow ten empty partitions, and wait until the session is incremental."""
    for number in range(10):
        assert fetch(read, number, 0) == ()
    wait_until(lambda: named(cluster, -1) == [], 20, "a Fetch without partitions")


def named(cluster: Leaders, at: int) -> list[int]:
    """Partitions that one of the Fetch requests has named, ascending."""
    request = cluster.asked(ApiKey.FETCH)[at].entity
    return sorted(each.partition for topic in request.topics for each in topic.partitions)


def requests_from(cluster: Leaders, first: int) -> list[tuple[int, list[int]]]:
    """Session epoch and named partitions of the Fetch requests in sessions from one of them on."""
    requests = enumerate(cluster.asked(ApiKey.FETCH))
    rows = [(each.entity.session_epoch, named(cluster, at)) for at, each in requests if at >= first]
    return [row for row in rows if row[0] >= 0]


def test_a_fetch_names_only_the_partitions_that_have_changed() -> None:
    with leaders(1, dict.fromkeys(range(10), 1)) as cluster, reading(cluster) as read:
        cluster.sessions = {}
        follows_ten(cluster, read)
        first = len(cluster.asked(ApiKey.FETCH))
        before = read.reads.state(tp(3))
        cluster.write(3)
        wait_until(lambda: read.reads.state(tp(3)) != before, 20, "the follower")
        assert offsets(fetch(read, 3, 0)) == [0]
        wait_until(lambda: [3] in [row for _, row in requests_from(cluster, first)], 20, "its end")
        assert {tuple(row) for _, row in requests_from(cluster, first)} <= {(), (3,)}
        read.reads.followers.leave([tp(5)])
        wait_until(lambda: 5 not in session(cluster).asked, 20, "a forgotten partition")
        assert len(session(cluster).asked) == 9


def session(cluster: Leaders) -> Session:
    assert cluster.sessions is not None
    (only,) = cluster.sessions.values()
    return only


def test_bounds_of_idle_partitions_stay_known_without_a_request_for_each() -> None:
    with leaders(1, dict.fromkeys(range(10), 1)) as cluster, reading(cluster) as read:
        cluster.sessions = {}
        follows_ten(cluster, read)
        for known in read.reads._known.values():
            known.at -= 60
        asked = len(cluster.asked(ApiKey.LIST_OFFSETS))
        old = {each: known.at for each, known in read.reads._known.items()}
        wait_until(
            lambda: all(read.reads._known[each].at > at for each, at in old.items()), 20, "answers"
        )
        read.reads.refresh(map(tp, range(10)), 2.0)
        assert len(cluster.asked(ApiKey.LIST_OFFSETS)) == asked
        # What another answer has brought in between, and older, is put right again.
        read.reads._known[tp(4)].bounds = LiveBounds(Offset(0), Offset(7), Offset(7))
        wait_until(
            lambda: read.reads._known[tp(4)].bounds.high_watermark == 0, 20, "the next answer"
        )


def test_a_session_without_news_does_not_lower_the_last_stable_offset() -> None:
    with leaders(1, {0: 1}) as cluster, reading(cluster) as read:
        risen, stale = (LiveBounds(Offset(0), Offset(7), Offset(end)) for end in (7, 3))
        for confirmed in (risen, stale):
            read.reads._confirm({tp(0): confirmed}, read.reads._watch.latest, float("inf"))
        assert read.reads._known[tp(0)].bounds == risen


@pytest.mark.parametrize("loses", ["room", "epoch", "answer"])
def test_a_lost_session_is_followed_by_a_new_one(loses: str) -> None:
    """The broker has given its room away, has missed a request, or its answer got lost."""
    with leaders(1, dict.fromkeys(range(10), 1)) as cluster, reading(cluster) as read:
        cluster.sessions = {}
        follows_ten(cluster, read)
        first, before = len(cluster.asked(ApiKey.FETCH)), read.reads.state(tp(0))
        if loses == "room":
            cluster.sessions.clear()
        elif loses == "epoch":
            session(cluster).epoch += 1
        else:
            cluster.closing.add(1)
            wait_until(lambda: read.reads.state(tp(0)) != before, 20, "clients to be told")
            for number in range(10):
                assert fetch(read, number, 0) == ()
        wait_until(lambda: 0 in dict(requests_from(cluster, first)), 20, "a new session")
        wait_until(lambda: len(session(cluster).asked) == 10, 20, "all partitions")
        cluster.write(8)
        wait_until(lambda: bool(read.reads.kept(tp(8), Offset(0), 1, isolated=False)), 20, "it")
        assert len(cluster.sessions) == 1, "the former one is closed"


def test_a_broker_without_room_for_sessions_is_asked_for_all_partitions_in_turn() -> None:
    with leaders(1, {0: 1, 1: 1}) as cluster, reading(cluster) as read:
        for number in (0, 1):
            assert fetch(read, number, 0) == ()
        first = len(cluster.asked(ApiKey.FETCH))
        wait_until(lambda: len(cluster.asked(ApiKey.FETCH)) > first + 3, 20, "some requests")
        assert {(0, (0, 1))} == {
            (epoch, tuple(row)) for epoch, row in requests_from(cluster, first + 1)
        }
