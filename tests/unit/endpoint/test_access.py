"""What each user sees of each topic, by request; and the caps on bytes per second."""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from time import monotonic
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry

from sidetier.endpoint.connection import ServerSettings
from sidetier.endpoint.fetch import FetchAnswer
from sidetier.endpoint.service import EndpointSettings, serving
from sidetier.endpoint.session import Session
from sidetier.endpoint.users import EVERYTHING, Access, Names
from sidetier.segments.errors import StoreUnavailableError
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.storage.token_bucket import TokenBucket, take_from_all
from sidetier.wire.protocol import ApiKey, build_request
from tests.harness.endpoint import EAGER, Parts, RawClient, ask_as, endpoint_over, fetch_of
from tests.harness.made_archive import MadeArchive, access_to, batches, encoded
from tests.harness.waiting import wait_until

TOPICS = ("orders", "orders-eu", "clicks")
USERS: Mapping[str, Access] = {
    "everything": EVERYTHING,
    "nothing": Access(),
    "exact": Access(Names(frozenset({"orders"}))),
    "prefix": Access(Names(prefixes=("orders",))),
}
READABLE = {
    "everything": {"orders", "orders-eu", "clicks"},
    "nothing": set[str](),
    "exact": {"orders"},
    "prefix": {"orders", "orders-eu"},
}
NONE, DENIED = ErrorCode.none, ErrorCode.topic_authorization_failed


@pytest.fixture(scope="module")
def parts() -> Iterator[Parts]:
    store = FakeStorage()
    for topic in TOPICS:
        MadeArchive(store, tp=TopicPartition(topic, 0)).segments(0, 20)
    with endpoint_over(store) as made:
        yield made


def session_of(user: str) -> Session:
    return Session("test:1", user, USERS[user])


def metadata(parts: Parts, user: str, topics: Any) -> Any:  # noqa: ANN401 - kio's
    values = {"topics": topics, "include_topic_authorized_operations": False}
    return ask_as(session_of(user), parts.handlers, ApiKey.METADATA, 12, **values).topics


def in_metadata(parts: Parts, user: str, topic: str) -> ErrorCode:
    (row,) = metadata(parts, user, [{"name": topic, "topic_id": None}])
    if row.error_code is DENIED:
        assert row.name == topic
        assert row.topic_id in {None, UUID(int=0)}
        assert row.partitions == ()
    code: ErrorCode = row.error_code
    return code


def by_id_in_metadata(parts: Parts, user: str, topic: str) -> ErrorCode:
    topic_id = parts.catalog.topics[topic].topic_id
    (row,) = metadata(parts, user, [{"name": None, "topic_id": topic_id}])
    if row.error_code is DENIED:
        assert row.name is None
        assert row.topic_id == topic_id
    code: ErrorCode = row.error_code
    return code


def in_fetch(parts: Parts, user: str, topic: str) -> ErrorCode:
    answer = parts.fetch_as(USERS[user], 11, **fetch_of(topic, 0))
    (data,) = answer.responses[0].partitions
    assert bool(data.records) is (data.error_code is NONE)
    assert data.high_watermark == (20 if data.error_code is NONE else -1)
    code: ErrorCode = data.error_code
    return code


def by_id_in_fetch(parts: Parts, user: str, topic: str) -> ErrorCode:
    values = fetch_of(topic, 0)
    del values["topics"][0]["topic"], values["replica_id"]
    values["topics"][0]["topic_id"] = parts.catalog.topics[topic].topic_id
    (data,) = parts.fetch_as(USERS[user], 17, **values).responses[0].partitions
    assert bool(data.records) is (data.error_code is NONE)
    code: ErrorCode = data.error_code
    return code


def in_list_offsets(parts: Parts, user: str, topic: str) -> ErrorCode:
    asked = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    values = {"replica_id": -1, "isolation_level": 0, "topics": asked}
    answer = ask_as(session_of(user), parts.handlers, ApiKey.LIST_OFFSETS, 5, **values)
    (row,) = answer.topics[0].partitions
    assert row.offset == (20 if row.error_code is NONE else -1)
    code: ErrorCode = row.error_code
    return code


def in_epoch_ends(parts: Parts, user: str, topic: str) -> ErrorCode:
    asked = [{"topic": topic, "partitions": [{"partition": 0, "leader_epoch": 0}]}]
    answer = ask_as(
        session_of(user), parts.handlers, ApiKey.OFFSET_FOR_LEADER_EPOCH, 3, topics=asked
    )
    (row,) = answer.topics[0].partitions
    code: ErrorCode = row.error_code
    if code is DENIED:
        assert row.end_offset == -1
    return code


def in_configs(parts: Parts, user: str, topic: str) -> ErrorCode:
    resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
    values = {"resources": [resource], "include_documentation": False}
    answer = ask_as(session_of(user), parts.handlers, ApiKey.DESCRIBE_CONFIGS, 3, **values)
    code: ErrorCode = answer.results[0].error_code
    return code


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(
    "ask",
    [
        in_metadata, by_id_in_metadata, in_fetch, by_id_in_fetch, in_list_offsets, in_epoch_ends,
        in_configs,
    ],
)  # fmt: skip
def test_each_request(
    parts: Parts, ask: Callable[[Parts, str, str], ErrorCode], user: str, topic: str
) -> None:
    assert ask(parts, user, topic) is (NONE if topic in READABLE[user] else DENIED)


@pytest.mark.parametrize("ask", [in_metadata, in_fetch, in_list_offsets, in_epoch_ends, in_configs])
def test_topics_that_do_not_exist_look_like_others(
    parts: Parts, ask: Callable[[Parts, str, str], ErrorCode]
) -> None:
    assert ask(parts, "exact", "secret") is DENIED
    assert ask(parts, "exact", "clicks") is DENIED


@pytest.mark.parametrize("_turn", range(2), ids=["first", "cached"])
@pytest.mark.parametrize("user", USERS)
def test_all_topics(parts: Parts, user: str, _turn: int) -> None:
    assert {row.name for row in metadata(parts, user, None)} == READABLE[user]


def test_one_answer_has_both(parts: Parts) -> None:
    asked = [{"name": name, "topic_id": None} for name in TOPICS]
    assert [row.error_code for row in metadata(parts, "exact", asked)] == [NONE, DENIED, DENIED]
    assert [row.error_code for row in metadata(parts, "everything", asked)] == [NONE] * 3


# Bytes per second


def test_a_bucket_hands_out_bytes_at_its_rate() -> None:
    now = [50.0]
    bucket = TokenBucket(1000, lambda: now[0])
    now[0] += 3600
    assert bucket.burst == 250
    assert bucket.reserve(250) == 0  # an idle hour is no credit beyond the burst
    assert bucket.reserve(500) == pytest.approx(0.5)
    assert bucket.reserve(500) == pytest.approx(1.0)
    now[0] += 1
    assert bucket.reserve(0) == pytest.approx(0)


def capped(rate: int, **bounds: Any) -> Any:  # noqa: ANN401 - a context manager
    store = FakeStorage()
    archive = MadeArchive(store)
    archive.segment(0, batches(0, 2000, each=10))
    archive.mark(0, 2000)
    registry = CollectorRegistry()
    settings = EndpointSettings(
        ("127.0.0.1", 0),
        bytes_per_second=rate,
        server=ServerSettings(**bounds),
        catalog=EAGER,
    )
    return serving(access_to(store), settings, registry), registry


def read_all(address: tuple[str, int]) -> int:
    size = offset = 0
    with RawClient(address) as client:
        while offset < 2000:
            answer: Any = client.request(ApiKey.FETCH, 11, **fetch_of("orders", offset))
            for topic in answer.responses:  # none in an answer that was throttled
                records = bytes(topic.partitions[0].records)
                size += len(records)
                offset += _records(records)
    return size


def _records(data: bytes) -> int:
    """Return the number of offsets in whole batches."""
    position = count = 0
    while position + 12 <= len(data):
        length = int.from_bytes(data[position + 8 : position + 12])
        if position + 12 + length > len(data):
            break
        count += int.from_bytes(data[position + 23 : position + 27]) + 1
        position += 12 + length
    return count


def test_clients_share_the_cap() -> None:
    service, registry = capped(20_000)
    with service as endpoint:
        sizes: list[int] = []
        began = monotonic()
        threads = [
            threading.Thread(target=lambda: sizes.append(read_all(endpoint.address)), daemon=True)
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        took = monotonic() - began
    assert len(sizes) == 2
    assert took >= sum(sizes) / 20_000 - 0.5
    assert (registry.get_sample_value("sidetier_endpoint_throttled_seconds_total") or 0) > 0


def test_a_client_above_the_cap_is_throttled_as_by_a_broker() -> None:
    """It gets no records and a throttle time, and its next request is not read before that."""
    service, registry = capped(100)  # the first batch takes some seconds
    with service as endpoint, RawClient(endpoint.address, timeout=0.5) as client:
        wanted = fetch_of("orders", 0)
        first: Any = client.request(ApiKey.FETCH, 11, **wanted)
        assert first.responses[0].partitions[0].records
        second: Any = client.request(ApiKey.FETCH, 11, **wanted)
        assert (int(second.error_code), second.responses) == (0, ())
        assert 1 < second.throttle_time.total_seconds() <= 5
        with pytest.raises(TimeoutError):
            client.request(ApiKey.API_VERSIONS, 0)
        throttled = registry.get_sample_value("sidetier_endpoint_throttled_seconds_total") or 0
        assert throttled == pytest.approx(second.throttle_time.total_seconds(), abs=0.002)
        blocks = endpoint.blocks
        wait_until(lambda: not any(b.pins for b in blocks._blocks.values()), 5, "the memory")


def test_a_client_above_the_cap_costs_no_reads_of_segments() -> None:
    """100 throttled clients would otherwise read a multiple of the cap from the store."""
    store = FakeStorage()
    logs = []
    for number in range(20):
        made = MadeArchive(store, tp=TopicPartition("orders", number))
        made.segments(0, 20)
        logs.append(made.key(0))
    settings = EndpointSettings(("127.0.0.1", 0), bytes_per_second=1, catalog=EAGER)
    with serving(access_to(store), settings) as endpoint, ExitStack() as clients:
        answered: list[bool] = []
        for number in range(20):
            client = clients.enter_context(RawClient(endpoint.address))
            answer: Any = client.request(
                ApiKey.FETCH, 11, **fetch_of("orders", 0, partition=number)
            )
            answered.append(bool(answer.responses))
        endpoint.stop()
    assert answered == [True] + [False] * 19
    assert [key for key in logs if store.count("stream", key)] == logs[:1]


def test_a_cap_counts_the_bytes_that_are_sent() -> None:
    """Not those that were asked for; and none of an answer without records, or after a failure."""
    now = [50.0]
    cap = TokenBucket(1000, lambda: now[0])
    size = len(encoded(batches(0, 5)))
    store = FakeStorage()
    made = MadeArchive(store)
    made.segments(0, 20, 40)
    with endpoint_over(store) as parts:

        def fetched(offset: int) -> FetchAnswer:
            wanted = fetch_of("orders", offset, partition_max_bytes=1)  # one batch whole
            asked = build_request(ApiKey.FETCH, 11, **wanted)
            answer = parts.fetcher.fetch(asked, 11, caps=[cap])
            answer.release()
            return answer

        assert (fetched(40).throttle, cap._paid_until) == (0, 50)
        store.fail("stream", StoreUnavailableError("away"), key=made.key(20))
        assert fetched(20).first_error is ErrorCode.kafka_storage_error
        assert cap._paid_until == pytest.approx(50)
        assert fetched(0).throttle == 0
        assert cap._paid_until == pytest.approx(50 + size / 1000)
        assert fetched(0).throttle == pytest.approx(size / 1000)
        now[0] += size / 1000
        assert fetched(0).throttle == 0


def test_a_cap_does_not_count_what_clients_ask_for_while_others_read() -> None:
    """A client that asked for 50 MiB would otherwise throttle all others during its read."""
    now = [50.0]
    cap = TokenBucket(50_000_000, lambda: now[0])
    now[0] += 1
    store = FakeStorage()
    for number in range(20):
        made = MadeArchive(store, tp=TopicPartition("orders", number))
        made.segments(0, 20)
    with endpoint_over(store) as parts, ThreadPoolExecutor(1) as pool:

        def throttle(partition: int) -> float:
            wanted = fetch_of(
                "orders", 0, partition=partition, max_bytes=50 << 20, partition_max_bytes=50 << 20
            )
            asked = build_request(ApiKey.FETCH, 11, **wanted)
            answer = parts.fetcher.fetch(asked, 11, caps=[cap])
            answer.release()
            return answer.throttle

        key = MadeArchive(store, tp=TopicPartition("orders", 0)).key(0)
        with store.hold("stream", key):
            first = pool.submit(throttle, 0)
            wait_until(lambda: store.count("stream", key) == 1, 5, "the read")
            assert [throttle(number) for number in range(1, 20)] == [0] * 19
        assert first.result(10) == 0


def test_clients_that_ask_at_once_share_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them ask before the first of them knows how many bytes it reads."""
    now = [50.0]
    cap = TokenBucket(1000, lambda: now[0])
    store = FakeStorage()
    MadeArchive(store).segments(0, 20)
    at_once = threading.Barrier(8, timeout=10)
    with endpoint_over(store) as parts, ThreadPoolExecutor(8) as pool:
        first_batch = parts.fetcher._first_batch

        def all_at_once(*args: Any, **more: Any) -> Any:  # noqa: ANN401 - as the method
            at_once.wait()
            return first_batch(*args, **more)

        monkeypatch.setattr(parts.fetcher, "_first_batch", all_at_once)
        asked = build_request(ApiKey.FETCH, 11, **fetch_of("orders", 0))

        def fetched(_number: int) -> tuple[bool, int]:
            answer = parts.fetcher.fetch(asked, 11, caps=[cap])
            answer.release()
            return answer.throttle > 0, len(answer.topics)

        answers = list(pool.map(fetched, range(8)))
    assert sorted(answers) == [(False, 1)] + [(True, 0)] * 7
    assert not any(block.pins for block in parts.blocks._blocks.values())


def test_clients_that_go_away_do_not_use_up_the_cap() -> None:
    """Nothing is reserved for them, so they do not delay the clients that stay."""
    service, _ = capped(2_000)

    def fetched() -> Any:  # noqa: ANN401 - kio's
        with RawClient(endpoint.address) as client:
            return client.request(ApiKey.FETCH, 11, **fetch_of("orders", 0))

    with service as endpoint:
        assert any([fetched().responses for _ in range(40)])  # noqa: C419 - all of them ask
        throttled = []
        while not (answer := fetched()).responses:
            throttled.append(answer.throttle_time.total_seconds())
            wait_until(lambda: endpoint.server._service.bucket._paid_until <= monotonic(), 9, "it")
        assert len(throttled) < 10
        assert max(throttled, default=0.0) <= 5


def test_a_bucket_refuses_while_bytes_are_unpaid_and_reserves_nothing() -> None:
    now = [50.0]
    bucket = TokenBucket(1000, lambda: now[0])
    assert bucket.take(0) == 0
    assert bucket.take(500) == 0
    assert bucket.take(0) == pytest.approx(0.5)
    # Each caller gets another time, as if all of them took 500 bytes, whatever they ask for; and
    # none a time that its client would not wait for.
    assert bucket.take(1_000_000) == pytest.approx(1.0)
    assert bucket.take(0) == pytest.approx(1.5)
    assert max(bucket.take(250) for _ in range(1000)) == pytest.approx(5)
    now[0] += 0.5
    assert bucket.take(250) == 0


def test_all_caps_must_allow_the_bytes() -> None:
    now = [50.0]
    wide, narrow = (TokenBucket(rate, lambda: now[0]) for rate in (1000, 100))
    assert take_from_all([wide, narrow], 100) == 0
    now[0] += 0.5
    assert take_from_all([wide, narrow], 100) == pytest.approx(0.5)
    assert wide.take(100) == 0  # the refused bytes are not taken from the other cap


def test_a_stop_does_not_wait_for_the_cap() -> None:
    service, _ = capped(1)  # one byte per second: the first batch takes minutes
    with ExitStack() as stack:
        endpoint = stack.enter_context(service)
        client = stack.enter_context(RawClient(endpoint.address))
        throttles: list[Any] = []
        while len(throttles) < 2:
            answer: Any = client.request(ApiKey.FETCH, 11, **fetch_of("orders", 0))
            throttles.append(answer.throttle_time.total_seconds())
        assert throttles == [0, 5]
        began = monotonic()
        endpoint.stop()
        assert monotonic() - began < 4
